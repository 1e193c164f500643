/* graph.c owns captured windows. What a graph copies from and to the host goes through pinned
 * memory of its own: a launch fills in what the sources hold then, and the wait behind it delivers.
 */
#include "kernels/cuda/cuda.h"

#include <stdbool.h>
#include <stdlib.h>

#include "src/base/log.h"

#define STAGED_BYTES ((size_t)256 << 10)
#define STAGED_ALIGN 64
#define COPIES_MAX 32

struct graph {
    cudaGraphExec_t exec;
    cudaEvent_t done; /* of the last launch */
    bool launched;
    char *staged; /* pinned */
    size_t used;
    struct cuda_landing in[COPIES_MAX]; /* staged is refilled from dst, the caller's memory */
    struct cuda_landing out[COPIES_MAX];
    int ins, outs;
};

static void graph_free(struct graph *g)
{
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    if (g->done)
        cudaEventDestroy(g->done);
    cudaFreeHost(g->staged);
    free(g);
}

int cuda_graph_begin(struct queue *base)
{
    struct cuda_queue *q = cuda_queue(base);
    struct graph *g;
    void *staged = NULL;
    cudaError_t e;

    if (base->err)
        return base->err;
    if (q->capture)
        return fail(-EINVAL, "cuda: a window is being captured already");
    g = calloc(1, sizeof(*g));
    if (!g)
        return fail(-ENOMEM, "cuda: no memory for a graph");
    e = cudaHostAlloc(&staged, STAGED_BYTES, cudaHostAllocDefault);
    g->staged = staged;
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&g->done, cudaEventDisableTiming);
    if (e == cudaSuccess)
        e = cudaStreamBeginCapture(q->stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) {
        graph_free(g);
        return fail(cuda_errno(e), "cuda: capturing a window: %s", cudaGetErrorString(e));
    }
    q->capture = g;
    return 0;
}

int cuda_graph_end(struct queue *base, struct graph **out)
{
    struct cuda_queue *q = cuda_queue(base);
    struct graph *g = q->capture;
    cudaGraph_t graph = NULL;
    cudaError_t e;
    int r;

    if (!g)
        return fail(-EINVAL, "cuda: no window is being captured");
    q->capture = NULL;
    e = cudaStreamEndCapture(q->stream, &graph);
    r = base->err;
    base->err = 0;
    if (r == 0 && e == cudaSuccess)
        e = cudaGraphInstantiate(&g->exec, graph, 0);
    if (r == 0 && e == cudaSuccess)
        e = cudaGraphUpload(g->exec, q->stream);
    if (r == 0 && e != cudaSuccess)
        r = fail(cuda_errno(e), "cuda: making a graph of a window: %s", cudaGetErrorString(e));
    if (graph)
        cudaGraphDestroy(graph);
    if (r < 0) {
        (void)cudaGetLastError();
        graph_free(g);
        return r;
    }
    *out = g;
    return 0;
}

void cuda_graph_launch(struct queue *base, struct graph *g)
{
    struct cuda_queue *q = cuda_queue(base);
    cudaError_t e = cudaSuccess;

    if (base->err)
        return;
    if (q->landings + g->outs > CUDA_LANDINGS && cuda_drain(q) < 0)
        return;
    /* The copies of a launch that is still under way read the same staged bytes. */
    if (g->ins > 0 && g->launched)
        e = cudaEventSynchronize(g->done);
    for (int i = 0; i < g->ins; i++)
        memcpy((void *)(uintptr_t)g->in[i].staged, g->in[i].dst, g->in[i].bytes);
    if (e == cudaSuccess)
        e = cudaGraphLaunch(g->exec, q->stream);
    if (e == cudaSuccess && g->ins > 0)
        e = cudaEventRecord(g->done, q->stream);
    if (e != cudaSuccess) {
        queue_fail(base, cuda_errno(e), "cuda: launching a graph: %s", cudaGetErrorString(e));
        return;
    }
    g->launched = true;
    for (int i = 0; i < g->outs; i++)
        q->landing[q->landings++] = g->out[i];
}

void cuda_graph_close(struct graph *g)
{
    if (g)
        graph_free(g);
}

/* Pinned room of a copy that is being captured; NULL if the graph has none left. */
static char *stage(struct cuda_queue *q, int copies, size_t bytes)
{
    struct graph *g = q->capture;
    char *at = g->staged + g->used;

    if (copies == COPIES_MAX || bytes > STAGED_BYTES - g->used) {
        queue_fail(&q->base, -EINVAL,
                   "cuda: a captured window copies more than %d pieces or %zu bytes", COPIES_MAX,
                   STAGED_BYTES);
        return NULL;
    }
    g->used += (bytes + STAGED_ALIGN - 1) / STAGED_ALIGN * STAGED_ALIGN;
    return at;
}

static void note(struct cuda_queue *q, cudaError_t e)
{
    if (e != cudaSuccess)
        queue_fail(&q->base, cuda_errno(e), "cuda: a copy in a captured window: %s",
                   cudaGetErrorString(e));
}

void cuda_graph_put(struct cuda_queue *q, void *dst, const void *src, size_t bytes)
{
    struct graph *g = q->capture;
    char *at = stage(q, g->ins, bytes);

    if (!at)
        return;
    g->in[g->ins++] = (struct cuda_landing){ (void *)(uintptr_t)src, at, bytes };
    note(q, cudaMemcpyAsync(dst, at, bytes, cudaMemcpyHostToDevice, q->stream));
}

void cuda_graph_get(struct cuda_queue *q, void *dst, const void *src, size_t bytes)
{
    struct graph *g = q->capture;
    char *at = stage(q, g->outs, bytes);

    if (!at)
        return;
    g->out[g->outs++] = (struct cuda_landing){ dst, at, bytes };
    note(q, cudaMemcpyAsync(at, src, bytes, cudaMemcpyDeviceToHost, q->stream));
}
