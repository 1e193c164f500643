/* dot.c owns the choice of the instruction set for dot_body.h. */
#include "kernels/ref/dot.h"

#include <stdint.h>
#include <string.h>

#include "kernels/ref/simd.h"

#if SIMD_X86
#include <immintrin.h>
#endif

#if defined(__clang__)
/* Indices are a vector here and constants there: lane by lane. */
#define DOT_SHUFFLE(a, b, mask)                                                                    \
    ({                                                                                             \
        __typeof__(a) out_ = a;                                                                    \
                                                                                                   \
        for (int l_ = 0; l_ < DOT_LANES; l_++)                                                     \
            out_[l_] = (mask)[l_] < DOT_LANES ? (a)[(mask)[l_]] : (b)[(mask)[l_] - DOT_LANES];     \
        out_;                                                                                      \
    })
#else
#define DOT_SHUFFLE(a, b, mask) __builtin_shuffle(a, b, mask)
#endif

/* What every machine of the architecture has: 32 registers of four values on arm64, 16 on
 * x86-64. */
#define DOT_NAME(f) base_##f
#define DOT_LANES 4
#if defined(__aarch64__)
#define DOT_SUMS 6
#else
#define DOT_SUMS 3
#endif
#include "kernels/ref/dot_body.h"

#if SIMD_X86
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#define DOT_NAME(f) avx2_##f
#define DOT_LANES 8
#define DOT_SUMS 6
#define DOT_F16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(p)))
#include "kernels/ref/dot_body.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f")
#define DOT_NAME(f) avx512_##f
#define DOT_LANES 16
#define DOT_SUMS 24
#define DOT_F16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)(p)))
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
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
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
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
        avx2_transpose(rows, ld, n, cols, out);
        return;
    }
#endif
    base_transpose(rows, ld, n, cols, out);
}
