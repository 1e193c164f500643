/* test_clocks.c - what can be known about another clock from messages alone. */
#include "src/rank/clocks.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/plan.h"
#include "tests/transport/wires.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

enum { TRIPS = 3 };

struct bounds_case {
    const char *name;
    int64_t ahead;                     /* of the clock that is looked at */
    int64_t there[TRIPS], back[TRIPS]; /* how long messages take; 0 ends the list */
    int64_t within, middle; /* what is left of it, and how far the answer is from the truth */
};

static const struct bounds_case cases[] = {
    { "the same clock", 0, { 10 }, { 10 }, 10, 0 },
    { "ahead by hours", INT64_C(7200000000000), { 10 }, { 10 }, 10, 0 },
    { "behind", -5000, { 10 }, { 10 }, 10, 0 },
    /* A slower way there cannot be told from clocks that differ by half of it. */
    { "one way is slower", 100, { 30 }, { 10 }, 20, 10 },
    { "the fastest of each way counts", 100, { 90, 10, 80 }, { 12, 70, 95 }, 11, -1 },
};

Test(clocks, bounds_hold_the_truth_between_them)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct bounds_case *c = &cases[i];
        struct clock_bounds b = CLOCK_BOUNDS_INIT;
        struct clocks k;

        for (int j = 0; j < TRIPS && c->there[j]; j++) {
            int64_t sent = 1000000 + 1000 * j, came = sent + c->there[j];

            clock_bounds_came(&b, sent, came + c->ahead);
            clock_bounds_credit(&b, came + c->ahead, came + c->back[j]);
        }
        k = clock_bounds_meet(&b);
        cr_assert(k.known, "%s", c->name);
        cr_expect(eq(i64, k.within_ns, c->within), "%s", c->name);
        cr_expect(eq(i64, k.ahead_ns - c->ahead, c->middle), "%s", c->name);
    }
}

Test(clocks, what_contradicts_itself_is_not_known)
{
    struct clock_bounds b = CLOCK_BOUNDS_INIT;

    cr_expect(not(clock_bounds_meet(&b).known), "no message at all");
    clock_bounds_came(&b, 100, 110);
    cr_expect(not(clock_bounds_meet(&b).known), "one way only");
    clock_bounds_credit(&b, 150, 120);
    cr_expect(not(clock_bounds_meet(&b).known), "at most 10 ahead, at least 30");
}

struct meeting {
    struct wires w;
    int result[WIRES_MAX];
    struct clocks found[WIRES_MAX];
};

static void meet(int rank, void *arg)
{
    struct meeting *m = (struct meeting *)arg;
    struct plan_box_settings s = { .spin_us = 20, .wait_limit_ms = 5000, .max_words = 64 };
    struct plan_box *b;

    m->result[rank] = plan_box_open(m->w.link[rank], rank, m->w.world, &s, &b);
    if (m->result[rank] < 0)
        return;
    m->result[rank] = clocks_meet(b, rank, m->w.world, 5000, &m->found[rank]);
    if (rank == 0)
        plan_box_settle(b, NULL);
    plan_box_close(b);
}

Test(clocks, ranks_of_one_machine_find_one_clock_over_every_link)
{
    for (const char *const *kind = wires_kinds; *kind; kind++)
        for (int world = 2; world <= 3; world++) {
            struct meeting m = { 0 };

            wires_open(&m.w, *kind, world, 2);
            wires_run(world, meet, &m);
            for (int r = 0; r < world; r++) {
                const struct clocks *c = &m.found[r];

                cr_assert(eq(int, m.result[r], 0), "%s rank %d", *kind, r);
                cr_expect(eq(int, c->known, r > 0), "%s rank %d", *kind, r);
                cr_expect(le(i64, c->ahead_ns < 0 ? -c->ahead_ns : c->ahead_ns, c->within_ns),
                          "%s rank %d: %lld", *kind, r, (long long)c->ahead_ns);
            }
            wires_close(&m.w);
        }
}

static void lead_wrong(int rank, void *arg)
{
    struct meeting *m = (struct meeting *)arg;
    struct plan_box_settings s = { .spin_us = 20, .wait_limit_ms = 5000, .max_words = 64 };
    struct plan_box *b;
    uint64_t word[2];

    m->result[rank] = plan_box_open(m->w.link[rank], rank, m->w.world, &s, &b);
    if (m->result[rank] < 0)
        return;
    if (rank == 0) {
        plan_box_send(b, PLAN_RELEASE, 0, 0, word, plan_put_slot(0, word));
        plan_box_settle(b, NULL);
    } else {
        m->result[rank] = clocks_meet(b, rank, m->w.world, 5000, &m->found[rank]);
    }
    plan_box_close(b);
}

static void quiet(void *arg, enum log_level level, const char *line)
{
}

Test(clocks, another_order_in_their_place_is_refused)
{
    struct meeting m = { 0 };

    log_sink(quiet, NULL);
    wires_open(&m.w, wires_kinds[0], 2, 2);
    wires_run(2, lead_wrong, &m);
    cr_expect(eq(int, m.result[1], -EPROTO));
    wires_close(&m.w);
}
