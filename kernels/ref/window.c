/* window.c owns the ends of a window: segments to rows, tokens to streams, and what of it is
 * kept. */
#include <errno.h>

#include "kernels/ref/ref.h"
#include "kernels/ref/simd.h"

void ref_stage(struct queue *q, const struct stage_args *a)
{
    if (q->err)
        return;
    for (int s = 0; s < a->segs; s++) {
        const struct segment *g = &a->seg[s];

        for (int i = 0; i < g->len; i++) {
            int32_t tok = a->tok[g->first + i];

            a->info[g->first + i] = (struct row_info){ .slot = g->slot,
                                                       .pos = a->head[g->slot].pos + a->ahead + i,
                                                       .tok = tok < 0 ? a->head[g->slot].next : tok,
                                                       .first = g->first };
        }
    }
}

SIMD static void widen_row(const struct table *t, int row, float *y)
{
    size_t at = (size_t)row * (size_t)t->cols;

    switch (t->dtype) {
    case DTYPE_F32:
        for (int c = 0; c < t->cols; c++)
            y[c] = ((const float *)t->data + at)[c];
        break;
    case DTYPE_F16:
        for (int c = 0; c < t->cols; c++)
            y[c] = f32_from_f16(((const uint16_t *)t->data + at)[c]);
        break;
    default:
        for (int c = 0; c < t->cols; c++)
            y[c] = f32_from_bf16(((const uint16_t *)t->data + at)[c]);
        break;
    }
}

void ref_table_row(const struct table *t, int row, float *y)
{
    widen_row(t, row, y);
}

static void embed_rows(const void *args, int lo, int hi, int worker)
{
    const struct embed_args *a = args;
    size_t cols = (size_t)a->table->cols;

    for (int r = lo; r < hi; r++)
        for (int i = 0; i < a->copies; i++)
            widen_row(a->table, a->info[r].tok,
                      a->y + ((size_t)r * (size_t)a->copies + (size_t)i) * cols);
}

void ref_embed(struct queue *q, const struct embed_args *a)
{
    if (q->err)
        return;
    for (int r = 0; r < a->rows; r++)
        if (a->info[r].tok < 0 || a->info[r].tok >= a->table->rows) {
            queue_fail(q, -EINVAL, "embed: row %d has token %d of a vocabulary of %d", r,
                       (int)a->info[r].tok, a->table->rows);
            return;
        }
    ref_run(q, a->rows, 16, embed_rows, a);
}

void ref_accept(struct queue *q, const struct accept_args *a)
{
    if (q->err)
        return;
    for (int s = 0; s < a->segs; s++) {
        const struct segment *g = &a->seg[s];
        const int32_t *tok = a->tok + g->first, *choice = a->choice + g->first;
        int n = g->len > 0;

        if (g->flags & SEG_KNOWN) {
            a->n_ok[s] = g->len;
            a->next[s] = -1;
            continue;
        }
        while (n > 0 && n < g->len && tok[n] == choice[n - 1])
            n++;
        a->next[s] = n > 0 ? choice[n - 1] : -1;
        a->n_ok[s] = a->next[s] == CHOICE_OPEN ? 0 : n;
    }
}

void ref_commit(struct queue *q, const struct commit_args *a)
{
    if (q->err)
        return;
    for (int s = 0; s < a->segs; s++) {
        struct slot_head *h = &a->head[a->seg[s].slot];

        if (a->n_ok[s] == 0) /* no row ran: the fold's lanes are as they were */
            continue;
        h->pos += a->n_ok[s];
        h->next = a->next[s];
        h->base ^= 1;
        h->pend = a->n_ok[s];
    }
}
