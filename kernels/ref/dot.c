/* dot.c owns the choice of the instruction set for dot_body.h. */
#include "kernels/ref/dot.h"

#include <stdint.h>
#include <string.h>

#include "kernels/ref/simd.h"

#if SIMD_X86
#include <immintrin.h>
#endif

#define DOT_NAME(f) base_##f
#define DOT_ACCS 4
#define DOT_WIDE 0
#include "kernels/ref/dot_body.h"

#if SIMD_X86
#pragma GCC push_options
#pragma GCC target("avx2")
#define DOT_NAME(f) avx2_##f
#define DOT_ACCS 4
#define DOT_WIDE 0
#include "kernels/ref/dot_body.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f")
#define DOT_NAME(f) avx512_##f
#define DOT_ACCS 24
#define DOT_WIDE 1
#include "kernels/ref/dot_body.h"
#pragma GCC pop_options
#endif

void dot_rows(const struct dot_tiles *w, int first, int tiles, const float *const *x, int rows,
              float *y, size_t ldy, bool onto)
{
#if SIMD_X86
    if (__builtin_cpu_supports("avx512f")) {
        avx512_rows(w, first, tiles, x, rows, y, ldy, onto);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        avx2_rows(w, first, tiles, x, rows, y, ldy, onto);
        return;
    }
#endif
    base_rows(w, first, tiles, x, rows, y, ldy, onto);
}

void dot_transpose(const float *rows, size_t ld, int n, int cols, float *out)
{
#if SIMD_X86
    if (__builtin_cpu_supports("avx512f")) {
        avx512_transpose(rows, ld, n, cols, out);
        return;
    }
#endif
    for (int c = 0; c < cols; c++) {
        for (int j = 0; j < n; j++)
            out[c * MAT_TILE + j] = rows[(size_t)j * ld + (size_t)c];
        for (int j = n; j < MAT_TILE; j++)
            out[c * MAT_TILE + j] = 0;
    }
}
