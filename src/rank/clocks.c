/* clocks.c owns the comparison of clocks; frames and credits are plan_box.c's. */
#include "src/rank/clocks.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/plan.h"

#include <errno.h>
#include <stddef.h>

#define TIMES 12

void clock_bounds_came(struct clock_bounds *b, int64_t sent_ns, int64_t came_ns)
{
    if (came_ns - sent_ns < b->high_ns)
        b->high_ns = came_ns - sent_ns;
}

void clock_bounds_credit(struct clock_bounds *b, int64_t given_ns, int64_t back_ns)
{
    if (given_ns - back_ns > b->low_ns)
        b->low_ns = given_ns - back_ns;
}

struct clocks clock_bounds_meet(const struct clock_bounds *b)
{
    if (b->low_ns == INT64_MIN || b->high_ns == INT64_MAX || b->low_ns > b->high_ns)
        return (struct clocks){ 0 };
    return (struct clocks){ .known = true,
                            .ahead_ns = b->low_ns + (b->high_ns - b->low_ns) / 2,
                            .within_ns = (b->high_ns - b->low_ns + 1) / 2 };
}

static int tell(struct plan_box *b, int ranks)
{
    struct plan_clock p = { .ranks = ranks };
    uint64_t word[1 + RANKS_MAX];
    int err = 0;

    for (int i = 0; i < TIMES && err == 0; i++) {
        p.sent_ns = clock_ns();
        err = plan_box_send(b, PLAN_CLOCK, 0, 0, word, plan_put_clock(&p, word));
        if (err == 0)
            err = plan_box_settle(b, p.read_ns);
    }
    return err;
}

static int hear(struct plan_box *b, int rank, int wait_limit_ms, struct clocks *out)
{
    struct clock_bounds bounds = CLOCK_BOUNDS_INIT;
    int64_t given_ns = 0;

    for (int i = 0; i < TIMES; i++) {
        struct plan_clock p;
        struct plan_msg m;
        int err = plan_box_recv(b, wait_limit_ms, &m);

        if (err == PLAN_QUIET)
            return fail(-ETIMEDOUT, "clocks: rank 0 did not send its own in %d ms", wait_limit_ms);
        if (err == 0 && m.op != PLAN_CLOCK)
            err = fail(-EPROTO, "clocks: op %d comes, CLOCK is due", m.op);
        if (err == 0)
            err = plan_get_clock(&m, &p);
        if (err == 0 && rank >= p.ranks)
            err = fail(-EPROTO, "clocks: rank 0 knows %d ranks", p.ranks);
        if (err < 0)
            return err;
        clock_bounds_came(&bounds, p.sent_ns, m.came_ns);
        if (i > 0)
            clock_bounds_credit(&bounds, given_ns, p.read_ns[rank]);
        given_ns = m.came_ns;
    }
    *out = clock_bounds_meet(&bounds);
    if (out->known)
        log_debug("clocks: %.1f us ahead of rank 0, give or take %.1f us",
                  (double)out->ahead_ns / 1e3, (double)out->within_ns / 1e3);
    else
        log_warn("clocks: messages of rank 0 contradict each other; how late this rank is will not "
                 "be logged");
    return 0;
}

int clocks_meet(struct plan_box *b, int rank, int ranks, int wait_limit_ms, struct clocks *out)
{
    *out = (struct clocks){ 0 };
    return rank == 0 ? tell(b, ranks) : hear(b, rank, wait_limit_ms, out);
}
