/* set_avx512 - strips with AVX-512 (F, BW, DQ, VL); built a second time with VNNI, which adds a
 * number's bytes in one instruction. */
#include <immintrin.h>

#include "kernels/cpu/sets.h"

#define LANES 16
#define FUSED
typedef float vf __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
#define LANE_NUMBERS                                                                               \
    {                                                                                              \
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15                                       \
    }

static ALWAYS_INLINE vf vf_of(float x)
{
    return (vf)_mm512_set1_ps(x);
}

static ALWAYS_INLINE vf mul_add(vf a, vf b, vf c)
{
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

static ALWAYS_INLINE vf byte_sum(vu x)
{
    __m512i two23 = _mm512_set1_epi32(0x4b000000);
#ifdef __AVX512VNNI__
    return (vf)_mm512_castsi512_ps(_mm512_dpbusd_epi32(two23, (__m512i)x, _mm512_set1_epi8(1)));
#else
    __m512i pairs = _mm512_maddubs_epi16((__m512i)x, _mm512_set1_epi8(1));

    return (vf)_mm512_castsi512_ps(
        _mm512_or_si512(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)), two23));
#endif
}

static ALWAYS_INLINE vf f16_load(const uint16_t *p)
{
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static ALWAYS_INLINE vf f16_round(vf v)
{
    return (vf)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}

/* A code moved into an f16 has 2^-8 times its value. */
static ALWAYS_INLINE void e4m3_values(const unsigned char *p, vf out[1])
{
    __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i a = _mm256_slli_epi16(_mm256_and_si256(c, _mm256_set1_epi16(0x7f)), 7);
    __m256i s = _mm256_slli_epi16(_mm256_and_si256(c, _mm256_set1_epi16(0x80)), 8);

    out[0] = (vf)_mm512_cvtph_ps(_mm256_or_si256(a, s)) * 256;
}

/* The sixteen values are one register and a code is a lane number, of which only the low four bits
 * count. */
static ALWAYS_INLINE void e2m1_values(const unsigned char *p, vf lo[1], vf hi[1])
{
    const vf value = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };
    __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));

    lo[0] = (vf)_mm512_permutexvar_ps(c, (__m512)value);
    hi[0] = (vf)_mm512_permutexvar_ps(_mm512_srli_epi32(c, 4), (__m512)value);
}

#include "kernels/cpu/exl3_body.h"

#include "kernels/cpu/codes_body.h"

static bool works(void)
{
#ifdef __AVX512VNNI__
    if (!__builtin_cpu_supports("avx512vnni"))
        return false;
#endif
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#ifdef __AVX512VNNI__
const struct cpu_set cpu_avx512_vnni = { "avx512-vnni", works, set_strip };
#else
const struct cpu_set cpu_avx512 = { "avx512", works, set_strip };
#endif
