// index_score - order words of a row's entries and the histogram of their first digits, by a grid
// over all multiprocessors: what pick_gang (index.cu) begins with if a row has many entries.
#ifndef TANDEM_KERNELS_CUDA_INDEX_SCORE_CUH
#define TANDEM_KERNELS_CUDA_INDEX_SCORE_CUH

#include "kernels/cuda/index_side.cuh"

#define LOT 32 // entries of a warp at a time: scored in two sides, then a lane adds one's heads
#define SCORE_STATIC (18 << 10)

// The first digit of a word; larger words have lower digits. It is the first FIRST_BITS bits where
// the score's magnitude is between 2^-17 and 2^13, and one digit for each of the four ranges
// outside (larger and smaller, of both signs).
#define FIRST_BITS 14
#define FIRST_LOW ((127 - 17) << (FIRST_BITS - 9))
#define FIRST_HIGH ((127 + 13) << (FIRST_BITS - 9))
#define FIRST_SPAN (FIRST_HIGH - FIRST_LOW + 1)
#define FIRST_HALF (1 << (FIRST_BITS - 1))
static_assert(2 * (FIRST_SPAN + 1) <= DIGITS, "digits of both signs");

__device__ static inline int first_digit(uint32_t word)
{
    int v = (int)(word >> (32 - FIRST_BITS)) - FIRST_HALF, at = v < 0 ? ~v : v;

    at = min(max(at, FIRST_LOW - 1), FIRST_HIGH) - (FIRST_LOW - 1);
    return v < 0 ? FIRST_SPAN + 1 + at : FIRST_SPAN - at;
}

// The first FIRST_BITS bits of the complements of a digit's words, -1 for the four outer digits.
__device__ static inline int first_prefix(int digit)
{
    int at = digit > FIRST_SPAN ? digit - FIRST_SPAN - 1 : FIRST_SPAN - digit;

    if (at == 0 || at == FIRST_SPAN)
        return -1;
    at += FIRST_LOW - 1;
    return digit > FIRST_SPAN ? FIRST_HALF + at : FIRST_HALF - 1 - at;
}

// The histogram of a row; zero between ops.
struct index_count {
    uint32_t first[DIGITS];
};
static_assert(sizeof(struct index_count) <= INDEX_COUNT, "room of a row");

struct indexing {
    struct select_args a;
    int row0;
    int few;                   // rows of up to so many entries are scored by pick_gang
    bool behind;               // a launch of scores stands in front of pick_gang
    struct index_count *count; // [rows]
};

// Blocks in x share out a row's entries, blocks in y are rows. A warp loads its next side while it
// scores this one. Bound by the decoding of keys.
template <int TILES>
__global__ static void __launch_bounds__(THREADS, 1) score_keys(const __grid_constant__ indexing x)
{
    __shared__ struct field f;
    __shared__ __align__(16) uint32_t staged[TILES * 8 * QUERY_LINE];
    __shared__ uint32_t count[DIGITS];
    __shared__ __align__(8) float wt[HEADS_MAX];
    extern __shared__ __align__(16) unsigned char dynamic[];
    const struct select_args &a = x.a;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int r = x.row0 + (int)blockIdx.y, stride = (int)gridDim.x * WARPS * LOT;
    int at = (warp * (int)gridDim.x + (int)blockIdx.x) * LOT;
    float *hits = (float *)dynamic + warp * LOT * HIT_LINE;
    uint32_t *word = (uint32_t *)a.scratch + (size_t)blockIdx.y * (size_t)a.keys.cap;
    const unsigned char *keys;
    uint4 q[TILES][DIM / 32];
    struct side now, next;

    for (int i = (int)threadIdx.x; i < DIGITS; i += THREADS)
        count[i] = 0;
    dependency_settle();
    dependency_next(); // pick_gang may read what was written before this kernel
    keys = slot_keys(a, r);
    field_load(a, r, &f);
    if (f.size <= x.few || !is_scored(a, f))
        return;
    side_load(a, f, keys, at, &now);
    weights_stage(a, r, wt);
    queries_stage<TILES>(a.q + (size_t)r * (size_t)a.heads * DIM, a.heads, staged);
    __syncthreads();
#pragma unroll
    for (int h = 0; h < TILES; h++)
#pragma unroll
        for (int b = 0; b < DIM / 32; b++)
            q[h][b] = query_load(staged, h, b);
#pragma unroll 1
    for (int half = 0; at < f.size; half ^= 1) {
        side_load(a, f, keys, half ? at + stride : at + SIDE, &next);
        side_scores<TILES, false>(
            now, wt, [&](int h, int b) { return q[h][b]; },
            hits + (half * SIDE + lane / 4) * HIT_LINE, SIDE / 2);
        now = next;
        if (!half)
            continue;
        __syncwarp();
        if (at + lane < f.size) {
            uint32_t w = hits_word<TILES>(a, hits + lane * HIT_LINE);

            word[at + lane] = w;
            atomicAdd(&count[first_digit(w)], 1);
        }
        __syncwarp();
        at += stride;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < DIGITS; i += THREADS)
        if (count[i])
            atomicAdd(&x.count[blockIdx.y].first[i], count[i]);
}

// The same where all entries compete and their keys lie without gaps: a lot is one bulk copy. A
// warp's second copy is requested once the queries are here, so that the first is not slowed down.
//
// Even rows of an mma are keys of the lot's first half, odd rows of its second: 16 keys are 16
// banks apart, so reads of codes have no bank conflicts; the second half's lines lie 8 banks
// further for the same reason.
#define LOT_BYTES (LOT * ROW_WORDS * (int)sizeof(uint32_t))
#define LOTS 2                              // lots of a warp in shared memory
#define LOT_GAP 8                           // words between the lines of both halves
#define LOT_HITS (LOT * HIT_LINE + LOT_GAP) // words of a lot's lines

template <int TILES>
__global__ static void __launch_bounds__(THREADS, 1) score_lots(const __grid_constant__ indexing x)
{
    __shared__ __align__(16) uint32_t staged[TILES * 8 * QUERY_LINE];
    __shared__ __align__(16) uint32_t count[DIGITS];
    __shared__ __align__(8) float wt[HEADS_MAX];
    __shared__ uint64_t come[WARPS][LOTS];
    extern __shared__ __align__(16) unsigned char dynamic[];
    const struct select_args &a = x.a;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int r = x.row0 + (int)blockIdx.y, stride = (int)gridDim.x * WARPS * LOT;
    int at = (warp * (int)gridDim.x + (int)blockIdx.x) * LOT, size;
    int odd = lane / 4 % 2, own = odd * SIDE + lane / 8; // its first key of the lot
    unsigned char *lot = dynamic + warp * LOTS * LOT_BYTES;
    float *hits = (float *)(dynamic + WARPS * LOTS * LOT_BYTES) + warp * LOT_HITS;
    uint32_t *word = (uint32_t *)a.scratch + (size_t)blockIdx.y * (size_t)a.keys.cap;
    const unsigned char *keys;
    struct field f;
    float weight = 0;
    struct query_part<TILES> part;
    uint4 q[TILES][DIM / 32];
    auto bring = [&](int first, int to) {
        int bytes = (size - first) * ROW_WORDS * (int)sizeof(uint32_t) + 15 & ~15;

        if (lane > 0 || first >= size)
            return;
        bytes = min(bytes, LOT_BYTES);
        barrier_expect(&come[warp][to], bytes);
        bulk_bring(lot + to * LOT_BYTES,
                   keys + (size_t)(uint32_t)first * (ROW_WORDS * sizeof(uint32_t)), bytes,
                   &come[warp][to]);
    };

    if (lane == 0) {
        for (int i = 0; i < LOTS; i++)
            barrier_init(&come[warp][i], 1);
        barrier_publish();
    }
    held(a.q); // arguments are loaded before the kernel in front has ended
    held(a.info);
    held(a.keys.base);
    held(a.scratch);
    dependency_settle();
    dependency_next(); // pick_gang may read what was written before this kernel
    f = field_all(a, r);
    size = f.size;
    keys = slot_keys(a, r);
    if (threadIdx.x < HEADS_MAX && (int)threadIdx.x < a.heads)
        weight = a.wt[(size_t)r * (size_t)a.heads + threadIdx.x];
    queries_ask(a.q + (size_t)r * (size_t)a.heads * DIM, a.heads, &part);
    if (size <= x.few || !is_scored(a, f))
        return;
    bring(at, 0);
    ((uint4 *)count)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < HEADS_MAX)
        wt[threadIdx.x] = weight;
    queries_put(part, staged);
    __syncthreads();
    bring(at + stride, 1);
#pragma unroll
    for (int h = 0; h < TILES; h++)
#pragma unroll
        for (int b = 0; b < DIM / 32; b++)
            q[h][b] = query_load(staged, h, b);

    auto query = [&](int h, int b) { return q[h][b]; };
    float *hit = hits + own * HIT_LINE + odd * LOT_GAP;

#pragma unroll 1
    for (int i = 0; at < size; i++) {
        int to = i % LOTS;

        barrier_wait(&come[warp][to], i / LOTS % 2);
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            struct side now;

            side_take((const uint32_t *)(lot + to * LOT_BYTES) + (own + half * 8) * ROW_WORDS, 4,
                      &now);
            if (side_near(now))
                side_scores<TILES, true>(now, wt, query, hit + half * 8 * HIT_LINE, 4);
            else
                side_scores<TILES, false>(now, wt, query, hit + half * 8 * HIT_LINE, 4);
        }
        __syncwarp();
        bring(at + LOTS * stride, to);
        if (at + lane < size) {
            uint32_t w = hits_word<TILES>(a, hits + lane * HIT_LINE + lane / SIDE * LOT_GAP);

            word[at + lane] = w;
            atomicAdd(&count[first_digit(w)], 1);
        }
        __syncwarp();
        at += stride;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < DIGITS; i += THREADS)
        if (count[i])
            atomicAdd(&x.count[blockIdx.y].first[i], count[i]);
}

#endif
