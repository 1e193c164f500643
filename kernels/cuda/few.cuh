// few - the product of experts' strips where an expert has a few of the rows. What there is to do is a list of items:
// the expert of up to 8 rows, a strip of 128 outputs (64 without rotations) of one of its matrices, a split of the
// inputs; expert after expert. As many blocks as fit take one item after the other, a warp a part:
//
//   inputs     are made by a kernel in front; blocks begin with their lists and codes while it runs, then wait for it
//   gate, up   sums of a split go to memory; the block that brings the last ones of a strip makes its hidden values
//              and counts the strip for its expert
//   down       waits until all strips of its expert are counted; the block that brings a strip's last sums makes its
//              outputs
//
// A launch each for gate and up, then for down, of every kind of weights; each lets the next one in at once, whose
// blocks come in as places become free, so that no launch ends with the device half idle. A block waits for blocks of
// launches in front alone, which have all begun when it comes in, and the first of them wait for nothing else.
#ifndef TANDEM_KERNELS_CUDA_FEW_CUH
#define TANDEM_KERNELS_CUDA_FEW_CUH

#include "kernels/cuda/narrow.cuh"

#define FEW_THREADS (FEW_WARPS * CUDA_WARP)
#define FEW_SLOTS 2 // pieces on their way to a warp's shared memory
#define FEW_LOTS (FEW_PICKS + FEW_MOST / STRIP_TOKENS)

// Blocks of a multiprocessor.
template <class C> static constexpr int few_blocks = C::BLOCKS *(STRIP_WARPS / FEW_WARPS);

#define FEW_NOBODY 0xffffu

// The picks of a call, and lots of up to 8 rows of an expert of a launch's weights: those of the shared expert have places
// picks + row.
struct few_list {
    int32_t id[FEW_PICKS];
    uint16_t of[FEW_PICKS];  // the pick that begins a pick's lot, and how many of it are in front
    uint16_t lot[FEW_PICKS]; // whether a pick begins a lot, then which
    uint16_t member[FEW_LOTS][STRIP_TOKENS];
    int lots;
};

template <class C> struct few_job {
    const struct mat *w; // NULL: the expert is narrower than others
    int head, expert;    // -1: the shared one
    int strip, split;    // those of up behind those of gate
    int n, pick;         // rows; place of row lane % 8
    C codes;
    int at, end; // the pieces that are the warp's
};

// ---- which block does what ------------------------------------------------------------------

// A matrix of an expert, by role; -1 is the shared one.
__device__ static inline const struct mat *expert_mat(const struct strip_launch &p, int expert,
                                                      bool up)
{
    const struct moe_args &a = p.a;

    if (expert < 0)
        return p.role == STRIP_DOWN ? a.s2 : up ? a.s3 : a.s1;
    return (p.role == STRIP_DOWN ? a.w2 : up ? a.w3 : a.w1) + expert;
}

// What a block asks of a matrix before it takes an expert. Read at once: a question after the other would wait for memory
// as often as there are questions.
struct few_type {
    uint32_t kind;
    bool there, exl3;
};

__device__ static inline struct few_type few_type_of(const struct mat *w)
{
    int dtype = w->dtype, bits2 = w->q.bits2, layout = w->q.layout, rows = w->rows, cols = w->cols;
    bool exl3 = dtype == DTYPE_EXL3;

    return { exl3 ? MAT_KIND_EXL3 << bits2 : 1u << dtype,
             (bool)((dtype < DTYPE_COUNT) | (layout == LAYOUT_DEVICE) | (rows == 0) | (cols == 0)),
             exl3 };
}

// expert_is_here, not mixed, and of the launch's weights; -1 is the shared one.
__device__ static inline bool few_takes(const struct strip_launch &p, uint32_t kind, int expert)
{
    const struct moe_args &a = p.a;
    struct few_type w1 = few_type_of(expert < 0 ? a.s1 : a.w1 + expert);
    struct few_type w3 = few_type_of(expert < 0 ? a.s3 : a.w3 + expert);
    struct few_type w2 = few_type_of(expert < 0 ? a.s2 : a.w2 + expert);

    return ((p.role == STRIP_DOWN ? w2.kind : w1.kind) == kind) & (w1.kind == w3.kind) &
           (w1.exl3 == w2.exl3) & w1.there & w3.there & w2.there & ((w1.kind & a.kinds) != 0) &
           ((w2.kind & a.kinds) != 0);
}

// All threads.
__device__ static inline void few_begin(const struct strip_launch &p, uint32_t kind,
                                        struct few_list *list)
{
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, lots = 0, all;
    bool shared = p.a.s1 && few_takes(p, kind, -1);

    for (int i = t; i < p.picks; i += FEW_THREADS)
        list->id[i] = p.a.id[i];
    __syncthreads();
    for (int i = t; i < p.picks; i += FEW_THREADS) {
        int e = list->id[i], before = 0, head = i;

        for (int k = 0; k < i; k++)
            if (list->id[k] == e) {
                head = before % STRIP_TOKENS ? head : k;
                before++;
            }
        before %= STRIP_TOKENS;
        list->of[i] = (uint16_t)((before ? head : i) * STRIP_TOKENS + before);
        list->lot[i] = FEW_NOBODY;
        if (e >= 0 && e < p.a.experts && few_takes(p, kind, e))
            list->lot[i] = before == 0;
    }
    __syncthreads();
    for (int base = 0; base < p.picks; base += CUDA_WARP) { // each warp for itself, all the same
        int i = base + lane;
        bool head = i < p.picks && list->lot[i] == 1;
        unsigned set = __ballot_sync(FULL_MASK, head);

        __syncthreads();
        if (head && t < CUDA_WARP)
            list->lot[i] = (uint16_t)(lots + __popc(set & ((1u << lane) - 1)) + 2);
        lots += __popc(set);
    }
    all = lots + (shared ? (p.rows + STRIP_TOKENS - 1) / STRIP_TOKENS : 0);
    if (t == 0)
        list->lots = all;
    for (int i = t; i < all * STRIP_TOKENS; i += FEW_THREADS) {
        int row = i - lots * STRIP_TOKENS;

        list->member[i / STRIP_TOKENS][i % STRIP_TOKENS] =
            (uint16_t)(row >= 0 && row < p.rows ? p.picks + row : FEW_NOBODY);
    }
    __syncthreads();
    for (int i = t; i < p.picks; i += FEW_THREADS)
        if (list->lot[i] != FEW_NOBODY)
            list->member[list->lot[list->of[i] / STRIP_TOKENS] - 2][list->of[i] % STRIP_TOKENS] =
                (uint16_t)i;
    __syncthreads();
}

// n / d for n d < 2^32, from d's few_inverse.
__host__ __device__ static inline uint32_t few_inverse(int d)
{
    return (uint32_t)((((uint64_t)1 << 32) + (uint64_t)d - 1) / (uint64_t)d);
}

__device__ static inline int few_over(int n, int d, uint32_t inverse)
{
    return d == 1 ? n : (int)__umulhi((uint32_t)n, inverse);
}

// An item, of which the first codes are on their way near. Whole warps.
template <class C>
__device__ static inline void few_item(const struct strip_launch &p, const struct few_list &list,
                                       int item, struct few_job<C> *j)
{
    constexpr int OUTPUTS = C::TILES * MAT_TILE;
    int lane = (int)(threadIdx.x % CUDA_WARP), each = p.matrices * p.splits;
    int strip = few_over(item, each, p.over[0]), lot = few_over(strip, p.strips, p.over[1]);
    int parts = p.splits * FEW_WARPS, part, pieces;
    const struct mat *w;
    const char *near;

    j->split = item - strip * each;
    j->strip = strip - lot * p.strips;
    j->pick = list.member[lot][lane % STRIP_TOKENS];
    j->n = __popc(__ballot_sync(FULL_MASK, j->pick != FEW_NOBODY)) / (CUDA_WARP / STRIP_TOKENS);
    j->head = list.member[lot][0];
    j->expert = j->head < p.picks ? list.id[j->head] : -1;
    j->w = w = expert_mat(p, j->expert, j->split >= p.splits);
    j->codes = C(*w, j->strip, lane);
    pieces = (int)(((uint32_t)w->cols + OUTPUTS - 1) / OUTPUTS * (OUTPUTS / (16 * C::STEPS)));
    part = (j->split >= p.splits ? j->split - p.splits : j->split) * FEW_WARPS +
           (int)(threadIdx.x / CUDA_WARP);
    j->at = few_over(pieces * part, parts, p.over[2]);
    j->end = few_over(pieces * (part + 1), parts, p.over[2]);
    if (j->strip * OUTPUTS >= w->rows) {
        j->w = NULL;
        return;
    }
    if constexpr (C::F16) { // pieces follow each other
        near =
            (const char *)(j->codes.at - lane) + (size_t)((uint32_t)j->at * C::BYTES) + lane * 128;
#pragma unroll
        for (int k = 0; k < NARROW_AHEAD * C::BYTES; k += 128 * CUDA_WARP)
            if (k + lane * 128 < NARROW_AHEAD * C::BYTES &&
                k + lane * 128 < (j->end - j->at) * C::BYTES)
                prefetch_l2(near + k);
    } else {
        for (int k = 0; k < NARROW_AHEAD; k++)
            narrow_near(j->codes, j->at + k, j->end);
    }
}

// ---- sums -----------------------------------------------------------------------------------

// Counts what the block wrote before; true for the last of `of`, whose threads see what the others wrote behind a barrier.
__device__ static inline bool count_up(uint32_t *counter, uint32_t of)
{
    if (counter_give(counter) != of - 1)
        return false;
    counter_fence();
    return true;
}

__device__ static inline void count_wait(const uint32_t *counter, uint32_t until)
{
    while (counter_read(counter) < until)
        ;
}

template <class C> static constexpr int few_words()
{
    if constexpr (C::F16)
        return C::BYTES / (CUDA_WARP * 16);
    return 0;
}

// What a warp has in shared memory: codes and inputs of the pieces that are on their way, then its sums: those of rows 2 q
// and 2 q + 1 lie together, of outputs g and g + 8 of each tile.
template <class C> struct few_room {
    static constexpr int EACH = C::TILES * 8, LD = EACH + 2;        // others begin in other banks
    static constexpr int CODES = few_words<C>();                    // of 16 bytes, of a lane
    static constexpr int WORDS = C::F16 ? CODES + C::STEPS / 2 : 1; // and of inputs
    union {
        float4 pair[STRIP_TOKENS / 2][LD];
        uint4 piece[FEW_SLOTS][WORDS][CUDA_WARP];
    };
};

template <class C>
__device__ static inline void few_leave(struct few_room<C> &room,
                                        const float (&acc)[C::TILES][1][4], int n)
{
    int lane = (int)(threadIdx.x % CUDA_WARP);

    __syncwarp();
    if (lane % 4 * 2 >= n)
        return;
#pragma unroll
    for (int t = 0; t < C::TILES; t++)
        room.pair[lane % 4][t * 8 + lane / 4] =
            make_float4(acc[t][0][0], acc[t][0][1], acc[t][0][2], acc[t][0][3]);
}

// What warps left is added up in order. z: where the strip's sums of the split begin.
template <class C>
__device__ static inline void few_add(const struct few_room<C> *room, const struct few_job<C> &j,
                                      float *z, int ldz)
{
    constexpr int EACH = few_room<C>::EACH;

    for (uint32_t i = threadIdx.x; i < (uint32_t)(j.n + 1) / 2 * EACH; i += FEW_THREADS) {
        uint32_t q = i / EACH, at = i % EACH;
        int low = C::output((int)at / 8, (int)at % 8, 0),
            high = C::output((int)at / 8, (int)at % 8, 1);
        uint32_t first = (uint32_t)__shfl_sync(FULL_MASK, j.pick, (int)q * 2);
        uint32_t second = (uint32_t)__shfl_sync(FULL_MASK, j.pick, (int)q * 2 + 1);
        float4 s = room[0].pair[q][at];

#pragma unroll
        for (int w = 1; w < FEW_WARPS; w++) {
            float4 v = room[w].pair[q][at];

            s.x += v.x;
            s.y += v.y;
            s.z += v.z;
            s.w += v.w;
        }
        z[first * (uint32_t)ldz + low] = s.x;
        z[first * (uint32_t)ldz + high] = s.z;
        if (q * 2 + 1 < (uint32_t)j.n) {
            z[second * (uint32_t)ldz + low] = s.y;
            z[second * (uint32_t)ldz + high] = s.w;
        }
    }
}

// The lane's four sums of a row, splits in order.
__device__ static inline void few_take(const float *at, size_t split, int splits, int wide,
                                       float (&v)[4])
{
    int lane = (int)threadIdx.x % CUDA_WARP;

    v[0] = v[1] = v[2] = v[3] = 0;
    if (4 * lane >= wide)
        return;
    at += 4 * lane;
#pragma unroll 4
    for (int s = 0; s < splits; s++, at += split) {
        float4 o = __ldcg((const float4 *)at);

        v[0] = s ? v[0] + o.x : o.x;
        v[1] = s ? v[1] + o.y : o.y;
        v[2] = s ? v[2] + o.z : o.z;
        v[3] = s ? v[3] + o.w : o.w;
    }
}

// Hidden values or outputs of a strip, a row a warp.
template <class C>
__device__ static inline void few_give(const struct strip_launch &p, const struct few_job<C> &j)
{
    constexpr bool ROTATED = C::F16;
    int lane = (int)threadIdx.x % CUDA_WARP, wide = ROTATED ? EXL3_BLOCK : 64, n0 = j.strip * wide;
    size_t split = (size_t)p.zrows * (size_t)p.ldz;

    for (int i = (int)threadIdx.x / CUDA_WARP; i < j.n; i += FEW_WARPS) {
        int pick = __shfl_sync(FULL_MASK, j.pick, i);
        const float *at = p.z + (size_t)pick * (size_t)p.ldz + n0;
        float v[4];

        few_take(at, split, p.splits, wide, v);
        if (p.role == STRIP_GATE_UP) {
            const struct mat *w1 = expert_mat(p, j.expert, false);
            const struct mat *w3 = expert_mat(p, j.expert, true);
            const struct mat *w2 = j.expert < 0 ? p.a.s2 : p.a.w2 + j.expert;
            float up[4], weight = j.expert < 0 ? 1 : p.a.weight[pick];

            few_take(at + (size_t)p.splits * split, split, p.splits, wide, up);
            finish_outputs<ROTATED>(*w1, n0, wide, v);
            finish_outputs<ROTATED>(*w3, n0, wide, up);
#pragma unroll
            for (int k = 0; k < 4; k++)
                v[k] = n0 + 4 * lane + k < w1->rows
                           ? swiglu(rounded(v[k], p.round), rounded(up[k], p.round), weight,
                                    p.a.limit, p.round)
                           : 0;
            put_inputs<ROTATED>(p.h, *w2, w2->suh + n0, p.in, pick, n0, wide, v);
            continue;
        }
        finish_outputs<ROTATED>(*j.w, n0, wide, v);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (4 * lane < wide && n0 + 4 * lane + k < j.w->rows)
                p.y[(size_t)pick * (size_t)p.ldy + (size_t)(n0 + 4 * lane + k)] = v[k];
    }
}

// ---- the product ----------------------------------------------------------------------------

// Until the hidden values of the job's rows are there.
template <class C>
__device__ static inline void few_wait(const struct strip_launch &p, const struct few_job<C> &j)
{
    const struct mat *w1 = j.expert < 0 ? p.a.s1 : p.a.w1 + j.expert;

    if (threadIdx.x == 0)
        count_wait(p.made + j.head,
                   (uint32_t)((w1->rows + strip_outputs(*w1) - 1) / strip_outputs(*w1)));
    __syncthreads();
}

// Codes or inputs of the warp's piece k, on their way to shared memory; lanes without a row get zeros.
template <class C>
__device__ static inline void few_bring_codes(const struct few_job<C> &j, struct few_room<C> &room,
                                              int k)
{
    int lane = (int)(threadIdx.x % CUDA_WARP);

    if (j.at + k < j.end)
#pragma unroll
        for (int c = 0; c < few_room<C>::CODES; c++)
            copy_async(&room.piece[k % FEW_SLOTS][c][lane],
                       j.codes.at +
                           (uint32_t)((j.at + k) * few_room<C>::CODES + c) * (uint32_t)CUDA_WARP);
}

template <class C>
__device__ static inline void few_bring_rows(const struct few_job<C> &j, struct few_room<C> &room,
                                             int k, const uint16_t *x, bool live)
{
    constexpr int EACH = 4 / C::STEPS; // pieces of a unit
    int lane = (int)(threadIdx.x % CUDA_WARP), piece = j.at + k;

    if (piece < j.end)
#pragma unroll
        for (int i = 0; i < C::STEPS / 2; i++)
            copy_async_some(shared_at(&room.piece[k % FEW_SLOTS][few_room<C>::CODES + i][lane]),
                            x + piece / EACH * STRIP_UNIT + (piece % EACH * C::STEPS + 2 * i) * 4,
                            live ? 16 : 0);
}

// The warp's part of EXL3 codes, of which the first pieces' codes are on their way. A pair of tiles is decoded while the
// heads of the next one travel between lanes.
template <class C, int BOOK>
__device__ static inline void few_run(const struct few_job<C> &j, struct few_room<C> &room,
                                      const uint16_t *x, bool live, float (&acc)[C::TILES][1][4])
{
    constexpr int CODES = few_room<C>::CODES, PAIRS = C::STEPS * C::TILES;
    int lane = (int)(threadIdx.x % CUDA_WARP);

#pragma unroll
    for (int k = 0; k < FEW_SLOTS; k++) {
        few_bring_rows(j, room, k, x, live);
        copy_commit();
    }
    for (int k = 0; j.at + k < j.end; k++) {
        typename C::piece now;
        uint4 b[C::STEPS / 2];
        uint32_t head[2];

        copy_wait<FEW_SLOTS - 1>();
#pragma unroll
        for (int c = 0; c < CODES; c++) {
            uint4 v = room.piece[k % FEW_SLOTS][c][lane];

            now.word[4 * c] = v.x;
            now.word[4 * c + 1] = v.y;
            now.word[4 * c + 2] = v.z;
            now.word[4 * c + 3] = v.w;
        }
#pragma unroll
        for (int i = 0; i < C::STEPS / 2; i++)
            b[i] = room.piece[k % FEW_SLOTS][CODES + i][lane];
        j.codes.heads(now, 0, head);
        few_bring_codes(j, room, k + FEW_SLOTS); // a lane reads its own words alone
        few_bring_rows(j, room, k + FEW_SLOTS, x, live);
        copy_commit();
        narrow_near(j.codes, j.at + k + NARROW_AHEAD, j.end);
#pragma unroll
        for (int i = 0; i < PAIRS; i += 2) {
            const uint4 rows = b[i / C::TILES / 2]; // two k-steps in 16 bytes
            uint32_t next[2] = {}, a[2][4];

            if (i + 2 < PAIRS)
                j.codes.heads(now, i + 2, next);
            j.codes.template values<BOOK>(now, i, head, a);
#pragma unroll
            for (int n = 0; n < 2; n++)
                mma<C::F16>(acc[i % C::TILES + n][0], a[n], i / C::TILES % 2 ? rows.z : rows.x,
                            i / C::TILES % 2 ? rows.w : rows.y);
            head[0] = next[0];
            head[1] = next[1];
        }
    }
}

template <class C>
__device__ static inline void few_part(const struct strip_launch &p, const struct few_job<C> &j,
                                       struct few_room<C> &room)
{
    int lane = (int)(threadIdx.x % CUDA_WARP);
    int row = (j.split >= p.splits ? p.zrows : 0) +
              __shfl_sync(FULL_MASK, j.pick, lane / 4 < j.n ? lane / 4 : 0);
    const uint16_t *from = p.x.data + (size_t)row * (size_t)p.x.ld + lane % 4 * 16;
    float acc[C::TILES][1][4] = {};
    bool live = lane / 4 < j.n;

    if (p.role == STRIP_DOWN)
        few_wait(p, j);
    if constexpr (C::F16) {
        if (C::BOOKS > 1 && j.codes.book)
            few_run<C, C::BOOKS - 1>(j, room, from, live, acc);
        else
            few_run<C, 0>(j, room, from, live, acc);
    } else {
        struct narrow_x<1> x = {
            { from }, { p.x.count + (size_t)row * (size_t)(p.x.ld / STRIP_UNIT) }, p.x.plane,
            {
                live
            }
        };
        typename C::piece now;

        if (j.at < j.end)
            j.codes.load(j.at, now);
        narrow_part<C, 1, 0>(j.codes, x, j.at, j.end, now, acc);
    }
    few_leave<C>(room, acc, j.n);
}

// What a job's first pieces need of its codes.
template <class C>
__device__ static inline void few_start(const struct few_job<C> &j, struct few_room<C> &room)
{
    if constexpr (C::F16)
#pragma unroll
        for (int k = 0; k < FEW_SLOTS && j.w; k++)
            few_bring_codes(j, room, k);
}

// Bound by the decoding of the weights.
template <class C>
__global__ static void __launch_bounds__(FEW_THREADS, few_blocks<C>)
    few_rows(const __grid_constant__ struct strip_launch p)
{
    __shared__ struct few_room<C> room[FEW_WARPS];
    __shared__ struct few_list list;
    __shared__ int next[2], last;
    int t = (int)threadIdx.x, item = (int)blockIdx.x, each = p.matrices * p.splits, turn = 0, total;
    struct few_room<C> &mine = room[threadIdx.x / CUDA_WARP];
    struct few_job<C> j, ahead;

    if (p.early)
        dependency_next();
    few_begin(p, C::KIND, &list);
    total = list.lots * p.strips * each;
    if (item < total) {
        few_item(p, list, item, &j);
        few_start(j, mine);
        if (t == 0)
            count_wait(p.ready, p.blocks);
        __syncthreads();
    }
    for (; item < total; j = ahead, turn ^= 1) {
        if (t == 0)
            next[turn] = (int)gridDim.x + (int)atomicAdd(p.taken, 1);
        if (j.w)
            few_part(p, j, mine);
        __syncthreads();
        item = next[turn];
        if (item < total)
            few_item(p, list, item, &ahead);
        if (j.w)
            few_add(room, j,
                    p.z + (size_t)j.split * (size_t)p.zrows * (size_t)p.ldz +
                        j.strip * (C::TILES * MAT_TILE),
                    p.ldz);
        __syncthreads();
        if (item < total)
            few_start(ahead, mine);
        if (!j.w)
            continue;
        if (each > 1) {
            if (t == 0)
                last = count_up(p.ticket + (size_t)j.head * (size_t)p.marks + (size_t)j.strip,
                                (uint32_t)each);
            __syncthreads();
            if (!last)
                continue;
        }
        few_give(p, j);
        if (p.role != STRIP_GATE_UP)
            continue;
        __syncthreads();
        if (t == 0)
            count_up(p.made + j.head, 0);
    }
    dependency_next();
    if (blockIdx.x == 0) // this kernel ends behind the one in front
        dependency_settle();
}

// ---- launching ----------------------------------------------------------------------------------

template <class C> static void few_go(struct queue *q, struct strip_launch p)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    unsigned lots = (unsigned)p.picks + (p.a.s1 ? blocks_for((size_t)p.rows, STRIP_TOKENS) : 0);
    unsigned items = lots * (unsigned)(p.strips * p.matrices * p.splits);
    int fit = d->shared_sm / (int)(FEW_WARPS * sizeof(struct few_room<C>) +
                                   sizeof(struct few_list) + 1280); // what a block has beside them
    unsigned places = (unsigned)(d->sms * (fit < few_blocks<C> ? fit : few_blocks<C>));

    p.over[0] = few_inverse(p.matrices * p.splits);
    p.over[1] = few_inverse(p.strips);
    p.over[2] = few_inverse(p.splits * FEW_WARPS);
    launch(q, few_rows<C>, items < places ? items : places, FEW_THREADS, 0, p);
}

#endif
