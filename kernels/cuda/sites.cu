// sites.cu owns a site (site.cuh) of many rows, with the bits that site.cu gives.
//
// Two passes. In the first a block has a share of the columns, a thread each; it keeps the mixes'
// weights in registers and takes ROWS rows at a time, which cp.async brings AHEAD steps ahead.
// Blocks do not wait for each other: the share's sums, [rows][SHARES][SUMS] in scratch, and the
// inputs, not scaled yet, go through global memory. In the second a block finishes a row: norm and
// mixes. The first is bound by bytes and by instructions alike, the second by bytes or latency.
#include "kernels/cuda/site.cuh"

#define MANY 9                           // rows from which on this is faster than clusters
#define MANY_NORMS 64                    // the same without mixes
#define ROWS 2                           // rows of a step
#define AHEAD 2                          // steps in flight
#define COLS_MAX 320                     // columns of a share: a thread each
#define WARPS_MAX (COLS_MAX / CUDA_WARP) // warps of a block
#define ENDS_WARPS 8                     // warps that scale a row; one more makes its mixes
#define FOURS_MAX (SHARES * COLS_MAX / 4 / (ENDS_WARPS * CUDA_WARP)) // float4s of a thread

// A warp's columns of a row: the sublayer's output, and the streams, as they come in stream by
// stream, as they leave column by column.
struct columns {
    float y[CUDA_WARP];
    union {
        float x[STREAMS][CUDA_WARP];
        __align__(16) float out[CUDA_WARP][STREAMS];
    };
};

// A column's streams as they leave the site (out); returns the next sublayer's input.
__device__ static inline float cross(const struct hc_site_args &a, const struct coefficients &by,
                                     const struct columns &from, float (&out)[STREAMS])
{
    float in[STREAMS], y = 0, input = 0;
    int lane = (int)threadIdx.x % CUDA_WARP;

    if (a.y)
        y = rounded(from.y[lane], a.round);
#pragma unroll
    for (int j = 0; j < STREAMS; j++)
        in[j] = from.x[j][lane];
#pragma unroll
    for (int k = 0; k < STREAMS; k++) {
        float mixed = 0;

        out[k] = in[k];
        if (a.y) {
#pragma unroll
            for (int j = 0; j < STREAMS; j++)
                mixed += by.comb[j * STREAMS + k] * in[j];
            out[k] = rounded(by.post[k] * y + mixed, a.round);
        }
        input = k == 0 && !a.pre ? out[k] : a.pre ? input + by.pre[k] * out[k] : input;
    }
    return rounded(input, a.round);
}

// Grid (SHARES, row steps side by side): a block takes its share of every gridDim.y-th step of ROWS
// rows. Bound by bytes and by instructions alike.
template <enum dtype D, bool MIX>
__global__ static void __launch_bounds__(COLS_MAX, 1)
    site_shares(const __grid_constant__ hc_site_args a, const __grid_constant__ mat fn, float *sums)
{
    __shared__ struct columns ring[AHEAD + 1][ROWS][WARPS_MAX];
    __shared__ float part[2][ROWS][WARPS_MAX][SUMS];
    __shared__ __align__(16) struct coefficients by[WARPS_MAX][ROWS]; // each warp has a copy
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int warps = (int)blockDim.x / CUDA_WARP, share = (int)blockIdx.x;
    int c = share * (int)blockDim.x + t, apart = (int)gridDim.y * ROWS;
    size_t dim = (size_t)a.dim;
    float *kept = a.h ? a.h : a.n, held[ROWS];
    struct mix_weights<D> w[STREAMS];
    auto fetch = [&](int r0, struct columns(*to)[WARPS_MAX]) {
#pragma unroll
        for (int i = 0; i < ROWS && r0 < a.rows; i++) {
            size_t r = (size_t)(r0 + i < a.rows ? r0 + i : r0);

            if (a.y)
                copy_ahead<4>(&to[i][warp].y[lane], a.y + r * dim + (size_t)c);
#pragma unroll
            for (int j = 0; j < STREAMS; j++)
                copy_ahead<4>(&to[i][warp].x[j][lane],
                              a.x + (r * STREAMS + (size_t)j) * dim + (size_t)c);
        }
        copy_commit();
    };
    auto hold = [&](int r0) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            held[i] = r0 + i < a.rows ? coefficient_load(a, (size_t)(r0 + i), lane) : 0;
    };

#pragma unroll
    for (int k = 0; MIX && k < STREAMS; k++)
        mix_load<D>(fn, k, c - lane, a.dim, &w[k]);
    dependency_wait();
    int r = (int)blockIdx.y * ROWS;
    for (int i = 0; i < AHEAD; i++)
        fetch(r + i * apart, ring[i]);
    hold(r);
    for (int turn = 0, at = 0; r < a.rows; r += apart, turn++) {
        float out[ROWS][STREAMS], input[ROWS];

        copy_wait<AHEAD - 1>();
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (lane < COEFFICIENTS)
                ((float *)&by[warp][i])[lane] = held[i];
        __syncwarp();
        // into the stage of the step before
        fetch(r + AHEAD * apart, ring[at == 0 ? AHEAD : at - 1]);
        hold(r + apart);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            input[i] = cross(a, by[warp][i], ring[at][i][warp], out[i]);
#pragma unroll
        for (int i = 0; i < ROWS && r + i < a.rows; i++) {
            size_t row = (size_t)(r + i);

#pragma unroll
            for (int k = 0; k < STREAMS; k++)
                if (a.y)
                    a.x[(row * STREAMS + (size_t)k) * dim + (size_t)c] = out[i][k];
            kept[row * dim + (size_t)c] = input[i];
        }
        if (MIX) {
            __syncwarp(); // `out` overlays x, which all lanes have read
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                *(float4 *)ring[at][i][warp].out[lane] =
                    make_float4(out[i][0], out[i][1], out[i][2], out[i][3]);
            __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float square[2] = { 0, input[i] * input[i] };

#pragma unroll
            for (int k = 0; k < STREAMS; k++)
                square[0] = fmaf(out[i][k], out[i][k], square[0]);
            if (MIX)
                mix_part<D>(fn, c - lane, a.dim, ring[at][i][warp].out, w, part[turn % 2][i][warp]);
            fold_tile<1, 2>(square, part[turn % 2][i][warp] + SUM_X);
        }
        __syncthreads();
        if (warp == turn % warps)
#pragma unroll
            for (int i = 0; i < ROWS && r + i < a.rows; i++)
                sums[((size_t)(r + i) * SHARES + (size_t)share) * SUMS + (size_t)lane] =
                    MIX || lane == SUM_H ? share_add(part[turn % 2][i], warps) : 0;
        at = at == AHEAD ? 0 : at + 1;
    }
}

// A block a row. Bound by bytes, for few rows by latency.
template <bool MIX>
__global__ static void __launch_bounds__((ENDS_WARPS + 1) * CUDA_WARP)
    site_ends(const __grid_constant__ hc_site_args a, const float *sums)
{
    __shared__ float scale;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, fours = a.dim / 4;
    size_t row = blockIdx.x, dim = (size_t)a.dim;
    bool last = t / CUDA_WARP == ENDS_WARPS;
    const float4 *from = (const float4 *)((a.h ? a.h : a.n) + row * dim);
    float4 in[FOURS_MAX], w[FOURS_MAX];
    struct mix_line line = {};
    float total = 0, per = 1.0f / (float)a.dim;

    if (MIX && last)
        line = mix_line_load(a);
#pragma unroll
    for (int i = 0; i < FOURS_MAX; i++)
        if (!last && t + i * ENDS_WARPS * CUDA_WARP < fours)
            w[i] = ((const float4 *)a.w)[t + i * ENDS_WARPS * CUDA_WARP];
    dependency_wait();
    if (last) {
        float s[SHARES];

#pragma unroll
        for (int i = 0; i < SHARES; i++)
            s[i] = sums[(row * SHARES + (size_t)i) * SUMS + (size_t)lane];
        total = share_sum(s);
        if (lane == SUM_H)
            scale = rsqrtf(total * per + a.eps);
    } else {
#pragma unroll
        for (int i = 0; i < FOURS_MAX; i++)
            if (t + i * ENDS_WARPS * CUDA_WARP < fours)
                in[i] = from[t + i * ENDS_WARPS * CUDA_WARP];
    }
    __syncthreads();
    if (last) {
        if (MIX)
            mix_end(a, line, per, row, total);
        return;
    }
#pragma unroll
    for (int i = 0; i < FOURS_MAX; i++) {
        int at = t + i * ENDS_WARPS * CUDA_WARP;

        if (at < fours) {
            float4 v = in[i];

            v.x = rounded(v.x * scale * w[i].x, a.round);
            v.y = rounded(v.y * scale * w[i].y, a.round);
            v.z = rounded(v.z * scale * w[i].z, a.round);
            v.w = rounded(v.w * scale * w[i].w, a.round);
            ((float4 *)(a.n + row * dim))[at] = v;
        }
    }
}

bool site_by_shares(struct queue *q, const struct hc_site_args *a)
{
    struct mat fn = a->fn ? *a->fn : (struct mat){ .dtype = DTYPE_F32 };
    int cols = a->dim / SHARES, side_by_side = ((const struct cuda_device *)q->dev)->sms / SHARES;
    unsigned steps = blocks_for((size_t)a->rows, ROWS);
    float *sums = (float *)cuda_lane(q)->scratch;

    if (a->rows < (a->fn ? MANY : MANY_NORMS) || !shares_whole(a->dim) || cols > COLS_MAX ||
        (size_t)a->rows * SHARES * SUMS * sizeof(float) > cuda_lane(q)->scratch_bytes)
        return false;
    side_by_side = side_by_side < 1 ? 1 : side_by_side;
    launch(q,
           !a->fn                   ? site_shares<DTYPE_F32, false>
           : fn.dtype == DTYPE_BF16 ? site_shares<DTYPE_BF16, true>
                                    : site_shares<DTYPE_F32, true>,
           dim3(SHARES, steps < (unsigned)side_by_side ? steps : (unsigned)side_by_side), cols, 0,
           *a, fn, sums);
    launch(q, a->fn ? site_ends<true> : site_ends<false>, a->rows, (ENDS_WARPS + 1) * CUDA_WARP, 0,
           *a, (const float *)sums);
    return true;
}
