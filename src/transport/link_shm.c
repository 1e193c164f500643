/* link_shm - two processes of one machine over one shared segment.
 *
 *   page 0    control: a bell and a `gone` word for each end
 *   then      the area of the lower rank, the area of the higher rank
 *
 * The segment is a file without a name: the lower rank makes it, the higher one opens it through
 * the lower one's descriptor, so there is no moment in which a kill leaves something behind. The
 * socket that the link began with is the witness: a killed process closes it at once, and nothing
 * else may come through it.
 */
#include "src/transport/link.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/link_area.h"
#include "src/transport/link_socket.h"
#include "src/transport/link_table.h"

/* where a process of this machine finds another one's descriptor: process, descriptor */
#define SEGMENT_NAME "/proc/%d/fd/%d"

enum { SHM_CONTROL_BYTES = 4096, SHM_WITNESS_MS = 5 };

struct shm_control {
    struct link_bell bell[2]; /* of the waiter at each end; 0 is the lower rank */
    _Alignas(LINK_FLAG_STRIDE)
        atomic_int gone[2]; /* closed or aborted; each written by its own end */
};
static_assert(sizeof(struct shm_control) <= SHM_CONTROL_BYTES, "one page of control");

struct shm_link {
    struct link base;
    int me;     /* 0 for the lower rank */
    int socket; /* base.fd is -1: a waiter sleeps on the bell */
    int meet_ms;
    atomic_int aborted;
    _Atomic(struct shm_control *) control; /* the mapping, from reg to close */
    size_t bytes, area_bytes;
    int64_t looked_ns; /* when the witness was asked last */
};

static uint8_t *area_of(struct shm_control *c, const struct shm_link *s, int end)
{
    return (uint8_t *)c + SHM_CONTROL_BYTES + (size_t)end * s->area_bytes;
}

/* The socket is silent while the peer lives. */
static int ask_witness(struct shm_link *s)
{
    char byte;
    ssize_t n = recv(s->socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK);

    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    if (n > 0)
        return fail(-EPROTO, "link shm channel %d: rank %d sent bytes after its record",
                    s->base.channel, s->base.peer);
    if (atomic_load_explicit(&s->aborted, memory_order_acquire))
        return -ECANCELED;
    log_debug("link shm channel %d: rank %d is gone: %s", s->base.channel, s->base.peer,
              n < 0 ? strerror(errno) : "connection closed");
    return -ECONNRESET;
}

static int shm_poll(struct link *l)
{
    struct shm_link *s = (struct shm_link *)l;
    struct shm_control *c = atomic_load_explicit(&s->control, memory_order_acquire);
    int64_t now;

    if (atomic_load_explicit(&s->aborted, memory_order_acquire))
        return -ECANCELED;
    if (atomic_load_explicit(&c->gone[!s->me], memory_order_acquire))
        return -ECONNRESET;
    now = clock_ns();
    if (now - s->looked_ns < SHM_WITNESS_MS * NS_PER_MS)
        return 0;
    s->looked_ns = now;
    return ask_witness(s);
}

static int shm_send(struct link *l, const struct link_mem *m, size_t off, size_t len, uint64_t tag)
{
    struct shm_link *s = (struct shm_link *)l;
    struct shm_control *c = atomic_load_explicit(&s->control, memory_order_acquire);

    if (atomic_load_explicit(&s->aborted, memory_order_acquire))
        return -ECANCELED;
    if (atomic_load_explicit(&c->gone[!s->me], memory_order_acquire))
        return -ECONNRESET;
    assert(off / m->slot_bytes < (size_t)m->slots && off % m->slot_bytes + len <= m->slot_bytes);
    link_area_put(area_of(c, s, !s->me), &c->bell[!s->me], m, off, len, tag);
    return 0;
}

static int map_segment(struct shm_link *s, int fd, struct shm_control **out)
{
    void *p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);

    if (p == MAP_FAILED)
        return fail(-errno, "link shm: mapping %zu bytes: %s", s->bytes, strerror(errno));
    *out = p;
    return 0;
}

/* Sealed, so that nobody can take away pages that are mapped: that would be a SIGBUS later. */
static int make_segment(struct shm_link *s, char *name, size_t cap, int *keep,
                        struct shm_control **out)
{
    int fd = memfd_create("tandem", MFD_CLOEXEC | MFD_ALLOW_SEALING), r;

    if (fd < 0)
        return fail(-errno, "link shm: memfd: %s", strerror(errno));
    /* allocated now: memory that is short is an error here and a SIGBUS later */
    do
        r = posix_fallocate(fd, 0, (off_t)s->bytes);
    while (r == EINTR); /* of a process that was stopped, too */
    if (r != 0)
        r = fail(-r, "link shm: %zu bytes of shared memory: %s", s->bytes, strerror(r));
    else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        r = fail(-errno, "link shm: seals: %s", strerror(errno));
    else
        r = map_segment(s, fd, out);
    if (r < 0) {
        close(fd);
        return r;
    }
    snprintf(name, cap, SEGMENT_NAME, (int)getpid(), fd);
    *keep = fd;
    return 0;
}

static int open_segment(struct shm_link *s, const char *name, struct shm_control **out)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    char again[sizeof(((struct link_hello *)0)->name)];
    struct stat st;
    int r, fd, pid, has;

    if (sscanf(name, SEGMENT_NAME, &pid, &fd) != 2 || pid <= 0 || fd < 0 ||
        (snprintf(again, sizeof(again), SEGMENT_NAME, pid, fd), strcmp(name, again) != 0))
        return fail(-EPROTO, "link shm: rank %d named no segment", s->base.peer);
    fd = open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail(-errno, "link shm: %s of rank %d: %s", name, s->base.peer, strerror(errno));
    has = fcntl(fd, F_GET_SEALS); /* negative where a file can have none */
    if (fstat(fd, &st) < 0 || st.st_size != (off_t)s->bytes || st.st_uid != getuid() || has < 0 ||
        (has & seals) != seals)
        r = fail(-EPROTO, "link shm: %s of rank %d is not the segment", name, s->base.peer);
    else
        r = map_segment(s, fd, out);
    close(fd);
    return r;
}

/* Lower rank: sizes, then the name, then the other's word that it has mapped. Higher rank: the
 * same, mirrored. */
static int meet(struct shm_link *s, const struct link_mem *m, struct shm_control **out)
{
    struct link *l = &s->base;
    struct link_hello mine = { .magic = LINK_HELLO_MAGIC,
                               .channel = (uint32_t)l->channel,
                               .slots = (uint32_t)m->slots,
                               .slot_bytes = (uint32_t)m->slot_bytes };
    struct link_hello theirs;
    int keep = -1;
    int r = link_hello_meet(l, s->socket, &s->aborted, s->meet_ms, &mine, &theirs);

    if (r < 0)
        return r;
    if (s->me == 0) {
        r = make_segment(s, mine.name, sizeof(mine.name), &keep, out);
        if (r < 0)
            return r;
        r = link_hello_send(l, s->socket, &mine);
        if (r == 0)
            r = link_hello_recv(l, s->socket, &s->aborted, s->meet_ms, &theirs);
        close(keep);
    } else {
        r = link_hello_recv(l, s->socket, &s->aborted, s->meet_ms, &theirs);
        if (r < 0)
            return r;
        r = open_segment(s, theirs.name, out);
        if (r < 0)
            return r;
        r = link_hello_send(l, s->socket, &mine);
    }
    if (r < 0)
        munmap(*out, s->bytes);
    return r;
}

static int shm_reg(struct link *l, struct link_mem *m)
{
    struct shm_link *s = (struct shm_link *)l;
    struct shm_control *c = NULL;
    int r = link_mem_check(l, m);

    if (r < 0)
        return r;
    assert(!atomic_load(&s->control));
    s->area_bytes = link_area_bytes(m->slots, m->slot_bytes);
    s->bytes = SHM_CONTROL_BYTES + 2 * s->area_bytes;
    r = meet(s, m, &c);
    if (r < 0)
        return r;
    link_area_bind(m, area_of(c, s, s->me));
    l->bell = &c->bell[s->me];
    atomic_store_explicit(&s->control, c, memory_order_release);
    return 0;
}

static void shm_unreg(struct link *l, struct link_mem *m)
{
    m->inbox = NULL;
    m->flags = NULL;
}

static void shm_abort(struct link *l)
{
    struct shm_link *s = (struct shm_link *)l;
    struct shm_control *c;

    atomic_store_explicit(&s->aborted, 1, memory_order_seq_cst);
    shutdown(s->socket, SHUT_RDWR);
    c = atomic_load_explicit(&s->control, memory_order_seq_cst);
    if (c) {
        atomic_store_explicit(&c->gone[s->me], 1, memory_order_release);
        link_bell_ring(&c->bell[0]);
        link_bell_ring(&c->bell[1]);
    }
}

static void shm_close(struct link *l)
{
    struct shm_link *s = (struct shm_link *)l;
    struct shm_control *c = atomic_load(&s->control);

    shm_abort(l);
    if (c)
        munmap(c, s->bytes);
    close(s->socket);
    free(s);
}

const struct link_ops link_shm_ops = {
    .name = "shm",
    .caps = LINK_DIRECT | LINK_WAKES,
    .reg = shm_reg,
    .unreg = shm_unreg,
    .send = shm_send,
    .poll = shm_poll,
    .news = link_no_news,
    .abort = shm_abort,
    .close = shm_close,
};

int link_shm_open(int fd, int rank, int peer, int channel, int meet_ms, struct link **out)
{
    struct shm_link *s = NULL;
    int r = link_socket_check(fd);

    if (r < 0)
        goto close_fd;
    s = calloc(1, sizeof(*s));
    if (!s) {
        r = fail(-ENOMEM, "link shm channel %d: no memory", channel);
        goto close_fd;
    }
    s->base = (struct link){
        .ops = &link_shm_ops, .rank = rank, .peer = peer, .channel = channel, .fd = -1
    };
    s->socket = fd;
    s->me = rank > peer;
    s->meet_ms = meet_ms;
    *out = &s->base;
    return 0;

close_fd:
    close(fd);
    return r;
}
