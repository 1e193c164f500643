/* set_portable - strips in vectors of the compiler's, for any machine. */
#include "kernels/cpu/sets.h"

#include "kernels/cpu/lanes8_body.h"
#define ROWS_AT_ONCE 2 /* sixteen registers of four lanes are all that is sure */

static ALWAYS_INLINE vf mul_add(vf a, vf b, vf c)
{
    return a * b + c;
}

static ALWAYS_INLINE vf byte_sum(vu x)
{
    vu pairs = (x & 0x00ff00ffu) + (x >> 8 & 0x00ff00ffu);

    return (vf)(((pairs + (pairs >> 16)) & 0xffff) | 0x4b000000u);
}

/* Through memory: loops over an array become vector code, single lanes of a vector do not. */
static ALWAYS_INLINE vf f16_load(const uint16_t *p)
{
    float v[LANES];
    vf out;

    for (int i = 0; i < LANES; i++)
        v[i] = f32_from_f16(p[i]);
    memcpy(&out, v, sizeof(out));
    return out;
}

static ALWAYS_INLINE vf f16_round(vf x)
{
    float v[LANES];

    memcpy(v, &x, sizeof(v));
    for (int i = 0; i < LANES; i++)
        v[i] = f32_from_f16(f16_from_f32(v[i]));
    memcpy(&x, v, sizeof(v));
    return x;
}

#include "kernels/cpu/exl3_body.h"

#include "kernels/cpu/codes_body.h"

static bool works(void)
{
    return true;
}

const struct cpu_set cpu_portable = { "portable", works, set_strip };
