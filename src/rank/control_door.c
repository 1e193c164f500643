/* control_door - accepting from anybody without trusting anybody. */
#include "src/rank/control_door.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"

enum { DOOR_BACKLOG = 128, DOOR_FULL_MS = 5 };

int door_addresses(const char *host, int port, struct door_address out[DOOR_ADDRESSES])
{
    struct addrinfo hint = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *list = NULL;
    char service[16];
    int n = 0, r;

    snprintf(service, sizeof(service), "%d", port);
    r = getaddrinfo(host, service, &hint, &list);
    if (r != 0)
        return fail(-EHOSTUNREACH, "host %s: %s", host, gai_strerror(r));
    for (const struct addrinfo *i = list; i && n < DOOR_ADDRESSES; i = i->ai_next) {
        memcpy(&out[n].a, i->ai_addr, i->ai_addrlen);
        out[n++].n = i->ai_addrlen;
    }
    freeaddrinfo(list);
    return n;
}

int door_loopback(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->ss_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

const char *door_hint(int err)
{
    return err == EADDRINUSE      ? "; another group runs, or set port"
           : err == EADDRNOTAVAIL ? "; hosts: no such address on this machine"
                                  : "";
}

/* A socket that listens on one address. errors   the errno, unlogged */
static int listen_on(const struct door_address *at, int *out)
{
    int on = 1, fd = socket(at->a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), r;

    if (fd < 0)
        return -errno;
    /* the last group's connections may still be in TIME_WAIT */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (const struct sockaddr *)&at->a, at->n) < 0 || listen(fd, DOOR_BACKLOG) < 0) {
        r = -errno;
        close(fd);
        return r;
    }
    *out = fd;
    return 0;
}

/* -EACCES and its like mean other things to who opens a group. */
static int cannot_listen(int r)
{
    switch (r) {
    case -EADDRINUSE:
    case -EMFILE:
    case -ENFILE:
    case -ENOMEM:
        return r;
    case -ENOBUFS:
        return -ENOMEM;
    default:
        return -EADDRNOTAVAIL;
    }
}

int door_listen(const char *name, const char *host, int port, int *out, uint16_t *out_port)
{
    struct door_address at[DOOR_ADDRESSES];
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);
    int count = door_addresses(host, port, at), r = count, fd = -1;

    for (int i = 0; i < count; i++) {
        r = listen_on(&at[i], &fd);
        if (r != -EADDRNOTAVAIL && r != -EAFNOSUPPORT)
            break; /* one that is here and taken is the one that others would find */
    }
    if (count < 0)
        return r;
    if (r < 0)
        return fail(cannot_listen(r), "%s: cannot listen on %s port %d: %s%s", name, host, port,
                    strerror(-r), door_hint(-r));
    getsockname(fd, (struct sockaddr *)&a, &n);
    *out = fd;
    *out_port = ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port
                                             : ((struct sockaddr_in6 *)&a)->sin6_port);
    return 0;
}

void door_init(const char *name, int fd, struct door *d)
{
    *d = (struct door){ .fd = fd, .name = name };
    for (int i = 0; i < DOOR_GUESTS; i++)
        d->guest[i].fd = -1;
}

/* A line of each kind a second: what strangers do must not fill a disk. */
static bool may_say(struct door *d, enum door_line line)
{
    int64_t now = clock_ns(), *said = &d->said_ns[line];

    if (*said && now - *said < NS_PER_S)
        return false;
    *said = now;
    return true;
}

void door_say(struct door *d, const struct door_guest *g, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    if (!may_say(d, DOOR_GUEST))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_warn("%s %s: %s", d->name, g->host, text);
}

void door_dismiss(struct door_guest *g)
{
    if (g->fd >= 0)
        close(g->fd);
    g->fd = -1;
}

int door_keep(struct door_guest *g)
{
    int fd = g->fd;

    g->fd = -1;
    return fd;
}

void door_more(struct door_guest *g, int stage, size_t n)
{
    g->stage = stage;
    g->have = 0;
    g->want = n;
}

static int waits(const struct door *d)
{
    return poll(&(struct pollfd){ .fd = d->fd, .events = POLLIN }, 1, 0) > 0;
}

/* Every place is taken and somebody waits: the oldest guest goes, if it had its time. */
static void make_room(struct door *d)
{
    struct door_guest *oldest = &d->guest[0];

    for (int i = 0; i < DOOR_GUESTS; i++) {
        if (d->guest[i].fd < 0)
            return;
        if (d->guest[i].until < oldest->until)
            oldest = &d->guest[i];
    }
    if (oldest->until - clock_ns() > (DOOR_DEADLINE_MS - DOOR_YIELD_MS) * NS_PER_MS || !waits(d))
        return;
    door_say(d, oldest, "has not said who it is, its place goes to the next");
    door_dismiss(oldest);
}

/* Whoever waits cannot come in: this process has too much open already. At the limit of files
 * accept says so whether anybody waits or not. */
static bool out_of_sockets(struct door *d)
{
    int err = errno;

    if ((err != EMFILE && err != ENFILE && err != ENOBUFS && err != ENOMEM) || !waits(d))
        return false;
    if (may_say(d, DOOR_NO_ROOM))
        log_warn("%s: cannot let in who waits: %s", d->name, strerror(err));
    return true;
}

/* Let in who waits, as long as there are places; the rest stay in the kernel's queue. */
static void let_in(struct door *d)
{
    d->stuck = false;
    make_room(d);
    for (int i = 0; i < DOOR_GUESTS; i++) {
        struct door_guest *g = &d->guest[i];
        struct sockaddr_storage a;
        socklen_t n = sizeof(a);
        int fd, on = 1;

        if (g->fd >= 0)
            continue;
        fd = accept4(d->fd, (struct sockaddr *)&a, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) { /* nobody, or one who left again */
            d->stuck = out_of_sockets(d);
            return;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        *g = (struct door_guest){ .fd = fd,
                                  .until = clock_ns() + DOOR_DEADLINE_MS * NS_PER_MS,
                                  .want = sizeof(struct control_hello) };
        if (getnameinfo((struct sockaddr *)&a, n, g->host, sizeof(g->host), NULL, 0,
                        NI_NUMERICHOST) != 0)
            snprintf(g->host, sizeof(g->host), "?");
    }
}

/* Read what a guest has said. 1: enough; 0: not yet, or it has been dismissed. */
static int listen_to(struct door *d, struct door_guest *g)
{
    ssize_t n = recv(g->fd, g->buf + g->have, g->want - g->have, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        if (clock_ns() < g->until)
            return 0;
        door_say(d, g, "has not said who it is in %d ms", DOOR_DEADLINE_MS);
        door_dismiss(g);
        return 0;
    }
    if (n <= 0) {
        log_debug("%s %s: left", d->name, g->host);
        door_dismiss(g);
        return 0;
    }
    g->have += (size_t)n;
    if (g->stage == 0 && g->have >= sizeof(uint32_t)) {
        uint32_t magic;

        memcpy(&magic, g->buf, sizeof(magic));
        if (magic != CONTROL_MAGIC) {
            door_say(d, g, "not a rank (first bytes %02x%02x%02x%02x)", g->buf[0], g->buf[1],
                     g->buf[2], g->buf[3]);
            door_dismiss(g);
            return 0;
        }
    }
    return g->have == g->want;
}

int door_wait(struct door *d, int wait_ms, struct door_guest **out)
{
    int64_t until = clock_ns() + wait_ms * NS_PER_MS;

    for (;;) {
        struct pollfd p[DOOR_GUESTS + 1];
        int64_t left;
        nfds_t n = 0;

        let_in(d);
        for (int i = 0; i < DOOR_GUESTS; i++) {
            if (d->guest[i].fd < 0)
                continue;
            if (listen_to(d, &d->guest[i])) {
                *out = &d->guest[i];
                return 1;
            }
            if (d->guest[i].fd >= 0)
                p[n++] = (struct pollfd){ .fd = d->guest[i].fd, .events = POLLIN };
        }
        left = (until - clock_ns()) / NS_PER_MS;
        if (left <= 0)
            return 0;
        if (n < DOOR_GUESTS && !d->stuck)
            p[n++] = (struct pollfd){ .fd = d->fd, .events = POLLIN };
        else if (left > DOOR_FULL_MS)
            left = DOOR_FULL_MS; /* whoever waits outside wakes nobody */
        poll(p, n, (int)left);
    }
}

void door_close(struct door *d)
{
    for (int i = 0; i < DOOR_GUESTS; i++)
        door_dismiss(&d->guest[i]);
    close(d->fd);
}
