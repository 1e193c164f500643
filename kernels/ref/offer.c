/* offer.c owns what a rank says about its share of a row besides its best logits: the winner of its
 * draw, the mass of its chunks, and what becomes of them all in logprobs. */
#include <errno.h>
#include <math.h>

#include "kernels/ref/ref.h"
#include "kernels/ref/sample.h"

/* ---- draw ------------------------------------------------------------------------------------ */

static void draw_row(const struct draw_args *a, int r)
{
    const struct sampler *s = &a->sampler[a->info[r].slot];
    const float *z = a->logits + (size_t)r * (size_t)a->cols;
    struct candidate *c = a->cand + (size_t)r * (size_t)a->k;
    uint64_t pair[MASS_CHUNK + 1];
    struct ballot b = { .s = s, .pos = (uint64_t)(a->info[r].pos + 1), .pair = pair };
    int best = -1;

    if (!sampler_is_plain(s) || c->id < 0)
        return;
    /* The winner of a piece stands first in the next: who cannot reach it costs no logarithm. */
    for (int first = 0; first < a->cols; first += MASS_CHUNK) {
        b.n = 0;
        if (best >= 0)
            pair[b.n++] = ballot_pair(z[best], a->id0 + best);
        for (int i = first; i < a->cols && i < first + MASS_CHUNK; i++)
            if (z[i] > -INFINITY)
                pair[b.n++] = ballot_pair(z[i], a->id0 + i);
        if (b.n > 0)
            best = ballot_draw(&b, pair, b.n) - a->id0;
    }
    *c = (struct candidate){ .z = z[best], .id = a->id0 + best };
}

static void draw_rows(const void *args, int lo, int hi, int worker)
{
    for (int r = lo; r < hi; r++)
        draw_row(args, r);
}

void ref_draw(struct queue *q, const struct draw_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, 1, draw_rows, a);
}

/* ---- mass ------------------------------------------------------------------------------------ */

static void mass_rows(const void *args, int lo, int hi, int worker)
{
    const struct mass_args *a = args;

    for (int r = lo; r < hi; r++) {
        const struct sampler *s = &a->sampler[a->info[r].slot];
        const float *z = a->logits + (size_t)r * (size_t)a->cols;
        struct chunk_mass *m = a->mass + (size_t)r * (size_t)a->ld;
        int pick = a->pick ? a->pick[r] - a->id0 : -1;

        if (a->pick ? s->logprobs <= 0 : !sampler_weighs(s))
            continue;
        for (int c = 0; c < mass_chunks(a->cols); c++) {
            int first = c * MASS_CHUNK;
            int n = a->cols - first < MASS_CHUNK ? a->cols - first : MASS_CHUNK;

            m[c] = chunk_weigh(z + first, n, a->pick ? 1 : sampler_heat(s));
            if (pick >= first && pick < first + n)
                m[c].z = z[pick];
        }
    }
}

void ref_mass(struct queue *q, const struct mass_args *a)
{
    if (q->err)
        return;
    if (a->id0 % MASS_CHUNK != 0 || mass_chunks(a->cols) > a->ld) {
        queue_fail(q, -EINVAL,
                   "mass: ids %d .. %d do not begin with a chunk of %d, or are more than %d",
                   a->id0, a->id0 + a->cols - 1, MASS_CHUNK, a->ld);
        return;
    }
    ref_run(q, a->rows, 1, mass_rows, a);
}

/* ---- logprob --------------------------------------------------------------------------------- */

static const void *part(const struct logprob_args *a, const void *of, int rank)
{
    return (const char *)of + (size_t)rank * a->stride;
}

/* The n best tokens of all ranks; returns how many there are. */
static int merge(const struct logprob_args *a, int r, int n, struct candidate *out)
{
    int at[RANKS_MAX] = { 0 }, taken = 0;

    while (taken < n) {
        struct candidate top = { .id = -1 };
        int from = -1;

        for (int i = 0; i < a->ranks; i++) {
            const struct candidate *c = part(a, a->best, i);
            struct candidate o = { .id = -1 };

            if (at[i] < a->k)
                o = c[(size_t)r * (size_t)a->k + (size_t)at[i]];
            if (o.id >= 0 && (top.id < 0 || o.z > top.z || (o.z == top.z && o.id < top.id))) {
                top = o;
                from = i;
            }
        }
        if (from < 0)
            break;
        at[from]++;
        out[taken++] = top;
    }
    return taken;
}

static void logprob_row(const struct logprob_args *a, int r)
{
    const struct sampler *s = &a->sampler[a->info[r].slot];
    struct candidate best[LOGPROBS_MAX];
    struct logprobs *out = &a->out[r];
    float most = -INFINITY, chosen = -INFINITY;
    double whole = 0, log_whole;
    int n = s->logprobs - 1 < LOGPROBS_MAX ? s->logprobs - 1 : LOGPROBS_MAX;

    if (s->logprobs <= 0)
        return;
    for (int i = 0; i < a->ranks; i++) {
        const struct chunk_mass *m = part(a, a->mass, i);

        m += (size_t)r * (size_t)a->ldm;
        for (int c = 0; c < mass_chunks(a->width[i]); c++) {
            most = m[c].peak > most ? m[c].peak : most;
            chosen = m[c].z > chosen ? m[c].z : chosen;
        }
    }
    for (int i = 0; i < a->ranks; i++) {
        const struct chunk_mass *m = part(a, a->mass, i);

        m += (size_t)r * (size_t)a->ldm;
        for (int c = 0; c < mass_chunks(a->width[i]); c++)
            whole += chunk_share(&m[c], most, 1);
    }
    log_whole = det_log(whole);
    out->chosen = ((double)chosen - (double)most) - log_whole;
    out->n = merge(a, r, n, best);
    for (int i = 0; i < out->n; i++) {
        out->id[i] = best[i].id;
        out->top[i] = ((double)best[i].z - (double)most) - log_whole;
    }
}

static void logprob_rows(const void *args, int lo, int hi, int worker)
{
    for (int r = lo; r < hi; r++)
        logprob_row(args, r);
}

void ref_logprob(struct queue *q, const struct logprob_args *a)
{
    if (q->err)
        return;
    if (a->ranks < 1 || a->ranks > RANKS_MAX || a->k < 1) {
        queue_fail(q, -EINVAL, "logprob: %d ranks of %d candidates", a->ranks, a->k);
        return;
    }
    ref_run(q, a->rows, 4, logprob_rows, a);
}
