// gang_slices.cu owns attention of windows whose gangs would not all be resident as clusters.
//
// Keys are split into the parts of gang.cu, and all sums have its order. In gang.cu a block sends
// its sums of values, 16 heads of 512 f32, to the blocks that add them: 8.4 MB of 16 rows, written
// and read again. Here blocks exchange exponentials, as bf16. Each block then takes a slice of the
// dimensions of all keys, which it decodes for that a second time, and has all parts of its sums.
// Blocks synchronise twice, for the largest logits and for the exponentials, and decode while they
// wait. They are not a cluster; they get their places as in gang_loose.cuh.
#include "kernels/cuda/gang_sums.cuh"

#define SLICE_WINDOW 128 // keys of the window, at most
#define SLICE_CHOSEN 512 // keys that were selected, at most
#define SLICE_PART 80    // keys of a part, at most
#define SLICE_OWN 3      // keys of a part that a lane has, at most

// A gang has GANG / PARTS blocks, a block PARTS parts of the keys and WIDTH dimensions.
template <int DIM, int PARTS> struct slices {
    static constexpr int BLOCKS = GANG / PARTS, WIDTH = DIM / BLOCKS, WIDE = WIDTH + PAD;
    static constexpr int PIECES = WIDTH / 16;                    // of 16 values, of a key's slice
    static constexpr int NEAR = SLICE_WINDOW * PIECES / THREADS; // pieces of a thread
    static constexpr int FAR = SLICE_CHOSEN * PIECES / THREADS;
    static constexpr int FIRST = FAR / 2 - NEAR / 2; // of FAR: decoded in the first half
};

// Shared memory has two areas. In the first lie keys and heads, later values, at last sums.
template <int DIM, int PARTS> __host__ __device__ static size_t slice_front(int part)
{
    using S = slices<DIM, PARTS>;
    size_t keys = (size_t)(PARTS * part + TALL) * (DIM + PAD) * sizeof(uint16_t);
    size_t values = (size_t)(GANG * part) * S::WIDE * sizeof(uint16_t);
    size_t sums = (size_t)(GANG * TALL) * S::WIDE * sizeof(float);

    keys = keys > values ? keys : values;
    return keys > sums ? keys : sums;
}

// All of it: in the second area lie partial logits, later exponentials as bf16.
template <int DIM, int PARTS> static size_t slice_bytes(int part)
{
    size_t logit = QUARTERS * TALL * (size_t)(PARTS * part + PAD) * sizeof(float);
    size_t weight = TALL * (size_t)(GANG * part + PAD) * sizeof(uint16_t);

    return slice_front<DIM, PARTS>(part) + (logit > weight ? logit : weight);
}

// Scratch of a gang, in floats: sums of exponentials [GANG][TALL], then exponentials as bf16,
// [TALL][GANG * part].
__host__ __device__ static size_t slice_floats(int part)
{
    return (size_t)(GANG * TALL) + (size_t)(TALL * GANG / 2 * part);
}

// A thread's pieces, as they are stored.
template <int DIM, int PARTS> struct slice_codes {
    using S = slices<DIM, PARTS>;
    uint4 near[S::NEAR];
    uint2 far[S::FAR];
    uint8_t near_by[S::NEAR], far_by[S::FAR];
};

// Load them. The pieces of a warp are of neighbouring keys.
template <int DIM, int PARTS>
__device__ static inline void slice_fetch(const struct attend_args &a, const struct gang_row &w,
                                          int rank, struct slice_codes<DIM, PARTS> &s)
{
    using S = slices<DIM, PARTS>;
    int t = (int)thread_here(), key = t / S::PIECES, c = rank * S::WIDTH + t % S::PIECES * 16;
    const unsigned char *near = a.win.base + (size_t)w.slot * a.win.slot_stride;
    const unsigned char *far = a.more.base + (size_t)w.slot * a.more.slot_stride;
    int row[S::FAR];

#pragma unroll
    for (int i = 0; i < S::FAR; i++) {
        int j = w.win + key + i * (THREADS / S::PIECES);

        row[i] = j < w.n ? w.sel[j - w.win] : -1;
    }
#pragma unroll
    for (int i = 0; i < S::NEAR; i++) {
        int j = key + i * (THREADS / S::PIECES), r = w.first + j;
        const unsigned char *at =
            near + (size_t)(uint32_t)(r < a.win.cap ? r : r - a.win.cap) * a.win.row_bytes;

        s.near[i] = make_uint4(0, 0, 0, 0);
        s.near_by[i] = 0;
        if (j < w.win) {
            s.near[i] = *(const uint4 *)(at + c);
            s.near_by[i] = at[DIM + c / 32];
        }
    }
#pragma unroll
    for (int i = 0; i < S::FAR; i++) {
        const unsigned char *at = far + (size_t)(uint32_t)row[i] * a.more.row_bytes;

        s.far[i] = make_uint2(0, 0);
        s.far_by[i] = 0;
        if (row[i] >= 0) {
            s.far[i] = *(const uint2 *)(at + c / 2);
            s.far_by[i] = at[DIM / 2 + c / 16];
        }
    }
}

// Store a piece; four lanes of eight begin with the other half: no bank conflict.
__device__ static inline void slice_put(uint16_t *to, const uint32_t (&v)[4],
                                        const uint32_t (&w)[4])
{
    bool other = threadIdx.x / 4 % 2;
    uint4 first = make_uint4(v[0], v[1], v[2], v[3]), last = make_uint4(w[0], w[1], w[2], w[3]);

    ((uint4 *)to)[other ? 1 : 0] = other ? last : first;
    ((uint4 *)to)[other ? 0 : 1] = other ? first : last;
}

// Decode a half of the pieces to bf16, WIDE numbers a key. ONCE: no scale is so large that codes
// cannot be multiplied once (keys_decode_whole).
template <bool ONCE, int HALF, int DIM, int PARTS>
__device__ static inline void
slice_put_all(const struct gang_row &w, const struct slice_codes<DIM, PARTS> &s, uint16_t *value)
{
    using S = slices<DIM, PARTS>;
    int t = (int)thread_here(), key = t / S::PIECES, c = t % S::PIECES * 16;
    uint32_t v[4], u[4];

#pragma unroll
    for (int i = HALF ? S::NEAR : 0; i < S::NEAR; i++) {
        int j = key + i * (THREADS / S::PIECES);
        uint32_t by = scale_pair(s.near_by[i]);

        if (ONCE) {
            by = bf16_times(by, 0x7b807b80u);
            e4m3_eight_once(s.near[i].x, s.near[i].y, by, v);
            e4m3_eight_once(s.near[i].z, s.near[i].w, by, u);
        } else {
            e4m3_eight(s.near[i].x, s.near[i].y, by, v);
            e4m3_eight(s.near[i].z, s.near[i].w, by, u);
        }
        if (j < w.win)
            slice_put(value + j * S::WIDE + c, v, u);
    }
#pragma unroll
    for (int i = HALF ? S::FIRST : 0; i < (HALF ? S::FAR : S::FIRST); i++) {
        int j = w.win + key + i * (THREADS / S::PIECES);
        uint32_t scale = s.far_by[i], by = e4m3_far(scale * 0x10001);

        if (ONCE) {
            by = bf16_times(by, 0x7e807e80u);
            e2m1_eight_once(s.far[i].x, by, v);
            e2m1_eight_once(s.far[i].y, by, u);
        } else {
            by = (scale & 0x7f) == 0x7f ? 0x7fc07fc0u : by;
            e2m1_eight(s.far[i].x, by, v);
            e2m1_eight(s.far[i].y, by, u);
        }
        if (j < w.n)
            slice_put(value + j * S::WIDE + c, v, u);
    }
}

// The same for any scales; the second half has zeros past the last key.
template <int HALF, int DIM, int PARTS>
__device__ static inline void slice_decode(const struct gang_row &w,
                                           const struct slice_codes<DIM, PARTS> &s, uint16_t *value)
{
    using S = slices<DIM, PARTS>;
    int t = (int)thread_here(), key = t / S::PIECES, c = t % S::PIECES * 16;
    bool large = false;

#pragma unroll
    for (int i = 0; i < S::NEAR; i++)
        large |= s.near_by[i] > 127 + 7;
#pragma unroll
    for (int i = 0; i < S::FAR; i++)
        large |= (s.far_by[i] & 0x7f) > 0x40;
    if (__any_sync(FULL_MASK, large))
        slice_put_all<false, HALF, DIM, PARTS>(w, s, value);
    else
        slice_put_all<true, HALF, DIM, PARTS>(w, s, value);
    if (HALF && key < (16 - w.n % 16) % 16) {
        *(uint4 *)(value + (w.n + key) * S::WIDE + c) = make_uint4(0, 0, 0, 0);
        *(uint4 *)(value + (w.n + key) * S::WIDE + c + 8) = make_uint4(0, 0, 0, 0);
    }
}

// Sums of values of a part: it has two warps, each with half of the slice.
template <int WIDTH>
__device__ static inline void slice_values(const uint16_t *weight, int ld, const uint16_t *value,
                                           int from, int keys, float (&acc)[WIDTH / 16][4])
{
    int lane = (int)threadIdx.x % CUDA_WARP, n0 = (int)threadIdx.x / CUDA_WARP % 2 * (WIDTH / 2);
    const uint16_t *at =
        value + (from + lane / 8 % 2 * 8 + lane % 8) * (WIDTH + PAD) + n0 + lane / 16 * 8;

#pragma unroll
    for (int k = 0; k < SLICE_PART; k += 16, at += 16 * (WIDTH + PAD)) {
        uint32_t left[4];

        if (k >= keys)
            break;
        left_load(left, weight, ld, from + k);
#pragma unroll
        for (int t = 0; t < WIDTH / 16; t += 2) {
            uint32_t b[4];

            matrices_load_turned(b, at + t * 8);
            multiply(acc[t], left, b[0], b[1]);
            multiply(acc[t + 1], left, b[2], b[3]);
        }
    }
}

// The largest logit of a head in the gang; at: the first block's, TALL words before the next one's.
// A warp.
template <int BLOCKS> __device__ static inline float slices_most(const uint64_t *at)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    uint64_t word;

    do
        word = whole_read(at + lane % BLOCKS * TALL);
    while (!(word & LOOSE_THERE));
    return warp_max(f32_from_bits((uint32_t)word));
}

// A lane's logits of a head, every 32nd key of each of the block's parts, -INFINITY past the last;
// returns the largest of them and of `most`. logit: the head's partial logits, rows of ld.
template <int PARTS>
__device__ static inline float own_logits(const float *logit, int ld, int part, int mine,
                                          float scale, float most, float (&own)[PARTS][SLICE_OWN])
{
    int lane = (int)(thread_here() % CUDA_WARP);

#pragma unroll
    for (int p = 0; p < PARTS; p++) { // all loads are in flight before the first comparison
        const float *from = logit + p * part + lane;

#pragma unroll
        for (int i = 0; i < SLICE_OWN; i++) {
            float v[QUARTERS] = {};

#pragma unroll
            for (int k = 0; k < QUARTERS; k++)
                if (lane + i * CUDA_WARP < min(part, mine - p * part))
                    v[k] = from[k * TALL * ld + i * CUDA_WARP];
            own[p][i] = (v[0] + v[1]) + (v[2] + v[3]);
        }
    }
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < SLICE_OWN; i++) {
            bool there = lane + i * CUDA_WARP < min(part, mine - p * part);

            own[p][i] = there ? own[p][i] * scale : -INFINITY;
            most = own[p][i] > most ? own[p][i] : most;
        }
    return most;
}

// A gang has a row and TALL heads. Bound by the latency of its steps and by the bytes that a
// multiprocessor reads from L2.
template <int DIM, int PARTS>
__global__ static void __launch_bounds__(THREADS, 1)
    attend_slices(const __grid_constant__ attend_args a, int room, struct gang_loose loose)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    __shared__ float sum_of[GANG][TALL], sink_of[TALL];
    __shared__ uint32_t place;
    __shared__ struct gang_turn turn;
    __shared__ uint64_t keys_come;
    using S = slices<DIM, PARTS>;
    constexpr int OWN = (PARTS * SLICE_PART + CUDA_WARP - 1) / CUDA_WARP; // keys of a lane
    uint32_t at_place = loose_place(loose, &place);
    int rank = (int)(at_place % S::BLOCKS), gang = (int)(at_place / S::BLOCKS);
    int row = gang / (int)gridDim.y, h0 = gang % (int)gridDim.y * TALL;
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, h = t / CUDA_WARP;
    int heads = min(TALL, a.heads - h0), part, from, keys, mine, ld, chosen;
    size_t at = ((size_t)row * (size_t)a.heads + (size_t)h0) * DIM;
    struct gang_row w = { 0, 0, 0, 0, a.sel + (size_t)row * (size_t)a.topk };
    struct gang_heads<DIM, TALL> head;
    struct slice_codes<DIM, PARTS> code;
    uint16_t *key = (uint16_t *)dynamic, *head_at = key + PARTS * room * (DIM + PAD);
    float *parts = (float *)(dynamic + slice_front<DIM, PARTS>(room)), *sums = (float *)dynamic;
    uint16_t *far;
    float *far_sum, sink, freq, most, own[PARTS][SLICE_OWN], acc[S::WIDTH / 16][4] = {};
    struct row_info here;
    struct span s;
    uint32_t rest = 0;

    static_assert(WARPS == TALL && WARPS == 2 * GANG, "a warp a head, two a part");
    gang_ahead<DIM, S::BLOCKS>(a, row, a.q + at, heads, rank);
    if (t == 0) {
        barrier_init(&keys_come, 1);
        barrier_publish();
    }
    freq = a.freq && t < a.dims / 2 ? a.freq[t] : 0; // weights
    sink = t < heads ? a.sink[h0 + t] : 0;
    dependency_wait();
    chosen = a.more.base && t < a.topk ? w.sel[t] : -1;
    here = a.info[row];
    s = window_of(a, row);
    head = heads_fetch<DIM, TALL>(a.q + at, heads);
    w.slot = here.slot;
    w.first = s.lo % a.win.cap;
    w.win = s.hi - s.lo;
    w.n = w.win + __syncthreads_count(chosen >= 0);
    part = (w.n + GANG * 16 - 1) / (GANG * 16) * 16;
    from = rank * PARTS * part;
    mine = min(max(w.n - from, 0), PARTS * part);
    keys = (mine + 15) / 16 * 16;
    ld = keys + PAD;
    keys_bring<DIM>(a, w, from, mine, key, &keys_come);
    if (t == 0)
        turn.begin = a.freq ? DIM - a.dims : DIM;
    if (a.freq && t < a.dims / 2)
        turn.pair[t] = turn_of(here.pos, freq, false);
    if (t < TALL)
        sink_of[t] = sink;
    __syncthreads();
    heads_put<DIM, TALL>(head, turn, a.round, heads, head_at, rest);
    barrier_wait(&keys_come, 0);
    slice_fetch<DIM, PARTS>(a, w, rank, code);
    keys_decode_whole<DIM>(w.win - from, mine, keys, key);
    if (__syncthreads_or(rest != 0)) {
        logits_of_planes<DIM, TALL, OWN, GANG_SLICES>(a, turn, row, h0, TALL, keys, parts);
        slice_fetch<DIM, PARTS>(a, w, rank, code); // again: nothing is kept over a call
    } else if (keys <= 32)
        gang_logits<DIM, TALL, 1, GANG_SLICES>(head_at, key, keys, parts);
    else if (keys <= 96)
        gang_logits<DIM, TALL, 3, GANG_SLICES>(head_at, key, keys, parts);
    else
        gang_logits<DIM, TALL, OWN, GANG_SLICES>(head_at, key, keys, parts);
    __syncthreads();                         // keys and heads have been used
    lane = (int)(thread_here() % CUDA_WARP); // read again, to save registers
    h = (int)(thread_here() / CUDA_WARP);
    rank = (int)(place % S::BLOCKS);
    gang = (int)(place / S::BLOCKS);
    far_sum = a.scratch + (size_t)gang * slice_floats(room);
    far = (uint16_t *)(far_sum + GANG * TALL);
    most = own_logits<PARTS>(parts + h * ld, ld, part, h < heads ? mine : 0, a.scale,
                             h < heads ? sink_of[h] : 0, own);
    most = warp_max(most);
    if (lane == 0 && h < heads)
        whole_put(loose.most + place * TALL + h, LOOSE_THERE | f32_bits(most));
    slice_decode<0, DIM, PARTS>(w, code, key);
    if (h < heads)
        most = slices_most<S::BLOCKS>(loose.most + gang * (S::BLOCKS * TALL) + h);
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        float sum = 0;

#pragma unroll
        for (int i = 0; i < SLICE_OWN; i++) { // 0 past the last key
            float e = expf(own[p][i] - most);

            sum += e;
            if (lane + i * CUDA_WARP < part)
                far[h * (GANG * room) + from + p * part + lane + i * CUDA_WARP] =
                    (uint16_t)bf16_pair(e, 0);
        }
        sum = warp_sum(sum);
        if (p == 0 && rank == 0 && h < heads)
            sum += expf(sink_of[h] - most);
        if (lane == 0)
            far_sum[(rank * PARTS + p) * TALL + h] = sum;
    }
    __syncthreads();
    if (t == 0)
        counter_pass(loose.stored + gang * LOOSE_LINE, 2 * S::BLOCKS - 1);
    slice_decode<1, DIM, PARTS>(w, code, key);
    if (t == 0) {
        while (counter_read(loose.stored + gang * LOOSE_LINE) < (uint32_t)S::BLOCKS)
            __nanosleep(LOOSE_NAP);
        counter_pass(loose.stored + gang * LOOSE_LINE, 2 * S::BLOCKS - 1);
    }
    __syncthreads(); // exponentials of the gang are there, and values
    t = (int)thread_here();
    if (t < TALL)
        whole_put(loose.most + place * TALL + t, 0); // all blocks have read it
    ld = GANG * part + PAD;
    if (t < GANG * TALL)
        sum_of[t / TALL][t % TALL] = __ldcg(far_sum + t);
    for (int i = t; i < TALL * part; i += THREADS) // eight exponentials of a head each
        *(uint4 *)((uint16_t *)parts + i / part * ld + i % part * 8) =
            __ldcg((const uint4 *)(far + i / part * (GANG * room) + i % part * 8));
    __syncthreads();
    from = h / 2 * part;
    slice_values<S::WIDTH>((uint16_t *)parts, ld, key, from,
                           min(max((w.n - from + 15) / 16 * 16, 0), part), acc);
    __syncthreads(); // values have been used
#pragma unroll
    for (int i = 0; i < S::WIDTH / 16; i++) {
        float *to = sums + (h / 2 * TALL + lane / 4) * S::WIDE + h % 2 * (S::WIDTH / 2) + i * 8 +
                    lane % 4 * 2;

        *(float2 *)to = make_float2(acc[i][0], acc[i][1]);
        *(float2 *)(to + 8 * S::WIDE) = make_float2(acc[i][2], acc[i][3]);
    }
    __syncthreads();
    sums_end<DIM, GANG_SLICES, S::WIDTH>(a, turn, a.o + at, heads, rank, NULL, sums, sum_of);
}

template <int PARTS>
static void slices_launch(struct queue *q, const struct attend_args *a, int room)
{
    uint32_t *count = cuda_lane(q)->loose;
    struct gang_loose l = { count, count + LOOSE_LINE,
                            (uint64_t *)(count + (1 + LOOSE_GANGS) * LOOSE_LINE) };

    launch(q, attend_slices<512, PARTS>,
           dim3(GANG / PARTS, blocks_for((size_t)a->heads, TALL), (unsigned)a->rows), THREADS,
           slice_bytes<512, PARTS>(room), *a, room, l);
}

bool attend_by_slices(struct queue *q, const struct attend_args *a, int room, bool crowded)
{
    struct cuda_device *d = (struct cuda_device *)q->dev;
    unsigned gangs = blocks_for((size_t)a->heads, TALL) * (unsigned)a->rows;
    unsigned sms = (unsigned)d->sms;
    size_t most = (size_t)(d->shared_max - SHARED_STATIC);

    if (a->dim != 512 || a->round != ROUND_BF16 || gangs > LOOSE_GANGS ||
        a->span + (a->mode == ATTEND_BLOCK ? a->block : 0) > SLICE_WINDOW ||
        (a->more.base && a->topk > SLICE_CHOSEN) ||
        gangs * slice_floats(room) >
            (size_t)d->base.workers * attend_scratch(a->dim, a->span, a->block, a->topk))
        return false;
    if (GANG * gangs <= sms && slice_bytes<512, 1>(room) <= most)
        slices_launch<1>(q, a, room);
    else if (crowded && GANG / 2 * gangs <= sms && slice_bytes<512, 2>(room) <= most)
        slices_launch<2>(q, a, room);
    else
        return false;
    return true;
}

cudaError_t attend_slices_limits(int shared_max)
{
    cudaError_t e = shared_room(attend_slices<512, 1>, shared_max);

    return e == cudaSuccess ? shared_room(attend_slices<512, 2>, shared_max) : e;
}
