// site.cu owns what lies between two sublayers, in one launch: the streams take in what the sublayer
// gave, their mixes, the next sublayer's input and its norm; and the mixes alone. hyper.cu has the steps one
// by one, for shapes that this is not made for.
//
// A gang of blocks (a cluster) has a row, a thread a column of all its streams, so that nothing of a row but
// its sums goes from thread to thread: each block sends its share of the norm's to all blocks, which scale their own
// columns, and its share of the mixes' to one. Shares depend on the shape alone: a gang of 16 has one a block and a gang of
// 8 two, of the same columns, added in the same order, so that both kinds give the same bits.
#include "kernels/cuda/site.cuh"

#define NARROW 8    // blocks of a gang
#define WIDE 16     // at few rows, where a device has such gangs; of those there are fewer at once
#define WIDE_ROWS 4 // at most
#define COLS_MAX 5120 // of a gang: a thread each
#define STREAMS 4
#define MIXES ((2 + STREAMS) * STREAMS)
#define SUM_X MIXES       // of the squares of the streams
#define SUM_H (MIXES + 1) // of the squares of the input
#define SUMS CUDA_WARP    // room of a share: a lane each
#define PARTS 10          // of a share, that are added at a time
#define SHARES 16         // of a row, where they are whole warps; else one a block of a gang of 8

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

// A warp's share of the mixes' sums, to `part`; x: the lane's column of all streams, column: room for those of all
// lanes. The weights of streams beyond the first AHEAD come here, at last the first ones again.
template <enum dtype D, int AHEAD>
__device__ static inline void mix_part(const struct mat &fn, int c0, int dim,
                                       const float (&x)[STREAMS], float (*column)[STREAMS],
                                       struct mix_weights<D> (&w)[AHEAD], float *part)
{
    using W = struct mix_weights<D>;
    int lane = (int)threadIdx.x % CUDA_WARP;
    float first[W::OUT] = {}, second[W::OUT] = {};

    *(float4 *)column[lane] = make_float4(x[0], x[1], x[2], x[3]);
    __syncwarp();
#pragma unroll 1
    for (int k0 = 0; k0 < STREAMS; k0 += AHEAD)
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int k = k0 + i;

#pragma unroll
            for (int j = 0; j < W::FIRST; j++)
                mix_add<D>(w[i].first[j], column[j * (CUDA_WARP / W::FIRST) + lane / W::FIRST][k],
                           first);
#pragma unroll
            for (int j = 0; j < W::SECOND; j++)
                mix_add<D>(w[i].second[j],
                           column[j * (CUDA_WARP / W::SECOND) + lane / W::SECOND][k], second);
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

// A thread a coefficient.
__device__ static inline float coefficient_load(const struct hc_site_args &a, size_t row)
{
    constexpr int COMB = STREAMS, PRE = COMB + STREAMS * STREAMS;
    int i = (int)threadIdx.x, of = i < COMB || i >= PRE ? STREAMS : PRE - COMB;
    const float *from = i < COMB ? a.post : i < PRE ? a.comb : a.pre;

    if (i >= COEFFICIENTS || (i < PRE ? !a.y : !a.pre))
        return i == PRE; // no mix yet: the first stream
    return from[row * (size_t)of + (size_t)(i < COMB ? i : i < PRE ? i - COMB : i - PRE)];
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

__host__ __device__ static bool shares_whole(int dim)
{
    return dim % (SHARES * CUDA_WARP) == 0;
}

// Blocks that a multiprocessor should have room for.
template <enum dtype D, bool MIX, int GANG>
constexpr int SITE_BLOCKS = GANG == WIDE && (D == DTYPE_BF16 || !MIX) ? 2 : 1;

// A gang a row, then the row gridDim.y behind; without NORM it only reads the streams, for their mixes. Bound by the
// steps behind each other.
template <enum dtype D, bool MIX, bool NORM, int GANG>
__global__ static void __launch_bounds__(COLS_MAX / GANG, (SITE_BLOCKS<D, MIX, GANG>))
    site_gang(const __grid_constant__ hc_site_args a, const __grid_constant__ mat fn)
{
    // streams whose weights are in registers
    constexpr int AHEAD = D == DTYPE_BF16 || GANG == WIDE ? STREAMS : 1;
    __shared__ __align__(16) float column[MIX ? COLS_MAX / GANG : 1][STREAMS];
    __shared__ __align__(16) float norms[2][SHARES]; // of the squares of the input
    __shared__ float part[COLS_MAX / GANG / CUDA_WARP][SUMS], sums[2][SHARES][SUMS];
    __shared__ struct coefficients by;
    __shared__ uint64_t come[2]; // norms and sums of other blocks
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP, rank = (int)blockIdx.x;
    int warps = (int)blockDim.x / CUDA_WARP, cols = a.dim / GANG;
    int each = shares_whole(a.dim) ? SHARES / GANG : 1; // shares of a block
    int c = rank * cols + (t < cols ? t : 0), c0 = rank * cols + warp * CUDA_WARP;
    bool mine = t < cols; // a thread behind the columns computes with zeros
    size_t dim = (size_t)a.dim;
    struct mix_weights<D> w[AHEAD];
    struct mix_line line = {};
    float weight = NORM ? a.w[c] : 0, per = 1.0f / (float)a.dim;

    if (t == 0) {
        barrier_init(&come[0], 1);
        barrier_init(&come[1], 1);
        barrier_publish();
    }
    __syncwarp();
    gang_arrive(); // memory of a block that has not begun is nobody's
#pragma unroll
    for (int k = 0; MIX && k < AHEAD; k++)
        mix_load<D>(fn, k, c0, a.dim, &w[k]);
    for (int k = AHEAD; MIX && k < STREAMS; k++)
        for (int tile = 0; tile < 2; tile++)
            prefetch_l2((const uint4 *)fn.data +
                        ((size_t)tile * (size_t)fn.cols + (size_t)k * dim + (size_t)c) *
                            mix_weights<D>::FIRST);
    if (MIX && warp == warps - 1)
        line = mix_line_load(a);
    dependency_wait();
    gang_wait();
    for (int r = (int)blockIdx.y, i = 0;; i++) {
        int turn = i % 2;
        bool ends = MIX && rank == r % GANG; // makes the row's mixes
        float in[STREAMS] = {}, out[STREAMS], v[SHARES], square[2] = {};
        float y = 0, input = 0, total, scale;
        float *x = a.x + (size_t)r * STREAMS * dim + (size_t)c;

        if (t == 0)
            barrier_expect(&come[turn], GANG * each * (int)sizeof(float) * (ends ? 1 + SUMS : 1));
        if (NORM && mine && a.y)
            y = a.y[(size_t)r * dim + (size_t)c];
#pragma unroll
        for (int j = 0; j < STREAMS; j++)
            in[j] = mine ? x[(size_t)j * dim] : 0;
        if (NORM) { // behind loads that are on their way with its own
            float held = coefficient_load(a, (size_t)r);

            y = rounded(y, a.round);
            if (t < COEFFICIENTS)
                ((float *)&by)[t] = held;
        }
        __syncthreads(); // for what was read for the row before, too
#pragma unroll
        for (int k = 0; k < STREAMS; k++) {
            float mixed = 0;

            out[k] = in[k];
            if (NORM && a.y) {
#pragma unroll
                for (int j = 0; j < STREAMS; j++)
                    mixed += by.comb[j * STREAMS + k] * in[j];
                out[k] = rounded(by.post[k] * y + mixed, a.round);
                if (mine)
                    x[(size_t)k * dim] = out[k];
            }
            square[0] = fmaf(out[k], out[k], square[0]);
            if (NORM)
                input = k == 0 && !a.pre ? out[k] : a.pre ? input + by.pre[k] * out[k] : input;
        }
        input = rounded(input, a.round);
        square[1] = input * input;
        if (NORM && mine && a.h)
            a.h[(size_t)r * dim + (size_t)c] = input;
        if (MIX)
            mix_part<D>(fn, c0, a.dim, out, &column[warp * CUDA_WARP], w, part[warp]);
        fold_tile<1, 2>(square, part[warp] + SUM_X);
        __syncthreads();
        // a share is sent by one warp, its part of the norm by another
        for (int k = warp; k < 2 * each; k += warps) {
            int of = k % each, n = warps / each;

            total = 0;
            for (int from = 0; from < n && lane <= SUM_H && (MIX || lane == SUM_H); from += PARTS)
#pragma unroll
                for (int j = 0; j < PARTS; j++)
                    total += from + j < n ? part[of * n + from + j][lane] : 0;
            if (MIX && k < each)
                peer_send(&sums[turn][rank * each + of][lane], total, &come[turn], r % GANG);
            total = __shfl_sync(FULL_MASK, total, SUM_H);
            if (k >= each && lane < GANG)
                peer_send(&norms[turn][rank * each + of], total, &come[turn], lane);
        }
        barrier_wait(&come[turn], i / 2 % 2);
        if (ends && warp == warps - 1) {
#pragma unroll
            for (int k = 0; k < SHARES; k++)
                v[k] = k < GANG * each ? sums[turn][k][lane] : 0;
            mix_end(a, line, per, (size_t)r, share_sum(v));
        }
#pragma unroll
        for (int k = 0; k < SHARES; k++)
            v[k] = k < GANG * each ? norms[turn][k] : 0;
        total = share_sum(v);
        scale = rsqrtf(total * per + a.eps);
        if (NORM && mine)
            a.n[(size_t)r * dim + (size_t)c] = rounded(input * scale * weight, a.round);
        r += (int)gridDim.y;
        if (r >= a.rows)
            break;
#pragma unroll
        for (int k = 0; MIX && AHEAD == STREAMS && k < AHEAD; k++) // keeping them takes registers
            mix_load<D>(fn, k, c0, a.dim, &w[k]);
    }
}

// Whether a gang can have such rows; fn: NULL if nothing is mixed.
static bool gang_can(const struct queue *q, const struct mat *fn, int hc, int dim)
{
    return ((const struct cuda_device *)q->dev)->gangs && hc == STREAMS && dim % NARROW == 0 &&
           dim <= COLS_MAX && dim >= NARROW &&
           (!fn || fn->dtype == DTYPE_F32 || fn->dtype == DTYPE_BF16);
}

template <bool NORM, int GANG>
static void gang_launch(struct queue *q, const struct hc_site_args *a)
{
    struct mat fn = a->fn ? *a->fn : (struct mat){ .dtype = DTYPE_F32 };
    int most = ((const struct cuda_device *)q->dev)->sms / GANG;
    auto kernel = fn.dtype == DTYPE_BF16 ? site_gang<DTYPE_BF16, true, NORM, GANG>
                                         : site_gang<DTYPE_F32, true, NORM, GANG>;

    if (NORM && !a->fn)
        kernel = site_gang<DTYPE_F32, false, true, GANG>;
    most = most < 1 ? 1 : most;
    launch_cluster(q, kernel, GANG, dim3(GANG, (unsigned)(a->rows < most ? a->rows : most)),
                   dim3(blocks_for((size_t)(a->dim / GANG), CUDA_WARP) * CUDA_WARP), 0, *a, fn);
}

// Narrow ones: mixes alone stand beside other ops, where 8 blocks find room sooner, and nobody waits for them.
bool mix_by_gang(struct queue *q, const struct hc_mix_args *a)
{
    struct hc_site_args site = { .x = (float *)a->x, // read only
                                 .fn = a->fn,
                                 .base = a->base,
                                 .scale = a->scale,
                                 .to_pre = a->pre,
                                 .to_post = a->post,
                                 .to_comb = a->comb,
                                 .rows = a->rows,
                                 .hc = a->hc,
                                 .dim = a->dim,
                                 .iters = a->iters,
                                 .eps = a->eps,
                                 .hc_eps = a->hc_eps };

    if (!gang_can(q, a->fn, a->hc, a->dim))
        return false;
    gang_launch<false, NARROW>(q, &site);
    return true;
}

// How many wide gangs fit at once.
template <enum dtype D, bool MIX> static int wide_gangs()
{
    cudaLaunchAttribute attr = {};
    cudaLaunchConfig_t c = {};
    int gangs = 0;
    auto kernel = site_gang<D, MIX, true, WIDE>;
    cudaError_t e = cudaFuncSetAttribute((const void *)kernel,
                                         cudaFuncAttributeNonPortableClusterSizeAllowed, 1);

    attr.id = cudaLaunchAttributeClusterDimension;
    attr.val.clusterDim.x = WIDE;
    attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
    c.gridDim = WIDE;
    c.blockDim = COLS_MAX / WIDE;
    c.attrs = &attr;
    c.numAttrs = 1;
    if (e == cudaSuccess)
        e = cudaOccupancyMaxActiveClusters(&gangs, kernel, &c);
    if (e != cudaSuccess)
        (void)cudaGetLastError(); // a device without clusters of so many blocks
    return e == cudaSuccess ? gangs : 0;
}

extern "C" int cuda_site_wide(void)
{
    const int gangs[] = { wide_gangs<DTYPE_F32, false>(), wide_gangs<DTYPE_F32, true>(),
                          wide_gangs<DTYPE_BF16, true>() };
    int rows = WIDE_ROWS;

    for (int n : gangs)
        rows = n < rows ? n : rows;
    return rows;
}

static void site_steps(struct queue *q, const struct hc_site_args *a)
{
    float *h = a->h ? a->h : a->n;
    struct hc_expand_args expand = { .y = a->y,
                                     .post = a->post,
                                     .comb = a->comb,
                                     .x = a->x,
                                     .rows = a->rows,
                                     .hc = a->hc,
                                     .dim = a->dim,
                                     .round = a->round };
    struct hc_mix_args mix = { .x = a->x,
                               .fn = a->fn,
                               .base = a->base,
                               .scale = a->scale,
                               .pre = a->to_pre,
                               .post = a->to_post,
                               .comb = a->to_comb,
                               .rows = a->rows,
                               .hc = a->hc,
                               .dim = a->dim,
                               .iters = a->iters,
                               .eps = a->eps,
                               .hc_eps = a->hc_eps };
    struct hc_collapse_args collapse = { .x = a->x,
                                         .pre = a->pre,
                                         .y = h,
                                         .rows = a->rows,
                                         .hc = a->hc,
                                         .dim = a->dim,
                                         .round = a->round };
    struct rmsnorm_args norm = { .x = h,
                                 .w = a->w,
                                 .y = a->n,
                                 .rows = a->rows,
                                 .cols = a->dim,
                                 .eps = a->eps,
                                 .round = a->round };

    if (a->y)
        cuda_hc_expand(q, &expand);
    if (a->fn)
        cuda_hc_mix(q, &mix);
    cuda_hc_collapse(q, &collapse);
    cuda_rmsnorm(q, &norm);
}

extern "C" void cuda_hc_site(struct queue *q, const struct hc_site_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    if (a->fn && (a->fn->rows != (2 + a->hc) * a->hc || a->fn->cols != a->hc * a->dim)) {
        queue_fail(q, -EINVAL, "hc_site: %d x %d mixes for %d streams of %d", a->fn->rows,
                   a->fn->cols, a->hc, a->dim);
        return;
    }
    if (!gang_can(q, a->fn, a->hc, a->dim))
        site_steps(q, a);
    else if (shares_whole(a->dim) && a->rows <= ((const struct cuda_device *)q->dev)->wide)
        gang_launch<true, WIDE>(q, a);
    else
        gang_launch<true, NARROW>(q, a);
    queue_note(q, "hc_site");
}
