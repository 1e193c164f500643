/* resident.c owns the copies of weights on a device. Two walks: one notes where the weights lie,
 * the other moves their pointers. Between them neighbours become runs, so that a pack is a handful
 * of device allocations and not one for each expert. */
#include "src/model/resident.h"

#include "kernels/backend.h"
#include "kernels/ops.h"
#include "src/base/log.h"
#include "src/base/mapping.h"
#include "src/model/pack.h"

#include <errno.h>
#include <stdbool.h>
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

/* holes: matrices whose codes are not in the pack. */
struct resident_walk {
    struct walk w;
    struct resident *r;
    const struct pack *p;
    struct queue *q;
    size_t holes;
    bool ask; /* fill_visit begins to read, and copies nothing */
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
    struct resident_walk *rw = (struct resident_walk *)walk;
    struct resident *r = rw->r;
    const struct table *t = target;
    struct mat_parts parts;
    struct pack_made made;
    int64_t rows, cols;

    switch (d->kind) {
    case WEIGHT_MAT:
        mat_parts(target, &parts);
        pack_made(rw->p, d->name, &made);
        rw->holes += made.n > 0;
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

/* ---- holes ----------------------------------------------------------------------------------- */

/* Copy a part of a weight to where move_visit will find it, or only say that it will be read. */
static void put_part(const struct resident_walk *w, const void *data, size_t bytes)
{
    if (bytes > 0 && w->ask)
        mapping_need(data, bytes);
    else if (bytes > 0)
        w->q->ops->put(w->q, (void *)(uintptr_t)moved(w->r, data), data, bytes);
}

/* Codes of a matrix, a slice after the other; the slices' strips follow each other. */
static void make_codes(const struct resident_walk *w, const struct mat *m,
                       const struct pack_made *made)
{
    struct synth_args a = { .w = *m,
                            .tile_row = made->tile_row,
                            .tile_col = made->tile_col,
                            .tile_cols = made->tile_cols };

    a.w.data = moved(w->r, m->data);
    a.strips = (m->rows + EXL3_BLOCK - 1) / EXL3_BLOCK / made->n;
    for (int i = 0; i < made->n; i++, a.strip0 += a.strips) {
        a.hash = made->hash[i];
        w->q->ops->op->synth(w->q, &a);
    }
}

/* What runs with holes are made of, weight by weight: their memory is there, nothing is in it. */
static int fill_visit(struct walk *walk, const struct weight *d, void *target)
{
    const struct resident_walk *w = (const struct resident_walk *)walk;
    const struct table *t = target;
    struct mat_parts parts;
    struct pack_made made;
    int64_t rows, cols;

    switch (d->kind) {
    case WEIGHT_MAT:
        mat_parts(target, &parts);
        pack_made(w->p, d->name, &made);
        if (parts.total == 0)
            return 0;
        if (made.n == 0) {
            put_part(w, ((const struct mat *)target)->data, parts.total);
        } else {
            put_part(w, (const char *)((const struct mat *)target)->data + parts.at[PART_SUH],
                     parts.total - parts.at[PART_SUH]);
            if (!w->ask)
                make_codes(w, target, &made);
        }
        break;
    case WEIGHT_TABLE:
        put_part(w, t->data, (size_t)t->rows * (size_t)t->cols * dtype_bytes(t->dtype));
        break;
    case WEIGHT_VEC:
        weight_local(d, &rows, &cols);
        put_part(w, *(const float **)target, (size_t)(rows * cols) * sizeof(float));
        break;
    default:
        return 0;
    }
    return 0;
}

static int fill(struct resident *r, struct resident_walk *w, const struct walk_part *parts,
                int n_parts)
{
    int e = 0;

    for (size_t i = 0; i < r->n && e == 0; i++) {
        size_t bytes = (size_t)(r->run[i].end - r->run[i].begin);
        void *p;

        e = r->d->ops->alloc(r->d, bytes, &p);
        if (e == 0)
            r->run[i].copy = p;
        r->bytes += bytes;
    }
    if (e == 0)
        e = r->d->ops->queue_open(r->d, &w->q);
    if (e < 0)
        return e;
    w->w.visit = fill_visit;
    w->ask = true;
    e = walk_parts(&w->w, parts, n_parts);
    w->ask = false;
    if (e == 0)
        e = walk_parts(&w->w, parts, n_parts);
    if (e == 0)
        e = w->q->ops->wait(w->q);
    w->q->ops->queue_close(w->q);
    return e;
}

static int copy(struct resident *r)
{
    int e = 0;

    for (size_t i = 0; i < r->n && e == 0; i++) {
        size_t bytes = (size_t)(r->run[i].end - r->run[i].begin);
        const void *p;

        e = r->d->ops->weights(r->d, r->run[i].begin, bytes, &p);
        if (e == 0)
            r->run[i].copy = p;
        r->bytes += bytes;
    }
    return e;
}

int resident_bind(struct resident *r, const struct pack *p, const struct walk_part *parts,
                  int n_parts)
{
    struct resident_walk w = {
        .w = { .visit = move_visit, .rank = pack_rank(p), .ranks = pack_ranks(p) }, .r = r, .p = p
    };

    return walk_parts(&w.w, parts, n_parts);
}

int resident_open(struct device *d, const struct pack *p, const struct walk_part *parts,
                  int n_parts, struct resident **out)
{
    struct resident *r = calloc(1, sizeof(*r));
    struct resident_walk w = {
        .w = { .visit = note_visit, .rank = pack_rank(p), .ranks = pack_ranks(p) }, .r = r, .p = p
    };
    int e;

    if (!r)
        return fail(-ENOMEM, "weights: out of memory");
    r->d = d;
    e = walk_parts(&w.w, parts, n_parts);
    if (d->ops->caps & BACKEND_HOST_MEMORY) {
        if (e == 0 && w.holes > 0)
            e = fail(-EINVAL, "%s: codes of %zu matrices are not in it: it is for a device",
                     pack_name(p), w.holes);
        if (e < 0) {
            resident_close(r);
            return e;
        }
        r->n = 0;
        *out = r;
        return 0;
    }
    if (e == 0)
        merge(r);
    if (e == 0)
        e = w.holes > 0 ? fill(r, &w, parts, n_parts) : copy(r);
    if (e == 0)
        e = resident_bind(r, p, parts, n_parts);
    if (e < 0) {
        resident_close(r);
        return e;
    }
    log_info("weights: %zu bytes in %zu runs on the device, codes of %zu matrices made there",
             r->bytes, r->n, w.holes);
    *out = r;
    return 0;
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
