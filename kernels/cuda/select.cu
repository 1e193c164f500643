// select.cu owns the indexer for keys of any codec: scores of compressed entries, exact top-k, and
// candidate blocks. index.cu has keys and queries of QI, as the released model; the choice of
// candidate blocks is always here.
//
// Two launches: scores become order words in the scratch of their row, then one block a row picks.
// Rows come in lots of CUDA_WORKERS, because the scratch holds as many. Sums run in index order,
// multiply then add, so that the words are those of the reference.
#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/index.cuh"

#define DIM_MAX 512
#define SCORE_KEYS 32 // entries of a block
#define SCORE_THREADS 256
#define PICK_THREADS 512

// A block: SCORE_KEYS entries of a row. Keys are decoded into shared memory, a thread is an entry
// (its lane) and every eighth head; the first warp adds the heads in order. Bound by the products.
__global__ static void score_entries(struct select_args a, int row0)
{
    dependency_wait();
    // keys [SCORE_KEYS][dim + 1], then relu(q . key) [heads][SCORE_KEYS]
    extern __shared__ float shared[];
    __shared__ struct field f;
    int r = row0 + (int)blockIdx.y, first = (int)blockIdx.x * SCORE_KEYS, ld = a.dim + 1;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    const float *q = a.q + (size_t)r * (size_t)a.heads * (size_t)a.dim;
    float *hit = shared + SCORE_KEYS * ld, sum = 0;

    field_load(a, r, &f);
    if (first >= f.size || !is_scored(a, f))
        return;
    for (int i = threadIdx.x; i < SCORE_KEYS * (a.dim / 4); i += SCORE_THREADS) {
        int j = i / (a.dim / 4), c = i % (a.dim / 4) * 4;
        float v[4] = { 0, 0, 0, 0 };

        if (first + j < f.size)
            codec_read4(a.keys.codec, state_row(a.keys, a.info[r].slot, entry_of(f, first + j)),
                        a.dim, c, v);
        for (int m = 0; m < 4; m++)
            shared[j * ld + c + m] = v[m];
    }
    __syncthreads();
    for (int h = warp; h < a.heads; h += SCORE_THREADS / CUDA_WARP) {
        const float *qh = q + (size_t)h * (size_t)a.dim;
        float dot = 0;

        for (int c = 0; c < a.dim; c++)
            dot += shared[lane * ld + c] * qh[c];
        hit[h * SCORE_KEYS + lane] = dot < 0 ? 0 : dot;
    }
    __syncthreads();
    if (warp > 0 || first + lane >= f.size)
        return;
    for (int h = 0; h < a.heads; h++)
        sum += a.wt[(size_t)r * (size_t)a.heads + (size_t)h] * hit[h * SCORE_KEYS + lane];
    ((uint32_t *)a.scratch)[(size_t)blockIdx.y * (size_t)a.keys.cap + (size_t)(first + lane)] =
        order_word(a.scale * sum);
}

__device__ static void take_first(int n, int32_t *out, int room)
{
    for (int i = threadIdx.x; i < room; i += PICK_THREADS)
        out[i] = i < n ? i : -1;
}

// Ids of the k best of n keys in ascending order of their place, -1 behind them up to room. 0 <= k
// <= n.
template <typename L>
__device__ static void take_best(int n, int k, L load, const struct field &f, int32_t *out,
                                 int room, struct order_count *count, int *part)
{
    uint64_t cut = k > 0 ? key_cut(n, k, load, count) : 0;
    int done = 0, total;

    for (int first = 0; k > 0 && first < n; first += PICK_THREADS) {
        int i = first + (int)threadIdx.x;
        bool take = i < n && load(i) <= cut;
        int at = block_place(take, part, &total);

        if (take)
            out[done + at] = entry_of(f, i);
        done += total;
    }
    for (int i = done + (int)threadIdx.x; i < room; i += PICK_THREADS)
        out[i] = -1;
}

// A block a row.
__global__ static void pick_entries(struct select_args a, int row0, bool sel_too)
{
    dependency_wait();
    __shared__ struct order_count count;
    __shared__ struct field f;
    __shared__ int part[PICK_THREADS / CUDA_WARP];
    int r = row0 + (int)blockIdx.x, blocks, newest;
    const uint32_t *word = (const uint32_t *)a.scratch + (size_t)blockIdx.x * (size_t)a.keys.cap;
    int32_t *sel = a.sel + (size_t)r * (size_t)a.topk, *out;

    field_load(a, r, &f);
    if (sel_too && f.n <= a.topk)
        take_first(f.n, sel, a.topk);
    else if (sel_too)
        take_best(
            f.size, a.topk < f.size ? a.topk : f.size,
            [=](int i) { return order_key(word[i], (uint32_t)i); }, f, sel, a.topk, &count, part);
    if (!a.cand_out)
        return;
    out = a.cand_out + (size_t)r * (size_t)a.blocks;
    blocks = (f.n + a.block - 1) / a.block;
    if (blocks <= a.blocks) {
        take_first(blocks, out, a.blocks);
        return;
    }
    // the newest block always, of the others those with the largest word
    newest = (f.n - 1) / a.block;
    take_best(
        newest, a.blocks - 1,
        [=](int b) {
            uint32_t most = 0;

            for (int i = 0; i < a.block; i++) {
                uint32_t w = word[(size_t)b * (size_t)a.block + (size_t)i];

                most = w > most ? w : most;
            }
            return order_key(most, (uint32_t)b);
        },
        f, out, a.blocks - 1, &count, part);
    if (threadIdx.x == 0)
        out[a.blocks - 1] = newest;
}

extern "C" cudaError_t cuda_select_limits(int shared_max)
{
    cudaError_t e = index_limits(shared_max);

    return e != cudaSuccess ? e : shared_room(score_entries, shared_max);
}

extern "C" void cuda_select(struct queue *q, const struct select_args *a)
{
    struct select_args b = *a;
    size_t shared = sizeof(float) * (size_t)SCORE_KEYS * (size_t)(a->dim + 1 + a->heads);

    if (queue_skips(q, a->rows))
        return;
    if (a->dim % MAT_TILE != 0 || a->dim > DIM_MAX || a->keys.cols != a->dim ||
        a->dim % codec_block(a->keys.codec) != 0) {
        queue_fail(q, -EINVAL, "select: keys of %d values for queries of %d, want a multiple of %d",
                   a->keys.cols, a->dim, MAT_TILE);
        return;
    }
    if ((a->cand_in || a->cand_out) && (a->blocks < 1 || a->block < 1)) {
        queue_fail(q, -EINVAL, "select: %d candidate blocks of %d", a->blocks, a->block);
        return;
    }
    if (a->cand_in && a->cand_out) {
        queue_fail(q, -EINVAL, "select: candidates both read and written");
        return;
    }
    if (shared > (size_t)((struct cuda_device *)q->dev)->shared_max) {
        queue_fail(q, -EINVAL,
                   "select: %d heads of %d need %zu bytes of shared memory, a block has %d",
                   a->heads, a->dim, shared, ((struct cuda_device *)q->dev)->shared_max);
        return;
    }
    b.ratio = a->ratio > 1 ? a->ratio : 1;
    b.block = a->block > 0 ? a->block : 1;
    for (int r = 0; r < a->rows; r += CUDA_WORKERS) {
        unsigned rows = (unsigned)(a->rows - r < CUDA_WORKERS ? a->rows - r : CUDA_WORKERS);

        bool done = select_by_units(q, &b, r, (int)rows);

        if (!done)
            launch(q, score_entries, dim3(blocks_for((size_t)a->keys.cap, SCORE_KEYS), rows),
                   SCORE_THREADS, shared, b, r);
        if (!done || a->cand_out)
            launch(q, pick_entries, rows, PICK_THREADS, 0, b, r, !done);
    }
    queue_note(q, "select");
}
