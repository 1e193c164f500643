/* copy.c owns the copies between host and device. What a caller hands over is copied into pinned
 * memory at once, so its source may be gone when the device reads; what a caller gets is copied out
 * of pinned memory by the wait. The ring is handed out from the front and is whole again after a
 * wait: a round takes little of it, and only who takes more than all of it between two waits pays a
 * wait in the middle. Large copies go directly, which makes the caller wait until its memory has
 * been read or written.
 */
#include "kernels/cuda/cuda.h"

#include "src/base/log.h"

#define ALIGN 64
#define DIRECT_PART 4 /* copies above ring / DIRECT_PART bytes go directly */

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
    e = cudaStreamSynchronize(q->stream);
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

void cuda_put(struct queue *base, void *dst, const void *src, size_t bytes)
{
    struct cuda_queue *q = cuda_queue(base);
    char *at;

    if (base->err || bytes == 0)
        return;
    if (q->capture) {
        cuda_graph_put(q, dst, src, bytes);
        return;
    }
    if (bytes > q->ring_bytes / DIRECT_PART) {
        note(q, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, q->stream), "put", bytes);
        return;
    }
    at = ring_take(q, bytes);
    if (!at)
        return;
    memcpy(at, src, bytes);
    note(q, cudaMemcpyAsync(dst, at, bytes, cudaMemcpyHostToDevice, q->stream), "put", bytes);
}

void cuda_get(struct queue *base, void *dst, const void *src, size_t bytes)
{
    struct cuda_queue *q = cuda_queue(base);
    char *at;

    if (base->err || bytes == 0)
        return;
    if (q->capture) {
        cuda_graph_get(q, dst, src, bytes);
        return;
    }
    if (bytes > q->ring_bytes / DIRECT_PART) {
        note(q, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, q->stream), "get", bytes);
        return;
    }
    if (q->landings == CUDA_LANDINGS && cuda_drain(q) < 0)
        return;
    at = ring_take(q, bytes);
    if (!at)
        return;
    note(q, cudaMemcpyAsync(at, src, bytes, cudaMemcpyDeviceToHost, q->stream), "get", bytes);
    q->landing[q->landings++] = (struct cuda_landing){ dst, at, bytes };
}
