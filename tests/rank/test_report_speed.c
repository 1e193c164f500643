/* test_report_speed.c - speeds of requests and groups, on rounds made by hand. */
#include "src/rank/report_speed.h"

#include "src/base/clock.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

/* What a slot does in a round: it lands tokens, and may end. */
struct step {
    int slot, pos, landed;
    enum finish finish;
};

struct speed_round {
    int ms; /* when it ended */
    struct step step[SLOTS_MAX];
    int n;
};

struct speed_case {
    const char *name;
    struct speed_round round[8];
    int rounds;
    int requests, streams;
    double first, group, steady; /* tok/s: of the first request to end, together, while all live */
};

#define ONE(ms, ...)                                                                               \
    {                                                                                              \
        ms, { { __VA_ARGS__ } }, 1                                                                 \
    }
#define TWO(ms, a, b)                                                                              \
    {                                                                                              \
        ms, { a, b }, 2                                                                            \
    }
#define S(...)                                                                                     \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static const struct speed_case cases[] = {
    { .name = "nothing" },
    /* All its tokens come at one time. */
    { .name = "one round",
      .round = { ONE(10, 0, 5, 4, FINISH_LENGTH) },
      .rounds = 1,
      .requests = 1,
      .streams = 1 },
    /* 9 tokens behind the first one in 200 ms; 10 in the same time. */
    { .name = "one request",
      .round = { ONE(100, 0, 5, 4), ONE(200, 0, 9, 1), ONE(300, 0, 10, 5, FINISH_END) },
      .rounds = 3,
      .requests = 1,
      .streams = 1,
      .first = 45,
      .group = 50,
      .steady = 30 },
    /* Two groups, a second apart: the second between them is nobody's. */
    { .name = "one after the other",
      .round = { ONE(100, 0, 5, 1), ONE(200, 0, 6, 1, FINISH_STOP), ONE(1200, 0, 5, 3),
                 ONE(1300, 0, 8, 1, FINISH_STOP) },
      .rounds = 4,
      .requests = 2,
      .streams = 1,
      .first = 10,
      .group = 30,
      .steady = 10 },
    /* Steady is the stretch in which both ran already: 4 tokens in 100 ms. */
    { .name = "two that overlap",
      .round = { ONE(100, 0, 5, 1), TWO(200, S(0, 6, 2), S(1, 9, 2)),
                 TWO(300, S(0, 8, 2, FINISH_LENGTH), S(1, 11, 2)),
                 ONE(400, 1, 13, 1, FINISH_LENGTH) },
      .rounds = 4,
      .requests = 2,
      .streams = 2,
      .first = 20,
      .group = 10 / 0.3,
      .steady = 40 },
    /* A log without ends, a follower's or one of an interrupted request, still shows where a slot
     * begins anew. */
    { .name = "a slot goes on elsewhere",
      .round = { ONE(100, 0, 5, 1), ONE(200, 0, 6, 1), ONE(300, 0, 20, 1), ONE(400, 0, 21, 1) },
      .rounds = 4,
      .requests = 2,
      .streams = 1,
      .first = 10,
      .group = 4 / 0.3,
      .steady = 10 },
    { .name = "the log stops in between",
      .round = { ONE(100, 0, 5, 1), ONE(300, 0, 6, 3) },
      .rounds = 2,
      .requests = 1,
      .streams = 1,
      .first = 15,
      .group = 20,
      .steady = 15 },
};

static double rate(struct speed_sum s)
{
    return s.ns > 0 ? (double)s.tokens * 1e9 / (double)s.ns : 0;
}

Test(report_speed, follows_the_definitions)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct speed_case *c = &cases[i];
        struct speed s = { 0 };

        for (int j = 0; j < c->rounds; j++) {
            struct round_record r = { .windows = c->round[j].n };

            for (int k = 0; k < r.windows; k++) {
                const struct step *t = &c->round[j].step[k];

                r.slot[k] = (struct round_slot){
                    .slot = t->slot, .pos = t->pos, .landed = t->landed, .finish = t->finish
                };
            }
            cr_assert(eq(int, speed_note(&s, &r, c->round[j].ms * NS_PER_MS), 0));
        }
        cr_assert(eq(int, speed_end(&s), 0));
        cr_expect(eq(sz, s.requests, (size_t)c->requests), "%s", c->name);
        cr_expect(eq(int, s.streams, c->streams), "%s", c->name);
        cr_expect(epsilon_eq(dbl, c->requests ? speed_of(&s.request[0]) : 0, c->first, 1e-6), "%s",
                  c->name);
        cr_expect(epsilon_eq(dbl, rate(s.group), c->group, 1e-6), "%s: %g", c->name, rate(s.group));
        cr_expect(epsilon_eq(dbl, rate(s.steady), c->steady, 1e-6), "%s: %g", c->name,
                  rate(s.steady));
        speed_free(&s);
    }
}

Test(report_speed, the_median_leaves_out_what_has_no_speed)
{
    struct speed_request q[] = {
        { .tokens = 11, .first_ns = 0, .last_ns = NS_PER_S },
        { .tokens = 4, .first_ns = 5, .last_ns = 5 },
        { .tokens = 31, .first_ns = 0, .last_ns = NS_PER_S },
        { .tokens = 21, .first_ns = 0, .last_ns = NS_PER_S },
    };
    struct speed s = { .request = q, .requests = 4 };

    cr_expect(epsilon_eq(dbl, speed_median(&s), 20.0, 1e-9));
    s.requests = 3;
    cr_expect(epsilon_eq(dbl, speed_median(&s), 20.0, 1e-9), "the mean of the two in the middle");
    s.requests = 0;
    cr_expect(epsilon_eq(dbl, speed_median(&s), 0.0, 1e-9));
}
