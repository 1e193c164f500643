/* offer.c owns the order in which sources of drafts are asked, and what is learnt from a window. */
#include "src/rank/offer.h"

#include "src/base/log.h"
#include "src/draft/draft_ngram.h"
#include "src/verify/sampler.h"

#include <math.h>
#include <string.h>

#define PLAIN_ROUNDS 8 /* of those that copied nothing: what a copy is priced against */
#define LEFT_OF_USE 2  /* tokens that may land: with fewer, drafts have nothing to add */

void offers_open(struct offers *o, struct rounds *r)
{
    *o = (struct offers){ .r = r };
}

void offers_costs(struct offers *o, const struct cost_table *t)
{
    o->costs = *t;
    o->priced = o->r->k->cfg.depth == CONFIG_AUTO;
}

static bool device_drafter(const struct offers *o)
{
    return o->r->k->drafter->ops->caps & DRAFTER_DEVICE;
}

/* A drafter of the host knows the landed text: it proposes while the plan is made. */
static bool host_drafter(const struct offers *o)
{
    const struct rank *k = o->r->k;

    return k->drafter->block > 0 && k->drafter != k->copies && !device_drafter(o);
}

/* Copies beside another drafter have to be worth more than that one's drafts, so they need
 * prices. */
static bool copies(const struct offers *o)
{
    const struct rank *k = o->r->k;

    return k->copies && (o->priced || k->drafter->block == 0 || k->drafter == k->copies);
}

bool offer_drafts(const struct offers *o)
{
    const struct rank *k = o->r->k;

    return (k->drafter->block > 0 || k->copies) && k->cfg.depth != 0 && k->bounds.window_max > 1;
}

void offer_begin(struct offers *o, int slot, bool drafts, const struct sampler *s)
{
    drafts = drafts && offer_drafts(o);
    o->slot[slot] = (struct offer){ .drafts = drafts,
                                    .passes = drafts && device_drafter(o),
                                    .sampled = !sampler_greedy(s),
                                    .fresh = true,
                                    .due = true,
                                    .inputs = spec_inputs(s) };
    o->alarm[slot] = (struct slot_alarm){ 0 };
    spec_reset(&o->spec, slot);
}

void offer_end(struct offers *o, int slot)
{
    spec_reset(&o->spec, slot);
    o->slot[slot] = (struct offer){ 0 };
}

/* ---- sources --------------------------------------------------------------------------------- */

/* Drafts cut to what may become text: nothing can land behind an end token. */
static int cut(const struct offers *o, const struct offer_at *at, const int32_t *draft, int n)
{
    int most = at->left - 1, len = 0;

    if (most > o->r->k->bounds.window_max - 1)
        most = o->r->k->bounds.window_max - 1;
    while (len < n && len < most)
        if (landing_is_end(at->landing, draft[len++]))
            break;
    return len;
}

/* What a drafter of the host says, in its proposal of one slot. */
static int propose_here(struct offers *o, struct drafter *d, const struct offer_at *at,
                        struct proposal *p)
{
    struct rank *k = o->r->k;

    *p = (struct proposal){ .n = 1, .slot = { at->slot }, .anchor = { at->pending } };
    d->ops->propose(d, &k->x, k->pool, p, o->r->sampler);
    d->ops->collect(d, p);
    return cut(o, at, p->draft[0], p->len[0]);
}

static void take(struct offer *s, enum plan_source source, const int32_t *draft, const float *p,
                 int n)
{
    s->source = source;
    s->offered = n;
    memcpy(s->draft, draft, (size_t)n * sizeof(*draft));
    memcpy(s->p, p, (size_t)n * sizeof(*p));
    memcpy(s->q, p, (size_t)n * sizeof(*p));
}

static void take_drafts(struct offers *o, const struct offer_at *at)
{
    const struct rank *k = o->r->k;
    const struct seat *seat = &o->r->seat[at->slot];
    struct offer *s = &o->slot[at->slot];
    struct proposal p;

    if (s->passed && seat->pass_ready)
        take(s, SOURCE_DRAFTER, seat->draft, seat->conf, cut(o, at, seat->draft, seat->drafts_n));
    else if (host_drafter(o) && s->drafts) {
        int n = propose_here(o, k->drafter, at, &p);

        take(s, SOURCE_DRAFTER, p.draft[0], p.conf[0], n);
    }
    for (int j = 0; j < s->offered; j++)
        s->q[j] = (float)(k->drafter->ops->caps & DRAFTER_CONFIDENCES
                              ? conf_q(&o->conf, s->sampled, j, (double)s->p[j])
                              : means_q(&s->means, at->alone, j));
}

/* ---- depth ----------------------------------------------------------------------------------- */

static void as_chances(const struct offer *s, double q[WINDOW_MAX])
{
    for (int j = 0; j < s->offered; j++)
        q[j] = (double)s->q[j];
}

static int price(struct offers *o, const struct offer_at *at)
{
    const struct rank *k = o->r->k;
    struct offer *s = &o->slot[at->slot];
    double q[WINDOW_MAX];
    int n;

    as_chances(s, q);
    s->lambda = depth_lambda(&s->history, &o->costs);
    n = depth_choose(q, s->offered, s->lambda, &o->costs, NULL, NULL);
    if (s->passed)
        pass_note(&s->skip, depth_gain(q, s->offered, s->lambda, &o->costs), s->lambda,
                  o->costs.draft_us[1]);
    if (s->offered > 0 && !(k->drafter->ops->caps & DRAFTER_CONFIDENCES) && means_probe(&s->means))
        return s->offered;
    /* A shared round has paid for the pass and the wider window already. */
    return n == 0 && s->offered > 0 && !at->alone ? 1 : n;
}

int offer_most(const struct offers *o, int slot, bool alone)
{
    const struct drafter *d = o->r->k->drafter;
    const struct offer *s = &o->slot[slot];
    double q[WINDOW_MAX];
    int most;

    if (!(d->ops->caps & DRAFTER_CHAIN) || !o->priced || means_probe(&s->means))
        return 0;
    for (int j = 0; j < d->block; j++)
        q[j] = means_q(&s->means, alone, j);
    most = depth_chain(q, d->block, depth_lambda(&s->history, &o->costs),
                       o->costs.draft_us[1] / d->block, &o->costs);
    return most > 0 ? most : 1;
}

/* A copy is taken for what it earns over the model's drafts, both at the rate of rounds without
 * copies. */
static void choose_copy(struct offers *o, const struct offer_at *at)
{
    struct rank *k = o->r->k;
    struct offer *s = &o->slot[at->slot];
    double q[WINDOW_MAX], lambda, expect, alternative;
    int32_t us;
    int depth;

    if (s->copies == 0)
        return;
    if (!o->priced) {
        take(s, SOURCE_COPY, s->copy, s->copy_p, s->copies);
        s->k = s->copies;
        return;
    }
    lambda = depth_lambda_last(&s->plain, &o->costs, PLAIN_ROUNDS);
    as_chances(s, q);
    depth_choose(q, s->offered, lambda, &o->costs, &expect, &us);
    alternative = expect - lambda * us;
    for (int j = 0; j < s->copies; j++)
        q[j] = (double)s->copy_p[j];
    depth = ngram_depth(k->copies, at->slot, q, s->copies, lambda, &o->costs, alternative);
    if (depth == 0)
        return;
    take(s, SOURCE_COPY, s->copy, s->copy_p, s->copies);
    s->k = depth;
    s->lambda = lambda;
}

/* A slot that has begun to copy goes on copying, without draft passes, as long as copies alone earn
 * more than a window without drafts. */
static bool copy_goes_on(const struct offers *o, const struct offer *s)
{
    double q[WINDOW_MAX];

    if (!s->copied || s->copies == 0)
        return false;
    for (int j = 0; j < s->copies; j++)
        q[j] = (double)s->copy_p[j];
    return depth_gain(q, s->copies, depth_lambda_last(&s->plain, &o->costs, PLAIN_ROUNDS),
                      &o->costs) > 0;
}

/* What the text offers this round: looked for once. */
static void find_copies(struct offers *o, const struct offer_at *at)
{
    struct offer *s = &o->slot[at->slot];
    struct proposal p;

    s->copies = 0;
    if (!s->drafts || at->left < LEFT_OF_USE || !copies(o))
        return;
    s->copies = propose_here(o, o->r->k->copies, at, &p);
    memcpy(s->copy, p.draft[0], sizeof(s->copy));
    memcpy(s->copy_p, p.conf[0], sizeof(s->copy_p));
}

bool offer_need(struct offers *o, const struct offer_at *at)
{
    struct offer *s = &o->slot[at->slot];

    find_copies(o, at);
    s->spec = SPEC_OFF;
    s->passed = false;
    if (!s->passes || !s->due || at->left < LEFT_OF_USE || copy_goes_on(o, s)) {
        spec_drop(&o->spec, at->slot);
        return false;
    }
    s->passed = true;
    if (!o->r->k->cfg.spec_draft || s->fresh || s->copied)
        return true;
    s->spec = spec_take(&o->spec, at->slot, at->pending, at->pos, s->inputs);
    return s->spec != SPEC_USED;
}

void offer_choose(struct offers *o, const struct offer_at *at)
{
    const struct rank *k = o->r->k;
    struct offer *s = &o->slot[at->slot];

    s->source = SOURCE_NONE;
    s->offered = s->k = 0;
    s->lambda = 0;
    if (!s->drafts || at->left < LEFT_OF_USE)
        return;
    take_drafts(o, at);
    s->k = o->priced ? price(o, at) : s->offered;
    choose_copy(o, at);
    if (k->cfg.depth != CONFIG_AUTO && s->k > k->cfg.depth)
        s->k = k->cfg.depth;
    if (o->depth && s->offered > 0)
        s->k = o->depth(o->arg, at->slot, s->offered);
}

void offer_fill(struct offers *o, const int *slot, int n, int bucket)
{
    struct depth_share share[SLOTS_MAX];
    double q[SLOTS_MAX][WINDOW_MAX];

    if (!o->priced || o->depth || n < 2)
        return;
    for (int i = 0; i < n; i++) {
        const struct offer *s = &o->slot[slot[i]];
        int tokens = 0;

        as_chances(s, q[i]);
        for (int j = 0; j < s->history.n; j++)
            tokens += s->history.tokens[j];
        share[i] = (struct depth_share){ .q = q[i],
                                         .offered = s->offered,
                                         .k = s->k,
                                         .rate = s->history.n ? (double)tokens / s->history.n : 0 };
    }
    depth_fill(share, n, bucket, &o->costs);
    for (int i = 0; i < n; i++)
        o->slot[slot[i]].k = share[i].k;
}

/* ---- the pass behind the windows ------------------------------------------------------------- */

unsigned offer_ask(struct offers *o, const struct offer_at *at, int n)
{
    uint64_t inputs[SLOTS_MAX];
    int start[SLOTS_MAX];
    unsigned may = 0, asks;

    for (int i = 0; i < n; i++) {
        struct offer *s = &o->slot[at[i].slot];

        start[at[i].slot] = at[i].pos;
        inputs[at[i].slot] = s->inputs;
        if (!s->passes)
            continue;
        /* The next round has one token less to land, and the slot may have gone on without
         * passes. */
        s->due = at[i].left > LEFT_OF_USE && (!o->priced || pass_wanted(&s->skip));
        if (s->due && s->source != SOURCE_COPY)
            may |= 1u << at[i].slot;
    }
    if (!o->r->k->cfg.spec_draft)
        return 0;
    asks = spec_wants(&o->spec, may);
    /* Cannot be refused: the last pass was collected when its round ended. */
    spec_launch(&o->spec, asks, start, inputs);
    return asks;
}

void offer_ran(struct offers *o, const int *slot, int n)
{
    for (int i = 0; i < n; i++) {
        const struct seat *seat = &o->r->seat[slot[i]];

        /* Of a slot that its candidates left undecided no pass was collected. */
        spec_outcome(&o->spec, slot[i], seat->pass_ready ? seat->n_ok : 0, seat->next);
    }
    spec_collected(&o->spec);
}

/* ---- evidence -------------------------------------------------------------------------------- */

static void watch_drafts(struct offers *o, int slot, int a)
{
    const struct rank *k = o->r->k;
    struct offer *s = &o->slot[slot];
    char line[256];

    watch_note(&o->watch, s->sampled, s->offered, s->k, a);
    switch (watch_verdict(&o->watch, k->drafter->ops->name, line, sizeof(line))) {
    case WATCH_QUIET:
        break;
    case WATCH_FINE:
        log_info("%s", line);
        break;
    case WATCH_LOW:
    case WATCH_SILENT:
        log_warn("%s", line);
        break;
    }
    if (alarm_note(o->alarm, slot, s->k, a, s->passes && o->r->seat[slot].bad)) {
        log_warn("draft %s: slot %d goes on without drafts, they have stopped being of use",
                 k->drafter->ops->name, slot);
        s->drafts = s->passes = false;
    }
}

/* Of the depth that ran: a shared round, padding or a gate may have taken another than its price
 * says. */
static void note_price(const struct offers *o, const struct offer *s, struct round_slot *rec)
{
    double q[WINDOW_MAX];

    rec->lambda = s->lambda;
    if (!(s->lambda > 0))
        return;
    as_chances(s, q);
    rec->expect = depth_expect(q, s->k);
    rec->cost_us = cost_window(&o->costs, s->k + 1);
}

void offer_landed(struct offers *o, int slot, bool alone, int landed, struct round_slot *rec)
{
    const struct rank *k = o->r->k;
    const struct seat *seat = &o->r->seat[slot];
    struct offer *s = &o->slot[slot];
    int a = seat->n_ok - 1;

    spec_commit(&o->spec, slot, landed, seat->choice[landed - 1]);
    rec->offered = s->offered;
    if (s->k == 0 && s->offered > 0)
        rec->skipped = seat->choice[0] == s->draft[0] ? SKIPPED_RIGHT : SKIPPED_WRONG;
    memcpy(rec->p, s->p, sizeof(rec->p));
    memcpy(rec->q, s->q, sizeof(rec->q));
    note_price(o, s, rec);
    if (!s->drafts)
        return;
    if (s->source == SOURCE_DRAFTER) {
        if (k->drafter->ops->caps & DRAFTER_CONFIDENCES)
            conf_note(&o->conf, s->sampled, s->p, s->k, a);
        else
            means_note(&s->means, alone, s->k, a);
    }
    if (s->source == SOURCE_COPY)
        ngram_note(k->copies, slot, s->k, a);
    else
        depth_note(&s->plain, &o->costs, s->k + 1, s->passed, landed);
    depth_note(&s->history, &o->costs, s->k + 1, s->passed, landed);
    s->copied = s->source == SOURCE_COPY;
    if (s->passed) {
        s->fresh = false;
        watch_drafts(o, slot, a);
    }
}
