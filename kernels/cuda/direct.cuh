// direct - exchanges whose ranks' devices write into each other's memory; a part of exchange.cu.
//
// A value travels with the number of its exchange in one store of 16 bytes, so it says by itself that it has come:
//
//   line = { 4 bytes, number, 4 bytes, number }     two words of 8 bytes, each of which comes as a whole
//
// No fence stands between data and flag, and nobody reads a line before it looks at it: an exchange takes the way of
// one store and one load. A slot has a line a block in front, which says site and size: ranks that run different
// programs find out by it. Every launch has the same number of blocks and a count of its own for each, so that blocks
// need nothing of one another. Bound by the way to the other device, from a few hundred kilobytes on by its bandwidth.
//
// Two slots by parity suffice: see kernels/exchange.h. A line that nobody has written for 2^32 exchanges would be taken
// for one of now.
#ifndef TANDEM_KERNELS_CUDA_DIRECT_CUH
#define TANDEM_KERNELS_CUDA_DIRECT_CUH

#define DIRECT_BLOCKS BLOCKS_MAX
#define DIRECT_THREADS 256 // that move pieces; a warp more watches the heads
#define DIRECT_PIECE 8     // bytes that a line carries
#define DIRECT_AHEAD 4     // lines that a thread asks for at once
#define DIRECT_LOOKS 256   // looks at a word of the device's own between two at the host's
#define DIRECT_ROUND                                                                               \
    ((size_t)2 << 20) // what a process shows to another is whole pages of the device

enum direct_kind { DIRECT_BF16, DIRECT_F32, DIRECT_GATHER };

static __host__ __device__ size_t direct_slot_lines(size_t slot_bytes)
{
    return DIRECT_BLOCKS + slot_bytes / DIRECT_PIECE;
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

// No line looks as if it had come.
static void direct_clear(const struct peer_view *v, cudaStream_t s, size_t bytes,
                         uint32_t first_seq)
{
    size_t n = bytes / sizeof(uint4);

    direct_fill<<<blocks_for(n, DIRECT_THREADS), DIRECT_THREADS, 0, s>>>(
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

    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(lo), "l"(hi)
                 : "memory");
}

// The line's words, each with its number in the upper half.
__device__ static void line_read(const uint4 *at, uint64_t *lo, uint64_t *hi)
{
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(*lo), "=l"(*hi)
                 : "l"(at)
                 : "memory");
}

__device__ static bool line_has(uint64_t lo, uint64_t hi, uint32_t seq)
{
    return (uint32_t)(lo >> 32) == seq && (uint32_t)(hi >> 32) == seq;
}

// Piece i of this rank's parcel in wire form, zeros behind the end.
template <direct_kind KIND> __device__ static uint2 piece_read(const struct parcel &p, size_t i)
{
    if (KIND == DIRECT_GATHER) {
        uint32_t w[2] = { 0, 0 };

        for (int k = 0; k < 2; k++) {
            size_t at = i * DIRECT_PIECE + (size_t)k * 4;

            if (at + 4 <= p.n && ((uintptr_t)p.in & 3) == 0)
                w[k] = *(const uint32_t *)(p.in + at);
            else
                for (int b = 0; b < 4 && at + (size_t)b < p.n; b++)
                    w[k] |= (uint32_t)(unsigned char)p.in[at + (size_t)b] << (8 * b);
        }
        return make_uint2(w[0], w[1]);
    }
    constexpr int each = KIND == DIRECT_BF16 ? 4 : 2;
    size_t at = i * each;
    float x[4] = { 0, 0, 0, 0 };

    if (KIND == DIRECT_BF16 && at + each <= p.n && ((uintptr_t)p.x & 15) == 0) {
        float4 v = *(const float4 *)(p.x + at);

        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        for (int k = 0; k < each; k++)
            if (at + (size_t)k < p.n)
                x[k] = p.x[at + (size_t)k];
    }
    if (KIND == DIRECT_F32)
        return make_uint2(f32_bits(x[0]), f32_bits(x[1]));
    return make_uint2(bf16_from_f32(x[0]) | (uint32_t)bf16_from_f32(x[1]) << 16,
                      bf16_from_f32(x[2]) | (uint32_t)bf16_from_f32(x[3]) << 16);
}

template <direct_kind KIND> __device__ static void piece_add(float *y, uint2 d, bool first)
{
    constexpr int each = KIND == DIRECT_BF16 ? 4 : 2;
    const uint32_t w[2] = { d.x, d.y };

#pragma unroll
    for (int k = 0; k < each; k++) {
        float a = KIND == DIRECT_F32 ? f32_from_bits(w[k])
                                     : f32_from_bf16((uint16_t)(w[k / 2] >> (k % 2 * 16)));

        y[k] = first ? a : y[k] + a;
    }
}

template <direct_kind KIND>
__device__ static void piece_write(const struct parcel &p, size_t i, const float *y)
{
    constexpr int each = KIND == DIRECT_BF16 ? 4 : 2;
    size_t at = i * each;

    if (KIND == DIRECT_BF16 && at + each <= p.n && ((uintptr_t)p.x & 15) == 0) {
        *(float4 *)(p.x + at) = make_float4(y[0], y[1], y[2], y[3]);
        return;
    }
#pragma unroll
    for (int k = 0; k < each; k++)
        if (at + (size_t)k < p.n)
            p.x[at + (size_t)k] = y[k];
}

__device__ static void piece_copy(const struct parcel &p, int rank, size_t i, uint2 d)
{
    char *out = p.out + (size_t)rank * p.stride;
    const uint32_t w[2] = { d.x, d.y };

#pragma unroll
    for (int k = 0; k < 2; k++) {
        size_t at = i * DIRECT_PIECE + (size_t)k * 4;

        if (at + 4 <= p.n && ((uintptr_t)out & 3) == 0)
            *(uint32_t *)(out + at) = w[k];
        else
            for (int b = 0; b < 4 && at + (size_t)b < p.n; b++)
                out[at + (size_t)b] = (char)(w[k] >> (8 * b));
    }
}

// The lines of DIRECT_AHEAD pieces from one rank. False: the peer is poisoned.
//
// A look at the host's memory takes every warp most of a microsecond, one behind the other: a hundred warps that looked
// after each POLLS kept a rank away for longer than it had waited, and next time the other one. So one thread of all
// looks often (host), the others where it tells them.
__device__ static bool lines_wait(const struct peer_view &v, const uint4 *at, const bool *due,
                                  size_t step, int rank, uint32_t seq, uint64_t tag, bool host,
                                  uint2 d[DIRECT_AHEAD])
{
    uint64_t since = 0;
    int looks = 0;

    for (int polls = 1;; polls++) {
        uint64_t lo[DIRECT_AHEAD], hi[DIRECT_AHEAD];
        bool all = true;

#pragma unroll
        for (int k = 0; k < DIRECT_AHEAD; k++)
            if (due[k])
                line_read(at + (size_t)k * step, &lo[k], &hi[k]);
#pragma unroll
        for (int k = 0; k < DIRECT_AHEAD; k++)
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

// Whether the others run the same program; one thread a block, so that it looks while pieces are waited for.
__device__ static void heads_compare(const struct peer_view &v, uint32_t seq, uint64_t tag)
{
    const bool due[DIRECT_AHEAD] = { true };
    uint2 d[DIRECT_AHEAD];

    for (int i = 1; i < v.world; i++) {
        int r = (v.rank + i) % v.world;
        uint64_t got;

        if (!lines_wait(v, direct_slot(v, v.rank, r, seq) + blockIdx.x, due, 0, r, seq, tag,
                        blockIdx.x == 0, d))
            return;
        got = seq | (uint64_t)d[0].x << 32;
        if (got != tag)
            peer_fail(v, -EPROTO, r, tag, got);
    }
}

// Blocks share out pieces in strides and wait for the same pieces of the others. The order of a sum is that of the
// ranks, whoever comes first.
template <direct_kind KIND>
__global__ static void __launch_bounds__(DIRECT_THREADS + CUDA_WARP)
    exchange_direct(struct peer_view v, struct parcel p)
{
    constexpr size_t step = DIRECT_BLOCKS * DIRECT_THREADS;
    size_t bytes = parcel_bytes(p), pieces = (bytes + DIRECT_PIECE - 1) / DIRECT_PIECE;
    size_t first = (size_t)blockIdx.x * DIRECT_THREADS + threadIdx.x;
    bool watch = blockIdx.x == 0 && threadIdx.x == 0, head = threadIdx.x == DIRECT_THREADS;
    uint64_t begun, sent = 0, come = 0, tag;
    struct peer_sums sums;

    // It comes in early where launches overlap, but lets nobody else in: who waits behind a wait for another rank would
    // take places that this rank may need on a shared device.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    begun = watch ? device_ns() : 0;
    if (threadIdx.x >= DIRECT_THREADS)
        first = pieces;
    if (watch)
        sums = v.count->sums; // on its way while the values are
    uint2 mine = first < pieces ? piece_read<KIND>(p, first) : make_uint2(0, 0);
    bool dead = peer_dead(v);
    uint32_t seq = fresh_word(&v.count->seq[blockIdx.x]) + 1;

    if (dead && watch)
        peer_fail(v, -ECANCELED, v.rank, 0, 0);
    tag = parcel_tag(p, seq, (bytes + UNIT - 1) / UNIT);
    for (size_t i = first; i < pieces && !dead; i += step) {
        uint2 d = i == first ? mine : piece_read<KIND>(p, i);

        for (int k = 1; k < v.world; k++)
            line_write(direct_slot(v, (v.rank + k) % v.world, v.rank, seq) + DIRECT_BLOCKS + i, d,
                       seq);
    }
    for (int k = 1; k < v.world && head && !dead; k++)
        line_write(direct_slot(v, (v.rank + k) % v.world, v.rank, seq) + blockIdx.x,
                   make_uint2((uint32_t)(tag >> 32), 0), seq);
    sent = watch ? device_ns() : 0;
    for (size_t i = first; i < pieces && !dead; i += DIRECT_AHEAD * step) {
        float y[DIRECT_AHEAD][4];
        bool due[DIRECT_AHEAD];

#pragma unroll
        for (int k = 0; k < DIRECT_AHEAD; k++)
            due[k] = i + (size_t)k * step < pieces;
        for (int r = 0; r < v.world && !dead; r++) {
            const uint4 *at = direct_slot(v, v.rank, r, seq) + DIRECT_BLOCKS + i;
            uint2 d[DIRECT_AHEAD];

            if (r != v.rank)
                dead = !lines_wait(v, at, due, step, r, seq, tag, false, d);
#pragma unroll
            for (int k = 0; k < DIRECT_AHEAD; k++) {
                if (!due[k])
                    continue;
                if (r == v.rank)
                    d[k] = i == first && k == 0 ? mine : piece_read<KIND>(p, i + (size_t)k * step);
                if (KIND == DIRECT_GATHER)
                    piece_copy(p, r, i + (size_t)k * step, d[k]);
                else
                    piece_add<KIND>(y[k], d[k], r == 0);
            }
        }
#pragma unroll
        for (int k = 0; k < DIRECT_AHEAD && KIND != DIRECT_GATHER; k++)
            if (due[k])
                piece_write<KIND>(p, i + (size_t)k * step, y[k]);
    }
    come = watch ? device_ns() : 0;
    if (head && !dead)
        heads_compare(v, seq, tag);
    __syncthreads(); // everybody has read the count
    if (threadIdx.x == 0)
        v.count->seq[blockIdx.x] = seq;
    if (watch)
        note_times(v, &sums, bytes, begun, sent, come);
}

static void direct_launch(const struct peer_view *v, struct queue *q, const struct parcel *p)
{
    constexpr int threads = DIRECT_THREADS + CUDA_WARP;

    if (p->in)
        launch(q, exchange_direct<DIRECT_GATHER>, DIRECT_BLOCKS, threads, 0, *v, *p);
    else if (p->wire == EXCHANGE_BF16)
        launch(q, exchange_direct<DIRECT_BF16>, DIRECT_BLOCKS, threads, 0, *v, *p);
    else
        launch(q, exchange_direct<DIRECT_F32>, DIRECT_BLOCKS, threads, 0, *v, *p);
}

#endif
