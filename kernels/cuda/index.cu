// index.cu owns the indexer where keys and queries are values of QI: scores by matrix instructions
// (mma), and an exact top-k by radix select.
//
//   score_keys   for rows of many entries, a grid over all multiprocessors: order words of all
//                competing entries and a histogram of their first digits; score_lots where bulk
//                copies can bring the keys (index_score.cuh)
//   pick_gang    a cluster a row. Rows of few entries it scores itself. Its first block gets a list
//                of the words that can still be among the best, ascending by entry (of few entries
//                all of them, else what the first digit leaves), and finds the bound digit by
//                digit. If the list has no room for them, the blocks of the cluster count their
//                shares of the words and add up the histograms
//
// Products of QI values are exact in f32 and in bf16 operands, so the sum over a head's values is
// that of the reference as long as it is exact; heads are added in index order, multiply then add.
#include <cooperative_groups.h>

#include "kernels/cuda/index_score.cuh"

#define GANG 8
#define FEW 4096                        // entries of a list
#define OWN_MOST (FEW / THREADS)        // entries of a full list that a thread has
#define OWN_FEW 2                       // of a short list, most of which is taken
#define RUN (DIGITS / THREADS)          // digits of a thread
#define LEVELS 3                        // digits that have bins of their own
#define STRETCH (CUDA_WARP * CUDA_WARP) // words that a warp scans at a time
// Words that a warp can hold in shared memory until their places in the list are known.
#define KEPT (DIGITS / WARPS / 2)
#define SHARED_STATIC 1024 // at least what pick_gang has beside its dynamic memory

// How many entries of the field a row takes: 0 if it takes all visible ones, without scores.
__device__ static int taken_of(const struct select_args &a, const struct field &f)
{
    return f.n <= a.topk ? 0 : a.topk < f.size ? a.topk : f.size;
}

// Where word i of a list lies: a word of padding behind each 32 keeps the runs of different threads
// in different banks.
__device__ __host__ static inline int word_at(int i)
{
    return i + i / CUDA_WARP;
}

#define LIST_WORDS (FEW + FEW / CUDA_WARP + 4)

struct pick_room {
    __align__(8) float wt[HEADS_MAX];
    uint64_t told, listed; // mbarriers: the counts of all blocks are here, the list is here
    struct field f;
    int warp[WARPS], digit, left, here; // the digit found, words wanted of it, words it has
    __align__(8) int found[GANG][2];    // of each block: words of the list, or sure ones and ties
    union {
        __align__(16) uint2 list[LIST_WORDS]; // words, and their places in the row's field
        // of all entries; behind them lies what scores them, later the bins
        __align__(16) uint32_t word[LIST_WORDS];
    };
    __align__(16) uint32_t bin[LEVELS][DIGITS]; // histograms, of the list or of the cluster
    __align__(16) uint32_t mine[DIGITS];        // of this block's words, for the cluster's
};

// What is known of the bound, the last word that is taken: the first `known` bits of its
// complement. `left` words are still wanted of the `here` that begin so.
struct bound {
    uint32_t prefix;
    int known, left, here;
};

__device__ static inline bool bound_above(const struct bound &b, uint32_t word)
{
    return b.known > 0 && ~word >> (32 - b.known) < b.prefix;
}

__device__ static inline bool bound_tie(const struct bound &b, uint32_t word)
{
    return b.known == 0 || ~word >> (32 - b.known) == b.prefix;
}

// Bits of the next digit.
__device__ static inline int bound_bits(const struct bound &b)
{
    return min(DIGIT_BITS, 32 - b.known);
}

// Exclusive prefix sum of `value` over the threads of the block; *total: the sum of all. One
// barrier; the caller places another before `part` is written again.
__device__ static inline int block_before(int value, int *part, int *total)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP, upto = value, of;

    for (int step = 1; step < CUDA_WARP; step *= 2) {
        int o = __shfl_up_sync(FULL_MASK, upto, step);

        upto += lane >= step ? o : 0;
    }
    if (lane == CUDA_WARP - 1)
        part[warp] = upto;
    __syncthreads();
    of = lane < WARPS ? part[lane] : 0;
    *total = __reduce_add_sync(FULL_MASK, of);
    return upto - value + __reduce_add_sync(FULL_MASK, lane < warp ? of : 0);
}

// The digit at which the running count of words reaches `left`, into m; n: counts of the thread's
// RUN digits.
__device__ static inline void digit_of(uint4 n, int left, struct pick_room &m)
{
    const int of[RUN] = { (int)n.x, (int)n.y, (int)n.z, (int)n.w };
    int sum = of[0] + of[1] + of[2] + of[3], total, before = block_before(sum, m.warp, &total);

    if (before < left && left <= before + sum) {
        left -= before;
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            if (left > 0 && left <= of[i]) {
                m.digit = (int)threadIdx.x * RUN + i;
                m.left = left;
                m.here = of[i];
            }
            left -= of[i];
        }
    }
    __syncthreads();
}
static_assert(RUN == 4, "a thread's digits are one load");

// The bound once the first digit is found. Words of an outer digit share no first bits: then all n
// words are left, and k of them are wanted.
__device__ static inline struct bound bound_first(int k, int n, const struct pick_room &m)
{
    int prefix = first_prefix(m.digit);

    return prefix < 0 ? (struct bound){ 0, 0, k, n }
                      : (struct bound){ (uint32_t)prefix, FIRST_BITS, m.left, m.here };
}

__device__ static inline void bound_next(struct bound *b, int bits, const struct pick_room &m)
{
    b->prefix = b->prefix << bits | (uint32_t)m.digit;
    b->known += bits;
    b->left = m.left;
    b->here = m.here;
}

__device__ static inline void bins_clear(uint32_t *bin, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        bin[i] = 0;
}

// Score n entries from `base` on; their words go to the first block's list, whose mbarrier counts
// the bytes.
template <int TILES>
__device__ static void words_score(const struct select_args &a, int r, int base, int n,
                                   struct pick_room &m)
{
    uint32_t *staged = m.word + LIST_WORDS;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    float *hits = (float *)(staged + TILES * 8 * QUERY_LINE) + warp * SIDE * HIT_LINE;
    const unsigned char *keys = slot_keys(a, r);
    struct side now;

    side_load(a, m.f, keys, base + warp * SIDE, &now);
    weights_stage(a, r, m.wt);
    queries_stage<TILES>(a.q + (size_t)r * (size_t)a.heads * DIM, a.heads, staged);
    __syncthreads();
#pragma unroll 1
    for (int at = warp * SIDE; at < n; at += WARPS * SIDE) {
        side_scores<TILES, false>(
            now, m.wt, [=](int h, int b) { return query_load(staged, h, b); },
            hits + lane / 4 * HIT_LINE, SIDE / 2);
        side_load(a, m.f, keys, base + at + WARPS * SIDE, &now);
        __syncwarp();
        if (lane < SIDE && at + lane < n)
            peer_send((float *)&m.word[word_at(base + at + lane)],
                      f32_from_bits(hits_word<TILES>(a, hits + lane * HIT_LINE)), &m.listed, 0);
        __syncwarp();
    }
}

// Load a warp's STRETCH words from `at` on, a lane every 32nd; 0 past the end.
__device__ static inline void words_load(const uint32_t *far, int at, int end,
                                         uint32_t (&w)[CUDA_WARP])
{
    int lane = (int)threadIdx.x % CUDA_WARP, left = end - at - lane;
    const uint32_t *from = held(far + at + lane); // one address for all loads

#pragma unroll
    for (int c = 0; c < CUDA_WARP; c++) {
        if (c % 8 == 0 && at + c * CUDA_WARP >= end)
            break;
        w[c] = c * CUDA_WARP < left ? __ldcg(from + c * CUDA_WARP) : 0;
    }
}

// A mask of the words 32 lane .. 32 lane + 31 of the stretch that are at least `least`, not 0.
__device__ static inline uint32_t words_mask(const uint32_t (&w)[CUDA_WARP], int at, int end,
                                             uint32_t least)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    uint32_t mine = 0;

#pragma unroll
    for (int c = 0; c < CUDA_WARP; c++) {
        uint32_t set;

        if (c % 8 == 0 && at + c * CUDA_WARP >= end)
            break;
        set = __ballot_sync(FULL_MASK, w[c] >= least);
        mine = lane == c ? set : mine;
    }
    return mine;
}

// Send the warp's words of at least `least` to the list from `place` on; `mask` says which of the
// first stretch they are. A lane sends those of 32 adjacent words.
__device__ static inline void list_fill(const uint32_t *far, int at, int end, uint32_t least,
                                        uint32_t mask, int place, struct pick_room &m,
                                        uint32_t (&w)[CUDA_WARP])
{
    int lane = (int)threadIdx.x % CUDA_WARP;

#pragma unroll 1
    for (;;) {
        int upto = __popc(mask), p;

        for (int step = 1; step < CUDA_WARP; step *= 2) {
            int o = __shfl_up_sync(FULL_MASK, upto, step);

            upto += lane >= step ? o : 0;
        }
        p = place + upto - __popc(mask);
        while (mask) { // four loads in flight
            int i[4];
            uint32_t word[4];

#pragma unroll
            for (int k = 0; k < 4; k++) {
                i[k] = mask ? at + lane * CUDA_WARP + __ffs((int)mask) - 1 : -1;
                word[k] = i[k] < 0 ? 0 : __ldcg(far + i[k]);
                mask &= mask - 1;
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (i[k] >= 0)
                    peer_send(&m.list[word_at(p + k)], make_uint2(word[k], (uint32_t)i[k]),
                              &m.listed, 0);
            p += 4;
        }
        place += __shfl_sync(FULL_MASK, upto, CUDA_WARP - 1);
        at += STRETCH;
        if (at >= end)
            break;
        words_load(far, at, end, w);
        mask = words_mask(w, at, end, least);
    }
}

// Gather the words of all blocks that are at least `least` in the first block's list, ascending by
// entry; w: each warp's first stretch. Returns how many there are. Until all blocks' counts are
// here a warp's words wait in bins that a list of this kind does not need.
__device__ static int list_make(const uint32_t *far, int base, int n, uint32_t least,
                                uint32_t (&w)[CUDA_WARP], struct pick_room &m)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP, all;
    int rank = (int)blockIdx.x;
    int run = (n + WARPS * CUDA_WARP - 1) / (WARPS * CUDA_WARP) * CUDA_WARP;
    int at = base + warp * run, end = min(at + run, base + n), mine = 0, place;
    uint2 *kept = (uint2 *)m.bin[LEVELS - 1] + warp * KEPT;

#pragma unroll 1
    for (int s = at;;) {
#pragma unroll
        for (int c = 0; c < CUDA_WARP; c++) {
            int i = s + c * CUDA_WARP;
            uint32_t set;

            if (c % 8 == 0 && i >= end)
                break;
            set = __ballot_sync(FULL_MASK, w[c] >= least);
            if (set) { // rare
                int to = mine + __popc(set & ((1u << lane) - 1));

                if (w[c] >= least && to < KEPT)
                    kept[to] = make_uint2(w[c], (uint32_t)(i + lane));
                mine += __popc(set);
            }
        }
        s += STRETCH;
        if (s >= end)
            break;
        words_load(far, s, end, w);
    }
    if (lane == 0)
        m.warp[warp] = mine;
    __syncthreads();
    all = __reduce_add_sync(FULL_MASK, lane < WARPS ? m.warp[lane] : 0);
    place = lane < warp ? m.warp[lane] : 0;
    gang_wait(); // all blocks of the cluster run
    if ((int)threadIdx.x < GANG)
        peer_send((uint2 *)m.found[rank], make_uint2((uint32_t)all, 0), &m.told, (int)threadIdx.x);
    barrier_wait(&m.told, 0);
    all = lane < GANG ? m.found[lane][0] : 0;
    place = __reduce_add_sync(FULL_MASK, place + (lane < rank ? all : 0));
    all = __reduce_add_sync(FULL_MASK, all);
    if (rank == 0 && threadIdx.x == 0)
        barrier_expect(&m.listed, all * (int)sizeof(uint2));
    if (mine <= KEPT) {
        for (int i = lane; i < mine; i += CUDA_WARP)
            peer_send(&m.list[word_at(place + i)], kept[i], &m.listed, 0);
    } else {
        words_load(far, at, end, w);
        list_fill(far, at, end, least, words_mask(w, at, end, least), place, m, w);
    }
    if (rank == 0)
        barrier_wait(&m.listed, 0);
    __syncthreads(); // all warps have read the counts
    return all;
}

// The k best of a list of n words; b: what is known of the bound; bins are zero. A thread has up to
// OWN adjacent words in registers.
template <int OWN>
__device__ static void list_pick(const struct select_args &a, int n, int k, bool entries,
                                 struct bound b, struct pick_room &m, int32_t *sel)
{
    int run = (n + THREADS - 1) / THREADS, begin = min((int)threadIdx.x * run, n);
    int own = min(run, n - begin), total, place, sure = 0, ties = 0, level = 0;
    const struct field f = m.f;
    uint2 w[OWN];
    auto each = [&](auto what) { // no thread has more than `run`
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            if (OWN > OWN_FEW && i >= run)
                break;
            if (i < own)
                what(i);
        }
    };

    each([&](int i) {
        int at = word_at(begin + i);

        w[i] = entries ? m.list[at] : make_uint2(m.word[at], (uint32_t)(begin + i));
    });
    if (b.known < 0) { // first digits are not counted yet
        each([&](int i) { atomicAdd(&m.bin[level][first_digit(w[i].x)], 1); });
        __syncthreads();
        digit_of(((const uint4 *)m.bin[level++])[threadIdx.x], k, m);
        b = bound_first(k, n, m);
    }
#pragma unroll 1
    for (; b.known < 32 && b.here > b.left; level++) {
        int bits = bound_bits(b);
        uint32_t *bin = m.bin[level % LEVELS];

        if (level >= LEVELS) { // only if the first digit had no prefix
            bins_clear(bin, DIGITS);
            __syncthreads();
        }
        each([&](int i) {
            if (bound_tie(b, w[i].x))
                atomicAdd(&bin[~w[i].x >> (32 - b.known - bits) & ((1u << bits) - 1)], 1);
        });
        __syncthreads();
        digit_of(((const uint4 *)bin)[threadIdx.x], b.left, m);
        bound_next(&b, bits, m);
    }
    each([&](int i) {
        sure += bound_above(b, w[i].x);
        ties += bound_tie(b, w[i].x);
    });
    place = block_before(sure | ties << 16, m.warp, &total);
    sure = place & 0xffff;
    ties = place >> 16;
    each([&](int i) {
        bool is_sure = bound_above(b, w[i].x), is_tie = bound_tie(b, w[i].x);

        if (is_sure || (is_tie && ties < b.left))
            sel[sure + min(ties, b.left)] = entry_of(f, (int)w[i].y);
        sure += is_sure;
        ties += is_tie;
    });
    for (int i = k + (int)threadIdx.x; i < a.topk; i += THREADS)
        sel[i] = -1;
}

// Find the next digit of the bound from the words of all blocks: each adds its histogram to
// everyone's bins.
__device__ static void gang_digit(const uint32_t *far, int begin, int end, int level,
                                  struct bound *b, struct pick_room &m)
{
    cooperative_groups::cluster_group gang = cooperative_groups::this_cluster();
    int bits = bound_bits(*b);
    uint32_t *bin = m.bin[level];

    bins_clear(m.mine, DIGITS);
    __syncthreads();
    for (int i = begin; i < end; i++) {
        uint32_t w = __ldcg(far + i);

        if (bound_tie(*b, w))
            atomicAdd(&m.mine[~w >> (32 - b->known - bits) & ((1u << bits) - 1)], 1);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < DIGITS; i += THREADS)
        for (int g = 0; m.mine[i] && g < GANG; g++)
            atomicAdd(gang.map_shared_rank(&bin[i], g), m.mine[i]);
    gang_meet();
    digit_of(((const uint4 *)bin)[threadIdx.x], b->left, m);
    bound_next(b, bits, m);
    __syncthreads(); // all threads have read what was found
}

// The best of a row if a list has no room for what the first digit leaves. A thread has a run of
// its block's words.
__device__ static void gang_pick(const uint32_t *far, int base, int n, struct bound b,
                                 struct pick_room &m, int32_t *sel)
{
    cooperative_groups::cluster_group gang = cooperative_groups::this_cluster();
    int run = (n + THREADS - 1) / THREADS, begin = base + min((int)threadIdx.x * run, n);
    int end = min(begin + run, base + n), mine[2] = { 0, 0 }, all[2], place[2];

    for (int level = 0; b.known < 32 && b.here > b.left; level++)
        gang_digit(far, begin, end, level, &b, m);
    for (int i = begin; i < end; i++) {
        uint32_t w = __ldcg(far + i);

        mine[0] += bound_above(b, w);
        mine[1] += bound_tie(b, w);
    }
    for (int s = 0; s < 2; s++) {
        place[s] = block_before(mine[s], m.warp, &all[s]);
        __syncthreads();
    }
    if ((int)threadIdx.x < GANG * 2)
        *gang.map_shared_rank(&m.found[gang.block_rank()][threadIdx.x % 2], threadIdx.x / 2) =
            threadIdx.x % 2 ? all[1] : all[0];
    gang_meet();
    for (unsigned g = 0; g < gang.block_rank(); g++)
        for (int s = 0; s < 2; s++)
            place[s] += m.found[g][s];
    for (int i = begin; i < end; i++) {
        uint32_t w = __ldcg(far + i);
        bool is_sure = bound_above(b, w), is_tie = bound_tie(b, w);

        if (is_sure || (is_tie && place[1] < b.left))
            sel[place[0] + min(place[1], b.left)] = entry_of(m.f, i);
        place[0] += is_sure;
        place[1] += is_tie;
    }
}

// Grid (GANG, rows), a cluster a row. Bound by latency: scan, counts, list and digits in turn.
template <int TILES>
__global__ static void __launch_bounds__(THREADS, 1) pick_gang(const __grid_constant__ indexing x)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    struct pick_room &m = *(struct pick_room *)dynamic;
    const struct select_args &a = x.a;
    uint32_t *first = x.count[blockIdx.y].first, w[CUDA_WARP];
    int t = (int)threadIdx.x, rank = (int)blockIdx.x, r = x.row0 + (int)blockIdx.y;
    const uint32_t *far = (const uint32_t *)a.scratch + (size_t)blockIdx.y * (size_t)a.keys.cap;
    int32_t *sel = a.sel + (size_t)r * (size_t)a.topk;
    struct bound b = { 0, -1, 0, 0 };
    int k, share, base, n, run;
    struct field f;
    uint4 of;

    if (t == 0) {
        barrier_init(&m.told, 1);
        barrier_init(&m.listed, 1);
        barrier_publish();
        barrier_expect(&m.told, GANG * (int)sizeof(uint2));
    }
    gang_begin();
    dependency_next();
    if (!x.behind) // score_keys, in front, has waited for whatever made what is read up to here
        dependency_settle();
    if (a.cand_in) {
        field_load(a, r, &m.f);
        f = m.f;
    } else {
        f = field_all(a, r);
        if (t == 0)
            m.f = f;
    }
    k = taken_of(a, f);
    if (k == 0 || k == f.size) { // no choice: everything is taken
        dependency_settle();
        for (int i = t; rank == 0 && i < a.topk; i += THREADS)
            sel[i] = i < (k ? k : f.n) ? (k ? entry_of(f, i) : i) : -1;
        for (int i = t; rank == 0 && i < DIGITS; i += THREADS)
            first[i] = 0;
        gang_wait();
        return;
    }
    share = (f.size + GANG - 1) / GANG;
    base = rank * share;
    n = max(0, min(f.size - base, share));
    if (f.size <= x.few) {
        if (rank == 0 && t == 0)
            barrier_expect(&m.listed, f.size * (int)sizeof(uint32_t));
        __syncthreads(); // m.f and the mbarriers are written
        gang_wait();     // all blocks of the cluster run
        words_score<TILES>(a, r, base, n, m);
        dependency_settle();
        if (rank > 0)
            return;
        __syncthreads();
        bins_clear(m.bin[0], LEVELS * DIGITS);
        barrier_wait(&m.listed, 0);
        __syncthreads();
        list_pick<OWN_MOST>(a, f.size, k, false, b, m, sel);
        return;
    }
    dependency_settle();
    of = __ldcg((const uint4 *)first + t);
    run = (n + WARPS * CUDA_WARP - 1) / (WARPS * CUDA_WARP) * CUDA_WARP;
    words_load(far, base + t / CUDA_WARP * run, min(base + (t / CUDA_WARP + 1) * run, base + n), w);
    bins_clear(m.bin[0], LEVELS * DIGITS);
    digit_of(of, k, m);
    b = bound_first(k, f.size, m);
    if (b.known > 0 && k - b.left + b.here <= FEW) {
        n = list_make(far, base, n,
                      ~(b.prefix << (32 - FIRST_BITS) | (1u << (32 - FIRST_BITS)) - 1), w, m);
        if (rank == 0 && n <= OWN_FEW * THREADS)
            list_pick<OWN_FEW>(a, n, k, true, b, m, sel);
        else if (rank == 0)
            list_pick<OWN_MOST>(a, n, k, true, b, m, sel);
    } else {
        gang_wait();
        gang_meet(); // every block's bins are zero
        gang_pick(far, base, n, b, m, sel);
        for (int i = k + t; rank == 0 && i < a.topk; i += THREADS)
            sel[i] = -1;
    }
    for (int i = t; rank == 0 && i < DIGITS; i += THREADS)
        first[i] = 0;
}

// Bytes of shared memory for all warps' lines of so many entries each; below, what a block of
// pick_gang needs.
static size_t hit_bytes(int entries)
{
    return sizeof(float) * WARPS * (size_t)entries * HIT_LINE;
}

static size_t pick_bytes(int tiles)
{
    size_t alone = offsetof(struct pick_room, word) +
                   sizeof(uint32_t) * (LIST_WORDS + (size_t)tiles * 8 * QUERY_LINE) +
                   hit_bytes(SIDE);

    return alone > sizeof(struct pick_room) ? alone : sizeof(struct pick_room);
}

static size_t lots_bytes(void)
{
    return WARPS * (LOTS * LOT_BYTES + LOT_HITS * sizeof(float));
}

// Whether score_lots can run: keys lie without gaps and aligned for bulk copies, and fit a block.
static bool lots_lie(const struct cuda_device *d, const struct select_args *a)
{
    return !a->cand_in && a->keys.row_bytes == ROW_WORDS * sizeof(uint32_t) &&
           (((uintptr_t)a->keys.base | a->keys.slot_stride) & 15) == 0 &&
           lots_bytes() + SCORE_STATIC <= (size_t)d->shared_max;
}

template <int TILES> static void index_launch(struct queue *q, struct indexing *x, int rows)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    unsigned lots = blocks_for((size_t)x->a.keys.cap, LOT), most = (unsigned)(d->sms / rows);

    most = most < 1 ? 1 : most;
    x->behind = x->a.keys.cap > x->few;
    if (x->behind && lots_lie(d, &x->a))
        launch(q, score_lots<TILES>, dim3(lots < most ? lots : most, (unsigned)rows), THREADS,
               lots_bytes(), *x);
    else if (x->behind)
        launch(q, score_keys<TILES>, dim3(lots < most ? lots : most, (unsigned)rows), THREADS,
               hit_bytes(LOT), *x);
    launch_cluster(q, pick_gang<TILES>, GANG, dim3(GANG, (unsigned)rows), THREADS,
                   pick_bytes(TILES), *x);
}

bool select_by_units(struct queue *q, const struct select_args *a, int row0, int rows)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    struct indexing x = { *a, row0, a->cand_out ? 0 : FEW, false,
                          (struct index_count *)cuda_lane(q)->counts };
    size_t most = (size_t)d->shared_max;

    if (!d->gangs || a->in != CODEC_QI || a->keys.codec != CODEC_QI || a->dim != DIM ||
        a->heads > HEADS_MAX || ((uintptr_t)a->q & 15) != 0 ||
        (((uintptr_t)a->keys.base | a->keys.slot_stride | a->keys.row_bytes) & 3) != 0 ||
        pick_bytes(HEADS_MAX / 8) + SHARED_STATIC > most || hit_bytes(LOT) + SCORE_STATIC > most)
        return false;
    if (a->heads <= 8)
        index_launch<1>(q, &x, rows);
    else if (a->heads <= 16)
        index_launch<2>(q, &x, rows);
    else
        index_launch<4>(q, &x, rows);
    return true;
}

template <int TILES> static cudaError_t index_room(int shared_max)
{
    cudaError_t e = shared_room(score_keys<TILES>, shared_max);

    if (e == cudaSuccess)
        e = shared_room(score_lots<TILES>, shared_max);
    return e != cudaSuccess ? e : shared_room(pick_gang<TILES>, shared_max);
}

cudaError_t index_limits(int shared_max)
{
    cudaError_t e = index_room<1>(shared_max);

    if (e == cudaSuccess)
        e = index_room<2>(shared_max);
    if (e == cudaSuccess)
        e = index_room<4>(shared_max);
    return e;
}
