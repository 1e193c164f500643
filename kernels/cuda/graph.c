/* graph.c owns captured windows. What a graph copies from and to the host goes through pinned
 * memory of its own, taken in pieces while it is captured: a launch fills in what the sources hold
 * then, and the wait behind it delivers. Sources that are pinned themselves are read where they
 * lie.
 */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>

#include "src/base/log.h"

#define PIECE_BYTES ((size_t)16 << 10)
#define PIECES_MAX 16
#define STAGED_ALIGN 64
#define COPIES_MAX 32
#define FETCHES_MAX 16

struct graph {
    cudaGraphExec_t exec;
    uint64_t launched; /* waits of the queue at the last launch, plus one; 0: never */
    struct cuda_device *dev;
    const char *name;        /* of the last stamp inside */
    char *piece[PIECES_MAX]; /* pinned */
    int pieces;
    size_t used, room;                  /* of the last piece */
    struct cuda_copies copies;          /* the last node of copies */
    struct cuda_landing in[COPIES_MAX]; /* staged is refilled from dst, the caller's memory */
    struct cuda_landing out[COPIES_MAX];
    int ins, outs;
    struct cuda_fetch fetch[FETCHES_MAX]; /* what a launch waits for */
    int fetches;
};

static void graph_free(struct graph *g)
{
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    for (int i = 0; i < g->pieces; i++)
        cudaFreeHost(g->piece[i]);
    free(g);
}

int cuda_graph_begin(struct queue *base)
{
    struct cuda_queue *q = cuda_queue(base);
    struct graph *g;
    cudaError_t e;

    if (base->err)
        return base->err;
    if (q->capture)
        return fail(-EINVAL, "cuda: a window is being captured already");
    g = calloc(1, sizeof(*g));
    if (!g)
        return fail(-ENOMEM, "cuda: no memory for a graph");
    g->dev = (struct cuda_device *)base->dev;
    g->dev->base.allocations++;
    e = cudaStreamBeginCapture(q->lane[0].stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) {
        graph_free(g);
        return fail(cuda_errno(e), "cuda: capturing a window: %s", cudaGetErrorString(e));
    }
    q->capture = g;
    return 0;
}

/* What lane `to` gets from now on stands behind what lane `from` has so far. */
static void cross(struct cuda_queue *q, int from, int to)
{
    cudaError_t e = cudaEventRecord(q->cross, q->lane[from].stream);

    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(q->lane[to].stream, q->cross, 0);
    if (e != cudaSuccess)
        queue_fail(&q->base, cuda_errno(e), "side: %s", cudaGetErrorString(e));
    q->lane[from].ahead = false;
}

/* Whether they are open; a capture forbids what may wait for the device, and this does not touch
 * its stream. */
static bool lanes(struct cuda_queue *q)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int r = 0;

    if (!q->cross) {
        cudaThreadExchangeStreamCaptureMode(&mode);
        r = cuda_lanes_open(q);
        cudaThreadExchangeStreamCaptureMode(&mode);
    }
    if (r < 0 && q->base.err == 0)
        q->base.err = r;
    return q->base.err == 0;
}

void cuda_side(struct queue *base, const struct side_args *a)
{
    struct cuda_queue *q = cuda_queue(base);
    int lane = 1 + a->lane;

    if (base->err)
        return;
    if (a->lane < 0 || a->lane >= SIDE_LANES) {
        queue_fail(base, -EINVAL, "side: lane %d of %d", a->lane, SIDE_LANES);
        return;
    }
    if (!q->capture || !lanes(q))
        return;
    if (a->at == SIDE_END ? q->on != lane : q->on != 0) {
        queue_fail(base, -EINVAL, "side: %d of lane %d inside another section", (int)a->at,
                   a->lane);
        return;
    }
    if (a->at == SIDE_BEGIN) {
        cross(q, 0, lane);
        q->lane[lane].ahead = q->lane[lane].apart = true;
        q->on = lane;
    } else if (a->at == SIDE_END) {
        q->on = 0;
    } else if (q->lane[lane].ahead) {
        cross(q, lane, 0);
    }
}

/* Streams that a capture has gone to must come back to it. */
static void meet_lanes(struct cuda_queue *q)
{
    q->on = 0;
    for (int i = 1; i < CUDA_LANES; i++)
        if (q->lane[i].ahead)
            cross(q, i, 0);
    for (int i = 0; i < CUDA_LANES; i++)
        q->lane[i].ahead = q->lane[i].apart = false;
}

int cuda_graph_end(struct queue *base, struct graph **out)
{
    struct cuda_queue *q = cuda_queue(base);
    struct graph *g = q->capture;
    cudaGraph_t graph = NULL;
    size_t nodes = 0;
    cudaError_t e;
    int r;

    if (!g)
        return fail(-EINVAL, "cuda: no window is being captured");
    meet_lanes(q);
    q->capture = NULL;
    e = cudaStreamEndCapture(q->lane[0].stream, &graph);
    r = base->err;
    base->err = 0;
    if (r == 0 && e == cudaSuccess)
        e = cudaGraphGetNodes(graph, NULL, &nodes);
    if (r == 0 && e == cudaSuccess)
        e = cudaGraphInstantiate(&g->exec, graph, 0);
    if (r == 0 && e == cudaSuccess)
        e = cudaGraphUpload(g->exec, q->lane[0].stream);
    if (r == 0 && e != cudaSuccess)
        r = fail(cuda_errno(e), "cuda: making a graph of a window: %s", cudaGetErrorString(e));
    if (graph)
        cudaGraphDestroy(graph);
    if (r < 0) {
        (void)cudaGetLastError();
        graph_free(g);
        return r;
    }
    base->nodes = (int)nodes;
    *out = g;
    return 0;
}

void cuda_graph_launch(struct queue *base, struct graph *g)
{
    struct cuda_queue *q = cuda_queue(base);
    cudaError_t e = cudaSuccess;

    if (base->err)
        return;
    /* The copies of a launch that may still be under way read the same staged bytes. */
    if (q->landings + g->outs > CUDA_LANDINGS || q->fetches + g->fetches > CUDA_FETCHES ||
        (g->ins > 0 && g->launched == q->waits + 1)) {
        if (cuda_drain(q) < 0)
            return;
    }
    for (int i = 0; i < g->ins; i++)
        memcpy((void *)(uintptr_t)g->in[i].staged, g->in[i].dst, g->in[i].bytes);
    cuda_range_begin(g->name);
    e = cudaGraphLaunch(g->exec, q->lane[0].stream);
    cuda_range_end();
    if (e != cudaSuccess) {
        queue_fail(base, cuda_errno(e), "cuda: launching a graph: %s", cudaGetErrorString(e));
        return;
    }
    g->launched = q->waits + 1;
    for (int i = 0; i < g->outs; i++)
        q->landing[q->landings++] = g->out[i];
    for (int i = 0; i < g->fetches; i++)
        q->fetch[q->fetches++] = g->fetch[i];
}

void cuda_graph_close(struct graph *g)
{
    if (g)
        graph_free(g);
}

/* Another piece; a capture forbids what may wait for the device, and this does not touch the
 * stream. */
static bool grow(struct graph *g, size_t bytes)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    void *piece = NULL;

    if (g->pieces == PIECES_MAX)
        return false;
    g->room = bytes > PIECE_BYTES ? bytes : PIECE_BYTES;
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (cudaHostAlloc(&piece, g->room, cudaHostAllocDefault) != cudaSuccess)
        piece = NULL;
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (!piece)
        return false;
    g->piece[g->pieces++] = piece;
    g->used = 0;
    return true;
}

/* Pinned room of a copy that is being captured; NULL if the graph has none left. */
static char *stage(struct cuda_queue *q, int copies, size_t bytes)
{
    struct graph *g = q->capture;
    char *at;

    if (copies == COPIES_MAX) {
        queue_fail(&q->base, -EINVAL, "cuda: a captured window copies more than %d pieces",
                   COPIES_MAX);
        return NULL;
    }
    if ((g->pieces == 0 || bytes > g->room - g->used) && !grow(g, bytes)) {
        queue_fail(&q->base, -ENOMEM, "cuda: no pinned memory for a copy of %zu bytes", bytes);
        return NULL;
    }
    at = g->piece[g->pieces - 1] + g->used;
    g->used += (bytes + STAGED_ALIGN - 1) / STAGED_ALIGN * STAGED_ALIGN;
    if (g->used > g->room)
        g->used = g->room;
    return at;
}

static void note(struct cuda_queue *q, cudaError_t e)
{
    if (e != cudaSuccess)
        queue_fail(&q->base, cuda_errno(e), "cuda: a copy in a captured window: %s",
                   cudaGetErrorString(e));
}

void cuda_graph_name(struct cuda_queue *q, const char *name)
{
    q->capture->name = name;
}

static bool pinned(const void *p)
{
    struct cudaPointerAttributes a;

    if (cudaPointerGetAttributes(&a, p) == cudaSuccess)
        return a.type == cudaMemoryTypeHost;
    (void)cudaGetLastError();
    return false;
}

void cuda_graph_bring(struct cuda_queue *q, const struct bring_args *a)
{
    struct graph *g = q->capture;

    if (g->fetches == FETCHES_MAX)
        queue_fail(&q->base, -EINVAL, "bring: more than %d calls in a captured window",
                   FETCHES_MAX);
    else
        g->fetch[g->fetches++] = (struct cuda_fetch){ a->fetch, a->arg };
}

void cuda_graph_put(struct cuda_queue *q, void *dst, const void *src, size_t bytes)
{
    struct graph *g = q->capture;
    char *at;

    if (pinned(src)) {
        note(q, cuda_copies_add(cuda_stream(&q->base), &g->copies, true, dst, src, bytes));
        return;
    }
    at = stage(q, g->ins, bytes);
    if (!at)
        return;
    g->in[g->ins++] = (struct cuda_landing){ (void *)(uintptr_t)src, at, bytes };
    note(q, cuda_copies_add(cuda_stream(&q->base), &g->copies, true, dst, at, bytes));
}

void cuda_graph_get(struct cuda_queue *q, void *dst, const void *src, size_t bytes)
{
    struct graph *g = q->capture;
    char *at = stage(q, g->outs, bytes);

    if (!at)
        return;
    g->out[g->outs++] = (struct cuda_landing){ dst, at, bytes };
    note(q, cuda_copies_add(cuda_stream(&q->base), &g->copies, false, at, src, bytes));
}
