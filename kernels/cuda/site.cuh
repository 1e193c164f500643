// site - what the files of the residual streams share: the mixes of a row, how its sums are added up, and what makes them
// of those.
//
// A row's columns are cut into shares, a share into warps' parts of 32 columns. How a part is summed is mix_part's, parts add
// up in order to a share (share_add), shares to the row (share_sum): the same bits whoever adds.
#ifndef TANDEM_KERNELS_CUDA_SITE_CUH
#define TANDEM_KERNELS_CUDA_SITE_CUH

#include "kernels/cuda/device.cuh"

#define STREAMS 4
#define MIXES ((2 + STREAMS) * STREAMS)
#define SUM_X MIXES       // of the squares of the streams
#define SUM_H (MIXES + 1) // of the squares of the input
#define SUMS CUDA_WARP    // room of a share: a lane each
#define PARTS 10          // of a share, that are added at a time
#define SHARES 16         // of a row, where they are whole warps; else one a block of a gang of 8

// mix_by_gang - site.cu: the mixes, with the bits that hc_site gives them; false: it cannot.
bool mix_by_gang(struct queue *q, const struct hc_mix_args *a);

// site_by_shares - sites.cu: a site that a gang can have, with its bits; false: rows are few, or shares no whole warps.
bool site_by_shares(struct queue *q, const struct hc_site_args *a);

// What a lane has of the weights that mix a warp's columns, one of each lane, of one stream: pieces of outputs, in each tile
// beside those of its neighbours, so that a warp reads what lies in a row. FIRST, SECOND: pieces of a column in a tile,
// lanes that share a column, and pieces that a lane has.
template <enum dtype D> struct mix_weights {
    static constexpr int OUT = D == DTYPE_F32 ? 4 : 8; // of a piece
    static constexpr int FIRST = MAT_TILE / OUT, SECOND = (MIXES - MAT_TILE) / OUT;
    uint4 first[FIRST], second[SECOND];
};

// Columns from c0 on; those behind the last are met by zeros.
template <enum dtype D>
__device__ static inline void mix_load(const struct mat &fn, int k, int c0, int dim,
                                       struct mix_weights<D> *w)
{
    using W = struct mix_weights<D>;
    int lane = (int)threadIdx.x % CUDA_WARP;
    const uint4 *at = (const uint4 *)fn.data + (size_t)k * (size_t)dim * W::FIRST;
    const uint4 *behind = at + (size_t)fn.cols * W::FIRST;

#pragma unroll
    for (int i = 0; i < W::FIRST; i++) {
        int c = c0 + i * (CUDA_WARP / W::FIRST) + lane / W::FIRST;

        w->first[i] = at[(c < dim ? c : 0) * W::FIRST + lane % W::FIRST];
    }
#pragma unroll
    for (int i = 0; i < W::SECOND; i++) {
        int c = c0 + i * (CUDA_WARP / W::SECOND) + lane / W::SECOND;

        w->second[i] = behind[(c < dim ? c : 0) * W::FIRST + lane % W::SECOND];
    }
}

template <enum dtype D>
__device__ static inline void mix_add(const uint4 &w, float x, float (&sum)[mix_weights<D>::OUT])
{
    const uint32_t u[4] = { w.x, w.y, w.z, w.w };

#pragma unroll
    for (int j = 0; j < 4; j++)
        if constexpr (D == DTYPE_F32) {
            sum[j] = fmaf(f32_from_bits(u[j]), x, sum[j]);
        } else {
            sum[2 * j] = fmaf(f32_from_bits(u[j] << 16), x, sum[2 * j]);
            sum[2 * j + 1] = fmaf(f32_from_bits(u[j] & 0xffff0000u), x, sum[2 * j + 1]);
        }
}

// The sums over lanes that are multiples of LEAST apart. Each step halves the values that a lane has, until it
// has one, number *which; then lanes LEAST times a power of two apart have the same.
template <int LEAST, int N, int STEP = CUDA_WARP / 2>
__device__ static inline float fold_lanes(float *v, int *which)
{
    bool upper = threadIdx.x & STEP;

    if constexpr (N == 1) {
        v[0] += __shfl_xor_sync(FULL_MASK, v[0], STEP);
    } else {
        *which += upper ? N / 2 : 0;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float mine = upper ? v[i + N / 2] : v[i], other = upper ? v[i] : v[i + N / 2];

            v[i] = mine + __shfl_xor_sync(FULL_MASK, other, STEP);
        }
    }
    if constexpr (STEP > LEAST)
        return fold_lanes<LEAST, (N > 1 ? N / 2 : 1), STEP / 2>(v, which);
    return v[0];
}

// A warp's sums of a tile, SHARING lanes to a column, to `part`.
template <int SHARING, int OUT> __device__ static inline void fold_tile(float *v, float *part)
{
    int lane = (int)threadIdx.x % CUDA_WARP, which = 0;
    float sum = fold_lanes<SHARING, OUT>(v, &which);

    if (lane / SHARING % (CUDA_WARP / SHARING / OUT) == 0) // the first that has it
        part[lane % SHARING * OUT + which] = sum;
}

// Which of the warp's columns a lane has a piece j of.
template <int SHARING> __device__ static inline int column_of(int j)
{
    return j * (CUDA_WARP / SHARING) + (int)threadIdx.x % CUDA_WARP / SHARING;
}

// A warp's part of the mixes' sums, to `part`; column: all streams of the warp's columns. The weights of streams beyond the
// first AHEAD come here, at last the first ones again.
template <enum dtype D, int AHEAD>
__device__ static inline void mix_part(const struct mat &fn, int c0, int dim,
                                       const float (*column)[STREAMS],
                                       struct mix_weights<D> (&w)[AHEAD], float *part)
{
    using W = struct mix_weights<D>;
    float first[W::OUT] = {}, second[W::OUT] = {};
    float4 x[W::FIRST + W::SECOND]; // at once, where there are registers for all streams

#pragma unroll
    for (int j = 0; AHEAD == STREAMS && j < W::FIRST + W::SECOND; j++)
        x[j] =
            *(const float4 *)
                column[j < W::FIRST ? column_of<W::FIRST>(j) : column_of<W::SECOND>(j - W::FIRST)];
    auto of = [&](int j, int c, int k) {
        if constexpr (AHEAD < STREAMS)
            return column[c][k];
        return k == 0 ? x[j].x : k == 1 ? x[j].y : k == 2 ? x[j].z : x[j].w;
    };
#pragma unroll 1
    for (int k0 = 0; k0 < STREAMS; k0 += AHEAD)
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int k = k0 + i;

#pragma unroll
            for (int j = 0; j < W::FIRST; j++)
                mix_add<D>(w[i].first[j], of(j, column_of<W::FIRST>(j), k), first);
#pragma unroll
            for (int j = 0; j < W::SECOND; j++)
                mix_add<D>(w[i].second[j], of(W::FIRST + j, column_of<W::SECOND>(j), k), second);
            if (AHEAD < STREAMS)
                mix_load<D>(fn, (k + AHEAD) % STREAMS, c0, dim, &w[i]);
        }
    fold_tile<W::FIRST, W::OUT>(first, part);
    fold_tile<W::SECOND, W::OUT>(second, part + MAT_TILE);
}

// 1 / x of a number between 1e-37 and 1e37: it begins 12% beside it (e) and takes 1 + e + .. e^7 of the geometric
// series. Fused steps, where who waits for a special unit's inverse waits twice as long.
__device__ static inline float inverse_fused(float x)
{
    float y = f32_from_bits(0x7ef311c7u - f32_bits(x)), e = fmaf(-x, y, 1.0f), e2 = e * e;

    y = fmaf(y, e, y);
    y = fmaf(y, e2, y);
    return fmaf(y, e2 * e2, y);
}

// y[i] = by / x[i] times the product of all four, which it returns.
__device__ static inline float inverses(const float (&x)[STREAMS], float by, float (&y)[STREAMS])
{
    float lo = x[0] * x[1], hi = x[2] * x[3], all = lo * hi;

    lo *= by;
    hi *= by;
    y[0] = hi * x[1];
    y[1] = hi * x[0];
    y[2] = lo * x[3];
    y[3] = lo * x[2];
    return all;
}

// Columns to one, then rows and columns in turn, as hyper.cu has it. What the rows and columns have been divided by so far,
// and its inverse, stand beside the matrix: x / (x s + eps) is 1 / (s + eps / x). Rows' inverses are all times too large,
// which columns take with them: one inverse a turn is waited for. Products of four lie between 1e-30 and 1e3.
__device__ static void sinkhorn(const float (&c)[STREAMS][STREAMS], int iters, float eps,
                                float (&row)[STREAMS], float (&col)[STREAMS])
{
    float by_row[STREAMS], by_col[STREAMS], all = 1;

#pragma unroll
    for (int j = 0; j < STREAMS; j++) {
        row[j] = by_row[j] = 1;
        by_col[j] = (c[0][j] + c[1][j]) + (c[2][j] + c[3][j]) + eps;
    }
    inverses(by_col, inverse_fused((by_col[0] * by_col[1]) * (by_col[2] * by_col[3])), col);
#pragma unroll 1
    for (int i = 1; i < iters; i++) {
        float slack = eps * inverse(all), product;

#pragma unroll
        for (int j = 0; j < STREAMS; j++)
            by_row[j] = fmaf(c[j][1], col[1], fmaf(c[j][0], col[0], eps * by_row[j])) +
                        fmaf(c[j][3], col[3], c[j][2] * col[2]);
        all = inverses(by_row, 1, row);
#pragma unroll
        for (int k = 0; k < STREAMS; k++)
            by_col[k] = fmaf(c[1][k], row[1], fmaf(c[0][k], row[0], by_col[k] * slack * all)) +
                        fmaf(c[3][k], row[3], c[2][k] * row[2]);
        product = (by_col[0] * by_col[1]) * (by_col[2] * by_col[3]);
        inverses(by_col, all * inverse_fused(product), col);
    }
    all = inverse(all);
#pragma unroll
    for (int j = 0; j < STREAMS; j++)
        row[j] *= all;
}

// The one of four.
__device__ static inline float choice(const float (&v)[STREAMS], int i)
{
    float lo = i & 1 ? v[1] : v[0], hi = i & 1 ? v[3] : v[2];

    return i & 2 ? hi : lo;
}

// What lane m makes the m-th mix of from its sum.
struct mix_line {
    float scale, base;
};

__device__ static inline struct mix_line mix_line_load(const struct hc_site_args &a)
{
    int m = (int)threadIdx.x % CUDA_WARP;

    if (m >= MIXES)
        return { 0, 0 };
    return { a.scale[m < STREAMS ? 0 : m < 2 * STREAMS ? 1 : 2], a.base[m] };
}

// One warp: the mixes of a row from its sums, lane m has the m-th; per: 1 / dim. Rows to one by softmax: what is in one lies
// in four lanes.
__device__ static void mix_end(const struct hc_site_args &a, const struct mix_line &line, float per,
                               size_t row, float sum)
{
    int lane = (int)threadIdx.x % CUDA_WARP, i = lane - 2 * STREAMS;
    float c[STREAMS][STREAMS], by_row[STREAMS], by_col[STREAMS], most, part, v;
    float *to = lane < STREAMS       ? a.to_pre + row * STREAMS + lane
                : lane < 2 * STREAMS ? a.to_post + row * STREAMS + (lane - STREAMS)
                                     : a.to_comb + row * STREAMS * STREAMS + i;

    sum = sum * rsqrtf(__shfl_sync(FULL_MASK, sum, SUM_X) * (per / STREAMS) + a.eps) * line.scale +
          line.base;
    most = fmaxf(sum, __shfl_xor_sync(FULL_MASK, sum, 1));
    most = fmaxf(most, __shfl_xor_sync(FULL_MASK, most, 2));
    v = expf(i < 0 ? -sum : sum - most); // fmaxf drops a NaN, the difference keeps it
    part = v + __shfl_xor_sync(FULL_MASK, v, 1);
    part += __shfl_xor_sync(FULL_MASK, part, 2);
    v = i < 0 ? inverse(1 + v) : v * inverse(part) + a.hc_eps;
    if (lane < 2 * STREAMS)
        v = lane < STREAMS ? v + a.hc_eps : 2 * v;
#pragma unroll
    for (int e = 0; e < STREAMS * STREAMS; e++)
        c[e / STREAMS][e % STREAMS] = __shfl_sync(FULL_MASK, v, 2 * STREAMS + e);
    sinkhorn(c, a.iters, a.hc_eps, by_row, by_col);
    if (i >= 0)
        v *= choice(by_row, i / STREAMS % STREAMS) * choice(by_col, i % STREAMS);
    if (lane < MIXES)
        *to = v;
}

// What a row's streams are mixed by: post, comb of the sublayer before, and pre.
struct coefficients {
    float post[STREAMS], comb[STREAMS * STREAMS], pre[STREAMS];
};

#define COEFFICIENTS ((int)(sizeof(struct coefficients) / sizeof(float)))

// Coefficient i, a thread each; 0 behind the last.
__device__ static inline float coefficient_load(const struct hc_site_args &a, size_t row, int i)
{
    constexpr int COMB = STREAMS, PRE = COMB + STREAMS * STREAMS;
    int of = i < COMB || i >= PRE ? STREAMS : PRE - COMB;
    const float *from = i < COMB ? a.post : i < PRE ? a.comb : a.pre;

    if (i >= COEFFICIENTS || (i < PRE ? !a.y : !a.pre))
        return i == PRE; // no mix yet: the first stream
    return from[row * (size_t)of + (size_t)(i < COMB ? i : i < PRE ? i - COMB : i - PRE)];
}

// Of a share of n parts, what lane m has the m-th of.
__device__ static inline float share_add(const float (*part)[SUMS], int n)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    float sum = 0;

    for (int from = 0; from < n && lane <= SUM_H; from += PARTS)
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            sum += from + j < n ? part[from + j][lane] : 0;
    return sum;
}

// The sum of all shares: of those 8, 4, 2, 1 apart.
__device__ static inline float share_sum(const float (&share)[SHARES])
{
    float v[SHARES / 2], pair[2];

#pragma unroll
    for (int i = 0; i < SHARES / 2; i++)
        v[i] = share[i] + share[i + SHARES / 2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        pair[i] = (v[i] + v[i + 4]) + (v[i + 2] + v[i + 6]);
    return pair[0] + pair[1];
}

__host__ __device__ static inline bool shares_whole(int dim)
{
    return dim % (SHARES * CUDA_WARP) == 0;
}

#endif
