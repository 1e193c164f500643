// dot - inner products without the matrix unit, for plain weights: a block of DOT_WARPS warps
// multiplies one tile of MAT_TILE outputs by up to RB rows.
//
// A tile is [cols][MAT_TILE]. A lane reads 16 bytes of one column of inputs: 8 outputs of a 2-byte
// type or 4 of f32, so a warp reads 16 or 8 adjacent columns at once, and warps take turns along k.
// Lanes are reduced by shuffles, warps in order through shared memory. Which columns a lane adds,
// and in which order, depends on the number of columns and on the type alone; RB only says how many
// rows use a column while it is in registers. Bound by the bytes of the weights.
#ifndef TANDEM_KERNELS_CUDA_DOT_CUH
#define TANDEM_KERNELS_CUDA_DOT_CUH

#include "kernels/cuda/device.cuh"

#define DOT_WARPS 8
#define DOT_THREADS (DOT_WARPS * CUDA_WARP)
#define DOT_ROWS 8
#define DOT_AHEAD 4 // loads that a lane has in flight

template <enum dtype D> struct dot_piece {
    static constexpr int OUT = D == DTYPE_F32 ? 4 : 8; // outputs in 16 bytes
    static constexpr int LANES = MAT_TILE / OUT;       // that share a column
    static constexpr int COLS = CUDA_WARP / LANES;     // of a warp's load
};

template <enum dtype D> __device__ static inline void dot_widen(uint4 v, float *w)
{
    const uint32_t u[4] = { v.x, v.y, v.z, v.w };

#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (D == DTYPE_F32) {
            w[i] = f32_from_bits(u[i]);
        } else if (D == DTYPE_BF16) {
            w[2 * i] = f32_from_bits(u[i] << 16);
            w[2 * i + 1] = f32_from_bits(u[i] & 0xffff0000u);
        } else {
            w[2 * i] = f32_from_f16((uint16_t)u[i]);
            w[2 * i + 1] = f32_from_f16((uint16_t)(u[i] >> 16));
        }
    }
}

// dot_tile - thread t < RB * MAT_TILE gets the sum over k of tile[k][t % MAT_TILE] times x[t /
// MAT_TILE][k]; the result of other threads is undefined. part is shared, [DOT_WARPS][RB *
// MAT_TILE]. All threads of the block call it; x has RB valid pointers.
template <enum dtype D, int RB>
__device__ static inline float dot_tile(const void *tile, int cols, const float *const (&x)[RB],
                                        float *part)
{
    typedef struct dot_piece<D> piece;
    constexpr int STEP = DOT_WARPS * piece::COLS;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int k = warp * piece::COLS + lane / piece::LANES, n0 = lane % piece::LANES * piece::OUT;
    const uint4 *column = (const uint4 *)tile + lane % piece::LANES;
    float acc[RB][piece::OUT] = {}, w[piece::OUT], sum = 0;

    for (; k + (DOT_AHEAD - 1) * STEP < cols; k += DOT_AHEAD * STEP) {
        uint4 v[DOT_AHEAD];

#pragma unroll
        for (int i = 0; i < DOT_AHEAD; i++)
            v[i] = column[(size_t)(k + i * STEP) * piece::LANES];
#pragma unroll
        for (int i = 0; i < DOT_AHEAD; i++) {
            dot_widen<D>(v[i], w);
#pragma unroll
            for (int r = 0; r < RB; r++) {
                float xk = x[r][k + i * STEP];

#pragma unroll
                for (int n = 0; n < piece::OUT; n++)
                    acc[r][n] = fmaf(w[n], xk, acc[r][n]);
            }
        }
    }
    for (; k < cols; k += STEP) {
        dot_widen<D>(column[(size_t)k * piece::LANES], w);
#pragma unroll
        for (int r = 0; r < RB; r++)
#pragma unroll
            for (int n = 0; n < piece::OUT; n++)
                acc[r][n] = fmaf(w[n], x[r][k], acc[r][n]);
    }
#pragma unroll
    for (int r = 0; r < RB; r++)
#pragma unroll
        for (int n = 0; n < piece::OUT; n++)
#pragma unroll
            for (int step = CUDA_WARP / 2; step >= piece::LANES; step /= 2)
                acc[r][n] += __shfl_xor_sync(FULL_MASK, acc[r][n], step);
    __syncthreads(); // part may still be read from the call before
    if (lane < piece::LANES)
#pragma unroll
        for (int r = 0; r < RB; r++)
#pragma unroll
            for (int n = 0; n < piece::OUT; n++)
                part[warp * RB * MAT_TILE + r * MAT_TILE + n0 + n] = acc[r][n];
    __syncthreads();
    if ((int)threadIdx.x < RB * MAT_TILE) {
        sum = part[threadIdx.x];
        for (int i = 1; i < DOT_WARPS; i++)
            sum += part[i * RB * MAT_TILE + (int)threadIdx.x];
    }
    return sum;
}

// The bytes of tile t of a matrix.
__device__ static inline const void *mat_tile(const struct mat &w, int t)
{
    size_t bytes = (size_t)MAT_TILE * (size_t)w.cols * dtype_bytes(w.dtype);

    return (const char *)w.data + (size_t)t * bytes;
}

// dot_any - dot_tile of tile t of a matrix whose (plain) type is known only at run time.
template <int RB>
__device__ static inline float dot_any(const struct mat &w, int t, const float *const (&x)[RB],
                                       float *part)
{
    const void *tile = mat_tile(w, t);

    if (w.dtype == DTYPE_F32)
        return dot_tile<DTYPE_F32, RB>(tile, w.cols, x, part);
    if (w.dtype == DTYPE_F16)
        return dot_tile<DTYPE_F16, RB>(tile, w.cols, x, part);
    return dot_tile<DTYPE_BF16, RB>(tile, w.cols, x, part);
}

#endif
