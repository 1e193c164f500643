// outputs - sums of a product become outputs: splits add up in order, EXL3 is rotated back. A warp has 128
// values, lane l those from 4 l on. The bits of a rotation are those of kernels/formats/exl3.c.
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

// The Hadamard transform of the warp's values, strides 1, 2 .. 64, without scale.
__device__ static inline void rotate(float (&v)[4])
{
    int lane = (int)threadIdx.x % CUDA_WARP;

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

// The warp's outputs n0 .. n0 + 127 of a matrix from the sums of its splits, not rounded: z is that
// of the first split, from n0 on, and splits are `far` apart; `wide` of them are wanted.
__device__ static inline void take_outputs(const float *z, size_t far, int splits,
                                           const struct mat &w, int n0, int wide, float (&v)[4])
{
    int lane = (int)threadIdx.x % CUDA_WARP;

    v[0] = v[1] = v[2] = v[3] = 0;
    if (w.cols == 0)
        return;
    if (w.dtype == DTYPE_EXL3 || (4 * lane < wide && n0 + 4 * lane < w.rows)) {
        float4 f = __ldcg((const float4 *)(z + 4 * lane)); // other blocks stored it

        for (int s = 1; s < splits; s++) {
            float4 o = __ldcg((const float4 *)(z + (size_t)s * far + 4 * lane));

            f.x += o.x;
            f.y += o.y;
            f.z += o.z;
            f.w += o.w;
        }
        v[0] = f.x;
        v[1] = f.y;
        v[2] = f.z;
        v[3] = f.w;
    }
    if (w.dtype == DTYPE_EXL3) {
        rotate(v);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = v[i] * EXL3_SCALE * f32_from_f16(w.svh[n0 + 4 * lane + i]);
            if (w.bias)
                v[i] += f32_from_f16(w.bias[n0 + 4 * lane + i]);
        }
    } else if (w.dtype == DTYPE_NVFP4) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = w.q.divides ? v[i] / w.q.global : v[i] * w.q.global;
    }
}

#endif
