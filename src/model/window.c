/* window.c owns the buffers of windows; what fills them is named field by field in window.h. */
#include "src/model/window.h"

#include "kernels/backend.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/model/buffers.h"
#include "src/model/exec.h"
#include "src/model/family.h"
#include "src/model/row_store.h"
#include "src/model/slot.h"
#include "src/transport/comm.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_BUFFERS (10 + WINDOW_TABLES)

static size_t window_buffers(struct window *w, const struct model *m,
                             struct buffer b[WINDOW_BUFFERS])
{
    size_t rows = (size_t)w->rows_max, n = 0;

    b[n++] = (struct buffer){ &w->d_seg, sizeof(struct segment) * SLOTS_MAX };
    b[n++] = (struct buffer){ &w->d_cover, sizeof(struct segment) * SLOTS_MAX };
    b[n++] = (struct buffer){ &w->d_stamp, sizeof(int64_t) * WINDOW_STAMPS };
    b[n++] = (struct buffer){ &w->d_tok, sizeof(int32_t) * rows };
    b[n++] = (struct buffer){ &w->info, sizeof(struct row_info) * rows };
    b[n++] =
        (struct buffer){ &w->logits, sizeof(float) * WINDOW_ROWS_SHARED * (size_t)m->vocab_share };
    b[n++] = (struct buffer){ &w->d_choice, sizeof(int32_t) * WINDOW_ROWS_SHARED };
    b[n++] = (struct buffer){ &w->d_n_ok, sizeof(int32_t) * SLOTS_MAX };
    b[n++] = (struct buffer){ &w->d_next, sizeof(int32_t) * SLOTS_MAX };
    if (m->tap_cols)
        b[n++] = (struct buffer){ &w->taps, sizeof(float) * rows * (size_t)m->tap_cols };
    for (int t = 0; t < m->tables; t++)
        b[n++] = (struct buffer){ &w->engram[t], sizeof(float) * rows * (size_t)w->engram_ld[t] };
    return n;
}

int window_open(struct device *d, const struct model *m, int rows_max, struct window **out)
{
    struct buffer b[WINDOW_BUFFERS];
    struct window *w = calloc(1, sizeof(*w));
    void *p;
    int r;

    if (!w)
        return fail(-ENOMEM, "window: out of memory");
    w->dev = d;
    w->rows_max = rows_max;
    w->bring_limit_ms = -1;
    w->tok = calloc((size_t)rows_max, sizeof(int32_t));
    if (!w->tok) {
        r = fail(-ENOMEM, "window: no memory for %d rows", rows_max);
        goto close;
    }
    for (int t = 0; t < m->tables; t++) {
        w->engram_ld[t] = m->engram_ld[t];
        r = d->ops->host_alloc(d, sizeof(float) * (size_t)rows_max * (size_t)m->engram_ld[t], &p);
        if (r < 0)
            goto close;
        w->h_engram[t] = p;
        r = d->ops->host_alloc(d, sizeof(*w->owed[t].flag), &p);
        if (r < 0)
            goto close;
        w->owed[t] = (struct window_debt){ .w = w, .table = t, .flag = p };
        *w->owed[t].flag = BRING_HERE;
    }
    r = buffers_alloc(d, b, window_buffers(w, m, b));
    if (r < 0)
        goto close;
    *out = w;
    return 0;

close:
    window_close(w);
    return r;
}

static void settle_debt(struct window_debt *o, int r)
{
    o->store = NULL;
    o->launched = false;
    __atomic_store_n(o->flag, r < 0 ? r : BRING_HERE, __ATOMIC_RELEASE);
}

void window_cancel(struct window *w)
{
    for (int t = 0; w && t < WINDOW_TABLES; t++)
        if (w->owed[t].store)
            settle_debt(&w->owed[t], -ECANCELED);
}

void window_close(struct window *w)
{
    struct device *d;

    if (!w)
        return;
    d = w->dev;
    window_cancel(w);
    d->ops->free(d, w->d_seg);
    d->ops->free(d, w->d_cover);
    d->ops->free(d, w->d_stamp);
    d->ops->free(d, w->d_tok);
    d->ops->free(d, w->info);
    d->ops->free(d, w->logits);
    d->ops->free(d, w->d_choice);
    d->ops->free(d, w->d_n_ok);
    d->ops->free(d, w->d_next);
    d->ops->free(d, w->taps);
    for (int t = 0; t < WINDOW_TABLES; t++) {
        d->ops->free(d, w->engram[t]);
        d->ops->host_free(d, w->h_engram[t]);
        d->ops->host_free(d, w->owed[t].flag);
    }
    free(w->tok);
    free(w);
}

void window_clear(struct window *w)
{
    w->segs = 0;
    w->rows = 0;
    w->pad = 0;
    w->head = false;
    w->tapped = NULL;
}

int window_add(struct window *w, int slot, const int32_t *tok, int len, int flags)
{
    if (w->segs == SLOTS_MAX || len < 1 || len > w->rows_max - w->rows)
        return fail(-EINVAL, "window: slot %d with %d rows does not fit behind %d of %d", slot, len,
                    w->rows, w->rows_max);
    for (int i = 0; i < w->segs; i++)
        if (w->seg[i].slot == slot)
            return fail(-EINVAL, "window: slot %d stands in it twice", slot);
    w->seg[w->segs++] =
        (struct segment){ .slot = slot, .first = w->rows, .len = len, .flags = flags };
    memcpy(w->tok + w->rows, tok, sizeof(*tok) * (size_t)len);
    w->rows += len;
    return 0;
}

void window_pad(struct window *w, int rows)
{
    assert(w->segs > 0 && w->pad == 0 && rows <= w->rows_max);
    for (; w->rows < rows; w->rows++, w->pad++)
        w->tok[w->rows] = w->tok[w->rows - 1];
}

int window_note(struct slot_pool *p, struct window *w)
{
    assert(!w->head || w->rows <= WINDOW_ROWS_SHARED);
    memcpy(w->cover, w->seg, sizeof(w->cover));
    w->cover[w->segs - 1].len += w->pad;
    assert(w->pad == 0 || w->cover[w->segs - 1].len <= p->rows_max);
    for (int i = 0; i < w->segs; i++) {
        const struct segment *s = &w->seg[i];

        if (p->pos[s->slot] + s->len > p->context + p->rows_max)
            return fail(-EOVERFLOW, "window: slot %d at position %d has no room for %d rows of %d",
                        s->slot, p->pos[s->slot], s->len, p->context);
        memcpy(p->ids[s->slot] + p->pos[s->slot], w->tok + s->first,
               sizeof(int32_t) * (size_t)s->len);
    }
    return 0;
}

void window_ask(struct window *w)
{
    for (int t = 0; t < WINDOW_TABLES; t++) {
        struct window_debt *o = &w->owed[t];
        int r;

        if (!o->store || o->asked)
            continue;
        r = o->store->ops->ask(o->store, o->of, t, o->column, o->row, o->n);
        o->asked = true;
        if (r < 0)
            settle_debt(o, r);
    }
}

static int take_rows(const struct window_debt *o)
{
    return o->store->ops->take(o->store, o->table, o->w->h_engram[o->table]);
}

int window_forget(struct window *w, int t)
{
    struct window_debt *o = &w->owed[t];

    if (o->store && o->launched)
        return fail(-EBUSY, "window: staged while the one before it waits for rows of table %d", t);
    if (o->store)
        settle_debt(o, o->asked ? take_rows(o) : 0);
    return 0;
}

void window_owe(struct window *w, int t, struct row_store *s, const struct row_table *table,
                const int32_t *column, const int64_t *row, int n)
{
    struct window_debt *o = &w->owed[t];

    o->store = s;
    o->asked = false;
    o->of = table;
    o->column = column;
    o->row = row;
    o->n = n;
    __atomic_store_n(o->flag, 0, __ATOMIC_RELEASE);
}

void window_launched(struct window *w)
{
    for (int t = 0; t < WINDOW_TABLES; t++)
        w->owed[t].launched = w->owed[t].store != NULL;
}

/* The error of a table whose rows could not be had for this window, 0 if there is none. */
static int lost(const struct window *w)
{
    for (int t = 0; t < WINDOW_TABLES; t++)
        if (w->owed[t].flag && *w->owed[t].flag < 0)
            return (int)*w->owed[t].flag;
    return 0;
}

/* fetch of op bring. After one table's rows could not be had, the other tables' are not fetched, so
 * that only one cause is logged. */
static void fetch_rows(void *arg)
{
    struct window_debt *o = arg;
    int64_t begin = clock_ns();

    if (!o->store)
        return;
    o->launched = false; /* its device gets a word now, whichever */
    window_ask(o->w);
    if (o->store && lost(o->w) < 0)
        __atomic_store_n(o->flag, lost(o->w), __ATOMIC_RELEASE);
    else if (o->store)
        settle_debt(o, take_rows(o));
    o->w->brought_ns += clock_ns() - begin;
}

void window_bring(struct exec *x, struct window *w, int t)
{
    struct window_debt *o = &w->owed[t];

    x->op->bring(x->q,
                 &(struct bring_args){
                     .y = w->engram[t],
                     .src = w->h_engram[t],
                     .bytes = sizeof(float) * (size_t)w->rows * (size_t)w->engram_ld[t],
                     .flag = o->flag,
                     .fetch = fetch_rows,
                     .arg = o,
                     .limit_ns = w->bring_limit_ms < 0 ? -1 : w->bring_limit_ms * NS_PER_MS });
}

void window_send(struct exec *x, const struct slot_pool *p, struct window *w)
{
    struct queue *q = x->q;

    q->ops->put(q, w->d_seg, w->seg, sizeof(w->seg[0]) * (size_t)w->segs);
    q->ops->put(q, w->d_cover, w->cover, sizeof(w->cover[0]) * (size_t)w->segs);
    q->ops->put(q, w->d_tok, w->tok, sizeof(w->tok[0]) * (size_t)w->rows);
    x->op->stage(q, &(struct stage_args){ .seg = w->d_cover,
                                          .head = p->head,
                                          .tok = w->d_tok,
                                          .info = w->info,
                                          .segs = w->segs });
}

int window_upload(struct exec *x, struct slot_pool *p, struct window *w)
{
    int r = window_note(p, w);

    if (r == 0)
        window_send(x, p, w);
    return r;
}

void window_fetch(struct exec *x, struct window *w)
{
    struct queue *q = x->q;

    if (w->head)
        q->ops->get(q, w->choice, w->d_choice, sizeof(int32_t) * (size_t)w->rows);
    q->ops->get(q, w->n_ok, w->d_n_ok, sizeof(int32_t) * (size_t)w->segs);
    q->ops->get(q, w->next, w->d_next, sizeof(int32_t) * (size_t)w->segs);
    window_fetch_stamps(x, w);
}

void window_tapped(struct exec *x, struct window *w)
{
    struct arena *a = x->tmp;
    size_t peak = a->peak;

    if (!w->tapped)
        return;
    a->peak = a->used;
    w->tapped(w->tapped_arg, x);
    a->used = a->peak;
    if (a->peak < peak)
        a->peak = peak;
}

void window_stamp(struct exec *x, struct window *w, enum window_stamp s)
{
    static const char *const names[WINDOW_STAMPS] = {
        [STAMP_BEGIN] = "begin",     [STAMP_FORWARD] = "forward", [STAMP_CHOSEN] = "choose",
        [STAMP_INGESTED] = "ingest", [STAMP_DRAFTED] = "draft",
    };

    x->op->stamp(x->q, &(struct stamp_args){ .at = w->d_stamp + s, .name = names[s] });
}

void window_fetch_stamps(struct exec *x, struct window *w)
{
    x->q->ops->get(x->q, w->stamp, w->d_stamp, sizeof(w->stamp));
    comm_note(x->comm, x->q);
}
