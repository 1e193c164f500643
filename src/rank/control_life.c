/* control_life - the thread of a group over TCP, and what other threads may do with the group.
 *
 * The thread sends heartbeats, reads frames, asks the links' devices for news and notices ends; it
 * shares no lock that anybody holds while loading, logging to a disk or waiting for a device.
 * Frames to peers never wait: a socket that is full for a notice of 64 bytes belongs to a peer that
 * has stopped reading long ago.
 */
#include "src/rank/control_tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/memory_plan.h"
#include "src/transport/link.h"

enum { LINGER_MS = 100 };

static void shout(struct control *c, int but, enum control_kind kind,
                  const struct control_body *body)
{
    for (int p = 0; p < c->base.world; p++)
        if (c->peer[p].wire && p != but)
            wire_send(c->peer[p].wire, kind, body, 0);
}

static void control_tell(struct group *g, int r, const char *text)
{
    struct control *c = (struct control *)g;
    struct body_reason reason = { .rank = g->rank, .error = r };
    struct control_body body;

    snprintf(reason.text, sizeof(reason.text), "%s", text);
    if (body_reason_pack(&reason, &body) == 0)
        shout(c, -1, CONTROL_FAIL, &body);
    for (int p = 0; p < g->world; p++)
        if (c->peer[p].wire)
            shutdown(c->peer[p].wire->fd, SHUT_WR);
}

static void control_ask(struct group *g)
{
    if (!group_failed(g))
        shout((struct control *)g, -1, CONTROL_STOP, NULL);
}

static void control_stop(struct group *g)
{
    struct control *c = (struct control *)g;

    atomic_store_explicit(&g->stopping, 1, memory_order_release);
    if (!atomic_exchange(&c->stop_sent, 1) && !group_failed(g))
        shout(c, -1, CONTROL_STOP, NULL);
}

/* This rank has come to its end. As long as one of both has only asked for it, they still need each
 * other. */
static bool leaving(struct control *c)
{
    return atomic_load(&c->stop_sent) != 0;
}

/* A peer's connection has ended. */
static void peer_ended(struct control *c, int p, int r)
{
    char text[GROUP_REASON_BYTES];

    c->peer[p].over = 1;
    if (group_stopping(&c->base))
        return;
    snprintf(text, sizeof(text), "rank %d is gone: %s", p,
             r == -ECONNRESET ? "connection closed" : "control channel broken");
    group_fault(&c->base, r, 1, text);
}

/* FAIL of a peer: rank 0 passes it on to the others. */
static void peer_failed(struct control *c, int p, const struct wire_frame *f)
{
    char text[GROUP_REASON_BYTES];
    struct body_reason why;
    struct control_body body;

    c->peer[p].over = 1;
    if (body_reason_unpack(f->body, f->n, &why) < 0) {
        snprintf(why.text, sizeof(why.text), "unknown");
        why.rank = p;
        why.error = -EREMOTEIO;
    }
    if (c->base.rank == 0 && body_reason_pack(&why, &body) == 0)
        shout(c, p, CONTROL_FAIL, &body);
    snprintf(text, sizeof(text), "rank %d: %.*s", why.rank, GROUP_REASON_BYTES - 16, why.text);
    group_fault(&c->base, group_heard(why.error), 0, text);
}

static void wake_barrier(struct control *c)
{
    pthread_mutex_lock(&c->lock);
    pthread_cond_broadcast(&c->turn);
    pthread_mutex_unlock(&c->lock);
}

static int at_barrier(struct control *c, int p, const struct wire_frame *f)
{
    struct body_barrier b;
    int r = body_barrier_unpack(f->body, f->n, &b);

    if (r < 0)
        return r;
    pthread_mutex_lock(&c->lock);
    c->peer[p].mark = group_mark_of(b.marked ? b.mark : NULL);
    if (c->base.rank == 0)
        c->peer[p].at_barrier = b.number;
    else
        c->released = b.number;
    pthread_cond_broadcast(&c->turn);
    pthread_mutex_unlock(&c->lock);
    return 0;
}

/* One frame of a peer. */
static int handle(struct control *c, int p, const struct wire_frame *f, int64_t now)
{
    struct body_beat beat;
    int r;

    switch (f->kind) {
    case CONTROL_BEAT:
        r = body_beat_unpack(f->body, f->n, &beat);
        if (r == 0)
            stall_note(&c->stall, p, &beat.at, now);
        return r;
    case CONTROL_STOP:
        atomic_store_explicit(&c->base.stopping, 1, memory_order_release);
        return 0;
    case CONTROL_FAIL:
        peer_failed(c, p, f);
        return 0;
    case CONTROL_BARRIER:
        return at_barrier(c, p, f);
    default:
        return fail(-EPROTO, "control: frame of kind %d from rank %d in a complete world", f->kind,
                    p);
    }
}

static void hear(struct control *c, int p, int64_t now)
{
    struct control_peer *peer = &c->peer[p];
    struct wire_frame f;
    int r = 0;

    while (!peer->over && (r = wire_take(peer->wire, &f)) == 1) {
        peer->heard_ns = now;
        r = handle(c, p, &f, now);
        if (r < 0)
            break;
    }
    if (r < 0)
        peer_ended(c, p, r);
}

static void check_ages(struct control *c, int64_t now)
{
    for (int p = 0; p < c->base.world; p++) {
        struct control_peer *peer = &c->peer[p];
        char text[GROUP_REASON_BYTES];
        int age = (int)((now - peer->heard_ns) / NS_PER_MS);

        if (!peer->wire || peer->over || leaving(c) || age < c->peer_timeout_ms)
            continue;
        peer->over = 1;
        snprintf(text, sizeof(text), "rank %d is gone: no heartbeat for %d ms", p, age);
        group_fault(&c->base, -ETIMEDOUT, 1, text);
    }
}

static void beat(struct control *c, int64_t now)
{
    struct body_beat b = { .state = (unsigned)group_stopping(&c->base),
                           .uptime_ms = (uint64_t)((now - c->start_ns) / NS_PER_MS) };
    struct control_body body;

    if (now - c->weighed_ns >= NS_PER_S) {
        c->available = memory_available();
        c->weighed_ns = now;
    }
    b.free_bytes = c->available;
    if (c->base.progress)
        progress_read(c->base.progress, &b.at);
    if (body_beat_pack(&b, &body) < 0)
        return;
    for (int p = 0; p < c->base.world; p++)
        if (c->peer[p].wire && !c->peer[p].over)
            wire_send(c->peer[p].wire, CONTROL_BEAT, &body,
                      0); /* a broken wire is noticed by its silence */
}

/* A device behind a link may report its end while this rank computes, or has nothing to do. */
static void check_links(struct control *c)
{
    for (int p = 0; p < c->base.world; p++) {
        for (int k = 0; k < GROUP_CHANNELS; k++) {
            struct link *l = c->base.link[p][k];
            int r = l ? l->ops->news(l) : 0;

            if (r < 0 && !leaving(c))
                group_fault(&c->base, r, 1, fail_text());
        }
    }
}

/* Somebody has to get on. The star's centre sees everybody, a follower rank 0 and itself. */
static void check_stall(struct control *c, int64_t now)
{
    struct progress_view mine;
    char text[GROUP_REASON_BYTES];

    if (!c->base.progress || leaving(c))
        return;
    progress_read(c->base.progress, &mine);
    stall_note(&c->stall, c->base.rank, &mine, now);
    if (stall_find(&c->stall, c->base.rank == 0 || c->base.world == 2, c->stall_ms, now, text,
                   sizeof(text)) == 0)
        group_fault(&c->base, -ETIMEDOUT, 1, text);
}

static void *control_thread(void *arg)
{
    struct control *c = arg;
    int64_t next = clock_ns(), last = next;

    log_rank(c->base.rank);
    while (!atomic_load(&c->leave) && !group_failed(&c->base)) {
        struct pollfd p[GROUP_WORLD_MAX + 1];
        int64_t now = clock_ns();
        nfds_t n = 0;

        if (now >= next) {
            beat(c, now);
            check_links(c);
            next = now + c->heartbeat_ms * NS_PER_MS;
        }
        p[n++] = (struct pollfd){ .fd = c->wake, .events = POLLIN };
        for (int i = 0; i < c->base.world; i++)
            if (c->peer[i].wire && !c->peer[i].over)
                p[n++] = (struct pollfd){ .fd = c->peer[i].wire->fd, .events = POLLIN };
        poll(p, n, (int)((next - now) / NS_PER_MS) + 1);
        now = clock_ns();
        for (int i = 0; i < c->base.world; i++) {
            if (!c->peer[i].wire || c->peer[i].over)
                continue;
            /* when this process itself was stopped, its peers were not silent: it did not listen */
            if (now - last > c->peer_timeout_ms * NS_PER_MS / 2) {
                c->peer[i].heard_ns = now;
                stall_excuse(&c->stall, now);
            }
            hear(c, i, now);
        }
        last = now;
        check_ages(c, now);
        check_stall(c, now);
    }
    wake_barrier(c);
    return NULL;
}

/* Everybody is here, seen from rank 0; or rank 0 has said so. */
static int barrier_open(struct control *c, uint64_t number)
{
    if (c->base.rank != 0)
        return c->released >= number;
    for (int p = 1; p < c->base.world; p++)
        if (c->peer[p].at_barrier < number)
            return 0;
    return 1;
}

static int barrier_wait(struct control *c, uint64_t number, int timeout_ms)
{
    int64_t until = clock_ns() + timeout_ms * NS_PER_MS;
    struct timespec t = { .tv_sec = until / NS_PER_S, .tv_nsec = until % NS_PER_S };
    int r = 0;

    pthread_mutex_lock(&c->lock);
    while (r == 0 && !barrier_open(c, number)) {
        r = group_failed(&c->base);
        if (r == 0 && pthread_cond_timedwait(&c->turn, &c->lock, &t) == ETIMEDOUT)
            r = barrier_open(c, number) ? 0 : -ETIMEDOUT;
    }
    /* before anybody is let go */
    for (int p = 0; p < c->base.world && r == 0; p++)
        c->base.peer_mark[p] = c->peer[p].mark;
    pthread_mutex_unlock(&c->lock);
    if (r == -ETIMEDOUT && !group_failed(&c->base))
        return fail(r, "control: barrier %llu: not everybody came in %d ms",
                    (unsigned long long)number, timeout_ms);
    return r;
}

static int control_barrier(struct group *g, int timeout_ms, const uint8_t *mark)
{
    struct control *c = (struct control *)g;
    struct body_barrier b = { .number = ++c->arrived, .marked = mark != NULL };
    struct control_body body;
    int r;

    if (mark)
        memcpy(b.mark, mark, sizeof(b.mark));
    r = body_barrier_pack(&b, &body);
    if (r == 0 && g->rank != 0)
        shout(c, -1, CONTROL_BARRIER, &body);
    if (r == 0)
        r = barrier_wait(c, b.number, timeout_ms);
    if (r == 0 && g->rank == 0)
        shout(c, -1, CONTROL_BARRIER, &body);
    return r;
}

/* Let the peers read what we sent last before the kernel may answer their bytes with a reset. */
static void linger(struct control *c)
{
    int64_t until = clock_ns() + LINGER_MS * NS_PER_MS;

    for (int p = 0; p < c->base.world; p++) {
        struct wire *w = c->peer[p].wire;
        struct wire_frame f;
        int r = 0;

        if (!w)
            continue;
        shutdown(w->fd, SHUT_WR);
        while (r >= 0 && clock_ns() < until) {
            r = wire_take(w, &f);
            if (r == 0)
                poll(&(struct pollfd){ .fd = w->fd, .events = POLLIN }, 1, 10);
        }
    }
}

int control_start(struct control *c)
{
    pthread_condattr_t attr;
    int r;

    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake < 0)
        return fail(-errno, "control: eventfd: %s", strerror(errno));
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->turn, &attr);
    pthread_condattr_destroy(&attr);
    c->start_ns = clock_ns();
    for (int p = 0; p < c->base.world; p++)
        c->peer[p].heard_ns = c->start_ns;
    r = pthread_create(&c->thread, NULL, control_thread, c);
    if (r != 0)
        return fail(-r, "control: thread: %s", strerror(r));
    c->running = 1;
    return 0;
}

void control_free(struct control *c)
{
    if (c->running) {
        atomic_store(&c->leave, 1);
        if (eventfd_write(c->wake, 1) < 0)
            log_debug("control: eventfd: %s",
                      strerror(errno)); /* the thread wakes for its next beat */
        pthread_join(c->thread, NULL);
        linger(c);
    }
    group_fini(&c->base);
    for (int p = 0; p < c->base.world; p++)
        wire_close(c->peer[p].wire);
    if (c->wake >= 0) {
        close(c->wake);
        pthread_cond_destroy(&c->turn);
        pthread_mutex_destroy(&c->lock);
    }
    free(c);
}

static void control_close(struct group *g)
{
    control_stop(g);
    control_free((struct control *)g);
}

const struct group_ops control_group_ops = {
    .name = "tcp",
    .tell = control_tell,
    .ask = control_ask,
    .stop = control_stop,
    .barrier = control_barrier,
    .close = control_close,
};
