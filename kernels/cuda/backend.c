/* backend.c owns device and queue of the CUDA backend: opening, memory, weights, waiting, and the
 * words for what kernels found. Copies are in copy.c, captured windows in graph.c.
 *
 * The thread that opens a device or a queue is the one that queues work on it: CUDA's current
 * device belongs to a thread.
 */
#include "kernels/cuda/cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/log.h"

#define CC_MIN 90 /* compute capability that the oldest machine code in the build is for */
#define WEIGHT_CHUNK ((size_t)8 << 20)
#define RING_BYTES ((size_t)4 << 20)
#define SCRATCH_BYTES ((size_t)256 << 20)
#define TICKET_WORDS (CUDA_TICKETS + CUDA_SEATED * CUDA_SEATS)
#define TICKET_BYTES ((TICKET_WORDS + CUDA_LOOSE) * sizeof(uint32_t))
#define COUNT_BYTES ((size_t)CUDA_WORKERS * INDEX_COUNT)
#define SIDE_BYTES ((size_t)16 << 20) /* scratch of a lane beside: windows of few rows go there */

int cuda_errno(cudaError_t e)
{
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    switch (e) {
    case cudaSuccess:
        return 0;
    case cudaErrorMemoryAllocation:
        return -ENOMEM;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
        return -ENODEV;
    default:
        return -EIO;
    }
}

void queue_note(struct queue *q, const char *op)
{
    cudaError_t e = cudaGetLastError();

    if (e != cudaSuccess)
        queue_fail(q, cuda_errno(e), "%s: launch: %s", op, cudaGetErrorString(e));
}

/* ---- device ---------------------------------------------------------------------------------- */

/* Ranks that are threads wait for each other on one device: a kernel that is loaded when it is
 * first launched, or that shares a hardware queue with one that waits, would never start. A rank of
 * its own has few streams, and the driver makes and takes apart hardware queues one by one, for one
 * process at a time: 32 of them are 0.9 s at the start and 0.6 s at the end, 2 are 0.1 s each.
 */
void backend_settle(bool shared)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", shared ? "32" : "4", shared);
}

static int cuda_probe(int ordinal, char *why, size_t cap)
{
    int n = 0, major = 0, minor = 0;
    cudaError_t e;

    e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver)
        snprintf(why, cap, "no driver, or one that is older than this build");
    else if (e != cudaSuccess && e != cudaErrorNoDevice)
        snprintf(why, cap, "%s", cudaGetErrorString(e));
    else if (ordinal < 0 || ordinal >= n)
        snprintf(why, cap, "no device %d, there are %d", ordinal, n);
    else if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) ||
             cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal))
        snprintf(why, cap, "device %d does not answer", ordinal);
    else if (10 * major + minor < CC_MIN)
        snprintf(why, cap, "device %d has compute capability %d.%d, this build needs %d.%d",
                 ordinal, major, minor, CC_MIN / 10, CC_MIN % 10);
    else
        return 0;
    (void)cudaGetLastError();
    return -ENODEV;
}

static int prepare(struct cuda_device *d)
{
    struct cudaDeviceProp about;
    cudaError_t e = cudaSetDevice(d->ordinal);

    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&about, d->ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&d->shared_max, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                   d->ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&d->sms, cudaDevAttrMultiProcessorCount, d->ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&d->shared_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                   d->ordinal);
    if (e != cudaSuccess)
        return fail(cuda_errno(e), "cuda: device %d: %s", d->ordinal, cudaGetErrorString(e));
    e = cuda_attend_limits(d->shared_max);
    if (e == cudaSuccess)
        e = cuda_crowd_limits(d->shared_max, &d->crowds);
    if (e == cudaSuccess)
        e = cuda_gang_limits(d->shared_max, d->shared_sm, &d->gangs);
    if (e == cudaSuccess)
        e = cuda_markov_limits(d->shared_max);
    if (e == cudaSuccess)
        e = cuda_select_limits(d->shared_max);
    if (e == cudaSuccess)
        e = cuda_sheet_limits(d->shared_max);
    if (e == cudaSuccess)
        e = cuda_strip_limits(d->shared_max);
    if (e != cudaSuccess)
        return fail(cuda_errno(e), "cuda: device %d: kernels: %s", d->ordinal,
                    cudaGetErrorString(e));
    snprintf(d->base.name, sizeof(d->base.name), "%s", about.name);
    d->wide = cuda_site_wide();
    return 0;
}

static int cuda_open(int ordinal, int threads, struct device **out)
{
    char why[160];
    struct cuda_device *d;
    int r = cuda_probe(ordinal, why, sizeof(why));

    if (r < 0)
        return fail(r, "cuda: %s", why);
    d = calloc(1, sizeof(*d));
    if (!d)
        return fail(-ENOMEM, "cuda: no memory for a device");
    d->base.ops = &backend_cuda;
    d->base.workers = CUDA_WORKERS;
    d->base.overlap = true;
    d->base.side_bytes = SIDE_LANES * (SIDE_BYTES + TICKET_BYTES + COUNT_BYTES + CUDA_MEETING);
    d->ordinal = ordinal;
    r = prepare(d);
    if (r < 0) {
        free(d);
        return r;
    }
    *out = &d->base;
    return 0;
}

static void cuda_close(struct device *d)
{
    free(d);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int no_memory(size_t bytes)
{
    size_t left = 0, all = 0;

    (void)cudaGetLastError();
    cudaMemGetInfo(&left, &all);
    return fail(-ENOMEM, "cuda: no memory for %zu bytes, %zu of %zu are free", bytes, left, all);
}

static size_t cuda_room(struct device *d)
{
    size_t left = 0, all = 0;

    return cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

static int cuda_alloc(struct device *d, size_t bytes, void **out)
{
    void *p = NULL;
    cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);

    d->allocations++;
    if (e == cudaErrorMemoryAllocation)
        return no_memory(bytes);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(p, 0, bytes ? bytes : 1, cudaStreamPerThread);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(cudaStreamPerThread);
    if (e != cudaSuccess) {
        cudaFree(p);
        return fail(cuda_errno(e), "cuda: allocating %zu bytes: %s", bytes, cudaGetErrorString(e));
    }
    *out = p;
    return 0;
}

static void cuda_free(struct device *d, void *p)
{
    cudaFree(p);
}

static int cuda_host_alloc(struct device *d, size_t bytes, void **out)
{
    void *p;
    cudaError_t e = cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocDefault);

    if (e != cudaSuccess)
        return fail(cuda_errno(e), "cuda: %zu bytes of pinned memory: %s", bytes,
                    cudaGetErrorString(e));
    memset(p, 0, bytes);
    *out = p;
    return 0;
}

static void cuda_host_free(struct device *d, void *p)
{
    cudaFreeHost(p);
}

/* Two pinned buffers: one is filled from the map while the other is on its way. */
static cudaError_t stream_in(char *dst, const char *src, size_t bytes)
{
    void *pinned[2] = { NULL, NULL };
    cudaEvent_t sent[2] = { NULL, NULL };
    cudaError_t e = cudaSuccess;
    int i = 0;

    for (int b = 0; b < 2 && e == cudaSuccess; b++) {
        e = cudaHostAlloc(&pinned[b], WEIGHT_CHUNK, cudaHostAllocDefault);
        if (e == cudaSuccess)
            e = cudaEventCreateWithFlags(&sent[b], cudaEventDisableTiming);
    }
    for (size_t at = 0; at < bytes && e == cudaSuccess; at += WEIGHT_CHUNK, i ^= 1) {
        size_t n = bytes - at < WEIGHT_CHUNK ? bytes - at : WEIGHT_CHUNK;

        e = cudaEventSynchronize(sent[i]);
        if (e != cudaSuccess)
            break;
        memcpy(pinned[i], src + at, n);
        e = cudaMemcpyAsync(dst + at, pinned[i], n, cudaMemcpyHostToDevice, cudaStreamPerThread);
        if (e == cudaSuccess)
            e = cudaEventRecord(sent[i], cudaStreamPerThread);
    }
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(cudaStreamPerThread);
    for (int b = 0; b < 2; b++) {
        if (sent[b])
            cudaEventDestroy(sent[b]);
        cudaFreeHost(pinned[b]);
    }
    return e;
}

static int cuda_weights(struct device *d, const void *p, size_t bytes, const void **out)
{
    void *copy;
    cudaError_t e = cudaMalloc(&copy, bytes ? bytes : 1);

    if (e == cudaErrorMemoryAllocation)
        return no_memory(bytes);
    if (e == cudaSuccess) {
        e = stream_in(copy, p, bytes);
        if (e != cudaSuccess)
            cudaFree(copy);
    }
    if (e != cudaSuccess)
        return fail(cuda_errno(e), "cuda: loading %zu bytes of weights: %s", bytes,
                    cudaGetErrorString(e));
    *out = copy;
    return 0;
}

static void cuda_unweights(struct device *d, const void *p)
{
    cudaFree((void *)(uintptr_t)p);
}

/* ---- queue ----------------------------------------------------------------------------------- */

static void lane_close(struct cuda_lane *l)
{
    if (l->stream)
        cudaStreamDestroy(l->stream);
    cudaFree(l->scratch);
    cudaFree(l->tickets);
    cudaFree(l->counts);
    cudaFree(l->meeting);
}

static int lane_open(struct device *d, struct cuda_lane *l, size_t scratch_bytes)
{
    void *scratch = NULL, *tickets = NULL, *counts = NULL, *meeting = NULL;
    cudaError_t e = cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking);
    int r = 0;

    if (e != cudaSuccess)
        return fail(cuda_errno(e), "cuda: opening a queue: %s", cudaGetErrorString(e));
    r = cuda_alloc(d, scratch_bytes, &scratch);
    l->scratch = scratch;
    l->scratch_bytes = scratch_bytes;
    if (r == 0)
        r = cuda_alloc(d, TICKET_BYTES, &tickets);
    l->tickets = tickets;
    l->loose = l->tickets ? l->tickets + TICKET_WORDS : NULL;
    if (r == 0)
        r = cuda_alloc(d, COUNT_BYTES, &counts);
    l->counts = counts;
    if (r == 0)
        r = cuda_alloc(d, CUDA_MEETING, &meeting);
    l->meeting = meeting;
    return r;
}

int cuda_lanes_open(struct cuda_queue *q)
{
    int r = 0;
    cudaError_t e = cudaSuccess;

    for (int i = 1; i < CUDA_LANES && r == 0; i++)
        r = lane_open(q->base.dev, &q->lane[i], SIDE_BYTES);
    if (r == 0)
        e = cudaEventCreateWithFlags(&q->cross, cudaEventDisableTiming);
    if (e != cudaSuccess)
        r = fail(cuda_errno(e), "cuda: opening a queue: %s", cudaGetErrorString(e));
    for (int i = 1; i < CUDA_LANES && r < 0; i++) { /* the next capture may have the memory */
        lane_close(&q->lane[i]);
        q->lane[i] = (struct cuda_lane){ 0 };
    }
    return r;
}

static void cuda_queue_close(struct queue *base)
{
    struct cuda_queue *q = cuda_queue(base);

    if (!q)
        return;
    if (q->lane[0].stream) {
        /* What a device still waits for must be fetched first; where it has ended, so may have what
         * fetches. */
        if (cudaStreamQuery(q->lane[0].stream) == cudaErrorNotReady)
            for (int i = 0; i < q->fetches; i++)
                q->fetch[i].fetch(q->fetch[i].arg);
        cudaStreamSynchronize(q->lane[0].stream);
    }
    for (int i = 0; i < CUDA_LANES; i++)
        lane_close(&q->lane[i]);
    if (q->cross)
        cudaEventDestroy(q->cross);
    cudaFree(q->alarm.taken);
    cudaFreeHost(q->alarm.record);
    cudaFreeHost(q->ring);
    free(q);
}

/* What the driver makes for a stream at its first launch may wait for the device: it has to be
 * there before a rank of this process launches while another one's kernel waits for it. */
static int first_launch(struct cuda_queue *q)
{
    cudaError_t e;

    memset(q->ring, 0, CUDA_WARP);
    e = cuda_copy(q->lane[0].stream, q->lane[0].scratch, q->ring, CUDA_WARP);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(q->lane[0].stream);
    return e == cudaSuccess
               ? 0
               : fail(cuda_errno(e), "cuda: a queue's first launch: %s", cudaGetErrorString(e));
}

static int cuda_queue_open(struct device *d, struct queue **out)
{
    struct cuda_queue *q = calloc(1, sizeof(*q));
    void *record = NULL, *ring = NULL, *taken = NULL;
    cudaError_t e;
    int r;

    if (!q)
        return fail(-ENOMEM, "cuda: no memory for a queue");
    q->base.ops = d->ops;
    q->base.dev = d;
    e = cudaSetDevice(((struct cuda_device *)d)->ordinal);
    if (e == cudaSuccess)
        e = cudaHostAlloc(&record, sizeof(*q->alarm.record), cudaHostAllocDefault);
    q->alarm.record = record;
    if (e == cudaSuccess)
        e = cudaHostAlloc(&ring, RING_BYTES, cudaHostAllocDefault);
    q->ring = ring;
    q->ring_bytes = RING_BYTES;
    if (e == cudaSuccess) {
        memset(q->alarm.record, 0, sizeof(*q->alarm.record));
        r = cuda_alloc(d, sizeof(*q->alarm.taken), &taken);
    } else {
        r = fail(cuda_errno(e), "cuda: opening a queue: %s", cudaGetErrorString(e));
    }
    q->alarm.taken = taken;
    if (r == 0)
        r = lane_open(d, &q->lane[0], SCRATCH_BYTES);
    if (r == 0)
        r = first_launch(q);
    if (r < 0) {
        cuda_queue_close(&q->base);
        return r;
    }
    *out = &q->base;
    return 0;
}

/* Put what a kernel found into words, as the reference says them. */
static void fault_report(struct queue *q, const struct cuda_fault *f)
{
    switch (f->kind) {
    case FAULT_TOKEN:
        queue_fail(q, -EINVAL, "embed: row %d has token %d of a vocabulary of %d", f->row, f->value,
                   f->limit);
        break;
    case FAULT_EXPERT:
        queue_fail(q, -EINVAL, "moe: row %d chose expert %d of %d", f->row, f->value, f->limit);
        break;
    case FAULT_TYPE:
        queue_fail(q, -ENOTSUP, "moe: weights of type %d", f->value);
        break;
    case FAULT_LOGITS:
        queue_fail(q, -EBADMSG, "choose: no finite logits in slot %d row %d position %d", f->slot,
                   f->row, f->pos);
        break;
    case FAULT_LAYER:
        queue_fail(q, -EBADMSG, "layer %d: no finite number in slot %d row %d position %d",
                   f->value, f->slot, f->row, f->pos);
        break;
    case FAULT_BRING:
        if (q->err == 0)
            q->err = f->value;
        break;
    case FAULT_LATE:
        queue_fail(q, -ETIMEDOUT, "bring: the host has brought nothing in %d ms", f->value);
        break;
    default:
        queue_fail(q, -EIO, "cuda: fault %d in row %d", f->kind, f->row);
        break;
    }
}

static int cuda_wait(struct queue *base)
{
    struct cuda_queue *q = cuda_queue(base);
    cudaError_t e;
    int r = cuda_drain(q);

    if (r == 0 && q->alarm.record->kind != FAULT_NONE) {
        fault_report(base, q->alarm.record);
        memset(q->alarm.record, 0, sizeof(*q->alarm.record));
        e = cudaMemsetAsync(q->alarm.taken, 0, sizeof(*q->alarm.taken), q->lane[0].stream);
        if (e != cudaSuccess)
            queue_fail(base, cuda_errno(e), "cuda: %s", cudaGetErrorString(e));
    }
    r = base->err;
    base->err = 0;
    return r;
}

const struct op_table cuda_ops = {
#define CUDA_FILL(name) .name = cuda_##name,
    OP_LIST(CUDA_FILL)
#undef CUDA_FILL
};

const struct backend_ops backend_cuda = {
    .name = "cuda",
    .caps = BACKEND_GRAPHS,
    .op = &cuda_ops,
    .probe = cuda_probe,
    .open = cuda_open,
    .room = cuda_room,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .weights = cuda_weights,
    .unweights = cuda_unweights,
    .queue_open = cuda_queue_open,
    .queue_close = cuda_queue_close,
    .put = cuda_put,
    .get = cuda_get,
    .wait = cuda_wait,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_close = cuda_graph_close,
    .close = cuda_close,
};
