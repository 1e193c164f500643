/* link - bytes from this rank's outbox to one peer's inbox, in order.
 *
 *   send(m, off, len, tag)   the bytes [off, off + len) of the outbox appear at the same offset of
 *                            the peer's inbox, and afterwards the tag, one 8-byte word, in the flag
 *                            of the slot that off lies in. The sends of a link arrive in the order
 *                            made.
 *
 * A link is one channel between two ranks: its own slots, flags and order. One thread uses a link
 * at a time; abort alone may come from any thread. Flag and inbox look the same on every link, so
 * whoever waits (a thread of the host or a kernel) needs not know what carried the bytes.
 *
 * A send returns before its bytes have left: the slot must not change until something that the peer
 * sent afterwards proves that it has read them (the next flag of a symmetric exchange, a credit).
 *
 *   link    places bytes by                flag raised by            waiter
 *   loop    memcpy within the process      release store             spins, then futex
 *   shm     memcpy into the peer's pages   release store             spins, then futex
 *   tcp     frame on a socket; the waiter  release store of waiter   polls the socket, then poll(2)
 *           itself reads it into the inbox
 *   rdma    write of the NIC               a write behind it on the  spins, then short naps
 *                                          same queue pair
 */
#ifndef TANDEM_TRANSPORT_LINK_H
#define TANDEM_TRANSPORT_LINK_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LINK_FLAG_STRIDE = 128, /* bytes from flag to flag: one writer a line */
    LINK_STRIPES_AT = 8,    /* in the line of a flag: over how many rails its send came */
    LINK_SLOTS_MAX = 64,
    LINK_SLOT_BYTES_MAX = (1 << 24) - 16 /* what the units of a comm tag can say */
};

enum link_cap {
    LINK_DIRECT =
        1,          /* bytes arrive without a thread of this rank: a device may wait for the flag */
    LINK_WAKES = 2, /* raising a flag wakes a thread that sleeps in link_wait_flag */
    LINK_ACROSS = 4 /* joins two machines */
};

struct link;
struct link_bell;

/* link_mem - the two ends of one link in this process. The caller sets the first four fields and
 * keeps the outbox until unreg; reg sets the others. Slots and slot_bytes are the same on both
 * ends. */
struct link_mem {
    int channel;
    int slots;         /* 1 .. LINK_SLOTS_MAX */
    size_t slot_bytes; /* a multiple of 16 */
    uint8_t *outbox;   /* slots * slot_bytes, aligned to 64; several links may share it */
    uint8_t *inbox;    /* slots * slot_bytes, page aligned, written by the peer only */
    uint8_t *flags;    /* slots lines of LINK_FLAG_STRIDE bytes for each rail; use link_flag */
    int rails;         /* 0 or 1: a send raises one flag; more: see link_whole */
};

struct link_ops {
    const char *name;
    unsigned caps;

    /* reg - allocate and zero inbox and flags, and meet the peer that does the same. Boot only;
     * blocks.
     * errors   -EINVAL the ends differ in slots or bytes, both named; -ETIMEDOUT the peer did not
     *          come; -ECONNRESET, -ECANCELED as in link_wait_flag; -EPROTO nonsense; -ENOMEM */
    int (*reg)(struct link *l, struct link_mem *m);
    void (*unreg)(struct link *l, struct link_mem *m);

    /* send - see above; len may be 0 (only the tag), [off, off + len) lies in one slot. Never
     * blocks.
     * errors   -ECONNRESET the peer is gone, -ECANCELED aborted */
    int (*send)(struct link *l, const struct link_mem *m, size_t off, size_t len, uint64_t tag);

    /* poll - move what is due without blocking: unfinished sends on, arrived bytes into the inbox.
     * errors   -ECONNRESET the peer is gone, -ECANCELED aborted; logged: -EPROTO what came is no
     *          frame, or the peer refuses ours; -ENETDOWN our end of the cable, -EHOSTUNREACH the
     *          way to the peer, -EIO the device */
    int (*poll)(struct link *l);

    /* news - what the device behind the link has reported, for whoever watches a rank that does not
     * poll: it computes, or has nothing to do. Never blocks; any thread, at any time from open to
     * close.
     * errors   -ENETDOWN our end of the cable, -EIO the device; logged by the thread that finds it,
     *          found once */
    int (*news)(struct link *l);

    /* abort - every wait on this link ends within 1 ms with -ECANCELED; the peer sees a rank that
     * is gone. Any thread, any number of times. */
    void (*abort)(struct link *l);

    /* close - after unreg; nobody else may hold the link any more */
    void (*close)(struct link *l);
};

struct link {
    const struct link_ops *ops;
    int rank, peer, channel;
    int pending; /* sends of which bytes have not left; each needs more polls of this thread */
    int fd;      /* what a sleeping waiter hands to poll(2); -1: it sleeps on the bell */
    struct link_bell *bell; /* rings with every tag where LINK_WAKES is set, and on abort */
};

/* link_no_news - of links without a device */
int link_no_news(struct link *l);

/* link_find - the table of this name (setting `link`); -EINVAL with a line that lists the names */
int link_find(const char *name, const struct link_ops **out);

/* link_flag - the flag of a slot: the last tag that the peer sent to it, 0 before the first.
 * Whoever reads payload loads it with acquire before. */
static inline _Atomic uint64_t *link_flag(const struct link_mem *m, int slot)
{
    return (_Atomic uint64_t *)(void *)(m->flags + (size_t)slot * LINK_FLAG_STRIDE);
}

/* link_rail_line - the line of a slot on a rail; that of rail 0 is the flag's */
static inline uint8_t *link_rail_line(const struct link_mem *m, int slot, int rail)
{
    return m->flags + (size_t)(rail * m->slots + slot) * LINK_FLAG_STRIDE;
}

/* link_whole - whether all of the send whose tag the flag shows is there: what was striped comes
 * over several rails, between which there is no order, and each raises a line of its own. A device
 * that looks at the flag alone needs a link of one rail. */
static inline int link_whole(const struct link_mem *m, int slot, uint64_t tag)
{
    uint64_t stripes;

    if (m->rails <= 1)
        return 1;
    /* written before the flag, by the same queue pair; never trusted as an index */
    stripes = *(const uint64_t *)(const void *)(link_rail_line(m, slot, 0) + LINK_STRIPES_AT);
    for (int i = 1; i < m->rails && (uint64_t)i < stripes; i++) {
        _Atomic uint64_t *line = (_Atomic uint64_t *)(void *)link_rail_line(m, slot, i);

        if (atomic_load_explicit(line, memory_order_acquire) != tag)
            return 0;
    }
    return 1;
}

/* link_wait - how a thread waits. All links of the set keep moving while it waits for one of
 * them. */
struct link_wait {
    struct link *const *links; /* n entries, NULL ones are left out */
    int n;
    int spin_us;  /* busy first; then it yields its core for a while, then sleeps. 0: never busy */
    int limit_ms; /* -1: no limit */
};

/* link_wait_flag - wait until the flag of a slot is no longer `seen`, then return it in *now.
 *
 * errors   -ECONNRESET peer gone, -ECANCELED aborted, -EPROTO as poll; -ETIMEDOUT after limit_ms:
 *          not logged, the caller knows what it waited for
 * order    acquire: the payload sent before the tag may be read
 */
int link_wait_flag(const struct link_wait *w, struct link *l, const struct link_mem *m, int slot,
                   uint64_t seen, uint64_t *now);

/* link_wait_sent - until no link of the set is pending. Errors as above, of *peer. */
int link_wait_sent(const struct link_wait *w, int *peer);

/* link_loop_open - the two ends of a link between two threads of this process, each to be closed by
 * its rank. An end that is closed looks to the other like a peer that is gone.
 *
 * errors   -ENOMEM; both out arguments are written on success only
 */
int link_loop_open(int rank_a, int rank_b, int channel, int meet_ms, struct link **a,
                   struct link **b);

/* link_tcp_open, link_shm_open - the end of a link whose other end opens the same over the other
 * end of this connected, authenticated stream socket. tcp carries the bytes on it. shm agrees on a
 * segment through it and watches it afterwards: a killed process closes it at once.
 *
 * owns     the socket, also when it fails
 * errors   -EINVAL no stream socket, -ENOMEM
 */
int link_tcp_open(int fd, int rank, int peer, int channel, int meet_ms, struct link **out);
int link_shm_open(int fd, int rank, int peer, int channel, int meet_ms, struct link **out);

#endif
