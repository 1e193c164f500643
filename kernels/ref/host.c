/* host.c owns device, queue and memory of the host backends, and how they share out work. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/host.h"
#include "kernels/ref/ref.h"
#include "src/base/log.h"
#include "src/base/pool.h"

#define ALIGN 256

int host_probe(int ordinal, char *why, size_t cap)
{
    return 0;
}

int host_open(const struct backend_ops *ops, const char *name, int threads, struct device **out)
{
    struct device *d = calloc(1, sizeof(*d));
    int r;

    if (!d)
        return fail(-ENOMEM, "host: no memory for a device");
    r = pool_open(threads, &d->pool);
    if (r < 0) {
        free(d);
        return r;
    }
    d->ops = ops;
    snprintf(d->name, sizeof(d->name), "%s", name);
    d->workers = threads;
    *out = d;
    return 0;
}

size_t host_room(struct device *d)
{
    return 0;
}

int host_alloc(struct device *d, size_t bytes, void **out)
{
    size_t whole = bytes / ALIGN * ALIGN + ALIGN;
    void *p = bytes < PTRDIFF_MAX - ALIGN ? aligned_alloc(ALIGN, whole) : NULL;

    if (!p)
        return fail(-ENOMEM, "host: no memory for %zu bytes", bytes);
    memset(p, 0, whole);
    *out = p;
    return 0;
}

void host_free(struct device *d, void *p)
{
    free(p);
}

int host_weights(struct device *d, const void *p, size_t bytes, const void **out)
{
    *out = p;
    return 0;
}

void host_unweights(struct device *d, const void *p)
{
}

int host_queue_open(struct device *d, struct queue **out)
{
    struct queue *q = calloc(1, sizeof(*q));

    if (!q)
        return fail(-ENOMEM, "host: no memory for a queue");
    q->ops = d->ops;
    q->dev = d;
    *out = q;
    return 0;
}

void host_queue_close(struct queue *q)
{
    free(q);
}

void host_copy(struct queue *q, void *dst, const void *src, size_t bytes)
{
    if (!q->err && bytes)
        memcpy(dst, src, bytes);
}

int host_wait(struct queue *q)
{
    int r = q->err;

    q->err = 0;
    return r;
}

int host_graph_begin(struct queue *q)
{
    return fail(-ENOTSUP, "host: windows are not captured");
}

int host_graph_end(struct queue *q, struct graph **out)
{
    return fail(-ENOTSUP, "host: windows are not captured");
}

void host_graph_launch(struct queue *q, struct graph *g)
{
    queue_fail(q, -ENOTSUP, "host: windows are not captured");
}

void host_graph_close(struct graph *g)
{
}

void host_close(struct device *d)
{
    if (!d)
        return;
    pool_close(d->pool);
    free(d);
}

struct run {
    ref_fn *fn;
    const void *args;
    int items, parts;
};

static void run_part(void *arg, int task, int worker)
{
    const struct run *r = arg;
    int lo = (int)((int64_t)r->items * task / r->parts);
    int hi = (int)((int64_t)r->items * (task + 1) / r->parts);

    if (lo < hi)
        r->fn(r->args, lo, hi, worker);
}

void ref_run(struct queue *q, int items, int grain, ref_fn *fn, const void *args)
{
    int parts = items / grain;

    if (parts > q->dev->workers)
        parts = q->dev->workers;
    if (parts > 1) {
        struct run r = { .fn = fn, .args = args, .items = items, .parts = parts };

        pool_run(q->dev->pool, parts, run_part, &r);
    } else if (items > 0) {
        fn(args, 0, items, 0);
    }
}
