/* drain.c owns the process's signals. */
#include "src/rank/drain.h"

#include "src/base/log.h"
#include "src/rank/exit_code.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void own_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGUSR1);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
}

static void report(struct drain *d)
{
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->reports; i++)
        d->report[i].fn(d->report[i].arg);
    if (d->reports == 0)
        log_info("report: no rounds yet");
    pthread_mutex_unlock(&d->lock);
}

static void *wait_for_signals(void *arg)
{
    struct drain *d = (struct drain *)arg;
    sigset_t set;
    int signal = 0;

    own_signals(&set);
    for (;;) {
        if (sigwait(&set, &signal) != 0)
            continue;
        if (signal == SIGUSR1) {
            report(d);
            continue;
        }
        if (atomic_load(&d->stage) == DRAIN_LOADING || atomic_load(&d->asked)) {
            log_info("%s: leaving at once", strsignal(signal));
            _exit(CODE_KILLED);
        }
        if (atomic_load(&d->stage) == DRAIN_SERVING)
            log_info("%s: finishing the round, once more to leave at once", strsignal(signal));
        atomic_store(&d->asked, DRAIN_SIGNAL);
    }
    return NULL;
}

int drain_open(struct drain **out)
{
    struct drain *d = calloc(1, sizeof(*d));
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t set;
    int err;

    if (!d)
        return fail(-ENOMEM, "drain: out of memory");
    pthread_mutex_init(&d->lock, NULL);
    own_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    err = pthread_create(&thread, &attr, wait_for_signals, d);
    pthread_attr_destroy(&attr);
    if (err) {
        free(d);
        return fail(-err, "no thread for signals: %s", strerror(err));
    }
    *out = d;
    return 0;
}

void drain_report(struct drain *d, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&d->lock);
    assert(d->reports < RANKS_MAX);
    d->report[d->reports].fn = fn;
    d->report[d->reports++].arg = arg;
    pthread_mutex_unlock(&d->lock);
}

void drain_unreport(struct drain *d, const void *arg)
{
    pthread_mutex_lock(&d->lock);
    for (int i = d->reports - 1; i >= 0; i--)
        if (d->report[i].arg == arg)
            d->report[i] = d->report[--d->reports];
    pthread_mutex_unlock(&d->lock);
}
