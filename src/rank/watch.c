/* watch.c owns the last thread of a rank, and SIGALRM: the end of a process whose last thread is
 * stuck too, in an answer that nobody reads or in a library's abort. */
#include "src/rank/watch.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/mapping.h"
#include "src/base/stacks.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { LOOK_MS = 100, WHY_BYTES = 256, ANSWER_MS = 1000 };

static atomic_int last_code;

struct watch {
    struct watch_settings s;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    /* under lock */
    bool leave, quiet, calling;
    int64_t end_ns; /* 0: nobody has asked to end */
    int code;
    char why[WHY_BYTES];
    void (*answer)(void *arg, const char *why);
    void *answer_arg;
};

/* Wait for a call, or until when_ns. Under the lock. */
static void rest(struct watch *w, int64_t when_ns)
{
    struct timespec t = { .tv_sec = when_ns / NS_PER_S, .tv_nsec = when_ns % NS_PER_S };

    pthread_cond_timedwait(&w->turn, &w->lock, &t);
}

/* Whether the order that runs has taken too long. Under the lock: the rank is there as long as
 * nobody has asked to end it. */
static bool too_long(const struct watch *w, char *what, size_t cap)
{
    struct progress_view v;
    char at[160];

    if (w->end_ns != 0)
        return false;
    progress_read(w->s.progress, &v);
    if (v.since_ns == 0 || clock_ns() - v.since_ns < w->s.limit_ms * NS_PER_MS)
        return false;
    progress_text(&v, at, sizeof(at));
    snprintf(what, cap, "%s: not done in %d ms", at, w->s.limit_ms);
    return true;
}

static void leave_now(int signal)
{
    _exit(atomic_load(&last_code));
}

/* The kernel ends the process if nobody else has. */
static void set_alarm(int code, int ms)
{
    struct itimerval t = { .it_value = { ms / 1000, ms % 1000 * 1000L } };

    atomic_store(&last_code, code);
    setitimer(ITIMER_REAL, &t, NULL);
}

/* The grace time is over. Under the lock, which nobody gets any more. */
static void end_process(struct watch *w)
{
    if (w->answer)
        w->answer(w->answer_arg, w->why);
    _exit(w->code);
}

/* Under the lock, which is free meanwhile. */
static void call(struct watch *w, void (*fn)(void *arg, const char *what), void *arg,
                 const char *what)
{
    w->calling = true;
    pthread_mutex_unlock(&w->lock);
    fn(arg, what);
    pthread_mutex_lock(&w->lock);
    w->calling = false;
    pthread_cond_broadcast(&w->turn);
}

static void expired(void *arg, const char *what)
{
    struct watch *w = (struct watch *)arg;

    log_line(LOG_ERR, "watch: %s", what);
    stacks_print();
    w->s.expired(w->s.arg, what);
}

/* A process may begin with the signal blocked, and its threads with it. */
static void hear_alarm(void)
{
    sigset_t alarm;

    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
}

static void *watch_thread(void *arg)
{
    struct watch *w = (struct watch *)arg;
    int look = w->s.limit_ms / 4 < LOOK_MS ? w->s.limit_ms / 4 + 1 : LOOK_MS;
    bool said = false;

    hear_alarm();
    log_rank(w->s.rank);
    pthread_mutex_lock(&w->lock);
    while (!w->leave) {
        char what[WHY_BYTES];
        int64_t now = clock_ns();
        int64_t next = now + look * NS_PER_MS;

        if (w->end_ns != 0 && now >= w->end_ns)
            end_process(w);
        if (!w->quiet && mapping_lost(what, sizeof(what))) {
            call(w, w->s.lost, w->s.arg, what);
            continue;
        }
        if (!w->quiet && !said && too_long(w, what, sizeof(what))) {
            said = true;
            call(w, expired, w, what);
            continue;
        }
        rest(w, w->end_ns != 0 && w->end_ns < next ? w->end_ns : next);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int watch_open(const struct watch_settings *s, struct watch **out)
{
    struct watch *w = calloc(1, sizeof(*w));
    pthread_condattr_t attr;
    int r;

    if (!w)
        return fail(-ENOMEM, "watch: out of memory");
    w->s = *s;
    stacks_open();
    sigaction(SIGALRM, &(struct sigaction){ .sa_handler = leave_now }, NULL);
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->turn, &attr);
    pthread_condattr_destroy(&attr);
    r = pthread_create(&w->thread, NULL, watch_thread, w);
    if (r != 0) {
        pthread_cond_destroy(&w->turn);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return fail(-r, "watch: thread: %s", strerror(r));
    }
    mapping_watch(true);
    *out = w;
    return 0;
}

void watch_answers(struct watch *w, void (*fn)(void *arg, const char *why), void *arg)
{
    pthread_mutex_lock(&w->lock);
    w->answer = fn;
    w->answer_arg = arg;
    pthread_mutex_unlock(&w->lock);
}

void watch_end(struct watch *w, int code, const char *why)
{
    pthread_mutex_lock(&w->lock);
    if (w->end_ns == 0) {
        w->end_ns = clock_ns() + w->s.grace_ms * NS_PER_MS;
        w->code = code;
        snprintf(w->why, sizeof(w->why), "%s", why);
        set_alarm(code, w->s.grace_ms + ANSWER_MS);
        pthread_cond_broadcast(&w->turn);
    }
    pthread_mutex_unlock(&w->lock);
}

void watch_quiet(struct watch *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->quiet = true;
    while (w->calling)
        pthread_cond_wait(&w->turn, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

void watch_close(struct watch *w)
{
    bool ends;

    if (!w)
        return;
    watch_quiet(w);
    pthread_mutex_lock(&w->lock);
    ends = w->end_ns != 0;
    w->leave = !ends;
    pthread_cond_broadcast(&w->turn);
    pthread_mutex_unlock(&w->lock);
    if (ends) {
        pthread_detach(w->thread);
        return;
    }
    mapping_watch(false);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->turn);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
