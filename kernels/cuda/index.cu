// index.cu owns the indexer where keys and queries are values of QI: scores on matrix units, and the
// exact best of them.
//
//   score_keys   order words of all competing entries, and how many have which first digit: every
//                multiprocessor, where a row has many entries
//   pick_gang    a gang of blocks (a cluster) a row: digit by digit the bound, and what lies above it in
//                ascending order. A block has a run of entries, a thread a run of these, so that places
//                are sums over what stands before. Where entries are few the gang scores them, and one
//                block goes on alone
//
// Products of QI values are exact in f32 and in bf16 operands, so sums over a head's values are those
// of the reference as long as they are exact; heads are added in index order, multiply then add.
#include <cooperative_groups.h>

#include "kernels/cuda/index.cuh"
#include "kernels/cuda/matrix.cuh"

#define DIM 128
#define STEPS (DIM / 16)
#define WARPS 4
#define THREADS (WARPS * CUDA_WARP)
#define SIDE 16 // entries: rows of an instruction
#define LOT 32  // entries a warp of score_keys takes at a time, one of pick_gang SIDE
#define HEADS_MAX 32
#define GANG 8
#define PICK_WARPS 16
#define PICK_THREADS (PICK_WARPS * CUDA_WARP)
#define FEW 4096 // entries that a gang scores
#define LEVELS 3 // digits of ~word: DIGIT_BITS, DIGIT_BITS, the rest
#define LAST_BITS (32 - 2 * DIGIT_BITS)
#define COUNTS (2 * DIGITS + (1 << LAST_BITS))
#define SHARED_STATIC 1024 // more than pick_gang declares beside its dynamic memory

#define FIRST(word) (~(word) >> (32 - DIGIT_BITS))

// Of a row, zero between ops.
struct index_count {
    uint32_t first[DIGITS];
};
static_assert(sizeof(struct index_count) <= INDEX_COUNT, "room of a row");

struct indexing {
    struct select_args a;
    int row0;
    int few;                   // rows of up to so many entries are scored where they are picked
    int room;                  // words that a block of a gang keeps in shared memory
    struct index_count *count; // [rows]
};

// Queries as bf16 pairs in the order of the operands: of each block of 32 values lane quarter t has
// values 8 t .. 8 t + 7, the j-th with the (j + 4)-th. All threads of the block.
#define QUERY_LINE (DIM / 2 + 4) // words of a head

template <int TILES>
__device__ static inline void queries_stage(const float *q, int heads, uint32_t *to)
{
    for (int i = (int)threadIdx.x; i < TILES * 8 * (DIM / 8); i += THREADS) {
        int h = i / (DIM / 8), at = i % (DIM / 8);
        float4 x = make_float4(0, 0, 0, 0), y = x;

        if (h < heads) {
            x = ((const float4 *)(q + (size_t)h * DIM))[2 * at];
            y = ((const float4 *)(q + (size_t)h * DIM))[2 * at + 1];
        }
        *(uint4 *)(to + h * QUERY_LINE + at * 4) = make_uint4(
            bf16_pair(x.x, y.x), bf16_pair(x.y, y.y), bf16_pair(x.z, y.z), bf16_pair(x.w, y.w));
    }
}

// The lane's right operands of eight heads and block b.
__device__ static inline uint4 query_load(const uint32_t *staged, int h, int b)
{
    int lane = (int)threadIdx.x % CUDA_WARP;

    return *(const uint4 *)(staged + (h * 8 + lane / 4) * QUERY_LINE + b * 16 + lane % 4 * 4);
}

// The word of the lane's entry of a lot, from its hits.
template <int TILES>
__device__ static inline uint32_t lot_word(const struct select_args &a, const float *hits,
                                           const float *wt)
{
    const float *hit = hits + threadIdx.x % CUDA_WARP * (HEADS_MAX + 1);
    float sum = 0;

#pragma unroll
    for (int h = 0; h < TILES * 8; h++) // behind the last head come zeros
        sum += wt[h] * hit[h];
    return order_word(a.scale * sum);
}

// Weights of the heads, zeros behind the last one.
__device__ static inline void weights_stage(const struct select_args &a, int r, float *wt)
{
    int t = (int)threadIdx.x;

    if (t < HEADS_MAX)
        wt[t] = t < a.heads ? a.wt[(size_t)r * (size_t)a.heads + (size_t)t] : 0;
}

// A warp SIDES times SIDE entries against all heads. `hit` is the warp's, [SIDES * SIDE][HEADS_MAX + 1].
// query(h, b): the right operands of eight heads and block b of 32 values.
template <int TILES, int SIDES, typename Q>
__device__ static inline void lot_scores(const struct select_args &a, const struct field &f,
                                         int slot, int first, Q query, float *hit)
{
    int lane = (int)threadIdx.x % CUDA_WARP, r = lane / 4, t = lane % 4;
    uint32_t code[SIDES][2][DIM / 32], scale[SIDES][2];

#pragma unroll
    for (int m = 0; m < SIDES; m++)
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int i = first + m * 16 + s * 8 + r;
            const uint32_t *row;

#pragma unroll
            for (int b = 0; b < DIM / 32; b++)
                code[m][s][b] = 0;
            scale[m][s] = 0x7f7f7f7fu;
            if (i >= f.size)
                continue;
            row = (const uint32_t *)state_row(a.keys, slot, entry_of(f, i));
#pragma unroll
            for (int b = 0; b < DIM / 32; b++)
                code[m][s][b] = row[b * 4 + t];
            scale[m][s] = row[DIM / 8];
        }
#pragma unroll
    for (int m = 0; m < SIDES; m++) {
        float dot[TILES][4] = {};

#pragma unroll
        for (int b = 0; b < DIM / 32; b++) {
            uint32_t v[2][4];

#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t by = scale_pair(scale[m][s] >> (8 * b) & 0xff);

#pragma unroll
                for (int j = 0; j < 4; j++)
                    v[s][j] = bf16_times(e2m1_far(code[m][s][b] >> (4 * j)), by);
            }
#pragma unroll
            for (int h = 0; h < TILES; h++) {
                const uint32_t left[2][4] = { { v[0][0], v[1][0], v[0][1], v[1][1] },
                                              { v[0][2], v[1][2], v[0][3], v[1][3] } };
                uint4 right = query(h, b);

                multiply(dot[h], left[0], right.x, right.y);
                multiply(dot[h], left[1], right.z, right.w);
            }
        }
#pragma unroll
        for (int h = 0; h < TILES; h++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                hit[(m * 16 + i / 2 * 8 + r) * (HEADS_MAX + 1) + h * 8 + t * 2 + i % 2] =
                    dot[h][i] < 0 ? 0 : dot[h][i];
    }
}

// Blocks in x share out a row's entries, blocks in y are rows. Bound by the decoding of keys and by
// their bytes.
template <int TILES>
__global__ static void __launch_bounds__(THREADS) score_keys(const __grid_constant__ indexing x)
{
    dependency_wait();
    __shared__ struct field f;
    __shared__ __align__(16) uint32_t staged[TILES * 8 * QUERY_LINE];
    __shared__ uint32_t count[DIGITS];
    __shared__ float hits[WARPS][LOT * (HEADS_MAX + 1)], wt[HEADS_MAX];
    const struct select_args &a = x.a;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int r = x.row0 + (int)blockIdx.y, slot = a.info[r].slot;
    uint32_t *word = (uint32_t *)a.scratch + (size_t)blockIdx.y * (size_t)a.keys.cap;
    uint4 q[TILES][DIM / 32];

    field_load(a, r, &f);
    if (f.size <= x.few || !is_scored(a, f))
        return;
    queries_stage<TILES>(a.q + (size_t)r * (size_t)a.heads * DIM, a.heads, staged);
    for (int i = (int)threadIdx.x; i < DIGITS; i += THREADS)
        count[i] = 0;
    weights_stage(a, r, wt);
    __syncthreads();
#pragma unroll
    for (int h = 0; h < TILES; h++)
#pragma unroll
        for (int b = 0; b < DIM / 32; b++)
            q[h][b] = query_load(staged, h, b);
    for (int first = ((int)blockIdx.x * WARPS + warp) * LOT; first < f.size;
         first += (int)gridDim.x * WARPS * LOT) {
        lot_scores<TILES, LOT / SIDE>(
            a, f, slot, first, [&](int h, int b) { return q[h][b]; }, hits[warp]);
        __syncwarp();
        if (first + lane < f.size) {
            uint32_t w = lot_word<TILES>(a, hits[warp], wt);

            word[first + lane] = w;
            atomicAdd(&count[FIRST(w)], 1);
        }
        __syncwarp();
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < DIGITS; i += THREADS)
        if (count[i])
            atomicAdd(&x.count[blockIdx.y].first[i], count[i]);
}

// Entries that a row takes; all of a block's threads.
__device__ static int taken_of(const struct select_args &a, const struct field &f)
{
    return f.n <= a.topk ? 0 : a.topk < f.size ? a.topk : f.size;
}

// Words lie with a gap behind each 32, so that runs of neighbours begin in other banks.
__device__ __host__ static inline int word_at(int i)
{
    return i + i / CUDA_WARP;
}

struct pick_room {
    struct field f;
    struct order_count n;            // of this block, and what was found
    uint32_t total[COUNTS];          // of the gang, the levels' behind each other
    uint32_t sure[GANG], ties[GANG]; // of every block's entries
    __align__(16) uint32_t warp[2][PICK_WARPS];
    float wt[HEADS_MAX];
};

// Words of `n` entries from `base` on into the first block's memory.
template <int TILES>
__device__ static void words_score(const struct select_args &a, int r, int base, int n,
                                   struct pick_room &m, uint32_t *word, uint32_t *first_word)
{
    uint32_t *staged = word + (word_at(FEW) + 3) / 4 * 4;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    float *hits = (float *)(staged + TILES * 8 * QUERY_LINE) + warp * SIDE * (HEADS_MAX + 1);

    queries_stage<TILES>(a.q + (size_t)r * (size_t)a.heads * DIM, a.heads, staged);
    weights_stage(a, r, m.wt);
    __syncthreads();
    for (int first = warp * SIDE; first < n; first += PICK_WARPS * SIDE) {
        lot_scores<TILES, 1>(
            a, m.f, a.info[r].slot, base + first,
            [=](int h, int b) { return query_load(staged, h, b); }, hits);
        __syncwarp();
        if (lane < SIDE && first + lane < n)
            first_word[word_at(base + first + lane)] = lot_word<TILES>(a, hits, m.wt);
        __syncwarp();
    }
}

// Of up to 32 words from `begin` on: which are above the bound, and which share its digits; their
// complements are below `prefix`, or equal to it.
template <typename L>
__device__ static inline void words_mark(L load, int begin, int end, int shift, uint32_t prefix,
                                         uint32_t *sure, uint32_t *tie)
{
    int n = end - begin < CUDA_WARP ? end - begin : CUDA_WARP;

    *sure = *tie = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        uint32_t w = ~load(begin + i) >> shift;

        *sure |= (uint32_t)(w < prefix) << i;
        *tie |= (uint32_t)(w == prefix) << i;
    }
}

// The digit at which `left` are counted, of words whose first `known` bits are those of `prefix`. Each block's
// counts go to all of the gang, unless it is alone.
template <typename L>
__device__ static void digit_next(int level, int left, int known, uint32_t prefix, int begin,
                                  int end, bool alone, L load, struct pick_room &m)
{
    cooperative_groups::cluster_group gang = cooperative_groups::this_cluster();
    int bits = level < LEVELS - 1 ? DIGIT_BITS : LAST_BITS, t = (int)threadIdx.x;

    for (int i = t; i < DIGITS; i += PICK_THREADS)
        m.n.bin[i] = 0;
    __syncthreads();
    for (int g = begin; g < end; g += CUDA_WARP) {
        uint32_t sure, tie = ~0u;

        if (known > 0)
            words_mark(load, g, end, 32 - known, prefix, &sure, &tie);
        else if (end - g < CUDA_WARP)
            tie = (1u << (end - g)) - 1;
        for (; tie; tie &= tie - 1) {
            uint32_t w = ~load(g + __ffs((int)tie) - 1);

            atomicAdd(&m.n.bin[w >> (32 - known - bits) & ((1u << bits) - 1)], 1);
        }
    }
    __syncthreads();
    for (int i = t; i < 1 << bits && !alone; i += PICK_THREADS)
        for (int g = 0; m.n.bin[i] && g < GANG; g++)
            atomicAdd(gang.map_shared_rank(&m.total[level * DIGITS + i], g), (uint32_t)m.n.bin[i]);
    if (!alone)
        gang.sync();
    digit_find(
        left,
        [&](int d) {
            int at = level * DIGITS + d;

            return alone ? m.n.bin[d] : at < COUNTS ? (int)m.total[at] : 0;
        },
        &m.n);
}

// How many entries of this block's earlier threads are sure and tie; the block's own numbers go to the gang.
__device__ static void places_find(uint32_t (&mine)[2], bool alone, struct pick_room &m)
{
    cooperative_groups::cluster_group gang = cooperative_groups::this_cluster();
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;

    for (int s = 0; s < 2; s++) {
        uint32_t upto = mine[s];

        for (int step = 1; step < CUDA_WARP; step *= 2) {
            uint32_t o = __shfl_up_sync(FULL_MASK, upto, step);

            upto += lane >= step ? o : 0;
        }
        mine[s] = upto - mine[s];
        if (lane == CUDA_WARP - 1)
            m.warp[s][warp] = upto;
    }
    __syncthreads();
    for (int s = 0; s < 2; s++) {
        uint32_t all = 0;

        for (int w = 0; w < PICK_WARPS; w++) {
            mine[s] += w < warp ? m.warp[s][w] : 0;
            all += m.warp[s][w];
        }
        if ((int)threadIdx.x < GANG && !alone)
            *gang.map_shared_rank(s ? &m.ties[gang.block_rank()] : &m.sure[gang.block_rank()],
                                  threadIdx.x) = all;
    }
    if (alone)
        return;
    gang.sync();
    for (unsigned g = 0; g < gang.block_rank(); g++) {
        mine[0] += m.sure[g];
        mine[1] += m.ties[g];
    }
}

// Bound by the time of its steps.
template <int TILES>
__global__ static void __launch_bounds__(PICK_THREADS, 1)
    pick_gang(const __grid_constant__ indexing x)
{
    dependency_wait();
    extern __shared__ __align__(16) unsigned char dynamic[];
    struct pick_room &m = *(struct pick_room *)dynamic;
    uint32_t *kept = (uint32_t *)(dynamic + (sizeof(m) + 15) / 16 * 16);
    cooperative_groups::cluster_group gang = cooperative_groups::this_cluster();
    const struct select_args &a = x.a;
    uint32_t *first = x.count[blockIdx.y].first, prefix = 0, place[2] = { 0, 0 };
    int t = (int)threadIdx.x, rank = (int)blockIdx.x, r = x.row0 + (int)blockIdx.y;
    const uint32_t *far = (const uint32_t *)a.scratch + (size_t)blockIdx.y * (size_t)a.keys.cap;
    int32_t *sel = a.sel + (size_t)r * (size_t)a.topk;
    int k, left, known = 0, share, base, n, run, begin, end;
    bool here, alone;

    for (int i = t; i < COUNTS; i += PICK_THREADS)
        m.total[i] = 0;
    field_load(a, r, &m.f);
    k = left = taken_of(a, m.f);
    if (k == 0 || k == m.f.size) { // everything that competes
        for (int i = t; rank == 0 && i < a.topk; i += PICK_THREADS)
            sel[i] = i < (k ? k : m.f.n) ? (k ? entry_of(m.f, i) : i) : -1;
        for (int i = t; rank == 0 && i < DIGITS; i += PICK_THREADS)
            first[i] = 0;
        return;
    }
    share = (m.f.size + GANG - 1) / GANG;
    base = rank * share;
    n = m.f.size - base < share ? m.f.size - base : share;
    n = n < 0 ? 0 : n;
    alone = m.f.size <= x.few;
    here = alone || share <= x.room;
    gang.sync(); // everybody has begun, totals are zero
    if (alone) {
        words_score<TILES>(a, r, base, n, m, kept, gang.map_shared_rank(kept, 0));
        gang.sync();
        if (rank > 0)
            return;
        n = m.f.size;
    } else if (here) {
#pragma unroll 8
        for (int i = t; i < n; i += PICK_THREADS)
            kept[word_at(i)] = __ldcg(far + base + i);
        __syncthreads();
    }
    run = (n + PICK_THREADS - 1) / PICK_THREADS;
    begin = t * run < n ? t * run : n;
    end = begin + run < n ? begin + run : n;
    auto load = [=](int i) { return here ? kept[word_at(i)] : __ldcg(far + base + i); };
    for (int level = 0; level < LEVELS; level++) {
        if (level == 0 && !alone)
            digit_find(
                left, [=](int d) { return (int)__ldcg(first + d); }, &m.n);
        else
            digit_next(level, left, known, prefix, begin, end, alone, load, m);
        prefix = prefix << (level < LEVELS - 1 ? DIGIT_BITS : LAST_BITS) | (uint32_t)m.n.digit;
        known = level < LEVELS - 1 ? known + DIGIT_BITS : 32;
        left = m.n.left;
        if (m.n.here == left)
            break;
        __syncthreads(); // n is read before the next digit changes it
    }
    for (int g = begin; g < end; g += CUDA_WARP) {
        uint32_t sure, tie;

        words_mark(load, g, end, 32 - known, prefix, &sure, &tie);
        place[0] += (uint32_t)__popc(sure);
        place[1] += (uint32_t)__popc(tie);
    }
    places_find(place, alone, m);
    for (int g = begin; g < end; g += CUDA_WARP) {
        uint32_t sure, tie;

        words_mark(load, g, end, 32 - known, prefix, &sure, &tie);
        for (uint32_t both = sure | tie; both; both &= both - 1) {
            uint32_t bit = both & -both, tied = min(place[1], (uint32_t)left);

            if ((sure & bit) || place[1] < (uint32_t)left)
                sel[place[0] + tied] = entry_of(m.f, base + g + __ffs((int)bit) - 1);
            place[0] += (sure & bit) != 0;
            place[1] += (sure & bit) == 0;
        }
    }
    for (int i = k + t; rank == 0 && i < a.topk; i += PICK_THREADS)
        sel[i] = -1;
    for (int i = t; rank == 0 && !alone && i < DIGITS; i += PICK_THREADS)
        first[i] = 0;
}

// Bytes of shared memory that a block of a gang needs beside its words.
static size_t pick_bytes(int words)
{
    size_t score = sizeof(uint32_t) * ((size_t)word_at(FEW) + 4 + HEADS_MAX * QUERY_LINE +
                                       PICK_WARPS * SIDE * (HEADS_MAX + 1));
    size_t keep = sizeof(uint32_t) * ((size_t)word_at(words) + 1);

    return (sizeof(struct pick_room) + 15) / 16 * 16 + (keep > score ? keep : score);
}

template <int TILES> static void index_launch(struct queue *q, const struct indexing *x, int rows)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    unsigned lots = blocks_for((size_t)x->a.keys.cap, WARPS * LOT), most = 4 * (unsigned)d->sms;

    if (x->a.keys.cap > x->few)
        launch(q, score_keys<TILES>, dim3(lots < most ? lots : most, (unsigned)rows), THREADS, 0,
               *x);
    launch_cluster(q, pick_gang<TILES>, GANG, dim3(GANG, (unsigned)rows), PICK_THREADS,
                   pick_bytes(x->room), *x);
}

bool select_by_units(struct queue *q, const struct select_args *a, int row0, int rows)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    struct indexing x = { *a, row0, a->cand_out ? 0 : FEW, (a->keys.cap + GANG - 1) / GANG,
                          (struct index_count *)cuda_lane(q)->counts };

    if (!d->gangs || a->in != CODEC_QI || a->keys.codec != CODEC_QI || a->dim != DIM ||
        a->heads > HEADS_MAX || ((uintptr_t)a->q & 15) != 0 ||
        (((uintptr_t)a->keys.base | a->keys.slot_stride | a->keys.row_bytes) & 3) != 0)
        return false;
    while (pick_bytes(x.room) > (size_t)(d->shared_max - SHARED_STATIC) && x.room > CUDA_WARP)
        x.room -= CUDA_WARP;
    if (a->heads <= 8)
        index_launch<1>(q, &x, rows);
    else if (a->heads <= 16)
        index_launch<2>(q, &x, rows);
    else
        index_launch<4>(q, &x, rows);
    return true;
}

cudaError_t index_limits(int shared_max)
{
    cudaError_t e = shared_room(pick_gang<1>, shared_max);

    if (e == cudaSuccess)
        e = shared_room(pick_gang<2>, shared_max);
    if (e == cudaSuccess)
        e = shared_room(pick_gang<4>, shared_max);
    return e;
}
