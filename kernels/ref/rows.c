/* rows.c owns loops over rows that more than one op is made of. */
#include "kernels/ref/rows.h"

#include <math.h>

#include "kernels/ref/exp.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/simd.h"

void rows_square_sum(const float *x, size_t ld, int n, int cols, float *sum)
{
    int r = 0;

    for (; r + 4 <= n; r += 4) {
        const float *x0 = x + (size_t)r * ld, *x1 = x0 + ld, *x2 = x1 + ld, *x3 = x2 + ld;
        float s0 = 0, s1 = 0, s2 = 0, s3 = 0;

        for (int c = 0; c < cols; c++) {
            s0 += x0[c] * x0[c];
            s1 += x1[c] * x1[c];
            s2 += x2[c] * x2[c];
            s3 += x3[c] * x3[c];
        }
        sum[r] = s0;
        sum[r + 1] = s1;
        sum[r + 2] = s2;
        sum[r + 3] = s3;
    }
    for (; r < n; r++) {
        float s = 0;

        for (int c = 0; c < cols; c++)
            s += x[(size_t)r * ld + (size_t)c] * x[(size_t)r * ld + (size_t)c];
        sum[r] = s;
    }
}

static ALWAYS_INLINE void swiglu(const float *gate, const float *up, float *y, size_t n, float by,
                                 float cap, enum round round)
{
    for (size_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i];

        g = g > cap ? cap : g;
        u = u > cap ? cap : u;
        u = u < -cap ? -cap : u;
        y[i] = ref_round(by * (silu_f32(g) * u), round);
    }
}

/* The comparisons let a NaN through: it must reach the logits, where it ends the request. */
SIMD void rows_swiglu(const float *gate, const float *up, float *y, size_t n, float by, float limit,
                      enum round round)
{
    float cap = limit > 0 ? limit : INFINITY;

    if (round == ROUND_BF16)
        swiglu(gate, up, y, n, by, cap, ROUND_BF16);
    else
        swiglu(gate, up, y, n, by, cap, ROUND_NONE);
}
