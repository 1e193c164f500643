#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/exit_code.h"
#include "src/rank/plan.h"
#include "src/rank/watch.h"

struct seen {
    atomic_int times;
    char what[256];
    struct watch *w;
};

static void note(void *arg, const char *what)
{
    struct seen *s = (struct seen *)arg;

    snprintf(s->what, sizeof(s->what), "%s", what);
    atomic_fetch_add(&s->times, 1);
}

static void quiet(void *arg, enum log_level level, const char *line)
{
}

static struct watch *open_watch(struct seen *s, const struct progress *p, int limit_ms,
                                int grace_ms)
{
    struct watch_settings set = { .progress = p,
                                  .limit_ms = limit_ms,
                                  .grace_ms = grace_ms,
                                  .expired = note,
                                  .lost = note,
                                  .arg = s };

    log_sink(quiet, NULL);
    cr_assert(eq(int, watch_open(&set, &s->w), 0));
    return s->w;
}

Test(watch, idle_is_never_too_long_and_neither_are_short_orders)
{
    struct progress p = { 0 };
    struct seen s = { 0 };
    struct watch *w = open_watch(&s, &p, 60, 300);
    int64_t longest = 0;

    clock_sleep(150 * NS_PER_MS);
    cr_expect(eq(int, atomic_load(&s.times), 0), "idle: %s", s.what);
    /* long together, each short unless this thread was kept waiting */
    for (int i = 0; i < 8; i++) {
        int64_t begin = clock_ns(), took;

        progress_begin(&p, PLAN_ROUND, 4, begin);
        clock_sleep(15 * NS_PER_MS);
        progress_end(&p);
        took = clock_ns() - begin;
        longest = took > longest ? took : longest;
    }
    cr_expect(atomic_load(&s.times) == 0 || longest >= 60 * NS_PER_MS, "short orders: %s", s.what);
    watch_close(w);
}

Test(watch, an_order_that_is_not_done_in_time_is_said_once)
{
    struct progress p = { 0 };
    struct seen s = { 0 };
    struct watch *w = open_watch(&s, &p, 60, 300);
    int64_t begin = clock_ns();

    progress_begin(&p, PLAN_ROUND, 12, begin);
    progress_phase(&p, PHASE_CHOOSE);
    while (atomic_load(&s.times) == 0 && clock_ns() - begin < 5 * NS_PER_S)
        clock_sleep(NS_PER_MS);
    cr_expect(clock_ns() - begin >= 60 * NS_PER_MS);
    cr_expect(strcmp(s.what, "round 12, order ROUND, phase choose: not done in 60 ms") == 0, "%s",
              s.what);
    clock_sleep(150 * NS_PER_MS);
    cr_expect(eq(int, atomic_load(&s.times), 1));
    watch_close(w);
}

/* What the process still says before it is ended, and to whom it does not matter what its threads
 * do. */
static void answer(void *arg, const char *why)
{
    int *fd = (int *)arg;

    if (strcmp(why, "rank 1 is gone") != 0)
        _exit(1);
    if (write(*fd, "a", 1) != 1)
        _exit(2);
}

Test(watch, the_process_ends_with_the_code_after_the_grace_time, .exit_code = CODE_GROUP)
{
    struct progress p = { 0 };
    struct seen s = { 0 };
    struct watch *w = open_watch(&s, &p, 60000, 30);
    int pipe_fd[2];

    if (pipe(pipe_fd) != 0)
        _exit(3);
    watch_answers(w, answer, &pipe_fd[1]);
    watch_end(w, CODE_GROUP, "rank 1 is gone");
    watch_end(w, 1, "later causes do not count");
    clock_sleep(10 * NS_PER_S); /* a thread that computes */
    _exit(4);
}

Test(watch, an_order_of_a_rank_that_ends_is_not_too_long, .exit_code = CODE_GROUP)
{
    struct progress p = { 0 };
    struct seen s = { 0 };
    struct watch *w = open_watch(&s, &p, 60, 300);

    watch_end(w, CODE_GROUP, "any");
    progress_begin(&p, PLAN_ROUND, 12, clock_ns());
    clock_sleep(200 * NS_PER_MS);
    if (atomic_load(&s.times) != 0)
        _exit(1);
    clock_sleep(10 * NS_PER_S);
    _exit(4);
}

Test(watch, closing_does_not_call_off_the_end, .exit_code = CODE_GROUP)
{
    struct progress p = { 0 };
    struct seen s = { 0 };
    struct watch *w = open_watch(&s, &p, 60000, 30);

    watch_end(w, CODE_GROUP, "any");
    watch_close(w);
    clock_sleep(10 * NS_PER_S); /* something that is closed takes long */
    _exit(4);
}

static void stay(void *arg)
{
    for (;;)
        clock_sleep(10 * NS_PER_S);
}

/* Its reader has gone to sleep, and the pipe is full. */
static void answer_nobody(void *arg, const char *why)
{
    stay(arg);
}

/* As whoever starts a process may leave it. */
static void block_signals(void)
{
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
}

Test(watch, an_answer_that_nobody_reads_does_not_call_off_the_end, .exit_code = CODE_GROUP)
{
    struct progress p = { 0 };
    struct seen s = { 0 };
    struct watch *w;

    block_signals();
    w = open_watch(&s, &p, 60000, 30);
    watch_answers(w, answer_nobody, NULL);
    watch_end(w, CODE_GROUP, "any");
    watch_close(w);
    clock_sleep(10 * NS_PER_S);
    _exit(4);
}

/* The watch itself finds the fault, and what it spreads does not come back: an abort of sums. */
static void end_and_stay(void *arg, const char *what)
{
    watch_end(((struct seen *)arg)->w, CODE_GROUP, what);
    stay(arg);
}

Test(watch, a_call_that_does_not_return_does_not_call_off_the_end, .exit_code = CODE_GROUP)
{
    struct progress p = { 0 };
    struct seen s = { 0 };
    struct watch_settings set = { .progress = &p,
                                  .limit_ms = 20,
                                  .grace_ms = 30,
                                  .expired = end_and_stay,
                                  .lost = note,
                                  .arg = &s };

    log_sink(quiet, NULL);
    progress_begin(&p, PLAN_ROUND, 4, clock_ns() - NS_PER_S);
    cr_assert(eq(int, watch_open(&set, &s.w), 0));
    clock_sleep(10 * NS_PER_S);
    _exit(4);
}

static void note_late(void *arg, const char *what)
{
    struct seen *s = (struct seen *)arg;

    snprintf(s->what, sizeof(s->what), "begun");
    atomic_fetch_add(&s->times, 1);
    clock_sleep(100 * NS_PER_MS);
    snprintf(s->what, sizeof(s->what), "done");
}

Test(watch, quiet_waits_for_a_call_and_none_comes_after_it)
{
    struct progress p = { 0 };
    struct seen s = { 0 };
    struct watch_settings set = { .progress = &p,
                                  .limit_ms = 20,
                                  .grace_ms = 30,
                                  .expired = note_late,
                                  .lost = note,
                                  .arg = &s };

    log_sink(quiet, NULL);
    for (int early = 0; early < 2; early++) {
        atomic_store(&s.times, 0);
        cr_assert(eq(int, watch_open(&set, &s.w), 0));
        if (early)
            watch_quiet(s.w);
        progress_begin(&p, PLAN_ROUND, 4, clock_ns() - NS_PER_S);
        for (int i = 0; i < (early ? 100 : 5000) && atomic_load(&s.times) == 0; i++)
            clock_sleep(NS_PER_MS);
        watch_quiet(s.w);
        cr_expect(eq(int, atomic_load(&s.times), !early));
        cr_expect(strcmp(s.what, "done") == 0, "%s", s.what);
        progress_end(&p);
        watch_close(s.w);
    }
}
