/* numfmt - small floats bit for bit: bf16, f16, e4m3, e2m1, e8m0; one source for C and CUDA.
 *
 * Casts round to nearest, ties to even. e4m3 is E4M3FN and its encoder saturates at 448; e2m1 holds
 * 0, 0.5, 1, 1.5, 2, 3, 4, 6 and saturates at 6; e8m0 byte b is 2^(b - 127), 255 is NaN. NaN stays
 * NaN wherever the format has one. Everything is free of branches, so that loops over these
 * vectorise.
 *
 * source   OCP Microscaling Formats (MX) 1.0; docs/DECODE.md "cache quantisers"
 */
#ifndef TANDEM_KERNELS_NUMFMT_H
#define TANDEM_KERNELS_NUMFMT_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define NUM_FN static inline __host__ __device__
#else
#define NUM_FN static inline
#endif

NUM_FN uint32_t f32_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

NUM_FN float f32_from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

NUM_FN float f32_from_bf16(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

NUM_FN uint16_t bf16_from_f32(float x)
{
    uint32_t u = f32_bits(x);
    uint32_t near = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    uint32_t quiet = u >> 16 | 0x40u;

    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : near);
}

/* bf16_round - x as bf16 would hold it. */
NUM_FN float bf16_round(float x)
{
    return f32_from_bf16(bf16_from_f32(x));
}

NUM_FN float f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = h & 0x7fffu;
    uint32_t normal = (a << 13) + (112u << 23);
    uint32_t small = f32_bits((float)(int32_t)a * 0x1p-24f);
    uint32_t u = a < 0x400u ? small : normal;

    u = a >= 0x7c00u ? a << 13 | 0x7f800000u | (uint32_t)(a > 0x7c00u) << 22 : u;
    return f32_from_bits(sign | u);
}

NUM_FN uint16_t f16_from_f32(float x)
{
    uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    uint32_t normal = (a - (112u << 23) + 0xfffu + (a >> 13 & 1)) >> 13;
    /* 0.5 has an ulp of 2^-24, the unit of f16 subnormals: the sum is the rounded count of
     * units. */
    uint32_t small = f32_bits(f32_from_bits(a < 0x38800000u ? a : 0) + 0.5f) - 0x3f000000u;
    uint32_t h = a < 0x38800000u ? small : normal;

    h = a >= 0x477ff000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x1ffu) : h;
    return (uint16_t)(sign | h);
}

NUM_FN float f32_from_e4m3(uint8_t c)
{
    uint32_t sign = (uint32_t)(c & 0x80u) << 24, a = c & 0x7fu;
    uint32_t normal = (a << 20) + (120u << 23);
    uint32_t small = f32_bits((float)(int32_t)a * 0x1p-9f);
    uint32_t u = a < 8 ? small : normal;

    u = a == 0x7fu ? 0x7fc00000u : u;
    return f32_from_bits(sign | u);
}

NUM_FN uint8_t e4m3_from_f32(float x)
{
    uint32_t u = f32_bits(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    uint32_t top = a < 0x43e00000u ? a : 0x43e00000u; /* 448 */
    uint32_t normal = (top - (120u << 23) + 0x7ffffu + (top >> 20 & 1)) >> 20;
    /* 2^14 has an ulp of 2^-9, the unit of e4m3 subnormals. */
    uint32_t small = f32_bits(f32_from_bits(top < 0x3c800000u ? top : 0) + 0x1p14f) - 0x46800000u;
    uint32_t c = top < 0x3c800000u ? small : normal;

    c = a > 0x7f800000u ? 0x7fu : c;
    return (uint8_t)(sign | c);
}

NUM_FN float f32_from_e2m1(uint8_t c)
{
    int32_t t = c & 7, over4 = t > 4 ? t - 4 : 0, over6 = t > 6 ? 1 : 0;
    float a = (float)(t + over4 + 2 * over6) * 0.5f;

    return f32_from_bits(f32_bits(a) | (uint32_t)(c & 8u) << 28);
}

/* e2m1_from_f32 - NaN becomes 6: a block with a NaN is marked by its scale. */
NUM_FN uint8_t e2m1_from_f32(float x)
{
    uint32_t u = f32_bits(x), a = u & 0x7fffffffu;
    uint32_t c = (uint32_t)(a > 0x3e800000u) + (a >= 0x3f400000u) + (a > 0x3fa00000u) +
                 (a >= 0x3fe00000u) + (a > 0x40200000u) + (a >= 0x40600000u) + (a > 0x40a00000u);

    return (uint8_t)(c | (u >> 28 & 8u));
}

NUM_FN float f32_from_e8m0(uint8_t b)
{
    uint32_t u = b == 0 ? 0x00400000u : (uint32_t)b << 23;

    return f32_from_bits(b == 255 ? 0x7fc00000u : u);
}

/* pow2ceil_e8m0 - the e8m0 byte of 2^ceil(log2 t), t > 0; 255 where t or the power is not
 * finite. */
NUM_FN uint8_t pow2ceil_e8m0(float t)
{
    uint32_t u = f32_bits(t) & 0x7fffffffu;
    uint32_t e = (u >> 23) + ((u & 0x7fffffu) != 0);

    return (uint8_t)(e < 255 ? e : 255);
}

#endif
