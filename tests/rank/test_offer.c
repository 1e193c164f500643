/* test_offer.c - what a window verifies, and what its line in the log says about that: prices
 * belong to the depth that runs, whoever chose it. */
#include "src/rank/offer.h"

#include "src/draft/drafter.h"
#include "src/verify/sampler.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

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
