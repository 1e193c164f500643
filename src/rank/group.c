/* group - the part of a group that does not depend on what joins its ranks. */
#include "src/rank/group.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/config.h"
#include "src/base/log.h"
#include "src/rank/exit_code.h"
#include "src/rank/progress.h"
#include "src/transport/comm.h"
#include "src/transport/link.h"

void group_init(struct group *g, const struct group_ops *ops, const struct group_settings *s)
{
    g->ops = ops;
    g->rank = s->rank;
    g->world = s->world;
    g->on_fail = s->on_fail;
    g->on_fail_arg = s->on_fail_arg;
    g->progress = s->progress;
    pthread_mutex_init(&g->sums_lock, NULL);
}

int group_channel_open(const struct group_settings *s, enum group_channel c, int a, int b)
{
    bool spare = strcmp(s->link, "rdma") == 0 && s->plan_form != PLAN_FORM_TCP;

    return c == GROUP_WINDOWS ||
           ((c == GROUP_PLAN || (c == GROUP_SPARE && spare)) && (a == 0 || b == 0));
}

/* A control channel over TCP joins processes, whatever carries their windows. */
static bool joins_processes(const struct group_settings *s)
{
    return strcmp(s->link, "tcp") == 0 || strcmp(s->link, "shm") == 0 ||
           strcmp(s->link, "rdma") == 0;
}

int group_open(const struct group_settings *s, struct group **out)
{
    if (joins_processes(s))
        return group_tcp_open(s, out);
    if (strcmp(s->link, "loop") == 0)
        return group_loop_open(s, out);
    return fail(-EINVAL, "group: link %s joins no ranks in this build", s->link);
}

int group_settings_check(const struct group_settings *s)
{
    if (s->world < 2 || s->world > GROUP_WORLD_MAX || s->rank < 0 || s->rank >= s->world)
        return fail(-EINVAL, "group: rank %d of %d, want a world of 2 to %d", s->rank, s->world,
                    GROUP_WORLD_MAX);
    if (!s->version || !s->agree)
        return fail(-EINVAL, "group: nothing to agree on");
    return 0;
}

int group_listen(const struct group_settings *s, int *fd)
{
    *fd = 0;
    return s->rank == 0 && joins_processes(s) ? group_tcp_listen(s, fd) : 0;
}

void group_unlisten(int fd)
{
    if (fd > 0)
        close(fd);
}

int group_exit_code(int r)
{
    switch (r) {
    case 0:
    case -ECANCELED: /* drained before there was a group */
        return CODE_DONE;
    case -EINVAL:
        return CODE_CONFIG;
    case -EACCES:
        return CODE_AUTH;
    case -ENOENT:
        return CODE_MISSING;
    case -ENODEV:
    case -ENOTSUP:
    case -EADDRINUSE:
    case -EADDRNOTAVAIL:
    case -EHOSTUNREACH:
    case -ETIMEDOUT:
        return CODE_UNAVAILABLE;
    case -ENOMEM:
    case -EMFILE:
    case -ENFILE:
    case -EAGAIN: /* a thread that could not be had */
        return CODE_RESOURCE;
    default:
        return CODE_GROUP;
    }
}

struct link *group_link(struct group *g, int peer, enum group_channel channel)
{
    assert(peer >= 0 && peer < g->world && channel < GROUP_CHANNELS);
    return g->link[peer][channel];
}

int group_failed(const struct group *g)
{
    return atomic_load_explicit(&g->failed, memory_order_acquire);
}

const char *group_reason(const struct group *g)
{
    return group_failed(g) ? g->reason : "";
}

int group_stopping(const struct group *g)
{
    return atomic_load_explicit(&g->stopping, memory_order_acquire);
}

/* "; here: round 3, order ROUND 12, phase window, exchange 84 waits for a peer" */
static const char *where(const struct group *g, char *out, size_t cap)
{
    struct progress_view v;
    int n = snprintf(out, cap, "; here: ");

    if (!g->progress)
        return "";
    progress_read(g->progress, &v);
    progress_text(&v, out + n, cap - (size_t)n);
    return out;
}

/* The first one to come writes the reason and has to spread it. */
static bool claim(struct group *g, int r, const char *text)
{
    if (atomic_exchange(&g->claimed, 1))
        return false;
    snprintf(g->reason, sizeof(g->reason), "%s", text);
    atomic_store_explicit(&g->failed, r, memory_order_release);
    return true;
}

static void spread(struct group *g, int r, int tell)
{
    for (int p = 0; p < g->world; p++)
        for (int c = 0; c < GROUP_CHANNELS; c++)
            if (g->link[p][c])
                g->link[p][c]->ops->abort(g->link[p][c]);
    if (tell)
        g->ops->tell(g, r, g->reason);
}

/* Last of all: a library's abort may take its time. */
static void abort_sums(struct group *g)
{
    pthread_mutex_lock(&g->sums_lock);
    if (g->sums)
        comm_abort(g->sums, g->reason);
    pthread_mutex_unlock(&g->sums_lock);
}

void group_sums(struct group *g, struct comm *c)
{
    pthread_mutex_lock(&g->sums_lock);
    g->sums = c;
    pthread_mutex_unlock(&g->sums_lock);
    if (group_failed(g))
        abort_sums(g);
}

void group_fault(struct group *g, int r, int tell, const char *text)
{
    char here[192];

    if (!claim(g, r, text))
        return;
    fail(r, "group: %s%s", g->reason, where(g, here, sizeof(here)));
    spread(g, r, tell);
    if (g->on_fail)
        g->on_fail(g->on_fail_arg, g->reason);
    abort_sums(g);
}

void group_fail(struct group *g, int r, const char *fmt, ...)
{
    char text[GROUP_REASON_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    group_fault(g, r, 1, text);
}

void group_decline(struct group *g, int r, const char *why)
{
    if (!claim(g, r, why))
        return;
    spread(g, r, 1);
    abort_sums(g);
}

int group_compare(struct group *g, const char *const what[GROUP_MARK_PARTS],
                  const uint8_t mark[GROUP_DIGEST_BYTES], int timeout_ms)
{
    char text[GROUP_REASON_BYTES];
    int r = g->ops->barrier(g, timeout_ms, mark);

    for (int p = 0; p < g->world && r == 0; p++) {
        const struct group_mark *theirs = &g->peer_mark[p];

        if (!theirs->there || memcmp(theirs->bytes, mark, GROUP_DIGEST_BYTES) == 0)
            continue;
        group_differ(what, mark, theirs->bytes, p, text, sizeof(text));
        r = -EINVAL;
        group_fault(g, r, 1, text);
    }
    return r;
}

int group_vote(struct group *g, bool yes, int timeout_ms)
{
    uint8_t mark[GROUP_DIGEST_BYTES] = { yes };

    /* to rank 0, who sees everybody, and back */
    for (int turn = 0; turn < 2; turn++) {
        int r = g->ops->barrier(g, timeout_ms, turn == 0 || g->rank == 0 ? mark : NULL);

        if (r < 0)
            return r;
        for (int p = 0; p < g->world; p++)
            if (g->peer_mark[p].there && !g->peer_mark[p].bytes[0])
                mark[0] = 0;
    }
    return mark[0];
}

void group_ask(struct group *g)
{
    g->ops->ask(g);
}

void group_stop(struct group *g)
{
    g->ops->stop(g);
}

int group_barrier(struct group *g, int timeout_ms)
{
    return g->ops->barrier(g, timeout_ms, NULL);
}

void group_fini(struct group *g)
{
    for (int p = 0; p < g->world; p++) {
        for (int c = 0; c < GROUP_CHANNELS; c++) {
            if (g->link[p][c])
                g->link[p][c]->ops->close(g->link[p][c]);
            g->link[p][c] = NULL;
        }
    }
    pthread_mutex_destroy(&g->sums_lock);
}

void group_close(struct group *g)
{
    if (g)
        g->ops->close(g);
}
