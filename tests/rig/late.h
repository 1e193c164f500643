/* late - a table in front of a backend's ops that runs sections of op `side` as late as they may:
 * where they are met. What a section reads must not change before, and what it writes nobody may
 * read or write: where bits stay equal, they may run beside what is queued behind them.
 *
 * One per thread at a time.
 */
#ifndef TANDEM_TESTS_RIG_LATE_H
#define TANDEM_TESTS_RIG_LATE_H

#include "kernels/ops.h"

struct late;

/* late_open - the table that stands in front of `real` until late_close. Ends the test where there
 * is no memory. */
const struct op_table *late_open(const struct op_table *real, struct late **out);

/* late_first - so many ops of each section run where they are called, the others late: nobody may
 * write what passes between the two. 0 at first */
void late_first(struct late *l, int ops);

/* late_end - runs the sections that nobody has met. result: ops that ran late, since the open */
int late_end(struct late *l);

void late_close(struct late *l);

#endif
