/* penalty.c owns the history of slots and the edits that it makes to logits. */
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"
#include "kernels/sampling.h"

static void note(uint32_t *count, int32_t pos, const struct sampler *s)
{
    if (pos < s->prompt)
        *count |= COUNT_PROMPT;
    else
        (*count)++;
}

void ref_count(struct queue *q, const struct count_args *a)
{
    if (q->err)
        return;
    for (int r = 0; r < a->rows; r++) {
        const struct row_info *i = &a->info[r];
        int c = i->tok - a->id0;

        if (i->slot >= 0 && c >= 0 && c < a->cols)
            note(a->count + (size_t)i->slot * (size_t)a->cols + (size_t)c, i->pos,
                 &a->sampler[i->slot]);
    }
}

/* The count of column c as row r sees it. */
static uint32_t history(const struct penalize_args *a, const uint32_t *count, int r, int c)
{
    uint32_t n = count[c];

    for (int i = a->info[r].first; i <= r; i++)
        if (a->info[i].tok - a->id0 == c)
            note(&n, a->info[i].pos, &a->sampler[a->info[r].slot]);
    return n;
}

static void penalize_row(const struct penalize_args *a, int r)
{
    const struct row_info *info = &a->info[r];
    const struct sampler *s = &a->sampler[info->slot];
    size_t n = (size_t)a->cols, at = (size_t)info->slot * n;
    const float *z = a->logits + (size_t)r * n;
    const uint32_t *count = a->count + at;
    const float *bias = a->bias + at;
    float *y = a->y + (size_t)r * n;

    memcpy(y, z, n * sizeof(*y));
    if (s->biases > 0 || sampler_counts(s))
        for (int c = 0; c < a->cols; c++)
            y[c] = sampler_edit(s, z[c], s->biases > 0 ? bias[c] : 0,
                                sampler_counts(s) ? count[c] : 0);
    for (int i = info->first; i <= r && sampler_counts(s); i++) {
        int c = a->info[i].tok - a->id0;

        if (c >= 0 && c < a->cols)
            y[c] = sampler_edit(s, z[c], s->biases > 0 ? bias[c] : 0, history(a, count, r, c));
    }
    for (int i = 0; i < s->ends && sampler_bans(s, info->pos + 1, s->end[i]); i++) {
        int c = s->end[i] - a->id0;

        if (c >= 0 && c < a->cols && z[c] < INFINITY)
            y[c] = -INFINITY;
    }
}

static void penalize_rows(const void *args, int lo, int hi, int worker)
{
    for (int r = lo; r < hi; r++)
        penalize_row(args, r);
}

void ref_penalize(struct queue *q, const struct penalize_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, 1, penalize_rows, a);
}
