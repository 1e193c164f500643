// turn - rotary embedding: rotation of a pair of values by an angle that depends on the position.
// The angle is an f32 product, so that every backend uses the same one; its cosine and sine are
// computed in double and rounded once. CUDA's own functions handle any argument, which costs
// registers and local memory; these handle angles below 2^31.
#ifndef TANDEM_KERNELS_CUDA_TURN_CUH
#define TANDEM_KERNELS_CUDA_TURN_CUH

#include "kernels/cuda/device.cuh"

// Cosine and sine of an angle below 2^31: reduced by quarter turns to at most pi / 4, then a
// series.
__device__ static inline float2 turn_of(int pos, float freq, bool back)
{
    const double of_cos[] = {
        0x1.ae7f3e733b81fp-45,  -0x1.93974a8c07c9dp-37, 0x1.1eed8eff8d898p-29,
        -0x1.27e4fb7789f5cp-22, 0x1.a01a01a01a01ap-16,  -0x1.6c16c16c16c17p-10,
        0x1.5555555555555p-5,   -0x1.0000000000000p-1
    }; // 1 / 16!, -1 / 14! ..
    const double of_sin[] = { -0x1.ae7f3e733b81fp-41, 0x1.6124613a86d09p-33,
                              -0x1.ae64567f544e4p-26, 0x1.71de3a556c734p-19,
                              -0x1.a01a01a01a01ap-13, 0x1.1111111111111p-7,
                              -0x1.5555555555555p-3 }; // -1 / 15! ..
    double x = (double)((float)pos * freq), n = rint(x * 0x1.45f306dc9c883p-1);
    double r = fma(-n, 0x1.1a62633145c07p-54, fma(-n, 0x1.921fb54442d18p+0, x)), z = r * r;
    double c = of_cos[0], s = of_sin[0];
    int quarter = (int)n;

#pragma unroll
    for (int i = 1; i < 8; i++)
        c = fma(c, z, of_cos[i]);
#pragma unroll
    for (int i = 1; i < 7; i++)
        s = fma(s, z, of_sin[i]);
    c = fma(c, z, 1.0);
    s = z == 0 ? x : fma(s * z, r, r); // keeps a zero's sign
    x = quarter & 1 ? s : c;
    s = quarter & 1 ? c : s;
    c = (quarter + 1) & 2 ? -x : x;
    s = ((quarter & 2) != 0) != back ? -s : s;
    return make_float2((float)c, (float)s);
}

__device__ static inline float2 turned(float2 p, float2 turn, enum round round)
{
    return make_float2(rounded(p.x * turn.x - p.y * turn.y, round),
                       rounded(p.x * turn.y + p.y * turn.x, round));
}

#endif
