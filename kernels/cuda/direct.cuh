// direct - exchanges between devices that write into each other's memory; a part of exchange.cu.
//
// Values travel as flag-carrying words: one 16-byte store has 8 bytes of data and, twice, the
// number of the exchange:
//
//   line = { 4 bytes, number, 4 bytes, number }     two 8-byte words, neither of which is ever torn
//
// The receiver polls the data itself, so no fence stands between data and flag, and an exchange
// costs one remote store and one local load. Each slot begins with a line that has site and size,
// by which ranks that run different programs find out; an extra warp of block 0, which moves no
// data, exchanges those. Every launch has the same number of blocks and each block counts exchanges
// for itself, so blocks need no synchronisation with one another. Bound by latency (launch, load,
// the way to the other device, end of the kernel), from a few hundred kilobytes on by the bandwidth
// between the devices.
//
// Two slots by parity suffice: see kernels/exchange.h. The number wraps: a line not written for
// 2^32 exchanges would be taken for a current one.
#ifndef TANDEM_KERNELS_CUDA_DIRECT_CUH
#define TANDEM_KERNELS_CUDA_DIRECT_CUH

#define DIRECT_BLOCKS 32
#define DIRECT_THREADS 256 // threads that move pieces; a warp more watches
#define DIRECT_LOT 4       // pieces in flight of a thread, for long exchanges
#define DIRECT_PIECE 8     // bytes of data in a line
#define DIRECT_LOOKS 256   // checks of the poison word, in device memory, for one of the host's
#define DIRECT_ROUND                                                                               \
    ((size_t)2 << 20) // a page of the device: inboxes shared between processes are whole pages

enum direct_kind { DIRECT_BF16, DIRECT_F32, DIRECT_GATHER };

static __host__ __device__ size_t direct_slot_lines(size_t slot_bytes)
{
    return 1 + slot_bytes / DIRECT_PIECE;
}

static size_t direct_bytes(const struct peer_spec *s)
{
    size_t bytes = (size_t)s->world * 2 * direct_slot_lines(s->slot_bytes) * sizeof(uint4);

    return (bytes + DIRECT_ROUND - 1) / DIRECT_ROUND * DIRECT_ROUND;
}

__global__ static void direct_fill(uint4 *line, size_t n, uint32_t seq)
{
    size_t i = (size_t)blockIdx.x * DIRECT_THREADS + threadIdx.x;

    if (i < n)
        line[i] = make_uint4(0, seq, 0, seq);
}

// Fill the inbox with the number of an exchange before the first, so that no line counts as
// arrived.
static void direct_clear(const struct peer_view *v, cudaStream_t s, size_t bytes,
                         uint32_t first_seq)
{
    size_t n = bytes / sizeof(uint4);

    launch_behind(s, direct_fill, blocks_for(n, DIRECT_THREADS), DIRECT_THREADS, 0,
                  (uint4 *)v->inbox[v->rank], n, first_seq);
}

__device__ static uint4 *direct_slot(const struct peer_view &v, int owner, int sender, uint32_t seq)
{
    return (uint4 *)v.inbox[owner] +
           ((size_t)sender * 2 + (seq & 1)) * direct_slot_lines(v.slot_bytes);
}

__device__ static void line_write(uint4 *at, uint2 d, uint32_t seq)
{
    uint64_t lo = d.x | (uint64_t)seq << 32, hi = d.y | (uint64_t)seq << 32;

    pair_write(at, lo, hi);
}

__device__ static bool line_has(uint64_t lo, uint64_t hi, uint32_t seq)
{
    return (uint32_t)(lo >> 32) == seq && (uint32_t)(hi >> 32) == seq;
}

// A piece as it lies in memory: four f32 values that travel as bf16, or 8 bytes that travel as they
// are.
template <direct_kind KIND> struct raw_piece {
    uint2 v;
};
template <> struct raw_piece<DIRECT_BF16> {
    float4 v;
};

template <direct_kind KIND> __device__ static size_t raw_bytes(const struct parcel &p)
{
    return KIND == DIRECT_GATHER ? p.n : p.n * sizeof(float);
}

template <direct_kind KIND>
__device__ static const char *piece_at(const struct parcel &p, unsigned i)
{
    return (KIND == DIRECT_GATHER ? p.in : (const char *)p.x) + (size_t)i * sizeof(raw_piece<KIND>);
}

// Whether pieces at `at` are aligned and none is cut short by the end, so that each is one access.
template <direct_kind KIND> __device__ static bool whole_at(const struct parcel &p, const void *at)
{
    return ((uintptr_t)at | raw_bytes<KIND>(p)) % sizeof(raw_piece<KIND>) == 0;
}

// Piece i of this rank's parcel, zeros past the end.
template <direct_kind KIND>
__device__ static raw_piece<KIND> piece_load(const struct parcel &p, unsigned i, bool whole)
{
    constexpr int words = sizeof(raw_piece<KIND>) / 4;
    const char *from = piece_at<KIND>(p, i);
    size_t bytes = raw_bytes<KIND>(p);
    raw_piece<KIND> raw;
    uint32_t w[words] = {};

    if (whole)
        return *(const raw_piece<KIND> *)from;
    for (int k = 0; k < words; k++) {
        size_t at = (size_t)i * sizeof(raw) + (size_t)k * 4;

        if (at + 4 <= bytes && ((uintptr_t)from & 3) == 0)
            w[k] = ((const uint32_t *)from)[k];
        else
            for (int b = 0; b < 4 && at + (size_t)b < bytes; b++)
                w[k] |= (uint32_t)(unsigned char)from[k * 4 + b] << (8 * b);
    }
    memcpy(&raw, w, sizeof(raw));
    return raw;
}

// Store piece i of a parcel at `to`, up to the parcel's end.
template <direct_kind KIND>
__device__ static void piece_store(const struct parcel &p, char *to, unsigned i,
                                   const raw_piece<KIND> &raw)
{
    constexpr int words = sizeof(raw_piece<KIND>) / 4;
    size_t bytes = raw_bytes<KIND>(p);
    uint32_t w[words];

    if (whole_at<KIND>(p, to)) {
        ((raw_piece<KIND> *)to)[i] = raw;
        return;
    }
    memcpy(w, &raw, sizeof(w));
    for (int k = 0; k < words; k++) {
        size_t at = (size_t)i * sizeof(raw) + (size_t)k * 4;

        if (at + 4 <= bytes && ((uintptr_t)to & 3) == 0)
            *(uint32_t *)(to + at) = w[k];
        else
            for (int b = 0; b < 4 && at + (size_t)b < bytes; b++)
                to[at + (size_t)b] = (char)(w[k] >> (8 * b));
    }
}

// A piece in the wire type.
template <direct_kind KIND> __device__ static uint2 piece_pack(const raw_piece<KIND> &raw)
{
    return raw.v;
}

template <> __device__ uint2 piece_pack<DIRECT_BF16>(const raw_piece<DIRECT_BF16> &raw)
{
    return make_uint2(bf16_from_f32(raw.v.x) | (uint32_t)bf16_from_f32(raw.v.y) << 16,
                      bf16_from_f32(raw.v.z) | (uint32_t)bf16_from_f32(raw.v.w) << 16);
}

__device__ static void add_to(float *y, float a, bool first)
{
    *y = first ? a : *y + a;
}

// Add one more rank's piece to a sum; first: it is rank 0's.
__device__ static void piece_add(raw_piece<DIRECT_BF16> *y, uint2 d, bool first)
{
    add_to(&y->v.x, f32_from_bits(d.x << 16), first);
    add_to(&y->v.y, f32_from_bits(d.x & 0xffff0000u), first);
    add_to(&y->v.z, f32_from_bits(d.y << 16), first);
    add_to(&y->v.w, f32_from_bits(d.y & 0xffff0000u), first);
}

template <direct_kind KIND>
__device__ static void piece_add(raw_piece<KIND> *y, uint2 d, bool first)
{
    float lo = f32_from_bits(y->v.x), hi = f32_from_bits(y->v.y);

    add_to(&lo, f32_from_bits(d.x), first);
    add_to(&hi, f32_from_bits(d.y), first);
    y->v = make_uint2(f32_bits(lo), f32_bits(hi));
}

// Wait for the lines of a lot from one rank; d gets the data. False: the peer is poisoned.
//
// A read of host memory takes most of a microsecond, and those of all warps are served one after
// another: with a hundred warps reading after every POLLS polls, ranks kept delaying each other. So
// only one thread checks the host's words often (host); the others check the poison word in device
// memory.
template <int LOT>
__device__ static bool lines_wait(const struct peer_view &v, const uint4 *at, const bool *due,
                                  unsigned step, int rank, uint32_t seq, uint64_t tag, bool host,
                                  uint2 d[LOT])
{
    uint64_t since = 0;
    int looks = 0;

    for (int polls = 1;; polls++) {
        uint64_t lo[LOT], hi[LOT];
        bool all = true;

#pragma unroll
        for (int k = 0; k < LOT; k++)
            if (due[k])
                pair_read(at + (unsigned)k * step, &lo[k], &hi[k]);
#pragma unroll
        for (int k = 0; k < LOT; k++)
            if (due[k]) {
                all &= line_has(lo[k], hi[k], seq);
                d[k] = make_uint2((uint32_t)lo[k], (uint32_t)hi[k]);
            }
        if (all)
            return true;
        if (polls % POLLS != 0)
            continue;
        if (host || ++looks % DIRECT_LOOKS == 0) {
            if (peer_over(v, rank, tag, 0, &since))
                return false;
        } else if (fresh_word(&v.count->poison)) {
            return false;
        }
    }
}

// Times of an exchange, taken by the watching thread.
struct direct_times {
    uint64_t begun, sent, come;
};

// Exchange head lines and compare tags: do the others run the same program? One thread, which while
// it waits also watches the clock and the abort word for the whole launch.
__device__ static void heads_meet(const struct peer_view &v, uint32_t seq, uint64_t tag,
                                  struct direct_times *t)
{
    const bool due = true;
    uint2 d;

    for (int i = 1; i < v.world; i++)
        line_write(direct_slot(v, (v.rank + i) % v.world, v.rank, seq),
                   make_uint2((uint32_t)(tag >> 32), 0), seq);
    t->sent = device_ns();
    for (int i = 1; i < v.world; i++) {
        int r = (v.rank + i) % v.world;
        uint64_t got;

        if (!lines_wait<1>(v, direct_slot(v, v.rank, r, seq), &due, 0, r, seq, tag, true, &d))
            break;
        got = seq | (uint64_t)d.x << 32;
        if (got != tag)
            peer_fail(v, -EPROTO, r, tag, got);
    }
    t->come = device_ns();
}

// What a thread moves at a time: pieces i, i + step, ...
template <direct_kind KIND, int LOT> struct direct_lot {
    raw_piece<KIND> raw[LOT];
    bool due[LOT]; // whether there is such a piece
};

template <direct_kind KIND, int LOT>
__device__ static void lot_load(const struct parcel &p, unsigned i, unsigned step, unsigned pieces,
                                struct direct_lot<KIND, LOT> *l)
{
    bool whole = whole_at<KIND>(p, piece_at<KIND>(p, 0));

#pragma unroll
    for (int k = 0; k < LOT; k++) {
        l->due[k] = i + (unsigned)k * step < pieces;
        if (l->due[k])
            l->raw[k] = piece_load<KIND>(p, i + (unsigned)k * step, whole);
    }
}

// Send a lot to all ranks, receive theirs, add or store. A sum is added in rank order, whichever
// rank arrives first. False: the peer is poisoned.
template <direct_kind KIND, int LOT>
__device__ static bool lot_trade(const struct peer_view &v, const struct parcel &p, unsigned i,
                                 unsigned step, uint32_t seq, uint64_t tag,
                                 struct direct_lot<KIND, LOT> *l)
{
    uint2 mine[LOT];

#pragma unroll
    for (int k = 0; k < LOT; k++)
        if (l->due[k])
            mine[k] = piece_pack<KIND>(l->raw[k]);
    for (int n = 1; n < v.world; n++) {
        uint4 *to = direct_slot(v, (v.rank + n) % v.world, v.rank, seq) + 1 + i;

#pragma unroll
        for (int k = 0; k < LOT; k++)
            if (l->due[k])
                line_write(to + (unsigned)k * step, mine[k], seq);
    }
    for (int r = 0; r < v.world; r++) {
        const uint4 *at = direct_slot(v, v.rank, r, seq) + 1 + i;
        uint2 d[LOT];

        if (r != v.rank && !lines_wait<LOT>(v, at, l->due, step, r, seq, tag, false, d))
            return false;
#pragma unroll
        for (int k = 0; k < LOT; k++) {
            if (!l->due[k])
                continue;
            if (r == v.rank)
                d[k] = mine[k];
            if (KIND == DIRECT_GATHER)
                piece_store<DIRECT_GATHER>(p, p.out + (size_t)r * p.stride, i + (unsigned)k * step,
                                           { d[k] });
            else
                piece_add(&l->raw[k], d[k], r == 0);
        }
    }
#pragma unroll
    for (int k = 0; k < LOT && KIND != DIRECT_GATHER; k++)
        if (l->due[k])
            piece_store<KIND>(p, (char *)p.x, i + (unsigned)k * step, l->raw[k]);
    return true;
}

// A thread sends its pieces and waits for the same pieces of the other ranks; warps are numbered
// across blocks first. Bound as the head says.
template <direct_kind KIND, int LOT>
__global__ static void __launch_bounds__(DIRECT_THREADS + CUDA_WARP)
    exchange_direct(struct peer_view v, struct parcel p)
{
    constexpr unsigned step = DIRECT_BLOCKS * DIRECT_THREADS;
    size_t bytes = parcel_bytes(p);
    unsigned pieces = (unsigned)((bytes + DIRECT_PIECE - 1) / DIRECT_PIECE);
    unsigned warp = threadIdx.x / CUDA_WARP * DIRECT_BLOCKS + blockIdx.x;
    unsigned first = warp * CUDA_WARP + threadIdx.x % CUDA_WARP;
    bool watch = threadIdx.x == DIRECT_THREADS && blockIdx.x == 0, dead;
    struct direct_lot<KIND, LOT> lot;
    struct direct_times t = {};
    struct peer_sums sums;
    uint32_t seq;
    uint64_t tag;

    if (threadIdx.x >= DIRECT_THREADS)
        first = pieces;
    // Launches overlap: prefetch to L2 what is needed first, before the kernels in front have
    // ended. The next kernel's blocks may start while this one waits for another rank, unless that
    // rank is on the same device and may need their places.
    if (!v.shares)
        dependency_next();
    if (first < pieces)
        prefetch_l2(piece_at<KIND>(p, first));
    else if (watch)
        prefetch_l2(v.count), prefetch_l2(v.fault);
    dependency_settle();
    lot_load(p, first, step, pieces, &lot);
    dead = peer_dead(v);
    seq = fresh_word(&v.count->seq[blockIdx.x]) + 1;
    if (watch) {
        sums = v.count->sums;
        t.begun = device_ns();
    }
    tag = parcel_tag(p, seq, (bytes + UNIT - 1) / UNIT);
    if (watch && !dead)
        heads_meet(v, seq, tag, &t);
    else if (watch)
        peer_fail(v, -ECANCELED, v.rank, 0, 0);
    for (unsigned i = first; i < pieces && !dead; i += LOT * step) {
        if (i != first)
            lot_load(p, i, step, pieces, &lot);
        dead = !lot_trade(v, p, i, step, seq, tag, &lot);
    }
    __syncthreads(); // all threads have read the count
    if (threadIdx.x == 0)
        v.count->seq[blockIdx.x] = seq;
    if (watch && !dead)
        note_times(v, &sums, bytes, t.begun, t.sent, t.come);
}

// The blocks of all ranks on a device must be resident at once, since they wait for each other:
// with one piece a thread those of eight ranks fit on 132 multiprocessors, of four on 48.
template <direct_kind KIND>
static void direct_launch_kind(const struct peer_view *v, struct queue *q, const struct parcel *p,
                               size_t bytes)
{
    constexpr int threads = DIRECT_THREADS + CUDA_WARP;
    bool one = v->shares || bytes <= (size_t)DIRECT_BLOCKS * DIRECT_THREADS * DIRECT_PIECE;

    launch(q, one ? exchange_direct<KIND, 1> : exchange_direct<KIND, DIRECT_LOT>, DIRECT_BLOCKS,
           threads, 0, *v, *p);
}

static void direct_launch(const struct peer_view *v, struct queue *q, const struct parcel *p,
                          size_t bytes)
{
    if (p->in)
        direct_launch_kind<DIRECT_GATHER>(v, q, p, bytes);
    else if (p->wire == EXCHANGE_BF16)
        direct_launch_kind<DIRECT_BF16>(v, q, p, bytes);
    else
        direct_launch_kind<DIRECT_F32>(v, q, p, bytes);
}

#endif
