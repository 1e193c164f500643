// exchange.cu owns sums and gathers over ranks in device memory (kernels/exchange.h): the staging
// and adding around another transport, and peers. A peer is direct (direct.cuh: devices write into
// each other's memory) or relayed: the kernel stages its values into a pinned outbox and rings a
// bell, a host thread (the proxy) sends them, the kernel polls a flag for each rank in host memory
// and then reads what came. Sums travel as bf16 or f32 and are added in rank order. Bound by
// latency, for long exchanges by the bandwidth between the ranks.
#include <stdlib.h>

#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/exchange.h"
#include "src/base/log.h"
}

#define THREADS 256
#define BLOCKS_MAX 32
#define RELAYED_BLOCKS 16
#define BLOCK_BYTES 4096 // of an exchange for each block, until there are RELAYED_BLOCKS
#define UNIT 16
#define POLLS 64 // polls between two checks of the clock and the abort word

// ---- one rank -----------------------------------------------------------------------------------

__global__ static void round_values(float *x, size_t n)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        x[i] = bf16_round(x[i]);
}

extern "C" void exchange_round(struct queue *q, enum exchange_wire w, float *x, size_t n)
{
    if (q->err || n == 0 || w == EXCHANGE_F32)
        return;
    launch_behind(cuda_stream(q), round_values, blocks_for(n, THREADS), THREADS, 0, x, n);
    queue_note(q, "round");
}

extern "C" void exchange_copy(struct queue *q, void *dst, const void *src, size_t bytes)
{
    cudaError_t e;

    if (q->err || bytes == 0 || dst == src)
        return;
    e = cuda_copy_within(cuda_stream(q), dst, src, bytes);
    if (e != cudaSuccess)
        queue_fail(q, cuda_errno(e), "copy of %zu bytes: %s", bytes, cudaGetErrorString(e));
}

// A queue with a fault stages NaN, so that no rank takes its values for numbers.
__global__ static void put_values(enum exchange_wire w, void *slot, const float *x, size_t n,
                                  const int32_t *fault)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float v;

    if (i >= n)
        return;
    v = *fault ? NAN : x[i];
    if (w == EXCHANGE_BF16)
        ((uint16_t *)slot)[i] = bf16_from_f32(v);
    else
        ((float *)slot)[i] = v;
}

__global__ static void sum_values(enum exchange_wire w, const char *parts, size_t stride, int world,
                                  float *y, size_t n)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0;

    if (i >= n)
        return;
    for (int r = 0; r < world; r++) {
        const char *part = parts + (size_t)r * stride;
        float a = w == EXCHANGE_BF16 ? f32_from_bf16(((const uint16_t *)part)[i])
                                     : ((const float *)part)[i];

        sum = r == 0 ? a : sum + a;
    }
    y[i] = sum;
}

extern "C" void exchange_put(struct queue *q, enum exchange_wire w, void *slot, const float *x,
                             size_t n)
{
    if (q->err || n == 0)
        return;
    launch_behind(cuda_stream(q), put_values, blocks_for(n, THREADS), THREADS, 0, w, slot, x, n,
                  cuda_queue(q)->alarm.taken);
    queue_note(q, "exchange");
}

extern "C" void exchange_sum(struct queue *q, enum exchange_wire w, const void *parts,
                             size_t stride, int world, float *y, size_t n)
{
    if (q->err || n == 0)
        return;
    launch_behind(cuda_stream(q), sum_values, blocks_for(n, THREADS), THREADS, 0, w,
                  (const char *)parts, stride, world, y, n);
    queue_note(q, "exchange");
}

extern "C" void *exchange_stream(struct queue *q)
{
    return cuda_stream(q);
}

// ---- many ranks ---------------------------------------------------------------------------------

// Counts and times of a rank's exchanges so far, as their first block saw them.
struct peer_sums {
    uint64_t exchanges, bytes, wait_ns, wait_max_ns, move_ns;
};

// Counters in device memory.
struct peer_count {
    uint32_t seq[BLOCKS_MAX]; // of the last exchange; direct: one a block, relayed: seq[0] alone
    uint32_t staged;          // blocks whose share of the running one lies in the outbox
    uint32_t gone;            // blocks that are done with the running one
    uint32_t poison;          // not 0: exchanges return at once
    uint64_t come[PEER_WORLD_MAX]; // relayed: tag of the slot, once block 0 has seen its flag
    struct peer_sums sums;
};

// A rank as its kernels see it. Direct: the inbox of every rank is [world][2] slots of lines, by
// sender and parity (direct.cuh). Relayed: inbox[r] is [2][slot_bytes] of what rank r sent, in host
// memory, for the rank itself in device memory; flags[r] has a flag for each slot, flag_words
// apart.
struct peer_view {
    unsigned char *inbox[PEER_WORLD_MAX];
    uint64_t *flags[PEER_WORLD_MAX];
    unsigned char *outbox; // pinned; NULL: direct
    uint64_t *bell;        // pinned
    size_t flag_words;
    struct peer_count *count;
    const int32_t *fault;       // of the queue: not 0 if its values must not leave the rank
    struct peer_record *record; // pinned
    uint64_t *abort_word;       // pinned
    size_t slot_bytes;
    int64_t limit_ns;
    int rank, world;
    bool shares; // another rank is on the same device
};

struct peer {
    struct peer_view v;
    struct device *dev;
    cudaStream_t stream;          // for work between exchanges
    struct peer_sums sums;        // as of the last peer_note and wait
    void *area[PEER_WORLD_MAX];   // host memory registered with the device
    void *raised[PEER_WORLD_MAX]; // pinned flags that the proxy raises
    bool opened[PEER_WORLD_MAX];  // inboxes opened from other processes
};

// What one launch moves.
struct parcel {
    float *x;         // sum: in and out
    const char *in;   // gather: at the piece
    char *out;        // gather: at the piece of rank 0
    size_t n, stride; // values of a sum or bytes of a gather; from rank to rank in out
    enum exchange_wire wire;
    int site;
};

__device__ static size_t parcel_bytes(const struct parcel &p)
{
    return p.in ? p.n : p.n * (p.wire == EXCHANGE_BF16 ? 2 : 4);
}

__device__ static uint64_t parcel_tag(const struct parcel &p, uint32_t seq, size_t units)
{
    return seq | (uint64_t)p.site << 32 | (uint64_t)units << 44;
}

// The slot in which this rank reads what `sender` sent in this exchange.
__device__ static const uint4 *part_of(const struct peer_view &v, int sender, uint32_t seq)
{
    return (const uint4 *)(v.inbox[sender] + (seq & 1) * v.slot_bytes);
}

// Unit u of a sum in the wire type, zeros past the end.
__device__ static uint4 unit_stage(const struct parcel &p, size_t u)
{
    uint32_t w[4] = { 0, 0, 0, 0 };
    int each = p.wire == EXCHANGE_BF16 ? 8 : 4;

    for (int i = 0; i < each; i++) {
        size_t at = u * (size_t)each + (size_t)i;
        float v = at < p.n ? p.x[at] : 0;

        if (p.wire == EXCHANGE_F32)
            w[i] = f32_bits(v);
        else
            w[i / 2] |= (uint32_t)bf16_from_f32(v) << (i % 2 * 16);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

// Unit u of n bytes that need not be aligned.
__device__ static uint4 unit_read(const char *in, size_t n, size_t u)
{
    uint32_t w[4] = { 0, 0, 0, 0 };

    for (int i = 0; i < 4; i++) {
        size_t at = u * UNIT + (size_t)i * 4;

        if (at + 4 <= n && ((uintptr_t)in & 3) == 0)
            w[i] = *(const uint32_t *)(in + at);
        else
            for (int b = 0; b < 4 && at + (size_t)b < n; b++)
                w[i] |= (uint32_t)(unsigned char)in[at + (size_t)b] << (8 * b);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

__device__ static void unit_write(char *out, size_t n, size_t u, uint4 v)
{
    const uint32_t w[4] = { v.x, v.y, v.z, v.w };

    for (int i = 0; i < 4; i++) {
        size_t at = u * UNIT + (size_t)i * 4;

        if (at + 4 <= n && ((uintptr_t)out & 3) == 0)
            *(uint32_t *)(out + at) = w[i];
        else
            for (int b = 0; b < 4 && at + (size_t)b < n; b++)
                out[at + (size_t)b] = (char)(w[i] >> (8 * b));
    }
}

__device__ static void peer_fail(const struct peer_view &v, int code, int peer, uint64_t want,
                                 uint64_t got)
{
    if (atomicCAS(&v.count->poison, 0u, 1u) != 0)
        return;
    v.record->peer = peer;
    v.record->want = want;
    v.record->got = got;
    v.record->code = code;
}

// Whether exchanges are over: the peer is poisoned, or its queue has a fault (then the caller
// poisons it).
__device__ static bool peer_dead(const struct peer_view &v)
{
    return fresh_word(&v.count->poison) | fresh_word((const uint32_t *)v.fault);
}

// Called after every POLLS polls: true if waiting is over, because of poison, an abort or the time
// limit. *since is 0 before the first call.
__device__ static bool peer_over(const struct peer_view &v, int peer, uint64_t want, uint64_t got,
                                 uint64_t *since)
{
    uint64_t now = device_ns(), code;

    if (fresh_word(&v.count->poison))
        return true;
    code = flag_read(v.abort_word);
    if (code) {
        peer_fail(v, -(int)code, peer, want, got);
        return true;
    }
    if (*since == 0)
        *since = now;
    if (v.limit_ns >= 0 && (int64_t)(now - *since) > v.limit_ns) {
        peer_fail(v, -ETIMEDOUT, peer, want, got);
        return true;
    }
    __nanosleep(128);
    return false;
}

// Wait for the flag of one peer; one thread. False: the peer is poisoned. Only block 0 polls host
// memory, where a read takes most of a microsecond; it passes the tag on to the others in device
// memory.
__device__ static bool peer_wait(const struct peer_view &v, int peer, uint32_t seq, uint64_t tag)
{
    uint64_t *told = &v.count->come[peer], since = 0, got;
    const uint64_t *flag = blockIdx.x == 0 ? v.flags[peer] + (seq & 1) * v.flag_words : told;

    for (int polls = 1;; polls++) {
        got = flag_read(flag);
        if (got == tag) {
            if (blockIdx.x == 0)
                flag_raise(told, tag);
            return true;
        }
        if (blockIdx.x != 0) {
            if (polls % POLLS == 0 && fresh_word(&v.count->poison))
                return false;
            continue;
        }
        if ((uint32_t)got == seq) {
            peer_fail(v, -EPROTO, peer, tag, got);
            return false;
        }
        if (polls % POLLS == 0 && peer_over(v, peer, tag, got, &since))
            return false;
    }
}

// Add unit u of all ranks, in rank order, plain adds.
__device__ static void unit_add(const struct peer_view &v, const struct parcel &p, uint32_t seq,
                                size_t u)
{
    int each = p.wire == EXCHANGE_BF16 ? 8 : 4;
    float y[8];

    for (int r = 0; r < v.world; r++) {
        uint4 part = fresh_load(part_of(v, r, seq) + u);
        const uint32_t w[4] = { part.x, part.y, part.z, part.w };

#pragma unroll
        for (int i = 0; i < 8; i++) {
            float a = p.wire == EXCHANGE_F32 ? f32_from_bits(w[i % 4])
                                             : f32_from_bf16((uint16_t)(w[i / 2] >> (i % 2 * 16)));

            y[i] = r == 0 ? a : y[i] + a;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        size_t at = u * (size_t)each + (size_t)i;

        if (i < each && at < p.n)
            p.x[at] = y[i];
    }
}

// Stage the block's share in the outbox and in the own inbox; the last block rings the bell. All
// threads.
__device__ static void send_share(const struct peer_view &v, const struct parcel &p, size_t units,
                                  uint32_t seq, uint64_t tag)
{
    size_t step = (size_t)gridDim.x * THREADS;

    for (size_t u = (size_t)blockIdx.x * THREADS + threadIdx.x; u < units; u += step) {
        uint4 w = p.in ? unit_read(p.in, p.n, u) : unit_stage(p, u);

        ((uint4 *)(v.outbox + (seq & 1) * v.slot_bytes))[u] = w;
        ((uint4 *)(v.inbox[v.rank] + (seq & 1) * v.slot_bytes))[u] = w;
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    __threadfence_system();
    if (atomicAdd(&v.count->staged, 1u) == gridDim.x - 1) {
        v.count->staged = 0;
        flag_raise(v.bell + (seq & 1) * PEER_BELL_STRIDE, tag);
    }
}

// Account for an exchange. One thread, before its block ends; *s: the sums before.
__device__ static void note_times(const struct peer_view &v, struct peer_sums *s, size_t bytes,
                                  uint64_t begun, uint64_t sent, uint64_t come)
{
    uint64_t wait = come - sent;

    s->exchanges++;
    s->bytes += bytes;
    s->wait_ns += wait;
    s->wait_max_ns = wait > s->wait_max_ns ? wait : s->wait_max_ns;
    s->move_ns += sent - begun + (device_ns() - come);
    v.count->sums = *s;
}

#include "kernels/cuda/direct.cuh"

// Blocks take units in strides of the grid; the last one to have staged rings the bell. Bound by
// the network's latency and bandwidth.
__global__ static void exchange_relayed(struct peer_view v, struct parcel p)
{
    __shared__ uint32_t seq_of, dead;
    size_t bytes = parcel_bytes(p), units = (bytes + UNIT - 1) / UNIT;
    size_t first = (size_t)blockIdx.x * THREADS + threadIdx.x;
    size_t step = (size_t)gridDim.x * THREADS;
    uint64_t tag, begun = 0, sent = 0, come = 0;
    uint32_t seq;

    // The next kernel's blocks start while this one waits for the network, and prefetch their
    // weights. A rank on the same device may need those places, so not there.
    if (!v.shares)
        dependency_next();
    dependency_settle();
    if (threadIdx.x == 0) {
        dead = peer_dead(v);
        seq_of = fresh_word(&v.count->seq[0]) + 1;
        begun = device_ns();
    }
    __syncthreads();
    if (dead) {
        if (threadIdx.x == 0)
            peer_fail(v, -ECANCELED, v.rank, 0, 0);
        return;
    }
    seq = seq_of;
    tag = parcel_tag(p, seq, units);
    send_share(v, p, units, seq, tag);
    sent = device_ns();
    if ((int)threadIdx.x < v.world && (int)threadIdx.x != v.rank &&
        !peer_wait(v, (int)threadIdx.x, seq, tag))
        dead = 1;
    __syncthreads();
    come = device_ns();
    if (dead)
        return;
    for (size_t u = first; u < units; u += step) {
        if (!p.in) {
            unit_add(v, p, seq, u);
            continue;
        }
        for (int r = 0; r < v.world; r++)
            unit_write(p.out + (size_t)r * p.stride, p.n, u, fresh_load(part_of(v, r, seq) + u));
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    if (blockIdx.x == 0) {
        struct peer_sums sums = v.count->sums;

        note_times(v, &sums, units * UNIT, begun, sent, come);
    }
    if (atomicAdd(&v.count->gone, 1u) == gridDim.x - 1) {
        v.count->gone = 0;
        v.count->seq[0] = seq;
    }
}

static void exchange_launch(struct peer *p, struct queue *q, const struct parcel *a, size_t bytes)
{
    unsigned blocks = blocks_for(bytes, BLOCK_BYTES);
    struct peer_view v = p->v;

    v.fault = cuda_queue(q)->alarm.taken;
    if (!v.outbox) {
        direct_launch(&v, q, a, bytes);
    } else {
        blocks = blocks < RELAYED_BLOCKS ? blocks : RELAYED_BLOCKS;
        launch(q, exchange_relayed, blocks, THREADS, 0, v, *a);
    }
    queue_note(q, "exchange");
}

extern "C" void peer_sum(struct peer *p, struct queue *q, int site, enum exchange_wire w, float *x,
                         size_t n)
{
    size_t each = exchange_wire_bytes(w), most = p->v.slot_bytes / each;

    if (q->err)
        return;
    for (size_t at = 0; at < n; at += most) {
        struct parcel a = { x + at, NULL, NULL, n - at < most ? n - at : most, 0, w, site };

        exchange_launch(p, q, &a, a.n * each);
    }
}

extern "C" void peer_gather(struct peer *p, struct queue *q, int site, const void *in, void *out,
                            size_t bytes)
{
    if (q->err)
        return;
    for (size_t at = 0; at < bytes; at += p->v.slot_bytes) {
        size_t n = bytes - at < p->v.slot_bytes ? bytes - at : p->v.slot_bytes;
        struct parcel a = { NULL, (const char *)in + at, (char *)out + at, n, bytes, EXCHANGE_F32,
                            site };

        exchange_launch(p, q, &a, n);
    }
}

// ---- opening ------------------------------------------------------------------------------------

extern "C" void peer_close(struct peer *p, bool parted)
{
    if (!p)
        return;
    for (int r = 0; r < p->v.world; r++) {
        if (p->opened[r])
            cudaIpcCloseMemHandle(p->v.inbox[r]);
        if (p->area[r])
            cudaHostUnregister(p->area[r]);
        cudaFreeHost(p->raised[r]);
    }
    if (parted)
        cudaFree(p->v.inbox[p->v.rank]);
    if (p->stream)
        cudaStreamDestroy(p->stream);
    cudaFree(p->v.count);
    cudaFreeHost(p->v.outbox);
    cudaFreeHost(p->v.bell);
    cudaFreeHost(p->v.record);
    cudaFreeHost(p->v.abort_word);
    free(p);
}

static int spec_check(const struct device *d, const struct peer_spec *s)
{
    if (d->ops != &backend_cuda)
        return fail(-ENOTSUP, "comm peer: backend %s has no memory that peers write", d->ops->name);
    if (s->world < 1 || s->world > PEER_WORLD_MAX || s->rank < 0 || s->rank >= s->world ||
        s->slot_bytes < UNIT || s->slot_bytes % UNIT != 0)
        return fail(-EINVAL, "comm peer: rank %d of %d, slots of %zu bytes", s->rank, s->world,
                    s->slot_bytes);
    return 0;
}

// Pinned host memory, zeroed.
static int pinned(size_t bytes, void **out)
{
    cudaError_t e = cudaHostAlloc(out, bytes, cudaHostAllocDefault);

    if (e != cudaSuccess) {
        *out = NULL;
        return fail(cuda_errno(e), "comm peer: %zu bytes of pinned memory: %s", bytes,
                    cudaGetErrorString(e));
    }
    memset(*out, 0, bytes);
    return 0;
}

static int take_memory(struct peer *p, const struct peer_spec *s)
{
    struct device *d = p->dev;
    void *inbox = NULL, *count = NULL, *out = NULL, *bell = NULL;
    int r = d->ops->alloc(d, s->relayed ? 2 * s->slot_bytes : direct_bytes(s), &inbox);

    p->v.inbox[s->rank] = (unsigned char *)inbox;
    if (r == 0)
        r = d->ops->alloc(d, sizeof(*p->v.count), &count);
    p->v.count = (struct peer_count *)count;
    if (r == 0 && s->relayed)
        r = pinned(2 * s->slot_bytes, &out);
    p->v.outbox = (unsigned char *)out;
    if (r == 0 && s->relayed)
        r = pinned(2 * PEER_BELL_STRIDE * sizeof(uint64_t), &bell);
    p->v.bell = (uint64_t *)bell;
    out = NULL;
    if (r == 0)
        r = pinned(sizeof(*p->v.record), &out);
    p->v.record = (struct peer_record *)out;
    out = NULL;
    if (r == 0)
        r = pinned(sizeof(*p->v.abort_word), &out);
    p->v.abort_word = (uint64_t *)out;
    return r;
}

__global__ static void count_from(struct peer_count *c, uint32_t seq)
{
    c->seq[threadIdx.x] = seq;
}

extern "C" int peer_count_to(struct peer *p, uint32_t seq)
{
    cudaError_t e;

    launch_behind(p->stream, count_from, 1, BLOCKS_MAX, 0, p->v.count, seq);
    e = cudaGetLastError();
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(p->stream);
    return e == cudaSuccess
               ? 0
               : fail(cuda_errno(e), "comm peer: counting exchanges: %s", cudaGetErrorString(e));
}

extern "C" int peer_open(struct device *d, const struct peer_spec *s, struct peer **out)
{
    struct peer *p;
    cudaError_t e;
    int r = spec_check(d, s);

    if (r < 0)
        return r;
    p = (struct peer *)calloc(1, sizeof(*p));
    if (!p)
        return fail(-ENOMEM, "comm peer: no memory");
    p->dev = d;
    p->v.rank = s->rank;
    p->v.world = s->world;
    p->v.slot_bytes = s->slot_bytes;
    p->v.limit_ns = s->limit_ns;
    p->v.shares = s->relayed; // assumed until peer_apart says otherwise
    e = cudaSetDevice(((struct cuda_device *)d)->ordinal);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking);
    r = e == cudaSuccess ? take_memory(p, s)
                         : fail(cuda_errno(e), "comm peer: a stream: %s", cudaGetErrorString(e));
    if (r == 0 && !s->relayed)
        direct_clear(&p->v, p->stream, direct_bytes(s), s->first_seq);
    if (r == 0)
        r = peer_count_to(p, s->first_seq);
    if (r < 0) {
        peer_close(p, true);
        return r;
    }
    *out = p;
    return 0;
}

extern "C" void peer_relay(const struct peer *p, struct peer_relay *out)
{
    out->outbox = p->v.outbox;
    out->bell = p->v.bell;
}

extern "C" int peer_device(const struct peer *p, uint8_t out[PEER_DEVICE_BYTES])
{
    int ordinal = ((const struct cuda_device *)p->dev)->ordinal;
    struct cudaDeviceProp prop;
    cudaError_t e = cudaGetDeviceProperties(&prop, ordinal);

    if (e != cudaSuccess)
        return fail(cuda_errno(e), "comm link: which device %d is: %s", ordinal,
                    cudaGetErrorString(e));
    static_assert(sizeof(prop.uuid) == PEER_DEVICE_BYTES, "");
    memcpy(out, &prop.uuid, PEER_DEVICE_BYTES);
    return 0;
}

extern "C" void peer_apart(struct peer *p, bool apart)
{
    p->v.shares = !apart;
}

extern "C" int peer_attach(struct peer *p, int rank, uint8_t *area, uint8_t *inbox,
                           size_t flag_stride, bool raised_by_proxy, uint64_t **raised)
{
    size_t bytes = (size_t)(inbox - area) + 2 * p->v.slot_bytes;
    void *flags = area, *seen;
    cudaError_t e = cudaHostRegister(area, bytes, cudaHostRegisterMapped);
    int r;

    if (e == cudaSuccess) {
        p->area[rank] = area;
        e = cudaHostGetDevicePointer(&seen, inbox, 0);
    }
    if (e != cudaSuccess)
        return fail(cuda_errno(e), "comm link: showing the device %zu bytes of rank %d: %s", bytes,
                    rank, cudaGetErrorString(e));
    p->v.inbox[rank] = (unsigned char *)seen;
    p->v.flag_words = flag_stride / sizeof(uint64_t);
    if (raised_by_proxy) {
        r = pinned(2 * flag_stride, &flags);
        if (r < 0)
            return r;
        p->raised[rank] = flags;
        *raised = (uint64_t *)flags;
    }
    e = cudaHostGetDevicePointer(&seen, flags, 0);
    if (e != cudaSuccess)
        return fail(cuda_errno(e), "comm link: flags of rank %d: %s", rank, cudaGetErrorString(e));
    p->v.flags[rank] = (uint64_t *)seen;
    return 0;
}

// Check that device `mine` can access the memory of device `other`.
static int reach(int mine, int other)
{
    int can = 0;
    cudaError_t e = cudaDeviceCanAccessPeer(&can, mine, other);

    if (e != cudaSuccess)
        return fail(cuda_errno(e), "comm peer: device %d for device %d: %s", other, mine,
                    cudaGetErrorString(e));
    if (!can)
        return fail(-ENOTSUP,
                    "comm peer: device %d cannot write memory of device %d, want comm link", mine,
                    other);
    return 0;
}

// Enable peer access for ranks that are threads: both devices are in use by this process.
static int enable(int mine, int other)
{
    int r = reach(mine, other);
    cudaError_t e;

    if (r < 0)
        return r;
    e = cudaSetDevice(mine);
    if (e == cudaSuccess)
        e = cudaDeviceEnablePeerAccess(other, 0);
    if (e == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        return 0;
    }
    if (e != cudaSuccess)
        return fail(cuda_errno(e), "comm peer: memory of device %d for device %d: %s", other, mine,
                    cudaGetErrorString(e));
    return 0;
}

extern "C" int peer_join(struct peer *p, struct peer *const *all)
{
    int mine = ((struct cuda_device *)p->dev)->ordinal;

    for (int r = 0; r < p->v.world; r++) {
        int other = ((struct cuda_device *)all[r]->dev)->ordinal;
        int err = other == mine ? 0 : enable(mine, other);

        if (err < 0)
            return err;
        p->v.inbox[r] = all[r]->v.inbox[r];
        p->v.shares |= r != p->v.rank && other == mine;
    }
    return 0;
}

// ---- ranks that are processes -------------------------------------------------------------------

struct peer_card {
    cudaIpcMemHandle_t inbox;
    char device[32]; // its place on the bus
};

static_assert(sizeof(struct peer_card) <= PEER_CARD_BYTES, "");

extern "C" int peer_show(struct peer *p, uint8_t card[PEER_CARD_BYTES])
{
    struct peer_card c = { 0 };
    int mine = ((struct cuda_device *)p->dev)->ordinal;
    cudaError_t e = cudaIpcGetMemHandle(&c.inbox, p->v.inbox[p->v.rank]);

    if (e == cudaSuccess)
        e = cudaDeviceGetPCIBusId(c.device, sizeof(c.device), mine);
    if (e != cudaSuccess)
        return fail(cuda_errno(e), "comm peer: memory of device %d for other processes: %s", mine,
                    cudaGetErrorString(e));
    memset(card, 0, PEER_CARD_BYTES);
    memcpy(card, &c, sizeof(c));
    return 0;
}

// Opening the IPC handle enables access to that inbox by itself. cudaDeviceEnablePeerAccess would
// also create a context on the other device in this process, which takes more than a second and
// half a gigabyte.
extern "C" int peer_meet(struct peer *p, const uint8_t (*card)[PEER_CARD_BYTES])
{
    int mine = ((struct cuda_device *)p->dev)->ordinal;

    for (int r = 0; r < p->v.world; r++) {
        struct peer_card c;
        void *inbox;
        int other = -1, err;
        cudaError_t e;

        if (r == p->v.rank)
            continue;
        memcpy(&c, card[r], sizeof(c));
        c.device[sizeof(c.device) - 1] = 0;
        if (cudaDeviceGetByPCIBusId(&other, c.device) != cudaSuccess) {
            (void)cudaGetLastError();
            return fail(-ENOTSUP, "comm peer: rank %d has device %s, which rank %d does not see", r,
                        c.device, p->v.rank);
        }
        err = other == mine ? 0 : reach(mine, other);
        if (err < 0)
            return err;
        e = cudaIpcOpenMemHandle(&inbox, c.inbox, cudaIpcMemLazyEnablePeerAccess);
        if (e != cudaSuccess)
            return fail(cuda_errno(e), "comm peer: memory of rank %d on device %s: %s", r, c.device,
                        cudaGetErrorString(e));
        p->v.inbox[r] = (unsigned char *)inbox;
        p->v.shares |= other == mine;
        p->opened[r] = true;
    }
    return 0;
}

extern "C" void peer_note(struct peer *p, struct queue *q)
{
    q->ops->get(q, &p->sums, &p->v.count->sums, sizeof(p->sums));
}

extern "C" int peer_check(const struct peer *p, struct peer_record *out)
{
    *out = *p->v.record;
    out->exchanges = p->sums.exchanges;
    out->bytes = p->sums.bytes;
    out->wait_ns = p->sums.wait_ns;
    out->wait_max_ns = p->sums.wait_max_ns;
    out->move_ns = p->sums.move_ns;
    return out->code;
}

extern "C" void peer_abort(struct peer *p, int code)
{
    uint64_t none = 0;

    __atomic_compare_exchange_n(p->v.abort_word, &none, (uint64_t)-code, 0, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
}
