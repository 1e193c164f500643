// hyper.cu owns the ops of the hyper-connections one by one, for any number of streams up to
// HC_MAX: mixes (pre, post, comb) of streams x [rows][hc][dim], collapse to a sublayer's input,
// expand by its output, mean. site.cu fuses them for the released model's shapes. Bound by bytes,
// mixes by those of fn.
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/site.cuh"

#define THREADS 256
#define MIX_MAX ((2 + HC_MAX) * HC_MAX)
#define MIX_TILES ((MIX_MAX + MAT_TILE - 1) / MAT_TILE)

// One warp, lane j * n + k holds comb[j][k]. Rows are normalised by softmax, then columns by their
// sums; each further iteration divides rows, then columns, by their sums. eps is added to every
// softmax value and to every divisor. Sums of a row or column run in index order.
__device__ static float sinkhorn(float c, int n, int iters, float eps)
{
    int lane = (int)threadIdx.x % CUDA_WARP, j = lane / n, k = lane % n;
    float most = -INFINITY, sum = 0, all[HC_MAX];

    j = j < n ? j : n - 1; // lanes past the matrix repeat its last row
    for (int i = 0; i < n; i++) {
        float v = __shfl_sync(FULL_MASK, c, j * n + i);

        most = i == 0 || v > most ? v : most;
    }
    c = expf(c - most);
    for (int i = 0; i < n; i++)
        sum += __shfl_sync(FULL_MASK, c, j * n + i);
    c = c / sum + eps;
    for (int i = 0; i < iters; i++) {
        if (i > 0) {
            for (int m = 0; m < n; m++)
                all[m] = __shfl_sync(FULL_MASK, c, j * n + m);
            sum = 0;
            for (int m = 0; m < n; m++)
                sum += all[m];
            c /= sum + eps;
        }
        for (int m = 0; m < n; m++)
            all[m] = __shfl_sync(FULL_MASK, c, m * n + k);
        sum = 0;
        for (int m = 0; m < n; m++)
            sum += all[m];
        c /= sum + eps;
    }
    return c;
}

// A block a row: one tile of fn after another, then the row's norm, then one warp makes the mixes.
// Bound by the bytes of fn that one multiprocessor can read.
__global__ static void mix_rows(struct hc_mix_args a, struct mat fn)
{
    dependency_wait();
    __shared__ float part[DOT_WARPS * MAT_TILE], m[MIX_TILES * MAT_TILE];
    int hc = a.hc, cols = hc * a.dim, t = (int)threadIdx.x;
    const float *x[1] = { a.x + (size_t)blockIdx.x * (size_t)cols };
    float square = 0, by, c = 0;

    for (int tile = 0; tile * MAT_TILE < fn.rows; tile++) {
        float sum = dot_any<1>(fn, tile, x, part);

        if (t < MAT_TILE)
            m[tile * MAT_TILE + t] = sum;
    }
    for (int i = t; i < cols; i += DOT_THREADS)
        square = fmaf(x[0][i], x[0][i], square);
    __syncthreads(); // part is free, m is complete
    square = block_sum<DOT_WARPS>(square, part);
    if (t >= CUDA_WARP)
        return;
    by = 1.0f / sqrtf(square / (float)cols + a.eps);
    if (t < hc) {
        a.pre[(size_t)blockIdx.x * (size_t)hc + (size_t)t] =
            sigmoid(m[t] * by * a.scale[0] + a.base[t]) + a.hc_eps;
        a.post[(size_t)blockIdx.x * (size_t)hc + (size_t)t] =
            2 * sigmoid(m[hc + t] * by * a.scale[1] + a.base[hc + t]);
    }
    if (t < hc * hc)
        c = m[2 * hc + t] * by * a.scale[2] + a.base[2 * hc + t];
    c = sinkhorn(c, hc, a.iters, a.hc_eps);
    if (t < hc * hc)
        a.comb[(size_t)blockIdx.x * (size_t)(hc * hc) + (size_t)t] = c;
}

extern "C" void cuda_hc_mix(struct queue *q, const struct hc_mix_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    if (a->hc < 1 || a->hc > HC_MAX || a->fn->rows != (2 + a->hc) * a->hc ||
        a->fn->cols != a->hc * a->dim) {
        queue_fail(q, -EINVAL, "hc_mix: %d x %d mixes for %d streams of %d", a->fn->rows,
                   a->fn->cols, a->hc, a->dim);
        return;
    }
    if (a->fn->dtype >= DTYPE_COUNT) {
        queue_fail(q, -EINVAL, "hc_mix: weights of type %d", (int)a->fn->dtype);
        return;
    }
    if (!mix_by_gang(q, a))
        launch(q, mix_rows, a->rows, DOT_THREADS, 0, *a, *a->fn);
    queue_note(q, "hc_mix");
}

// The three below: a thread a column of a row, blocks in y are rows. Bound by bytes.
__global__ static void collapse_columns(struct hc_collapse_args a)
{
    dependency_wait();
    int c = (int)(blockIdx.x * THREADS + threadIdx.x);
    size_t dim = (size_t)a.dim, r = blockIdx.y;
    const float *x = a.x + r * (size_t)a.hc * dim + (size_t)c;
    float sum = 0;

    if (c >= a.dim)
        return;
    if (!a.pre)
        sum = x[0];
    else
        for (int i = 0; i < a.hc; i++)
            sum += a.pre[r * (size_t)a.hc + (size_t)i] * x[(size_t)i * dim];
    a.y[r * dim + (size_t)c] = rounded(sum, a.round);
}

extern "C" void cuda_hc_collapse(struct queue *q, const struct hc_collapse_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    launch(q, collapse_columns, dim3(blocks_for((size_t)a->dim, THREADS), (unsigned)a->rows),
           THREADS, 0, *a);
    queue_note(q, "hc_collapse");
}

__global__ static void expand_columns(struct hc_expand_args a)
{
    dependency_wait();
    int c = (int)(blockIdx.x * THREADS + threadIdx.x), hc = a.hc;
    size_t dim = (size_t)a.dim, r = blockIdx.y;
    float *x = a.x + r * (size_t)hc * dim + (size_t)c, in[HC_MAX], v;
    const float *post = a.post + r * (size_t)hc, *comb = a.comb + r * (size_t)(hc * hc);

    if (c >= a.dim)
        return;
    v = rounded(a.y[r * dim + (size_t)c], a.round);
#pragma unroll
    for (int j = 0; j < HC_MAX; j++)
        in[j] = j < hc ? x[(size_t)j * dim] : 0;
    for (int k = 0; k < hc; k++) {
        float sum = post[k] * v, mixed = 0;

#pragma unroll
        for (int j = 0; j < HC_MAX; j++)
            if (j < hc)
                mixed += comb[j * hc + k] * in[j];
        x[(size_t)k * dim] = rounded(sum + mixed, a.round);
    }
}

extern "C" void cuda_hc_expand(struct queue *q, const struct hc_expand_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    if (a->hc < 1 || a->hc > HC_MAX) {
        queue_fail(q, -EINVAL, "hc_expand: %d streams, want 1 .. %d", a->hc, HC_MAX);
        return;
    }
    launch(q, expand_columns, dim3(blocks_for((size_t)a->dim, THREADS), (unsigned)a->rows), THREADS,
           0, *a);
    queue_note(q, "hc_expand");
}

__global__ static void mean_columns(struct hc_mean_args a)
{
    dependency_wait();
    int c = (int)(blockIdx.x * THREADS + threadIdx.x);
    size_t dim = (size_t)a.dim, r = blockIdx.y;
    const float *x = a.x + r * (size_t)a.hc * dim + (size_t)c;
    float sum = 0;

    if (c >= a.dim)
        return;
    for (int i = 0; i < a.hc; i++)
        sum += x[(size_t)i * dim];
    a.y[r * (size_t)a.ldy + (size_t)c] = rounded(sum / (float)a.hc, a.round);
}

extern "C" void cuda_hc_mean(struct queue *q, const struct hc_mean_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    launch(q, mean_columns, dim3(blocks_for((size_t)a->dim, THREADS), (unsigned)a->rows), THREADS,
           0, *a);
    queue_note(q, "hc_mean");
}
