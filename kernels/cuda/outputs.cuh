// outputs - sums of a product become outputs: for EXL3 a second Hadamard rotation, scale (svh) and
// bias, for NVFP4 the global scale. A warp has 128 values, lane l those from 4 l on. The bits of a
// rotation are those of kernels/formats/exl3.c.
#ifndef TANDEM_KERNELS_CUDA_OUTPUTS_CUH
#define TANDEM_KERNELS_CUDA_OUTPUTS_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/formats/exl3.h"

__device__ static inline void butterfly(float *a, float *b)
{
    float sum = *a + *b, diff = *a - *b;

    *a = sum;
    *b = diff;
}

// The Hadamard transform of the warp's 128 values, strides 1, 2 .. 64, unscaled.
__device__ static inline void rotate(float (&v)[4])
{
    int lane = (int)(thread_here() % CUDA_WARP);

    butterfly(&v[0], &v[1]);
    butterfly(&v[2], &v[3]);
    butterfly(&v[0], &v[2]);
    butterfly(&v[1], &v[3]);
    for (int step = 1; step < CUDA_WARP; step *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float o = __shfl_xor_sync(FULL_MASK, v[i], step);

            v[i] = lane & step ? o - v[i] : v[i] + o;
        }
}

// Value i of four f16 numbers.
__device__ static inline float f16_of(uint2 four, int i)
{
    return f16_value((uint16_t)((i < 2 ? four.x : four.y) >> (i % 2 * 16)));
}

// The warp's outputs of a strip of EXL3, from their sums. by, plus: the lane's four of svh and
// bias.
__device__ static inline void finish_rotated(uint2 by, uint2 plus, bool biased, float (&v)[4])
{
    rotate(v);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = v[i] * EXL3_SCALE * f16_of(by, i);
        if (biased)
            v[i] += f16_of(plus, i);
    }
}

// The warp's outputs n0 .. n0 + 127 of a matrix, not rounded, from their sums. ROTATED: it is EXL3.
template <bool ROTATED>
__device__ static inline void finish_outputs(const struct mat &w, int n0, int wide, float (&v)[4])
{
    int lane = (int)threadIdx.x % CUDA_WARP;

    if (w.cols == 0) {
        v[0] = v[1] = v[2] = v[3] = 0;
    } else if (ROTATED) {
        uint2 by = *(const uint2 *)(w.svh + n0 + 4 * lane), plus = make_uint2(0, 0);

        if (w.bias)
            plus = *(const uint2 *)(w.bias + n0 + 4 * lane);
        finish_rotated(by, plus, w.bias != NULL, v);
    } else if (w.dtype == DTYPE_NVFP4) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = w.q.divides ? v[i] / w.q.global : v[i] * w.q.global;
    }
}

// The same from sums that lie at z; `wide` of them are wanted, the rest are zeros.
__device__ static inline void take_outputs(const float *z, const struct mat &w, int n0, int wide,
                                           float (&v)[4])
{
    int lane = (int)threadIdx.x % CUDA_WARP;

    v[0] = v[1] = v[2] = v[3] = 0;
    if (4 * lane < wide && w.cols > 0 && (w.dtype == DTYPE_EXL3 || n0 + 4 * lane < w.rows)) {
        float4 f = *(const float4 *)(z + 4 * lane);

        v[0] = f.x;
        v[1] = f.y;
        v[2] = f.z;
        v[3] = f.w;
    }
    if (w.dtype == DTYPE_EXL3)
        finish_outputs<true>(w, n0, wide, v);
    else
        finish_outputs<false>(w, n0, wide, v);
}

#endif
