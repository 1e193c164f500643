// site.cu owns what lies between two sublayers, in one launch: the streams take in what the sublayer
// gave, their mixes, the next sublayer's input and its norm. hyper.cu has the steps one by one, for
// shapes that this is not made for.
//
// A block has COLS columns of all streams and up to ROWS rows. It leaves its share of the row's sums in
// scratch; the block of a row that comes last adds the shares up in order, makes the mixes and scales
// the row by its norm. Shares depend on the shape alone.
#include "kernels/cuda/device.cuh"

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)
#define STREAMS 4
#define COLS 64
#define ROWS (THREADS / COLS)
#define MIXES ((2 + STREAMS) * STREAMS)
#define LEFT (MIXES - MAT_TILE) // mixes in the second tile
#define SUM_X MIXES             // of the squares of the streams
#define SUM_H (MIXES + 1)       // of the squares of the input
#define SUMS (MIXES + 2)
#define LINE 32 // floats of a share

// What a thread reads of the mixes' weights: a warp has 32 inputs of a stream. Of the first tile four
// lanes share an input, of the second two.
struct mix_weights {
    float4 first[4], second[2];
};

template <enum dtype D>
__device__ static inline void mix_load(const struct mat &fn, int k0, struct mix_weights *w)
{
    int lane = (int)threadIdx.x % CUDA_WARP;

#pragma unroll
    for (int i = 0; i < 4; i++)
        w->first[i] = stored_four<D>(fn.data, (size_t)(k0 + lane / 4 + 8 * i) * MAT_TILE +
                                                  (size_t)(lane % 4 * 4));
#pragma unroll
    for (int i = 0; i < 2; i++)
        w->second[i] = stored_four<D>(
            fn.data, ((size_t)fn.cols + (size_t)(k0 + lane / 2 + 16 * i)) * MAT_TILE +
                         (size_t)(lane % 2 * 4));
}

__device__ static inline void mix_four(float4 &sum, const float4 &w, float v)
{
    sum.x = fmaf(w.x, v, sum.x);
    sum.y = fmaf(w.y, v, sum.y);
    sum.z = fmaf(w.z, v, sum.z);
    sum.w = fmaf(w.w, v, sum.w);
}

__device__ static inline void fold_four(float4 &sum, int step)
{
    sum.x += __shfl_xor_sync(FULL_MASK, sum.x, step);
    sum.y += __shfl_xor_sync(FULL_MASK, sum.y, step);
    sum.z += __shfl_xor_sync(FULL_MASK, sum.z, step);
    sum.w += __shfl_xor_sync(FULL_MASK, sum.w, step);
}

// The warp's share of the mixes of a row whose 32 inputs are at x.
__device__ static void mix_sums(const struct mix_weights &w, const float *x, float *to)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    float4 first = make_float4(0, 0, 0, 0), second = first;

#pragma unroll
    for (int i = 0; i < 4; i++)
        mix_four(first, w.first[i], x[lane / 4 + 8 * i]);
#pragma unroll
    for (int i = 0; i < 2; i++)
        mix_four(second, w.second[i], x[lane / 2 + 16 * i]);
    for (int step = 2; step < CUDA_WARP; step *= 2) {
        if (step > 2)
            fold_four(first, step);
        fold_four(second, step);
    }
    if (lane < 4)
        *(float4 *)(to + lane * 4) = first;
    if (lane < LEFT / 4)
        *(float4 *)(to + MAT_TILE + lane * 4) = second;
}

__device__ static inline float inverse(float x)
{
    float y;

    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Rows to one by softmax, then columns and rows in turn, as hyper.cu has it; one thread. What the rows
// and columns have been divided by so far stands beside the matrix; an inverse that is an ulp off goes
// with the next division.
__device__ static void sinkhorn(float (&c)[STREAMS][STREAMS], int iters, float eps)
{
    float row[STREAMS], col[STREAMS];

#pragma unroll
    for (int j = 0; j < STREAMS; j++) {
        float most = fmaxf(fmaxf(c[j][0], c[j][1]), fmaxf(c[j][2], c[j][3])), sum = 0;

#pragma unroll
        for (int k = 0; k < STREAMS; k++) { // fmaxf drops a NaN, the difference keeps it
            c[j][k] = expf(c[j][k] - most);
            sum += c[j][k];
        }
        row[j] = col[j] = 1;
#pragma unroll
        for (int k = 0; k < STREAMS; k++)
            c[j][k] = c[j][k] / sum + eps;
    }
    for (int i = 0; i < iters; i++) {
#pragma unroll
        for (int j = 0; i > 0 && j < STREAMS; j++)
            row[j] *= inverse(fmaf(row[j],
                                   fmaf(c[j][0], col[0], c[j][1] * col[1]) +
                                       fmaf(c[j][2], col[2], c[j][3] * col[3]),
                                   eps));
#pragma unroll
        for (int k = 0; k < STREAMS; k++)
            col[k] *= inverse(fmaf(col[k],
                                   fmaf(c[0][k], row[0], c[1][k] * row[1]) +
                                       fmaf(c[2][k], row[2], c[3][k] * row[3]),
                                   eps));
    }
#pragma unroll
    for (int j = 0; j < STREAMS; j++)
#pragma unroll
        for (int k = 0; k < STREAMS; k++)
            c[j][k] *= row[j] * col[k];
}

// Warp 0, a lane a row: the mixes from their sums m.
__device__ static void mix_end(const struct hc_site_args &a, size_t row, const float *m)
{
    float by = 1.0f / sqrtf(m[SUM_X] / (float)(STREAMS * a.dim) + a.eps), c[STREAMS][STREAMS];

#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        a.to_pre[row * STREAMS + (size_t)i] =
            sigmoid(m[i] * by * a.scale[0] + a.base[i]) + a.hc_eps;
        a.to_post[row * STREAMS + (size_t)i] =
            2 * sigmoid(m[STREAMS + i] * by * a.scale[1] + a.base[STREAMS + i]);
    }
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++)
        c[i / STREAMS][i % STREAMS] =
            m[2 * STREAMS + i] * by * a.scale[2] + a.base[2 * STREAMS + i];
    sinkhorn(c, a.iters, a.hc_eps);
#pragma unroll
    for (int i = 0; i < STREAMS * STREAMS; i++)
        a.to_comb[row * STREAMS * STREAMS + (size_t)i] = c[i / STREAMS][i % STREAMS];
}

// What a row's streams are mixed by: post, comb of the sublayer before, and pre.
struct coefficients {
    float post[STREAMS], comb[STREAMS * STREAMS], pre[STREAMS];
};

__device__ static void coefficients_load(const struct hc_site_args &a, int r0, int rows,
                                         struct coefficients *c)
{
    constexpr int N = sizeof(*c) / sizeof(float);

    for (int i = (int)threadIdx.x; i < rows * N; i += THREADS) {
        size_t row = (size_t)(r0 + i / N);
        int at = i % N;
        float v = at == N - STREAMS; // no mix yet: the first stream

        if (at < STREAMS)
            v = a.y ? a.post[row * STREAMS + (size_t)at] : 0;
        else if (at < STREAMS + STREAMS * STREAMS)
            v = a.y ? a.comb[row * STREAMS * STREAMS + (size_t)(at - STREAMS)] : 0;
        else if (a.pre)
            v = a.pre[row * STREAMS + (size_t)(at - STREAMS - STREAMS * STREAMS)];
        ((float *)&c[i / N])[at] = v;
    }
}

// The streams of `rows` rows after the sublayer, into shared memory and, where they changed, back. A
// thread a column of a stream; all have read before one writes.
__device__ static void streams_take(const struct hc_site_args &a, int r0, int rows, int c0,
                                    const struct coefficients *by, float (*x)[STREAMS][COLS])
{
    int k = (int)threadIdx.x / COLS, c = (int)threadIdx.x % COLS;
    size_t dim = (size_t)a.dim, at = (size_t)r0 * STREAMS * dim + (size_t)(c0 + c);
    float in[ROWS][STREAMS], y[ROWS];

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        y[r] = 0;
        if (r < rows && a.y)
            y[r] = rounded(a.y[(size_t)(r0 + r) * dim + (size_t)(c0 + c)], a.round);
#pragma unroll
        for (int j = 0; j < STREAMS; j++)
            in[r][j] = r < rows ? a.x[at + (size_t)(r * STREAMS + j) * dim] : 0;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum, mixed = 0, out = in[r][0];

        if (r >= rows)
            break;
#pragma unroll
        for (int j = 1; j < STREAMS; j++)
            out = k == j ? in[r][j] : out;
        if (a.y) {
            sum = by[r].post[k] * y[r];
#pragma unroll
            for (int j = 0; j < STREAMS; j++)
                mixed += by[r].comb[j * STREAMS + k] * in[r][j];
            out = rounded(sum + mixed, a.round);
            a.x[at + (size_t)(r * STREAMS + k) * dim] = out;
        }
        x[r][k][c] = out;
    }
    __syncthreads();
}

// The block that came last: sums of the shares, warps a share in eight, then the warps in order.
__device__ static void shares_add(const float *share, int r0, int rows, int blocks,
                                  float (*part)[WARPS][LINE], float (*sum)[LINE])
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    const float *s = share + (size_t)r0 * (size_t)blocks * LINE + lane;
    float v[ROWS] = {};

#pragma unroll 5
    for (int b = warp; b < blocks; b += WARPS)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (r < rows)
                v[r] += __ldcg(s + ((size_t)r * (size_t)blocks + (size_t)b) * LINE);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        part[r][warp][lane] = v[r];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < rows * LINE; i += THREADS) {
        float all = part[i / LINE][0][i % LINE];

        for (int w = 1; w < WARPS; w++)
            all += part[i / LINE][w][i % LINE];
        sum[i / LINE][i % LINE] = all;
    }
    __syncthreads();
}

#define AHEAD 6 // loads of a thread in flight

// Pieces i0, i0 + threads, .. of the rows' h and of their norm's weights, on their way.
struct norm_pieces {
    float4 h[AHEAD], w[AHEAD];
};

__device__ static inline void norm_fetch(const struct hc_site_args &a, const float *h, int r0,
                                         int rows, int i0, int threads, struct norm_pieces *p)
{
    int pieces = a.dim / 4;

#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int at = i0 + i * threads;

        if (at < rows * pieces) {
            p->h[i] = __ldcg((const float4 *)(h + (size_t)r0 * (size_t)a.dim) + at);
            p->w[i] = ((const float4 *)a.w)[at % pieces];
        }
    }
}

__device__ static inline void norm_put(const struct hc_site_args &a, int r0, int rows, int i0,
                                       int threads, const float (*sum)[LINE],
                                       const struct norm_pieces &p)
{
    int pieces = a.dim / 4;

#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int at = i0 + i * threads;
        float by;

        if (at >= rows * pieces)
            break;
        by = 1.0f / sqrtf(sum[at / pieces][SUM_H] / (float)a.dim + a.eps);
        ((float4 *)(a.n + (size_t)r0 * (size_t)a.dim))[at] = make_float4(
            rounded(p.h[i].x * by * p.w[i].x, a.round), rounded(p.h[i].y * by * p.w[i].y, a.round),
            rounded(p.h[i].z * by * p.w[i].z, a.round), rounded(p.h[i].w * by * p.w[i].w, a.round));
    }
}

// Bound by the bytes of fn and by the steps behind each other.
template <enum dtype D, bool MIX>
__global__ static void __launch_bounds__(THREADS, 2)
    site_columns(struct hc_site_args a, struct mat fn, float *share, uint32_t *tickets)
{
    __shared__ __align__(16) float part[ROWS][WARPS][LINE];
    __shared__ float x[ROWS][STREAMS][COLS], sum[ROWS][LINE];
    __shared__ struct coefficients by[ROWS];
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int c0 = (int)blockIdx.x * COLS, r0 = (int)blockIdx.y * ROWS, blocks = (int)gridDim.x;
    int rows = a.rows - r0 < ROWS ? a.rows - r0 : ROWS, row = t / COLS, c = t % COLS;
    float *h = a.h ? a.h : a.n, square = 0, input = 0;
    struct mix_weights w;
    struct norm_pieces p;
    int first, others;

    if (MIX)
        mix_load<D>(fn, warp / 2 * a.dim + c0 + warp % 2 * CUDA_WARP, &w);
    dependency_wait();
    coefficients_load(a, r0, rows, by);
    streams_take(a, r0, rows, c0, by, x);
    for (int r = 0; MIX && r < rows; r++)
        mix_sums(w, &x[r][warp / 2][warp % 2 * CUDA_WARP], part[r][warp]);
    if (row < rows) {
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            float v = x[row][i][c];

            square = fmaf(v, v, square);
            input += by[row].pre[i] * v;
        }
        input = rounded(a.pre ? input : x[row][0][c], a.round);
        h[(size_t)(r0 + row) * (size_t)a.dim + (size_t)(c0 + c)] = input;
    }
    square = warp_sum(square);
    input = warp_sum(input * input);
    if (lane == 0) { // two warps a row: their sums lie where no mix does
        part[row][warp % 2][SUM_X] = square;
        part[row][warp % 2][SUM_H] = input;
    }
    __syncthreads();
    for (int i = t; i < rows * SUMS; i += THREADS) {
        int r = i / SUMS, m = i % SUMS, terms = m < MIXES ? WARPS : 2;
        float v = 0;

        if (MIX || m >= MIXES)
            for (int j = 0; j < terms; j++)
                v += part[r][j][m];
        share[((size_t)(r0 + r) * (size_t)blocks + blockIdx.x) * LINE + (size_t)m] = v;
    }
    if (!last_block(&tickets[blockIdx.y], gridDim.x))
        return;
    // warp 0 makes the mixes, the others scale the rows; without mixes all do
    first = t - (MIX ? CUDA_WARP : 0);
    others = THREADS - (MIX ? CUDA_WARP : 0);
    if (first >= 0)
        norm_fetch(a, h, r0, rows, first, others, &p);
    shares_add(share, r0, rows, blocks, part, sum);
    if (first < 0) {
        if (lane < rows)
            mix_end(a, (size_t)(r0 + lane), sum[lane]);
        return;
    }
    for (int i = first; i < rows * (a.dim / 4); i += AHEAD * others) {
        if (i != first)
            norm_fetch(a, h, r0, rows, i, others, &p);
        norm_put(a, r0, rows, i, others, sum, p);
    }
}

static bool site_whole(struct queue *q, const struct hc_site_args *a)
{
    unsigned blocks = (unsigned)a->dim / COLS;
    size_t most = cuda_queue(q)->scratch_bytes / (blocks * LINE * sizeof(float) + 1);
    int lot = CUDA_TICKETS * ROWS;
    struct mat fn = a->fn ? *a->fn : (struct mat){ .dtype = DTYPE_F32 };

    if (a->hc != STREAMS || a->dim % COLS != 0 || most < ROWS || ((uintptr_t)a->w & 15) != 0 ||
        (fn.dtype != DTYPE_F32 && fn.dtype != DTYPE_BF16))
        return false;
    lot = (size_t)lot < most ? lot : (int)(most / ROWS) * ROWS;
    for (int r = 0; r < a->rows; r += lot) {
        size_t row = (size_t)r, dim = (size_t)a->dim;
        struct hc_site_args b = *a;

        b.rows = a->rows - r < lot ? a->rows - r : lot;
        b.y = a->y ? a->y + row * dim : NULL;
        b.post = a->post + row * STREAMS;
        b.comb = a->comb + row * STREAMS * STREAMS;
        b.x += row * STREAMS * dim;
        b.to_pre = a->fn ? a->to_pre + row * STREAMS : NULL;
        b.to_post = a->to_post + row * STREAMS;
        b.to_comb = a->to_comb + row * STREAMS * STREAMS;
        b.pre = a->pre ? a->pre + row * STREAMS : NULL;
        b.h = a->h ? a->h + row * dim : NULL;
        b.n += row * dim;
        launch(q,
               !a->fn                  ? site_columns<DTYPE_F32, false>
               : fn.dtype == DTYPE_F32 ? site_columns<DTYPE_F32, true>
                                       : site_columns<DTYPE_BF16, true>,
               dim3(blocks, blocks_for((size_t)b.rows, ROWS)), THREADS, 0, b, fn,
               (float *)cuda_queue(q)->scratch, cuda_queue(q)->tickets);
    }
    return true;
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
    if (!site_whole(q, a))
        site_steps(q, a);
    queue_note(q, "hc_site");
}
