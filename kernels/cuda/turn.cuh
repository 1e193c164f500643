// turn - rotation of a pair by a position. The angle is an f32 product, so that every backend turns by
// the same angle; its cosine and sine are taken in double and rounded once.
#ifndef TANDEM_KERNELS_CUDA_TURN_CUH
#define TANDEM_KERNELS_CUDA_TURN_CUH

#include "kernels/cuda/device.cuh"

// Cosine and sine.
__device__ static inline float2 turn_of(int pos, float freq, bool back)
{
    double angle = (double)((float)pos * freq), s, c;

    sincos(angle, &s, &c);
    return make_float2((float)c, (float)(back ? -s : s));
}

__device__ static inline float2 turned(float2 p, float2 turn, enum round round)
{
    return make_float2(rounded(p.x * turn.x - p.y * turn.y, round),
                       rounded(p.x * turn.y + p.y * turn.x, round));
}

#endif
