/* set_avx2 - strips with AVX2, FMA and F16C. */
#include <immintrin.h>

#include "kernels/cpu/sets.h"

#define LANES 8
#define FUSED
typedef float vf __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
#define LANE_NUMBERS                                                                               \
    {                                                                                              \
        0, 1, 2, 3, 4, 5, 6, 7                                                                     \
    }

static ALWAYS_INLINE vf vf_of(float x)
{
    return (vf)_mm256_set1_ps(x);
}

static ALWAYS_INLINE vf mul_add(vf a, vf b, vf c)
{
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

static ALWAYS_INLINE vf byte_sum(vu x)
{
    __m256i pairs = _mm256_maddubs_epi16((__m256i)x, _mm256_set1_epi8(1));

    return (vf)_mm256_castsi256_ps(_mm256_or_si256(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)),
                                                   _mm256_set1_epi32(0x4b000000)));
}

static ALWAYS_INLINE vf f16_load(const uint16_t *p)
{
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static ALWAYS_INLINE vf f16_round(vf v)
{
    return (vf)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}

/* A code moved into an f16 has 2^-8 times its value. */
static ALWAYS_INLINE void e4m3_values(const unsigned char *p, vf out[2])
{
    __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i a = _mm256_slli_epi16(_mm256_and_si256(c, _mm256_set1_epi16(0x7f)), 7);
    __m256i h =
        _mm256_or_si256(a, _mm256_slli_epi16(_mm256_and_si256(c, _mm256_set1_epi16(0x80)), 8));

    out[0] = (vf)_mm256_cvtph_ps(_mm256_castsi256_si128(h)) * 256;
    out[1] = (vf)_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)) * 256;
}

/* The lower byte of each of these values as f16 is 0; a shuffle looks the upper one up. */
static ALWAYS_INLINE void e2m1_halves(__m128i code, vf out[2])
{
    const __m128i upper =
        _mm_setr_epi8(0, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46, (char)0x80, (char)0xb8,
                      (char)0xbc, (char)0xbe, (char)0xc0, (char)0xc2, (char)0xc4, (char)0xc6);
    __m128i b = _mm_shuffle_epi8(upper, code), zero = _mm_setzero_si128();

    out[0] = (vf)_mm256_cvtph_ps(_mm_unpacklo_epi8(zero, b));
    out[1] = (vf)_mm256_cvtph_ps(_mm_unpackhi_epi8(zero, b));
}

static ALWAYS_INLINE void e2m1_values(const unsigned char *p, vf lo[2], vf hi[2])
{
    __m128i c = _mm_loadu_si128((const __m128i *)p), low = _mm_set1_epi8(15);

    e2m1_halves(_mm_and_si128(c, low), lo);
    e2m1_halves(_mm_and_si128(_mm_srli_epi16(c, 4), low), hi);
}

#include "kernels/cpu/exl3_body.h"

#include "kernels/cpu/codes_body.h"

static bool works(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

const struct cpu_set cpu_avx2 = { "avx2", works, set_strip };
