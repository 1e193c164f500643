/* accept.c owns the buffers between logits and outcomes; the arithmetic is in the ops best, choose
 * and accept. */
#include "src/verify/accept.h"

#include "kernels/backend.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/model/exec.h"
#include "src/model/family.h"
#include "src/model/window.h"
#include "src/transport/comm.h"
#include "src/verify/sampler.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct accept {
    struct device *dev;
    int site_best, site_full;
    int ranks, share, first,
        widest; /* of the vocabulary; shares cross the wire as widest values a row */
    int width[RANKS_MAX];

    /* device */
    struct candidate *mine, *best; /* [rows], [ranks][rows] */
    float *padded;           /* [rows][widest]; behind this rank's share nothing is ever written */
    float *full;             /* [ranks][rows][widest] */
    void *scratch;           /* [workers][choose_scratch(vocab)] */
    struct sampler *sampler; /* [SLOTS_MAX] */

    float *host; /* [ranks][widest] */
};

#define ACCEPT_BUFFERS 6

int accept_open(struct device *d, const struct model *m, int site, struct accept **out)
{
    struct accept *a = calloc(1, sizeof(*a));
    size_t rows = WINDOW_ROWS_SHARED, ranks = (size_t)m->ranks;
    int r = -ENOMEM;

    if (!a)
        return fail(-ENOMEM, "accept: out of memory");
    a->dev = d;
    a->site_best = site;
    a->site_full = site + 1;
    a->ranks = m->ranks;
    a->share = m->vocab_share;
    a->first = m->vocab_first;
    a->widest = model_widths(m, a->width);

    size_t row_bytes = sizeof(float) * (size_t)a->widest;
    struct {
        void *at;
        size_t bytes;
    } b[ACCEPT_BUFFERS] = {
        { &a->mine, sizeof(struct candidate) * rows },
        { &a->best, sizeof(struct candidate) * rows * ranks },
        { &a->padded, a->share < a->widest ? row_bytes * rows : 1 },
        { &a->full, row_bytes * rows * ranks },
        { &a->scratch, choose_scratch((size_t)m->vocab) * (size_t)d->workers },
        { &a->sampler, sizeof(struct sampler) * SLOTS_MAX },
    };

    a->host = malloc(row_bytes * ranks);
    if (!a->host) {
        fail(-ENOMEM, "accept: no memory for a row of %d logits", m->vocab);
        goto close;
    }
    for (int i = 0; i < ACCEPT_BUFFERS; i++) {
        void *p;

        r = d->ops->alloc(d, b[i].bytes, &p);
        if (r < 0)
            goto close;
        memcpy(b[i].at, &p, sizeof(p));
    }
    *out = a;
    return 0;

close:
    accept_close(a);
    return r;
}

void accept_close(struct accept *a)
{
    if (!a)
        return;
    a->dev->ops->free(a->dev, a->mine);
    a->dev->ops->free(a->dev, a->best);
    a->dev->ops->free(a->dev, a->padded);
    a->dev->ops->free(a->dev, a->full);
    a->dev->ops->free(a->dev, a->scratch);
    a->dev->ops->free(a->dev, a->sampler);
    free(a->host);
    free(a);
}

/* Shares of `rows` rows of logits from every rank into a->full. A share narrower than the widest is
 * copied to rows of that width first, by the mean over one stream, which is x / 1. */
static void gather_full(struct accept *a, struct exec *x, const float *logits, int rows)
{
    const float *in = logits;

    if (a->share < a->widest) {
        if (a->share > 0)
            x->op->hc_mean(x->q, &(struct hc_mean_args){ .x = logits,
                                                         .y = a->padded,
                                                         .rows = rows,
                                                         .hc = 1,
                                                         .dim = a->share,
                                                         .ldy = a->widest,
                                                         .round = ROUND_NONE });
        in = a->padded;
    }
    comm_gather(x->comm, x->q, a->site_full, in, a->full,
                sizeof(float) * (size_t)rows * (size_t)a->widest);
}

static void choose_rows(struct accept *a, struct exec *x, struct window *w, bool sampled)
{
    struct choose_args c = { .best = a->best,
                             .full = sampled ? a->full : NULL,
                             .sampler = a->sampler,
                             .info = w->info,
                             .choice = w->d_choice,
                             .scratch = a->scratch,
                             .ranks = a->ranks,
                             .rows = w->rows,
                             .ldf = a->widest };

    memcpy(c.width, a->width, sizeof(c.width));
    x->op->best(x->q, &(struct best_args){ .logits = w->logits,
                                           .cand = a->mine,
                                           .rows = w->rows,
                                           .cols = a->share,
                                           .k = 1,
                                           .id0 = a->first });
    comm_gather(x->comm, x->q, a->site_best, a->mine, a->best,
                sizeof(struct candidate) * (size_t)w->rows);
    if (sampled)
        gather_full(a, x, w->logits, w->rows);
    x->op->choose(x->q, &c);
}

void accept_window(struct accept *a, struct exec *x, struct window *w,
                   const struct sampler *per_slot)
{
    struct sampler s[SLOTS_MAX];
    bool sampled = false, choices = false;

    memcpy(s, per_slot, sizeof(s));
    for (int i = 0; i < w->segs; i++) {
        struct sampler *of = &s[w->seg[i].slot];

        if (w->seg[i].flags & SEG_KNOWN) {
            of->temperature = 0; /* nobody reads what these rows choose: let them choose cheaply */
            continue;
        }
        choices = true;
        sampled |= !sampler_greedy(of);
    }
    assert(w->head || !choices);
    if (choices) {
        x->q->ops->put(x->q, a->sampler, s, sizeof(s));
        choose_rows(a, x, w, sampled);
    }
    x->op->accept(x->q, &(struct accept_args){ .seg = w->d_seg,
                                               .tok = w->d_tok,
                                               .choice = w->d_choice,
                                               .n_ok = w->d_n_ok,
                                               .next = w->d_next,
                                               .segs = w->segs });
}

int accept_logits(struct accept *a, struct exec *x, struct window *w, int row, float *logits)
{
    int r;

    assert(row >= 0 && row < w->rows && w->head);
    gather_full(a, x, w->logits + (size_t)row * (size_t)a->share, 1);
    x->q->ops->get(x->q, a->host, a->full, sizeof(float) * (size_t)a->ranks * (size_t)a->widest);
    r = x->q->ops->wait(x->q);
    if (r == 0)
        r = comm_check(x->comm);
    if (r < 0)
        return r;
    for (int i = 0; i < a->ranks; i++) {
        memcpy(logits, a->host + (size_t)i * (size_t)a->widest,
               sizeof(float) * (size_t)a->width[i]);
        logits += a->width[i];
    }
    return 0;
}

uint64_t digest_note(uint64_t h, uint32_t round, int slot, int n_ok, int next)
{
    h = fnv1a64_u32(h, round);
    h = fnv1a64_u32(h, (uint32_t)slot);
    h = fnv1a64_u32(h, (uint32_t)n_ok);
    return fnv1a64_u32(h, (uint32_t)next);
}
