// gang.cu owns attention on matrix units, where both states are quantised.
//
// Values of quantised rows are bf16 numbers, so products with them are exact once the other side is
// taken apart into bf16 planes. A gang of blocks (a cluster) has a row and TALL heads; each block
// decodes its share of the keys once and keeps it for both products. Blocks wait for each other twice: for
// the largest logit, and for the sums, of which each block gets those of its share of the dimensions sent. How
// keys are dealt out depends on the number of keys of the row alone, and shares are added in order; how many heads
// a gang has changes nothing in any of them. Where a block has little shared memory (GANG_CLOSE), logits and sums lie closer;
// they are the same ones. Clusters do not fit everywhere on a device; where they would come in turns a gang is eight blocks that
// meet in memory (GANG_LOOSE), and adds up the same sums.
#include "kernels/cuda/gang_heads.cuh"
#include "kernels/cuda/gang_loose.cuh"

extern "C" {
#include "src/base/log.h"
}

#define GANG_KEYS 128                                 // of a block, at most
#define QUARTERS 4                                    // of the dimensions: warps share out a logit
#define GANG_TILES (GANG_KEYS / 8 * QUARTERS / WARPS) // of 8 keys a warp has logits of, at most
#define SHARED_STATIC 1536 // more than the kernel declares beside its dynamic memory
#define SHARED_KEPT 1024   // of each block by the device itself

// How the sums of a gang come to the blocks that add them.
enum gang_way {
    GANG_SENT,    // to room of their own in shared memory
    GANG_CLOSE,   // to where the keys were: where a block has little shared memory
    GANG_THROUGH, // through the scratch
    GANG_LOOSE    // the same of blocks that are no cluster
};

// What all blocks send: sums of every block's keys over this one's dimensions.
__host__ __device__ static constexpr size_t share_bytes(int dim)
{
    return (size_t)GANG * TALL * (size_t)(dim / GANG + PAD) * sizeof(float);
}

// Keys of a block as bf16.
__host__ __device__ static size_t key_bytes(int dim, int keys)
{
    return (size_t)keys * (size_t)(dim + PAD) * sizeof(uint16_t);
}

// The parts of logits; behind them lie exponentials as bf16.
__host__ __device__ static constexpr size_t logit_bytes(int keys, bool tight)
{
    return (size_t)(tight ? QUARTERS / 2 : QUARTERS) * sizeof(float) * TALL * (size_t)(keys + PAD);
}

// The heads as bf16; logits and exponentials lie in the same place afterwards.
__host__ __device__ static size_t head_bytes(int dim, int keys, bool tight)
{
    size_t head = (size_t)TALL * (size_t)(dim + PAD) * sizeof(uint16_t);
    size_t logit = logit_bytes(keys, tight) + sizeof(uint16_t) * TALL * (size_t)(keys + PAD);

    return head > logit ? head : logit;
}

// Where in a block's memory the sums lie that are sent to it: where its keys were if that is `tight`.
__device__ static inline size_t sums_from(int dim, int keys, bool tight)
{
    return tight ? 0 : key_bytes(dim, keys) + head_bytes(dim, keys, tight);
}

// Whether parts of logits lie where sums are sent, which no block does before it has this one's largest logits; else they
// lie where the heads lay.
__host__ __device__ static constexpr bool parts_apart(int dim, enum gang_way way)
{
    return way == GANG_SENT && logit_bytes(GANG_KEYS, false) <= share_bytes(dim);
}

__device__ static inline size_t parts_from(int dim, int keys, enum gang_way way)
{
    return parts_apart(dim, way) ? sums_from(dim, keys, false) : key_bytes(dim, keys);
}

// Of a warp, sums of each tile; a lane has two columns of two rows.
struct gang_sums {
    float v[GANG_TILES][4];
};

// The warp's t-th 8 keys of `tiles`; the last ones again behind the end.
__device__ static inline int tile_of(int t, int tiles)
{
    return min((int)threadIdx.x / CUDA_WARP / QUARTERS + WARPS / QUARTERS * t, max(tiles, 1) - 1);
}

// A warp's logits to place `part`; MORE: added to those that are there.
template <int HEADS, int T, bool MORE>
__device__ static inline void logits_write(const struct gang_sums &m, int keys, int part,
                                           float *logit)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;

#pragma unroll
    for (int t = 0; t < T; t++) {
        int tile = warp / QUARTERS + WARPS / QUARTERS * t;
        float *to = logit + (part * TALL + lane / 4) * (keys + PAD) + tile * 8 + lane % 4 * 2;

        if (tile < keys / 8) {
            float2 *top = (float2 *)to, *low = (float2 *)(to + 8 * (keys + PAD));

            *top = make_float2(MORE ? top->x + m.v[t][0] : m.v[t][0],
                               MORE ? top->y + m.v[t][1] : m.v[t][1]);
            if (HEADS > 8)
                *low = make_float2(MORE ? low->x + m.v[t][2] : m.v[t][2],
                                   MORE ? low->y + m.v[t][3] : m.v[t][3]);
        }
    }
}

// Parts of logits, by quarters of the dimensions; GANG_CLOSE: two and two of them added.
template <int DIM, int HEADS, int T, enum gang_way WAY>
__device__ static inline void logits_put(const struct gang_sums &m, int keys, float *logit)
{
    int quarter = (int)threadIdx.x / CUDA_WARP % QUARTERS;

    if (!parts_apart(DIM, WAY))
        __syncthreads(); // the heads have been used
    if (WAY != GANG_CLOSE)
        logits_write<HEADS, T, false>(m, keys, quarter, logit);
    if (WAY == GANG_CLOSE && quarter % 2 == 0)
        logits_write<HEADS, T, false>(m, keys, quarter / 2, logit);
    if (WAY == GANG_CLOSE)
        __syncthreads();
    if (WAY == GANG_CLOSE && quarter % 2 == 1)
        logits_write<HEADS, T, true>(m, keys, quarter / 2, logit);
}

// Logits of up to T times 32 keys: a warp a quarter of the dimensions and every fourth 8 keys.
template <int DIM, int HEADS, int T, enum gang_way WAY>
__device__ static inline void gang_logits(const uint16_t *head, const uint16_t *key, int keys,
                                          float *logit)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int k0 = warp % QUARTERS * (DIM / QUARTERS);
    const uint16_t *from = key + lane % 8 * (DIM + PAD) + k0 + lane / 8 * 8;
    struct gang_sums m = {};

#pragma unroll
    for (int k = 0; k < DIM / QUARTERS; k += 32) {
        uint32_t left[2][4];

        if (HEADS == FLAT)
            flat_load(left, head, DIM + PAD, k0 + k);
        for (int i = 0; i < 2 && HEADS != FLAT; i++)
            left_load(left[i], head, DIM + PAD, k0 + k + 16 * i);
#pragma unroll
        for (int t = 0; t < T; t++) {
            uint32_t b[4];

            matrices_load(b, from + tile_of(t, keys / 8) * 8 * (DIM + PAD) + k);
            multiply(m.v[t], left[0], b[0], b[1]);
            multiply(m.v[t], left[1], b[2], b[3]);
        }
    }
    logits_put<DIM, HEADS, T, WAY>(m, keys, logit);
}

// The same for heads that are no bf16 numbers, from the heads as they came.
template <int DIM, int HEADS, enum gang_way WAY>
__device__ __noinline__ static void logits_of_planes(const struct attend_args &a,
                                                     const struct gang_turn &turn, int row, int h0,
                                                     int room, int tall, int keys)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    const uint16_t *key = (const uint16_t *)dynamic;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int k0 = warp % QUARTERS * (DIM / QUARTERS), tile0 = warp / QUARTERS;
    const float *q = a.q + ((size_t)row * (size_t)a.heads + (size_t)h0) * DIM;
    struct gang_sums m = {};

#pragma unroll 1
    for (int k = k0; k < k0 + DIM / QUARTERS; k += 16) {
        const struct planes p = heads_planes<DIM>(q, min(tall, a.heads - h0), turn, a.round, k);

#pragma unroll
        for (int t = 0; t < GANG_TILES; t++) {
            int tile = tile0 + WARPS / QUARTERS * t;
            uint32_t b[4];

            if (tile >= keys / 8)
                break;
            matrices_load(b,
                          key + (tile * 8 + lane % 8) * (DIM + PAD) + k / 32 * 32 + lane / 8 * 8);
            b[0] = k % 32 ? b[2] : b[0];
            b[1] = k % 32 ? b[3] : b[1];
            multiply(m.v[t], p.low, b[0], b[1]);
            multiply(m.v[t], p.mid, b[0], b[1]);
            multiply(m.v[t], p.top, b[0], b[1]);
        }
    }
    logits_put<DIM, HEADS, GANG_TILES, WAY>(m, keys,
                                            (float *)(dynamic + parts_from(DIM, room, WAY)));
}

// Of two pairs of columns a lane keeps one and gets what belongs beside it from its neighbour, the even lane that of the
// first pair; then they go where they are added.
template <bool FAR>
__device__ static inline void sums_send(float x0, float y0, float x1, float y1, bool wanted,
                                        float *to, uint64_t *come, int peer)
{
    bool odd = threadIdx.x % 2;
    float x = __shfl_xor_sync(FULL_MASK, odd ? x0 : x1, 1);
    float y = __shfl_xor_sync(FULL_MASK, odd ? y0 : y1, 1);
    float4 v = odd ? make_float4(x, y, x1, y1) : make_float4(x0, y0, x, y);

    if (wanted && FAR)
        *(float4 *)to = v;
    if (wanted && !FAR)
        peer_send(to, v, come, peer);
}

// Values: a warp COLS columns, whose sums go to the block that has them; `weight` are the exponentials as
// bf16, NULL: they are no such numbers. `far`: memory of
// the gang that the sums go through, NULL: they are sent to `share`, where `come` counts them. GANG_CLOSE: that is
// where the keys were.
template <int DIM, int HEADS, enum gang_way WAY>
__device__ static inline void gang_values(const uint16_t *weight, const float *prob,
                                          const uint16_t *key, int keys, int rank, int heads,
                                          float *far, float *share, uint64_t *come)
{
    constexpr int LD = DIM + PAD, COLS = DIM / WARPS < 16 ? 16 : DIM / WARPS, TILES = COLS / 8;
    constexpr int WIDE = DIM / GANG + PAD;
    constexpr bool FAR = WAY == GANG_THROUGH || WAY == GANG_LOOSE;
    constexpr int AT_ONCE = HEADS == FLAT ? 3 : 2;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int r = lane / 4, c = lane % 4 * 2, n0 = warp * COLS, odd = lane % 2;
    int peer = n0 / (DIM / GANG);
    float acc[TILES][4] = {}, *to;

#pragma unroll AT_ONCE
    for (int k = n0 < DIM && weight ? 0 : keys; k < keys; k += 32) {
        uint32_t left[2][4];

        if (HEADS == FLAT) // behind the keys are numbers of no use
            flat_load(left, weight, keys + PAD, k);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (k + 16 * half >= keys)
                break;
            if (HEADS != FLAT)
                left_load(left[half], weight, keys + PAD, k + 16 * half);
#pragma unroll
            for (int t = 0; t < TILES; t += 2) {
                uint32_t b[4];

                matrices_load_turned(b, key + (k + 16 * half + lane / 8 % 2 * 8 + lane % 8) * LD +
                                            n0 + t * 8 + lane / 16 * 8);
                multiply(acc[t], left[half], b[0], b[1]);
                multiply(acc[t + 1], left[half], b[2], b[3]);
            }
        }
    }
#pragma unroll 1
    for (int k = n0 < DIM && !weight ? 0 : keys; k < keys; k += 16) {
        struct planes p;
        float2 v[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] =
                i % 2 * 8 < HEADS
                    ? *(const float2 *)(prob + (r + i % 2 * 8) * (keys + PAD) + k + i / 2 * 8 + c)
                    : make_float2(0, 0);
        p = planes_of(v);
#pragma unroll
        for (int t = 0; t < TILES; t += 2) {
            uint32_t b[4];

            matrices_load_turned(b, key + (k + lane / 8 % 2 * 8 + lane % 8) * LD + n0 + t * 8 +
                                        lane / 16 * 8);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                if (p.more) {
                    multiply(acc[t + s], p.low, b[2 * s], b[2 * s + 1]);
                    multiply(acc[t + s], p.mid, b[2 * s], b[2 * s + 1]);
                }
                multiply(acc[t + s], p.top, b[2 * s], b[2 * s + 1]);
            }
        }
    }
    if (WAY == GANG_CLOSE)
        gang_meet(); // no block needs its keys
    if (n0 >= DIM)
        return;
    to = (FAR ? far + (size_t)peer * (GANG * TALL * WIDE) : share) + rank * TALL * WIDE +
         n0 % (DIM / GANG) + lane % 4 / 2 * 4;
    if (HEADS <= 8 ||
        heads <= 8) { // of two lanes the one has four columns of a tile, the other of the next one
        to += r * WIDE + odd * 8;
#pragma unroll
        for (int t = 0; t < TILES; t += 2)
            sums_send<FAR>(acc[t][0], acc[t][1], acc[t + 1][0], acc[t + 1][1], r < heads,
                           to + t * 8, come, peer);
    } else { // of row r, the other of row r + 8
        to += (r + odd * 8) * WIDE;
#pragma unroll
        for (int t = 0; t < TILES; t++)
            sums_send<FAR>(acc[t][0], acc[t][1], acc[t][2], acc[t][3], r + odd * 8 < heads,
                           to + t * 8, come, peer);
    }
}

// x / y, `by` is 1 / y; y is neither very small nor very large.
__device__ static inline float over(float x, float y, float by)
{
    float q = x * by;

    return fmaf(fmaf(-q, y, x), by, q);
}

// What a block asks for before earlier kernels have ended: the lines of its parameters, each by a warp of its own instead of
// one behind the other, and of what may still be written, for the second level of caches, where it will be.
template <int DIM>
__device__ static inline void gang_ahead(const struct attend_args &a, int row, const float *q,
                                         int heads, int rank)
{
    int t = (int)threadIdx.x, line = t / CUDA_WARP % 4 * 8, part = (t - CUDA_WARP) * GANG + rank;

    held(((const uint64_t *)&a)[min(line, (int)(sizeof(a) / sizeof(uint64_t)) - 1)]);
    if (t < CUDA_WARP / 2 && a.more.base && t * 32 < a.topk)
        prefetch_l2(a.sel + (size_t)row * (size_t)a.topk + t * 32);
    if (t == CUDA_WARP / 2)
        prefetch_l2(a.info + row);
    if (t / CUDA_WARP == 1 && part < heads * DIM / 32)
        prefetch_l2(q + part * 32);
}

// The logits of a head that a lane has, of every 32nd key; the largest of them and of `most`.
template <bool TIGHT, int OWN>
__device__ static inline float logits_take(const float *part, int ld, int mine, float scale,
                                           float most, float (&l)[OWN])
{
    int lane = (int)(thread_here() % CUDA_WARP);
    float v[OWN][QUARTERS];

#pragma unroll
    for (int i = 0; i < OWN; i++) { // all on their way before the first are added
        const float *from = part + min(lane + i * CUDA_WARP, ld - 1);

#pragma unroll
        for (int k = 0; k < (TIGHT ? QUARTERS / 2 : QUARTERS); k++)
            v[i][k] = from[k * TALL * ld];
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        l[i] = TIGHT ? v[i][0] + v[i][1] : (v[i][0] + v[i][1]) + (v[i][2] + v[i][3]);
        l[i] = lane + i * CUDA_WARP < mine ? l[i] * scale : -INFINITY;
        most = l[i] > most ? l[i] : most;
    }
    return most;
}

// The outputs of a block's share of the dimensions: what all blocks summed, over what they summed up to.
template <int DIM, enum gang_way WAY>
__device__ static inline void sums_end(const struct attend_args &a, const struct gang_turn &turn,
                                       float *o, int heads, int rank, const float *far,
                                       const float *sums, const float (*sum_of)[TALL])
{
    constexpr bool FAR = WAY == GANG_THROUGH || WAY == GANG_LOOSE;
    constexpr int MINE = DIM / GANG, WIDE = MINE + PAD;

    for (int i = (int)thread_here(); i < heads * (MINE / 4); i += THREADS) {
        int c = i % (MINE / 4) * 4, h = i / (MINE / 4), col = value_of(rank * MINE + c);
        float4 v = make_float4(0, 0, 0, 0);
        float total = 0, by;

#pragma unroll
        for (int g = 0; g < GANG; g++) {
            int in = (g * TALL + h) * WIDE + c;
            float4 part =
                FAR ? __ldcg((const float4 *)(far + (size_t)rank * (GANG * TALL * WIDE) + in))
                    : *(const float4 *)(sums + in);

            v.x += part.x;
            v.y += part.y;
            v.z += part.z;
            v.w += part.w;
            total += WAY == GANG_LOOSE ? __ldcg(far + ((rank * GANG + g) * TALL + h) * WIDE + MINE)
                                       : sum_of[g][h];
        }
        by = inverse(total);
        by = fmaf(fmaf(-total, by, 1), by, by);
#pragma unroll
        for (int j = 0; j < 2; j++, col += 4) { // columns are values col, col + 4, col + 1, col + 5
            float2 u = j ? make_float2(v.y, v.w) : make_float2(v.x, v.z);

            u = make_float2(rounded(over(u.x, total, by), a.round),
                            rounded(over(u.y, total, by), a.round));
            if (col >= turn.begin) {
                float2 pair = turn.pair[(col - turn.begin) / 2];

                u = turned(u, make_float2(pair.x, -pair.y), a.round);
            }
            *(float2 *)(o + (size_t)h * DIM + col) = u;
        }
    }
}

// A gang a row and `tall` heads. Bound by the time of its steps, not by bytes or products.
template <int DIM, int HEADS, enum gang_way WAY>
__global__ static void __launch_bounds__(THREADS, DIM == 128 ? 1 : 2)
    attend_gang(const __grid_constant__ attend_args a, int room, int tall, struct gang_loose loose)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    __shared__ float most_of[GANG][TALL], sum_of[GANG][TALL]; // of every block's keys
    __shared__ float sink_of[TALL];
    __shared__ uint32_t place;
    __shared__ struct gang_turn turn;
    __shared__ uint64_t keys_come, most_come, sums_come;
    constexpr bool TIGHT = WAY == GANG_CLOSE, LOOSE = WAY == GANG_LOOSE,
                   FAR = LOOSE || WAY == GANG_THROUGH;
    constexpr int MINE = DIM / GANG, WIDE = MINE + PAD; // dimensions that a block finishes
    constexpr int OWN = GANG_KEYS / CUDA_WARP;          // keys of a lane
    constexpr bool BULK = DIM == 512;                   // rows are pieces of 16 bytes
    // `begun` is counted before dependency_wait: a launch lets the next one in when all its blocks have come to that, each
    // with its place, so the count is 0 again. A dependency_next in front of this line would mix the places of two.
    uint32_t at_place = LOOSE ? loose_place(loose, &place) : blockIdx.x;
    int rank = (int)(at_place % GANG), gang = LOOSE ? (int)(at_place / GANG) : 0;
    int row = LOOSE ? gang / (int)gridDim.y : (int)blockIdx.z;
    int h0 = (LOOSE ? gang % (int)gridDim.y : (int)blockIdx.y) * tall;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, h = t / CUDA_WARP;
    int heads = min(min(tall, HEADS), a.heads - h0), share, from, keys, mine, ld, chosen;
    size_t at = ((size_t)row * (size_t)a.heads + (size_t)h0) * DIM;
    struct gang_row w = { 0, 0, 0, 0, a.sel + (size_t)row * (size_t)a.topk };
    struct gang_heads<DIM, HEADS> head;
    uint16_t *key = (uint16_t *)dynamic, *head_at = key + key_bytes(DIM, room) / sizeof(*key);
    uint16_t *weight = head_at + logit_bytes(room, TIGHT) / sizeof(*key);
    float *logit = (float *)head_at, *sums = (float *)(dynamic + sums_from(DIM, room, TIGHT)), *far;
    float *parts = (float *)(dynamic + parts_from(DIM, room, WAY));
    float sink, freq, most, sum = 0, l[OWN] = {};
    struct row_info here;
    struct span s;
    uint32_t rest = 0;

    static_assert(WARPS == TALL, "a warp a head");
    gang_ahead<DIM>(a, row, a.q + at, heads, rank);
    if (t == 0) {
        barrier_init(&keys_come, 1);
        barrier_init(&most_come, 1);
        barrier_init(&sums_come, 1);
        barrier_publish();
        barrier_expect(&most_come, GANG * heads * (int)sizeof(float));
        barrier_expect(&sums_come, GANG * heads * (int)sizeof(float) * (1 + (FAR ? 0 : MINE)));
    }
    if (!LOOSE)
        gang_begin(); // memory of a block that has not begun is nobody's
    freq = a.freq && t < a.dims / 2 ? a.freq[t] : 0; // weights
    sink = t < heads ? a.sink[h0 + t] : 0;
    dependency_wait();
    chosen = a.more.base && t < a.topk ? w.sel[t] : -1;
    here = a.info[row];
    s = window_of(a, row);
    head = heads_fetch<DIM, HEADS>(a.q + at, heads);
    w.slot = here.slot;
    w.first = s.lo % a.win.cap;
    w.win = s.hi - s.lo;
    w.n = w.win + __syncthreads_count(chosen >= 0);
    for (int i = THREADS; a.more.base && i < a.topk; i += THREADS)
        w.n += __syncthreads_count(i + t < a.topk && w.sel[i + t] >= 0);
    share = (w.n + GANG * 16 - 1) / (GANG * 16) * 16;
    from = rank * share;
    mine = w.n - from;
    mine = mine < 0 ? 0 : mine < share ? mine : share;
    keys = (mine + 15) / 16 * 16;
    ld = keys + PAD;
    if constexpr (BULK) {
        keys_bring<DIM>(a, w, from, mine, key, &keys_come);
    } else {
#pragma unroll 1
        for (int i = 0; i * THREADS < keys * (DIM / 16); i += GANG_AHEAD)
            keys_fetch<DIM>(a, w, from, mine, i, key);
    }
    if (t == 0)
        turn.begin = a.freq ? DIM - a.dims : DIM;
    if (a.freq && t < a.dims / 2)
        turn.pair[t] = turn_of(here.pos, freq, false);
    if (t < TALL)
        sink_of[t] = sink;
    __syncthreads();
    heads_put<DIM, HEADS>(head, turn, a.round, heads, head_at, rest);
    if (!LOOSE)
        gang_wait(); // all blocks have begun
    if constexpr (BULK) {
        barrier_wait(&keys_come, 0);
        keys_decode_whole<DIM>(w.win - from, mine, keys, key);
    } else {
        copy_wait_all();
        __syncwarp();
        keys_decode<DIM>(w.win - from, mine, keys, key);
    }
    if (__syncthreads_or(rest != 0))
        logits_of_planes<DIM, HEADS, WAY>(a, turn, row, h0, room, tall, keys);
    else if (keys <= 32)
        gang_logits<DIM, HEADS, 1, WAY>(head_at, key, keys, parts);
    else if (keys <= 96)
        gang_logits<DIM, HEADS, 3, WAY>(head_at, key, keys, parts);
    else
        gang_logits<DIM, HEADS, GANG_TILES, WAY>(head_at, key, keys, parts);
    __syncthreads();
    lane = (int)(thread_here() % CUDA_WARP);
    h = (int)(thread_here() / CUDA_WARP);
    if (LOOSE) { // not kept in registers all the way
        gang = (int)(place / GANG);
        rank = (int)(place % GANG);
    }
    most = sink_of[h];
    if (h < heads)
        most = logits_take<TIGHT>(parts + h * ld, ld, mine, a.scale, most, l);
    most = warp_max(most);
    if constexpr (LOOSE) {
        if (h < heads)
            most = loose_most(loose.most + gang * (GANG * TALL), rank, h, most);
    } else {
        if (lane < GANG && h < heads)
            peer_send(&most_of[rank][h], most, &most_come, lane);
        barrier_wait(&most_come, 0);
        if (h < heads) {
#pragma unroll
            for (int i = 0; i < GANG; i++) {
                float other = most_of[i][h];

                most = other > most ? other : most;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) { // 0 behind the keys
        int j = lane + i * CUDA_WARP;
        float e = expf(l[i] - most);

        e = h < heads && j < mine ? e : 0;
        sum += e;
        if (h < HEADS && j < keys && a.round == ROUND_BF16)
            weight[h * ld + j] = (uint16_t)bf16_pair(e, 0);
        if (h < HEADS && j < keys && a.round != ROUND_BF16)
            logit[h * ld + j] = e;
    }
    __syncthreads(); // nobody's values wait for sums
    sum = warp_sum(sum);
    if (rank == 0 && h < heads)
        sum += expf(sink_of[h] - most);
    far = LOOSE ? a.scratch + gang * (GANG * GANG * TALL * WIDE)
          : FAR ? a.scratch + (blockIdx.z * gridDim.y + blockIdx.y) * (GANG * GANG * TALL * WIDE)
                : NULL;
    if (lane < GANG && h < heads) {
        if (LOOSE)
            far[((lane * GANG + rank) * TALL + h) * WIDE + MINE] = sum;
        else
            peer_send(&sum_of[rank][h], sum, &sums_come, lane);
    }
    gang_values<DIM, HEADS, WAY>(a.round == ROUND_BF16 ? weight : NULL, logit, key, keys, rank,
                                 heads, far, sums, &sums_come);
    if (LOOSE)
        loose_meet(loose.stored + gang * LOOSE_LINE, loose.most + place * TALL);
    else if (FAR)
        gang_meet();
    if (!LOOSE)
        barrier_wait(&sums_come, 0);
    sums_end<DIM, WAY>(a, turn, a.o + at, heads, rank, far, sums, sum_of);
}

// Short keys have room on every device.
static constexpr bool may_be_tight(int dim)
{
    return dim > 128;
}

// Gangs that are no clusters: of many keys, where two blocks fit.
static constexpr bool may_be_loose(int dim)
{
    return dim == 512;
}

// That way where there are such kernels.
static constexpr enum gang_way way_of(int dim, enum gang_way way)
{
    return way == GANG_CLOSE && !may_be_tight(dim)   ? GANG_SENT
           : way == GANG_LOOSE && !may_be_loose(dim) ? GANG_THROUGH
                                                     : way;
}

// Heads of a gang where there are few of them.
static constexpr int flat_of(int dim)
{
    return dim == 512 ? FLAT : TALL;
}

// What a block needs.
static size_t room_bytes(int dim, int keys, enum gang_way way)
{
    size_t share = share_bytes(dim);
    size_t others = key_bytes(dim, keys) + head_bytes(dim, keys, way == GANG_CLOSE);

    if (way == GANG_CLOSE)
        return others > share ? others : share;
    return others + (way == GANG_SENT ? share : 0);
}

template <int DIM>
static void gang_launch(struct queue *q, const struct attend_args *a, int room, int tall,
                        enum gang_way way)
{
    uint32_t *count = cuda_lane(q)->loose;
    struct gang_loose l = { count, count + LOOSE_LINE,
                            (uint64_t *)(count + (1 + LOOSE_GANGS) * LOOSE_LINE) };

    static_assert((1 + LOOSE_GANGS) * LOOSE_LINE + LOOSE_GANGS * GANG * TALL * 2 <= CUDA_LOOSE,
                  "words of every gang");

    launch_cluster(q,
                   way == GANG_LOOSE     ? attend_gang<DIM, TALL, way_of(DIM, GANG_LOOSE)>
                   : way == GANG_CLOSE   ? attend_gang<DIM, TALL, way_of(DIM, GANG_CLOSE)>
                   : way == GANG_THROUGH ? attend_gang<DIM, TALL, GANG_THROUGH>
                   : tall == FLAT        ? attend_gang<DIM, flat_of(DIM), GANG_SENT>
                                         : attend_gang<DIM, TALL, GANG_SENT>,
                   way == GANG_LOOSE ? 1 : GANG,
                   dim3(GANG, blocks_for((size_t)a->heads, tall), (unsigned)a->rows), THREADS,
                   room_bytes(DIM, room, way), *a, room, tall, l);
}

// Rows of a state begin where words of `align` bytes do.
static bool aligned(const struct state_view &v, size_t align)
{
    return ((uintptr_t)v.base | v.slot_stride | v.row_bytes) % align == 0;
}

static unsigned gang_blocks(const struct attend_args *a, int tall)
{
    return GANG * blocks_for((size_t)a->heads, tall) * (unsigned)a->rows;
}

// Whether a multiprocessor has room for two blocks of so many bytes.
static bool two_fit(const struct cuda_device *d, size_t bytes)
{
    return 2 * (bytes + SHARED_STATIC + SHARED_KEPT) <= (size_t)d->shared_sm;
}

bool attend_by_gang(struct queue *q, const struct attend_args *a, int keys)
{
    struct cuda_device *d = (struct cuda_device *)q->dev;
    int room = (keys + GANG * 16 - 1) / (GANG * 16) * 16;
    size_t most = (size_t)(d->shared_max - SHARED_STATIC);
    size_t wide = room_bytes(a->dim, room, GANG_SENT);
    size_t close = room_bytes(a->dim, room, GANG_CLOSE);
    int tall = gang_blocks(a, FLAT) + GANG <= (unsigned)d->sms ? FLAT : TALL;
    size_t share = share_bytes(a->dim) * gang_blocks(a, tall);
    bool through = share <= (size_t)d->base.workers * sizeof(float) *
                                attend_scratch(a->dim, a->span, a->block, a->topk);
    // by what any number of rows may need: the others do not choose a row's kernel, and have the same bits
    bool tight = may_be_tight(a->dim) &&
                 (wide > most || (!through && !two_fit(d, wide) && two_fit(d, close)));
    size_t shared = tight ? close : wide;
    enum gang_way way = tight ? GANG_CLOSE
                        : !through || gang_blocks(a, tall) + GANG <= (unsigned)d->sms
                            ? GANG_SENT
                            : GANG_THROUGH;

    if (!d->gangs || a->win.codec != CODEC_QW || (a->more.base && a->more.codec != CODEC_QC) ||
        !aligned(a->win, a->dim == 512 ? 16 : 4) ||
        (a->more.base && !aligned(a->more, a->dim == 512 ? 16 : 8)) ||
        (a->freq && (a->dims % 4 != 0 || a->dims > 2 * PAIRS_MAX)) ||
        (a->dim != 512 && a->dim != 256 && a->dim != 128))
        return false;
    if (room > GANG_KEYS || shared > most) {
        if (!d->told)
            log_warn("attend: heads of %d over %d keys need %zu bytes of shared memory on matrix "
                     "units, a block has %d: a slower kernel runs",
                     a->dim, keys, shared, d->shared_max - SHARED_STATIC);
        d->told = true;
        return false;
    }
    // all blocks find room, but not as clusters: the last of these would begin when the first have ended
    if (may_be_loose(a->dim) && way == GANG_THROUGH &&
        gang_blocks(a, tall) > GANG * (unsigned)d->gangs &&
        gang_blocks(a, tall) <= 2 * (unsigned)d->sms &&
        gang_blocks(a, tall) <= LOOSE_GANGS * GANG && two_fit(d, room_bytes(a->dim, room, way)))
        way = GANG_LOOSE;
    if (a->dim == 512)
        gang_launch<512>(q, a, room, tall, way);
    else if (a->dim == 256)
        gang_launch<256>(q, a, room, tall, way);
    else
        gang_launch<128>(q, a, room, tall, way);
    return true;
}

template <int DIM> static cudaError_t gang_room(int shared_max)
{
    cudaError_t e = shared_room(attend_gang<DIM, TALL, GANG_SENT>, shared_max);

    if (e == cudaSuccess)
        e = shared_room(attend_gang<DIM, flat_of(DIM), GANG_SENT>, shared_max);
    if (e == cudaSuccess)
        e = shared_room(attend_gang<DIM, TALL, way_of(DIM, GANG_CLOSE)>, shared_max);
    if (e == cudaSuccess)
        e = shared_room(attend_gang<DIM, TALL, GANG_THROUGH>, shared_max);
    if (e == cudaSuccess)
        e = shared_room(attend_gang<DIM, TALL, way_of(DIM, GANG_LOOSE)>, shared_max);
    return e;
}

// How many gangs of blocks of so many bytes are clusters at once.
static int gangs_of(size_t bytes)
{
    cudaLaunchAttribute attr = {};
    cudaLaunchConfig_t c = {};
    int gangs = 0;

    attr.id = cudaLaunchAttributeClusterDimension;
    attr.val.clusterDim.x = GANG;
    attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
    c.gridDim = GANG;
    c.blockDim = THREADS;
    c.dynamicSmemBytes = bytes;
    c.attrs = &attr;
    c.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&gangs, attend_gang<512, TALL, GANG_SENT>, &c) ==
        cudaSuccess)
        return gangs;
    (void)cudaGetLastError(); // a device without clusters of such blocks
    return 0;
}

extern "C" cudaError_t cuda_gang_limits(int shared_max, int shared_sm, int *gangs)
{
    size_t most = (size_t)(shared_max - SHARED_STATIC);
    size_t half = (size_t)(shared_sm / 2 - SHARED_STATIC - SHARED_KEPT);
    cudaError_t e = gang_room<512>(shared_max);

    if (e == cudaSuccess)
        e = gang_room<256>(shared_max);
    if (e == cudaSuccess)
        e = gang_room<128>(shared_max);
    if (e != cudaSuccess)
        return e;
    *gangs = gangs_of(most) > 0 ? gangs_of(half < most ? half : most) : 0;
    return cudaSuccess;
}
