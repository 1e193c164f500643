/* accept.c owns the buffers between logits and outcomes, and what crosses the wire for whom; the
 * arithmetic is in the ops. */
#include "src/verify/accept.h"

#include "kernels/backend.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/model/buffers.h"
#include "src/model/exec.h"
#include "src/model/family.h"
#include "src/model/window.h"
#include "src/transport/comm.h"
#include "src/verify/history.h"
#include "src/verify/sampler.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOP_K_MARGIN 8
#define PREFIX_CANDIDATES 512 /* of a rank, for top-p and min-p */

/* What a staged window needs. */
struct route {
    bool choices;  /* some slot is not known text */
    bool edits;    /* some slot's logits are edited */
    bool draws;    /* some slot draws without a filter */
    bool weighs;   /* some slot needs the mass of the vocabulary */
    bool whole;    /* sampled slots read whole rows */
    bool logprobs; /* some slot wants them */
    int k;         /* candidates of a row and rank */
};

struct accept {
    struct device *dev;
    int site_offer, site_full, site_logprob;
    int ranks, vocab, share, first,
        widest; /* of the vocabulary; shares cross the wire as widest values a row */
    int width[RANKS_MAX];
    bool chunked; /* every share begins with a whole chunk */
    int ldm;      /* chunks of the widest share */
    struct route route;
    struct sampler staged[SLOTS_MAX], sent[SLOTS_MAX]; /* of the window; on the device */
    struct history *history;
    /* as accept_route asked */
    int forced_k;
    bool forced_whole;

    /* device. An offer is [rows][k] candidates, then [rows][ldm] masses. */
    char *mine, *offers;     /* [ranks] */
    float *padded;           /* [rows][widest]; behind this rank's share nothing is ever written */
    float *full;             /* [ranks][rows][widest] */
    float *edited;           /* [rows][share] */
    float *flat;             /* [rows][vocab], where the chunks of shares cannot be weighed */
    void *scratch;           /* [workers][choose_scratch(vocab)] */
    void *lots;              /* [rows][DRAW_SCRATCH] */
    struct sampler *sampler; /* [SLOTS_MAX] */
    struct logprobs *logprobs; /* [rows] */

    float *host; /* [ranks][widest] */
    struct logprobs *h_logprobs;
};

/* ---- opening --------------------------------------------------------------------------------- */

/* Where masses begin in an offer. */
static size_t masses_at(int rows, int k)
{
    size_t bytes = sizeof(struct candidate) * (size_t)rows * (size_t)k;

    return (bytes + sizeof(struct chunk_mass) - 1) / sizeof(struct chunk_mass) *
           sizeof(struct chunk_mass);
}

static size_t offer_bytes(const struct accept *a, int rows, int k, bool masses)
{
    return masses_at(rows, k) +
           (masses ? sizeof(struct chunk_mass) * (size_t)rows * (size_t)a->ldm : 0);
}

static int buffers(struct accept *a, buffers_fn *fn)
{
    size_t rows = WINDOW_ROWS_SHARED, row_bytes = sizeof(float) * (size_t)a->widest;
    size_t offer = offer_bytes(a, WINDOW_ROWS_SHARED, TOPK_MAX, true);
    const struct buffer b[] = {
        { &a->mine, offer },
        { &a->offers, offer * (size_t)a->ranks },
        { &a->padded, a->share < a->widest ? row_bytes * rows : 0 },
        { &a->full, row_bytes * rows * (size_t)a->ranks },
        { &a->edited, row_bytes * rows },
        { &a->flat, a->chunked ? 0 : sizeof(float) * rows * (size_t)a->vocab },
        { &a->scratch, choose_scratch((size_t)a->vocab) * (size_t)a->dev->workers },
        { &a->lots, DRAW_SCRATCH * rows },
        { &a->sampler, sizeof(struct sampler) * SLOTS_MAX },
        { &a->logprobs, sizeof(struct logprobs) * rows },
    };

    return fn(a->dev, b, sizeof(b) / sizeof(b[0]));
}

static int alloc_host(struct accept *a)
{
    a->host = malloc(sizeof(float) * (size_t)a->widest * (size_t)a->ranks);
    a->h_logprobs = calloc(WINDOW_ROWS_SHARED, sizeof(*a->h_logprobs));
    if (!a->host || !a->h_logprobs)
        return fail(-ENOMEM, "accept: no memory for a row of %d logits", a->vocab);
    return 0;
}

int accept_open(struct device *d, const struct model *m, int site, struct accept **out)
{
    struct accept *a = calloc(1, sizeof(*a));
    int r, first = 0;

    if (!a)
        return fail(-ENOMEM, "accept: out of memory");
    a->dev = d;
    a->site_offer = site;
    a->site_full = site + 1;
    a->site_logprob = site + 2;
    a->ranks = m->ranks;
    a->vocab = m->vocab;
    a->share = m->vocab_share;
    a->first = m->vocab_first;
    a->widest = model_widths(m, a->width);
    a->chunked = true;
    for (int i = 0; i < a->ranks; first += a->width[i++])
        a->chunked &= first % MASS_CHUNK == 0 || a->width[i] == 0;
    a->ldm = mass_chunks(a->chunked ? a->widest : a->vocab);
    r = buffers(a, buffers_alloc);
    if (r == 0)
        r = alloc_host(a);
    if (r == 0)
        r = history_open(d, a->first, a->share, &a->history);
    if (r < 0) {
        accept_close(a);
        return r;
    }
    *out = a;
    return 0;
}

void accept_close(struct accept *a)
{
    if (!a)
        return;
    buffers(a, buffers_free);
    history_close(a->history);
    free(a->host);
    free(a->h_logprobs);
    free(a);
}

void accept_route(struct accept *a, int candidates, bool whole)
{
    a->forced_k = candidates;
    a->forced_whole = whole;
}

/* ---- staging --------------------------------------------------------------------------------- */

void accept_admit(struct accept *a, struct exec *x, int slot, const struct sampler *s,
                  const struct logit_bias *bias)
{
    history_admit(a->history, x, slot, s, bias);
}

/* Candidates that a slot needs of every rank, 0 for whole rows. Classes, so that few sizes
 * occur. */
static int candidates(const struct accept *a, const struct sampler *s)
{
    int k = 1;

    if (sampler_greedy(s) || sampler_is_plain(s))
        return 1;
    if (sampler_weighs(s) && !a->chunked)
        return 0;
    if (s->top_k > TOPK_MAX - TOP_K_MARGIN)
        return 0;
    if (s->top_k <= 0)
        return a->forced_k ? a->forced_k : PREFIX_CANDIDATES;
    while (k < s->top_k + TOP_K_MARGIN)
        k *= 2;
    return k;
}

static void add_slot(const struct accept *a, struct route *r, const struct sampler *s)
{
    int k = candidates(a, s);

    r->choices = true;
    r->edits |= sampler_edits(s);
    r->logprobs |= s->logprobs > 0;
    r->draws |= sampler_is_plain(s);
    r->weighs |= sampler_weighs(s);
    r->whole |= k == 0 || (a->forced_whole && !sampler_greedy(s));
    r->k = k > r->k ? k : r->k;
}

void accept_stage(struct accept *a, struct exec *x, const struct slot_pool *pool,
                  const struct window *w, const struct sampler *per_slot)
{
    struct route *r = &a->route;

    *r = (struct route){ .k = 1 };
    memcpy(a->staged, per_slot, sizeof(a->staged));
    for (int i = 0; i < w->segs; i++) {
        struct sampler *s = &a->staged[w->seg[i].slot];

        if (w->seg[i].flags & SEG_KNOWN)
            *s = (struct sampler){ 0 }; /* nobody reads what these rows choose: let it be cheap */
        else
            add_slot(a, r, s);
    }
    if (r->whole) {
        r->k = 1;
        r->draws = r->weighs = false;
    }
    r->k = r->k < a->widest ? r->k : a->widest;
    assert(w->head || !r->choices);
    if (!r->choices)
        return;
    if (memcmp(a->sent, a->staged, sizeof(a->sent)) != 0) {
        memcpy(a->sent, a->staged, sizeof(a->sent));
        x->q->ops->put(x->q, a->sampler, a->sent, sizeof(a->sent));
    }
    for (int i = 0; i < w->segs; i++)
        if (sampler_counts(&a->staged[w->seg[i].slot]))
            history_follow(a->history, x, pool, w->seg[i].slot, a->sampler);
}

unsigned accept_class(const struct accept *a)
{
    const struct route *r = &a->route;

    if (!r->choices)
        return 1u << 31;
    return (unsigned)(r->k - 1) << 5 | (unsigned)r->logprobs << 4 | (unsigned)r->whole << 3 |
           (unsigned)r->weighs << 2 | (unsigned)r->draws << 1 | (unsigned)r->edits;
}

/* ---- choices --------------------------------------------------------------------------------- */

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

/* The logits that the staged window is sampled from, and rows of this rank's share of them. */
static const float *sampled_from(const struct accept *a, const struct window *w)
{
    return a->route.edits ? a->edited : w->logits;
}

static void offer(struct accept *a, struct exec *x, const struct window *w, const float *logits)
{
    const struct route *t = &a->route;
    struct candidate *cand = (struct candidate *)a->mine;

    x->op->best(x->q, &(struct best_args){ .logits = logits,
                                           .cand = cand,
                                           .rows = w->rows,
                                           .cols = a->share,
                                           .k = t->k,
                                           .id0 = a->first });
    if (t->draws)
        x->op->draw(x->q, &(struct draw_args){ .logits = logits,
                                               .sampler = a->sampler,
                                               .info = w->info,
                                               .cand = cand,
                                               .scratch = a->lots,
                                               .rows = w->rows,
                                               .cols = a->share,
                                               .k = t->k,
                                               .id0 = a->first });
    if (t->weighs)
        x->op->mass(x->q, &(struct mass_args){
                              .logits = logits,
                              .sampler = a->sampler,
                              .info = w->info,
                              .mass = (struct chunk_mass *)(a->mine + masses_at(w->rows, t->k)),
                              .rows = w->rows,
                              .cols = a->share,
                              .id0 = a->first,
                              .ld = a->ldm });
    comm_gather(x->comm, x->q, a->site_offer, a->mine, a->offers,
                offer_bytes(a, w->rows, t->k, t->weighs));
}

/* Choices of n rows from row `first` on, from what was gathered for them. */
static void choose_rows(struct accept *a, struct exec *x, struct window *w, int first, int n,
                        bool whole)
{
    const struct route *t = &a->route;
    size_t skip = masses_at(w->rows, t->k);
    struct choose_args c = { .best =
                                 (const struct candidate *)a->offers + (size_t)first * (size_t)t->k,
                             .mass = t->weighs ? (const struct chunk_mass *)(a->offers + skip) +
                                                     (size_t)first * (size_t)a->ldm
                                               : NULL,
                             .full = whole ? a->full : NULL,
                             .sampler = a->sampler,
                             .info = w->info + first,
                             .choice = w->d_choice + first,
                             .scratch = a->scratch,
                             .ranks = a->ranks,
                             .rows = n,
                             .ldf = a->widest,
                             .k = t->k,
                             .ldm = a->ldm,
                             .stride = offer_bytes(a, w->rows, t->k, t->weighs) };

    memcpy(c.width, a->width, sizeof(c.width));
    x->op->choose(x->q, &c);
}

/* Log-probabilities of n rows from row `first` on. Where shares cannot be weighed chunk by chunk,
 * every rank weighs the whole rows as if it were alone. */
static void logprob_rows(struct accept *a, struct exec *x, struct window *w, int first, int n)
{
    const float *logits = w->logits + (size_t)first * (size_t)a->share;
    int ranks = a->chunked ? a->ranks : 1, cols = a->chunked ? a->share : a->vocab;
    int id0 = a->chunked ? a->first : 0;
    size_t skip = masses_at(n, LOGPROBS_MAX), bytes = offer_bytes(a, n, LOGPROBS_MAX, true);
    char *mine = a->chunked ? a->mine : a->offers;
    struct logprob_args l = { .best = (const struct candidate *)a->offers,
                              .mass = (const struct chunk_mass *)(a->offers + skip),
                              .sampler = a->sampler,
                              .info = w->info + first,
                              .out = a->logprobs + first,
                              .ranks = ranks,
                              .rows = n,
                              .k = LOGPROBS_MAX,
                              .ldm = a->ldm,
                              .stride = bytes };

    if (a->chunked) {
        memcpy(l.width, a->width, sizeof(l.width));
    } else {
        struct unshard_args u = {
            .x = a->full, .y = a->flat, .ranks = a->ranks, .rows = n, .ldx = a->widest
        };

        l.width[0] = a->vocab;
        memcpy(u.width, a->width, sizeof(u.width));
        gather_full(a, x, logits, n);
        x->op->unshard(x->q, &u);
        logits = a->flat;
    }
    x->op->best(x->q, &(struct best_args){ .logits = logits,
                                           .cand = (struct candidate *)mine,
                                           .rows = n,
                                           .cols = cols,
                                           .k = LOGPROBS_MAX,
                                           .id0 = id0 });
    x->op->mass(x->q, &(struct mass_args){ .logits = logits,
                                           .sampler = a->sampler,
                                           .info = w->info + first,
                                           .pick = w->d_choice + first,
                                           .mass = (struct chunk_mass *)(mine + skip),
                                           .rows = n,
                                           .cols = cols,
                                           .id0 = id0,
                                           .ld = a->ldm });
    if (a->chunked)
        comm_gather(x->comm, x->q, a->site_logprob, a->mine, a->offers, bytes);
    x->op->logprob(x->q, &l);
    x->q->ops->get(x->q, a->h_logprobs + first, a->logprobs + first,
                   sizeof(*a->logprobs) * (size_t)n);
}

void accept_window(struct accept *a, struct exec *x, struct window *w)
{
    const struct route *t = &a->route;

    if (t->choices) {
        if (t->edits)
            history_edit(a->history, x, w->logits, a->edited, w->info, w->rows, a->sampler);
        offer(a, x, w, sampled_from(a, w));
        if (t->whole)
            gather_full(a, x, sampled_from(a, w), w->rows);
        choose_rows(a, x, w, 0, w->rows, t->whole);
        if (t->logprobs)
            logprob_rows(a, x, w, 0, w->rows);
    }
    x->op->accept(x->q, &(struct accept_args){ .seg = w->d_seg,
                                               .tok = w->d_tok,
                                               .choice = w->d_choice,
                                               .n_ok = w->d_n_ok,
                                               .next = w->d_next,
                                               .segs = w->segs });
}

/* ---- what candidates did not decide ---------------------------------------------------------- */

static bool undecided(const struct window *w, int seg)
{
    return w->n_ok[seg] == 0 && w->next[seg] == CHOICE_OPEN;
}

int accept_undecided(const struct window *w)
{
    int n = 0;

    for (int i = 0; i < w->segs; i++)
        n += undecided(w, i);
    return n;
}

void accept_resolve(struct accept *a, struct exec *x, struct slot_pool *pool, struct window *w)
{
    for (int i = 0; i < w->segs; i++) {
        const struct segment *s = &w->seg[i];

        if (!undecided(w, i))
            continue;
        gather_full(a, x, sampled_from(a, w) + (size_t)s->first * (size_t)a->share, s->len);
        choose_rows(a, x, w, s->first, s->len, true);
        if (a->staged[s->slot].logprobs > 0)
            logprob_rows(a, x, w, s->first, s->len);
        x->op->accept(x->q, &(struct accept_args){ .seg = w->d_seg + i,
                                                   .tok = w->d_tok,
                                                   .choice = w->d_choice,
                                                   .n_ok = w->d_n_ok + i,
                                                   .next = w->d_next + i,
                                                   .segs = 1 });
        slot_commit_part(x, pool, w, i, 1);
    }
}

/* ---- what callers read ----------------------------------------------------------------------- */

const struct logprobs *accept_logprobs(const struct accept *a, int row)
{
    assert(row >= 0 && row < WINDOW_ROWS_SHARED);
    return &a->h_logprobs[row];
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
