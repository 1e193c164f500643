/* stall - which rank holds up the others: judged from how far each says it is.
 *
 * A rank that works on an order and waits for nobody must make progress; if it has made none within
 * the limit, it is to blame. If every rank without progress is waiting, the order or the exchange
 * that they wait for has been lost.
 */
#ifndef TANDEM_RANK_STALL_H
#define TANDEM_RANK_STALL_H

#include "src/rank/progress.h"

enum { STALL_RANKS = 8 };

/* Zeros are ranks of which nothing is known. */
struct stall {
    struct {
        struct progress_view at;
        int64_t moved_ns; /* when `at` became what it is; 0: never heard of */
    } rank[STALL_RANKS];
};

/* stall_note - rank says where it is. */
void stall_note(struct stall *s, int rank, const struct progress_view *at, int64_t now);

/* stall_excuse - this process itself did not run for a while, so nobody counts as late. */
void stall_excuse(struct stall *s, int64_t now);

/* stall_find - 1 if nobody is to blame; else 0, with the sentence in text.
 * in       whole: all ranks of the group have said where they are. Otherwise only a rank that waits
 *          for nobody can be judged */
int stall_find(const struct stall *s, bool whole, int limit_ms, int64_t now, char *text,
               size_t cap);

#endif
