/* drain - what signals ask of this process's ranks.
 *
 *   SIGINT, SIGTERM   the first asks to finish the round and leave, the second kills
 *   SIGUSR1           a report of the rounds so far goes to the log
 *
 * A thread waits for the signals; every other thread has them blocked. Ranks that wait for each
 * other stop waiting; a rank that loads has nothing to finish and looks at nothing: there the first
 * signal to leave ends the process at once with code 130.
 */
#ifndef TANDEM_RANK_DRAIN_H
#define TANDEM_RANK_DRAIN_H

#include "src/base/limits.h"

#include <pthread.h>
#include <stdatomic.h>

enum drain_stage { DRAIN_LOADING, DRAIN_MEETING, DRAIN_SERVING };
enum drain_cause { DRAIN_SIGNAL = 1, DRAIN_FAILED }; /* the latter: another rank of this process */

/* Zeros are a drain that no signal reaches. */
struct drain {
    atomic_int asked;     /* enum drain_cause; not 0: leave after this round */
    atomic_int stage;     /* enum drain_stage, of the ranks of this process */
    pthread_mutex_t lock; /* of what follows */
    struct {
        void (*fn)(void *arg);
        void *arg;
    } report[RANKS_MAX];
    int reports;
};

/* drain_open - block the signals in this thread and those it will start, and wait for them in
 * another one that lives until the process ends. SIGPIPE is ignored: a write says so itself. Call
 * before any thread is started.
 * errors   -EAGAIN, -ENOMEM, logged
 * owns     *out belongs to that thread */
int drain_open(struct drain **out);

/* drain_report - fn(arg) reports a rank's rounds when a signal asks, on the thread of the signals,
 * until drain_unreport of the same arg has returned. One a rank. Any thread. */
void drain_report(struct drain *d, void (*fn)(void *arg), void *arg);
void drain_unreport(struct drain *d, const void *arg);

#endif
