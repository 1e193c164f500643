/* cold.c owns the memory that is written between calls, and what is queued between two notes of the
 * clock. */
#include "src/rank/cold.h"

#include "kernels/backend.h"
#include "kernels/exchange.h"
#include "kernels/plain.h"
#include "src/base/log.h"
#include "src/base/sort.h"
#include "src/rank/calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LARGE 4096 /* rows and inputs of a product by which the matrix unit is measured */
#define SPILL ((size_t)192 << 20) /* bytes on a device, more than its caches hold */
#define SPILL_HOST ((size_t)8 << 20)
#define COPY ((size_t)1 << 30)

typedef void queued_fn(struct cold *c, int call);

static void spill(struct cold *c)
{
    c->q->ops->op->add(
        c->q, &(struct add_args){
                  .x = c->spill[0], .y = c->spill[1], .rows = 1, .cols = (int)c->spill_cols });
}

static void note(struct cold *c, int i)
{
    c->q->ops->op->stamp(c->q, &(struct stamp_args){ .at = c->at + i, .name = "cold" });
}

/* ---- what is timed --------------------------------------------------------------------------- */

static void nothing(struct cold *c, int i)
{
    (void)c, (void)i;
}

static void again(struct cold *c, int i)
{
    calls_again(c->calls, i);
}

static void plainly(struct cold *c, int i)
{
    const struct matmul_args *of;
    int n = calls_products(c->calls, i, &of);

    for (int k = 0; k < n; k++)
        plain_product(c->q, &of[k]);
}

/* Weights, and elsewhere inputs and outputs, are what lies in memory that was just spilled. */
static void by_blas(struct cold *c, int i)
{
    const struct matmul_args *of;
    int n = calls_products(c->calls, i, &of);

    for (int k = 0; k < n; k++)
        blas_product(c->blas, c->spill[0], c->spill[1], c->spill[1] + c->spill_cols / 2, of[k].rows,
                     of[k].w->rows, of[k].w->cols);
}

static void queue_calls(struct cold *c, queued_fn *fn, int call)
{
    for (int i = 0; i < COLD_CALLS; i++) {
        spill(c);
        note(c, 2 * i);
        fn(c, call);
        note(c, 2 * i + 1);
    }
}

/* Median ns between two notes around what fn queues; a first turn warms up. */
static int timed(struct cold *c, queued_fn *fn, int call, int64_t *out)
{
    const struct backend_ops *ops = c->q->ops;
    struct graph *g = NULL;
    int64_t h[2 * COLD_CALLS], ns[COLD_CALLS];
    int r = c->graphs ? ops->graph_begin(c->q) : 0;

    if (r < 0)
        return r;
    queue_calls(c, fn, call);
    if (c->graphs)
        r = ops->graph_end(c->q, &g);
    for (int turn = 0; turn < 2 && r == 0; turn++) {
        if (g)
            ops->graph_launch(c->q, g);
        else if (turn > 0)
            queue_calls(c, fn, call);
        r = ops->wait(c->q);
    }
    if (r == 0) {
        ops->get(c->q, h, c->at, sizeof(h));
        r = ops->wait(c->q);
    }
    ops->graph_close(g);
    if (r < 0)
        return r;
    for (int i = 0; i < COLD_CALLS; i++)
        ns[i] = h[2 * i + 1] - h[2 * i];
    sort_i64(ns, COLD_CALLS);
    *out = ns[COLD_CALLS / 2];
    return 0;
}

static int us_of(struct cold *c, queued_fn *fn, int call, double *us)
{
    int64_t ns;
    int r = timed(c, fn, call, &ns);

    if (r == 0)
        *us = (double)(ns - c->stamp_ns) / 1e3;
    return r;
}

int cold_time(struct cold *c, int i, double *us)
{
    calls_until(c->calls, i);
    return us_of(c, again, i, us);
}

int cold_plain(struct cold *c, int i, double *us)
{
    const struct matmul_args *of;
    int n = calls_products(c->calls, i, &of);

    for (int k = 0; k < n; k++)
        if (!plain_can(c->q, &of[k]))
            return 1;
    return n > 0 ? us_of(c, plainly, i, us) : 1;
}

int cold_blas(struct cold *c, int i, double *us)
{
    const struct matmul_args *of;
    int n = calls_products(c->calls, i, &of), r;

    for (int k = 0; k < n; k++)
        if (of[k].groups > 1 || (size_t)of[k].w->rows * (size_t)of[k].w->cols > 2 * c->spill_cols)
            return 1;
    if (n == 0 || !c->blas)
        return 1;
    by_blas(c, i); /* the library loads its kernels, which it may not do while calls are captured */
    r = c->q->ops->wait(c->q);
    return r < 0 ? r : us_of(c, by_blas, i, us);
}

static void by_blas_large(struct cold *c, int i)
{
    (void)i;
    blas_product(c->blas, c->spill[0], c->spill[1], c->spill[1] + c->spill_cols / 2, LARGE,
                 LARGE / 2, LARGE);
}

int cold_matrix_rate(struct cold *c, double *tflops)
{
    double us;
    int r;

    if (!c->blas || c->spill_cols < (size_t)LARGE * LARGE) /* half of it for outputs */
        return 1;
    by_blas_large(c, 0);
    r = c->q->ops->wait(c->q);
    if (r == 0)
        r = us_of(c, by_blas_large, 0, &us);
    if (r == 0)
        *tflops = (double)LARGE * LARGE * LARGE / us / 1e6;
    return r;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Pairs of bf16 numbers between 0.5 and 1 of either sign, and as f32 finite as well: products of
 * zeros would be faster than any of numbers. */
static int fill(struct cold *c)
{
    uint32_t *pair = malloc(c->spill_cols * sizeof(*pair)), state = 1;
    int r;

    if (!pair)
        return fail(-ENOMEM, "bench: no memory");
    for (size_t i = 0; i < c->spill_cols; i++) {
        state = state * 1664525 + 1013904223;
        pair[i] = 0x3f003f00 | (state & 0x807f807f);
    }
    c->q->ops->put(c->q, c->spill[0], pair, c->spill_cols * sizeof(*pair));
    r = c->q->ops->wait(c->q);
    free(pair);
    return r;
}

/* The best of a few copies of memory that is larger than any cache. */
static int copy_rate(struct cold *c)
{
    struct device *d = c->q->dev;
    bool host = d->ops->caps & BACKEND_HOST_MEMORY;
    size_t bytes = host ? SPILL_HOST : COPY;
    int64_t best = INT64_MAX;
    void *to, *from;
    int r = d->ops->alloc(d, bytes, &to);

    if (r < 0)
        return r;
    r = d->ops->alloc(d, bytes, &from);
    if (r < 0)
        goto free_to;
    for (int i = 0; i < COLD_CALLS && r == 0; i++) {
        int64_t h[2];

        note(c, 0);
        if (host)
            memcpy(to, from, bytes);
        else
            exchange_copy(c->q, to, from, bytes);
        note(c, 1);
        c->q->ops->get(c->q, h, c->at, sizeof(h));
        r = c->q->ops->wait(c->q);
        if (r == 0 && h[1] - h[0] < best)
            best = h[1] - h[0];
    }
    c->copy_gbps = 2.0 * (double)bytes / (double)(best > 0 ? best : 1);
    d->ops->free(d, from);
free_to:
    d->ops->free(d, to);
    return r;
}

int cold_open(struct queue *q, const struct calls *calls, bool graphs, struct cold *c)
{
    struct device *d = q->dev;
    size_t bytes = d->ops->caps & BACKEND_HOST_MEMORY ? SPILL_HOST : SPILL;
    void *p;
    int r = 0;

    *c = (struct cold){ .q = q, .calls = calls, .graphs = graphs };
    c->spill_cols = bytes / 2 / sizeof(float);
    for (int i = 0; i < 2 && r == 0; i++) {
        r = d->ops->alloc(d, bytes / 2, &p);
        if (r == 0)
            c->spill[i] = p;
    }
    if (r == 0)
        r = d->ops->alloc(d, sizeof(*c->at) * 2 * COLD_CALLS, &p);
    if (r < 0)
        return r;
    c->at = p;
    r = fill(c);
    if (r == 0)
        r = copy_rate(c);
    if (r == 0)
        r = timed(c, nothing, 0, &c->stamp_ns);
    return r;
}

int cold_find_blas(struct cold *c)
{
    int r = blas_open(c->q, c->why, sizeof(c->why), &c->blas);

    return r > 0 ? 0 : r;
}

void cold_close(struct cold *c)
{
    struct device *d = c->q ? c->q->dev : NULL;

    if (!d)
        return;
    blas_close(c->blas);
    d->ops->free(d, c->spill[0]);
    d->ops->free(d, c->spill[1]);
    d->ops->free(d, c->at);
}
