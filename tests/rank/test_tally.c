/* test_tally.c - what is counted over rounds, on records made by hand. */
#include "src/rank/tally.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

#define WINDOWS 8

struct window_case {
    int k, a, offered;
    enum skipped skipped;
    float q1;
};

struct tally_case {
    const char *name;
    struct window_case window[WINDOWS]; /* one a round; ends with a negative k */
    int tries[4], hits[4], reach[4];    /* positions 1 .. 4 */
    int depth[4];                       /* k = 0 .. 3 */
    int offered, skipped_right, skipped_wrong;
};

#define END                                                                                        \
    {                                                                                              \
        .k = -1                                                                                    \
    }

static const struct tally_case cases[] = {
    { .name = "nothing ran", .window = { END } },
    { .name = "no drafter", .window = { { 0, 0, 0 }, { 0, 0, 0 }, END }, .depth = { 2 } },
    { .name = "all accepted",
      .window = { { 3, 3, 3 }, { 3, 3, 3 }, END },
      .tries = { 2, 2, 2 },
      .hits = { 2, 2, 2 },
      .reach = { 2, 2, 2 },
      .depth = { 0, 0, 0, 2 },
      .offered = 2 },
    /* The second draft is tried only where the first was right, but every deep window counts for
       survival. */
    { .name = "conditional and survival differ",
      .window = { { 3, 0, 3 }, { 3, 1, 3 }, { 3, 3, 3 }, { 1, 1, 3 }, END },
      .tries = { 4, 2, 1 },
      .hits = { 3, 1, 1 },
      .reach = { 4, 3, 3 },
      .depth = { 0, 1, 0, 3 },
      .offered = 4 },
    { .name = "skipped drafts",
      .window = { { 0, 0, 5, SKIPPED_RIGHT },
                  { 0, 0, 5, SKIPPED_WRONG },
                  { 0, 0, 5, SKIPPED_WRONG },
                  { 0, 0, 5, SKIPPED_UNKNOWN },
                  { 0, 0, 0 },
                  { 1, 0, 5 },
                  END },
      .tries = { 1 },
      .reach = { 1 },
      .depth = { 5, 1 },
      .offered = 5,
      .skipped_right = 1,
      .skipped_wrong = 2 },
};

static struct round_record record_of(const struct window_case *w)
{
    struct round_record r = { .windows = 1, .rows = w->k + 1 };

    r.slot[0] = (struct round_slot){ .k = w->k,
                                     .a = w->a,
                                     .landed = w->a + 1,
                                     .offered = w->offered,
                                     .skipped = w->skipped,
                                     .q = { w->q1 },
                                     .source = w->k ? SOURCE_DRAFTER : SOURCE_NONE };
    return r;
}

Test(tally, counts_by_the_definitions)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct tally_case *c = &cases[i];
        struct tally t = { 0 };
        uint64_t rounds = 0, landed = 0;

        for (int j = 0; c->window[j].k >= 0; j++) {
            struct round_record r = record_of(&c->window[j]);

            tally_add(&t, &r);
            rounds++;
            landed += (uint64_t)c->window[j].a + 1;
        }
        cr_expect(eq(u64, t.rounds, rounds), "%s", c->name);
        cr_expect(eq(u64, t.landed, landed), "%s", c->name);
        cr_expect(eq(u64, t.offered, (uint64_t)c->offered), "%s", c->name);
        cr_expect(eq(u64, t.skipped[SKIPPED_RIGHT], (uint64_t)c->skipped_right), "%s", c->name);
        cr_expect(eq(u64, t.skipped[SKIPPED_WRONG], (uint64_t)c->skipped_wrong), "%s", c->name);
        for (int j = 0; j < 4; j++) {
            cr_expect(eq(u64, t.tries[j], (uint64_t)c->tries[j]), "%s: %d", c->name, j + 1);
            cr_expect(eq(u64, t.hits[j], (uint64_t)c->hits[j]), "%s: %d", c->name, j + 1);
            cr_expect(eq(u64, tally_reach(&t, j + 1), (uint64_t)c->reach[j]), "%s: %d", c->name,
                      j + 1);
            cr_expect(eq(u64, t.depth[j], (uint64_t)c->depth[j]), "%s: k %d", c->name, j);
        }
    }
}

Test(tally, reliability_goes_by_tenths_of_the_first_chance)
{
    static const struct {
        struct window_case w;
        int tenth, n, hits; /* n 0: its fate is not known */
    } t[] = {
        { { .k = 2, .a = 0, .offered = 5, .q1 = 0.0f }, 0, 1, 0 },
        { { .k = 2, .a = 1, .offered = 5, .q1 = 0.0999f }, 0, 1, 1 },
        { { .k = 2, .a = 2, .offered = 5, .q1 = 0.1f }, 1, 1, 1 },
        { { .k = 1, .a = 0, .offered = 5, .q1 = 0.55f }, 5, 1, 0 },
        { { .k = 0, .offered = 5, .skipped = SKIPPED_RIGHT, .q1 = 0.25f }, 2, 1, 1 },
        { { .k = 0, .offered = 5, .skipped = SKIPPED_WRONG, .q1 = 0.25f }, 2, 1, 0 },
        { { .k = 0, .offered = 5, .skipped = SKIPPED_UNKNOWN, .q1 = 0.25f }, 2, 0, 0 },
        { { .k = 1, .a = 1, .offered = 5, .q1 = 0.995f }, 9, 1, 1 },
        { { .k = 1, .a = 1, .offered = 5, .q1 = 1.0f }, 9, 1, 1 },
        { { .k = 1, .a = 1, .offered = 5, .q1 = 1.5f }, 9, 0, 0 },
        { { .k = 1, .a = 1, .offered = 5, .q1 = -1.0f }, 0, 0, 0 },
        { { .k = 1, .a = 1, .offered = 5, .q1 = __builtin_nanf("") }, 9, 0, 0 },
    };

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct round_record r = record_of(&t[i].w);
        struct tally sums = { 0 };

        tally_add(&sums, &r);
        for (int d = 0; d < 10; d++) {
            cr_expect(eq(u64, sums.tenth[d].n, (uint64_t)(d == t[i].tenth ? t[i].n : 0)),
                      "case %zu tenth %d", i, d);
            cr_expect(eq(u64, sums.tenth[d].hits, (uint64_t)(d == t[i].tenth ? t[i].hits : 0)),
                      "case %zu", i);
        }
    }
}

Test(tally, time_without_a_step_is_rest_and_a_long_one_is_idle)
{
    static const struct {
        const char *name;
        int64_t wall, busy, rest, gap;
    } t[] = {
        { "all accounted for", 10, 10, 0, 0 },
        { "a little is left", 1000010, 10, 1000000, 0 },
        { "just below a gap", TALLY_GAP_NS + 9, 10, TALLY_GAP_NS - 1, 0 },
        { "a gap", TALLY_GAP_NS + 10, 10, 0, TALLY_GAP_NS },
        { "steps that overlap", 10, 12, 0, 0 },
    };

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct round_record r = { .windows = 0, .wall_ns = t[i].wall, .window_ns = t[i].busy };
        struct tally sums = { 0 };

        tally_add(&sums, &r);
        cr_expect(eq(i64, sums.rest_ns, t[i].rest), "%s", t[i].name);
        cr_expect(eq(i64, sums.gap_ns, t[i].gap), "%s", t[i].name);
    }
}

Test(tally, every_number_of_a_record_is_added_up)
{
    struct tally t = { 0 }, half, rest;
    int64_t want = 1;

    for (int i = 0; i < 3; i++) {
        struct round_record r = { .windows = 0, .lag_known = i > 0, .lag_ns = 100 };

        for (const struct record_field *f = record_fields; f->key; f++)
            *(int64_t *)(void *)((char *)&r + f->in_record) = want++;
        if (i == 1)
            half = t;
        tally_add(&t, &r);
    }
    want = 0;
    for (const struct record_field *f = record_fields; f->key; f++)
        want++;
    for (const struct record_field *f = record_fields; f->key; f++) {
        int64_t n = f - record_fields + 1;

        cr_expect(eq(i64, tally_number(&t, f), 3 * n + 3 * want), "%s", f->key);
    }
    cr_expect(eq(u64, t.lags, 2));
    cr_expect(eq(i64, t.lag_ns, 200));

    rest = tally_minus(&t, &half);
    cr_expect(eq(u64, rest.rounds, 2));
    for (const struct record_field *f = record_fields; f->key; f++)
        cr_expect(eq(i64, tally_number(&rest, f), tally_number(&t, f) - tally_number(&half, f)),
                  "%s", f->key);
}

/* A copy costs no pass: what it wins is not the drafter's efficiency. */
Test(tally, drafts_are_counted_by_where_they_came_from)
{
    struct round_record r = { .windows = 3, .rows = 12, .proposed = 10 };
    struct tally t = { 0 };

    r.slot[0] = (struct round_slot){ .k = 3, .a = 2, .landed = 3, .source = SOURCE_DRAFTER };
    r.slot[1] = (struct round_slot){ .k = 6, .a = 6, .landed = 7, .source = SOURCE_COPY };
    r.slot[2] = (struct round_slot){ .landed = 1, .source = SOURCE_NONE };
    tally_add(&t, &r);
    cr_expect(eq(u64, t.accepted, 8));
    cr_expect(eq(u64, t.accepted_of[SOURCE_DRAFTER], 2));
    cr_expect(eq(u64, t.drafted_of[SOURCE_DRAFTER], 3));
    cr_expect(eq(u64, t.accepted_of[SOURCE_COPY], 6));
    cr_expect(eq(u64, t.drafted_of[SOURCE_COPY], 6));
    cr_expect(eq(u64, t.drafted_of[SOURCE_NONE], 0));
    cr_expect(eq(i64, t.proposed, 10));
}
