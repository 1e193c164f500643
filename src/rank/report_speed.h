/* report_speed - speeds of requests and of groups of them, from records in their order.
 *
 *   request    (tokens - 1) / (last - first token)
 *   group      requests whose lives overlap; all tokens / (last - first token)
 *   steady     the same while as many streams live as the group ever has
 *
 * A token's time is the end of its round. A log knows requests by their slot: one ends where the
 * record says so, or where the slot goes on at another position.
 */
#ifndef TANDEM_RANK_REPORT_SPEED_H
#define TANDEM_RANK_REPORT_SPEED_H

#include "src/rank/tally.h"

struct speed_request {
    int slot, start; /* position of its first window */
    int64_t first_ns, last_ns;
    uint64_t tokens, rounds, drafted, accepted;
    enum finish finish; /* FINISH_NONE: the log does not say */
};

/* Tokens over time, of many groups. */
struct speed_sum {
    uint64_t tokens;
    int64_t ns;
};

struct speed {
    struct speed_request *request; /* in the order of their ends */
    size_t requests;
    struct speed_sum group, steady;
    int streams; /* most that lived at once */

    /* of the group that lives */
    size_t cap;
    struct speed_request live[SLOTS_MAX];
    int next[SLOTS_MAX]; /* position where a slot goes on */
    bool lives[SLOTS_MAX];
    int widest, last_n;
    uint64_t tokens;
    int64_t first_ns, last_ns;
    struct speed_sum by_streams[SLOTS_MAX + 1];
};

/* speed_note - a round that ended at end_ns.   errors   -ENOMEM, logged */
int speed_note(struct speed *s, const struct round_record *r, int64_t end_ns);

/* speed_end - no more records come: what still lives counts as it is.   errors   -ENOMEM, logged */
int speed_end(struct speed *s);

void speed_free(struct speed *s);

/* speed_of - tokens a second of a request, 0 for one of a single round. */
double speed_of(const struct speed_request *q);

/* speed_median - of the requests that have a speed, 0 if none has. */
double speed_median(const struct speed *s);

#endif
