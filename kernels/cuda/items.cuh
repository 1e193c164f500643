// items - the work items of few.cuh: the list of experts and their rows, which every block builds
// for itself, and the step from an item's number to its job. Decoding needs the registers, so the
// job is kept in shared memory.
#ifndef TANDEM_KERNELS_CUDA_ITEMS_CUH
#define TANDEM_KERNELS_CUDA_ITEMS_CUH

#include "kernels/cuda/narrow.cuh"

#define FEW_THREADS (FEW_WARPS * CUDA_WARP)
#define FEW_BLOCKS 5 // blocks a multiprocessor (EXL3); with a sixth the decoding spills
#define FEW_SLOTS 2  // pieces in flight to a warp's shared memory
#define FEW_ACROSS (4 * FEW_THREADS) // outputs of a row in an item of rows
#define FEW_LINE 16                  // words from one counter that blocks spin on to the next
#define FEW_NOBODY 0xffffu           // no place

// One of the two phases: gate and up, or down. An item's index in it is (lot, strip, split).
struct few_phase {
    float *z;                                    // partial sums [matrices][splits][places][ld]
    uint32_t *ticket;                            // [places][strips]: splits that have stored sums
    int ld, splits, strips, each;                // strips of the widest expert; items of a strip
    uint32_t over_each, over_strips, over_parts; // few_inverse of each, strips, parts
};

// A place is where a row of an expert has its inputs, sums and outputs: first the picks (row r's
// choice i is r * k + i), then the rows of the shared expert.
struct few_launch {
    struct moe_args a;
    const struct mat *mats[2][3]; // gate, up, down of the routed experts and of the shared one
    struct strip_x x, h;          // inputs [gate, up][places]; hidden values as inputs of down
    struct few_phase of[2];
    float *out; // [places][ldo]
    // Counters: items taken, items of inputs done, strips of outputs done. made: bits of the strips
    // of h that are stored, [places][FEW_LINE] by a lot's first place. All zero between launches.
    uint32_t *taken, *ready, *done, *made;
    uint32_t *seats; // [CUDA_SEATED][CUDA_SEATS]: 1 + block whose warp 0 sits there, 0: none
    struct cuda_alarm alarm;
    int picks, places, ldo;
    int inputs, tasks; // items of inputs; blocks of 128 inputs of a warp in each
    int rows, across;  // items of rows, of all and of each row
    int room;          // bytes of shared memory of a warp
    int turn;          // ns between the first items of two blocks of a multiprocessor
};

// ---- kinds ----------------------------------------------------------------------------------

// EXL3 codes of an item that has half of a strip's tiles and the rows of two lots: every fragment
// is decoded once for up to 16 rows, with as many accumulators as a whole strip has for 8.
template <int BITS2> struct few_half : exl3_codes<BITS2> {
    static_assert(BITS2 % 2 == 0, "a half strip begins with a word");
    using whole = exl3_codes<BITS2>;
    using piece = typename whole::piece;
    using whole::whole;

    static constexpr uint32_t KIND = 1u << (23 + BITS2 / 2); // of items; above the kinds of mat.h
    static constexpr int WORDS = BITS2 / 2;                  // of a lane and a k-step
    static_assert(KIND > MAT_KIND_EXL3 << 16, "no kind of weights has this bit");

    int half;

    // Loads a whole piece and moves the words of this half to its front, k-step after k-step.
    __device__ void take(const uint4 *from, piece &p) const
    {
        piece all;

        whole::take(from, all);
#pragma unroll
        for (int s = 0; s < whole::STEPS; s++)
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                p.word[s * WORDS + i] =
                    half ? all.word[(2 * s + 1) * WORDS + i] : all.word[2 * s * WORDS + i];
        p.word[whole::STEPS * WORDS] = 0; // shifted in behind the last value, unused
    }
};

// How many lots of 8 rows an item of these codes has, and how many tiles of a strip.
template <class C> struct few_shape {
    static constexpr int LOTS = 1, TILES = C::TILES;
    static constexpr uint32_t HALF_OF = 0;
};

template <int BITS2> struct few_shape<few_half<BITS2>> {
    static constexpr int LOTS = 2, TILES = exl3_codes<BITS2>::TILES / 2;
    static constexpr uint32_t HALF_OF = exl3_codes<BITS2>::KIND;
};

template <class C> struct few_room; // few.cuh: shared memory of a warp

// A few_room of each warp, then the list's arrays. Always addressed by this name: through a pointer
// the compiler would emit generic loads.
extern __shared__ __align__(16) char few_memory[];

// The kinds of weights that one instance of the kernel serves.
template <class... C> struct few_set {
    static constexpr uint32_t KINDS = (C::KIND | ...);
    static constexpr bool ROTATED = (C::F16 || ...); // some are EXL3
    static constexpr bool PLAIN = ((C::KIND == bf16_codes::KIND) || ...);
    static constexpr bool STRAIGHT = ((!C::F16 && C::KIND != bf16_codes::KIND) || ...);
    static constexpr bool ALL_ROTATED = ROTATED && !PLAIN && !STRAIGHT;
    static constexpr int OUTPUTS = ALL_ROTATED ? EXL3_BLOCK : 64; // of the narrowest strip
    // Blocks a multiprocessor.
    static constexpr int BLOCKS =
        ((C::BLOCKS == 3) && ...) ? FEW_BLOCKS : 2 * STRIP_WARPS / FEW_WARPS;

    // The largest few_room of these kinds, in bytes.
    static int room(uint32_t kinds)
    {
        int most = 0;

        ((most =
              kinds & C::KIND && (int)sizeof(few_room<C>) > most ? (int)sizeof(few_room<C>) : most),
         ...);
        return most;
    }

    // The few_half kinds that go with these kinds of matrices; 0: there are none in this set.
    __host__ __device__ static constexpr uint32_t halves(uint32_t kinds)
    {
        uint32_t found = 0;

        ((found |= kinds & few_shape<C>::HALF_OF ? C::KIND : 0), ...);
        return found;
    }

    // Calls f with the codes of a kind.
    template <class F> __device__ static inline void with(uint32_t kind, F f)
    {
        (void)((kind == C::KIND && (f.template operator()<C>(), true)) || ...);
    }

    // Calls f with any codes that lay out and finish outputs as this kind does.
    template <class F> __device__ static inline void like(uint32_t kind, F f)
    {
        if constexpr (ROTATED)
            if (ALL_ROTATED || kind >= MAT_KIND_EXL3) {
                f.template operator()<exl3_codes<4>>();
                return;
            }
        if constexpr (PLAIN)
            if (!STRAIGHT || kind == bf16_codes::KIND) {
                f.template operator()<bf16_codes>();
                return;
            }
        if constexpr (STRAIGHT)
            f.template operator()<fp8_codes>();
    }

    // The same for the partial sums of an item, which a few_half lays out in its own way.
    template <class F> __device__ static inline void sums(uint32_t kind, F f)
    {
        if constexpr (halves(~0u))
            if (kind & halves(~0u)) {
                f.template operator()<few_half<4>>();
                return;
            }
        like(kind, f);
    }
};

// What decides whether an expert is served here. All fields are loaded before any is tested, so
// their latencies overlap.
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

// Whether this launch computes an expert (-1: the shared one): its weights are on this rank, of one
// format, of a kind of the call.
__device__ static inline bool few_takes(const struct moe_args &a, int expert)
{
    struct few_type w1 = few_type_of(expert < 0 ? a.s1 : a.w1 + expert);
    struct few_type w3 = few_type_of(expert < 0 ? a.s3 : a.w3 + expert);
    struct few_type w2 = few_type_of(expert < 0 ? a.s2 : a.w2 + expert);

    return (w1.kind == w3.kind) & (w1.exl3 == w2.exl3) & w1.there & w3.there & w2.there &
           ((w1.kind & a.kinds) != 0) & ((w2.kind & a.kinds) != 0);
}

// Raises the alarm for a pick out of range or of a type that the call did not announce.
__device__ static inline void check_pick(const struct moe_args &a, int row, int expert,
                                         const struct cuda_alarm &alarm)
{
    if (expert >= a.experts)
        alarm_set(alarm, FAULT_EXPERT, 0, row, 0, expert, a.experts);
    else if (expert >= 0 && (!expert_is_here(a, expert) ||
                             mats_mixed(a.w1 + expert, a.w3 + expert, a.w2 + expert)))
        alarm_set(alarm, FAULT_TYPE, 0, row, 0, (int)a.w1[expert].dtype, 0);
    if (row == 0 && a.s1 &&
        !(expert_type_ok(a, *a.s1) && expert_type_ok(a, *a.s3) && expert_type_ok(a, *a.s2) &&
          !mats_mixed(a.s1, a.s3, a.s2)))
        alarm_set(alarm, FAULT_TYPE, 0, 0, 0, (int)a.s1->dtype, 0);
}

// Prefetches the descriptors of all matrices to L2; which ones are needed is known only when the
// kernel in front has ended.
__device__ static inline void few_near(const struct moe_args &a)
{
    const struct mat *w[3] = { a.w1, a.w3, a.w2 }, *shared[3] = { a.s1, a.s3, a.s2 };
    int n = (int)(((size_t)a.experts * sizeof(struct mat) + 127) / 128);

#pragma unroll
    for (int m = 0; m < 3; m++) {
        for (int i = (int)(blockIdx.x * FEW_THREADS + threadIdx.x); i < n;
             i += (int)gridDim.x * FEW_THREADS)
            prefetch_l2((const char *)w[m] + (size_t)i * 128);
        if (a.s1 && threadIdx.x * 128 < sizeof(struct mat))
            prefetch_l2((const char *)shared[m] + threadIdx.x * 128);
    }
}

// ---- which block does what ------------------------------------------------------------------

// The call's picks, grouped into lots: up to 8 rows of one expert, the shared expert's lots first.
// In shared memory, as are its arrays below.
struct few_list {
    int lots;
    int paired;          // the first so many lots are pairs, whose items are few_half
    int gates, products; // items of gate and up; items of all phases but rows
    bool shared;         // the shared expert is computed here
};

// [picks]: expert.
__device__ static inline int32_t *list_id(const struct few_launch &p)
{
    return (int32_t *)(few_memory + FEW_WARPS * p.room);
}

// [picks]: the lot's first pick * STRIP_TOKENS + the pick's index in its lot.
__device__ static inline uint16_t *list_of(const struct few_launch &p)
{
    return (uint16_t *)(list_id(p) + p.picks);
}

// [picks]: FEW_NOBODY if the expert is not computed here; else, of a lot's first pick, lot + 2.
__device__ static inline uint16_t *list_lot(const struct few_launch &p)
{
    return list_of(p) + p.picks;
}

// [lots][STRIP_TOKENS]: places, FEW_NOBODY behind the last.
__device__ static inline uint16_t *list_member(const struct few_launch &p)
{
    return list_lot(p) + p.picks;
}

// few_list_bytes - bytes of the arrays.
__host__ __device__ static inline int few_list_bytes(int picks, int lots)
{
    return picks * 8 + lots * STRIP_TOKENS * 2;
}

// Builds the list. All threads.
template <class SET>
__device__ static inline void few_begin(const struct few_launch &p, struct few_list *list)
{
    int t = (int)threadIdx.x, lane = t % CUDA_WARP, lots;
    bool shared;

    for (int i = t; i <= p.picks; i += FEW_THREADS) { // i == picks: the shared expert
        int e = i < p.picks ? list_id(p)[i] : -1, before = 0, head = i;
        bool takes =
            (i < p.picks ? e >= 0 && e < p.a.experts : p.a.s1 != NULL) && few_takes(p.a, e);

        if (i == p.picks) {
            list->shared = takes;
            list->paired = 0;
            if (takes && p.a.rows > STRIP_TOKENS && SET::halves(few_type_of(p.a.s1).kind) &&
                SET::halves(few_type_of(p.a.s2).kind))
                list->paired = (p.a.rows + STRIP_TOKENS - 1) / STRIP_TOKENS & ~1;
            continue;
        }

        for (int k = 0; k < i; k++)
            if (list_id(p)[k] == e) {
                head = before % STRIP_TOKENS ? head : k;
                before++;
            }
        before %= STRIP_TOKENS;
        list_of(p)[i] = (uint16_t)((before ? head : i) * STRIP_TOKENS + before);
        list_lot(p)[i] = takes ? before == 0 : FEW_NOBODY;
    }
    __syncthreads();
    shared = list->shared;
    lots = shared ? (p.a.rows + STRIP_TOKENS - 1) / STRIP_TOKENS : 0;
    for (int base = 0; base < p.picks; base += CUDA_WARP) { // every warp counts all
        int i = base + lane;
        bool head = i < p.picks && list_lot(p)[i] == 1;
        unsigned set = __ballot_sync(FULL_MASK, head);

        __syncthreads();
        if (head && t < CUDA_WARP)
            list_lot(p)[i] = (uint16_t)(lots + __popc(set & ((1u << lane) - 1)) + 2);
        lots += __popc(set);
    }
    if (t == 0) {
        list->lots = lots;
        list->gates = lots * p.of[0].strips * p.of[0].each;
        list->products = p.inputs + list->gates + lots * p.of[1].strips * p.of[1].each;
    }
    for (int i = t; i < lots * STRIP_TOKENS; i += FEW_THREADS)
        list_member(p)[i] = (uint16_t)(shared && i < p.a.rows ? p.picks + i : FEW_NOBODY);
    __syncthreads();
    for (int i = t; i < p.picks; i += FEW_THREADS)
        if (list_lot(p)[i] != FEW_NOBODY)
            list_member(p)[(list_lot(p)[list_of(p)[i] / STRIP_TOKENS] - 2) * STRIP_TOKENS +
                           list_of(p)[i] % STRIP_TOKENS] = (uint16_t)i;
    __syncthreads();
}

// Division by multiplication: few_over(n, d, few_inverse(d)) is n / d while n * d < 2^32.
__host__ __device__ static inline uint32_t few_inverse(int d)
{
    return (uint32_t)((((uint64_t)1 << 32) + (uint64_t)d - 1) / (uint64_t)d);
}

__device__ static inline int few_over(int n, int d, uint32_t inverse)
{
    return d == 1 ? n : (int)__umulhi((uint32_t)n, inverse);
}

// A warp's part of a job: pieces at .. end - 1.
struct few_span {
    const uint4 *from; // EXL3: the strip's codes
    enum codebook book;
    int at, end;
};

// An item of gate, up or down, resolved.
struct few_job {
    const struct mat *w; // NULL: nothing to do, this expert has fewer strips
    uint32_t kind;
    int down, head, expert; // phase; first place; -1: the shared expert
    int lots, first, half;  // first: index of the first member; half: which tiles of the strip
    int strip, split;       // splits of up are numbered behind those of gate
    int n;                  // rows
    int pieces;             // of a strip
    const uint4 *from;      // EXL3: the strip's codes
    enum codebook book;
};

// Offset of the warp's few_room in few_memory.
__device__ static inline int few_mine(const struct few_launch &p)
{
    return (int)(thread_here() / CUDA_WARP) * p.room;
}

// The place of row lane % (8 * lots) of the lots that begin at member `first`.
__device__ static inline int few_pick(const struct few_launch &p, int first, int lots)
{
    return list_member(p)[first + (int)(thread_here() % (uint32_t)(lots * STRIP_TOKENS))];
}

// Matrix 0 .. 2 of an expert: gate, up, down.
__device__ static inline const struct mat *few_mat(const struct few_launch &p, int expert,
                                                   int which)
{
    return p.mats[expert < 0][which] + (expert < 0 ? 0 : expert);
}

// The part of a warp. Parts of a split are consecutive: strip.cuh.
__device__ static inline struct few_span few_share(const struct few_launch &p,
                                                   const struct few_job &j, int warp)
{
    const struct few_phase &f = p.of[j.down];
    int parts = f.splits * FEW_WARPS;
    int part = (j.split >= f.splits ? j.split - f.splits : j.split) * FEW_WARPS + warp;

    return { j.from, j.book, few_over(j.pieces * part, parts, f.over_parts),
             few_over(j.pieces * (part + 1), parts, f.over_parts) };
}

// Fills in what depends on the matrix and prefetches the first codes of all warps; false: the
// matrix has no such strip.
template <class C>
__device__ static inline bool few_cut(const struct few_launch &p, struct few_job *j)
{
    constexpr int OUTPUTS = C::TILES * MAT_TILE;
    int lane = (int)(thread_here() % CUDA_WARP);

    j->pieces = (int)(((uint32_t)j->w->cols + OUTPUTS - 1) / OUTPUTS * (OUTPUTS / (16 * C::STEPS)));
    if (j->strip * OUTPUTS >= j->w->rows)
        return false;
    const C codes(*j->w, j->strip, lane);

    for (int warp = 0; warp < FEW_WARPS; warp++) {
        const struct few_span span = few_share(p, *j, warp);

        for (int k = 0; k < NARROW_AHEAD; k++)
            narrow_near(codes, span.at + k, span.end);
    }
    return true;
}

// The same for EXL3 of any width, the kind too. All fields of the matrix are loaded at once.
__device__ static inline bool few_cut_rotated(const struct few_launch &p, struct few_job *j)
{
    const struct mat *w = j->w;
    const char *data = held((const char *)w->data);
    int lane = (int)(thread_here() % CUDA_WARP), rows = w->rows, bits2 = w->q.bits2;
    uint32_t blocks = ((uint32_t)w->cols + EXL3_BLOCK - 1) / EXL3_BLOCK;
    int steps = bits2 % 2 ? 4 : 2, bytes = EXL3_BLOCK * bits2 * steps; // of a piece
    struct few_span span;

    j->book = (enum codebook)w->q.codebook;
    j->kind = MAT_KIND_EXL3 << bits2;
    j->pieces = (int)blocks * (EXL3_BLOCK / 16 / steps);
    j->from = (const uint4 *)(data +
                              (size_t)j->strip * (blocks * (EXL3_BLOCK * EXL3_BLOCK / 16) * bits2));
    if (j->strip * EXL3_BLOCK >= rows)
        return false;
    span = few_share(p, *j, lane / (CUDA_WARP / FEW_WARPS));
    data = (const char *)j->from + (size_t)(span.at * bytes);
    bytes = span.at < span.end ? bytes : 0;
    for (int i = lane % (CUDA_WARP / FEW_WARPS) * 128; i < bytes; i += CUDA_WARP / FEW_WARPS * 128)
        prefetch_l2(data + i);
    return true;
}

// Resolves item n, one of gate, up or down. One warp.
template <class SET>
__device__ static inline void few_item(const struct few_launch &p, const struct few_list &list,
                                       int n, struct few_job *to)
{
    int lane = (int)(thread_here() % CUDA_WARP), strip, pick, lot;
    struct few_job j = {};
    bool there = false;

    n -= p.inputs;
    j.down = n >= list.gates;
    const struct few_phase &f = p.of[j.down];

    n -= j.down ? list.gates : 0;
    strip = few_over(n, f.each, f.over_each);
    lot = few_over(strip, f.strips, f.over_strips);
    j.split = n - strip * f.each;
    j.strip = strip - lot * f.strips;
    j.lots = lot < list.paired ? 2 : 1;
    j.half = lot & (j.lots - 1);
    j.first = (lot - j.half) * STRIP_TOKENS;
    pick = few_pick(p, j.first, j.lots);
    j.n =
        __popc(__ballot_sync(FULL_MASK, pick != FEW_NOBODY)) * j.lots / (CUDA_WARP / STRIP_TOKENS);
    j.head = __shfl_sync(FULL_MASK, pick, 0);
    j.expert = j.head < p.picks ? list_id(p)[j.head] : -1;
    j.w = few_mat(p, j.expert, j.down ? 2 : j.split >= f.splits);
    if constexpr (SET::ALL_ROTATED) {
        there = few_cut_rotated(p, &j);
    } else {
        j.kind = mat_kind(j.w);
        if (SET::ROTATED && j.kind >= MAT_KIND_EXL3)
            there = few_cut_rotated(p, &j);
        else
            SET::with(j.kind, [&]<class C>() {
                if constexpr (!C::F16)
                    there = few_cut<C>(p, &j);
            });
    }
    if (j.lots > 1)
        j.kind = SET::halves(j.kind);
    if (!there)
        j.w = NULL;
    if (lane == 0)
        *to = j;
    // few_end needs these; one split of each matrix prefetches them.
    if (SET::ROTATED && j.w && j.split % f.splits == 0 && lane < EXL3_BLOCK / STRIP_UNIT) {
        const struct mat *w2 = few_mat(p, j.expert, 2);
        int at = j.strip * EXL3_BLOCK + lane * STRIP_UNIT;

        if (j.kind >= MAT_KIND_EXL3)
            prefetch_l2(j.w->svh + at);
        if (!j.down && j.split == 0 && w2->dtype == DTYPE_EXL3)
            prefetch_l2(w2->suh + at);
    }
}

#endif
