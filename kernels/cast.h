/* cast - the small float types of weights and activations, by bits; one source for host code.
 *
 * Rounding is to nearest, ties to even. NaN stays NaN and becomes quiet; f16 overflows to infinity from
 * 65520 up and has subnormals.
 */
#ifndef TANDEM_KERNELS_CAST_H
#define TANDEM_KERNELS_CAST_H

#include "kernels/mat.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline float f32_from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static inline float f32_from_bf16(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float x)
{
    uint32_t u = f32_bits(x);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;

    if (mag >= 0x7c00) /* infinity, NaN */
        return f32_from_bits(sign | 0x7f800000 | (mag & 0x3ff) << 13 | (mag > 0x7c00) << 22);
    if (mag >= 0x400)
        return f32_from_bits(sign | ((mag << 13) + 0x38000000));
    return f32_from_bits(sign | f32_bits((float)mag * 0x1p-24f)); /* subnormals are exact here */
}

static inline uint16_t f16_from_f32(float x)
{
    uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff, even;

    if (mag > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x1ff));
    if (mag >= 0x477ff000) /* 65520 */
        return (uint16_t)(sign | 0x7c00);
    if (mag < 0x38800000) /* below 2^-14: the sum with 0.5 leaves units of 2^-24, rounded by the hardware */
        return (uint16_t)(sign | (f32_bits(f32_from_bits(mag) + 0.5f) - 0x3f000000));
    even = mag >> 13 & 1;
    return (uint16_t)(sign | ((mag - 0x38000000 + 0xfff + even) >> 13));
}

/* f32_widen - n values of a stored type to f32; src needs no alignment. */
static inline void f32_widen(enum dtype t, const void *src, size_t n, float *dst)
{
    const unsigned char *p = (const unsigned char *)src;
    uint16_t h;

    if (t == DTYPE_F32) {
        if (n > 0)
            memcpy(dst, src, n * sizeof(float));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(&h, p + 2 * i, sizeof(h));
        dst[i] = t == DTYPE_BF16 ? f32_from_bf16(h) : f32_from_f16(h);
    }
}

#endif
