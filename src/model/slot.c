/* slot.c owns the device memory of every slot's states and the host's copy of their positions. */
#include "src/model/slot.h"

#include "kernels/backend.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/model/exec.h"
#include "src/model/window.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STATE_ALIGN 256
#define FOLD_LANES 2

int state_add(struct state_list *l, enum state_kind kind, int span, enum codec codec, int cols)
{
    assert(l->n < STATES_MAX && span >= 1 && cols >= 1);
    l->spec[l->n] = (struct state_spec){ kind, span, codec, cols };
    return l->n++;
}

static int state_rows(const struct state_spec *s, int context, int rows_max)
{
    switch (s->kind) {
    case STATE_ROWS:
        return (context + rows_max) / s->span + 1;
    case STATE_RING:
        return s->span + rows_max - 1;
    default:
        return FOLD_LANES;
    }
}

/* Lays out one slot; returns its bytes and, if view is given, fills strides and offsets from
 * base. */
static size_t slot_layout(const struct state_list *l, int context, int rows_max,
                          struct state_view *view, unsigned char *base)
{
    size_t at = 0;

    for (int i = 0; i < l->n; i++) {
        const struct state_spec *s = &l->spec[i];
        int rows = state_rows(s, context, rows_max);
        size_t row = codec_bytes(s->codec, s->cols);

        if (view)
            view[i] = (struct state_view){
                .base = base + at, .row_bytes = row, .cap = rows, .codec = s->codec, .cols = s->cols
            };
        at += ((size_t)rows * row + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN;
    }
    return at;
}

size_t slot_pool_bytes(const struct state_list *l, int slots, int context, int rows_max)
{
    return (size_t)slots *
           (slot_layout(l, context, rows_max, NULL, NULL) + sizeof(struct slot_head));
}

int slot_pool_open(struct device *d, const struct state_list *l, int slots, int context,
                   int rows_max, struct slot_pool **out)
{
    size_t stride = slot_layout(l, context, rows_max, NULL, NULL);
    struct slot_pool *p = calloc(1, sizeof(*p));
    void *memory, *head;
    int r = -ENOMEM;

    assert(slots >= 1 && slots <= SLOTS_MAX);
    if (!p)
        return fail(-ENOMEM, "slots: out of memory");
    p->dev = d;
    p->states = *l;
    p->slots = slots;
    p->context = context;
    p->rows_max = rows_max;
    p->bytes = slot_pool_bytes(l, slots, context, rows_max);
    for (int s = 0; s < slots; s++) {
        p->ids[s] = calloc((size_t)(context + rows_max), sizeof(int32_t));
        if (!p->ids[s]) {
            r = fail(-ENOMEM, "slots: no memory for the ids of %d tokens", context + rows_max);
            goto free_ids;
        }
    }
    r = d->ops->alloc(d, (size_t)slots * stride + STATE_ALIGN, &memory);
    if (r < 0)
        goto free_ids;
    r = d->ops->alloc(d, sizeof(struct slot_head) * SLOTS_MAX, &head);
    if (r < 0)
        goto free_memory;
    p->memory = memory;
    p->head = head;
    slot_layout(l, context, rows_max, p->view, memory);
    for (int i = 0; i < l->n; i++)
        p->view[i].slot_stride = stride;
    *out = p;
    return 0;

free_memory:
    d->ops->free(d, memory);
free_ids:
    for (int s = 0; s < slots; s++)
        free(p->ids[s]);
    free(p);
    return r;
}

void slot_pool_close(struct slot_pool *p)
{
    if (!p)
        return;
    p->dev->ops->free(p->dev, p->head);
    p->dev->ops->free(p->dev, p->memory);
    for (int s = 0; s < p->slots; s++)
        free(p->ids[s]);
    free(p);
}

static void put_head(struct slot_pool *p, struct queue *q, int slot, size_t at, int32_t value)
{
    q->ops->put(q, (char *)&p->head[slot] + at, &value, sizeof(value));
}

int slot_take(struct slot_pool *p, struct queue *q, int want, int *slot)
{
    int s = want;
    struct slot_head fresh = { .next = -1 };

    if (s < 0)
        for (s = 0; s < p->slots && (p->taken >> s & 1u); s++)
            ;
    if (s >= p->slots || (p->taken >> s & 1u))
        return 1;
    p->taken |= 1u << s;
    p->pos[s] = 0;
    q->ops->put(q, &p->head[s], &fresh, sizeof(fresh));
    *slot = s;
    return 0;
}

void slot_drop(struct slot_pool *p, int slot)
{
    assert(p->taken >> slot & 1u);
    p->taken &= ~(1u << slot);
}

void slot_set(struct slot_pool *p, struct queue *q, int slot, int pos)
{
    p->pos[slot] = pos;
    put_head(p, q, slot, offsetof(struct slot_head, pos), pos);
}

void slot_set_next(struct slot_pool *p, struct queue *q, int slot, int tok)
{
    put_head(p, q, slot, offsetof(struct slot_head, next), tok);
}

void slot_set_floor(struct slot_pool *p, struct queue *q, int slot, int floor)
{
    put_head(p, q, slot, offsetof(struct slot_head, floor), floor);
}

void slot_commit(struct exec *x, struct slot_pool *p, struct window *w)
{
    slot_commit_part(x, p, w, 0, w->segs);
}

void slot_commit_part(struct exec *x, struct slot_pool *p, struct window *w, int first, int n)
{
    x->op->commit(x->q, &(struct commit_args){ .seg = w->d_seg + first,
                                               .n_ok = w->d_n_ok + first,
                                               .next = w->d_next + first,
                                               .head = p->head,
                                               .segs = n });
}

void slot_sync(struct slot_pool *p, const struct window *w)
{
    for (int i = 0; i < w->segs; i++)
        p->pos[w->seg[i].slot] += w->n_ok[i];
}

/* First and end row of state s that a slot at pos can still read. */
static void live_rows(const struct state_spec *s, int pos, int *first, int *end)
{
    switch (s->kind) {
    case STATE_ROWS:
        *first = 0;
        *end = pos / s->span;
        break;
    case STATE_RING:
        *first = pos - s->span + 1 > 0 ? pos - s->span + 1 : 0;
        *end = pos;
        break;
    default:
        *first = 0;
        *end = FOLD_LANES;
        break;
    }
}

/* Rows first .. end - 1 of a slot's state into rows; a ring wraps once. */
static void fetch_rows(const struct state_view *v, struct queue *q, int slot, int first, int end,
                       char *rows)
{
    while (first < end) {
        int at = first % v->cap, n = end - first < v->cap - at ? end - first : v->cap - at;
        size_t bytes = (size_t)n * v->row_bytes;

        q->ops->get(q, rows, v->base + (size_t)slot * v->slot_stride + (size_t)at * v->row_bytes,
                    bytes);
        rows += bytes;
        first += n;
    }
}

int slot_digest(struct slot_pool *p, struct queue *q, int slot, int n, uint64_t *out)
{
    uint64_t h = FNV1A64_INIT;
    size_t widest = 1;
    char *rows;
    int r = 0;

    assert(n <= p->states.n);
    for (int i = 0; i < n; i++) {
        int first, end;

        live_rows(&p->states.spec[i], p->pos[slot], &first, &end);
        if (p->view[i].row_bytes * (size_t)(end - first) > widest)
            widest = p->view[i].row_bytes * (size_t)(end - first);
    }
    rows = malloc(widest);
    if (!rows)
        return fail(-ENOMEM, "slots: out of memory");
    for (int i = 0; i < n && r == 0; i++) {
        int first, end;

        live_rows(&p->states.spec[i], p->pos[slot], &first, &end);
        fetch_rows(&p->view[i], q, slot, first, end, rows);
        r = q->ops->wait(q);
        h = fnv1a64(h, rows, p->view[i].row_bytes * (size_t)(end - first));
    }
    free(rows);
    if (r == 0)
        *out = h;
    return r;
}
