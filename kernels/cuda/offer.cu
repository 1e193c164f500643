// offer.cu owns what a rank offers for its share of a row besides its best logits (the winner of
// the draw, the masses of chunks), and what all ranks make of the gathered offers: choices where
// candidates decide them, and logprobs. Candidates are [ranks][rows][k], masses [ranks][rows][ldm],
// rank stride apart. Draws and masses are bound by f64 arithmetic, the rest by latency.
#include "kernels/cuda/sample.cuh"

#define DRAW_THREADS 256
#define DRAW_PARTS CUDA_WARP // blocks that share the draw of a row
#define MASS_WARPS 8
#define ROW_THREADS 256
#define SURE 1e-9 // a sum of probabilities this close to top-p is left to the step with whole rows

// ---- draw ---------------------------------------------------------------------------------------

static_assert(DRAW_PARTS * sizeof(struct lot) <= DRAW_SCRATCH, "lots of a row");

__device__ static struct lot *draw_lots(const struct draw_args &a, int row)
{
    return (struct lot *)((char *)a.scratch + (size_t)row * DRAW_SCRATCH);
}

// Draw for rows without a filter: blocks in x are DRAW_PARTS parts of the vocabulary's share, in y
// rows. Bound by f64 arithmetic.
__global__ static void draw_parts(struct draw_args a)
{
    dependency_wait();
    __shared__ struct lot part[DRAW_THREADS / CUDA_WARP];
    int row = (int)blockIdx.y;
    struct row_info info = a.info[row];
    struct sampler s = a.sampler[info.slot];
    const float *z = a.logits + (size_t)row * (size_t)a.cols;
    double heat = sampler_heat(&s);
    struct lot best = { 0, -1 };

    if (!sampler_is_plain(&s))
        return;
    for (int c = (int)(blockIdx.x * DRAW_THREADS + threadIdx.x); c < a.cols;
         c += DRAW_PARTS * DRAW_THREADS)
        if (z[c] > -INFINITY) {
            struct lot l = lot_of(s, (double)z[c] / heat, (uint64_t)(info.pos + 1), a.id0 + c);

            best = lot_beats(l, best) ? l : best;
        }
    best = lot_best(best, part);
    if (threadIdx.x == 0)
        draw_lots(a, row)[blockIdx.x] = best;
}

// The winner of a row's parts becomes its first candidate. A block of one warp a row.
__global__ static void draw_end(struct draw_args a)
{
    dependency_wait();
    int row = (int)blockIdx.x;
    struct candidate *c = a.cand + (size_t)row * (size_t)a.k;
    struct lot l;

    if (!sampler_is_plain(&a.sampler[a.info[row].slot]) || c->id < 0)
        return;
    l = draw_lots(a, row)[threadIdx.x];
    for (int step = CUDA_WARP / 2; step > 0; step /= 2) {
        struct lot o = { __shfl_xor_sync(FULL_MASK, l.v, step),
                         __shfl_xor_sync(FULL_MASK, l.id, step) };

        l = lot_beats(o, l) ? o : l;
    }
    __syncwarp();
    if (threadIdx.x == 0) {
        c->id = l.id;
        c->z = a.logits[(size_t)row * (size_t)a.cols + (size_t)(l.id - a.id0)];
    }
}

extern "C" void cuda_draw(struct queue *q, const struct draw_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    launch(q, draw_parts, dim3(DRAW_PARTS, (unsigned)a->rows), DRAW_THREADS, 0, *a);
    launch(q, draw_end, a->rows, CUDA_WARP, 0, *a);
    queue_note(q, "draw");
}

// ---- mass ---------------------------------------------------------------------------------------

// A warp a chunk, blocks in y are rows. Bound by f64 arithmetic.
__global__ static void mass_chunks_of(struct mass_args a)
{
    dependency_wait();
    int row = (int)blockIdx.y, first;
    int k = (int)(blockIdx.x * MASS_WARPS + threadIdx.x / CUDA_WARP);
    const struct sampler *s = &a.sampler[a.info[row].slot];
    const float *z = a.logits + (size_t)row * (size_t)a.cols;
    struct chunk_mass c;
    int n, pick;

    if (k >= mass_chunks(a.cols) || (a.pick ? s->logprobs <= 0 : !sampler_weighs(s)))
        return;
    first = k * MASS_CHUNK;
    n = a.cols - first < MASS_CHUNK ? a.cols - first : MASS_CHUNK;
    c = chunk_weigh(n, a.pick ? 1 : sampler_heat(s), [=](int i) { return z[first + i]; });
    if (threadIdx.x % CUDA_WARP != 0)
        return;
    pick = a.pick ? a.pick[row] - a.id0 : -1;
    if (pick >= first && pick < first + n)
        c.z = z[pick];
    a.mass[(size_t)row * (size_t)a.ld + (size_t)k] = c;
}

extern "C" void cuda_mass(struct queue *q, const struct mass_args *a)
{
    dim3 grid(blocks_for((size_t)mass_chunks(a->cols), MASS_WARPS), (unsigned)a->rows);

    if (queue_skips(q, a->rows))
        return;
    if (a->id0 % MASS_CHUNK != 0 || mass_chunks(a->cols) > a->ld) {
        queue_fail(q, -EINVAL,
                   "mass: ids %d .. %d do not begin with a chunk of %d, or are more than %d",
                   a->id0, a->id0 + a->cols - 1, MASS_CHUNK, a->ld);
        return;
    }
    if (a->cols <= 0)
        return;
    launch(q, mass_chunks_of, grid, MASS_WARPS * CUDA_WARP, 0, *a);
    queue_note(q, "mass");
}

// Shared memory of a block that adds up the masses of a row.
struct weighing {
    double term[ROW_THREADS], whole;
    float peak[ROW_THREADS / CUDA_WARP], z[ROW_THREADS / CUDA_WARP];
};

// *peak: the largest logit of all chunks of a row; *z: that of the token asked for. The same in
// every thread.
__device__ static void gathered_peak(const struct chunk_mass *mass, const int *width, int ranks,
                                     int row, int ldm, size_t stride, struct weighing *w,
                                     float *peak, float *z)
{
    int warp = (int)threadIdx.x / CUDA_WARP;
    float most = -INFINITY, asked = -INFINITY;

    for (int i = 0; i < ranks; i++) {
        const struct chunk_mass *m = offer_part(mass, i, stride) + (size_t)row * (size_t)ldm;

        for (int c = threadIdx.x; c < mass_chunks(width[i]); c += ROW_THREADS) {
            most = m[c].peak > most ? m[c].peak : most;
            asked = m[c].z > asked ? m[c].z : asked;
        }
    }
    most = warp_max(most);
    asked = warp_max(asked);
    if (threadIdx.x % CUDA_WARP == 0) {
        w->peak[warp] = most;
        w->z[warp] = asked;
    }
    __syncthreads();
    *peak = *z = -INFINITY;
    for (int i = 0; i < ROW_THREADS / CUDA_WARP; i++) {
        *peak = w->peak[i] > *peak ? w->peak[i] : *peak;
        *z = w->z[i] > *z ? w->z[i] : *z;
    }
}

// Sum of exp over the vocabulary relative to logit `most`: chunks add in order. The same in every
// thread.
__device__ static double gathered_mass(const struct chunk_mass *mass, const int *width, int ranks,
                                       int row, int ldm, size_t stride, float most, double heat,
                                       struct weighing *w)
{
    if (threadIdx.x == 0)
        w->whole = 0;
    for (int i = 0; i < ranks; i++) {
        const struct chunk_mass *m = offer_part(mass, i, stride) + (size_t)row * (size_t)ldm;
        int chunks = mass_chunks(width[i]);

        for (int first = 0; first < chunks; first += ROW_THREADS) {
            int c = first + (int)threadIdx.x;

            if (c < chunks)
                w->term[threadIdx.x] = chunk_share(m[c], most, heat);
            __syncthreads();
            for (int j = 0; threadIdx.x == 0 && j < ROW_THREADS && first + j < chunks; j++)
                w->whole += w->term[j];
            __syncthreads();
        }
    }
    __syncthreads();
    return w->whole;
}

// ---- choose -------------------------------------------------------------------------------------

struct offers {
    struct choose_args a;
    size_t row_bytes; // of scratch
    int row0, room;   // power of two that holds the candidates of a row
};

struct offer_room {
    struct weighing weighing;
    struct descent walk;
    struct lot lot[ROW_THREADS / CUDA_WARP];
    unsigned long long bound; // keys up to this one are complete; KEY_NONE: all keys were offered
    int bad, n;
};

// The candidates of all ranks for a row, as sorted keys.
__device__ static void poll(const struct offers &o, int row, uint64_t *key, struct offer_room *m)
{
    const struct choose_args &a = o.a;

    if (threadIdx.x == 0) {
        m->bad = m->n = 0;
        m->bound = KEY_NONE;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < o.room; i += ROW_THREADS) {
        int rank = i / a.k, at = i % a.k;
        struct candidate c = { 0, -1 };

        if (rank < a.ranks)
            c = offer_part(a.best, rank, a.stride)[(size_t)row * (size_t)a.k + (size_t)at];
        key[i] = c.id < 0 ? KEY_NONE : order_key(order_word(c.z), (uint32_t)c.id);
        if (c.z != c.z)
            m->bad = 1;
        if (c.id < 0)
            continue;
        atomicAdd(&m->n, 1);
        if (at == a.k - 1 && a.k < a.width[rank])
            atomicMin(&m->bound, (unsigned long long)key[i]);
    }
    key_sort(key, o.room);
}

// How many of the sorted keys the filters leave to draw from; CHOICE_OPEN if candidates cannot
// decide it. The same in every thread.
__device__ static int filter(const struct offers &o, int row, const struct sampler &s,
                             const uint64_t *key, double floor, struct offer_room *m)
{
    const struct choose_args &a = o.a;
    double heat = sampler_heat(&s), whole;
    float most = order_value(key_word(key[0])), peak, z;
    int n = m->n, above = m->bound == KEY_NONE || floor > scaled(m->bound, heat);

    if (s.top_k > 0) {
        if (m->bound != KEY_NONE && s.top_k > a.k)
            return CHOICE_OPEN;
        n = s.top_k < n ? s.top_k : n;
    }
    if (!sampler_has_top_p(&s))
        return s.top_k > 0 || above ? n : CHOICE_OPEN;
    if (threadIdx.x == 0)
        descent_begin(&m->walk);
    __syncthreads();
    if (s.top_k > 0) {
        descent_mass(&m->walk, key, n, (double)most / heat, heat, m->weighing.term);
        whole = m->walk.sum;
        __syncthreads();
        if (threadIdx.x == 0)
            m->walk.sum = 0;
        __syncthreads();
    } else {
        if (!a.mass)
            return CHOICE_OPEN;
        gathered_peak(a.mass, a.width, a.ranks, row, a.ldm, a.stride, &m->weighing, &peak, &z);
        whole =
            gathered_mass(a.mass, a.width, a.ranks, row, a.ldm, a.stride, most, heat, &m->weighing);
        if (!(whole > 0 && whole < INFINITY) || peak != most)
            return CHOICE_OPEN;
    }
    descent_reach(&m->walk, key, n, (double)most / heat, heat, whole, s.top_p, m->weighing.term);
    n = m->walk.left;
    if (s.top_k > 0)
        return n;
    if (m->walk.near <= SURE)
        return CHOICE_OPEN;
    if (!above && (key[n - 1] >= m->bound || key_word(key[n - 1]) == key_word(m->bound)))
        return CHOICE_OPEN;
    return n;
}

// The choice of a row without a filter, where each rank's first candidate is the winner of its
// draw.
__device__ static int32_t choose_plain(const struct choose_args &a, int row,
                                       const struct sampler &s)
{
    struct lot best = { 0, -1 };

    for (int i = 0; i < a.ranks; i++) {
        struct candidate c = offer_part(a.best, i, a.stride)[(size_t)row * (size_t)a.k];
        struct lot l = { 0, -1 };

        if (c.z != c.z)
            return -1;
        if (c.id >= 0)
            l = lot_of(s, (double)c.z / sampler_heat(&s), (uint64_t)(a.info[row].pos + 1), c.id);
        best = lot_beats(l, best) ? l : best;
    }
    return best.id;
}

// The choice of a row from candidates. A block a row; keys lie in the row's scratch. Bound by
// latency.
__global__ static void choose_rows(struct offers o)
{
    dependency_wait();
    __shared__ struct offer_room m;
    const struct choose_args &a = o.a;
    int row = o.row0 + (int)blockIdx.x, n;
    struct sampler s = a.sampler[a.info[row].slot];
    uint64_t *key = (uint64_t *)((char *)a.scratch + (size_t)blockIdx.x * o.row_bytes);
    double heat = sampler_heat(&s), floor = -INFINITY;
    struct lot best = { 0, -1 };

    if (!sampler_draws(&s) || sampler_is_plain(&s)) {
        if (threadIdx.x == 0)
            a.choice[row] = sampler_draws(&s) ? choose_plain(a, row, s) : offered_best(a, row);
        return;
    }
    poll(o, row, key, &m);
    if (m.bad || m.n == 0) {
        if (threadIdx.x == 0)
            a.choice[row] = -1;
        return;
    }
    if (s.min_p > 0)
        floor = scaled(key[0], heat) + det_log(s.min_p);
    n = filter(o, row, s, key, floor, &m);
    if (n < 0) {
        if (threadIdx.x == 0)
            a.choice[row] = n;
        return;
    }
    for (int i = threadIdx.x; i < n; i += ROW_THREADS) {
        double v = scaled(key[i], heat);

        if (!(v < floor)) {
            struct lot l = lot_of(s, v, (uint64_t)(a.info[row].pos + 1), key_id(key[i]));

            best = lot_beats(l, best) ? l : best;
        }
    }
    best = lot_best(best, m.lot);
    if (threadIdx.x == 0)
        a.choice[row] = best.id;
}

// Report the first row that has no choice. One thread.
__global__ static void choose_check(struct choose_args a, struct cuda_alarm alarm)
{
    dependency_wait();
    for (int row = 0; row < a.rows; row++) {
        struct row_info info = a.info[row];

        if (a.choice[row] < 0 && a.choice[row] != CHOICE_OPEN)
            alarm_set(alarm, FAULT_LOGITS, info.slot, row, info.pos, 0, 0);
    }
}

void choose_offered(struct queue *q, const struct choose_args *a, int vocab)
{
    struct offers o = { *a, choose_scratch((size_t)vocab), 0, pow2_at_least(a->ranks * a->k) };

    for (; o.row0 < a->rows; o.row0 += CUDA_WORKERS) {
        int rows = a->rows - o.row0 < CUDA_WORKERS ? a->rows - o.row0 : CUDA_WORKERS;

        launch(q, choose_rows, rows, ROW_THREADS, 0, o);
    }
    launch(q, choose_check, 1, 1, 0, *a, cuda_queue(q)->alarm);
}

// ---- logprob ------------------------------------------------------------------------------------

// Merge the ranks' sorted candidates into the n best; returns how many there are. One thread.
__device__ static int merge(const struct logprob_args &a, int row, int n, struct candidate *out)
{
    int at[RANKS_MAX] = { 0 }, taken = 0;

    for (; taken < n; taken++) {
        struct candidate top = { 0, -1 };
        int from = -1;

        for (int i = 0; i < a.ranks; i++) {
            struct candidate c = { 0, -1 };

            if (at[i] < a.k)
                c = offer_part(a.best, i, a.stride)[(size_t)row * (size_t)a.k + (size_t)at[i]];
            if (c.id >= 0 && (top.id < 0 || c.z > top.z || (c.z == top.z && c.id < top.id))) {
                top = c;
                from = i;
            }
        }
        if (from < 0)
            break;
        at[from]++;
        out[taken] = top;
    }
    return taken;
}

// The logprobs of a row, from gathered masses and candidates. A block a row. Bound by latency.
__global__ static void logprob_rows(struct logprob_args a)
{
    dependency_wait();
    __shared__ struct weighing w;
    __shared__ struct candidate best[LOGPROBS_MAX];
    int row = (int)blockIdx.x, n;
    const struct sampler *s = &a.sampler[a.info[row].slot];
    struct logprobs *out = &a.out[row];
    double log_whole;
    float most, chosen;

    if (s->logprobs <= 0)
        return;
    gathered_peak(a.mass, a.width, a.ranks, row, a.ldm, a.stride, &w, &most, &chosen);
    log_whole = gathered_mass(a.mass, a.width, a.ranks, row, a.ldm, a.stride, most, 1, &w);
    if (threadIdx.x > 0)
        return;
    log_whole = det_log(log_whole);
    n = s->logprobs - 1 < LOGPROBS_MAX ? s->logprobs - 1 : LOGPROBS_MAX;
    out->chosen = ((double)chosen - (double)most) - log_whole;
    out->n = merge(a, row, n, best);
    for (int i = 0; i < out->n; i++) {
        out->id[i] = best[i].id;
        out->top[i] = ((double)best[i].z - (double)most) - log_whole;
    }
}

extern "C" void cuda_logprob(struct queue *q, const struct logprob_args *a)
{
    if (queue_skips(q, a->rows))
        return;
    if (a->ranks < 1 || a->ranks > RANKS_MAX || a->k < 1) {
        queue_fail(q, -EINVAL, "logprob: %d ranks of %d candidates", a->ranks, a->k);
        return;
    }
    launch(q, logprob_rows, a->rows, ROW_THREADS, 0, *a);
    queue_note(q, "logprob");
}
