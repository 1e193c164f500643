/* clocks - how far a follower's clock is ahead of rank 0's, by messages that cannot arrive before
 * they were sent.
 *
 * Rank 0 sends its clock a few times; each time it notes when the follower's credit was back, and
 * tells it with the next one. With `ahead` = this clock - rank 0's at one moment:
 *
 *   a CLOCK sent at s came at c             c - ahead >= s        ahead <= c - s
 *   its credit, given at c, was back at d   c - ahead <= d        ahead >= c - d
 *
 * The best of a few bounds from both sides leaves an interval of about one fast round trip. Clocks
 * drift; the comparison is that of the start.
 */
#ifndef TANDEM_RANK_CLOCKS_H
#define TANDEM_RANK_CLOCKS_H

#include <stdbool.h>
#include <stdint.h>

struct plan_box;

struct clocks {
    bool known;        /* on followers */
    int64_t ahead_ns;  /* the middle of the interval */
    int64_t within_ns; /* half of it: what ahead_ns may be wrong by */
};

/* Bounds so far; starts as CLOCK_BOUNDS_INIT. */
struct clock_bounds {
    int64_t low_ns, high_ns;
};
#define CLOCK_BOUNDS_INIT                                                                          \
    {                                                                                              \
        INT64_MIN, INT64_MAX                                                                       \
    }

void clock_bounds_came(struct clock_bounds *b, int64_t sent_ns, int64_t came_ns);
void clock_bounds_credit(struct clock_bounds *b, int64_t given_ns, int64_t back_ns);
/* clock_bounds_meet - not known while a bound is missing, or if they contradict each other. */
struct clocks clock_bounds_meet(const struct clock_bounds *b);

/* clocks_meet - every rank calls it once, before any other message of the box.
 * errors   of plan_box.h; -EPROTO another message comes; -ETIMEDOUT none came in
 *          wait_limit_ms (-1: waits for ever) */
int clocks_meet(struct plan_box *b, int rank, int ranks, int wait_limit_ms, struct clocks *out);

#endif
