/* draft_ngram.c owns the index of the slots' texts and the evidence about copies.
 *
 * An index is a chain per hash of GRAM tokens, newest first, over end positions in the text. The
 * gram that ends the text is not in it: it joins once a token follows.
 */
#include "src/draft/draft_ngram.h"

#include "src/base/log.h"
#include "src/draft/draft_host.h"
#include "src/draft/draft_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GRAM 3
#define MATCH_LEAST 4
#define MATCH_MOST 64
#define CANDIDATES 64
#define BANDS 4
#define LONG_BAND 2 /* from here on a band that is passed over is tried now and then */
#define TRY_EVERY 8
#define DECAY 0.85 /* of the evidence, a copy window */
#define TRIALS 2   /* that a prior is worth */
#define CHANCE_MOST 0.995

static const int band_from[BANDS] = { 0, 8, 16, 32 };
static const double band_prior[BANDS] = { 0.45, 0.7, 0.8, 0.9 };

struct text_index {
    int32_t *ids;  /* [context + 1] history with the pending token */
    int32_t *prev; /* [context + 1] by end position: the one before with the same hash, -1 */
    int32_t *head; /* [1 << bits] newest end position, -1 */
    int n;         /* tokens of the history */
    int indexed;   /* grams that end before it are in the chains */
    int match;     /* of the newest proposal */
    double kept[BANDS], tried[BANDS];
    int passed_over[BANDS];
};

struct ngram {
    struct host_draft host;
    int context, bits;
    struct text_index slot[SLOTS_MAX];
};

/* ---- opening --------------------------------------------------------------------------------- */

static int ngram_open(const struct json *config, struct model *m, struct drafter **out)
{
    return draft_host_open(&draft_ngram, sizeof(struct ngram), m, WINDOW_MAX - 1, out);
}

static void forget(const struct ngram *d, struct text_index *t)
{
    t->n = t->indexed = t->match = 0;
    memset(t->head, 0xff, sizeof(*t->head) << d->bits);
    memset(t->kept, 0, sizeof(t->kept));
    memset(t->tried, 0, sizeof(t->tried));
    memset(t->passed_over, 0, sizeof(t->passed_over));
}

static int ngram_ready(struct drafter *base, struct device *dev, const struct slot_pool *p)
{
    struct ngram *d = (struct ngram *)base;

    d->context = p->context;
    for (d->bits = 10; (1 << d->bits) < p->context && d->bits < 20;)
        d->bits++;
    for (int s = 0; s < p->slots; s++) {
        struct text_index *t = &d->slot[s];

        t->ids = malloc(sizeof(*t->ids) * ((size_t)p->context + 1));
        t->prev = malloc(sizeof(*t->prev) * ((size_t)p->context + 1));
        t->head = malloc(sizeof(*t->head) << d->bits);
        if (!t->ids || !t->prev || !t->head)
            return fail(-ENOMEM, "draft ngram: no memory for texts of %d tokens", p->context);
        forget(d, t);
    }
    return 0;
}

static void ngram_close(struct drafter *base)
{
    struct ngram *d = (struct ngram *)base;

    if (!d)
        return;
    for (int s = 0; s < SLOTS_MAX; s++) {
        free(d->slot[s].ids);
        free(d->slot[s].prev);
        free(d->slot[s].head);
    }
    draft_host_close(base);
}

static void ngram_reset(struct drafter *base, struct exec *x, struct slot_pool *p, int slot,
                        int first)
{
    struct ngram *d = (struct ngram *)base;

    forget(d, &d->slot[slot]);
}

/* ---- the index ------------------------------------------------------------------------------- */

/* Chain of the gram that ends at position `at`. */
static int32_t *chain(const struct ngram *d, const struct text_index *t, int at)
{
    uint64_t h = 0;

    for (int i = at - GRAM + 1; i <= at; i++)
        h = (h + (uint32_t)t->ids[i] + 1) * UINT64_C(0x9E3779B97F4A7C15);
    return &t->head[h >> (64 - d->bits)];
}

/* Takes back what lies at position n and behind: the newest of every chain first. */
static void shorten(const struct ngram *d, struct text_index *t, int n)
{
    while (t->indexed > n) {
        int at = --t->indexed;

        if (at >= GRAM - 1)
            *chain(d, t, at) = t->prev[at];
    }
    t->n = n;
}

/* Brings the history to ids[0 .. pos - 1] and the pending token. Only what changed is touched. */
static void follow(const struct ngram *d, struct text_index *t, const int32_t *ids, int pos,
                   int32_t anchor)
{
    int most = t->n < pos ? t->n : pos;
    int same = most > 2 * WINDOW_MAX ? most - 2 * WINDOW_MAX : 0;

    /* The old pending token can differ, and what a window may have taken back; nothing older. */
    while (same < most && t->ids[same] == ids[same])
        same++;
    shorten(d, t, same);
    for (; t->n <= pos; t->n++) {
        if (t->n - 1 >= t->indexed) {
            int at = t->indexed++;

            if (at >= GRAM - 1) {
                int32_t *head = chain(d, t, at);

                t->prev[at] = *head;
                *head = at;
            }
        }
        t->ids[t->n] = t->n < pos ? ids[t->n] : anchor;
    }
}

/* How far the texts that end at a and at b agree backwards. */
static int agree(const int32_t *ids, int a, int b)
{
    int n = 0;

    while (n < MATCH_MOST && a - n >= 0 && ids[a - n] == ids[b - n])
        n++;
    return n;
}

/* End of the longest text that ends as the history does, the newest of equally long ones. */
static int find(const struct ngram *d, struct text_index *t)
{
    int last = t->n - 1, best = -1, tries = 0;

    t->match = 0;
    if (last < GRAM)
        return -1;
    for (int at = *chain(d, t, last); at >= 0 && tries < CANDIDATES; at = t->prev[at], tries++) {
        int n = agree(t->ids, at, last);

        if (n > t->match) {
            t->match = n;
            best = at;
        }
    }
    if (t->match < MATCH_LEAST)
        t->match = 0;
    return t->match ? best : -1;
}

/* ---- proposals ------------------------------------------------------------------------------- */

static int band_of(int match)
{
    int b = BANDS - 1;

    while (match < band_from[b])
        b--;
    return b;
}

static double chance(const struct text_index *t, int band)
{
    double q = (TRIALS * band_prior[band] + t->kept[band]) / (TRIALS + t->tried[band]);

    return q < CHANCE_MOST ? q : CHANCE_MOST;
}

/* What came after the match, reading on in its own drafts where the history ends: a period
 * repeats. */
static int copy(const struct ngram *d, const struct text_index *t, int from, int32_t *out)
{
    int len = 0;

    for (; len < d->host.base.block; len++) {
        int at = from + 1 + len;
        int32_t id = at < t->n ? t->ids[at] : out[at - t->n];

        if (id < 0 || id >= d->host.vocab)
            break;
        out[len] = id;
    }
    return len;
}

static void ngram_propose(struct drafter *base, struct exec *x, const struct slot_pool *pool,
                          struct proposal *p, const struct sampler *sampler)
{
    struct ngram *d = (struct ngram *)base;

    for (int i = 0; i < p->n; i++) {
        int slot = p->slot[i], from;
        struct text_index *t = &d->slot[slot];

        assert(pool->pos[slot] <= d->context);
        follow(d, t, pool->ids[slot], pool->pos[slot], p->anchor[i]);
        from = find(d, t);
        d->host.made.len[i] = from < 0 ? 0 : copy(d, t, from, d->host.made.draft[i]);
        for (int j = 0; j < d->host.made.len[i]; j++)
            d->host.made.conf[i][j] = (float)chance(t, band_of(t->match));
    }
}

/* ---- prices ---------------------------------------------------------------------------------- */

int ngram_match(const struct drafter *base, int slot)
{
    assert(base->ops == &draft_ngram);
    return ((const struct ngram *)base)->slot[slot].match;
}

int ngram_depth(struct drafter *base, int slot, const double *q, int n, double lambda,
                const struct cost_table *t, double alternative)
{
    struct text_index *x = &((struct ngram *)base)->slot[slot];
    int band = band_of(x->match), k;
    double expect;
    int32_t cost;

    assert(base->ops == &draft_ngram);
    if (n == 0)
        return 0;
    k = depth_choose(q, n, lambda, t, &expect, &cost);
    if (k == 0 || !(expect - lambda * cost > 0) || !(expect - lambda * cost > alternative)) {
        if (band < LONG_BAND || ++x->passed_over[band] < TRY_EVERY)
            return 0;
        /* One draft is enough to ask whether the band is as poor as it seems. */
        if (k == 0)
            k = 1;
    }
    x->passed_over[band] = 0;
    return k;
}

void ngram_note(struct drafter *base, int slot, int k, int a)
{
    struct text_index *t = &((struct ngram *)base)->slot[slot];
    int band = band_of(t->match);

    assert(base->ops == &draft_ngram);
    if (k == 0)
        return;
    t->kept[band] = t->kept[band] * DECAY + a;
    t->tried[band] = t->tried[band] * DECAY + a + (a < k ? 1 : 0);
}

const struct drafter_ops draft_ngram = {
    .name = "ngram",
    .caps = DRAFTER_CONFIDENCES,
    .open = ngram_open,
    .states = draft_host_states,
    .weights = draft_host_weights,
    .ready = ngram_ready,
    .reset = ngram_reset,
    .observe = draft_host_observe,
    .stage = draft_host_stage,
    .propose = ngram_propose,
    .collect = draft_host_collect,
    .close = ngram_close,
};
