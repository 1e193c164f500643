// gang.cu owns attention on matrix units, where both states are quantised.
//
// Quantised rows decode to exact bf16 numbers, so products with them are exact once the other
// operand is split into bf16 planes. A gang, a cluster of GANG blocks, has one row and up to TALL
// heads; a block decodes its share of the keys once and uses it for both products. Blocks
// synchronise twice: for the largest logit of a head, and for the sums, of which a block receives
// those of its share of the dimensions. The split of the keys depends on the number of keys of the
// row alone, and shares are added in order, so a row's bits do not depend on the number of heads of
// a gang, nor on how sums are exchanged. Where a block has little shared memory, logits and sums
// reuse the memory of others (GANG_CLOSE). Where the clusters of a launch would not all be resident
// at once, a gang may be eight independent blocks that exchange through global memory (GANG_LOOSE).
#include "kernels/cuda/gang_sums.cuh"

extern "C" {
#include "src/base/log.h"
}

// A gang has a row and `tall` heads. Bound by the latency of its steps, not by bytes or products.
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
    // begun is counted before dependency_wait: the next launch starts only when all blocks of this
    // one are there, each with its place, so the count is 0 again. A dependency_next before this
    // line would mix the places of two launches.
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
        gang_begin(); // a block's shared memory may be written only once the block has started
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
        gang_wait(); // all blocks have started
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
    if (LOOSE) { // read again, to save registers
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
    for (int i = 0; i < OWN; i++) { // 0 past the last key
        int j = lane + i * CUDA_WARP;
        float e = expf(l[i] - most);

        e = h < heads && j < mine ? e : 0;
        sum += e;
        if (h < HEADS && j < keys && a.round == ROUND_BF16)
            weight[h * ld + j] = (uint16_t)bf16_pair(e, 0);
        if (h < HEADS && j < keys && a.round != ROUND_BF16)
            logit[h * ld + j] = e;
    }
    __syncthreads(); // before the sums below, which the values need not wait for
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

// Gangs without clusters: for many keys, where two blocks fit a multiprocessor.
static constexpr bool may_be_loose(int dim)
{
    return dim == 512;
}

// The way that a head size has a kernel for.
static constexpr enum gang_way way_of(int dim, enum gang_way way)
{
    return way == GANG_CLOSE && !may_be_tight(dim)   ? GANG_SENT
           : way == GANG_LOOSE && !may_be_loose(dim) ? GANG_THROUGH
                                                     : way;
}

// Heads of a gang where gangs are few.
static constexpr int flat_of(int dim)
{
    return dim == 512 ? FLAT : TALL;
}

// Dynamic shared memory of a block.
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

// Whether all rows of a state are aligned to `align` bytes.
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
    // shared memory for the most keys a row may have; all ways give the same bits
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
    // all blocks can be resident at once, but not as clusters, whose last would wait for the first
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

// How many clusters of blocks with so much shared memory can be resident at once.
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
