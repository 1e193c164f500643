// rows - rows of the window become inputs of a product (the layouts are strip.cuh's): rotated and
// rounded to f16 for EXL3, else split into bf16 planes. A warp has 128 values, lane l those from 4
// l on.
#ifndef TANDEM_KERNELS_CUDA_ROWS_CUH
#define TANDEM_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/strip.cuh"

// Round the values as if they were stored with codec QW and read again.
__device__ static inline void quantise(float (&v)[4])
{
    uint32_t most = 0;
    float by;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t a = f32_bits(v[i]) & 0x7fffffffu;

        most = a > most ? a : most;
    }
    for (int step = 1; step < 8; step *= 2) {
        uint32_t other = __shfl_xor_sync(FULL_MASK, most, step);

        most = other > most ? other : most;
    }
    by = f32_from_e8m0(pow2ceil_e8m0(at_least(f32_from_bits(most), 1e-4f) * (1.0f / 448)));
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = f32_from_e4m3(e4m3_from_f32(v[i] / by)) * by;
}

__device__ static inline void put_four(uint16_t *unit, const uint16_t (&h)[4], bool live,
                                       bool plain, bool tiled)
{
    int i = (int)(thread_here() % 16) * 4;

    if (!live)
        return;
    if (tiled && plain) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            unit[strip_lay_tile_plain(i + k)] = h[k];
        return;
    }
    if (tiled) {
        *(uint2 *)(unit + i) = make_uint2(h[0] | (uint32_t)h[1] << 16, h[2] | (uint32_t)h[3] << 16);
        return;
    }
    if (plain) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            unit[strip_lay_plain(i + k)] = h[k];
        return;
    }
    *(uint32_t *)(unit + strip_lay(i)) = h[0] | (uint32_t)h[1] << 16;
    *(uint32_t *)(unit + strip_lay(i + 2)) = h[2] | (uint32_t)h[3] << 16;
}

// Rotate the warp's block of 128 inputs and store it as f16 for EXL3. su: the lane's four of suh.
__device__ static inline void put_rotated(uint16_t *unit, uint2 su, float (&v)[4],
                                          bool tiled = false)
{
    uint16_t h[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = v[i] * f16_of(su, i);
    rotate(v);
#pragma unroll
    for (int i = 0; i < 4; i++)
        h[i] = f16_nearest(v[i] * EXL3_SCALE);
    put_four(unit, h, true, false, tiled);
}

// Store the warp's values as inputs k0 .. k0 + wide - 1 of row `row` of x, in the form that weights
// w need; wide is 128, without a rotation also 64. suh: from input k0 on, EXL3 only. ROTATED: w is
// EXL3. tiled: in the order of tiles (group.cuh) instead of that of lanes.
template <bool ROTATED>
__device__ static inline void put_inputs(const struct strip_x &x, const struct mat &w,
                                         const uint16_t *suh, enum codec in, int row, int k0,
                                         int wide, float (&v)[4], bool tiled = false)
{
    int lane = (int)threadIdx.x % CUDA_WARP, need = 1;
    bool live = 4 * lane < wide;
    uint16_t *unit = x.data + (size_t)row * (size_t)x.ld + k0 + lane / 16 * STRIP_UNIT, h[4];
    unsigned two, three;

    if constexpr (ROTATED) {
        put_rotated(unit, *(const uint2 *)(suh + 4 * lane), v, tiled);
        return;
    }
    if (in == CODEC_QW && (w.dtype == DTYPE_FP8 || w.dtype == DTYPE_MXFP4))
        quantise(v);
#pragma unroll
    for (int plane = 0; plane < STRIP_PLANES; plane++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            h[i] = bf16_from_f32(v[i]);
            // a value that is not finite is all in the first plane
            v[i] = (h[i] & 0x7f80) == 0x7f80 ? 0 : v[i] - f32_from_bf16(h[i]);
            need = v[i] != 0 && plane + 1 < STRIP_PLANES ? plane + 2 : need;
        }
        put_four(unit + (size_t)plane * x.plane, h, live, w.dtype == DTYPE_BF16, tiled);
    }
    two = __ballot_sync(FULL_MASK, need > 1) >> (lane & 16) & 0xffffu;
    three = __ballot_sync(FULL_MASK, need > 2) >> (lane & 16) & 0xffffu;
    if (lane % 16 == 0 && live)
        x.count[(size_t)row * (size_t)(x.ld / STRIP_UNIT) + (size_t)(k0 / STRIP_UNIT + lane / 16)] =
            three ? 3
            : two ? 2
                  : 1;
}

__device__ static inline void put_any(const struct strip_x &x, const struct mat &w,
                                      const uint16_t *suh, enum codec in, int row, int k0,
                                      float (&v)[4], bool tiled = false)
{
    if (w.dtype == DTYPE_EXL3)
        put_inputs<true>(x, w, suh, in, row, k0, EXL3_BLOCK, v, tiled);
    else
        put_inputs<false>(x, w, suh, in, row, k0, EXL3_BLOCK, v, tiled);
}

// Four values of a row of n, from k on; zeros past its end.
__device__ static inline void take_four(const float *x, int k, int n, float (&v)[4])
{
    if (k + 4 <= n && ((uintptr_t)(x + k) & 15) == 0) {
        float4 f = *(const float4 *)(x + k);

        v[0] = f.x;
        v[1] = f.y;
        v[2] = f.z;
        v[3] = f.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = k + i < n ? x[k + i] : 0;
}

#endif
