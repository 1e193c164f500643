// gang.cu owns attention on matrix units, where both states are quantised.
//
// Values of quantised rows are bf16 numbers, so products with them are exact once the other side is
// taken apart into bf16 planes. A gang of blocks (a cluster) has a row and TALL heads; each block
// decodes its share of the keys once and keeps it for both products. Blocks meet three times: for the
// largest logit, for the sums, and before they leave. How keys are dealt out depends on the number of
// keys of the row alone, and shares are added in order.
#include <cooperative_groups.h>
#include <utility>

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/matrix.cuh"
#include "kernels/cuda/turn.cuh"

extern "C" {
#include "src/base/log.h"
}

#define WARPS 8
#define THREADS (WARPS * CUDA_WARP)
#define GANG 8        // blocks that share out the keys of a row
#define TALL 16       // heads: rows of an instruction
#define GANG_KEYS 128 // of a block, at most
#define GANG_TILES 4  // of 8 keys a warp has logits of, at most
#define GANG_AHEAD 5  // pieces of 16 values a thread has on their way
#define SEL_AHEAD 2   // of a thread's selected rows on their way
#define PAD 8         // values behind a row in shared memory, so that neighbours lie in other banks
#define PAIRS_MAX 32  // that turn by position
#define SHARED_STATIC 1408 // more than the kernel declares beside its dynamic memory

// Keys of a block as bf16; the block's sums lie in the same place afterwards.
__host__ __device__ static size_t key_bytes(int dim, int keys)
{
    size_t key = (size_t)keys * (size_t)(dim + PAD) * sizeof(uint16_t);
    size_t out = (size_t)TALL * (size_t)(dim + PAD) * sizeof(float);

    return key > out ? key : out;
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

// The heads as bf16; the two halves of their logits lie in the same place afterwards.
__host__ __device__ static size_t head_bytes(int dim, int keys)
{
    size_t head = (size_t)TALL * (size_t)(dim + PAD) * sizeof(uint16_t);
    size_t logit = 2 * sizeof(float) * TALL * (size_t)(keys + PAD);

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

// Those keys as bf16, zeros behind the end; the first `win` of them are rows of the window. A warp
// a key, or several where rows are short.
template <int DIM>
__device__ static void gang_load(const struct attend_args &a, int slot, const int32_t *row_at,
                                 int win, int keys, uint16_t *key)
{
    const unsigned char *near = a.win.base + (size_t)slot * a.win.slot_stride;
    const unsigned char *far = a.more.base + (size_t)slot * a.more.slot_stride;
    constexpr int PIECES = DIM / 16, LD = DIM + PAD;

    for (int i0 = (int)threadIdx.x; i0 < keys * PIECES; i0 += GANG_AHEAD * THREADS) {
        uint32_t raw[GANG_AHEAD][4];
        uint8_t scale[GANG_AHEAD];

#pragma unroll
        for (int i = 0; i < GANG_AHEAD; i++) {
            int at = i0 + i * THREADS, j = at / PIECES, c = at % PIECES * 16;
            int at_row = at < keys * PIECES ? row_at[j] : -1;
            const unsigned char *row;

            raw[i][0] = raw[i][1] = raw[i][2] = raw[i][3] = 0;
            scale[i] = 0;
            if (at_row < 0)
                continue;
            if (j < win) {
                row = near + (size_t)at_row * a.win.row_bytes;
                scale[i] = row[DIM + c / 32];
                if (DIM % 512 == 0) {
                    uint4 u = *(const uint4 *)(row + c);

                    raw[i][0] = u.x;
                    raw[i][1] = u.y;
                    raw[i][2] = u.z;
                    raw[i][3] = u.w;
                } else {
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        raw[i][k] = ((const uint32_t *)(row + c))[k];
                }
            } else {
                row = far + (size_t)at_row * a.more.row_bytes;
                scale[i] = row[DIM / 2 + c / 16];
                raw[i][0] = ((const uint32_t *)(row + c / 2))[0];
                raw[i][1] = ((const uint32_t *)(row + c / 2))[1];
            }
        }
#pragma unroll
        for (int i = 0; i < GANG_AHEAD; i++) {
            int at = i0 + i * THREADS, j = at / PIECES;

            if (at < keys * PIECES)
                put_codes(j < win ? CODEC_QW : CODEC_QC, raw[i], scale[i],
                          key + j * LD + at % PIECES * 16);
        }
    }
}

// The heads' values of a thread, on their way while keys are looked for.
template <int DIM> struct gang_heads {
    float4 v[DIM / 64];
};

template <int DIM>
__device__ static inline struct gang_heads<DIM> heads_fetch(const float *q, int heads) {
    struct gang_heads<DIM> g;

#pragma unroll
    for (int i = 0; i < DIM / 64; i++) {
        int at = (int)threadIdx.x + i * THREADS;

        g.v[i] = at / (DIM / 4) < heads ? ((const float4 *)q)[at] : make_float4(0, 0, 0, 0);
    }
    return g;
}

// Turned and as bf16 to [TALL][DIM + PAD]; true if something of a value is left out.
template <int DIM>
__device__ static inline bool heads_put(const struct gang_heads<DIM> &g,
                                        const struct gang_turn &turn, enum round round,
                                        uint16_t *to)
{
    bool more = false;

#pragma unroll
    for (int i = 0; i < DIM / 64; i++) {
        int at = (int)threadIdx.x + i * THREADS, c = at % (DIM / 4) * 4;
        float2 x = make_float2(g.v[i].x, g.v[i].y), y = make_float2(g.v[i].z, g.v[i].w);
        uint2 u;

        if (c >= turn.begin) {
            x = turned(x, turn.pair[(c - turn.begin) / 2], round);
            y = turned(y, turn.pair[(c - turn.begin) / 2 + 1], round);
        }
        u.x = plane_of(x.x, x.y);
        u.y = plane_of(y.x, y.y);
        more |= x.x != 0 || x.y != 0 || y.x != 0 || y.y != 0;
        *(uint2 *)(to + at / (DIM / 4) * (DIM + PAD) + c) = u;
    }
    return more;
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

// Logits of `keys` keys, of two halves of the dimensions: a warp a half and every fourth 8 keys. They go
// where the heads lay. `more`: the heads are no bf16 numbers.
template <int DIM>
__device__ static void gang_logits(const float *q, int heads, const struct gang_turn &turn,
                                   enum round round, bool more, const uint16_t *head,
                                   const uint16_t *key, int keys, float *logit)
{
    constexpr int LD = DIM + PAD;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int half = warp % 2, tile0 = warp / 2, tiles = keys / 8;
    float top[GANG_TILES][4] = {}, rest[GANG_TILES][4] = {}, *to;

#pragma unroll 2
    for (int k = half * (DIM / 2); k < (half + 1) * (DIM / 2); k += 32) {
        struct planes p[2];

        if (more) {
            p[0] = heads_planes<DIM>(q, heads, turn, round, k);
            p[1] = heads_planes<DIM>(q, heads, turn, round, k + 16);
        } else {
            heads_load<DIM>(p[0].top, head, k);
            heads_load<DIM>(p[1].top, head, k + 16);
        }
#pragma unroll
        for (int t = 0; t < GANG_TILES; t++) {
            uint32_t b[4];

            if (tile0 + 4 * t >= tiles)
                break;
            matrices_load(b, key + ((tile0 + 4 * t) * 8 + lane % 8) * LD + k + lane / 8 * 8);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                multiply(top[t], p[s].top, b[2 * s], b[2 * s + 1]);
                if (more && p[s].more) {
                    multiply(rest[t], p[s].low, b[2 * s], b[2 * s + 1]);
                    multiply(rest[t], p[s].mid, b[2 * s], b[2 * s + 1]);
                }
            }
        }
    }
    __syncthreads(); // the heads have been used
#pragma unroll
    for (int t = 0; t < GANG_TILES; t++) {
        to = logit + (half * TALL + lane / 4) * (keys + PAD) + (tile0 + 4 * t) * 8 + lane % 4 * 2;
        if (tile0 + 4 * t >= tiles)
            break;
        to[0] = top[t][0] + rest[t][0];
        to[1] = top[t][1] + rest[t][1];
        to[8 * (keys + PAD)] = top[t][2] + rest[t][2];
        to[8 * (keys + PAD) + 1] = top[t][3] + rest[t][3];
    }
}

// Values: a warp DIM / 8 columns. The sums go where the keys lay.
template <int DIM> __device__ static void gang_values(const float *prob, uint16_t *key, int keys)
{
    constexpr int LD = DIM + PAD, TILES = DIM / 8 / WARPS;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int r = lane / 4, c = lane % 4 * 2, n0 = warp * (DIM / WARPS);
    float acc[TILES][4] = {}, *out = (float *)key;

    for (int k = 0; k < keys; k += 16) {
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
    __syncthreads(); // the keys have been used
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[(r + i / 2 * 8) * LD + n0 + t * 8 + c + i % 2] = acc[t][i];
}

__device__ static inline void turn_back(float4 &v, const float2 *pair, enum round round)
{
    float2 x = turned(make_float2(v.x, v.y), make_float2(pair[0].x, -pair[0].y), round);
    float2 y = turned(make_float2(v.z, v.w), make_float2(pair[1].x, -pair[1].y), round);

    v = make_float4(x.x, x.y, y.x, y.y);
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
    int rank = (int)blockIdx.x, h0 = (int)blockIdx.y * TALL, row = (int)blockIdx.z;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, warp = t / CUDA_WARP;
    int heads = a.heads - h0 < TALL ? a.heads - h0 : TALL, share, keys, mine, ld;
    size_t at = ((size_t)row * (size_t)a.heads + (size_t)h0) * DIM;
    struct gang_heads<DIM> head = heads_fetch<DIM>(a.q + at, heads);
    struct gang_row w = { a.info[row].slot, 0, 0, 0, a.sel + (size_t)row * (size_t)a.topk };
    uint16_t *key = (uint16_t *)dynamic, *head_at = key + key_bytes(DIM, room) / sizeof(*key);
    float *logit = (float *)head_at;
    struct span s = window_of(a, row);
    int32_t *row_at = (int32_t *)sum_of; // until sums come in
    bool more;

    static_assert(sizeof(sum_of) >= GANG_KEYS * sizeof(*row_at), "a place for each key");
    if (t == 0)
        turn.begin = a.freq ? DIM - a.dims : DIM;
    for (int i = t; a.freq && i < a.dims / 2; i += THREADS)
        turn.pair[i] = turn_of(a.info[row].pos, a.freq[i], false);
    w.lo = s.lo;
    w.win = w.n = s.hi - s.lo;
    __syncthreads();
    for (int i0 = t; a.more.base && i0 - t < a.topk; i0 += SEL_AHEAD * THREADS) {
        bool there[SEL_AHEAD];

#pragma unroll
        for (int i = 0; i < SEL_AHEAD; i++)
            there[i] = i0 + i * THREADS < a.topk && w.sel[i0 + i * THREADS] >= 0;
#pragma unroll
        for (int i = 0; i < SEL_AHEAD; i++)
            w.n += __syncthreads_count(there[i]);
    }
    share = (w.n + GANG * 16 - 1) / (GANG * 16) * 16;
    mine = w.n - rank * share;
    mine = mine < 0 ? 0 : mine < share ? mine : share;
    keys = (mine + 15) / 16 * 16;
    ld = keys + PAD;
    rows_find(a, w, rank * share, keys, row_at);
    more = heads_put<DIM>(head, turn, a.round, head_at);
    __syncthreads();
    gang_load<DIM>(a, w.slot, row_at, w.win - rank * share, keys, key);
    more = __syncthreads_or(more);
    gang_logits<DIM>(a.q + at, heads, turn, a.round, more, head_at, key, keys, logit);
    __syncthreads();
    gang.barrier_wait(std::move(here));
    for (int h = warp; h < heads; h += WARPS) {
        float most = a.sink[h0 + h];

        for (int j = lane; j < mine; j += CUDA_WARP) {
            float l = (logit[h * ld + j] + logit[(TALL + h) * ld + j]) * a.scale;

            logit[h * ld + j] = l;
            most = l > most ? l : most;
        }
        most = warp_max(most);
        if (lane < GANG)
            *gang.map_shared_rank(&most_of[rank][h], lane) = most;
    }
    gang.sync();
    for (int h = warp; h < TALL; h += WARPS) {
        float most = -INFINITY, sum = 0;

#pragma unroll
        for (int i = 0; i < GANG; i++)
            most = h < heads && most_of[i][h] > most ? most_of[i][h] : most;
        for (int j = lane; j < keys; j += CUDA_WARP) {
            float e = h < heads && j < mine ? expf(logit[h * ld + j] - most) : 0;

            sum += e;
            logit[h * ld + j] = rounded(e, a.round);
        }
        sum = warp_sum(sum);
        if (rank == 0 && h < heads)
            sum += expf(a.sink[h0 + h] - most);
        if (lane < GANG)
            *gang.map_shared_rank(&sum_of[rank][h], lane) = sum;
    }
    __syncthreads();
    gang_values<DIM>(logit, key, keys);
    gang.sync();
    for (int i = t; i < heads * (DIM / GANG / 4); i += THREADS) {
        int h = i / (DIM / GANG / 4), c = rank * (DIM / GANG) + i % (DIM / GANG / 4) * 4;
        float4 part[GANG], sum = make_float4(0, 0, 0, 0);
        float total = 0;

#pragma unroll
        for (int g = 0; g < GANG; g++)
            part[g] =
                *(const float4 *)(gang.map_shared_rank((float *)key, g) + h * (DIM + PAD) + c);
#pragma unroll
        for (int g = 0; g < GANG; g++) {
            sum.x += part[g].x;
            sum.y += part[g].y;
            sum.z += part[g].z;
            sum.w += part[g].w;
            total += sum_of[g][h];
        }
        sum = make_float4(rounded(sum.x / total, a.round), rounded(sum.y / total, a.round),
                          rounded(sum.z / total, a.round), rounded(sum.w / total, a.round));
        if (c >= turn.begin)
            turn_back(sum, &turn.pair[(c - turn.begin) / 2], a.round);
        *(float4 *)(a.o + at + (size_t)h * DIM + c) = sum;
    }
    gang.sync(); // nobody leaves while its sums are read
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
