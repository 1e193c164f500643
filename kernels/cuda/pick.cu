// pick.cu owns choices: the k best candidates of a row (op best), and the choice from whole rows
// (op choose; offer.cu has the choice from candidates): the sampler's filters and the keyed draw.
//
// Filters are prefixes of one order, larger logit first, then lower id (keys of order.cuh). A
// prefix is represented by the key of its last member, found by radix select, so only what top-p
// has to add up in order is sorted.
//   best     two-pass top-k: blocks select the k best of their parts, the row's last block of all
//   choose   choose_cut finds the prefix, choose_draw draws in parts, choose_end takes the winner
// Bound by the passes over the row, choose_draw by f64 arithmetic.
#include "kernels/cuda/sample.cuh"

#define BEST_THREADS 512
#define BEST_PART 2048 // logits of a part, a block each
#define CUT_THREADS 1024
#define DRAW_THREADS 256
#define DRAW_PARTS 32 // blocks that divide the draw of a row

// ---- candidates ---------------------------------------------------------------------------------

__device__ static uint64_t block_least(uint64_t key, uint64_t *part)
{
    for (int step = CUDA_WARP / 2; step > 0; step /= 2) {
        uint64_t o = __shfl_xor_sync(FULL_MASK, (unsigned long long)key, step);

        key = o < key ? o : key;
    }
    if (threadIdx.x % CUDA_WARP == 0)
        part[threadIdx.x / CUDA_WARP] = key;
    __syncthreads();
    key = part[0];
    for (int w = 1; w < (int)blockDim.x / CUDA_WARP; w++)
        key = part[w] < key ? part[w] : key;
    __syncthreads();
    return key;
}

__device__ static uint64_t logit_key(float z, int id)
{
    return z > -INFINITY ? order_key(order_word(z), (uint32_t)id) : KEY_NONE;
}

// What a launch of `best` works on: each part of a row leaves its `kept` best keys, and whether it
// has a NaN or +infinity.
struct ranking {
    struct best_args a;
    int parts, kept;
    uint64_t *key; // [rows][parts][kept]
    int32_t *bad;  // [rows][parts]
};

struct ranking_room {
    uint64_t key[BEST_PART], part[BEST_THREADS / CUDA_WARP];
    struct order_count count;
    int taken;
};
static_assert(BEST_PART >= TOPK_MAX, "candidates are sorted where a part was");

// Second pass: the row's candidates, from the keys that its parts have left.
__device__ static void rank_parts(const struct ranking &x, int row, struct ranking_room &m)
{
    const struct best_args &a = x.a;
    const uint64_t *left = x.key + (size_t)row * (size_t)(x.parts * x.kept);
    struct candidate *cand = a.cand + (size_t)row * (size_t)a.k;
    int all = x.parts * x.kept, room = pow2_at_least(a.k), bad = 0, finite = 0, n;
    uint64_t best = KEY_NONE;

    for (int i = threadIdx.x; i < x.parts; i += BEST_THREADS)
        bad |= __ldcg(x.bad + (size_t)row * (size_t)x.parts + (size_t)i);
    bad = __syncthreads_or(bad);
    for (int i = threadIdx.x; i < all; i += BEST_THREADS) {
        uint64_t k = __ldcg(left + i);

        finite += k != KEY_NONE;
        best = k < best ? k : best;
    }
    if (threadIdx.x == 0)
        m.taken = 0;
    __syncthreads();
    atomicAdd(&m.taken, finite);
    best = block_least(best, m.part); // its barriers also cover m.taken
    finite = m.taken;
    n = bad ? 0 : finite < a.k ? finite : a.k;
    __syncthreads();
    if (threadIdx.x == 0)
        m.taken = 0;
    for (int i = threadIdx.x; i < room; i += BEST_THREADS)
        m.key[i] = i == 0 && n == 1 ? best : KEY_NONE;
    __syncthreads();
    if (n > 1) {
        uint64_t cut = key_cut(
            all, n, [=](int i) { return __ldcg(left + i); }, &m.count);

        for (int i = threadIdx.x; i < all; i += BEST_THREADS) {
            uint64_t k = __ldcg(left + i);

            if (k <= cut)
                m.key[atomicAdd(&m.taken, 1)] = k;
        }
        key_sort(m.key, room);
    }
    for (int i = threadIdx.x; i < a.k; i += BEST_THREADS) {
        struct candidate c = { -INFINITY, -1 };

        if (i < n) {
            c.z = a.logits[(size_t)row * (size_t)a.cols + (size_t)key_id(m.key[i])];
            c.id = a.id0 + key_id(m.key[i]);
        } else if (bad && i == 0) {
            c.z = NAN;
        }
        cand[i] = c;
    }
}

// First pass: the `kept` best of the part's keys, in any order, KEY_NONE behind them.
__device__ static void keep_part(int kept, uint64_t *left, struct ranking_room &m)
{
    uint64_t cut = KEY_NONE - 1;
    int n = 0;

    for (int i = threadIdx.x; i < BEST_PART; i += BEST_THREADS)
        n += m.key[i] != KEY_NONE;
    if (threadIdx.x == 0)
        m.taken = 0;
    __syncthreads();
    atomicAdd(&m.taken, n);
    __syncthreads();
    n = m.taken;
    __syncthreads();
    if (threadIdx.x == 0)
        m.taken = 0;
    if (n > kept)
        cut = key_cut(
            BEST_PART, kept, [&](int i) { return m.key[i]; }, &m.count);
    __syncthreads();
    for (int i = threadIdx.x; i < BEST_PART; i += BEST_THREADS)
        if (m.key[i] <= cut)
            left[atomicAdd(&m.taken, 1)] = m.key[i];
    for (int i = n + (int)threadIdx.x; i < kept; i += BEST_THREADS)
        left[i] = KEY_NONE;
}

// Blocks in x are parts of a row, in y rows. The last block of a row to finish runs the second
// pass.
__global__ static void __launch_bounds__(BEST_THREADS)
    best_parts(const __grid_constant__ ranking x, int row0, uint32_t *tickets)
{
    dependency_wait();
    __shared__ struct ranking_room m;
    const struct best_args &a = x.a;
    int row = row0 + (int)blockIdx.y, first = (int)blockIdx.x * BEST_PART, wrong = 0;
    const float *z = a.logits + (size_t)row * (size_t)a.cols;
    size_t at = (size_t)row * (size_t)x.parts + blockIdx.x;
    uint64_t *left = x.key + at * (size_t)x.kept, best = KEY_NONE;

    for (int i = threadIdx.x; i < BEST_PART; i += BEST_THREADS) {
        int c = first + i;
        uint64_t k = c < a.cols ? logit_key(z[c], c) : KEY_NONE;

        wrong |= c < a.cols && !(z[c] < INFINITY);
        best = k < best ? k : best;
        m.key[i] = k;
    }
    wrong = __syncthreads_or(wrong);
    if (x.kept == 1) {
        best = block_least(best, m.part);
        if (threadIdx.x == 0)
            *left = best;
    } else {
        keep_part(x.kept, left, m);
    }
    if (threadIdx.x == 0)
        x.bad[at] = wrong;
    if (last_block(&tickets[blockIdx.y], gridDim.x))
        rank_parts(x, row, m);
}

extern "C" void cuda_best(struct queue *q, const struct best_args *a)
{
    struct ranking x = { *a, (a->cols + BEST_PART - 1) / BEST_PART, a->k, NULL, NULL };
    size_t row;

    if (queue_skips(q, a->rows))
        return;
    if (a->k < 1 || a->k > TOPK_MAX) {
        queue_fail(q, -EINVAL, "best: %d candidates, want 1 .. %d", a->k, TOPK_MAX);
        return;
    }
    x.parts = x.parts > 0 ? x.parts : 1;
    row = (size_t)x.parts * ((size_t)x.kept * sizeof(*x.key) + sizeof(*x.bad));
    if ((size_t)a->rows * row > cuda_lane(q)->scratch_bytes) {
        queue_fail(q, -EINVAL, "best: %d rows of %d need %zu bytes of scratch, there are %zu",
                   a->rows, a->cols, (size_t)a->rows * row, cuda_lane(q)->scratch_bytes);
        return;
    }
    x.key = (uint64_t *)cuda_lane(q)->scratch;
    x.bad = (int32_t *)(x.key + (size_t)a->rows * (size_t)(x.parts * x.kept));
    for (int r = 0; r < a->rows; r += CUDA_TICKETS)
        launch(q, best_parts,
               dim3((unsigned)x.parts,
                    (unsigned)(a->rows - r < CUDA_TICKETS ? a->rows - r : CUDA_TICKETS)),
               BEST_THREADS, 0, x, r, cuda_lane(q)->tickets);
    queue_note(q, "best");
}

// ---- choose -------------------------------------------------------------------------------------

// The state of a row between the launches. The row's scratch is a ballot, then DRAW_PARTS lots,
// then a double for each mass chunk.
struct ballot {
    uint64_t cut;  // keys up to this one are in the draw
    double floor;  // and x = logit / temperature from here on (min-p)
    int32_t drawn; // whether a draw follows; else the choice is made
    int32_t pad;
};

struct ballots {
    struct choose_args a;
    size_t row_bytes; // of scratch
    int vocab, row0;
};

__device__ static char *ballot_scratch(const struct ballots &b, int row)
{
    return (char *)b.a.scratch + (size_t)(row - b.row0) * b.row_bytes;
}

__device__ static struct lot *ballot_lots(const struct ballots &b, int row)
{
    return (struct lot *)(ballot_scratch(b, row) + sizeof(struct ballot));
}

// The logit of a token in the gathered rows, full [ranks][rows][ldf].
__device__ static float logit_of(const struct choose_args &a, int row, int id)
{
    int rank = 0;

    while (id >= a.width[rank])
        id -= a.width[rank++];
    return a.full[((size_t)rank * (size_t)a.rows + (size_t)row) * (size_t)a.ldf + (size_t)id];
}

// Sum of exp over the vocabulary relative to its largest logit: a warp a chunk, chunks add in
// order. Thread 0 has the result.
__device__ static double vocabulary_mass(const struct ballots &b, int row, float most, double heat,
                                         double *share_of)
{
    int chunks = mass_chunks(b.vocab);
    double whole = 0;

    for (int k = (int)threadIdx.x / CUDA_WARP; k < chunks; k += CUT_THREADS / CUDA_WARP) {
        int first = k * MASS_CHUNK;
        int n = b.vocab - first < MASS_CHUNK ? b.vocab - first : MASS_CHUNK;
        struct chunk_mass c =
            chunk_weigh(n, heat, [=](int i) { return logit_of(b.a, row, first + i); });

        if (threadIdx.x % CUDA_WARP == 0)
            share_of[k] = chunk_share(c, most, heat);
    }
    __syncthreads();
    for (int k = 0; threadIdx.x == 0 && k < chunks; k++)
        whole += share_of[k];
    return whole;
}

// Shared memory of a block of choose_cut.
struct cut_room {
    struct order_count count;
    uint64_t key[CUT_THREADS];
    double term[CUT_THREADS];
    struct descent walk;
    double whole;
    int taken;
};

// Select and sort into m->key the keys that follow *last in the order, at most CUT_THREADS at a
// time and n in all, `before` of which were taken already. Returns how many; *last becomes their
// bound.
__device__ static int next_keys(const struct ballots &b, int row, int n, int before, uint64_t *last,
                                struct cut_room *m)
{
    int want = n - before < CUT_THREADS ? n - before : CUT_THREADS;
    uint64_t cut = key_cut(
        b.vocab, before + want, [=](int id) { return logit_key(logit_of(b.a, row, id), id); },
        &m->count);

    m->key[threadIdx.x] = KEY_NONE;
    if (threadIdx.x == 0)
        m->taken = 0;
    __syncthreads();
    for (int id = threadIdx.x; id < b.vocab; id += CUT_THREADS) {
        uint64_t key = logit_key(logit_of(b.a, row, id), id);

        if (key <= cut && (before == 0 || key > *last))
            m->key[atomicAdd(&m->taken, 1)] = key;
    }
    key_sort(m->key, CUT_THREADS);
    *last = cut;
    return want;
}

// The key of the last token that top-p keeps of the first n: the one at which the sum reaches
// top_p.
__device__ static uint64_t nucleus_cut(const struct ballots &b, int row, const struct sampler &s,
                                       int n, float peak, double heat, struct cut_room *m)
{
    double most = (double)peak / heat;
    bool is_cut = s.top_k > 0;
    uint64_t last = 0;

    if (threadIdx.x == 0)
        descent_begin(&m->walk);
    __syncthreads();
    if (is_cut) {
        for (int at = 0; at < n; at += CUT_THREADS) {
            int here = next_keys(b, row, n, at, &last, m);

            descent_mass(&m->walk, m->key, here, most, heat, m->term);
        }
        if (threadIdx.x == 0) {
            m->whole = m->walk.sum;
            m->walk.sum = 0;
        }
    } else {
        double *share_of = (double *)(ballot_lots(b, row) + DRAW_PARTS);
        double whole = vocabulary_mass(b, row, peak, heat, share_of);

        if (threadIdx.x == 0)
            m->whole = whole;
    }
    __syncthreads();
    last = 0;
    for (int at = 0; at < n && !m->walk.done; at += CUT_THREADS) {
        int here = next_keys(b, row, n, at, &last, m);

        descent_reach(&m->walk, m->key, here, most, heat, m->whole, s.top_p, m->term);
        if (m->walk.done)
            last = m->key[m->walk.left - 1 - at];
        __syncthreads();
    }
    return last;
}

// A block a row: the choice of a greedy row, or the prefix and floor of the draw of a sampled one.
__global__ static void choose_cut(struct ballots b)
{
    dependency_wait();
    __shared__ struct cut_room m;
    __shared__ uint64_t part[CUT_THREADS / CUDA_WARP];
    __shared__ int bad, finite;
    const struct choose_args &a = b.a;
    int row = b.row0 + (int)blockIdx.x, n = 0, wrong = 0;
    struct sampler s = a.sampler[a.info[row].slot];
    struct ballot *out = (struct ballot *)ballot_scratch(b, row);
    uint64_t best = KEY_NONE, cut = KEY_NONE - 1;
    double heat = sampler_heat(&s), most;

    if (!sampler_draws(&s)) {
        if (threadIdx.x == 0) {
            out->drawn = 0;
            a.choice[row] = offered_best(a, row);
        }
        return;
    }
    if (threadIdx.x == 0)
        bad = finite = 0;
    __syncthreads();
    for (int id = threadIdx.x; id < b.vocab; id += CUT_THREADS) {
        float z = logit_of(a, row, id);
        uint64_t key = logit_key(z, id);

        wrong |= !(z < INFINITY);
        n += key != KEY_NONE;
        best = key < best ? key : best;
    }
    atomicOr(&bad, wrong);
    atomicAdd(&finite, n);
    best = block_least(best, part);
    n = finite;
    if (bad || n == 0) {
        if (threadIdx.x == 0) {
            out->drawn = 0;
            a.choice[row] = -1;
        }
        return;
    }
    most = scaled(best, heat);
    if (s.top_k > 0 && s.top_k < n) {
        n = s.top_k;
        if (!sampler_has_top_p(&s))
            cut = key_cut(
                b.vocab, n, [=](int id) { return logit_key(logit_of(b.a, row, id), id); },
                &m.count);
    }
    if (sampler_has_top_p(&s))
        cut = nucleus_cut(b, row, s, n, order_value(key_word(best)), heat, &m);
    if (threadIdx.x == 0) {
        out->cut = cut;
        out->floor = s.min_p > 0 ? most + det_log(s.min_p) : -INFINITY;
        out->drawn = 1;
    }
}

// Blocks in x are DRAW_PARTS parts of the vocabulary, in y rows. Bound by f64 arithmetic.
__global__ static void choose_draw(struct ballots b)
{
    dependency_wait();
    __shared__ struct lot part[DRAW_THREADS / CUDA_WARP];
    const struct choose_args &a = b.a;
    int row = b.row0 + (int)blockIdx.y;
    struct ballot w = *(const struct ballot *)ballot_scratch(b, row);
    struct row_info info = a.info[row];
    struct sampler s = a.sampler[info.slot];
    double heat = sampler_heat(&s);
    struct lot best = { 0, -1 };

    if (!w.drawn)
        return;
    for (int id = (int)(blockIdx.x * DRAW_THREADS + threadIdx.x); id < b.vocab;
         id += DRAW_PARTS * DRAW_THREADS) {
        uint64_t key = logit_key(logit_of(a, row, id), id);
        double x = scaled(key, heat);

        if (key <= w.cut && key != KEY_NONE && !(x < w.floor)) {
            struct lot l = lot_of(s, x, (uint64_t)(info.pos + 1), id);

            best = lot_beats(l, best) ? l : best;
        }
    }
    best = lot_best(best, part);
    if (threadIdx.x == 0)
        ballot_lots(b, row)[blockIdx.x] = best;
}

// One warp takes the winners of all rows of the launch. The first row that has no choice is
// reported.
__global__ static void choose_end(struct ballots b, int rows, struct cuda_alarm alarm)
{
    dependency_wait();
    const struct choose_args &a = b.a;

    for (int row = b.row0; row < b.row0 + rows; row++) {
        const struct ballot *w = (const struct ballot *)ballot_scratch(b, row);
        struct row_info info = a.info[row];
        int choice;

        if (w->drawn) {
            struct lot l = ballot_lots(b, row)[threadIdx.x];

            for (int step = CUDA_WARP / 2; step > 0; step /= 2) {
                struct lot o = { __shfl_xor_sync(FULL_MASK, l.v, step),
                                 __shfl_xor_sync(FULL_MASK, l.id, step) };

                l = lot_beats(o, l) ? o : l;
            }
            if (threadIdx.x == 0)
                a.choice[row] = l.id;
        }
        if (threadIdx.x > 0)
            continue;
        choice = a.choice[row];
        if (choice < 0)
            alarm_set(alarm, FAULT_LOGITS, info.slot, row, info.pos, 0, 0);
    }
}

static void choose_whole(struct queue *q, const struct choose_args *a, int vocab)
{
    struct ballots b = { *a, choose_scratch((size_t)vocab), vocab, 0 };

    static_assert(DRAW_PARTS == CUDA_WARP, "a lot a lane of choose_end");
    for (; b.row0 < a->rows; b.row0 += CUDA_WORKERS) {
        int rows = a->rows - b.row0 < CUDA_WORKERS ? a->rows - b.row0 : CUDA_WORKERS;

        launch(q, choose_cut, rows, CUT_THREADS, 0, b);
        launch(q, choose_draw, dim3(DRAW_PARTS, (unsigned)rows), DRAW_THREADS, 0, b);
        launch(q, choose_end, 1, CUDA_WARP, 0, b, rows, cuda_queue(q)->alarm);
    }
}

extern "C" void cuda_choose(struct queue *q, const struct choose_args *args)
{
    struct choose_args a = *args;
    int vocab = 0;

    if (queue_skips(q, a.rows))
        return;
    for (int i = 0; i < a.ranks && i < RANKS_MAX; i++)
        vocab += a.width[i];
    a.k = a.k ? a.k : 1;
    if (a.stride == 0)
        a.stride = (size_t)a.rows * (size_t)a.k * sizeof(struct candidate);
    if (a.ranks < 1 || a.ranks > RANKS_MAX || a.k < 0 ||
        2 * sizeof(uint64_t) * (size_t)a.ranks * (size_t)a.k > choose_scratch((size_t)vocab)) {
        queue_fail(q, -EINVAL, "choose: %d ranks of %d candidates for a vocabulary of %d", a.ranks,
                   a.k, vocab);
        return;
    }
    if (a.full)
        choose_whole(q, &a, vocab);
    else
        choose_offered(q, &a, vocab);
    queue_note(q, "choose");
}
