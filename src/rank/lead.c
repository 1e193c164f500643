/* lead.c owns the streams and everything about them that is decided; order.h tells the ranks. */
#include "src/rank/lead.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/model/tokenizer.h"
#include "src/rank/landing.h"
#include "src/verify/sampler.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*            lead_add            prompt done            finished
 *   IDLE ------------> PROMPT ---------------> DECODE ------------> IDLE
 */
enum stream_state { STREAM_IDLE, STREAM_PROMPT, STREAM_DECODE };

struct stream {
    enum stream_state state;
    struct request q;
    struct reply *out;
    struct landing landing;
    int filled; /* prompt tokens that have run */
    int pos;    /* of the pending token */
    int32_t pending;
    bool kept; /* the last round's commit is known to all */
    struct plan_commit commit;
    struct depth_history history;
    /* this round's drafts */
    int offered, k;
    int32_t draft[WINDOW_MAX];
    float p[WINDOW_MAX], q_of[WINDOW_MAX];
    double expect, lambda;
    int32_t cost_us;
};

struct lead {
    struct rounds *r;
    struct stream stream[SLOTS_MAX];
    struct conf_calibration conf;
    struct cost_table costs;
    bool priced, rounds_turn; /* after a prompt chunk, the streams that decode */
    struct plan_round plan;
};

void reply_free(struct reply *r)
{
    free(r->ids);
    text_free(&r->text);
    *r = (struct reply){ 0 };
}

int lead_open(struct rounds *r, struct lead **out)
{
    struct lead *l = calloc(1, sizeof(*l));

    if (!l)
        return fail(-ENOMEM, "lead: out of memory");
    l->r = r;
    *out = l;
    return 0;
}

void lead_close(struct lead *l)
{
    if (!l)
        return;
    for (int s = 0; s < SLOTS_MAX; s++)
        landing_free(&l->stream[s].landing);
    free(l);
}

void lead_costs(struct lead *l, const struct cost_table *t)
{
    l->costs = *t;
    l->priced = true;
}

struct rounds *lead_round(struct lead *l)
{
    return l->r;
}

bool lead_leaving(const struct lead *l)
{
    const struct rank *k = l->r->k;

    return atomic_load(&k->drain->asked) || (k->group && group_stopping(k->group));
}

/* ---- requests
 * ---------------------------------------------------------------------------------------- */

static void done(struct stream *s, enum finish f)
{
    s->out->finish = f;
    s->out->end_ns = clock_ns();
    landing_free(&s->landing);
    s->state = STREAM_IDLE;
}

static int admit(struct lead *l, int slot)
{
    struct stream *s = &l->stream[slot];
    struct plan_admit p = { .slot = slot,
                            .n = s->q.n,
                            .budget = s->landing.left,
                            .flags = (s->q.draft ? ADMIT_DRAFT : 0) |
                                     (s->q.ignore_end ? ADMIT_IGNORE_END : 0),
                            .sampler = s->q.sampler,
                            .ids = s->q.ids };
    int err = order_admit(l->r, &p);

    if (err < 0)
        return err;
    s->state = STREAM_PROMPT;
    s->filled = 0;
    s->pos = s->q.n - 1;
    s->pending = s->q.ids[s->q.n - 1];
    s->kept = true;
    return 0;
}

/* Special tokens have no text. */
static const char *bytes_of(const void *arg, int32_t tok, size_t *bytes)
{
    const struct tokenizer *t = (const struct tokenizer *)arg;

    return tokenizer_flags(t, tok) & TOKEN_SPECIAL ? NULL : tokenizer_bytes(t, tok, bytes);
}

static int free_slot(const struct lead *l)
{
    for (int slot = 0; slot < l->r->k->bounds.slots; slot++)
        if (l->stream[slot].state == STREAM_IDLE)
            return slot;
    return -1;
}

int lead_add(struct lead *l, const struct request *q, struct reply *out)
{
    const struct rank *k = l->r->k;
    int room = k->bounds.context - q->n, slot = free_slot(l);
    struct stream *s = &l->stream[slot < 0 ? 0 : slot];

    if (room < 0)
        return fail(-EINVAL, "prompt has %d tokens, the context holds %d", q->n, k->bounds.context);
    if (slot < 0)
        return 1;
    *s = (struct stream){ .q = *q, .out = out };
    s->q.draft = q->draft && k->drafter->block > 0 && k->cfg.depth != 0 && k->bounds.window_max > 1;
    s->landing = (struct landing){ .left = q->max_tokens < room ? q->max_tokens : room,
                                   .end = k->end,
                                   .ends = q->ignore_end ? 0 : k->ends,
                                   .bytes = bytes_of,
                                   .arg = k->tok,
                                   .text = &out->text };
    stop_init(&s->landing.scan, q->stop, q->stops);
    out->prompt_tokens = q->n;
    out->begin_ns = clock_ns();
    if (s->landing.left == 0) {
        done(s, FINISH_LENGTH);
        return 0;
    }
    out->ids = malloc((size_t)s->landing.left * sizeof(int32_t));
    if (!out->ids)
        return fail(-ENOMEM, "no memory for a reply of %d tokens", s->landing.left);
    s->landing.ids = out->ids;
    return admit(l, slot);
}

/* ---- prompts
 * ----------------------------------------------------------------------------------------- */

/* A drafter of the host knows the landed text, so it proposes while the plan is made and needs no pass. */
static bool passes(const struct lead *l)
{
    return l->r->k->drafter->ops->caps & DRAFTER_DEVICE;
}

static int first_pass(struct lead *l, int slot)
{
    struct stream *s = &l->stream[slot];
    struct plan_draft p = { .asks = 1, .ask = { { .slot = slot, .start = s->pos } } };

    s->state = STREAM_DECODE;
    return passes(l) && s->q.draft && s->landing.left > 1 ? order_draft(l->r, &p) : 0;
}

static int prompt_step(struct lead *l, int slot)
{
    struct stream *s = &l->stream[slot];
    int end = s->filled + l->r->k->bounds.prefill_chunk;
    struct plan_span p = { .slot = slot, .start = s->filled };
    int err = 0;

    p.end = end < s->q.n - 1 ? end : s->q.n - 1;
    if (p.end > p.start)
        err = order_fill(l->r, &p);
    if (err < 0)
        return err;
    s->filled = p.end;
    return s->filled == s->q.n - 1 ? first_pass(l, slot) : 0;
}

/* ---- drafts
 * ------------------------------------------------------------------------------------------ */

static void propose_here(struct lead *l, int slot)
{
    struct rank *k = l->r->k;
    struct seat *seat = &l->r->seat[slot];
    struct proposal p = { .n = 1, .slot = { slot }, .anchor = { l->stream[slot].pending } };

    k->drafter->ops->propose(k->drafter, &k->x, k->pool, &p, l->r->sampler);
    k->drafter->ops->collect(k->drafter, &p);
    seat->pass_ready = true;
    seat->drafts_n = p.len[0];
    memcpy(seat->draft, p.draft[0], sizeof(seat->draft));
    memcpy(seat->conf, p.conf[0], sizeof(seat->conf));
}

/* The newest drafts for this slot, cut to what may become text. */
static void offer(struct lead *l, int slot)
{
    const struct rank *k = l->r->k;
    const struct seat *seat = &l->r->seat[slot];
    struct stream *s = &l->stream[slot];
    int most = s->landing.left - 1;

    s->offered = 0;
    if (s->q.draft && !passes(l))
        propose_here(l, slot);
    if (!s->q.draft || !seat->pass_ready)
        return;
    if (most > k->bounds.window_max - 1)
        most = k->bounds.window_max - 1;
    for (int j = 0; j < seat->drafts_n && j < most; j++) {
        double chance = seat->conf[j];

        s->draft[j] = seat->draft[j];
        if (k->drafter->ops->caps & DRAFTER_CONFIDENCES)
            chance = conf_q(&l->conf, !sampler_greedy(&s->q.sampler), j, chance);
        s->p[j] = seat->conf[j];
        s->q_of[j] = (float)chance;
        s->offered = j + 1;
        /* Nothing behind an end token can land. */
        if (landing_is_end(&s->landing, s->draft[j]))
            break;
    }
}

static void choose_depth(struct lead *l, int slot, bool alone)
{
    const struct rank *k = l->r->k;
    struct stream *s = &l->stream[slot];
    double q[WINDOW_MAX];

    offer(l, slot);
    s->k = s->offered;
    s->expect = s->lambda = 0;
    s->cost_us = 0;
    if (k->cfg.depth != CONFIG_AUTO) {
        if (s->k > k->cfg.depth)
            s->k = k->cfg.depth;
        return;
    }
    if (!l->priced)
        return;
    for (int j = 0; j < s->offered; j++)
        q[j] = s->q_of[j];
    s->lambda = depth_lambda(&s->history, &l->costs);
    s->k = depth_choose(q, s->offered, s->lambda, &l->costs, &s->expect, &s->cost_us);
    if (s->k == 0 && s->offered > 0 && !alone)
        s->k = 1; /* a shared round has paid for the pass and the wider window already */
}

/* ---- what lands
 * ----------------------------------------------------------------------------------------- */

static void say(struct stream *s, size_t before)
{
    if (s->q.on_text && s->out->text.bytes > before)
        s->q.on_text(s->q.arg, s->out->text.s + before, s->out->text.bytes - before);
}

/* What the device accepted becomes text, up to the first token that ends the reply. */
static int land_window(struct lead *l, int slot, struct round_slot *rec)
{
    struct stream *s = &l->stream[slot];
    const struct seat *seat = &l->r->seat[slot];
    bool sampled = !sampler_greedy(&s->q.sampler);
    size_t before = s->out->text.bytes;
    enum finish f;
    int landed = landing_take(&s->landing, seat->choice, seat->n_ok, &f);

    if (landed < 0)
        return rank_broken(l->r->k, landed, "round %u: text", l->r->number - 1);
    s->out->last_ns = clock_ns();
    if (s->out->first_ns == 0)
        s->out->first_ns = s->out->last_ns;
    say(s, before);
    conf_note(&l->conf, sampled, s->p, s->k, seat->n_ok - 1);
    depth_note(&s->history, &l->costs, s->k + 1, s->q.draft && passes(l), landed);
    s->pos += landed;
    s->pending = seat->choice[landed - 1];
    s->kept = false;
    s->commit = (struct plan_commit){ .slot = slot,
                                      .keep = landed,
                                      .flags = (landed == seat->n_ok ? COMMIT_MATCHED : 0) |
                                               (f != FINISH_NONE ? COMMIT_STOPPED : 0),
                                      .next = s->pending };
    rec->landed = landed;
    rec->finish = f;
    rec->offered = s->offered;
    if (s->k == 0 && s->offered > 0)
        rec->skipped = seat->choice[0] == s->draft[0] ? SKIPPED_RIGHT : SKIPPED_WRONG;
    memcpy(rec->p, s->p, sizeof(rec->p));
    memcpy(rec->q, s->q_of, sizeof(rec->q));
    rec->expect = s->expect;
    rec->lambda = s->lambda;
    rec->cost_us = s->cost_us;
    s->out->n = s->landing.n;
    s->out->rounds++;
    tally_add(&s->out->sums,
              &(struct round_record){ .windows = 1, .rows = s->k + 1, .slot = { *rec } });
    return 0;
}

/* The slot of a reply that is over: the ranks learn what landed, then it is free. */
static int leave(struct lead *l, int slot, enum finish f)
{
    struct stream *s = &l->stream[slot];
    int err = 0;

    if (!s->kept)
        err = order_keep(l->r, &s->commit, 1);
    if (err == 0)
        err = order_release(l->r, slot);
    if (err == 0)
        done(s, f);
    return err;
}

/* ---- rounds
 * ------------------------------------------------------------------------------------------ */

static int decoding(const struct lead *l)
{
    int n = 0;

    for (int s = 0; s < SLOTS_MAX; s++)
        n += l->stream[s].state == STREAM_DECODE;
    return n;
}

static void plan_windows(struct lead *l)
{
    struct plan_round *p = &l->plan;
    bool alone = decoding(l) == 1;

    *p = (struct plan_round){ 0 };
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        struct stream *s = &l->stream[slot];

        if (s->state != STREAM_DECODE)
            continue;
        choose_depth(l, slot, alone);
        if (!s->kept)
            p->commit[p->commits++] = s->commit;
        s->kept = true;
        p->window[p->windows++] =
            (struct plan_window){ .slot = slot,
                                  .rows = s->k + 1,
                                  .pos = s->pos,
                                  .source = s->k ? SOURCE_DRAFTER : SOURCE_NONE };
        p->tok[p->rows++] = s->pending;
        memcpy(p->tok + p->rows, s->draft, (size_t)s->k * sizeof(int32_t));
        p->rows += s->k;
        /* A pass behind the window is of use only if a token can land behind its first one. */
        if (passes(l) && s->q.draft && s->landing.left > 2)
            p->ask[p->asks++] = (struct plan_ask){ .slot = slot, .start = s->pos };
    }
    p->arm = p->asks ? ARM_BEHIND : 0;
}

static int decode_step(struct lead *l)
{
    struct rounds *r = l->r;
    int64_t begin;
    int err;

    plan_windows(l);
    err = order_round(r, &l->plan);
    if (err < 0)
        return err;
    begin = clock_ns();
    for (int i = 0; i < l->plan.windows && err == 0; i++)
        err = land_window(l, l->plan.window[i].slot, &r->rec.slot[i]);
    if (err < 0)
        return err;
    r->rec.commit_ns = clock_ns() - begin;
    round_record_done(r);
    for (int i = 0; i < l->plan.windows && err == 0; i++)
        if (r->rec.slot[i].finish != FINISH_NONE)
            err = leave(l, l->plan.window[i].slot, r->rec.slot[i].finish);
    return err;
}

static int interrupt(struct lead *l)
{
    int err = 0;

    for (int slot = 0; slot < SLOTS_MAX && err == 0; slot++) {
        struct stream *s = &l->stream[slot];
        size_t before;

        if (s->state == STREAM_IDLE)
            continue;
        before = s->out->text.bytes;
        err = landing_cut(&s->landing);
        say(s, before);
        if (err == 0)
            err = leave(l, slot, FINISH_INTERRUPTED);
    }
    return err < 0 ? err : 1;
}

int lead_step(struct lead *l)
{
    bool decodes = decoding(l) > 0;

    if (lead_leaving(l))
        return interrupt(l);
    /* A prompt chunk and a round take turns. */
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        if (l->stream[slot].state != STREAM_PROMPT || (decodes && l->rounds_turn))
            continue;
        l->rounds_turn = true;
        return prompt_step(l, slot);
    }
    l->rounds_turn = false;
    return decodes ? decode_step(l) : 1;
}

int lead_run(struct lead *l)
{
    int err = 0;

    while (err == 0)
        err = lead_step(l);
    return err < 0 ? err : 0;
}
