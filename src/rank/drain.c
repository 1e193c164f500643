/* drain.c owns the process's signals. */
#include "src/rank/drain.h"

#include "src/base/log.h"
#include "src/rank/exit_code.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void end_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
}

static void *wait_for_signals(void *arg)
{
    struct drain *d = (struct drain *)arg;
    sigset_t set;
    int signal = 0;

    end_signals(&set);
    for (;;) {
        if (sigwait(&set, &signal) != 0)
            continue;
        if (!atomic_load(&d->serving) || atomic_load(&d->asked)) {
            log_info("%s: leaving at once", strsignal(signal));
            _exit(CODE_KILLED);
        }
        log_info("%s: finishing the round, once more to leave at once", strsignal(signal));
        atomic_store(&d->asked, 1);
    }
    return NULL;
}

int drain_open(struct drain **out)
{
    struct drain *d = malloc(sizeof(*d));
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t set;
    int err;

    if (!d)
        return fail(-ENOMEM, "drain: out of memory");
    atomic_init(&d->asked, 0);
    atomic_init(&d->serving, 0);
    end_signals(&set);
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
