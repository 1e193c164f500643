// attend.cu owns attention over decoded rows, of any codec and shape; gang.cu has what the released
// model asks for.
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/codec.cuh"

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)
#define HEADS 4            // of a block
#define LOT 8              // keys in shared memory at a time
#define DIM_MAX 1024       // THREADS values a thread column, at most 4
#define SHARED_STATIC 1024 // more than the kernels declare beside their dynamic memory

// Keys j .. j + LOT - 1 of the list into shared memory, zeros behind the end.
__device__ static void lot_load(const struct attend_args &a, int slot, const int32_t *sel, int lo,
                                int win, int n, int j0, float *lot)
{
    int pieces = a.dim / 4;

    for (int i = threadIdx.x; i < LOT * pieces; i += THREADS) {
        int j = j0 + i / pieces, c = i % pieces * 4;
        float v[4] = { 0, 0, 0, 0 };

        if (j < win)
            codec_read4(a.win.codec, state_row(a.win, slot, lo + j), a.dim, c, v);
        else if (j < n)
            codec_read4(a.more.codec, state_row(a.more, slot, sel[j - win]), a.dim, c, v);
        for (int m = 0; m < 4; m++)
            lot[i / pieces * a.dim + c + m] = v[m];
    }
}

// A block: a row and HEADS heads. First the logits of all keys, a warp a (key, head); then their
// maximum and sum, a warp a head; then the values, a thread CP columns of all heads. Keys are
// decoded twice.
template <int CP> __global__ static void attend_heads(struct attend_args a, int keys_max)
{
    dependency_wait();
    extern __shared__ float shared[];
    float *q = shared, *lot = q + HEADS * a.dim,
          *prob = lot + LOT * a.dim; // prob [HEADS][keys_max]
    __shared__ float total[HEADS];
    __shared__ int chosen;
    int r = (int)blockIdx.x, h0 = (int)blockIdx.y * HEADS, t = (int)threadIdx.x;
    int heads = a.heads - h0 < HEADS ? a.heads - h0 : HEADS, slot = a.info[r].slot;
    int lane = t % CUDA_WARP, warp = t / CUDA_WARP, dim = a.dim, n, win;
    size_t at = ((size_t)r * (size_t)a.heads + (size_t)h0) * (size_t)dim;
    const int32_t *sel = a.sel + (size_t)r * (size_t)a.topk;
    struct span s = window_of(a, r);
    float acc[HEADS][CP] = {};

    if (t == 0)
        chosen = a.more.base ? a.topk : 0;
    for (int i = t; i < HEADS * dim; i += THREADS)
        q[i] = i < heads * dim ? a.q[at + (size_t)i] : 0;
    __syncthreads();
    for (int i = t; a.more.base && i < a.topk; i += THREADS)
        if (sel[i] < 0)
            atomicMin(&chosen, i);
    __syncthreads();
    win = s.hi - s.lo;
    n = win + chosen;
    for (int j0 = 0; j0 < n; j0 += LOT) {
        lot_load(a, slot, sel, s.lo, win, n, j0, lot);
        __syncthreads();
        for (int i = warp; i < LOT * heads; i += WARPS) {
            int j = i % LOT, h = i / LOT;
            float dot = 0;

            for (int c = lane; c < dim; c += CUDA_WARP)
                dot = fmaf(q[h * dim + c], lot[j * dim + c], dot);
            dot = warp_sum(dot);
            if (lane == 0 && j0 + j < n)
                prob[h * keys_max + j0 + j] = dot * a.scale;
        }
        __syncthreads();
    }
    for (int h = warp; h < heads; h += WARPS) {
        float *p = prob + h * keys_max, sink = a.sink[h0 + h], most = sink, sum = 0;

        for (int j = lane; j < n; j += CUDA_WARP)
            most = p[j] > most ? p[j] : most;
        most = warp_max(most);
        for (int j = lane; j < n; j += CUDA_WARP) {
            float e = expf(p[j] - most);

            sum += e;
            p[j] = rounded(e, a.round);
        }
        sum = warp_sum(sum) + expf(sink - most);
        if (lane == 0)
            total[h] = sum;
    }
    for (int j0 = 0; j0 < n; j0 += LOT) {
        int lots = n - j0 < LOT ? n - j0 : LOT;

        __syncthreads(); // prob and total are there; the lot before has been used
        lot_load(a, slot, sel, s.lo, win, n, j0, lot);
        __syncthreads();
        for (int j = 0; j < lots; j++)
#pragma unroll
            for (int i = 0; i < CP; i++) {
                int c = t + i * THREADS;
                float v = c < dim ? lot[j * dim + c] : 0;

#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    if (h < heads)
                        acc[h][i] = fmaf(prob[h * keys_max + j0 + j], v, acc[h][i]);
            }
    }
    if (n == 0)
        __syncthreads();
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int i = 0; i < CP; i++)
            if (h < heads && t + i * THREADS < dim)
                a.o[at + (size_t)(h * dim + t + i * THREADS)] =
                    rounded(acc[h][i] / total[h], a.round);
}

// Keys a row can have, at most.
static int attend_keys(const struct attend_args *a)
{
    int window = a->mode == ATTEND_BLOCK ? a->span + a->block : a->span;

    return window + (a->more.base ? a->topk : 0);
}

extern "C" cudaError_t cuda_attend_limits(int shared_max)
{
    cudaError_t e = shared_room(attend_heads<1>, shared_max);

    if (e == cudaSuccess)
        e = shared_room(attend_heads<2>, shared_max);
    if (e == cudaSuccess)
        e = shared_room(attend_heads<4>, shared_max);
    return e;
}

static void turn_heads(struct queue *q, const struct attend_args *a, float *x, int inverse)
{
    struct rope_args turn = { .x = x,
                              .freq = a->freq,
                              .info = a->info,
                              .rows = a->rows,
                              .heads = a->heads,
                              .cols = a->dim,
                              .dims = a->dims,
                              .inverse = inverse,
                              .round = a->round };

    cuda_rope(q, &turn);
}

extern "C" void cuda_attend(struct queue *q, const struct attend_args *a)
{
    int keys = attend_keys(a), most = ((struct cuda_device *)q->dev)->shared_max - SHARED_STATIC;
    size_t shared =
        sizeof(float) * ((size_t)(HEADS + LOT) * (size_t)a->dim + (size_t)HEADS * (size_t)keys);
    dim3 grid((unsigned)a->rows, blocks_for((size_t)a->heads, HEADS));

    if (queue_skips(q, a->rows))
        return;
    if (a->dim % MAT_TILE != 0 || a->dim % codec_block(a->win.codec) != 0 ||
        a->win.cols != a->dim ||
        (a->more.base && (a->more.cols != a->dim || a->dim % codec_block(a->more.codec) != 0))) {
        queue_fail(q, -EINVAL, "attend: heads of %d values, rows of %d and %d", a->dim, a->win.cols,
                   a->more.base ? a->more.cols : a->dim);
        return;
    }
    if (a->dim > DIM_MAX || shared > (size_t)most) {
        queue_fail(
            q, -EINVAL,
            "attend: heads of %d over %d keys need %zu bytes of shared memory, a block has %d",
            a->dim, keys, shared, most);
        return;
    }
    if (attend_by_gang(q, a, keys)) {
        queue_note(q, "attend");
        return;
    }
    if (a->freq)
        turn_heads(q, a, a->q, 0);
    if (a->dim <= THREADS)
        launch(q, attend_heads<1>, grid, THREADS, shared, *a, keys);
    else if (a->dim <= 2 * THREADS)
        launch(q, attend_heads<2>, grid, THREADS, shared, *a, keys);
    else
        launch(q, attend_heads<4>, grid, THREADS, shared, *a, keys);
    if (a->freq)
        turn_heads(q, a, a->o, 1);
    queue_note(q, "attend");
}

// ---- plain attention ----------------------------------------------------------------------------

#define GQA_DIM_MAX 512
#define GQA_PIECES (GQA_DIM_MAX / CUDA_WARP)

// One warp: q . key, the same bits each time it is taken.
__device__ static float gqa_dot(const float *x, const float *key, int dim)
{
    float dot = 0;

    for (int c = (int)threadIdx.x % CUDA_WARP; c < dim; c += CUDA_WARP)
        dot = fmaf(x[c], key[c], dot);
    return warp_sum(dot);
}

// A block a (row, head). Warps take every eighth key, first for the maximum, then for sums and
// values; the warps' shares are added in order. Products with the keys are taken twice instead of
// kept.
template <int PIECES> __global__ static void gqa_heads(struct attend_gqa_args a)
{
    dependency_wait();
    __shared__ float x[GQA_DIM_MAX], most_of[WARPS], total_of[WARPS],
        o_of[WARPS][PIECES * CUDA_WARP];
    int r = (int)blockIdx.x, h = (int)blockIdx.y, t = (int)threadIdx.x, dim = a.dim;
    int lane = t % CUDA_WARP, warp = t / CUDA_WARP, n = a.info[r].pos + 1, slot = a.info[r].slot;
    int first = a.head ? min(a.head[slot].floor, n - 1) : 0;
    int kv = h / (a.heads / a.kv_heads) * dim;
    size_t at = ((size_t)r * (size_t)a.heads + (size_t)h) * (size_t)dim;
    float most = -INFINITY, total = 0, acc[PIECES] = {};

    for (int c = t; c < dim; c += THREADS)
        x[c] = a.q[at + (size_t)c];
    __syncthreads();
    for (int j = first + warp; j < n; j += WARPS) {
        float l = gqa_dot(x, state_f32(a.k, slot, j) + kv, dim) * a.scale;

        most = l > most ? l : most;
    }
    if (lane == 0)
        most_of[warp] = most;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        most = most_of[w] > most ? most_of[w] : most;
    for (int j = first + warp; j < n; j += WARPS) {
        const float *value = state_f32(a.v, slot, j) + kv;
        float l = gqa_dot(x, state_f32(a.k, slot, j) + kv, dim) * a.scale, e = expf(l - most);

        total += e;
        e = rounded(e, a.round);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            if (lane + i * CUDA_WARP < dim)
                acc[i] = fmaf(e, value[lane + i * CUDA_WARP], acc[i]);
    }
    if (lane == 0)
        total_of[warp] = total;
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        o_of[warp][lane + i * CUDA_WARP] = acc[i];
    __syncthreads();
    total = total_of[0];
    for (int w = 1; w < WARPS; w++)
        total += total_of[w];
    for (int c = t; c < dim; c += THREADS) {
        float sum = o_of[0][c];

        for (int w = 1; w < WARPS; w++)
            sum += o_of[w][c];
        a.o[at + (size_t)c] = rounded(sum / total, a.round);
    }
}

extern "C" void cuda_attend_gqa(struct queue *q, const struct attend_gqa_args *a)
{
    dim3 grid((unsigned)a->rows, (unsigned)a->heads);

    if (queue_skips(q, a->rows))
        return;
    if (a->kv_heads < 1 || a->heads % a->kv_heads != 0 || a->k.codec != CODEC_F32 ||
        a->v.codec != CODEC_F32) {
        queue_fail(q, -EINVAL, "attend_gqa: %d heads on %d", a->heads, a->kv_heads);
        return;
    }
    if (a->dim > GQA_DIM_MAX) {
        queue_fail(q, -EINVAL, "attend_gqa: heads of %d values, want at most %d", a->dim,
                   GQA_DIM_MAX);
        return;
    }
    if (a->dim <= 4 * CUDA_WARP)
        launch(q, gqa_heads<4>, grid, THREADS, 0, *a);
    else if (a->dim <= 8 * CUDA_WARP)
        launch(q, gqa_heads<8>, grid, THREADS, 0, *a);
    else
        launch(q, gqa_heads<GQA_PIECES>, grid, THREADS, 0, *a);
    queue_note(q, "attend_gqa");
}
