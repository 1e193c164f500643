/* pool - threads that share out independent outputs of one call.
 *
 * A task computes outputs that no other task touches and never a part of a sum, so results do not
 * depend on the number of threads. A pool belongs to one caller; two threads may not run it at
 * once.
 */
#ifndef TANDEM_BASE_POOL_H
#define TANDEM_BASE_POOL_H

struct pool;

typedef void pool_fn(void *arg, int task, int worker);

/* pool_open - threads counts the caller, which works as worker 0; 1 starts no thread and takes no
 * lock.
 *
 * errors   -EINVAL unless 1 <= threads <= 256; -ENOMEM, -EAGAIN from the system
 * owns     the threads, with all signals blocked in them, until pool_close
 */
int pool_open(int threads, struct pool **out);

/* pool_run - fn(arg, task, worker) once for every task in 0 .. tasks - 1, in any order, and wait
 * for all; all on the caller where p is NULL.
 *
 * in, out  worker is 0 .. threads - 1: use it to pick scratch. What the caller wrote before is seen
 *          by every task, what the tasks wrote is seen by the caller afterwards
 * order    no allocation; threads spin for some microseconds for the next call, then sleep. Not
 *          from inside a task
 */
void pool_run(struct pool *p, int tasks, pool_fn *fn, void *arg);

void pool_close(struct pool *p);

#endif
