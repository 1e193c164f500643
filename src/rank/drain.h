/* drain - SIGINT and SIGTERM: the first asks the ranks to finish their round and leave, the second
 * kills.
 *
 * A thread waits for the signals; every other thread has them blocked. Before drain_serving there
 * is no round to finish: the first signal ends the process at once with code 130.
 */
#ifndef TANDEM_RANK_DRAIN_H
#define TANDEM_RANK_DRAIN_H

#include <stdatomic.h>

struct drain {
    atomic_int asked; /* not 0: leave after this round */
    atomic_int serving;
};

/* drain_open - block the signals in this thread and those it will start, and wait for them in
 * another one that lives until the process ends. SIGPIPE is ignored: a write says so itself. Call
 * before any thread is started.
 * errors   -EAGAIN, -ENOMEM, logged
 * owns     *out belongs to that thread */
int drain_open(struct drain **out);

#endif
