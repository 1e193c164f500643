/* test_offer.c - what a window verifies, and what its line in the log says about that: prices
 * belong to the depth that runs, whoever chose it. */
#include "src/rank/offer.h"

#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/verify/sampler.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#define BLOCK 4
#define ROUNDS 8
#define STREAMS 2

static const struct drafter_ops ops = { .name = "made up",
                                        .caps = DRAFTER_DEVICE | DRAFTER_CONFIDENCES };
static struct drafter drafter = { .ops = &ops, .block = BLOCK };
static struct rank rank = { .drafter = &drafter,
                            .cfg = { .depth = CONFIG_AUTO },
                            .bounds = {
                                .slots = STREAMS, .context = 256, .window_max = BLOCK + 1 } };
static struct rounds rounds = { .k = &rank };

/* Rows 6 to 8 cost the same: two windows of three rows leave padding. */
static const struct cost_table steep = { .rows = 8,
                                         .window_us = { 0, 10000, 14000, 18000, 30000, 30000, 30000,
                                                        30000, 30000 },
                                         .draft_us = { 0, 2000, 2000, 2000, 2000 } };

static int three(void *arg, int slot, int offered)
{
    return offered < 3 ? offered : 3;
}

struct offer_case {
    const char *name;
    float conf[BLOCK];
    int streams, bucket; /* 0: no padding */
    depth_fn *depth;
    int k; /* in the last round */
};

static const struct offer_case cases[] = {
    { .name = "the price says so", .conf = { 0.9f, 0.8f, 0.3f, 0.3f }, .streams = 1, .k = 2 },
    { .name = "no draft pays", .conf = { 0.1f, 0.1f, 0.1f, 0.1f }, .streams = 1, .k = 0 },
    { .name = "a shared round has at least one",
      .conf = { 0.1f, 0.1f, 0.1f, 0.1f },
      .streams = 2,
      .k = 1 },
    { .name = "padding takes one more",
      .conf = { 0.9f, 0.8f, 0.3f, 0.3f },
      .streams = 2,
      .bucket = 8,
      .k = 3 },
    { .name = "a gate's depth",
      .conf = { 0.1f, 0.1f, 0.1f, 0.1f },
      .streams = 1,
      .depth = three,
      .k = 3 },
};

/* One round of all streams. Of a likely proposal the first two drafts are right, of others none. */
static void play(struct offers *o, const struct offer_case *c, int pos, struct round_slot *rec)
{
    struct landing landing = { 0 };
    struct offer_at at[STREAMS];
    int slot[STREAMS];

    for (int i = 0; i < c->streams; i++) {
        struct seat *s = &rounds.seat[i];

        slot[i] = i;
        at[i] = (struct offer_at){
            .slot = i, .pos = pos, .left = 100, .alone = c->streams == 1, .landing = &landing
        };
        if (!offer_need(o, &at[i]))
            continue;
        s->pass_ready = true;
        s->drafts_n = BLOCK;
        for (int j = 0; j < BLOCK; j++) {
            s->draft[j] = 7;
            s->conf[j] = c->conf[j];
        }
    }
    for (int i = 0; i < c->streams; i++)
        offer_choose(o, &at[i]);
    if (c->bucket)
        offer_fill(o, slot, c->streams, c->bucket);
    offer_ask(o, at, c->streams);
    for (int i = 0; i < c->streams; i++) {
        int k = o->slot[i].k, good = c->conf[0] < 0.5f ? 0 : k < 2 ? k : 2;

        rounds.seat[i].n_ok = good + 1;
        rec[i] = (struct round_slot){ .slot = i, .k = k };
        offer_landed(o, i, c->streams == 1, good + 1, &rec[i]);
    }
}

Test(offer, a_record_has_the_prices_of_the_depth_that_runs)
{
    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        const struct offer_case *c = &cases[n];
        struct sampler greedy = { 0 };
        struct round_slot rec[STREAMS];
        struct offers o;

        offers_open(&o, &rounds);
        offers_costs(&o, &steep);
        o.depth = c->depth;
        for (int i = 0; i < c->streams; i++)
            offer_begin(&o, i, true, &greedy);
        for (int round = 0; round < ROUNDS; round++) {
            play(&o, c, 10 + 3 * round, rec);
            for (int i = 0; i < c->streams; i++) {
                double expect = 1, survive = 1;

                for (int j = 0; j < rec[i].k; j++)
                    expect += survive *= (double)rec[i].q[j];
                cr_expect(epsilon_eq(dbl, rec[i].expect, expect, 1e-12), "%s, round %d", c->name,
                          round);
                cr_expect(eq(int, rec[i].cost_us, steep.window_us[rec[i].k + 1]), "%s, round %d",
                          c->name, round);
                cr_expect(gt(dbl, rec[i].lambda, 0), "%s", c->name);
            }
        }
        for (int i = 0; i < c->streams; i++)
            cr_expect(eq(int, rec[i].k, c->k), "%s", c->name);
    }
}

/* ---- one stream ---- */

/* Where more rows cost nothing. */
static const struct cost_table flat = { .rows = 8,
                                        .window_us = { 0, 100, 100, 100, 100, 100, 100, 100, 100 },
                                        .draft_us = { 0, 1, 1, 1, 1 } };

static const float sure[BLOCK] = { 0.99f, 0.99f, 0.99f, 0.99f };
static const float likely[BLOCK] = { 0.9f, 0.9f, 0.9f, 0.9f };
static const float poor[BLOCK] = { 0.01f, 0.01f, 0.01f, 0.01f };

static struct landing landing;

/* Drafts are 70, 71, 72 and 73. */
static void fill_seat(int slot, const float *conf, int n)
{
    struct seat *s = &rounds.seat[slot];

    s->pass_ready = true;
    s->drafts_n = n;
    for (int j = 0; j < n; j++) {
        s->draft[j] = 70 + j;
        s->conf[j] = conf[j];
    }
}

static struct offer_at at_of(int slot, int left, bool alone)
{
    return (struct offer_at){
        .slot = slot, .pos = 10, .left = left, .alone = alone, .landing = &landing
    };
}

/* A round of slot 0 alone that takes `good` of its drafts; whether a pass was needed. */
static bool turn(struct offers *o, int left, const float *conf, int good, struct round_slot *rec)
{
    struct offer_at at = at_of(0, left, true);
    struct seat *s = &rounds.seat[0];
    bool needed = offer_need(o, &at);

    if (needed)
        fill_seat(0, conf, BLOCK);
    offer_choose(o, &at);
    offer_ask(o, &at, 1);
    s->n_ok = (o->slot[0].k < good ? o->slot[0].k : good) + 1;
    *rec = (struct round_slot){ .k = o->slot[0].k };
    offer_landed(o, 0, true, s->n_ok, rec);
    return needed;
}

static void begin_one(struct offers *o, const struct cost_table *t)
{
    struct sampler greedy = { 0 };

    offers_open(o, &rounds);
    if (t)
        offers_costs(o, t);
    offer_begin(o, 0, true, &greedy);
}

Test(offer, no_more_than_can_land)
{
    struct round_slot rec;
    struct offers o;

    begin_one(&o, &flat);
    for (int left = 7; left >= 2; left--) {
        cr_expect(turn(&o, left, sure, BLOCK, &rec) == (left > 1), "%d left", left);
        cr_expect(eq(int, rec.k, left - 1 < BLOCK ? left - 1 : BLOCK), "%d left", left);
        cr_expect(eq(int, rec.offered, rec.k), "%d left", left);
        /* The next round, of one token less, has a pass if it can use one. */
        cr_expect(o.slot[0].due == (left > 2), "%d left", left);
        o.slot[0].due = true;
    }
    /* Of the round before nothing is left. */
    cr_expect(not(turn(&o, 1, sure, BLOCK, &rec)));
    cr_expect(not(o.slot[0].passed));
    cr_expect(eq(int, rec.k, 0));
    cr_expect(eq(int, rec.offered, 0));
    cr_expect(eq(int, o.slot[0].source, SOURCE_NONE));
    cr_expect(eq(dbl, rec.lambda, 0));
    cr_expect(eq(dbl, rec.expect, 0));
    cr_expect(eq(int, rec.cost_us, 0));
}

Test(offer, nothing_behind_an_end_and_no_window_that_is_too_long)
{
    static const int32_t end[] = { 71 };
    struct round_slot rec;
    struct offers o;

    begin_one(&o, &flat);
    landing = (struct landing){ .end = end, .ends = 1 };
    turn(&o, 100, sure, BLOCK, &rec);
    cr_expect(eq(int, rec.offered, 2), "the end itself may land");
    landing = (struct landing){ 0 };
    rank.bounds.window_max = 4;
    turn(&o, 100, sure, BLOCK, &rec);
    cr_expect(eq(int, rec.offered, 3));
}

Test(offer, a_record_says_what_was_offered_and_what_was_left_out)
{
    static const struct {
        const float *conf;
        int32_t choice;
        enum skipped skipped;
    } windows[] = { { poor, 70, SKIPPED_RIGHT }, { poor, 9, SKIPPED_WRONG }, { likely, 70, 0 } };

    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        struct round_slot rec;
        struct offers o;

        begin_one(&o, &steep);
        rounds.seat[0].choice[0] = windows[i].choice;
        turn(&o, 100, windows[i].conf, 1, &rec);
        cr_expect(eq(int, rec.k > 0, windows[i].skipped == 0), "window %zu", i);
        cr_expect(eq(int, rec.offered, BLOCK), "window %zu", i);
        cr_expect(eq(int, rec.skipped, windows[i].skipped), "window %zu", i);
        for (int j = 0; j < BLOCK; j++) {
            cr_expect(eq(flt, rec.p[j], windows[i].conf[j]));
            cr_expect(eq(flt, rec.q[j], o.slot[0].q[j]));
        }
    }
}

Test(offer, rates_and_chances_are_those_of_the_windows_before)
{
    struct depth_history h = { 0 };
    struct conf_calibration c = { 0 };
    struct round_slot rec;
    struct offers o;

    begin_one(&o, &steep);
    for (int round = 0; round < 12; round++) {
        double lambda = depth_lambda(&h, &steep);

        turn(&o, 100, likely, round % 2, &rec);
        cr_expect(eq(dbl, rec.lambda, lambda), "round %d", round);
        for (int j = 0; j < BLOCK; j++)
            cr_expect(eq(flt, rec.q[j], (float)conf_q(&c, false, j, (double)likely[j])),
                      "round %d, draft %d", round, j);
        depth_note(&h, &steep, rec.k + 1, true, rounds.seat[0].n_ok);
        conf_note(&c, false, likely, rec.k, rounds.seat[0].n_ok - 1);
    }
}

/* 16 rounds show it; then one pass in nine asks again. */
Test(offer, a_stream_without_use_for_drafts_goes_without_passes)
{
    struct round_slot rec;
    struct offers o;

    begin_one(&o, &steep);
    for (int round = 0; round < 60; round++) {
        bool passes =
            round < DEPTH_ROUNDS || (round - DEPTH_ROUNDS) % (SKIP_ROUNDS + 1) == SKIP_ROUNDS;

        cr_expect(turn(&o, 100, poor, 0, &rec) == passes, "round %d", round);
        cr_expect(eq(int, rec.k, 0), "round %d", round);
    }
}

Test(offer, a_pass_with_numbers_that_are_none_was_the_last)
{
    struct sampler greedy = { 0 };
    struct round_slot rec;
    struct offers o;

    begin_one(&o, &flat);
    rounds.seat[0].bad = true;
    cr_expect(turn(&o, 100, sure, 0, &rec));
    rounds.seat[0].bad = false;
    cr_expect(not(turn(&o, 100, sure, 0, &rec)));
    cr_expect(eq(int, rec.offered, 0));
    /* Another request begins anew, and is watched as the first one was. */
    for (int again = 0; again < 2; again++) {
        offer_end(&o, 0);
        offer_begin(&o, 0, true, &greedy);
        cr_expect(turn(&o, 100, sure, 0, &rec));
        rounds.seat[0].bad = true;
        turn(&o, 100, sure, 0, &rec);
        rounds.seat[0].bad = false;
        cr_expect(not(turn(&o, 100, sure, 0, &rec)));
    }
}

/* ---- depths that others choose ---- */

static int one(void *arg, int slot, int offered)
{
    *(int *)arg = offered;
    return 1;
}

/* Two streams whose every draft is right: padding of eight rows would be theirs. */
static void play_two(struct offers *o, int k)
{
    struct sampler greedy = { 0 };
    int slot[STREAMS] = { 0, 1 };

    for (int i = 0; i < STREAMS; i++)
        offer_begin(o, i, true, &greedy);
    for (int round = 0; round < ROUNDS; round++) {
        struct offer_at at[STREAMS] = { at_of(0, 100, false), at_of(1, 100, false) };
        struct round_slot rec;

        for (int i = 0; i < STREAMS; i++) {
            if (offer_need(o, &at[i]))
                fill_seat(i, sure, BLOCK);
            offer_choose(o, &at[i]);
        }
        offer_fill(o, slot, STREAMS, 8);
        for (int i = 0; i < STREAMS; i++) {
            cr_expect(eq(int, o->slot[i].k, k), "round %d", round);
            rounds.seat[i].n_ok = 4; /* as of streams that may have padding */
            rec = (struct round_slot){ .k = k };
            offer_landed(o, i, false, 4, &rec);
        }
    }
}

Test(offer, a_depth_that_is_set_or_a_gate_chooses_is_not_filled_up)
{
    struct offers o;
    int offered = 0;

    offers_open(&o, &rounds);
    offers_costs(&o, &steep);
    o.depth = one;
    o.arg = &offered;
    play_two(&o, 1);
    cr_expect(eq(int, offered, BLOCK));
    rank.cfg.depth = 2;
    offers_open(&o, &rounds);
    offers_costs(&o, &steep);
    play_two(&o, 2);
}

Test(offer, no_gate_is_asked_about_nothing)
{
    struct offer_at at = at_of(0, 100, true);
    struct offers o;
    int offered = -1;

    begin_one(&o, &steep);
    o.depth = one;
    o.arg = &offered;
    cr_expect(offer_need(&o, &at));
    fill_seat(0, sure, 0);
    offer_choose(&o, &at);
    cr_expect(eq(int, offered, -1));
    cr_expect(eq(int, o.slot[0].k, 0));
}

/* ---- passes that run ahead ---- */

Test(offer, what_ran_behind_a_window_is_used_by_the_next)
{
    static const int slot[] = { 0 };
    struct offers o;
    int pos = 10;

    rank.cfg.spec_draft = true;
    begin_one(&o, &flat);
    for (int round = 0; round < 6; round++) {
        struct offer_at at = at_of(0, 100, true);
        struct seat *s = &rounds.seat[0];
        struct round_slot rec = { 0 };
        /* the first has no pass behind it, that of the fourth began at a wrong place */
        bool needs = round == 0 || round == 3;

        at.pos = pos;
        at.pending = 5 + round;
        cr_expect(offer_need(&o, &at) == needs, "round %d", round);
        cr_expect(eq(int, o.slot[0].spec == SPEC_OFF, round == 0), "round %d", round);
        cr_expect(eq(int, o.slot[0].spec == SPEC_USED, !needs), "round %d", round);
        fill_seat(0, sure, BLOCK);
        offer_choose(&o, &at);
        cr_expect(eq(uint, offer_ask(&o, &at, 1), 1), "round %d", round);
        s->n_ok = o.slot[0].k + 1;
        s->next = s->choice[s->n_ok - 1] = 6 + round;
        s->pass_ready = round != 2;
        offer_ran(&o, slot, 1);
        offer_landed(&o, 0, true, round == 5 ? 1 : s->n_ok, &rec);
        pos += s->n_ok;
    }
    cr_expect(offer_need(&o, &(struct offer_at){ .left = 100, .pos = pos, .pending = 11 }));
    cr_expect(eq(int, o.slot[0].spec, SPEC_COMMIT), "less has landed than was accepted");
}

/* ---- a drafter of the host, and one of single steps ---- */

static void propose_here(struct drafter *d, struct exec *x, const struct slot_pool *pool,
                         struct proposal *p, const struct sampler *sampler)
{
    p->len[0] = BLOCK;
    for (int j = 0; j < BLOCK; j++)
        p->draft[0][j] = 70 + j;
}

static void collect_here(struct drafter *d, struct proposal *p)
{
}

Test(offer, means_are_learnt_and_every_sixteenth_window_asks_all)
{
    static const struct drafter_ops host = { .name = "here",
                                             .propose = propose_here,
                                             .collect = collect_here };
    static struct drafter here = { .ops = &host, .block = BLOCK };
    struct accept_means m = { 0 };
    struct round_slot rec;
    struct offers o;

    rank.drafter = &here;
    begin_one(&o, &steep);
    for (int round = 0; round < 40; round++) {
        bool probe = means_probe(&m);

        cr_expect(not(turn(&o, 100, NULL, 0, &rec)), "no pass is needed");
        for (int j = 0; j < BLOCK; j++)
            cr_expect(eq(flt, rec.q[j], (float)means_q(&m, true, j)), "round %d", round);
        if (probe)
            cr_expect(eq(int, rec.k, BLOCK), "round %d", round);
        else if (round > 10)
            cr_expect(eq(int, rec.k, 0), "round %d", round);
        means_note(&m, true, rec.k, 0);
    }
}

Test(offer, a_chain_is_as_long_as_it_pays_and_one_at_least)
{
    static const struct drafter_ops steps = { .name = "chain",
                                              .caps = DRAFTER_DEVICE | DRAFTER_CHAIN };
    static struct drafter chain = { .ops = &steps, .block = BLOCK };
    struct offers o;

    rank.drafter = &chain;
    begin_one(&o, &flat);
    cr_expect(eq(int, offer_most(&o, 0, true), BLOCK));
    o.costs = steep;
    o.costs.window_us[2] = 10000000;
    cr_expect(eq(int, offer_most(&o, 0, true), 1));
    while (!means_probe(&o.slot[0].means))
        means_note(&o.slot[0].means, true, 0, 0);
    cr_expect(eq(int, offer_most(&o, 0, true), 0), "a probe has the block");
}

/* ---- copies ---- */

#define TEXT 40

struct copy_case {
    const char *name;
    bool repeats; /* what stands before the pending token stood there before */
    const float *conf;
    int left, lands;
    bool needs, off; /* a pass; it has nothing to do with one that ran ahead */
    enum plan_source source;
    int k;
    unsigned asks;
};

/* Rounds of one stream, one after the other. */
static const struct copy_case rounds_of_copies[] = {
    { "surer drafts than copies", true, sure, 100, 1, true, true, SOURCE_DRAFTER, BLOCK, 1 },
    { "drafts without use", true, poor, 100, 5, true, false, SOURCE_COPY, BLOCK, 0 },
    { "copies go on without passes", true, poor, 100, 5, false, true, SOURCE_COPY, BLOCK, 0 },
    { "nothing to copy", false, sure, 100, 5, true, true, SOURCE_DRAFTER, BLOCK, 1 },
    { "copies below the going rate", true, sure, 100, 5, true, false, SOURCE_DRAFTER, BLOCK, 1 },
    { "no pass for the last token", true, sure, 2, 1, true, false, SOURCE_DRAFTER, 1, 0 },
    { "nothing more can land", true, poor, 1, 1, false, true, SOURCE_NONE, 0, 0 },
};

Test(offer, copies_are_taken_for_what_they_earn_over_drafts)
{
    static const struct family_ops no_family = { .name = "other" };
    struct model m = { .ops = &no_family, .vocab = 1000, .ranks = 1 };
    static int32_t ids[256 + WINDOW_MAX];
    static struct slot_pool pool = { .slots = 1, .context = 256, .ids = { ids } };
    struct drafter *copies;
    struct offers o;

    cr_assert(eq(int, drafter_open("ngram", NULL, &m, &copies), 0));
    cr_assert(eq(int, copies->ops->ready(copies, NULL, &pool), 0));
    rank.copies = copies;
    rank.pool = &pool;
    rank.cfg.spec_draft = true;
    begin_one(&o, &flat);
    for (size_t i = 0; i < sizeof(rounds_of_copies) / sizeof(rounds_of_copies[0]); i++) {
        const struct copy_case *c = &rounds_of_copies[i];
        struct offer_at at = at_of(0, c->left, true);
        struct depth_history plain = o.slot[0].plain;
        double lambda = depth_lambda_last(&plain, &flat, 8);
        struct round_slot rec = { 0 };
        struct seat *s = &rounds.seat[0];
        unsigned asks;

        copies->ops->reset(copies, NULL, &pool, 0, 0);
        for (int j = 0; j < TEXT; j++)
            ids[j] = c->repeats ? j % (TEXT / 2) : j;
        pool.pos[0] = at.pos = TEXT - 1;
        at.pending = ids[TEXT - 1];
        s->pass_ready = false;
        cr_expect(offer_need(&o, &at) == c->needs, "%s", c->name);
        cr_expect(eq(int, o.slot[0].spec == SPEC_OFF, c->off), "%s", c->name);
        fill_seat(0, c->conf, BLOCK);
        offer_choose(&o, &at);
        cr_expect(eq(int, o.slot[0].source, c->source), "%s", c->name);
        cr_expect(eq(int, o.slot[0].k, c->k), "%s", c->name);
        cr_expect(eq(int, o.slot[0].copies > 0, c->repeats && c->left > 1), "%s", c->name);
        if (c->source == SOURCE_COPY)
            cr_expect(eq(dbl, o.slot[0].lambda, lambda), "%s", c->name);
        if (c->source == SOURCE_COPY)
            cr_expect(eq(int, o.slot[0].draft[0], 0), "%s", c->name);
        asks = offer_ask(&o, &at, 1);
        cr_expect(eq(uint, asks, c->asks), "%s", c->name);
        s->n_ok = c->lands;
        s->next = s->choice[s->n_ok - 1] = 77; /* what no round begins with: no pass is used */
        offer_ran(&o, (const int[]){ 0 }, 1);
        offer_landed(&o, 0, true, s->n_ok, &rec);
        cr_expect(eq(int, o.slot[0].plain.n, plain.n + (c->source != SOURCE_COPY)), "%s", c->name);
    }
    copies->ops->close(copies);
}
