#include "src/base/pool.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "src/base/clock.h"
#include "tests/base/capture.h"

#define TASKS_MAX 1000

struct work {
    int threads, salt;
    int runs[TASKS_MAX], out[TASKS_MAX];
    atomic_int wrong_worker;
    _Atomic unsigned workers_seen;
};

static void task_fn(void *arg, int task, int worker)
{
    struct work *w = arg;

    if (worker < 0 || worker >= w->threads)
        atomic_fetch_add(&w->wrong_worker, 1);
    else
        atomic_fetch_or(&w->workers_seen, 1u << worker);
    w->runs[task]++; /* plain on purpose: one task, one thread */
    w->out[task] = task * 31 + w->salt;
}

static void check_run(struct pool *p, struct work *w, int tasks, int salt)
{
    memset(w->runs, 0, sizeof(w->runs));
    w->salt = salt;
    pool_run(p, tasks, task_fn, w);
    for (int i = 0; i < TASKS_MAX; i++) {
        cr_assert(w->runs[i] == (i < tasks), "task %d of %d ran %d times", i, tasks, w->runs[i]);
        cr_assert(i >= tasks || w->out[i] == i * 31 + salt);
    }
}

Test(pool, every_task_runs_once_whatever_the_threads)
{
    static const int threads[] = { 1, 2, 3, 8 };
    static const int tasks[] = { 0, 1, 2, 3, 7, 64, TASKS_MAX };
    static struct work w;

    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
        struct pool *p;

        memset(&w, 0, sizeof(w));
        w.threads = threads[t];
        cr_assert(eq(int, pool_open(threads[t], &p), 0));
        for (int round = 0; round < 200; round++)
            for (size_t i = 0; i < sizeof(tasks) / sizeof(tasks[0]); i++)
                check_run(p, &w, tasks[i], round);
        cr_expect(eq(int, w.wrong_worker, 0));
        pool_close(p);
    }
}

Test(pool, sleeping_workers_come_back)
{
    static struct work w = { .threads = 4 };
    struct pool *p;

    cr_assert(eq(int, pool_open(4, &p), 0));
    for (int round = 0; round < 30; round++) {
        clock_sleep(round % 3 * NS_PER_MS); /* longer than they spin */
        check_run(p, &w, 100, round);
    }
    pool_close(p);
}

/* A task that ends only when all four have begun: a pool that ran two on one thread would hang. */
static void meeting_fn(void *arg, int task, int worker)
{
    struct work *w = arg;

    (void)task;
    atomic_fetch_or(&w->workers_seen, 1u << worker);
    while (atomic_load(&w->workers_seen) != 15)
        clock_sleep(100 * NS_PER_US);
}

Test(pool, every_thread_takes_part, .timeout = 20)
{
    static struct work w = { .threads = 4 };
    struct pool *p;

    cr_assert(eq(int, pool_open(4, &p), 0));
    for (int round = 0; round < 5; round++) {
        w.workers_seen = 0;
        pool_run(p, 4, meeting_fn, &w);
        clock_sleep(NS_PER_MS);
    }
    cr_expect(eq(u32, w.workers_seen, 15));
    pool_close(p);
}

Test(pool, opens_and_closes_without_work_and_without_a_pool)
{
    static struct work w = { .threads = 1 };
    struct capture log;
    struct pool *p = NULL;

    for (int i = 0; i < 50; i++) {
        cr_assert(eq(int, pool_open(1 + i % 4, &p), 0));
        pool_close(p);
    }
    pool_close(NULL);
    check_run(NULL, &w, 10, 3);
    capture_start(&log);
    cr_expect(eq(int, pool_open(0, &p), -EINVAL));
    cr_expect(eq(int, pool_open(257, &p), -EINVAL));
    cr_expect(eq(int, log.lines, 2));
}
