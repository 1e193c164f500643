/* set_neon - strips with NEON, two registers a vector. */
#include <arm_neon.h>

#include "kernels/cpu/sets.h"

#include "kernels/cpu/lanes8_body.h"
#define FUSED

static ALWAYS_INLINE vf join(float32x4_t lo, float32x4_t hi)
{
    return __builtin_shufflevector(lo, hi, 0, 1, 2, 3, 4, 5, 6, 7);
}

#define LOW(v) ((float32x4_t)__builtin_shufflevector(v, v, 0, 1, 2, 3))
#define HIGH(v) ((float32x4_t)__builtin_shufflevector(v, v, 4, 5, 6, 7))

static ALWAYS_INLINE vf mul_add(vf a, vf b, vf c)
{
    return join(vfmaq_f32(LOW(c), LOW(a), LOW(b)), vfmaq_f32(HIGH(c), HIGH(a), HIGH(b)));
}

static ALWAYS_INLINE float32x4_t byte_sum4(uint32x4_t x)
{
    uint32x4_t sum = vpaddlq_u16(vpaddlq_u8(vreinterpretq_u8_u32(x)));

    return vreinterpretq_f32_u32(vorrq_u32(sum, vdupq_n_u32(0x4b000000)));
}

static ALWAYS_INLINE vf byte_sum(vu x)
{
    return join(byte_sum4(vreinterpretq_u32_f32(LOW((vf)x))),
                byte_sum4(vreinterpretq_u32_f32(HIGH((vf)x))));
}

static ALWAYS_INLINE vf f16_load(const uint16_t *p)
{
    float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));

    return join(vcvt_f32_f16(vget_low_f16(h)), vcvt_f32_f16(vget_high_f16(h)));
}

static ALWAYS_INLINE vf f16_round(vf v)
{
    return join(vcvt_f32_f16(vcvt_f16_f32(LOW(v))), vcvt_f32_f16(vcvt_f16_f32(HIGH(v))));
}

#include "kernels/cpu/exl3_body.h"

#include "kernels/cpu/codes_body.h"

static bool works(void)
{
    return true; /* every 64-bit ARM has it */
}

const struct cpu_set cpu_neon = { "neon", works, set_strip };
