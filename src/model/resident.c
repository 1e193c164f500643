/* resident.c owns the copies of weights on a device. Two walks: one notes where the weights lie,
 * the other moves their pointers. Between them neighbours become runs, so that a pack is a handful
 * of device allocations and not one for each expert. */
#include "src/model/resident.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/model/pack.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

/* Weights whose distance is less are copied with what lies between them. */
#define GAP 4096

struct run {
    const char *begin, *end; /* in the pack */
    const char *copy;
};

struct resident {
    struct device *d;
    struct run *run;
    size_t n, cap, bytes;
};

struct resident_walk {
    struct walk w;
    struct resident *r;
};

/* ---- where the weights lie ------------------------------------------------------------------- */

static int note(struct resident *r, const void *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 1024;
        struct run *run = realloc(r->run, cap * sizeof(*run));

        if (!run)
            return fail(-ENOMEM, "weights: no memory to note %zu of them", cap);
        r->run = run;
        r->cap = cap;
    }
    r->run[r->n++] = (struct run){ data, (const char *)data + bytes, NULL };
    return 0;
}

static int note_visit(struct walk *walk, const struct weight *d, void *target)
{
    struct resident *r = ((struct resident_walk *)walk)->r;
    const struct table *t = target;
    struct mat_parts parts;
    int64_t rows, cols;

    switch (d->kind) {
    case WEIGHT_MAT:
        mat_parts(target, &parts);
        return note(r, ((const struct mat *)target)->data, parts.total);
    case WEIGHT_TABLE:
        return note(r, t->data, (size_t)t->rows * (size_t)t->cols * dtype_bytes(t->dtype));
    case WEIGHT_VEC:
        weight_local(d, &rows, &cols);
        return note(r, *(const float **)target, (size_t)(rows * cols) * sizeof(float));
    default:
        return 0;
    }
}

static int by_place(const void *a, const void *b)
{
    const struct run *x = a, *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void merge(struct resident *r)
{
    size_t n = 0;

    qsort(r->run, r->n, sizeof(*r->run), by_place);
    for (size_t i = 0; i < r->n; i++) {
        struct run *last = n ? &r->run[n - 1] : NULL;

        if (last && r->run[i].begin < last->end + GAP)
            last->end = r->run[i].end > last->end ? r->run[i].end : last->end;
        else
            r->run[n++] = r->run[i];
    }
    r->n = n;
}

/* ---- moving them ----------------------------------------------------------------------------- */

static const void *moved(const struct resident *r, const void *p)
{
    const char *at = p;
    size_t lo = 0, hi = r->n;

    if (!p)
        return NULL;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;

        if (r->run[mid].begin <= at)
            lo = mid;
        else
            hi = mid;
    }
    if (r->n == 0 || at < r->run[lo].begin || at >= r->run[lo].end)
        return p; /* an empty share: nobody reads it */
    return r->run[lo].copy + (at - r->run[lo].begin);
}

static int move_visit(struct walk *walk, const struct weight *d, void *target)
{
    const struct resident *r = ((struct resident_walk *)walk)->r;
    struct mat *m = target;

    switch (d->kind) {
    case WEIGHT_MAT:
        m->data = moved(r, m->data);
        m->scale = moved(r, m->scale);
        m->suh = moved(r, m->suh);
        m->svh = moved(r, m->svh);
        m->bias = moved(r, m->bias);
        break;
    case WEIGHT_TABLE:
        ((struct table *)target)->data = moved(r, ((struct table *)target)->data);
        break;
    case WEIGHT_VEC:
        *(const float **)target = moved(r, *(const float **)target);
        break;
    default:
        break;
    }
    return 0;
}

int resident_open(struct device *d, const struct pack *p, const struct walk_part *parts,
                  int n_parts, struct resident **out)
{
    struct resident *r = calloc(1, sizeof(*r));
    struct resident_walk w = {
        .w = { .visit = note_visit, .rank = pack_rank(p), .ranks = pack_ranks(p) }, .r = r
    };
    int e;

    if (!r)
        return fail(-ENOMEM, "weights: out of memory");
    r->d = d;
    if (d->ops->caps & BACKEND_HOST_MEMORY) {
        *out = r;
        return 0;
    }
    e = walk_parts(&w.w, parts, n_parts);
    if (e == 0)
        merge(r);
    for (size_t i = 0; i < r->n && e == 0; i++) {
        size_t bytes = (size_t)(r->run[i].end - r->run[i].begin);
        const void *copy;

        e = d->ops->weights(d, r->run[i].begin, bytes, &copy);
        if (e < 0)
            break;
        r->run[i].copy = copy;
        r->bytes += bytes;
    }
    if (e == 0) {
        w.w.visit = move_visit;
        e = walk_parts(&w.w, parts, n_parts);
    }
    if (e < 0) {
        resident_close(r);
        return e;
    }
    log_info("weights: %zu bytes in %zu runs on the device", r->bytes, r->n);
    *out = r;
    return 0;
}

size_t resident_bytes(const struct resident *r)
{
    return r->bytes;
}

void resident_close(struct resident *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++)
        if (r->run[i].copy)
            r->d->ops->unweights(r->d, r->run[i].copy);
    free(r->run);
    free(r);
}
