/* test_report_view.c - logs side by side: their clocks, what is left of long ones, and what is said
 * about them. */
#include "tests/rank/report_rig.h"

#include <criterion/new/assert.h>

/* ---- the verdict ----------------------------------------------------------------------------- */

struct verdict_case {
    const char *name;
    struct rig_rank of[VIEW_LOGS];
    int n;
    const char *says[4]; /* each is part of a sentence */
    const char *never;
};

#define GOOD .rounds = 300, .k = 4, .a = 3, .q = 0.99

static const struct verdict_case verdicts[] = {
    { .name = "the window leads",
      .of = { { GOOD, .window = 10, .plan = 0.1, .rest = 0.4 } },
      .n = 1,
      .says = { "300 rounds gave 1200 tokens: 4.00 tokens a round",
                "Most of a round on rank 0 is the verify window: 95% (10.00 ms)",
                "75% are accepted", "takes 100 us on rank 0" },
      .never = "slower" },
    { .name = "waiting leads",
      .of = { { GOOD, .window = 10, .wait = 8 } },
      .n = 1,
      .says = { "Most of a round on rank 0 is waiting in exchanges: 80% (8.00 ms)",
                "Give the logs of all ranks" } },
    { .name = "rank 1 is slower",
      .of = { { GOOD, .window = 10, .wait = 1 }, { GOOD, .rank = 1, .window = 10, .wait = 0.4 } },
      .n = 2,
      .says = { "Rank 1 is the slower rank: rank 0 waits 1.00 ms a round for it, 0.60 ms more" },
      .never = "No rank is slower" },
    { .name = "rank 0 is slower, and its log comes last",
      .of = { { GOOD, .rank = 1, .window = 10, .wait = 2 },
              { GOOD, .rank = 0, .window = 10, .wait = 1 } },
      .n = 2,
      .says = { "Rank 0 is the slower rank: rank 1 waits 2.00 ms" } },
    { .name = "one of three is slower",
      .of = { { GOOD, .window = 10, .wait = 1 },
              { GOOD, .rank = 1, .window = 10, .wait = 1.1 },
              { GOOD, .rank = 2, .window = 10, .wait = 0.2 } },
      .n = 3,
      .says = { "Rank 2 is the slower rank: rank 1 waits 1.10 ms" } },
    { .name = "equal ranks",
      .of = { { GOOD, .window = 10, .wait = 1 }, { GOOD, .rank = 1, .window = 10, .wait = 0.95 } },
      .n = 2,
      .says = { "No rank is slower than another: each waits 0.95 to 1.00 ms" },
      .never = "free cores" },
    { .name = "both wait for the wire",
      .of = { { GOOD, .window = 10, .wait = 4 }, { GOOD, .rank = 1, .window = 10, .wait = 4 } },
      .n = 2,
      .says = { "waits least, and yet 4.00 ms a round, 40% of it: 8 exchanges of 500 us",
                "No rank is slower" } },
    { .name = "a late follower",
      .of = { { GOOD, .window = 10, .lag = -1 }, { GOOD, .rank = 1, .window = 10, .lag = 0.5 } },
      .n = 2,
      .says = { "Rank 1 starts its windows 0.50 ms after rank 0" } },
    { .name = "lags are behind rank 0, which ran nothing",
      .of = { { .rounds = 0 },
              { GOOD, .rank = 1, .window = 10, .lag = 0 },
              { GOOD, .rank = 2, .window = 10, .lag = 0.5 } },
      .n = 3,
      .never = "starts its windows" },
    { .name = "empty logs leave room for what there is to say",
      .of = { { GOOD, .window = 10, .rest = 3 },
              { .rank = 1 },
              { .rank = 2 },
              { .rank = 3 },
              { .rank = 4 },
              { .rank = 5 },
              { .rank = 6 },
              { .rank = 7 } },
      .n = 8,
      .says = { "There is no round in the log of rank 7", "is in none of its steps" } },
    { .name = "a follower in time",
      .of = { { GOOD, .window = 10, .lag = -1 }, { GOOD, .rank = 1, .window = 10, .lag = 0.05 } },
      .n = 2,
      .never = "starts its windows" },
    { .name = "a drafter that lost its weights",
      .of = { { .rounds = 300, .k = 4, .a = 0, .q = 0.01, .window = 10 } },
      .n = 1,
      .says = { "The drafter is of no use here: 0.0% of the verified drafts are accepted" } },
    { .name = "too few rounds to judge a drafter",
      .of = { { .rounds = 100, .k = 4, .a = 0, .q = 0.01, .window = 10 } },
      .n = 1,
      .says = { "0% are accepted" },
      .never = "of no use" },
    { .name = "no drafts",
      .of = { { .rounds = 300, .window = 10 } },
      .n = 1,
      .says = { "No drafts were verified" } },
    { .name = "chances that are too sure",
      .of = { { .rounds = 300, .k = 4, .a = 0, .q = 0.8, .window = 10 } },
      .n = 1,
      .says = { "off by 80 points" } },
    { .name = "chances that hold", .of = { { GOOD, .window = 10 } }, .n = 1, .never = "off by" },
    { .name = "spikes",
      .of = { { GOOD, .window = 10, .every = 50, .odd_rest = 45 } },
      .n = 1,
      .says = { "One round in a hundred takes more than 55.0 ms, the median 10.0 ms",
                "round 49: 55 ms, most of it other" } },
    { .name = "time that no step has",
      .of = { { GOOD, .window = 10, .rest = 2 } },
      .n = 1,
      .says = { "17% of a round (2.00 ms) is in none of its steps" } },
    { .name = "pauses",
      .of = { { GOOD, .window = 10, .every = 100, .odd_rest = 500 } },
      .n = 1,
      .says = { "nobody had work for 1.5 s" },
      .never = "none of its steps" },
    { .name = "nothing ran",
      .of = { { .rounds = 0 } },
      .n = 1,
      .says = { "There is no round in the log of rank 0, /tmp/rank0.jsonl." } },
    { .name = "a rank that ran nothing, or was asked too early",
      .of = { { .rounds = 0 }, { GOOD, .rank = 1, .window = 10 } },
      .n = 2,
      .says = { "There is no round in the log of rank 0, /tmp/rank0.jsonl.", "300 rounds gave",
                "A round takes 10.00 ms" } },
    { .name = "no rank is slower than one that ran nothing",
      .of = { { GOOD, .window = 10, .wait = 5 }, { .rank = 1 } },
      .n = 2,
      .says = { "There is no round in the log of rank 1", "Rank 0 waits 5.00 ms a round" },
      .never = "slower rank" },
};

static bool said(const struct report_view *v, const char *what)
{
    for (int i = 0; i < v->verdicts; i++)
        if (strstr(v->verdict[i].text, what))
            return true;
    return false;
}

static const char *all(const struct report_view *v)
{
    static char text[VIEW_VERDICT * VIEW_SENTENCE];

    text[0] = 0;
    for (int i = 0; i < v->verdicts; i++)
        strcat(strcat(text, v->verdict[i].text), "\n");
    return text;
}

Test(report_view, says_what_is_slow)
{
    for (size_t i = 0; i < sizeof(verdicts) / sizeof(verdicts[0]); i++) {
        const struct verdict_case *c = &verdicts[i];
        struct report_view *v = rig_view(c->of, c->n);

        for (int j = 0; j < 4 && c->says[j]; j++)
            cr_expect(said(v, c->says[j]), "%s: \"%s\" in\n%s", c->name, c->says[j], all(v));
        if (c->never)
            cr_expect(not(said(v, c->never)), "%s: \"%s\" in\n%s", c->name, c->never, all(v));
        report_view_close(v);
    }
}

/* ---- clocks ---------------------------------------------------------------------------------- */

struct clock_case {
    const char *name;
    struct rig_rank of;
    enum view_clock clock;
    double ahead; /* ms */
};

static const struct clock_case clocks[] = {
    { "the lag tells",
      { GOOD, .rank = 1, .window = 10, .lag = 0.25, .clock = 7000.25 },
      CLOCK_KNOWN,
      6000 },
    { "an earlier clock",
      { GOOD, .rank = 1, .window = 10, .lag = 0.25, .clock = 100.25 },
      CLOCK_KNOWN,
      -900 },
    { "nobody compared",
      { GOOD, .rank = 1, .window = 10, .lag = -1, .clock = 7000.25 },
      CLOCK_GUESSED,
      6000.25 },
    { "no round in common", { .rank = 1, .rounds = 0 }, CLOCK_NONE, 0 },
};

Test(report_view, puts_ranks_on_one_clock)
{
    for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
        struct rig_rank of[2] = { { GOOD, .window = 10, .lag = -1, .clock = 1000 }, clocks[i].of };
        struct report_view *v = rig_view(of, 2);

        cr_expect(eq(int, v->of[0].clock, CLOCK_OWN), "%s", clocks[i].name);
        cr_expect(eq(int, v->of[1].clock, clocks[i].clock), "%s", clocks[i].name);
        cr_expect(epsilon_eq(dbl, (double)v->of[1].ahead_ns / 1e6, clocks[i].ahead, 0.01),
                  "%s: %lld", clocks[i].name, (long long)v->of[1].ahead_ns);
        report_view_close(v);
    }
}

/* ---- thinning -------------------------------------------------------------------------------- */

Test(report_view, parts_of_the_run_hold_every_round)
{
    static const int rounds[] = {
        1, 2, VIEW_BINS - 1, VIEW_BINS, VIEW_BINS + 1, 3 * VIEW_BINS - 1, 5000
    };

    for (size_t i = 0; i < sizeof(rounds) / sizeof(rounds[0]); i++) {
        struct rig_rank of = {
            .rounds = rounds[i], .k = 2, .a = 1, .window = 3, .wait = 1, .q = 0.5
        };
        struct report_view *v = rig_view(&of, 1);
        const struct view_log *w = &v->of[0];
        double n = 0;

        cr_assert(le(int, w->bins, VIEW_BINS));
        for (int b = 0; b < w->bins; b++) {
            cr_expect(eq(u32, w->bin[b].first, (uint32_t)n));
            n += w->bin[b].rounds;
            cr_expect(epsilon_eq(dbl, w->bin[b].tokens, 2.0, 1e-9), "%d rounds", rounds[i]);
            cr_expect(epsilon_eq(dbl, w->bin[b].us[PART_WINDOW], 2000.0, 0.1));
            cr_expect(epsilon_eq(dbl, w->bin[b].us[PART_WAIT], 1000.0, 0.1));
        }
        cr_expect(epsilon_eq(dbl, n, (double)rounds[i], 1e-9));
        report_view_close(v);
    }
}

Test(report_view, stretches_lie_inside_and_show_the_slowest)
{
    static const int rounds[] = { 1, VIEW_STRETCH, VIEW_STRETCH + 1, 40, 1000 };

    for (size_t i = 0; i < sizeof(rounds) / sizeof(rounds[0]); i++) {
        struct rig_rank of = {
            .rounds = rounds[i], .window = 3, .every = rounds[i], .odd_rest = 40
        };
        struct report_view *v = rig_view(&of, 1);
        bool slowest = false;

        cr_expect(ge(int, v->cuts, 1), "%d rounds", rounds[i]);
        for (int c = 0; c < v->cuts; c++) {
            size_t end = v->cut[c].first + v->cut[c].rounds;

            cr_expect(le(sz, end, (size_t)rounds[i]), "%d rounds", rounds[i]);
            slowest |= end == (size_t)rounds[i]; /* the last round is */
        }
        cr_expect(slowest, "%d rounds", rounds[i]);
        report_view_close(v);
    }
}

Test(report_view, rounds_are_found_by_number)
{
    struct rig_rank of = { .rounds = 5, .window = 3 };
    struct report_log *l = rig_log(&of);

    for (uint32_t r = 0; r < 5; r++) {
        cr_assert(view_round(l, r) != NULL);
        cr_expect(eq(u32, view_round(l, r)->round, r));
    }
    cr_expect(view_round(l, 5) == NULL);
    report_log_close(l);
}

Test(report_view, ranks_come_in_order_and_have_different_names)
{
    struct rig_rank of[4] = { { .rank = -1, .rounds = 1, .window = 1 },
                              { .rank = 1, .rounds = 1, .window = 1 },
                              { .rank = 0, .rounds = 1, .window = 1 },
                              { .rank = 1, .rounds = 1, .window = 1 } };
    static const char *const names[] = { "rank 0", "rank 1", "rank 1 (2)", "log 4" };
    struct report_view *v = rig_view(of, 4);

    for (int i = 0; i < 4; i++)
        cr_expect(eq(str, v->of[i].label, (char *)names[i]));
    report_view_close(v);
}
