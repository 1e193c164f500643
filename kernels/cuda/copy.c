/* copy.c owns the copies between host and device. What a caller hands over is copied into pinned
 * memory at once, so its source may be gone when the device reads; what a caller gets is copied out
 * of pinned memory by the wait. The ring is handed out from the front and is whole again after a
 * wait: a round takes little of it, and only who takes more than all of it between two waits pays a
 * wait in the middle. Larger copies go in parts.
 */
#include "kernels/cuda/cuda.h"

#include "src/base/log.h"

#define ALIGN 64
#define PARTS 4 /* a part of a copy is at most the PARTS-th part of the ring */

static void note(struct cuda_queue *q, cudaError_t e, const char *what, size_t bytes)
{
    if (e != cudaSuccess)
        queue_fail(&q->base, cuda_errno(e), "%s of %zu bytes: %s", what, bytes,
                   cudaGetErrorString(e));
}

int cuda_drain(struct cuda_queue *q)
{
    cudaError_t e;

    if (q->capture) {
        queue_fail(&q->base, -EINVAL, "cuda: a wait inside a captured window");
        return q->base.err;
    }
    for (int i = 0; i < q->fetches; i++)
        q->fetch[i].fetch(q->fetch[i].arg);
    q->fetches = 0;
    e = cudaStreamSynchronize(q->lane[0].stream);
    if (e != cudaSuccess)
        queue_fail(&q->base, cuda_errno(e), "cuda: %s", cudaGetErrorString(e));
    for (int i = 0; i < q->landings && e == cudaSuccess; i++)
        memcpy(q->landing[i].dst, q->landing[i].staged, q->landing[i].bytes);
    q->landings = 0;
    q->ring_used = 0;
    q->waits++;
    return cuda_errno(e);
}

/* Room for a copy that fits; NULL if making room failed. */
static char *ring_take(struct cuda_queue *q, size_t bytes)
{
    size_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    char *at;

    if (q->ring_used + whole > q->ring_bytes && cuda_drain(q) < 0)
        return NULL;
    at = q->ring + q->ring_used;
    q->ring_used += whole;
    return at;
}

static size_t part_of(const struct cuda_queue *q, size_t bytes, size_t at)
{
    size_t most = q->ring_bytes / PARTS;

    return bytes - at < most ? bytes - at : most;
}

void cuda_put(struct queue *base, void *dst, const void *src, size_t bytes)
{
    struct cuda_queue *q = cuda_queue(base);

    if (q->capture && bytes > 0 && base->err == 0) {
        cuda_graph_put(q, dst, src, bytes);
        return;
    }
    for (size_t at = 0, n; at < bytes && base->err == 0; at += n) {
        char *staged;

        n = part_of(q, bytes, at);
        staged = ring_take(q, n);
        if (!staged)
            return;
        memcpy(staged, (const char *)src + at, n);
        note(q, cuda_copy(cuda_stream(base), (char *)dst + at, staged, n), "put", bytes);
    }
}

void cuda_get(struct queue *base, void *dst, const void *src, size_t bytes)
{
    struct cuda_queue *q = cuda_queue(base);

    if (q->capture && bytes > 0 && base->err == 0) {
        cuda_graph_get(q, dst, src, bytes);
        return;
    }
    for (size_t at = 0, n; at < bytes && base->err == 0; at += n) {
        char *staged;

        n = part_of(q, bytes, at);
        if (q->landings == CUDA_LANDINGS && cuda_drain(q) < 0)
            return;
        staged = ring_take(q, n);
        if (!staged)
            return;
        note(q, cuda_copy(cuda_stream(base), staged, (const char *)src + at, n), "get", bytes);
        q->landing[q->landings++] = (struct cuda_landing){ (char *)dst + at, staged, n };
    }
}
