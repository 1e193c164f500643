// markov.cu owns the drafter's chain over gathered candidates [ranks][rows][k]: each is corrected
// by the Markov term head[id] . embed[token before], then one is drawn, which is the token before
// of the next row. Everything of a row is in shared memory. Bound by latency: rows follow each
// other.
#include "kernels/cuda/sample.cuh"

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)
#define RANK_MAX 1024

struct chain {
    struct markov_args a;
    struct table embed, head;
    int n, room; // candidates of a row, and the power of two that holds them
};

struct chain_room {
    float prev[RANK_MAX], part[WARPS];
    double term[THREADS], whole;
    struct descent walk;
    struct lot lot[WARPS];
    uint64_t least[WARPS];
    int bad, valid;
    int32_t before;
};

// Add the Markov term to the candidates of row r: keys [room], and values z [n]. A warp a
// candidate. Leaves the number of finite ones in m->valid, and 1 in m->bad if a candidate is not
// finite.
__device__ static void refine(const struct chain &x, int r, uint64_t *key, float *z,
                              struct chain_room *m)
{
    const struct markov_args &a = x.a;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;

    for (int i = threadIdx.x; i < x.room; i += THREADS)
        key[i] = KEY_NONE;
    if (threadIdx.x == 0)
        m->bad = m->valid = 0;
    __syncthreads();
    for (int i = warp; i < x.n; i += WARPS) {
        struct candidate c = a.cand[((size_t)(i / a.k) * (size_t)a.rows + (size_t)r) * (size_t)a.k +
                                    (size_t)(i % a.k)];
        float sum = 0;

        if (c.id >= 0 && c.id < x.head.rows)
            for (int k = lane; k < x.head.cols; k += CUDA_WARP)
                sum = fmaf(stored_value(x.head.dtype, x.head.data,
                                        (size_t)c.id * (size_t)x.head.cols + (size_t)k),
                           m->prev[k], sum);
        sum = warp_sum(sum);
        if (lane > 0)
            continue;
        if (c.id >= 0)
            c.z += sum;
        z[i] = c.z;
        if (c.z != c.z || (c.id >= 0 && !(fabsf(c.z) < INFINITY)))
            atomicOr(&m->bad, 1);
        else if (c.id >= 0) {
            atomicAdd(&m->valid, 1);
            key[i] = order_key(order_word(c.z), (uint32_t)c.id);
        }
    }
    __syncthreads();
}

// proj . [h ; embed[prev]], the same in every thread
__device__ static float confidence(const struct chain &x, int r, struct chain_room *m)
{
    const struct markov_args &a = x.a;
    const float *h = a.h + (size_t)r * (size_t)a.dim;
    float sum = 0;

    if (x.embed.cols == 0)
        return 0;
    for (int c = threadIdx.x; c < a.dim; c += THREADS)
        sum = fmaf(a.proj[c], h[c], sum);
    for (int k = threadIdx.x; k < x.embed.cols; k += THREADS)
        sum = fmaf(a.proj[a.dim + k], m->prev[k], sum);
    return block_sum<WARPS>(sum, m->part);
}

// Sort the keys of a row, of which m->valid are real, and choose the draft: greedy, or filtered and
// drawn. Thread 0 has the result.
__device__ static int32_t chain_pick(const struct chain &x, const struct sampler &s, uint64_t pos,
                                     uint64_t *key, struct chain_room *m)
{
    double heat = sampler_heat(&s), most, floor;
    struct lot best = { 0, -1 };
    int n = m->valid;

    key_sort(key, x.room);
    if (!(s.temperature > 0))
        return key_id(key[0]);
    most = scaled(key[0], heat);
    n = s.top_k > 0 && s.top_k < n ? s.top_k : n;
    if (sampler_has_top_p(&s)) {
        if (threadIdx.x == 0)
            descent_begin(&m->walk);
        __syncthreads();
        descent_mass(&m->walk, key, n, most, heat, m->term);
        if (threadIdx.x == 0) {
            m->whole = m->walk.sum;
            m->walk.sum = 0;
        }
        __syncthreads();
        descent_reach(&m->walk, key, n, most, heat, m->whole, s.top_p, m->term);
        n = m->walk.left;
    }
    floor = s.min_p > 0 ? most + det_log(s.min_p) : -INFINITY;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        double v = scaled(key[i], heat);

        if (!(v < floor)) {
            struct lot l = lot_of(s, v, pos, key_id(key[i]));

            best = lot_beats(l, best) ? l : best;
        }
    }
    return lot_best(best, m->lot).id; // thread 0's
}

// A block takes the rows of a slot one after the other: row i + 1 needs the draft of row i. From a
// row with a value that is not finite, or without a candidate, on, the slot's rows propose nothing.
__global__ static void markov_chains(struct chain x)
{
    dependency_wait();
    extern __shared__ uint64_t key[]; // [room], then z [n] f32
    __shared__ struct chain_room m;
    const struct markov_args &a = x.a;
    float *z = (float *)(key + x.room);
    int first = (int)blockIdx.x * a.block;

    if (threadIdx.x == 0)
        m.before = a.info[first].tok;
    __syncthreads();
    for (int r = first; r < first + a.block; r++) {
        struct row_info info = a.info[r];
        struct candidate *out = a.z ? a.z + (size_t)r * (size_t)x.n : NULL,
                         none = { -INFINITY, -1 };
        int32_t before = m.before, draft = -1;
        float conf = NAN;
        bool lives = before >= 0 && (before < x.embed.rows || x.embed.cols == 0);

        for (int k = threadIdx.x; lives && k < x.embed.cols; k += THREADS)
            m.prev[k] = stored_value(x.embed.dtype, x.embed.data,
                                     (size_t)before * (size_t)x.embed.cols + (size_t)k);
        __syncthreads();
        if (lives)
            refine(x, r, key, z, &m);
        lives = lives && !m.bad && m.valid > 0;
        for (int i = threadIdx.x; out && i < x.n; i += THREADS) {
            struct candidate c =
                a.cand[((size_t)(i / a.k) * (size_t)a.rows + (size_t)r) * (size_t)a.k +
                       (size_t)(i % a.k)];

            c.z = lives ? z[i] : 0;
            out[i] = lives ? c : none;
        }
        if (lives) {
            conf = confidence(x, r, &m);
            draft = chain_pick(x, a.sampler[info.slot],
                               (uint64_t)(a.info[first].pos + 1 + (r - first)), key, &m);
        }
        if (threadIdx.x == 0) {
            a.draft[r] = draft;
            a.conf[r] = conf;
            m.before = draft;
        }
        __syncthreads();
    }
}

extern "C" cudaError_t cuda_markov_limits(int shared_max)
{
    return shared_room(markov_chains, shared_max);
}

extern "C" void cuda_markov(struct queue *q, const struct markov_args *a)
{
    struct chain x = { *a, {}, {}, a->ranks * a->k, 0 };
    size_t shared, most;

    if (queue_skips(q, a->rows))
        return;
    if (a->embed)
        x.embed = *a->embed;
    if (a->head)
        x.head = *a->head;
    if (a->ranks < 1 || a->ranks > RANKS_MAX || a->k < 1 || a->k > TOPK_MAX || a->block < 1 ||
        a->rows % a->block != 0 || x.embed.cols > RANK_MAX || x.head.cols != x.embed.cols) {
        queue_fail(q, -EINVAL,
                   "markov: %d rows in blocks of %d, %d ranks of %d candidates, rank %d", a->rows,
                   a->block, a->ranks, a->k, x.embed.cols);
        return;
    }
    x.room = pow2_at_least(x.n);
    shared = sizeof(uint64_t) * (size_t)x.room + sizeof(float) * (size_t)x.n;
    most = (size_t)((struct cuda_device *)q->dev)->shared_max - sizeof(struct chain_room);
    if (shared > most) {
        queue_fail(q, -EINVAL,
                   "markov: %d candidates need %zu bytes of shared memory, a block has %zu", x.n,
                   shared, most);
        return;
    }
    launch(q, markov_chains, (unsigned)(a->rows / a->block), THREADS, shared, x);
    queue_note(q, "markov");
}
