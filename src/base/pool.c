/* pool.c owns the worker threads. A call is one 64-bit ticket: its number and the tasks not yet
 * taken.
 *
 *   caller   writes the call's fields, then the ticket (number, tasks)
 *   any      takes a task by lowering the ticket by one with compare-and-swap
 *   caller   waits until as many tasks are done as it gave out
 *
 * A worker reads the fields before its swap. They belong to the ticket's call if the swap succeeds:
 * the caller changes them only when that call has no task left, and then the swap fails. So nobody
 * waits for a worker that slept through a call.
 */
#include "src/base/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/mapping.h"

#define THREADS_MAX 256
#define SPIN_NS (50 * NS_PER_US) /* a futex wake costs about as much as this */

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
};

struct pool {
    int threads;
    struct worker *workers; /* [threads]; entry 0 is the caller's and unused */

    _Atomic(pool_fn *) fn;
    void *_Atomic arg;
    atomic_int tasks;
    _Alignas(64) _Atomic uint64_t ticket; /* call number << 32 | tasks not taken */
    _Alignas(64) atomic_int done;
    _Alignas(64) _Atomic uint32_t epoch; /* futex: grows when sleepers must look again */
    atomic_int sleepers;
    atomic_bool closing;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Run tasks of the current call until none is left to take. */
static void take_tasks(struct pool *p, int worker)
{
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);

    while ((uint32_t)t != 0) {
        pool_fn *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        int task = atomic_load_explicit(&p->tasks, memory_order_relaxed) - (int)(uint32_t)t;

        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(arg, task, worker);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
        t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
}

static bool has_work(struct pool *p)
{
    return (uint32_t)atomic_load(&p->ticket) != 0 || atomic_load(&p->closing);
}

/* Sleeper: count in, look, sleep. Waker: publish, look at the count. All sequentially consistent,
 * so at least one of the two sees the other.
 */
static void sleep_until_work(struct pool *p)
{
    uint32_t seen = atomic_load(&p->epoch);

    atomic_fetch_add(&p->sleepers, 1);
    if (!has_work(p))
        syscall(SYS_futex, &p->epoch, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void wake_sleepers(struct pool *p)
{
    if (atomic_load(&p->sleepers) == 0)
        return;
    atomic_fetch_add(&p->epoch, 1);
    syscall(SYS_futex, &p->epoch, FUTEX_WAKE_PRIVATE, THREADS_MAX, NULL, NULL, 0);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;

    while (!atomic_load(&p->closing)) {
        int64_t until = clock_ns() + SPIN_NS;

        take_tasks(p, w->index);
        while (!has_work(p) && clock_ns() < until)
            for (int i = 0; i < 16; i++)
                relax();
        if (!has_work(p))
            sleep_until_work(p);
    }
    return NULL;
}

static void stop_workers(struct pool *p, int started)
{
    atomic_store(&p->closing, true);
    wake_sleepers(p);
    for (int i = 1; i < started; i++)
        pthread_join(p->workers[i].thread, NULL);
}

int pool_open(int threads, struct pool **out)
{
    sigset_t old;
    struct pool *p;
    int r = 0, i;

    if (threads < 1 || threads > THREADS_MAX)
        return fail(-EINVAL, "pool: %d threads, want 1 to %d", threads, THREADS_MAX);
    p = aligned_alloc(64, (sizeof(*p) + 63) / 64 * 64);
    if (!p)
        return fail(-ENOMEM, "pool: no memory");
    memset(p, 0, sizeof(*p));
    p->threads = threads;
    p->workers = calloc((size_t)threads, sizeof(*p->workers));
    if (!p->workers) {
        r = fail(-ENOMEM, "pool: no memory");
        goto free_pool;
    }
    /* Signals are for the thread that waits for them, never for a worker. */
    mapping_block(&old);
    for (i = 1; i < threads && r == 0; i++) {
        p->workers[i].pool = p;
        p->workers[i].index = i;
        r = -pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r < 0) {
        r = fail(r, "pool: thread %d of %d: %s", i - 1, threads, strerror(-r));
        goto stop;
    }
    *out = p;
    return 0;

stop:
    stop_workers(p, i - 1);
    free(p->workers);
free_pool:
    free(p);
    return r;
}

void pool_run(struct pool *p, int tasks, pool_fn *fn, void *arg)
{
    uint64_t call;
    int spins = 0;

    if (!p || p->threads == 1 || tasks <= 1) {
        for (int i = 0; i < tasks; i++)
            fn(arg, i, 0);
        return;
    }
    call = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->tasks, tasks, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store(&p->ticket, call << 32 | (uint32_t)tasks);
    wake_sleepers(p);
    take_tasks(p, 0);
    /* The last tasks run elsewhere; give way in case their threads share this core. */
    while (atomic_load_explicit(&p->done, memory_order_acquire) < tasks) {
        relax();
        if (++spins % 1024 == 0)
            sched_yield();
    }
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    stop_workers(p, p->threads);
    free(p->workers);
    free(p);
}
