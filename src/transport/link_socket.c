/* link_socket - options and registration records of links that begin with a socket. */
#include "src/transport/link_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "src/base/clock.h"
#include "src/base/log.h"

enum { BUSY_POLL_US = 50, LOOK_MS = 20 };

int link_socket_check(int fd)
{
    int type = 0;
    socklen_t n = sizeof(type);

    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0)
        return fail(-EINVAL, "link: descriptor %d: %s", fd, strerror(errno));
    if (type != SOCK_STREAM)
        return fail(-EINVAL, "link: descriptor %d is no stream socket", fd);
    return 0;
}

void link_socket_tune(int fd)
{
    int on = 1, us = BUSY_POLL_US;

    /* both fail harmlessly: the first on a Unix socket, the second without the right to it */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &us, sizeof(us));
}

int link_socket_send(struct link *l, int fd, const void *p, size_t n)
{
    /* records at the start of a fresh socket: they always fit its buffer */
    ssize_t sent = send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (sent == (ssize_t)n)
        return 0;
    return fail(-ECONNRESET, "link %s channel %d: rank %d: %s", l->ops->name, l->channel, l->peer,
                sent < 0 ? strerror(errno) : "short send");
}

int link_socket_recv(struct link *l, int fd, const atomic_int *aborted, int meet_ms, void *out,
                     size_t want)
{
    int64_t until = clock_ns() + meet_ms * NS_PER_MS;
    size_t have = 0;

    while (have < want) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        ssize_t n;

        if (atomic_load_explicit(aborted, memory_order_acquire))
            return -ECANCELED;
        if (clock_ns() > until)
            return fail(-ETIMEDOUT, "link %s channel %d: rank %d did not come in %d ms",
                        l->ops->name, l->channel, l->peer, meet_ms);
        if (poll(&p, 1, LOOK_MS) <= 0)
            continue;
        n = recv(fd, (uint8_t *)out + have, want - have, MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0) {
            if (atomic_load_explicit(aborted, memory_order_acquire))
                return -ECANCELED;
            return fail(-ECONNRESET, "link %s channel %d: rank %d is gone: %s", l->ops->name,
                        l->channel, l->peer, n < 0 ? strerror(errno) : "connection closed");
        }
        have += (size_t)n;
    }
    return 0;
}

int link_hello_send(struct link *l, int fd, const struct link_hello *h)
{
    return link_socket_send(l, fd, h, sizeof(*h));
}

int link_hello_recv(struct link *l, int fd, const atomic_int *aborted, int meet_ms,
                    struct link_hello *out)
{
    struct link_hello h;
    int r = link_socket_recv(l, fd, aborted, meet_ms, &h, sizeof(h));

    if (r < 0)
        return r;
    if (h.magic != LINK_HELLO_MAGIC || h.name[sizeof(h.name) - 1] != 0)
        return fail(-EPROTO, "link %s channel %d: rank %d sent no link record", l->ops->name,
                    l->channel, l->peer);
    *out = h;
    return 0;
}

int link_hello_meet(struct link *l, int fd, const atomic_int *aborted, int meet_ms,
                    const struct link_hello *mine, struct link_hello *theirs)
{
    int r = link_hello_send(l, fd, mine);

    if (r == 0)
        r = link_hello_recv(l, fd, aborted, meet_ms, theirs);
    if (r < 0)
        return r;
    if (theirs->channel != mine->channel || theirs->slots != mine->slots ||
        theirs->slot_bytes != mine->slot_bytes)
        return fail(
            -EINVAL,
            "link %s: channel %u with %u slots of %u bytes here, %u with %u of %u on rank %d",
            l->ops->name, mine->channel, mine->slots, mine->slot_bytes, theirs->channel,
            theirs->slots, theirs->slot_bytes, l->peer);
    return 0;
}
