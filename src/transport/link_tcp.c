/* link_tcp - one socket a channel.
 *
 * Frames {tag, off, len} and len bytes. Nobody but the waiting thread reads the socket: its next
 * poll copies the bytes into the inbox and raises the flag, so that no second thread has to be
 * woken. Since a poll also goes on with unfinished sends, two ranks that send more than their
 * sockets hold at the same time never block each other. TCP_USER_TIMEOUT stays off: a peer may be
 * late by a whole kernel build with its buffers full, and its death is the heartbeat's to notice.
 */
#include "src/transport/link.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/link_area.h"
#include "src/transport/link_socket.h"
#include "src/transport/link_table.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little endian in memory");

struct tcp_frame {
    uint64_t tag;
    uint32_t off, len;
};
static_assert(sizeof(struct tcp_frame) == 16, "frame header on the wire");

enum { TCP_QUEUE = 64, TCP_RX_BYTES = 32768 };

struct tcp_send {
    struct tcp_frame head;
    size_t done; /* bytes of head and payload that have left */
};

struct tcp_link {
    struct link base;
    int meet_ms;
    atomic_int aborted;
    int dead; /* first error, kept */
    int mute; /* the peer takes no more, but what it sent before is still to be read */
    const struct link_mem *mem;
    uint8_t *area;
    struct tcp_send queue[TCP_QUEUE]; /* base.pending entries from first */
    int first;
    struct tcp_frame in; /* frame whose payload is arriving */
    size_t in_left;      /* bytes of it that are still to come */
    int in_open;
    size_t rx_have;
    uint8_t rx[TCP_RX_BYTES]; /* bytes not taken yet; less than a header between two polls */
};

static int gone(struct tcp_link *t, int cause)
{
    if (atomic_load_explicit(&t->aborted, memory_order_acquire))
        return t->dead = -ECANCELED;
    log_debug("link tcp channel %d: rank %d is gone: %s", t->base.channel, t->base.peer,
              cause ? strerror(cause) : "connection closed");
    return t->dead = -ECONNRESET;
}

/* Move sends on until all have left or the socket is full. */
static int push(struct tcp_link *t)
{
    while (t->base.pending) {
        struct tcp_send *s = &t->queue[t->first];
        size_t head = s->done < sizeof(s->head) ? sizeof(s->head) - s->done : 0;
        size_t body = s->done > sizeof(s->head) ? s->done - sizeof(s->head) : 0;
        struct iovec v[2] = {
            { .iov_base = (uint8_t *)&s->head + s->done, .iov_len = head },
            { .iov_base = t->mem->outbox + s->head.off + body, .iov_len = s->head.len - body },
        };
        struct msghdr m = { .msg_iov = head ? v : v + 1, .msg_iovlen = head ? 2 : 1 };
        ssize_t n = sendmsg(t->base.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n < 0) {
            if (atomic_load_explicit(&t->aborted, memory_order_acquire))
                return gone(t, 0);
            t->base.pending = 0;
            return t->mute = -ECONNRESET;
        }
        s->done += (size_t)n;
        if (s->done == sizeof(s->head) + s->head.len) {
            t->first = (t->first + 1) % TCP_QUEUE;
            t->base.pending--;
        }
    }
    return 0;
}

static void frame_done(struct tcp_link *t)
{
    int slot = (int)(t->in.off / t->mem->slot_bytes);

    t->in_open = 0;
    atomic_store_explicit(link_flag(t->mem, slot), t->in.tag, memory_order_release);
}

static int frame_begin(struct tcp_link *t, const uint8_t *p)
{
    const struct link_mem *m = t->mem;

    memcpy(&t->in, p, sizeof(t->in));
    if (t->in.off >= (size_t)m->slots * m->slot_bytes ||
        t->in.len > m->slot_bytes - t->in.off % m->slot_bytes) {
        t->dead = -EPROTO;
        return fail(-EPROTO, "link tcp channel %d: frame of rank %d: %u bytes at %u, slots of %zu",
                    t->base.channel, t->base.peer, t->in.len, t->in.off, m->slot_bytes);
    }
    t->in_open = 1;
    t->in_left = t->in.len;
    return 0;
}

/* Where the payload that is arriving goes on. */
static uint8_t *in_at(const struct tcp_link *t)
{
    return t->mem->inbox + t->in.off + (t->in.len - t->in_left);
}

/* Take whole frames, and what there is of the last one, out of rx. */
static int take(struct tcp_link *t)
{
    size_t at = 0;

    for (;;) {
        size_t n = t->rx_have - at;

        if (!t->in_open) {
            int r;

            if (n < sizeof(struct tcp_frame))
                break;
            r = frame_begin(t, t->rx + at);
            if (r < 0)
                return r;
            at += sizeof(struct tcp_frame);
            n -= sizeof(struct tcp_frame);
        }
        if (n > t->in_left)
            n = t->in_left;
        memcpy(in_at(t), t->rx + at, n);
        at += n;
        t->in_left -= n;
        if (t->in_left)
            break;
        frame_done(t);
    }
    t->rx_have -= at;
    memmove(t->rx, t->rx + at, t->rx_have);
    return 0;
}

/* Read what has arrived: a long payload straight into the inbox, everything else through rx. */
static int pull(struct tcp_link *t)
{
    for (;;) {
        int direct = t->in_open && t->rx_have == 0 && t->in_left >= TCP_RX_BYTES / 2;
        uint8_t *to = direct ? in_at(t) : t->rx + t->rx_have;
        size_t room = direct ? t->in_left : TCP_RX_BYTES - t->rx_have;
        ssize_t n = recv(t->base.fd, to, room, MSG_DONTWAIT);
        int r = 0;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n <= 0)
            return gone(t, n < 0 ? errno : 0);
        if (direct) {
            t->in_left -= (size_t)n;
            if (t->in_left == 0)
                frame_done(t);
        } else {
            t->rx_have += (size_t)n;
            r = take(t);
        }
        if (r < 0)
            return r;
        if ((size_t)n < room)
            return 0; /* the socket is empty; what comes later is the next poll's */
    }
}

static int tcp_poll(struct link *l)
{
    struct tcp_link *t = (struct tcp_link *)l;
    int r;

    if (t->dead)
        return t->dead;
    if (atomic_load_explicit(&t->aborted, memory_order_acquire))
        return gone(t, 0);
    r = push(t);
    if (r == -ECANCELED)
        return r;
    return pull(t);
}

static int tcp_send(struct link *l, const struct link_mem *m, size_t off, size_t len, uint64_t tag)
{
    struct tcp_link *t = (struct tcp_link *)l;

    if (t->dead || t->mute)
        return t->dead ? t->dead : t->mute;
    if (atomic_load_explicit(&t->aborted, memory_order_acquire))
        return gone(t, 0);
    assert(m == t->mem && off / m->slot_bytes < (size_t)m->slots);
    assert(off % m->slot_bytes + len <= m->slot_bytes);
    if (l->pending == TCP_QUEUE)
        return t->dead = fail(-ENOBUFS, "link tcp channel %d: %d sends to rank %d have not left",
                              l->channel, l->pending, l->peer);
    t->queue[(t->first + l->pending) % TCP_QUEUE] =
        (struct tcp_send){ .head = { .tag = tag, .off = (uint32_t)off, .len = (uint32_t)len } };
    l->pending++;
    return push(t);
}

static int tcp_reg(struct link *l, struct link_mem *m)
{
    struct tcp_link *t = (struct tcp_link *)l;
    struct link_hello mine = { .magic = LINK_HELLO_MAGIC,
                               .channel = (uint32_t)l->channel,
                               .slots = (uint32_t)m->slots,
                               .slot_bytes = (uint32_t)m->slot_bytes };
    struct link_hello theirs;
    int r = link_mem_check(l, m);

    if (r < 0)
        return r;
    assert(!t->mem);
    t->area = link_area_map(link_area_bytes(m->slots, m->slot_bytes));
    if (!t->area)
        return -ENOMEM;
    r = link_hello_meet(l, l->fd, &t->aborted, t->meet_ms, &mine, &theirs);
    if (r < 0) {
        munmap(t->area, link_area_bytes(m->slots, m->slot_bytes));
        t->area = NULL;
        return r;
    }
    link_area_bind(m, t->area);
    t->mem = m;
    return 0;
}

static void tcp_unreg(struct link *l, struct link_mem *m)
{
    struct tcp_link *t = (struct tcp_link *)l;

    if (t->area)
        munmap(t->area, link_area_bytes(m->slots, m->slot_bytes));
    t->area = NULL;
    t->mem = NULL;
    t->dead = -ECANCELED; /* frames that come now have no place */
    m->inbox = NULL;
    m->flags = NULL;
}

static void tcp_abort(struct link *l)
{
    struct tcp_link *t = (struct tcp_link *)l;

    atomic_store_explicit(&t->aborted, 1, memory_order_release);
    shutdown(l->fd, SHUT_RDWR); /* wakes poll(2) here, and tells the peer */
}

static void tcp_close(struct link *l)
{
    close(l->fd);
    free(l);
}

const struct link_ops link_tcp_ops = {
    .name = "tcp",
    .caps = LINK_WAKES | LINK_ACROSS,
    .reg = tcp_reg,
    .unreg = tcp_unreg,
    .send = tcp_send,
    .poll = tcp_poll,
    .news = link_no_news,
    .abort = tcp_abort,
    .close = tcp_close,
};

int link_tcp_open(int fd, int rank, int peer, int channel, int meet_ms, struct link **out)
{
    struct tcp_link *t = NULL;
    int r = link_socket_check(fd);

    if (r < 0)
        goto close_fd;
    t = calloc(1, sizeof(*t));
    if (!t) {
        r = fail(-ENOMEM, "link tcp channel %d: no memory", channel);
        goto close_fd;
    }
    link_socket_tune(fd);
    t->base = (struct link){
        .ops = &link_tcp_ops, .rank = rank, .peer = peer, .channel = channel, .fd = fd
    };
    t->meet_ms = meet_ms;
    *out = &t->base;
    return 0;

close_fd:
    close(fd);
    return r;
}
