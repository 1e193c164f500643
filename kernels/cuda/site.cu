// site.cu owns what lies between two sublayers, in one launch: the streams take in what the sublayer
// gave, their mixes, the next sublayer's input and its norm; and the mixes alone. hyper.cu has the steps one
// by one, for shapes that this is not made for.
//
// A gang of blocks (a cluster) has a row, a thread a column of all its streams, so that nothing of a row but
// its sums goes from thread to thread: each block sends its share of them to all blocks and scales its own
// columns. Shares depend on the shape alone: a gang of 16 has one a block and a gang of 8 two, of the same columns,
// added in the same order, so that both kinds give the same bits.
#include <cooperative_groups.h>

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
#define SHARES 16         // of a row, where they are whole warps; else one a block of a gang of 8

// The mixes' weights of an input: what one column of one stream has.
template <enum dtype D> struct mix_weights {
    static constexpr int FIRST =
        MAT_TILE * (D == DTYPE_F32 ? 4 : 2) / 16; // pieces in the first tile
    uint4 v[FIRST * MIXES / MAT_TILE];
};

template <enum dtype D>
__device__ static inline const uint4 *mix_at(const struct mat &fn, int k, int tile)
{
    return (const uint4 *)fn.data +
           ((size_t)tile * (size_t)fn.cols + (size_t)k) * mix_weights<D>::FIRST;
}

template <enum dtype D>
__device__ static inline void mix_load(const struct mat &fn, int k, struct mix_weights<D> *w)
{
    constexpr int FIRST = mix_weights<D>::FIRST;

#pragma unroll
    for (int i = 0; i < FIRST; i++)
        w->v[i] = mix_at<D>(fn, k, 0)[i];
#pragma unroll
    for (int i = 0; i < FIRST / 2; i++)
        w->v[FIRST + i] = mix_at<D>(fn, k, 1)[i];
}

template <enum dtype D>
__device__ static inline void mix_add(const struct mix_weights<D> &w, float x, float *sum)
{
    constexpr int OUT = D == DTYPE_F32 ? 4 : 8;

#pragma unroll
    for (int i = 0; i < MIXES / OUT; i++) {
        const uint32_t u[4] = { w.v[i].x, w.v[i].y, w.v[i].z, w.v[i].w };

#pragma unroll
        for (int j = 0; j < 4; j++)
            if (D == DTYPE_F32) {
                sum[i * OUT + j] = fmaf(f32_from_bits(u[j]), x, sum[i * OUT + j]);
            } else {
                sum[i * OUT + 2 * j] = fmaf(f32_from_bits(u[j] << 16), x, sum[i * OUT + 2 * j]);
                sum[i * OUT + 2 * j + 1] =
                    fmaf(f32_from_bits(u[j] & 0xffff0000u), x, sum[i * OUT + 2 * j + 1]);
            }
    }
}

// Value l of all lanes, added up, in lane l.
template <int HALF = SUMS / 2> __device__ static inline float fold_lanes(float (&v)[SUMS])
{
    bool upper = threadIdx.x & HALF;

#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float mine = upper ? v[i + HALF] : v[i], other = upper ? v[i] : v[i + HALF];

        v[i] = mine + __shfl_xor_sync(FULL_MASK, other, HALF);
    }
    if constexpr (HALF > 1)
        return fold_lanes<HALF / 2>(v);
    return v[0];
}

// Rows to one by softmax, then columns and rows in turn, as hyper.cu has it. What the rows and columns have
// been divided by so far, and its inverse, stand beside the matrix: x / (x s + eps) is 1 / (s + eps / x).
__device__ static void sinkhorn(float (&c)[STREAMS][STREAMS], int iters, float eps)
{
    float row[STREAMS], col[STREAMS], by_row[STREAMS], by_col[STREAMS];

#pragma unroll
    for (int j = 0; j < STREAMS; j++) {
        float most = fmaxf(fmaxf(c[j][0], c[j][1]), fmaxf(c[j][2], c[j][3])), sum = 0;

#pragma unroll
        for (int k = 0; k < STREAMS; k++) { // fmaxf drops a NaN, the difference keeps it
            c[j][k] = expf(c[j][k] - most);
            sum += c[j][k];
        }
        row[j] = col[j] = by_row[j] = by_col[j] = 1;
#pragma unroll
        for (int k = 0; k < STREAMS; k++)
            c[j][k] = c[j][k] / sum + eps;
    }
    for (int i = 0; i < iters; i++) {
#pragma unroll
        for (int j = 0; i > 0 && j < STREAMS; j++) {
            by_row[j] = fmaf(c[j][1], col[1], fmaf(c[j][0], col[0], eps * by_row[j])) +
                        fmaf(c[j][3], col[3], c[j][2] * col[2]);
            row[j] = inverse(by_row[j]);
        }
#pragma unroll
        for (int k = 0; k < STREAMS; k++) {
            by_col[k] = fmaf(c[1][k], row[1], fmaf(c[0][k], row[0], eps * by_col[k])) +
                        fmaf(c[3][k], row[3], c[2][k] * row[2]);
            col[k] = inverse(by_col[k]);
        }
    }
#pragma unroll
    for (int j = 0; j < STREAMS; j++)
#pragma unroll
        for (int k = 0; k < STREAMS; k++)
            c[j][k] *= row[j] * col[k];
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

// One warp: the mixes of a row from its sums, lane m has the m-th.
__device__ static void mix_end(const struct hc_site_args &a, const struct mix_line &line,
                               size_t row, float sum)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    float c[STREAMS][STREAMS];
    float by = 1.0f / sqrtf(__shfl_sync(FULL_MASK, sum, SUM_X) / (float)(STREAMS * a.dim) + a.eps);

    sum = sum * by * line.scale + line.base;
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++)
        c[i / STREAMS][i % STREAMS] = __shfl_sync(FULL_MASK, sum, 2 * STREAMS + i);
    if (lane < STREAMS)
        a.to_pre[row * STREAMS + (size_t)lane] = sigmoid(sum) + a.hc_eps;
    else if (lane < 2 * STREAMS)
        a.to_post[row * STREAMS + (size_t)(lane - STREAMS)] = 2 * sigmoid(sum);
    sinkhorn(c, a.iters, a.hc_eps);
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++)
        if (lane == i)
            a.to_comb[row * STREAMS * STREAMS + (size_t)i] = c[i / STREAMS][i % STREAMS];
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
    __shared__ float part[COLS_MAX / GANG / CUDA_WARP][SUMS], sums[2][SHARES][SUMS];
    __shared__ __align__(16) struct coefficients by;
    cooperative_groups::cluster_group gang = cooperative_groups::this_cluster();
    gang_arrive(); // memory of a block that has not begun is nobody's
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP, rank = (int)blockIdx.x;
    int warps = (int)blockDim.x / CUDA_WARP, cols = a.dim / GANG;
    int each = shares_whole(a.dim) ? SHARES / GANG : 1; // shares of a block
    int c = rank * cols + (t < cols ? t : 0);
    bool mine = t < cols; // a thread behind the columns computes with zeros
    size_t dim = (size_t)a.dim;
    struct mix_weights<D> w[AHEAD];
    struct mix_line line = {};
    float weight = NORM ? a.w[c] : 0;

#pragma unroll
    for (int k = 0; MIX && k < AHEAD; k++)
        mix_load<D>(fn, k * a.dim + c, &w[k]);
#pragma unroll
    for (int k = AHEAD; MIX && k < STREAMS; k++)
        for (int tile = 0; tile < 2; tile++)
            prefetch_l2(mix_at<D>(fn, k * a.dim + c, tile));
    if (MIX && warp == warps - 1)
        line = mix_line_load(a);
    dependency_wait();
    gang_wait();
    for (int r = (int)blockIdx.y, turn = 0;; turn ^= 1) {
        float in[STREAMS] = {}, y = 0, v[SUMS] = {}, input = 0, total = 0, scale;
        float *x = a.x + (size_t)r * STREAMS * dim + (size_t)c;

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
            __syncthreads();
        }
#pragma unroll 1
        for (int k0 = 0; k0 < STREAMS; k0 += AHEAD)
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                int k = k0 + i;
                float out = in[i], mixed = 0;

#pragma unroll
                for (int j = i + AHEAD; j < STREAMS; j += AHEAD)
                    out = k == j ? in[j] : out;
                if (NORM && a.y) {
#pragma unroll
                    for (int j = 0; j < STREAMS; j++)
                        mixed += by.comb[j * STREAMS + k] * in[j];
                    out = rounded(by.post[k] * y + mixed, a.round);
                    if (mine)
                        x[(size_t)k * dim] = out;
                }
                if (MIX)
                    mix_add<D>(w[i], out, v);
                if (MIX && AHEAD < STREAMS) // the last time for the next row
                    mix_load<D>(fn, (k + AHEAD) % STREAMS * a.dim + c, &w[i]);
                v[SUM_X] = fmaf(out, out, v[SUM_X]);
                if (NORM)
                    input = k == 0 && !a.pre ? out : a.pre ? input + by.pre[k] * out : input;
            }
        input = rounded(input, a.round);
        if (NORM && mine && a.h)
            a.h[(size_t)r * dim + (size_t)c] = input;
        if (MIX) {
            v[SUM_H] = input * input;
            part[warp][lane] = fold_lanes(v);
        } else {
            total = warp_sum(input * input);
            if (lane == SUM_H)
                part[warp][lane] = total;
        }
        __syncthreads();
        // a warp sends one of the block's shares to a block, or to several
        for (int i = warp; i < GANG * each && (MIX || lane == SUM_H); i += warps) {
            int of = i % each, n = warps / each;

            total = part[of * n][lane];
            for (int j = 1; j < n; j++)
                total += part[of * n + j][lane];
            *gang.map_shared_rank(&sums[turn][rank * each + of][lane], i / each) = total;
        }
        gang_meet();
        if (MIX && rank == r % GANG && warp == warps - 1) {
            total = sums[turn][0][lane];
#pragma unroll
            for (int i = 1; i < SHARES; i++)
                total += i < GANG * each ? sums[turn][i][lane] : 0;
            mix_end(a, line, (size_t)r, total);
        }
        total = sums[turn][0][SUM_H];
#pragma unroll
        for (int i = 1; i < SHARES; i++)
            total += i < GANG * each ? sums[turn][i][SUM_H] : 0;
        scale = 1.0f / sqrtf(total / (float)a.dim + a.eps);
        if (NORM && mine)
            a.n[(size_t)r * dim + (size_t)c] = rounded(input * scale * weight, a.round);
        r += (int)gridDim.y;
        if (r >= a.rows)
            break;
#pragma unroll
        for (int k = 0; MIX && AHEAD == STREAMS && k < AHEAD; k++) // keeping them takes registers
            mix_load<D>(fn, k * a.dim + c, &w[k]);
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
