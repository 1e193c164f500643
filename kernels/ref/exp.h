/* exp - e^x in f32 and what is made of it, from +, -, *, / and bits: the same on every machine, and
 * loops over it vectorise. Within 1.1 ulp; inf from 88.724 up, 0 below -104, NaN for NaN.
 */
#ifndef TANDEM_KERNELS_REF_EXP_H
#define TANDEM_KERNELS_REF_EXP_H

#include <stdint.h>

#include "kernels/numfmt.h"
#include "kernels/ref/simd.h"

/* x = k ln 2 + r with |r| <= ln 2 / 2, e^r by its series up to r^7, which leaves 6e-9. ln 2 is cut
 * after nine bits, so k times the first part is exact. 2^k in two factors reaches subnormals and
 * infinity. */
static ALWAYS_INLINE float exp_f32(float x)
{
    const float whole = 0x1.8p23f; /* its ulp is one: adding it rounds to an integer */
    float z, k, r, p;
    int32_t n, half;

    x = x > 89 ? 89 : x;
    x = x < -104 ? -104 : x;
    z = x * 0x1.715476p+0f + whole;
    k = z - whole;
    n = (int32_t)(f32_bits(z) - f32_bits(whole));
    r = x - k * 0x1.63p-1f;
    r = r - k * -0x1.bd0106p-13f;
    p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    p = p + 1;
    half = n >> 1;
    return p * f32_from_bits((uint32_t)(half + 127) << 23) *
           f32_from_bits((uint32_t)(n - half + 127) << 23);
}

static ALWAYS_INLINE float sigmoid_f32(float x)
{
    return 1.0f / (1.0f + exp_f32(-x));
}

/* x sigmoid(x) */
static ALWAYS_INLINE float silu_f32(float x)
{
    return x / (1.0f + exp_f32(-x));
}

#endif
