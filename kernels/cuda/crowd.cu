// crowd.cu owns the product of EXL3 experts for many rows, warp-specialised for wgmma (sm_90a).
// Persistent blocks, one a multiprocessor, take items in strides of the grid. An item is a strip of
// 128 outputs of a matrix, all of its inputs, and a lot of the rows that chose its expert, up to N
// groups of 8. Shared memory has a ring of stages, a unit of 64 inputs each: 16 KB of decoded
// operands and the rows as tiles (group.cuh). The ring runs on from item to item, so nothing drains
// where one ends.
//
//   12 decoder warps     wait for `empty`; one lane requests the rows by a bulk copy; decode a
//                        piece of codes into the stage; arrive at `full`
//   8 multiplier warps   wait for `full`, multiply, arrive at `empty`; where a part ends they add
//                        it up, where an item ends they store its sums in z
//
// There is no split-K: parts and splits of strip.cuh are added one after another, so a row has the
// bits of a small window. Bound by decoding.
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/group.cuh"

#define MULTIPLIERS STRIP_WARPS // warps
#define MULTIPLY_THREADS (MULTIPLIERS * CUDA_WARP)
#define DECODERS 12
#define UNIT_STEPS 4                              // k-steps of a unit
#define CODES_BYTES (EXL3_BLOCK * STRIP_UNIT * 2) // of a unit's operands
#define STAGES_MAX 8                              // stages of the ring
#define STAGES_LEAST 4                            // from which on it pays
#define HEAD 128                                  // bytes in front: two mbarriers a stage

// Without wgmma wide.cuh is faster and the kernel is left empty; but the emulated device of the
// tests has it.
#if GROUP_ASYNC || !defined(__CUDA_ARCH__)
#define HERE true
#define THREADS ((MULTIPLIERS + DECODERS) * CUDA_WARP)
#else
#define HERE false
#define THREADS CUDA_WARP
#endif

// A lot: places begin .. begin + n - 1 of the pass.
struct crowd_lot {
    int32_t begin;
    int16_t n, expert; // n 0: weights of another kind; expert -1: the shared one
};
static_assert(sizeof(struct crowd_lot) == 8, "one load");

struct crowd_job {
    const struct mat *w;
    int m, strip, units; // units 0: nothing to do
    struct crowd_lot lot;
};

// A position in the ring: stage, and parity of the lap.
struct crowd_turn {
    int stage, lap;

    __device__ void go(int by, int stages)
    {
        for (stage += by; stage >= stages; stage -= stages)
            lap ^= 1;
    }
};

// ---- which item is what -----------------------------------------------------------------------

[[maybe_unused]] __device__ static inline int crowd_lots(const struct strip_launch &p)
{
    return (p.lots ? *p.heads : 0) + shared_lots(p, p.lot);
}

// The list of all lots, the same in every block; a thread a lot.
[[maybe_unused]] __device__ static inline void
crowd_list(const struct strip_launch &p, uint32_t kind, int lots, struct crowd_lot *list)
{
    int routed = p.lots ? *p.heads : 0;

    for (int i = (int)threadIdx.x; i < lots; i += (int)blockDim.x) {
        int expert = -1, at, n;

        if (i < routed) {
            int head = p.heads[1 + i];
            struct member m = p.order[head];

            expert = m.expert;
            at = head - p.first;
            n = lot_rows(p, at, p.lot, m.left);
        } else {
            at = shared_lot(p, i - routed, p.lot);
            n = lot_rows(p, at, p.lot, p.places - at);
        }
        for (int k = 0, other = 0; k < p.matrices; k++) {
            other += mat_kind(expert < 0 ? p.ws[k] : p.we[k] + expert) != kind;
            n = other == p.matrices ? 0 : n;
        }
        list[i] = { at, (int16_t)n, (int16_t)expert };
    }
}

[[maybe_unused]] __device__ static inline void crowd_item(const struct strip_launch &p,
                                                          uint32_t kind,
                                                          const struct crowd_lot *list, int item,
                                                          struct crowd_job *j)
{
    int each = p.matrices * p.strips, lot = item / each, rest = item - lot * each;

    j->m = rest >= p.strips;
    j->strip = rest - j->m * p.strips;
    j->lot = list[lot];
    j->units = 0;
    if (j->lot.n == 0)
        return;
    j->w = j->lot.expert < 0 ? p.ws[j->m] : p.we[j->m] + j->lot.expert;
    if (mat_kind(j->w) == kind && j->strip * EXL3_BLOCK < j->w->rows)
        j->units = strip_units(*j->w);
}

// ---- decoders ---------------------------------------------------------------------------------

// Decode a piece into the operand tile at `to`. half: which piece of the unit it is.
template <int BOOK, class C>
__device__ static inline void crowd_put(const C &codes, const typename C::piece &piece, int half,
                                        unsigned char *to)
{
    to += half * C::STEPS * 2 * GROUP_PIECE + (int)threadIdx.x % CUDA_WARP * 4;
#pragma unroll
    for (int step = 0; step < C::STEPS; step++)
#pragma unroll
        for (int t = 0; t < C::TILES; t += 2) {
            uint32_t a[2][4];

            codes.template operands<BOOK>(piece, step, t, a);
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int i = 0; i < 4; i++) // i % 2: outputs from 8 on, i / 2: inputs from 8 on
                    *(uint32_t *)(to + ((t + k) * 2 + i % 2) * GROUP_BYTES +
                                  (step * 2 + i / 2) * GROUP_PIECE) = a[k][i];
        }
}

// The next unit of a decoder.
template <class C> struct crowd_next {
    C codes;
    const uint16_t *rows; // of unit 0
    int unit, bytes;
};

// Where a decoder is: unit n of the block, counted over all its items; the current item's units
// begin at `base`.
template <class C> struct crowd_cursor {
    struct crowd_job j;
    int n, base, item;

    // Find unit n and prefetch its codes to L2; false past the last item.
    __device__ bool find(const struct strip_launch &p, const struct crowd_lot *list, int items,
                         int half, struct crowd_next<C> *next)
    {
        constexpr int EACH = UNIT_STEPS / C::STEPS;
        int lane = (int)threadIdx.x % CUDA_WARP, groups = (p.places + GROUP_ROWS - 1) / GROUP_ROWS;

        while (n - base >= j.units) {
            base += j.units;
            item += (int)gridDim.x;
            if (item >= items)
                return false;
            crowd_item(p, C::KIND, list, item, &j);
        }
        next->unit = n - base;
        next->codes = C(*j.w, j.strip, lane);
        next->rows = p.x.tiled + (size_t)(j.m * groups + j.lot.begin / GROUP_ROWS) * GROUP_VALUES;
        next->bytes =
            ((j.lot.begin + j.lot.n - 1) / GROUP_ROWS - j.lot.begin / GROUP_ROWS + 1) * GROUP_BYTES;
        for (int at = lane * 128; at < C::BYTES; at += 128 * CUDA_WARP)
            prefetch_l2((const char *)(next->codes.at - lane) +
                        (size_t)(next->unit * EACH + half) * C::BYTES + at);
        return true;
    }
};

template <class C>
__device__ static inline void
crowd_decode(const struct strip_launch &p, const struct crowd_lot *list, int items,
             unsigned char *ring, uint64_t *full, uint64_t *empty, int stages, int bytes)
{
    constexpr int EACH = UNIT_STEPS / C::STEPS; // pieces of a unit, and warps of a team
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP - MULTIPLIERS;
    int half = warp % EACH, most = ((int)blockDim.x / CUDA_WARP - MULTIPLIERS) / EACH;
    int teams = most < stages ? most : stages; // with more, one would take a stage a lap early
    size_t all = (size_t)p.matrices * (size_t)((p.places + GROUP_ROWS - 1) / GROUP_ROWS);
    struct crowd_cursor<C> cursor = {
        {}, warp / EACH, 0, (int)blockIdx.x - (int)gridDim.x
    };
    struct crowd_turn turn = { 0, 0 };
    struct crowd_next<C> next = {
        C((const uint4 *)NULL, CODEBOOK_MUL1, lane), NULL, 0, 0
    };
    bool more = warp / EACH < teams && cursor.find(p, list, items, half, &next);

    turn.go(warp / EACH, stages);
    while (more) {
        struct crowd_next<C> now = next;
        unsigned char *to = ring + (size_t)turn.stage * (size_t)bytes;
        typename C::piece piece;

        now.codes.load(now.unit * EACH + half, piece);
        cursor.n += teams;
        more = cursor.find(p, list, items, half, &next);
        barrier_wait(empty + turn.stage, turn.lap ^ 1);
        if (half == 0 && lane == 0) {
            barrier_expect(full + turn.stage, now.bytes);
            bulk_bring(to + CODES_BYTES, now.rows + (size_t)now.unit * all * GROUP_VALUES,
                       now.bytes, full + turn.stage);
        }
        __syncwarp();
        if (C::BOOKS > 1 && now.codes.book)
            crowd_put<C::BOOKS - 1>(now.codes, piece, half, to);
        else
            crowd_put<0>(now.codes, piece, half, to);
        group_publish();
        __syncwarp();
        if (lane == 0)
            barrier_arrive(full + turn.stage);
        turn.go(teams, stages);
    }
}

// ---- the product ------------------------------------------------------------------------------

// Multiply a unit: outputs at a times rows at b, shared addresses.
template <int N, int H>
__device__ static inline void crowd_unit(group_parts<N, 2, H> &sums, uint32_t a, uint32_t b,
                                         int unit, int four)
{
    bool whole = GROUP_ASYNC && !sums.ends(unit * 2 + 1);

    if (whole) { // four wgmma in flight
        group_begin();
        group_steps<true>(sums.part, a, b, 0, sums.more, four);
        group_steps<true>(sums.part, a, b, 1, true, four);
        group_settle(sums.part);
        sums.more = true;
        if (sums.ends(unit * 2 + 2))
            sums.end(unit * 2 + 2, true);
        return;
    }
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        group_begin();
        group_steps<true>(sums.part, a, b, half, sums.more, four);
        group_settle(sums.part);
        sums.more = true;
        if (sums.ends(unit * 2 + half + 1))
            sums.end(unit * 2 + half + 1, true);
    }
}

template <class C, int N, int H>
__device__ static inline void crowd_store(const struct strip_launch &p, const struct crowd_job &j,
                                          group_parts<N, 2, H> &sums)
{
    int lane = (int)threadIdx.x % CUDA_WARP, first = j.lot.begin / GROUP_ROWS * GROUP_ROWS;
    float *z = p.z + (size_t)j.m * p.zmat + (size_t)(j.strip * EXL3_BLOCK);

#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int row = first + group_sums<N>::rows(i) * GROUP_ROWS + lane % 4 * 2 + c % 2;

            if (row >= j.lot.begin && row < j.lot.begin + j.lot.n)
                z[(size_t)row * (size_t)p.ldz +
                  (size_t)C::output(group_sums<N>::tile(i), lane / 4, c / 2)] = sums.total(i, c);
        }
}

template <class C, int N, int H>
__device__ static inline void crowd_multiply(const struct strip_launch &p,
                                             const struct crowd_lot *list, int items,
                                             unsigned char *ring, uint64_t *full, uint64_t *empty,
                                             int stages, int bytes, float *held)
{
    int lane = (int)threadIdx.x % CUDA_WARP, four = group_four();
    group_parts<N, 2, H> sums;
    struct crowd_turn turn = { 0, 0 };
    struct crowd_job j;
    int units;

    for (int item = (int)blockIdx.x; item < items; item += (int)gridDim.x) {
        crowd_item(p, C::KIND, list, item, &j);
        if (j.units == 0)
            continue;
        units = j.units;
        sums.begin(*j.w, p.splits, FEW_WARPS, held);
        if (sums.ends(0))
            sums.end(0, false);
        for (int unit = 0; unit < units; unit++) {
            uint32_t a = shared_at(ring) + (uint32_t)(turn.stage * bytes);

            barrier_wait(full + turn.stage, turn.lap);
            __syncwarp();
            crowd_unit(sums, a, a + CODES_BYTES, unit, four);
            __syncwarp();
            if (lane == 0)
                barrier_arrive(empty + turn.stage);
            turn.go(1, stages);
        }
        crowd_item(p, C::KIND, list, item, &j); // found again, which saves registers in the loop
        crowd_store<C>(p, j, sums);
    }
}

// Threads whose sums of all inputs lie in shared memory (group_parts), 0: in registers. Those of
// more than 8 groups of rows do not fit there.
template <int N> static constexpr int crowd_held = N > 8 ? MULTIPLY_THREADS : 0;

template <int N> __host__ __device__ static constexpr int stage_bytes()
{
    return CODES_BYTES + N * GROUP_BYTES;
}

template <class C, int N>
__device__ static inline void crowd_block(const struct strip_launch &p, int stages)
{
    extern __shared__ __align__(128) unsigned char dynamic[];
    constexpr int BYTES = stage_bytes<N>();
    int t = (int)threadIdx.x, lots = crowd_lots(p), items = lots * p.matrices * p.strips;
    uint64_t *full = (uint64_t *)dynamic, *empty = full + STAGES_MAX;
    unsigned char *ring = dynamic + HEAD;
    float *held = (float *)(ring + stages * BYTES);
    struct crowd_lot *list = (struct crowd_lot *)(held + crowd_held<N> * N * 4);

    if (t == 0) { // one thread: compute-sanitizer 2025.3 miscounts barriers set up by lanes
        for (int i = 0; i < stages; i++) {
            barrier_init(full + i, UNIT_STEPS / C::STEPS + 1);
            barrier_init(empty + i, MULTIPLIERS);
        }
        barrier_publish();
    }
    crowd_list(p, C::KIND, lots, list);
    __syncthreads();
    __syncwarp(); // setmaxnreg needs converged warps, which a block barrier does not promise
    if (t < MULTIPLY_THREADS) {
        group_registers<128, true>();
        crowd_multiply<C, N, crowd_held<N>>(p, list, items, ring, full, empty, stages, BYTES, held);
    } else {
        group_registers<72, false>();
        crowd_decode<C>(p, list, items, ring, full, empty, stages, BYTES);
    }
}

// Bound by decoding: 5.8 instructions a weight, spread over 12 warps.
template <class C, int N>
__global__ static void __launch_bounds__(THREADS, 1)
    crowd_rows(const __grid_constant__ struct strip_launch p, int stages)
{
    if constexpr (HERE)
        crowd_block<C, N>(p, stages);
}

// ---- launching ----------------------------------------------------------------------------------

static size_t list_bytes(int lots)
{
    return mat_round_up((size_t)lots * sizeof(struct crowd_lot), 128);
}

// Stages that the ring has room for.
template <int N> static int stages_of(int shared_max, int lots)
{
    size_t room = (size_t)shared_max, held;
    int n;

    held = HEAD + list_bytes(lots) + (size_t)crowd_held<N> * N * 4 * sizeof(float);
    n = room > held ? (int)((room - held) / (size_t)stage_bytes<N>()) : 0;
    return n < STAGES_MAX ? n : STAGES_MAX;
}

template <class C, int N> static void crowd_go(struct queue *q, const struct strip_launch *p)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    int lots = p->lots + shared_lots(*p, p->lot), stages = stages_of<N>(d->shared_max, lots);
    int items = lots * p->matrices * p->strips;
    size_t shared = HEAD + list_bytes(lots) + (size_t)(stages * stage_bytes<N>()) +
                    (size_t)crowd_held<N> * N * 4 * sizeof(float);

    if (items > 0)
        launch_behind(cuda_stream(q), crowd_rows<C, N>, (unsigned)(items < d->sms ? items : d->sms),
                      THREADS, shared, *p, stages);
}

void crowd_launch(struct queue *q, uint32_t kind, const struct strip_launch *p)
{
    bool many = p->lot > CROWD_FEW * GROUP_ROWS;

#define WIDTH(b)                                                                                   \
    if (kind == MAT_KIND_EXL3 << b && many)                                                        \
        crowd_go<exl3_codes<b>, CROWD_MANY>(q, p);                                                 \
    else if (kind == MAT_KIND_EXL3 << b)                                                           \
        crowd_go<exl3_codes<b>, CROWD_FEW>(q, p);
    EXL3_WIDTHS(WIDTH)
#undef WIDTH
}

template <class C> static cudaError_t crowd_limit(cudaError_t e, int shared_max)
{
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute((const void *)crowd_rows<C, CROWD_FEW>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shared_max);
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute((const void *)crowd_rows<C, CROWD_MANY>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shared_max);
    return e;
}

extern "C" cudaError_t cuda_crowd_limits(int shared_max, bool *can)
{
    cudaFuncAttributes have;
    cudaError_t e =
        cudaFuncGetAttributes(&have, (const void *)crowd_rows<exl3_codes<6>, CROWD_MANY>);

    *can = e == cudaSuccess && have.maxThreadsPerBlock >= THREADS &&
           stages_of<CROWD_MANY>(shared_max, CROWD_LOTS) >= STAGES_LEAST;
    if (!*can)
        return e;
#define WIDTH(b) e = crowd_limit<exl3_codes<b>>(e, shared_max);
    EXL3_WIDTHS(WIDTH)
#undef WIDTH
    return e;
}
