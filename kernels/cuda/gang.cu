// gang.cu owns attention on matrix units, where both states are quantised.
//
// Values of quantised rows are bf16 numbers, so products with them are exact once the other side is
// taken apart into bf16 planes. A gang of blocks (a cluster) has a row and TALL heads; each block
// decodes its share of the keys once and keeps it for both products. Blocks meet twice: for the largest
// logit, and for the sums, of which each block gets those of its share of the dimensions sent. How keys are
// dealt out depends on the number of keys of the row alone, and shares are added in order.
#include <cooperative_groups.h>
#include <utility>

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/matrix.cuh"
#include "kernels/cuda/turn.cuh"

extern "C" {
#include "src/base/log.h"
}

#define WARPS 16 // a head each between the products
#define THREADS (WARPS * CUDA_WARP)
#define GANG 8        // blocks that share out the keys of a row
#define TALL 16       // heads: rows of an instruction
#define GANG_KEYS 128 // of a block, at most
#define GANG_TILES 2  // of 8 keys a warp has logits of, at most
#define GANG_AHEAD 5  // pieces of 16 values a thread has on their way
#define SEL_AHEAD 2   // of a thread's selected rows on their way
#define PAD 8         // values behind a row in shared memory, so that neighbours lie in other banks
#define PAIRS_MAX 32  // that turn by position
#define SHARED_STATIC 1536 // more than the kernel declares beside its dynamic memory

// Keys of a block as bf16; what all blocks send lies in the same place afterwards: sums of every block's
// keys over this one's dimensions.
__host__ __device__ static size_t key_bytes(int dim, int keys)
{
    size_t key = (size_t)keys * (size_t)(dim + PAD) * sizeof(uint16_t);
    size_t share = (size_t)GANG * TALL * (size_t)(dim / GANG + PAD) * sizeof(float);

    return key > share ? key : share;
}

// 16 values of a stored row as bf16; `raw` holds their codes, `scale` their scale's byte.
__device__ static inline void put_codes(enum codec codec, const uint32_t (&raw)[4], uint8_t scale,
                                        uint16_t *to)
{
    uint32_t out[8], by;

    if (codec == CODEC_QW) {
        by = scale_pair(scale);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t even = bf16_times(e4m3_far(raw[i]), by);
            uint32_t odd = bf16_times(e4m3_far(raw[i] >> 8), by);

            out[2 * i] = __byte_perm(even, odd, 0x5410);
            out[2 * i + 1] = __byte_perm(even, odd, 0x7632);
        }
    } else {
        by = e4m3_far(scale | (uint32_t)scale << 16);
        by = (scale & 0x7f) == 0x7f ? 0x7fc07fc0u : by;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t v[4];

#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = bf16_times(e2m1_far(raw[i] >> (4 * j)), by);
#pragma unroll
            for (int j = 0; j < 4; j += 2) { // v[j] has values j and j + 4
                out[4 * i + j / 2] = __byte_perm(v[j], v[j + 1], 0x5410);
                out[4 * i + j / 2 + 2] = __byte_perm(v[j], v[j + 1], 0x7632);
            }
        }
    }
    ((uint4 *)to)[0] = make_uint4(out[0], out[1], out[2], out[3]);
    ((uint4 *)to)[1] = make_uint4(out[4], out[5], out[6], out[7]);
}

// The two halves of logits; behind them lie exponentials as bf16.
__host__ __device__ static size_t logit_bytes(int keys)
{
    return 2 * sizeof(float) * TALL * (size_t)(keys + PAD);
}

// The heads as bf16; logits and exponentials lie in the same place afterwards.
__host__ __device__ static size_t head_bytes(int dim, int keys)
{
    size_t head = (size_t)TALL * (size_t)(dim + PAD) * sizeof(uint16_t);
    size_t logit = logit_bytes(keys) + sizeof(uint16_t) * TALL * (size_t)(keys + PAD);

    return head > logit ? head : logit;
}

// Values from `begin` on are turned by their row's position: pairs of neighbours.
struct gang_turn {
    float2 pair[PAIRS_MAX];
    int begin;
};

struct gang_row {
    int slot, lo, win, n; // the window's first position and rows; all keys
    const int32_t *sel;
};

// Which rows of their states keys from .. from + keys - 1 of the list are, -1 behind its end. A thread a
// key.
__device__ static inline void rows_find(const struct attend_args &a, const struct gang_row &w,
                                        int from, int keys, int32_t *at)
{
    int t = (int)threadIdx.x, j = from + t;

    if (t < keys)
        at[t] = j >= w.n ? -1 : j < w.win ? (w.lo + j) % a.win.cap : w.sel[j - w.win] % a.more.cap;
}

// Pieces i0, i0 + THREADS, .. of those keys on their way: 16 values, zeros behind the end.
struct gang_pieces {
    uint32_t raw[GANG_AHEAD][4];
    uint8_t scale[GANG_AHEAD];
};

// The first `win` keys are rows of the window.
template <int DIM>
__device__ static inline void pieces_fetch(const struct attend_args &a, int slot,
                                           const int32_t *row_at, int win, int keys, int i0,
                                           struct gang_pieces *p)
{
    const unsigned char *near = a.win.base + (size_t)slot * a.win.slot_stride;
    const unsigned char *far = a.more.base + (size_t)slot * a.more.slot_stride;
    constexpr int PIECES = DIM / 16;

#pragma unroll
    for (int i = 0; i < GANG_AHEAD; i++) {
        int at = i0 + i * THREADS, j = at / PIECES, c = at % PIECES * 16;
        int at_row = at < keys * PIECES ? row_at[j] : -1;
        const unsigned char *row;

        p->raw[i][0] = p->raw[i][1] = p->raw[i][2] = p->raw[i][3] = 0;
        p->scale[i] = 0;
        if (at_row < 0)
            continue;
        if (j < win) {
            row = near + (size_t)at_row * a.win.row_bytes;
            p->scale[i] = row[DIM + c / 32];
            if (DIM % 512 == 0) {
                uint4 u = *(const uint4 *)(row + c);

                p->raw[i][0] = u.x;
                p->raw[i][1] = u.y;
                p->raw[i][2] = u.z;
                p->raw[i][3] = u.w;
            } else {
#pragma unroll
                for (int k = 0; k < 4; k++)
                    p->raw[i][k] = ((const uint32_t *)(row + c))[k];
            }
        } else {
            row = far + (size_t)at_row * a.more.row_bytes;
            p->scale[i] = row[DIM / 2 + c / 16];
            p->raw[i][0] = ((const uint32_t *)(row + c / 2))[0];
            p->raw[i][1] = ((const uint32_t *)(row + c / 2))[1];
        }
    }
}

template <int DIM>
__device__ static inline void pieces_put(const struct gang_pieces &p, int win, int keys, int i0,
                                         uint16_t *key)
{
    constexpr int PIECES = DIM / 16, LD = DIM + PAD;

#pragma unroll
    for (int i = 0; i < GANG_AHEAD; i++) {
        int at = i0 + i * THREADS, j = at / PIECES;

        if (at < keys * PIECES)
            put_codes(j < win ? CODEC_QW : CODEC_QC, p.raw[i], p.scale[i],
                      key + j * LD + at % PIECES * 16);
    }
}

// The heads' values of a thread, on their way while keys are looked for.
template <int DIM> struct gang_heads {
    float4 v[TALL * DIM / 4 / THREADS];
};

template <int DIM>
__device__ static inline struct gang_heads<DIM> heads_fetch(const float *q, int heads) {
    struct gang_heads<DIM> g;

#pragma unroll
    for (int i = 0; i < TALL * DIM / 4 / THREADS; i++) {
        int at = (int)threadIdx.x + i * THREADS;

        g.v[i] = at / (DIM / 4) < heads ? ((const float4 *)q)[at] : make_float4(0, 0, 0, 0);
    }
    return g;
}

// Two values as bf16, x in the low half; what is left out is in `rest`.
__device__ static inline uint32_t
pair_cut(float x, float y, uint32_t &rest)
{
    rest |= (f32_bits(x) | f32_bits(y)) & 0xffffu;
    return __byte_perm(f32_bits(x), f32_bits(y), 0x7632);
}

// As bf16 to [TALL][DIM + PAD].
template <int DIM>
__device__ static inline void heads_put(const struct gang_heads<DIM> &g, uint16_t *to,
                                        uint32_t &rest)
{
#pragma unroll
    for (int i = 0; i < TALL * DIM / 4 / THREADS; i++) {
        int at = (int)threadIdx.x + i * THREADS;

        *(uint2 *)(to + at / (DIM / 4) * (DIM + PAD) + at % (DIM / 4) * 4) =
            make_uint2(pair_cut(g.v[i].x, g.v[i].y, rest), pair_cut(g.v[i].z, g.v[i].w, rest));
    }
}

// Those that turn, a thread a pair.
template <int DIM>
__device__ static inline void heads_turn(const struct gang_turn &turn, enum round round,
                                         uint16_t *head, uint32_t &rest)
{
    int h = (int)threadIdx.x / PAIRS_MAX, i = (int)threadIdx.x % PAIRS_MAX;
    uint32_t *at = (uint32_t *)(head + h * (DIM + PAD) + turn.begin) + i;
    float2 v;

    static_assert(THREADS == TALL * PAIRS_MAX, "a thread a pair");
    if (turn.begin + 2 * i >= DIM)
        return;
    v = turned(make_float2(f32_from_bits(*at << 16), f32_from_bits(*at & 0xffff0000u)),
               turn.pair[i], round);
    *at = pair_cut(v.x, v.y, rest);
}

// The left operand of columns k .. k + 15, from the heads' bf16 values.
template <int DIM>
__device__ static inline void heads_load(uint32_t (&top)[4], const uint16_t *head, int k)
{
    int lane = (int)threadIdx.x % CUDA_WARP;

    matrices_load(top, head + lane % 16 * (DIM + PAD) + k + lane / 16 * 8);
}

// The same in planes, from the heads as they came.
template <int DIM>
__device__ static inline struct planes
heads_planes(const float *q, int heads, const struct gang_turn &turn, enum round round, int k)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    float2 v[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int h = lane / 4 + i % 2 * 8, at = k + i / 2 * 8 + lane % 4 * 2;

        v[i] = h < heads ? *(const float2 *)(q + (size_t)h * DIM + at) : make_float2(0, 0);
        if (at >= turn.begin)
            v[i] = turned(v[i], turn.pair[(at - turn.begin) / 2], round);
    }
    return planes_of(v);
}

// Of a warp, two sums of each tile; a lane has two columns of two rows.
struct gang_sums {
    float top[2][GANG_TILES][4], rest[GANG_TILES][4];
};

// The same for heads that are no bf16 numbers.
template <int DIM>
__device__ __noinline__ static void
logits_of_planes(const float *q, int heads, const struct gang_turn &turn, enum round round,
                 const uint16_t *key, int keys, struct gang_sums *sums)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int half = warp % 2, tile0 = warp / 2, tiles = keys / 8;
    struct gang_sums m = {};

#pragma unroll 1
    for (int k = half * (DIM / 2); k < (half + 1) * (DIM / 2); k += 16) {
        const struct planes p = heads_planes<DIM>(q, heads, turn, round, k);

#pragma unroll
        for (int t = 0; t < GANG_TILES; t++) {
            int tile = tile0 + WARPS / 2 * t;
            uint32_t b[4];

            if (tile >= tiles)
                break;
            matrices_load(b,
                          key + (tile * 8 + lane % 8) * (DIM + PAD) + k / 32 * 32 + lane / 8 * 8);
            b[0] = k % 32 ? b[2] : b[0];
            b[1] = k % 32 ? b[3] : b[1];
            multiply(m.top[0][t], p.top, b[0], b[1]);
            multiply(m.rest[t], p.low, b[0], b[1]);
            multiply(m.rest[t], p.mid, b[0], b[1]);
        }
    }
    *sums = m;
}

// Logits of `keys` keys, of two halves of the dimensions: a warp a half and every eighth 8 keys. They go
// where the heads lay. `more`: the heads are no bf16 numbers.
template <int DIM>
__device__ static void gang_logits(const float *q, int heads, const struct gang_turn &turn,
                                   enum round round, bool more, const uint16_t *head,
                                   const uint16_t *key, int keys, float *logit)
{
    constexpr int LD = DIM + PAD;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int half = warp % 2, tile0 = warp / 2, tiles = keys / 8;
    struct gang_sums m = {};

#pragma unroll 2
    for (int k = half * (DIM / 2); !more && k < (half + 1) * (DIM / 2); k += 32) {
        uint32_t left[2][4];

        heads_load<DIM>(left[0], head, k);
        heads_load<DIM>(left[1], head, k + 16);
#pragma unroll
        for (int t = 0; t < GANG_TILES; t++) {
            int tile = tile0 + WARPS / 2 * t;
            uint32_t b[4];

            if (tile >= tiles)
                break;
            matrices_load(b, key + (tile * 8 + lane % 8) * LD + k + lane / 8 * 8);
            multiply(m.top[0][t], left[0], b[0], b[1]);
            multiply(m.top[1][t], left[1], b[2], b[3]);
        }
    }
    if (more) {
        struct gang_sums s;

        logits_of_planes<DIM>(q, heads, turn, round, key, keys, &s);
        m = s;
    }
    __syncthreads(); // the heads have been used
#pragma unroll
    for (int t = 0; t < GANG_TILES; t++) {
        int tile = tile0 + WARPS / 2 * t;
        float *to = logit + (half * TALL + lane / 4) * (keys + PAD) + tile * 8 + lane % 4 * 2;

        if (tile >= tiles)
            break;
#pragma unroll
        for (int i = 0; i < 4; i++)
            m.rest[t][i] += m.top[0][t][i] + m.top[1][t][i];
        *(float2 *)to = make_float2(m.rest[t][0], m.rest[t][1]);
        *(float2 *)(to + 8 * (keys + PAD)) = make_float2(m.rest[t][2], m.rest[t][3]);
    }
}

// Values: a warp COLS columns, whose sums go to the block that has them; `weight` are the exponentials as
// bf16, NULL: they are no such numbers.
template <int DIM>
__device__ static void gang_values(const uint16_t *weight, const float *prob, const uint16_t *key,
                                   int keys, float *share)
{
    constexpr int LD = DIM + PAD, COLS = DIM / WARPS < 16 ? 16 : DIM / WARPS, TILES = COLS / 8;
    constexpr int WIDE = DIM / GANG + PAD;
    cooperative_groups::cluster_group gang = cooperative_groups::this_cluster();
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int r = lane / 4, c = lane % 4 * 2, n0 = warp * COLS, odd = lane % 2;
    float acc[TILES][4] = {}, *to;

#pragma unroll 1
    for (int k = n0 < DIM && weight ? 0 : keys; k < keys; k += 16) {
        uint32_t left[4];

        matrices_load(left, weight + lane % 16 * (keys + PAD) + k + lane / 16 * 8);
#pragma unroll
        for (int t = 0; t < TILES; t += 2) {
            uint32_t b[4];

            matrices_load_turned(b, key + (k + lane / 8 % 2 * 8 + lane % 8) * LD + n0 + t * 8 +
                                        lane / 16 * 8);
            multiply(acc[t], left, b[0], b[1]);
            multiply(acc[t + 1], left, b[2], b[3]);
        }
    }
#pragma unroll 1
    for (int k = n0 < DIM && !weight ? 0 : keys; k < keys; k += 16) {
        struct planes p;
        float2 v[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = *(const float2 *)(prob + (r + i % 2 * 8) * (keys + PAD) + k + i / 2 * 8 + c);
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
    gang.sync(); // everybody's keys have been used
    if (n0 >= DIM)
        return;
    // of two lanes the one has four columns of row r, the other of row r + 8
    to = gang.map_shared_rank(share, n0 / (DIM / GANG)) +
         ((int)gang.block_rank() * TALL + r + odd * 8) * WIDE + n0 % (DIM / GANG) +
         lane % 4 / 2 * 4;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        float x = __shfl_xor_sync(FULL_MASK, odd ? acc[t][0] : acc[t][2], 1);
        float y = __shfl_xor_sync(FULL_MASK, odd ? acc[t][1] : acc[t][3], 1);

        *(float4 *)(to + t * 8) =
            odd ? make_float4(x, y, acc[t][2], acc[t][3]) : make_float4(acc[t][0], acc[t][1], x, y);
    }
}

// A gang a row and TALL heads. Bound by the time of its steps, not by bytes or products.
template <int DIM>
__global__ static void __launch_bounds__(THREADS, 2) attend_gang(struct attend_args a, int room)
{
    dependency_wait();
    extern __shared__ __align__(16) unsigned char dynamic[];
    __shared__ float most_of[GANG][TALL], sum_of[GANG][TALL]; // of every block's keys
    __shared__ struct gang_turn turn;
    cooperative_groups::cluster_group gang = cooperative_groups::this_cluster();
    auto here = gang.barrier_arrive(); // memory of a block that has not begun is nobody's
    constexpr int MINE = DIM / GANG, WIDE = MINE + PAD; // dimensions that a block finishes
    int rank = (int)blockIdx.x, h0 = (int)blockIdx.y * TALL, row = (int)blockIdx.z;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, h = t / CUDA_WARP;
    int heads = a.heads - h0 < TALL ? a.heads - h0 : TALL, share, keys, mine, ld, near;
    size_t at = ((size_t)row * (size_t)a.heads + (size_t)h0) * DIM;
    struct gang_heads<DIM> head = heads_fetch<DIM>(a.q + at, heads);
    struct gang_row w = { a.info[row].slot, 0, 0, 0, a.sel + (size_t)row * (size_t)a.topk };
    uint16_t *key = (uint16_t *)dynamic, *head_at = key + key_bytes(DIM, room) / sizeof(*key);
    uint16_t *weight = head_at + logit_bytes(room) / sizeof(*key);
    float *logit = (float *)head_at;
    float *shares = (float *)key;
    float sink = h < heads ? a.sink[h0 + h] : 0, most = sink, sum = 0;
    struct span s = window_of(a, row);
    int32_t *row_at = (int32_t *)sum_of; // until sums come in
    struct gang_pieces p;
    uint32_t rest = 0;
    bool more;

    static_assert(sizeof(sum_of) >= GANG_KEYS * sizeof(*row_at), "a place for each key");
    static_assert(WARPS == TALL, "a warp a head");
    w.lo = s.lo;
    w.win = w.n = s.hi - s.lo;
    for (int i0 = t; a.more.base && i0 - t < a.topk; i0 += SEL_AHEAD * THREADS) {
        bool there[SEL_AHEAD];

#pragma unroll
        for (int i = 0; i < SEL_AHEAD; i++)
            there[i] = i0 + i * THREADS < a.topk && w.sel[i0 + i * THREADS] >= 0;
#pragma unroll
        for (int i = 0; i < SEL_AHEAD; i++)
            if (i == 0 || i0 - t + i * THREADS < a.topk)
                w.n += __syncthreads_count(there[i]);
    }
    share = (w.n + GANG * 16 - 1) / (GANG * 16) * 16;
    mine = w.n - rank * share;
    mine = mine < 0 ? 0 : mine < share ? mine : share;
    keys = (mine + 15) / 16 * 16;
    ld = keys + PAD;
    near = w.win - rank * share;
    rows_find(a, w, rank * share, keys, row_at);
    heads_put<DIM>(head, head_at, rest);
    __syncthreads();
#pragma unroll 1
    for (int i0 = t; i0 == t || i0 - t < keys * (DIM / 16); i0 += GANG_AHEAD * THREADS) {
        pieces_fetch<DIM>(a, w.slot, row_at, near, keys, i0, &p);
        if (i0 == t) { // while the first keys are on their way
            if (t == 0)
                turn.begin = a.freq ? DIM - a.dims : DIM;
            if (a.freq && t < a.dims / 2)
                turn.pair[t] = turn_of(a.info[row].pos, a.freq[t], false);
            __syncthreads();
            heads_turn<DIM>(turn, a.round, head_at, rest);
        }
        pieces_put<DIM>(p, near, keys, i0, key);
    }
    more = __syncthreads_or(rest != 0);
    gang_logits<DIM>(a.q + at, heads, turn, a.round, more, head_at, key, keys, logit);
    __syncthreads();
    gang.barrier_wait(std::move(here));
#pragma unroll 1
    for (int j = lane; h < heads && j < mine; j += CUDA_WARP) {
        float l = (logit[h * ld + j] + logit[(TALL + h) * ld + j]) * a.scale;

        logit[h * ld + j] = l;
        most = l > most ? l : most;
    }
    most = warp_max(most);
    if (lane < GANG)
        *gang.map_shared_rank(&most_of[rank][h], lane) = most;
    gang.sync();
#pragma unroll
    for (int i = 0; i < GANG; i++)
        most = most_of[i][h] > most ? most_of[i][h] : most;
#pragma unroll 1
    for (int j = lane; j < keys; j += CUDA_WARP) {
        float e = h < heads && j < mine ? expf(logit[h * ld + j] - most) : 0;

        sum += e;
        if (a.round == ROUND_BF16)
            weight[h * ld + j] = bf16_from_f32(e);
        else
            logit[h * ld + j] = e;
    }
    sum = warp_sum(sum);
    if (rank == 0 && h < heads)
        sum += expf(sink - most);
    if (lane < GANG)
        *gang.map_shared_rank(&sum_of[rank][h], lane) = sum;
    __syncthreads();
    gang_values<DIM>(a.round == ROUND_BF16 ? weight : NULL, logit, key, keys, shares);
    gang.sync();
    for (int i = t; i < heads * (MINE / 2); i += THREADS) {
        int c = i % (MINE / 2) * 2, col = rank * MINE + c;
        float2 v = make_float2(0, 0);
        float total = 0;

        h = i / (MINE / 2);
#pragma unroll
        for (int g = 0; g < GANG; g++) {
            float2 part = *(const float2 *)(shares + (g * TALL + h) * WIDE + c);

            v.x += part.x;
            v.y += part.y;
            total += sum_of[g][h];
        }
        v = make_float2(rounded(v.x / total, a.round), rounded(v.y / total, a.round));
        if (col >= turn.begin) {
            float2 pair = turn.pair[(col - turn.begin) / 2];

            v = turned(v, make_float2(pair.x, -pair.y), a.round);
        }
        *(float2 *)(a.o + at + (size_t)h * DIM + col) = v;
    }
}

template <int DIM>
static void gang_launch(struct queue *q, const struct attend_args *a, int room, size_t shared)
{
    launch_cluster(q, attend_gang<DIM>, GANG,
                   dim3(GANG, blocks_for((size_t)a->heads, TALL), (unsigned)a->rows), THREADS,
                   shared, *a, room);
}

// Rows of a state begin where words of `align` bytes do.
static bool aligned(const struct state_view &v, size_t align)
{
    return ((uintptr_t)v.base | v.slot_stride | v.row_bytes) % align == 0;
}

bool attend_by_gang(struct queue *q, const struct attend_args *a, int keys)
{
    struct cuda_device *d = (struct cuda_device *)q->dev;
    int room = (keys + GANG * 16 - 1) / (GANG * 16) * 16;
    size_t shared = key_bytes(a->dim, room) + head_bytes(a->dim, room);

    if (!d->gangs || a->win.codec != CODEC_QW || (a->more.base && a->more.codec != CODEC_QC) ||
        !aligned(a->win, a->dim == 512 ? 16 : 4) || (a->more.base && !aligned(a->more, 4)) ||
        (a->freq && (a->dims % 4 != 0 || a->dims > 2 * PAIRS_MAX)) ||
        (a->dim != 512 && a->dim != 256 && a->dim != 128))
        return false;
    if (room > GANG_KEYS || shared > (size_t)(d->shared_max - SHARED_STATIC)) {
        if (!d->told)
            log_warn("attend: heads of %d over %d keys need %zu bytes of shared memory on matrix "
                     "units, a block has %d: a slower kernel runs",
                     a->dim, keys, shared, d->shared_max - SHARED_STATIC);
        d->told = true;
        return false;
    }
    if (a->dim == 512)
        gang_launch<512>(q, a, room, shared);
    else if (a->dim == 256)
        gang_launch<256>(q, a, room, shared);
    else
        gang_launch<128>(q, a, room, shared);
    return true;
}

extern "C" cudaError_t cuda_gang_limits(int shared_max, bool *can)
{
    cudaLaunchAttribute attr = {};
    cudaLaunchConfig_t c = {};
    int gangs = 0;
    cudaError_t e = shared_room(attend_gang<512>, shared_max);

    if (e == cudaSuccess)
        e = shared_room(attend_gang<256>, shared_max);
    if (e == cudaSuccess)
        e = shared_room(attend_gang<128>, shared_max);
    attr.id = cudaLaunchAttributeClusterDimension;
    attr.val.clusterDim.x = GANG;
    attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
    c.gridDim = GANG;
    c.blockDim = THREADS;
    c.dynamicSmemBytes = (size_t)(shared_max - SHARED_STATIC);
    c.attrs = &attr;
    c.numAttrs = 1;
    if (e != cudaSuccess)
        return e;
    if (cudaOccupancyMaxActiveClusters(&gangs, attend_gang<512>, &c) != cudaSuccess)
        (void)cudaGetLastError(); // a device without clusters of such blocks
    *can = gangs > 0;
    return cudaSuccess;
}
