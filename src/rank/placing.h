/* placing - which processors the threads of a rank have for themselves (setting `pin`).
 *
 *   round    plans, posts what it decided, waits for the others; on hosts it posts exchanges too
 *   proxy    posts the exchanges of a device (comm_relay.c)
 *   workers  compute with the round's thread on hosts; not pinned one by one
 *
 * All other threads of a process (control, watch, log, text) do little and run where the kernel
 * puts them. Rows are read by the kernel or by the round's thread: there is no thread of theirs.
 */
#ifndef TANDEM_RANK_PLACING_H
#define TANDEM_RANK_PLACING_H

#include <stdbool.h>

#include "src/base/config.h"
#include "src/base/cores.h"

struct placing {
    int round, proxy; /* -1: wherever the kernel puts it */
    int workers;      /* processors of the workers; 0: wherever */
    int worker[CORES_MAX];
};

enum placing_result {
    PLACING_DONE,
    /* nothing would be left to other threads: nobody is placed, for who is cannot give way */
    PLACING_FULL,
    PLACING_SHORT /* fewer processors than threads: nobody is placed */
};

/* placing_share - of `cores` processors in `order`, best first: the best one is the round's, the
 * next the proxy's, the rest the workers'.
 *
 * in       workers: threads beside the round's; proxy: whether there is one */
enum placing_result placing_share(const int *order, int cores, int workers, bool proxy,
                                  struct placing *out);

/* placing_of - what the config says of its rank. One rank alone, and ranks that share a machine,
 * are left to the kernel unless `pin` names cores.
 *
 * in       proxy: this rank will have one; workers: threads beside its round's
 * errors   -EINVAL pin names a core that this process may not use, or the ranks of one process
 *          would share it */
int placing_of(const struct config *c, int workers, bool proxy, struct placing *out);

/* placing_workers, placing_round - the calling thread, and what pool_open starts in it, stays where
 * workers or where the round belong. placing_leave: wherever it was. */
void placing_workers(const struct placing *p);
void placing_round(const struct placing *p);
void placing_leave(void);

#endif
