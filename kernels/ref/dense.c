/* dense.c owns the pieces every block is made of: norm, sum, gate. The product is in product.c. */
#include <errno.h>
#include <math.h>

#include "kernels/ref/ref.h"
#include "kernels/ref/rows.h"
#include "kernels/ref/simd.h"

#define GRAIN_ROWS 16 /* rows below which waking a worker costs more than it saves */

SIMD static void norm_row(const struct rmsnorm_args *a, const float *x, float square_sum, float *y)
{
    float by = 1.0f / sqrtf(square_sum / (float)a->cols + a->eps);

    if (a->round == ROUND_BF16)
        for (int c = 0; c < a->cols; c++)
            y[c] = bf16_round(x[c] * by * a->w[c]);
    else
        for (int c = 0; c < a->cols; c++)
            y[c] = x[c] * by * a->w[c];
}

static void rmsnorm_rows(const void *args, int lo, int hi, int worker)
{
    const struct rmsnorm_args *a = args;
    size_t cols = (size_t)a->cols;

    for (int r = lo; r < hi; r += ROWS_SUM) {
        int n = hi - r < ROWS_SUM ? hi - r : ROWS_SUM;
        const float *x = a->x + (size_t)r * cols;
        float sum[ROWS_SUM];

        rows_square_sum(x, cols, n, a->cols, sum);
        for (int i = 0; i < n; i++)
            norm_row(a, x + (size_t)i * cols, sum[i], a->y + (size_t)(r + i) * cols);
    }
}

void ref_rmsnorm(struct queue *q, const struct rmsnorm_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, GRAIN_ROWS, rmsnorm_rows, a);
}

SIMD static void add_values(const struct add_args *a, size_t lo, size_t hi)
{
    if (a->round == ROUND_BF16)
        for (size_t i = lo; i < hi; i++)
            a->y[i] = bf16_round(a->y[i] + a->x[i]);
    else
        for (size_t i = lo; i < hi; i++)
            a->y[i] += a->x[i];
}

static void add_rows(const void *args, int lo, int hi, int worker)
{
    const struct add_args *a = args;

    add_values(a, (size_t)lo * (size_t)a->cols, (size_t)hi * (size_t)a->cols);
}

void ref_add(struct queue *q, const struct add_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, GRAIN_ROWS, add_rows, a);
}

static void swiglu_rows(const void *args, int lo, int hi, int worker)
{
    const struct swiglu_args *a = args;

    rows_swiglu(a->gate + (size_t)lo * (size_t)a->cols, a->up + (size_t)lo * (size_t)a->cols,
                a->y + (size_t)lo * (size_t)a->cols, (size_t)(hi - lo) * (size_t)a->cols, 1,
                a->limit, a->round);
}

void ref_swiglu(struct queue *q, const struct swiglu_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, GRAIN_ROWS, swiglu_rows, a);
}
