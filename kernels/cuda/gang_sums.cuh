// gang_sums - what a block of gang.cu computes from its keys: logits, sums of values, outputs.
#ifndef TANDEM_KERNELS_CUDA_GANG_SUMS_CUH
#define TANDEM_KERNELS_CUDA_GANG_SUMS_CUH

#include "kernels/cuda/gang_heads.cuh"
#include "kernels/cuda/gang_loose.cuh"

#define GANG_KEYS 128                                 // of a block, at most
#define QUARTERS 4                                    // of the dimensions: warps share out a logit
#define GANG_TILES (GANG_KEYS / 8 * QUARTERS / WARPS) // of 8 keys a warp has logits of, at most
#define SHARED_STATIC 1536 // more than the kernel declares beside its dynamic memory
#define SHARED_KEPT 1024   // of each block by the device itself

// How the partial sums of a gang reach the blocks that add them.
enum gang_way {
    GANG_SENT,    // into shared memory reserved for them
    GANG_CLOSE,   // into the memory of the keys, where a block has little shared memory
    GANG_THROUGH, // through scratch in global memory
    GANG_LOOSE    // the same, without clusters
};

// What a block receives: every block's partial sums of this one's dimensions.
__host__ __device__ static constexpr size_t share_bytes(int dim)
{
    return (size_t)GANG * TALL * (size_t)(dim / GANG + PAD) * sizeof(float);
}

// Keys of a block as bf16.
__host__ __device__ static size_t key_bytes(int dim, int keys)
{
    return (size_t)keys * (size_t)(dim + PAD) * sizeof(uint16_t);
}

// The partial logits; exponentials as bf16 lie behind them.
__host__ __device__ static constexpr size_t logit_bytes(int keys, bool tight)
{
    return (size_t)(tight ? QUARTERS / 2 : QUARTERS) * sizeof(float) * TALL * (size_t)(keys + PAD);
}

// The heads as bf16; logits and exponentials reuse the memory.
__host__ __device__ static size_t head_bytes(int dim, int keys, bool tight)
{
    size_t head = (size_t)TALL * (size_t)(dim + PAD) * sizeof(uint16_t);
    size_t logit = logit_bytes(keys, tight) + sizeof(uint16_t) * TALL * (size_t)(keys + PAD);

    return head > logit ? head : logit;
}

// Where in a block's shared memory the received sums lie; tight: where the keys were.
__device__ static inline size_t sums_from(int dim, int keys, bool tight)
{
    return tight ? 0 : key_bytes(dim, keys) + head_bytes(dim, keys, tight);
}

// Whether partial logits have memory apart from the heads: that of the received sums, which no
// block sends before it has this one's largest logits. Else they reuse that of the heads.
__host__ __device__ static constexpr bool parts_apart(int dim, enum gang_way way)
{
    return way == GANG_SENT && logit_bytes(GANG_KEYS, false) <= share_bytes(dim);
}

__device__ static inline size_t parts_from(int dim, int keys, enum gang_way way)
{
    return parts_apart(dim, way) ? sums_from(dim, keys, false) : key_bytes(dim, keys);
}

// A warp's sums of its tiles; a lane has two columns of two rows of each.
struct gang_sums {
    float v[GANG_TILES][4];
};

// The warp's t-th tile of 8 keys; past the last tile the last one again.
__device__ static inline int tile_of(int t, int tiles)
{
    return min((int)threadIdx.x / CUDA_WARP / QUARTERS + WARPS / QUARTERS * t, max(tiles, 1) - 1);
}

// Store a warp's logits as part `part`; MORE: add to what is there.
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

// Store partial logits, one part for each quarter of the dimensions; GANG_CLOSE: for each half.
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

// Logits of up to T * 32 keys: a warp has a quarter of the dimensions and every fourth tile.
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

// The same for heads that are not bf16 numbers, from the f32 heads.
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

// Two neighbouring lanes trade a pair of columns, so that each has four adjacent ones, the even
// lane those of the first pair; store or send them.
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

// Sums of values: a warp has COLS columns and sends their sums to the block that finishes them.
// weight: exponentials as bf16, NULL: use prob, in f32. far: scratch that sums go through, NULL:
// they are sent to `share` of that block, whose barrier `come` counts them.
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

        if (HEADS == FLAT) // numbers past the keys are loaded, but not used
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
        gang_meet(); // no block needs its keys any more
    if (n0 >= DIM)
        return;
    to = (FAR ? far + (size_t)peer * (GANG * TALL * WIDE) : share) + rank * TALL * WIDE +
         n0 % (DIM / GANG) + lane % 4 / 2 * 4;
    if (HEADS <= 8 ||
        heads <= 8) { // one lane of two has four columns of a tile, the other of the next tile
        to += r * WIDE + odd * 8;
#pragma unroll
        for (int t = 0; t < TILES; t += 2)
            sums_send<FAR>(acc[t][0], acc[t][1], acc[t + 1][0], acc[t + 1][1], r < heads,
                           to + t * 8, come, peer);
    } else { // one has row r, the other row r + 8
        to += (r + odd * 8) * WIDE;
#pragma unroll
        for (int t = 0; t < TILES; t++)
            sums_send<FAR>(acc[t][0], acc[t][1], acc[t][2], acc[t][3], r + odd * 8 < heads,
                           to + t * 8, come, peer);
    }
}

// x / y from by = 1 / y; y is neither very small nor very large.
__device__ static inline float over(float x, float y, float by)
{
    float q = x * by;

    return fmaf(fmaf(-q, y, x), by, q);
}

// What a block requests before earlier kernels have ended: its parameters, a cache line a warp,
// and, into L2 only as they may still be written, its row's list, position and heads.
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

// A lane's logits of a head, every 32nd key; returns the largest of them and of `most`.
template <bool TIGHT, int OWN>
__device__ static inline float logits_take(const float *part, int ld, int mine, float scale,
                                           float most, float (&l)[OWN])
{
    int lane = (int)(thread_here() % CUDA_WARP);
    float v[OWN][QUARTERS];

#pragma unroll
    for (int i = 0; i < OWN; i++) { // all loads are in flight before the first addition
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

// The outputs of a block's share of the dimensions: the blocks' sums of values, added in order,
// over the sum of exponentials.
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

#endif
