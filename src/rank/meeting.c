/* meeting.c owns the thread that opens a group. */
#include "src/rank/meeting.h"

#include "src/base/clock.h"
#include "src/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 2, REFUSE_MS = 1000 };

struct meeting {
    struct group_settings s;
    void (*failed)(void *arg, int r);
    void *failed_arg;
    atomic_int cancel;
    pthread_t thread;
    struct group *group; /* these two once it is done */
    int result;
    atomic_int done;
};

static void *open_group(void *arg)
{
    struct meeting *m = (struct meeting *)arg;

    log_rank(m->s.rank);
    m->result = group_open(&m->s, &m->group);
    if (m->result < 0 && m->result != -ECANCELED)
        m->failed(m->failed_arg, m->result);
    atomic_store(&m->done, 1);
    return NULL;
}

int meeting_open(const struct group_settings *s, void (*failed)(void *arg, int r), void *arg,
                 struct meeting **out)
{
    struct meeting *m = calloc(1, sizeof(*m));
    int r;

    if (!m)
        return fail(-ENOMEM, "meeting: out of memory");
    m->s = *s;
    m->s.cancel = &m->cancel;
    m->failed = failed;
    m->failed_arg = arg;
    r = group_listen(&m->s, &m->s.listener);
    if (r < 0) {
        free(m);
        return r;
    }
    r = pthread_create(&m->thread, NULL, open_group, m);
    if (r != 0) {
        group_unlisten(m->s.listener);
        free(m);
        return fail(-r, "meeting: thread: %s", strerror(r));
    }
    *out = m;
    return 0;
}

static int take(struct meeting *m, struct group **out)
{
    *out = m->group;
    m->group = NULL;
    return m->result;
}

int meeting_wait(struct meeting *m, const atomic_int *asked, struct group **out)
{
    while (!atomic_load(&m->done)) {
        if (atomic_load(asked))
            atomic_store(&m->cancel, CANCEL_ASKED);
        clock_sleep(LOOK_MS * NS_PER_MS);
    }
    return take(m, out);
}

void meeting_refuse(struct meeting *m, int r, const char *why, struct group **out)
{
    int64_t until = clock_ns() + REFUSE_MS * NS_PER_MS;

    while (!atomic_load(&m->done)) {
        if (clock_ns() >= until)
            atomic_store(&m->cancel, CANCEL_SILENT);
        clock_sleep(LOOK_MS * NS_PER_MS);
    }
    if (take(m, out) == 0)
        group_decline(*out, r, why);
}

void meeting_close(struct meeting *m)
{
    if (!m)
        return;
    atomic_store(&m->cancel, CANCEL_SILENT);
    pthread_join(m->thread, NULL);
    group_close(m->group);
    free(m);
}
