// site.cu owns a site (site.cuh) in one launch: the streams x [rows][4][dim] take in the sublayer's
// output y [rows][dim], their mixes for the next site, the next sublayer's input h and its RMS norm
// n [rows][dim]; and the mixes alone. sites.cu has many rows, hyper.cu the steps one by one, for
// shapes that this does not support.
//
// A cluster of 8 or 16 blocks has a row, a thread a column of all four streams, so only sums cross
// threads: through distributed shared memory each block sends its shares of the norm's sum to all
// blocks, which scale their own columns, and its shares of the mixes' sums to one, which makes the
// mixes. Shares depend on the shape alone: with 16 blocks each has one, with 8 two, of the same
// columns and added in the same order, so the bits are the same. Bound by latency.
#include "kernels/cuda/site.cuh"

#define NARROW 8      // blocks of a cluster
#define WIDE 16       // for few rows, where a device has such clusters; fewer of them fit at once
#define WIDE_ROWS 4   // rows up to which WIDE is used, at most
#define COLS_MAX 5120 // columns of a cluster: a thread each

// Resident blocks that a multiprocessor should have room for.
template <enum dtype D, bool MIX, int GANG>
constexpr int SITE_BLOCKS = GANG == WIDE && (D == DTYPE_BF16 || !MIX) ? 2 : 1;

// A cluster takes rows blockIdx.y, blockIdx.y + gridDim.y, ...; without NORM it only reads the
// streams, for their mixes. Bound by latency.
template <enum dtype D, bool MIX, bool NORM, int GANG>
__global__ static void __launch_bounds__(COLS_MAX / GANG, (SITE_BLOCKS<D, MIX, GANG>))
    site_gang(const __grid_constant__ hc_site_args a, const __grid_constant__ mat fn)
{
    // streams whose weights are in registers at a time
    constexpr int AHEAD = D == DTYPE_BF16 || GANG == WIDE ? STREAMS : 1;
    __shared__ __align__(16) float column[MIX ? COLS_MAX / GANG : 1][STREAMS];
    __shared__ __align__(16) float norms[2][SHARES]; // of the squares of the input
    __shared__ float part[COLS_MAX / GANG / CUDA_WARP][SUMS], sums[2][SHARES][SUMS];
    __shared__ struct coefficients by;
    __shared__ uint64_t come[2]; // barriers for norms and sums from all blocks
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP, rank = (int)blockIdx.x;
    int warps = (int)blockDim.x / CUDA_WARP, cols = a.dim / GANG;
    int each = shares_whole(a.dim) ? SHARES / GANG : 1; // shares of a block
    int c = rank * cols + (t < cols ? t : 0), c0 = rank * cols + warp * CUDA_WARP;
    bool mine = t < cols; // else the thread computes with zeros
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
    gang_arrive(); // a block's shared memory may be written only once the block has started
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
        if (NORM) { // after the loads above have been issued: its own run with them
            float held = coefficient_load(a, (size_t)r, t);

            y = rounded(y, a.round);
            if (t < COEFFICIENTS)
                ((float *)&by)[t] = held;
        }
        __syncthreads(); // `by` is written, and the row before has been read
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
        if (MIX) {
            *(float4 *)column[t] = make_float4(out[0], out[1], out[2], out[3]);
            __syncwarp();
            mix_part<D>(fn, c0, a.dim, &column[warp * CUDA_WARP], w, part[warp]);
        }
        fold_tile<1, 2>(square, part[warp] + SUM_X);
        __syncthreads();
        // one warp sends a share's sums for the mixes, another its sum for the norm
        for (int k = warp; k < 2 * each; k += warps) {
            int of = k % each, n = warps / each;

            total = MIX || lane == SUM_H ? share_add(&part[of * n], n) : 0;
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
        for (int k = 0; MIX && AHEAD == STREAMS && k < AHEAD; k++) // again: keeping costs registers
            mix_load<D>(fn, k, c0, a.dim, &w[k]);
    }
}

// Whether a cluster can take such rows; fn: NULL if there are no mixes.
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

// Clusters of 8: the mixes alone run beside other ops, where 8 blocks find room sooner, and no op
// waits for them.
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

// How many clusters of WIDE blocks can be resident at once.
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

static void site_by_gang(struct queue *q, const struct hc_site_args *a)
{
    if (shares_whole(a->dim) && a->rows <= ((const struct cuda_device *)q->dev)->wide)
        gang_launch<true, WIDE>(q, a);
    else
        gang_launch<true, NARROW>(q, a);
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
    else if (!site_by_shares(q, a))
        site_by_gang(q, a);
    queue_note(q, "hc_site");
}
