/* watch.c owns the last thread of a rank. */
#include "src/rank/watch.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/mapping.h"
#include "src/base/stacks.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOOK_MS = 100, WHY_BYTES = 256 };

struct watch {
    struct watch_settings s;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    /* under lock */
    bool leave;
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

/* The grace time is over. Under the lock, which nobody gets any more. */
static void end_process(struct watch *w)
{
    if (w->answer)
        w->answer(w->answer_arg, w->why);
    _exit(w->code);
}

static void *watch_thread(void *arg)
{
    struct watch *w = (struct watch *)arg;
    int look = w->s.limit_ms / 4 < LOOK_MS ? w->s.limit_ms / 4 + 1 : LOOK_MS;
    bool said = false;

    log_rank(w->s.rank);
    pthread_mutex_lock(&w->lock);
    while (!w->leave) {
        char what[WHY_BYTES];
        int64_t now = clock_ns();
        int64_t next = now + look * NS_PER_MS;

        if (w->end_ns != 0 && now >= w->end_ns)
            end_process(w);
        if (mapping_lost(what, sizeof(what))) {
            pthread_mutex_unlock(&w->lock);
            w->s.lost(w->s.arg, what);
            pthread_mutex_lock(&w->lock);
            continue;
        }
        if (!said && too_long(w, what, sizeof(what))) {
            said = true;
            pthread_mutex_unlock(&w->lock);
            log_line(LOG_ERR, "watch: %s", what);
            stacks_print();
            w->s.expired(w->s.arg, what);
            pthread_mutex_lock(&w->lock);
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
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->turn, &attr);
    pthread_condattr_destroy(&attr);
    r = pthread_create(&w->thread, NULL, watch_thread, w);
    if (r != 0) {
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
        pthread_cond_signal(&w->turn);
    }
    pthread_mutex_unlock(&w->lock);
}

void watch_close(struct watch *w)
{
    bool ends;

    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    ends = w->end_ns != 0;
    w->leave = !ends;
    pthread_cond_signal(&w->turn);
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
