// site - what the files of the hyper-connections share. A site is what lies between two sublayers:
// the residual streams take in the sublayer's output, and the next input is collapsed from them.
// The MIXES mixes of a row (pre, post, comb) come from as many products of its STREAMS * dim values
// with the matrix fn, scaled by the row's norm; comb is then made doubly stochastic (sinkhorn).
//
// Sums have a fixed order: a row's columns are cut into shares, a share into warps' parts of 32
// columns. mix_part sums a part, share_add adds the parts of a share in order, share_sum the shares
// of the row by a tree. So site.cu and sites.cu give the same bits.
#ifndef TANDEM_KERNELS_CUDA_SITE_CUH
#define TANDEM_KERNELS_CUDA_SITE_CUH

#include "kernels/cuda/device.cuh"

#define STREAMS 4
#define MIXES ((2 + STREAMS) * STREAMS)
#define SUM_X MIXES       // index of the sum of squares of the streams
#define SUM_H (MIXES + 1) // and of the sublayer's input
#define SUMS CUDA_WARP    // sums of a share, a lane each; the last are unused
#define PARTS 10          // parts of a share that are read at a time
#define SHARES 16         // shares of a row if they are whole warps; else 8, one a block

// mix_by_gang - site.cu: the mixes alone, with the bits that hc_site gives them; false: it cannot.
bool mix_by_gang(struct queue *q, const struct hc_mix_args *a);

// site_by_shares - sites.cu: a site that gang_can allows, with the same bits; false: rows are too
// few, shares are no whole warps, or scratch is too small.
bool site_by_shares(struct queue *q, const struct hc_site_args *a);

// A lane's weights for the warp's 32 columns of one stream. fn is stored as two tiles of outputs,
// 16 and 8 of which are mixes; a column has FIRST 16-byte pieces in the first and SECOND in the
// second. FIRST lanes share a column, so that a warp reads adjacent pieces, and a lane has FIRST
// pieces in all, of columns column_of(j); likewise SECOND.
template <enum dtype D> struct mix_weights {
    static constexpr int OUT = D == DTYPE_F32 ? 4 : 8; // outputs of a piece
    static constexpr int FIRST = MAT_TILE / OUT, SECOND = (MIXES - MAT_TILE) / OUT;
    uint4 first[FIRST], second[SECOND];
};

// Load the weights of stream k, columns from c0 on. Past the last column any weights do: the
// values they meet are zeros.
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

// Sum each of N values over the lanes that are multiples of LEAST apart, by a transposing
// butterfly: each step halves the values that a lane keeps, until it has one, number *which.
// Further steps sum it over lanes that then all have the same.
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

// Sum a warp's products in a tile, SHARING lanes a column, and store them in `part`.
template <int SHARING, int OUT> __device__ static inline void fold_tile(float *v, float *part)
{
    int lane = (int)threadIdx.x % CUDA_WARP, which = 0;
    float sum = fold_lanes<SHARING, OUT>(v, &which);

    if (lane / SHARING % (CUDA_WARP / SHARING / OUT) == 0) // the first that has it
        part[lane % SHARING * OUT + which] = sum;
}

// The column, of the warp's 32, of the lane's j-th piece.
template <int SHARING> __device__ static inline int column_of(int j)
{
    return j * (CUDA_WARP / SHARING) + (int)threadIdx.x % CUDA_WARP / SHARING;
}

// Sum a warp's part of the mixes into `part`. column: [32][STREAMS] values of the warp's columns. w
// holds the weights of AHEAD streams; if that is not all, the next ones are loaded as they are
// used, at last the first ones again for the next row.
template <enum dtype D, int AHEAD>
__device__ static inline void mix_part(const struct mat &fn, int c0, int dim,
                                       const float (*column)[STREAMS],
                                       struct mix_weights<D> (&w)[AHEAD], float *part)
{
    using W = struct mix_weights<D>;
    float first[W::OUT] = {}, second[W::OUT] = {};
    float4 x[W::FIRST + W::SECOND]; // all streams, where there are registers for that

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

// 1 / x for x between 1e-37 and 1e37: an estimate from the bits, with a relative error e up to 12%,
// times 1 + e + .. e^7 of the geometric series. Fused steps alone, with half the latency of a
// reciprocal from the special function unit.
__device__ static inline float inverse_fused(float x)
{
    float y = f32_from_bits(0x7ef311c7u - f32_bits(x)), e = fmaf(-x, y, 1.0f), e2 = e * e;

    y = fmaf(y, e, y);
    y = fmaf(y, e2, y);
    return fmaf(y, e2 * e2, y);
}

// y[i] = by / x[i] times the product of all four x; returns that product.
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

// Sinkhorn's iteration of hyper.cu: columns normalised, then rows and columns alternately. The
// matrix c stays as it is; row[] and col[] are the factors of its rows and columns so far, updated
// by x / (x s + eps) = 1 / (s + eps / x). In the loop row[] is too large by `all`, the product of
// the four divisors, and col[] takes that back, so that the critical path has one reciprocal an
// iteration. Products of four lie between 1e-30 and 1e3.
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

// v[i], without indexed registers.
__device__ static inline float choice(const float (&v)[STREAMS], int i)
{
    float lo = i & 1 ? v[1] : v[0], hi = i & 1 ? v[3] : v[2];

    return i & 2 ? hi : lo;
}

// What turns lane m's sum into the m-th mix.
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

// One warp: the mixes of a row from its sums; lane m has sum m. per: 1 / dim. Rows of comb first go
// through a softmax over the four adjacent lanes of a row.
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

// The coefficients of a row at a site: post and comb take in the sublayer before, pre collapses the
// streams to the next one's input.
struct coefficients {
    float post[STREAMS], comb[STREAMS * STREAMS], pre[STREAMS];
};

#define COEFFICIENTS ((int)(sizeof(struct coefficients) / sizeof(float)))

// Coefficient i, a thread each; 0 past the last.
__device__ static inline float coefficient_load(const struct hc_site_args &a, size_t row, int i)
{
    constexpr int COMB = STREAMS, PRE = COMB + STREAMS * STREAMS;
    int of = i < COMB || i >= PRE ? STREAMS : PRE - COMB;
    const float *from = i < COMB ? a.post : i < PRE ? a.comb : a.pre;

    if (i >= COEFFICIENTS || (i < PRE ? !a.y : !a.pre))
        return i == PRE; // no mix yet: the first stream
    return from[row * (size_t)of + (size_t)(i < COMB ? i : i < PRE ? i - COMB : i - PRE)];
}

// Add the n parts of a share in order; lane m has sum m.
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

// Add all shares by a tree: those 8, then 4, 2 and 1 apart.
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
