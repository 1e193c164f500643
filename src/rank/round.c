/* round.c owns what a rank does for each order, its share of the log and its comparison with rank
 * 0. */
#include "src/rank/round.h"

#include "kernels/backend.h"
#include "src/base/clock.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/model/slot.h"
#include "src/model/window.h"
#include "src/rank/parts.h"
#include "src/rank/report.h"
#include "src/transport/comm.h"
#include "src/verify/accept.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_log(struct rounds *r)
{
    const struct rank *k = r->k;
    char numerics[16] = "";

    config_get(&k->cfg, "numerics", numerics, sizeof(numerics));
    return roundlog_open(k->cfg.log,
                         &(struct roundlog_about){ .rank = k->cfg.rank,
                                                   .ranks = k->cfg.ranks,
                                                   .model = k->cfg.model,
                                                   .family = k->model->ops->name,
                                                   .drafter = k->drafter->ops->name,
                                                   .backend = k->dev->ops->name,
                                                   .link = k->group ? k->cfg.link : "none",
                                                   .numerics = numerics },
                         &r->log);
}

/* On the thread of the signals. */
static void report_now(void *arg)
{
    const struct rounds *r = (const struct rounds *)arg;
    struct tally t = roundlog_sums(r->log);

    log_rank(r->k->cfg.rank);
    report_sums(&t);
    if (t.rounds == 0)
        log_info("report: no rounds yet");
    log_rank(-1);
}

int round_open(struct rank *k, enum exit_step *step, struct rounds **out)
{
    struct rounds *r = calloc(1, sizeof(*r));
    int err = 0;

    *step = STEP_DEVICE;
    if (!r)
        return fail(-ENOMEM, "round: out of memory");
    r->k = k;
    r->digest = FNV1A64_INIT;
    r->word = malloc(plan_words(&k->bounds) * sizeof(*r->word));
    for (int s = 0; s < k->bounds.slots; s++) {
        r->seat[s].prompt = malloc((size_t)k->bounds.context * sizeof(int32_t));
        if (!r->seat[s].prompt)
            err = -ENOMEM;
    }
    if (!r->word || err < 0) {
        round_close(r);
        return fail(-ENOMEM, "round: no memory for prompts of %d tokens", k->bounds.context);
    }
    err = parts_open(k, r->sampler, &r->parts);
    if (err == 0)
        err = parts_warm(r->parts);
    if (err < 0 && comm_check(k->comm) < 0)
        *step = STEP_ROUND;
    if (err == 0) {
        *step = STEP_WRITE;
        err = open_log(r);
    }
    if (err < 0) {
        round_close(r);
        return err;
    }
    drain_report(k->drain, report_now, r);
    *out = r;
    return 0;
}

int round_close(struct rounds *r)
{
    int err;

    if (!r)
        return 0;
    drain_unreport(r->k->drain, r);
    window_cancel(r->k->win); /* graphs close behind the device */
    if (r->log)
        report_sums(&r->tally);
    err = roundlog_close(r->log);
    parts_close(r->parts);
    for (int s = 0; s < SLOTS_MAX; s++)
        free(r->seat[s].prompt);
    free(r->word);
    free(r);
    return err;
}

/* ---- shared steps ---------------------------------------------------------------------------- */

/* Rank 0 never sends this: the order and this rank's state do not fit together. */
__attribute__((format(printf, 4, 5))) static int refuse(struct rounds *r, enum plan_op op, int slot,
                                                        const char *fmt, ...)
{
    char why[160];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    fail(-EPROTO, "plan: %s of slot %d: %s", plan_op_name(op), slot, why);
    return rank_broken(r->k, -EPROTO, "round %u: %s of slot %d: %s", r->number, plan_op_name(op),
                       slot, why);
}

static void enter(struct rounds *r, enum phase p)
{
    progress_phase(&r->k->progress, p);
}

static int settle(struct rounds *r, const char *what)
{
    struct rank *k = r->k;
    int err;

    enter(r, PHASE_WAIT);
    err = k->q->ops->wait(k->q);
    if (err == 0)
        err = comm_check(k->comm);
    if (err < 0)
        return rank_broken(k, err, "round %u: %s", r->number, what);
    return 0;
}

/* What the host does before a window can run. */
static int stage(struct rounds *r)
{
    struct rank *k = r->k;
    int err;

    enter(r, PHASE_STAGE);
    err = k->model->ops->stage(k->model, k->pool, k->rows, k->win);
    if (err == 0)
        err = window_note(k->pool, k->win);
    if (err < 0)
        return rank_broken(k, err, "round %u: staging", r->number);
    if (k->dev->ops->caps & BACKEND_HOST_MEMORY)
        window_ask(k->win); /* a device begins before its rows are asked for */
    accept_stage(k->acc, &k->x, k->pool, k->win, r->sampler);
    return 0;
}

static int run_parts(struct rounds *r, const struct parts_order *o, struct parts_ran *ran)
{
    int err = parts_run(r->parts, o, ran);

    return err < 0 ? rank_broken(r->k, err, "round %u: graphs", r->number) : 0;
}

static void observe(struct rounds *r)
{
    struct rank *k = r->k;

    enter(r, PHASE_OBSERVE);
    k->arena.used = 0;
    k->drafter->ops->observe(k->drafter, &k->x, k->pool, k->win);
}

static void ask_for(struct rounds *r, const struct plan_ask *ask, int n)
{
    r->pass = (struct proposal){ .n = n };
    for (int i = 0; i < n; i++) {
        r->pass.slot[i] = ask[i].slot;
        r->pass.most = ask[i].most > r->pass.most ? ask[i].most : r->pass.most;
    }
}

/* The next window begins with the slot's pending token, then come some of these drafts: their
 * n-gram rows are read while the rest of the round goes on. What cannot be read is said when a
 * window needs it. */
static void warm(struct rounds *r, int slot)
{
    const struct rank *k = r->k;
    const struct seat *s = &r->seat[slot];
    int32_t tok[WINDOW_MAX];
    int n = 1;

    tok[0] = k->pool->pos[slot] == s->n - 1 ? s->prompt[s->n - 1] : s->next;
    while (n <= s->drafts_n && n < k->bounds.window_max) {
        tok[n] = s->draft[n - 1];
        n++;
    }
    k->model->ops->warm(k->model, k->pool, k->rows, slot, tok, 0, n);
}

/* What a pass proposed; the result is the time that asking for rows took. */
static int64_t collect(struct rounds *r)
{
    struct rank *k = r->k;
    int64_t begin;

    if (r->pass.n == 0)
        return 0;
    k->drafter->ops->collect(k->drafter, &r->pass);
    begin = clock_ns();
    for (int i = 0; i < r->pass.n; i++) {
        struct seat *s = &r->seat[r->pass.slot[i]];

        s->pass_ready = true;
        s->drafts_n = r->pass.len[i];
        memcpy(s->draft, r->pass.draft[i], sizeof(s->draft));
        memcpy(s->conf, r->pass.conf[i], sizeof(s->conf));
        s->bad = r->pass.bad[i];
        /* A device would stand still meanwhile: there the window asks for its rows when it runs. */
        if (k->dev->ops->caps & BACKEND_HOST_MEMORY)
            warm(r, r->pass.slot[i]);
    }
    return clock_ns() - begin;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The prompt's last token is the pending one: no window has chosen it. */
static void set_pending(struct rounds *r, int slot)
{
    const struct seat *s = &r->seat[slot];

    slot_set_next(r->k->pool, r->k->q, slot, s->prompt[s->n - 1]);
}

int round_admit(struct rounds *r, const struct plan_admit *p)
{
    struct rank *k = r->k;
    struct seat *s = &r->seat[p->slot];
    int slot;

    if (s->taken || slot_take(k->pool, k->q, p->slot, &slot) != 0)
        return refuse(r, PLAN_ADMIT, p->slot, "the slot is taken");
    s->taken = true;
    s->drafts = p->flags & ADMIT_DRAFT;
    s->open = false;
    s->n = p->n;
    if (s->prompt != p->ids)
        memcpy(s->prompt, p->ids, (size_t)p->n * sizeof(int32_t));
    r->sampler[p->slot] = p->sampler;
    r->sampler[p->slot].prompt = p->n;
    accept_admit(k->acc, &k->x, p->slot, &r->sampler[p->slot], p->bias);
    s->pass_ready = false;
    r->follows_round = false;
    k->arena.used = 0;
    k->drafter->ops->reset(k->drafter, &k->x, k->pool, p->slot, 0);
    if (k->copies && k->copies != k->drafter)
        k->copies->ops->reset(k->copies, &k->x, k->pool, p->slot, 0);
    if (s->n == 1)
        set_pending(r, p->slot);
    return settle(r, "admitting");
}

/* Known rows start .. end - 1 of a prompt; 1 if the order does not fit. */
static int known_window(struct rounds *r, const struct plan_span *p, int most, bool head)
{
    struct rank *k = r->k;
    const struct seat *s = &r->seat[p->slot];

    if (!s->taken || p->start != k->pool->pos[p->slot] || p->end > most)
        return 1;
    window_clear(k->win);
    if (window_add(k->win, p->slot, s->prompt + p->start, p->end - p->start, SEG_KNOWN) < 0)
        return 1;
    k->win->head = head;
    return 0;
}

static void run_known(struct rounds *r)
{
    struct rank *k = r->k;

    enter(r, PHASE_WINDOW);
    k->arena.used = 0;
    window_send(&k->x, k->pool, k->win);
    k->model->ops->forward(k->model, &k->x, k->pool, k->win);
    accept_window(k->acc, &k->x, k->win);
    slot_commit(&k->x, k->pool, k->win);
}

/* The n-gram rows of the chunk behind this one are read while this one runs. */
static void warm_chunk(struct rounds *r, const struct plan_span *p)
{
    const struct rank *k = r->k;
    const struct seat *s = &r->seat[p->slot];
    int end = p->end + k->bounds.prefill_chunk;

    if (end > s->n)
        end = s->n;
    k->model->ops->warm(k->model, k->pool, k->rows, p->slot, s->prompt + p->start,
                        p->end - p->start, end - p->start);
}

int round_fill(struct rounds *r, const struct plan_span *p)
{
    struct rank *k = r->k;
    const struct seat *s = &r->seat[p->slot];
    int64_t begin = clock_ns();
    int err;

    if (known_window(r, p, s->n - 1, false))
        return refuse(r, PLAN_FILL, p->slot, "rows %d .. %d of %d at position %d", p->start, p->end,
                      s->n, k->pool->pos[p->slot]);
    err = stage(r);
    if (err < 0)
        return err;
    window_ask(k->win); /* before those of the next chunk */
    warm_chunk(r, p);
    run_known(r);
    if (s->drafts)
        observe(r);
    if (p->end == s->n - 1)
        set_pending(r, p->slot);
    window_fetch(&k->x, k->win);
    err = settle(r, "prompt");
    if (err < 0)
        return err;
    slot_sync(k->pool, k->win);
    comm_stats_take(k->comm);
    r->follows_round = false;
    r->prompt_rows += p->end - p->start;
    r->prompt_ns += clock_ns() - begin;
    return 0;
}

int round_score(struct rounds *r, const struct plan_span *p, score_fn *fn, void *arg)
{
    struct rank *k = r->k;
    float *logits;
    int err;

    if (known_window(r, p, r->seat[p->slot].n, true))
        return refuse(r, PLAN_SCORE, p->slot, "rows %d .. %d at position %d", p->start, p->end,
                      k->pool->pos[p->slot]);
    logits = malloc((size_t)k->model->vocab * sizeof(float));
    if (!logits)
        return rank_broken(k, fail(-ENOMEM, "score: no memory for a row of logits"), "scoring");
    err = stage(r);
    if (err == 0) {
        run_known(r);
        window_fetch(&k->x, k->win);
        err = settle(r, "scoring");
    }
    for (int i = 0; i < p->end - p->start && err == 0; i++) {
        err = accept_logits(k->acc, &k->x, k->win, i, logits);
        if (err < 0)
            rank_broken(k, err, "scoring position %d", p->start + i);
        else if (fn)
            fn(arg, p->start + i, logits);
    }
    free(logits);
    if (err < 0)
        return err;
    slot_sync(k->pool, k->win);
    return 0;
}

int round_draft(struct rounds *r, const struct plan_draft *p)
{
    const struct rank *k = r->k;
    int64_t begin = clock_ns();
    struct parts_ran ran;
    int err;

    for (int i = 0; i < p->asks; i++)
        if (!r->seat[p->ask[i].slot].drafts || p->ask[i].start != k->pool->pos[p->ask[i].slot])
            return refuse(r, PLAN_DRAFT, p->ask[i].slot, "start %d, position %d", p->ask[i].start,
                          k->pool->pos[p->ask[i].slot]);
    ask_for(r, p->ask, p->asks);
    err = run_parts(r, &(struct parts_order){ .pass = &r->pass }, &ran);
    if (err == 0)
        err = settle(r, "draft pass");
    if (err < 0)
        return err;
    collect(r);
    comm_stats_take(r->k->comm);
    r->proposed += p->asks * k->drafter->block;
    /* Between two rounds it is part of the second one's time, else of what the prompt took. */
    *(r->follows_round ? &r->pass_ns : &r->prompt_ns) += clock_ns() - begin;
    return 0;
}

int round_release(struct rounds *r, int slot)
{
    struct seat *s = &r->seat[slot];

    if (!s->taken || s->open)
        return refuse(r, PLAN_RELEASE, slot, "%s",
                      s->taken ? "its last round is not kept" : "it is free");
    s->taken = false;
    r->follows_round = false;
    slot_drop(r->k->pool, slot);
    return 0;
}

/* Rows of the slots' prompts behind what has run of them, or passes that begin there. */
static int calibrated_window(struct rounds *r, const struct plan_calibrate *p)
{
    struct rank *k = r->k;

    window_clear(k->win);
    for (int slot = 0; slot < p->slots; slot++) {
        const struct seat *s = &r->seat[slot];
        int pos = k->pool->pos[slot];

        if (!s->taken || s->open || pos + (p->rows ? p->rows : 1) > s->n)
            return refuse(r, PLAN_CALIBRATE, slot, "%d rows at %d of a prompt of %d", p->rows, pos,
                          s->taken ? s->n : 0);
        if (p->rows && window_add(k->win, slot, s->prompt + pos, p->rows, 0) < 0)
            return refuse(r, PLAN_CALIBRATE, slot, "%d rows", p->rows);
        if (!p->rows)
            slot_set_next(k->pool, k->q, slot, s->prompt[pos]);
    }
    k->win->head = true;
    return 0;
}

int round_calibrate(struct rounds *r, const struct plan_calibrate *p, int64_t *ns)
{
    struct rank *k = r->k;
    struct plan_ask ask[SLOTS_MAX];
    struct parts_order o = { .window = true, .dropped = true };
    struct parts_ran ran;
    int64_t begin;
    int err = calibrated_window(r, p);

    if (err < 0)
        return err;
    for (int slot = 0; slot < p->slots; slot++)
        ask[slot] = (struct plan_ask){ .slot = slot };
    begin = clock_ns();
    if (p->flags & CALIBRATE_PASS) {
        ask_for(r, ask, p->slots);
        o = (struct parts_order){ .pass = &r->pass };
    } else {
        window_pad(k->win, parts_bucket(r->parts, k->win->rows, p->rows));
        err = stage(r);
    }
    if (err == 0)
        err = run_parts(r, &o, &ran);
    if (err == 0)
        err = settle(r, "calibrating");
    if (err < 0)
        return err;
    *ns = clock_ns() - begin;
    comm_stats_take(k->comm);
    r->follows_round = false;
    r->tally = (struct tally){ 0 }; /* what ran to measure is no part of the sums */
    r->prompt_rows = r->prompt_ns = r->proposed = r->pass_ns = 0;
    return 0;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Rank 0's word about a window against this rank's own outcome. */
static int compare(struct rounds *r, const struct plan_commit *c)
{
    const struct seat *s = &r->seat[c->slot];
    bool matched = c->flags & COMMIT_MATCHED;
    uint32_t last = r->number - 1;

    if (!s->open)
        return refuse(r, PLAN_KEEP, c->slot, "no window waits for it");
    if (matched ? c->keep == s->n_ok && c->next == s->next
                : c->keep < s->n_ok && c->next == s->choice[c->keep - 1])
        return 0;
    return rank_broken(r->k,
                       fail(-EPROTO,
                            "round %u slot %d: rank 0 kept %d%s and goes on with token %d, rank %d "
                            "accepted %d and goes on with %d",
                            last, c->slot, c->keep, matched ? "" : " of more", c->next,
                            r->k->cfg.rank, s->n_ok,
                            c->keep <= s->n_ok ? s->choice[c->keep - 1] : s->next),
                       "round %u slot %d: ranks differ, rank 0 %d tokens to %d, rank %d %d to %d",
                       last, c->slot, c->keep, c->next, r->k->cfg.rank, s->n_ok, s->next);
}

/* How much later than rank 0 this rank started the last window. */
static void note_lag(struct rounds *r, int64_t leader_start_ns)
{
    const struct clocks *c = &r->k->clocks;

    r->rec.lag_known = c->known && r->rec_open && leader_start_ns > 0;
    if (r->rec.lag_known)
        r->rec.lag_ns = r->start_ns - (leader_start_ns + c->ahead_ns);
}

int round_keep(struct rounds *r, const struct plan_keep *p)
{
    struct rank *k = r->k;
    bool waits = false;

    for (int i = 0; i < p->commits; i++) {
        const struct plan_commit *c = &p->commit[i];
        struct seat *s = &r->seat[c->slot];
        int err = compare(r, c);

        if (err < 0)
            return err;
        if (c->keep < s->n_ok) {
            slot_set(k->pool, k->q, c->slot, s->before + c->keep);
            slot_set_next(k->pool, k->q, c->slot, c->next);
            s->pass_ready = false;
        }
        s->open = false;
        r->rec.slot[s->record_slot].landed = c->keep;
    }
    if (p->digest != r->digest)
        return rank_broken(
            k,
            fail(-EPROTO, "round %u: outcomes digest to %016llx on rank 0, %016llx here",
                 r->number - 1, (unsigned long long)p->digest, (unsigned long long)r->digest),
            "round %u: outcome digests differ on rank %d", r->number - 1, k->cfg.rank);
    note_lag(r, p->start_ns);
    for (int s = 0; s < k->bounds.slots; s++)
        waits |= r->seat[s].open;
    if (r->rec_open && !waits)
        round_record_done(r);
    return 0;
}

void round_record_done(struct rounds *r)
{
    tally_add(&r->tally, &r->rec);
    roundlog_put(r->log, &r->rec);
    r->rec_open = false;
}

int round_bucket(const struct rounds *r, const struct plan_round *p)
{
    return parts_bucket(r->parts, p->rows, p->window[p->windows - 1].rows);
}

static int build_window(struct rounds *r, const struct plan_round *p)
{
    struct rank *k = r->k;
    int at = 0;

    window_clear(k->win);
    k->win->head = true;
    r->rec = (struct round_record){ .round = r->number,
                                    .windows = p->windows,
                                    .rows = p->rows,
                                    .bucket = p->row_bucket ? p->row_bucket : p->rows,
                                    .prompt_rows = r->prompt_rows,
                                    .prompt_ns = r->prompt_ns,
                                    .proposed = r->proposed + p->asks * k->drafter->block };
    r->rec_open = true;
    r->rec.draft_ns = r->pass_ns;
    r->prompt_rows = r->prompt_ns = r->proposed = r->pass_ns = 0;
    for (int i = 0; i < p->windows; i++) {
        const struct plan_window *w = &p->window[i];
        struct seat *s = &r->seat[w->slot];

        if (!s->taken || s->open || w->pos != k->pool->pos[w->slot] || w->pos < s->n - 1)
            return refuse(r, PLAN_ROUND, w->slot, "window at %d, the slot is at %d%s", w->pos,
                          k->pool->pos[w->slot], s->open ? " and its last one is not kept" : "");
        if (window_add(k->win, w->slot, p->tok + at, w->rows, 0) < 0)
            return refuse(r, PLAN_ROUND, w->slot, "%d rows", w->rows);
        at += w->rows;
        s->before = w->pos;
        s->record_slot = i;
        s->pass_ready = false;
        r->rec.slot[i] = (struct round_slot){
            .slot = w->slot, .pos = w->pos, .k = w->rows - 1, .source = w->source
        };
        if (w->pos + w->rows - 1 > r->rec.ctx)
            r->rec.ctx = w->pos + w->rows - 1;
    }
    for (int i = 0; i < p->asks; i++)
        if (!r->seat[p->ask[i].slot].drafts)
            return refuse(r, PLAN_ROUND, p->ask[i].slot,
                          "a pass for a request that does not draft");
    if (p->row_bucket != round_bucket(r, p))
        return refuse(r, PLAN_ROUND, p->window[0].slot, "%d rows as %d, here as %d", p->rows,
                      p->row_bucket, round_bucket(r, p));
    window_pad(k->win, p->row_bucket);
    return 0;
}

/* A request that drafts is observed in every window, whether or not a pass follows. */
static bool any_drafts(const struct rounds *r)
{
    const struct window *w = r->k->win;

    for (int i = 0; i < w->segs; i++)
        if (r->seat[w->seg[i].slot].drafts)
            return true;
    return false;
}

static int stage_timed(struct rounds *r)
{
    int64_t begin = clock_ns();
    int err;

    r->k->win->brought_ns = 0;
    err = stage(r);
    r->rec.stage_ns = clock_ns() - begin;
    return err;
}

/* Behind the wait: what the window's n-gram rows took. On a host the window stood still
 * meanwhile. */
static void note_rows(struct rounds *r)
{
    const struct rank *k = r->k;
    struct round_record *rec = &r->rec;
    struct row_store_stats now;

    k->rows->ops->stats(k->rows, &now);
    rec->engram_rows = (int64_t)(now.rows - r->rows.rows);
    rec->engram_hits = (int64_t)(now.hits + now.joined - r->rows.hits - r->rows.joined);
    rec->engram_reads = (int64_t)(now.reads - r->rows.reads);
    rec->engram_waits = (int64_t)(now.waits - r->rows.waits);
    r->rows = now;
    if (k->dev->ops->caps & BACKEND_HOST_MEMORY) {
        rec->engram_ns = k->win->brought_ns;
        rec->window_ns -= rec->engram_ns;
    } else {
        rec->bring_ns = k->win->brought_ns;
    }
}

/* The queue's part of a round, and what the device's clock says about it. */
static int run_window(struct rounds *r, const struct plan_round *p)
{
    struct rank *k = r->k;
    struct round_record *rec = &r->rec;
    const int64_t *at = k->win->stamp;
    bool drafts = any_drafts(r), early = k->cfg.early_ingest;
    struct parts_order o = { .window = true,
                             .observe = drafts && !early,
                             .ingest = drafts && early };
    struct parts_ran ran;
    int64_t begin = clock_ns(), passed = rec->draft_ns, launched, end;
    int err;

    ask_for(r, p->ask, p->asks);
    o.pass = p->asks ? &r->pass : NULL;
    r->start_ns = begin;
    err = run_parts(r, &o, &ran);
    if (err < 0)
        return err;
    launched = clock_ns();
    err = settle(r, "window");
    rec->mode = ran.mode;
    rec->window_wait_ns = (int64_t)ran.window_wait_ns;
    rec->choose_wait_ns = (int64_t)ran.choose_wait_ns;
    rec->window_ns = at[STAMP_FORWARD] - at[STAMP_BEGIN];
    rec->choose_ns = at[STAMP_CHOSEN] - at[STAMP_FORWARD];
    end = at[STAMP_CHOSEN];
    if (o.observe) {
        rec->ingest_ns = at[STAMP_INGESTED] - end;
        end = at[STAMP_INGESTED];
    }
    if (o.pass) {
        rec->draft_ns += at[STAMP_DRAFTED] - end;
        end = at[STAMP_DRAFTED];
    }
    rec->idle_ns = r->follows_round ? at[STAMP_BEGIN] - r->device_end_ns - passed : 0;
    r->device_end_ns = end;
    note_rows(r);
    if (k->dev->ops->caps & BACKEND_HOST_MEMORY) {
        rec->draft_wait_ns = clock_ns() - launched; /* nothing is launched: a call has run */
    } else {
        rec->launch_ns = launched - begin;
        rec->window_wait_ns = (int64_t)k->comm->stats.wait_ns;
    }
    return err;
}

/* The candidates left a slot undecided. A pass that ran behind the window began where the slot was
 * before, so nobody uses it. */
static int resolve(struct rounds *r)
{
    struct rank *k = r->k;

    accept_resolve(k->acc, &k->x, k->pool, k->win);
    window_fetch(&k->x, k->win);
    r->pass.n = 0;
    return settle(r, "window");
}

static void note_outcomes(struct rounds *r)
{
    const struct window *w = r->k->win;

    for (int i = 0; i < w->segs; i++) {
        const struct segment *g = &w->seg[i];
        struct seat *s = &r->seat[g->slot];

        s->open = true;
        s->n_ok = w->n_ok[i];
        s->next = w->next[i];
        memcpy(s->choice, w->choice + g->first, (size_t)g->len * sizeof(int32_t));
        r->rec.slot[i].a = s->n_ok - 1;
        r->digest = digest_note(r->digest, r->number, g->slot, s->n_ok, s->next);
    }
}

int round_run(struct rounds *r, const struct plan_round *p, int64_t t_ns, int64_t plan_ns)
{
    struct rank *k = r->k;
    struct plan_keep keep = { .digest = p->digest, .commits = p->commits, .start_ns = p->start_ns };
    struct comm_stats x;
    int64_t end;
    int err;

    memcpy(keep.commit, p->commit, sizeof(keep.commit));
    err = round_keep(r, &keep);
    if (err == 0)
        err = build_window(r, p);
    r->rec.t_ns = t_ns;
    r->rec.plan_ns = plan_ns;
    if (err == 0)
        err = stage_timed(r);
    if (err == 0)
        err = run_window(r, p);
    if (err == 0 && accept_undecided(k->win))
        err = resolve(r);
    if (err < 0)
        return err;
    slot_sync(k->pool, k->win);
    note_outcomes(r);
    r->rec.ahead_ns = collect(r);
    x = comm_stats_take(k->comm);
    r->rec.exchanges = (int64_t)x.exchanges;
    r->rec.wait_ns = (int64_t)x.wait_ns;
    r->rec.move_ns = (int64_t)x.move_ns;
    end = clock_ns();
    r->rec.wall_ns = end - (r->follows_round ? r->end_ns : t_ns);
    r->end_ns = end;
    r->follows_round = true;
    r->number++;
    return 0;
}
