/* comm - sums and gathers over the ranks, in the order of a queue.
 *
 * Law: after a call every rank holds the same bits. A partial is rounded to the wire type first,
 * one's own too, and the rounded ones are added in rank order with plain f32 adds:
 *
 *   p_r = round_wire(x of rank r)        y = f32(p_0);  y = y + f32(p_r) for r = 1 .. world - 1
 *
 * Calls are queued work and return nothing. A comm keeps its first error, ignores what follows (x
 * and out then hold garbage that nobody may commit), and check returns it once a round. A failed
 * exchange ends its queue as well: the ops behind it would take garbage for indices. A queue that
 * has failed exchanges nothing more, which is -ECANCELED: another rank must not make text of
 * garbage (comm nccl sends NaN). On host backends a call has run when it returns and the queue may
 * be NULL.
 *
 * The route of a call depends on its site and size only. A site numbers the call in the program, 0
 * .. COMM_SITES - 1, the same on all ranks; site 0 is the barrier's. Ranks that meet at different
 * sites or with different sizes run different programs: that is an error which names both.
 */
#ifndef TANDEM_TRANSPORT_COMM_H
#define TANDEM_TRANSPORT_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "src/transport/link.h"

struct comm;
struct device;
struct queue;

enum { COMM_SITES = 4096, COMM_WORLD_MAX = 8 };

enum comm_wire { COMM_BF16, COMM_F32 }; /* setting `partials`: bf16, fp32 */

enum comm_cap {
    COMM_CAPTURE = 1, /* calls may be captured into a graph */
    COMM_DEVICE = 2   /* x, in and out may be device memory that the host cannot read */
};

/* comm_stats - since the last comm_stats_take; of this rank */
struct comm_stats {
    uint64_t exchanges;
    uint64_t bytes;   /* sent to each peer */
    uint64_t wait_ns; /* from the last send to the last flag: wire and lateness of the peers */
    uint64_t wait_max_ns;
    uint64_t move_ns; /* rounding, copying, adding */
};

struct comm_ops {
    const char *name; /* setting `comm` */
    unsigned caps;

    /* sum - x [n] f32 becomes the sum over the ranks; any n, slot by slot */
    void (*sum)(struct comm *c, struct queue *q, int site, float *x, size_t n);
    /* gather - out [world][bytes]: rank r's in at out + r * bytes. in may be its own place in
     * out. */
    void (*gather)(struct comm *c, struct queue *q, int site, const void *in, void *out,
                   size_t bytes);
    /* note - queue a look at what the exchanges so far took: it is in the stats after the queue's
     * wait and a check. Stats that the host counts need none. */
    void (*note)(struct comm *c, struct queue *q);
    /* barrier - host call, never in a round; result as check */
    int (*barrier)(struct comm *c);
    /* check - the first error of the calls since open, 0 if none. It stays.
     * errors   -ECONNRESET a peer is gone, -ECANCELED aborted, -EPROTO the ranks differ in site or
     *          size, -ETIMEDOUT wait_limit_ms, -EINVAL site out of range */
    int (*check)(struct comm *c);
    /* abort - every wait of this rank ends within 1 ms. Any thread, any number of times; not beside
     * close, and it may return only when the graphs with exchanges in them are closed. */
    void (*abort)(struct comm *c, const char *why);
    /* close - after the queue's wait, and after all graphs with exchanges in them */
    void (*close)(struct comm *c);
};

struct comm {
    const struct comm_ops *ops;
    int rank, world;
    struct comm_stats stats; /* written by the calls, so read it after the queue's wait */
};

/* comm_steps - how far a comm is, for whoever watches the rank: exchanges whose own part has left,
 * and those that have ended. Any thread may read them. */
struct comm_steps {
    _Atomic uint64_t posted, done;
};

struct comm_settings {
    enum comm_wire partials;
    size_t slot_bytes;     /* a multiple of 4096, below 16 MiB; longer calls go in pieces of this */
    int spin_us;           /* link.h */
    int wait_limit_ms;     /* -1: none */
    const int *proxy_core; /* where a comm's own thread stays; NULL: wherever the kernel puts it */
    struct comm_steps *steps; /* counted here if not NULL; by comm link */
    uint32_t first_seq; /* number before the first exchange, equal on all ranks; 0 but in tests */
};

static inline void comm_sum(struct comm *c, struct queue *q, int site, float *x, size_t n)
{
    c->ops->sum(c, q, site, x, n);
}

static inline void comm_gather(struct comm *c, struct queue *q, int site, const void *in, void *out,
                               size_t bytes)
{
    c->ops->gather(c, q, site, in, out, bytes);
}

static inline void comm_note(struct comm *c, struct queue *q)
{
    c->ops->note(c, q);
}

static inline int comm_check(struct comm *c)
{
    return c->ops->check(c);
}

static inline int comm_barrier(struct comm *c)
{
    return c->ops->barrier(c);
}

static inline void comm_abort(struct comm *c, const char *why)
{
    c->ops->abort(c, why);
}

/* comm_close - collective by convention, never by waiting; NULL is fine */
static inline void comm_close(struct comm *c)
{
    if (c)
        c->ops->close(c);
}

/* comm_stats_take - the counters since the last take, then zero */
static inline struct comm_stats comm_stats_take(struct comm *c)
{
    struct comm_stats s = c->stats;

    c->stats = (struct comm_stats){ 0 };
    return s;
}

/* comm_find - the table of this name (setting `comm`); -EINVAL with a line that lists the names */
int comm_find(const char *name, const struct comm_ops **out);

/* comm_self_open - one rank: a sum only rounds to the wire type. Works where the queue's memory is:
 * on the host without a queue or with a host backend's, else on the device. errors: -ENOMEM */
int comm_self_open(const struct comm_settings *s, struct comm **out);

/* comm_self_alone - one rank of a world whose others are not there, to measure what it takes: a sum
 * is of its own part alone, and every rank's place of a gather has what this one brought. errors:
 * -ENOMEM */
int comm_self_alone(const struct comm_settings *s, int rank, int world, struct comm **out);

/* comm_link_open - the one-shot exchange over links: everybody sends its slot to everybody, then
 * adds.
 *
 * Two slots by parity suffice: a peer starts exchange k + 2 only after it has every rank's k + 1,
 * and that was sent after k had been read.
 *
 * in       links [world], the own entry is NULL; all of one kind, one channel. Registers on each,
 *          so the peers must open theirs at the same time
 * owns     its memory; borrows the links until close
 * errors   -EINVAL settings; -ENOMEM; those of link reg
 */
int comm_link_open(struct link *const *links, int rank, int world, const struct comm_settings *s,
                   struct comm **out);

/* comm_relay_open - comm_link for a device that is not the host's memory: kernels stage, wait and
 * add in memory that both see, a thread of this comm carries the bytes. Captured exchanges need
 * nothing else of the host.
 *
 * Ends in a barrier, which says whether a device is another rank's too: if not, kernels come in
 * behind a wait.
 *
 * in       as comm_link_open; the links are the thread's until close
 * errors   as comm_link_open, as barrier; -ENOTSUP the device shows kernels no host memory */
int comm_relay_open(struct link *const *links, struct device *d, int rank, int world,
                    const struct comm_settings *s, struct comm **out);

/* comm_hub - where ranks that are threads of one process meet; opened before them, closed after. */
struct comm_hub;
int comm_hub_open(int world, struct comm_hub **out);
void comm_hub_close(struct comm_hub *h);

/* comm_peer_open - exchanges in device memory that all ranks' devices write; blocks until every
 * rank has come.
 *
 * errors   -ENOTSUP a device without such memory, or ranks on different devices; -ENOMEM;
 *          -ETIMEDOUT wait_limit_ms, -ECANCELED another rank gave up; -EINVAL settings
 * owns     its memory; borrows hub and device until close
 */
int comm_peer_open(struct comm_hub *h, struct device *d, int rank, const struct comm_settings *s,
                   struct comm **out);

/* comm_peer_open_apart - the same for ranks that are processes of one machine: host joins them on
 * it, and carries what they tell each other while they open and at barriers.
 *
 * errors   as comm_peer_open; of host
 * owns     host, from a success on
 */
int comm_peer_open_apart(struct comm *host, struct device *d, const struct comm_settings *s,
                         struct comm **out);

/* comm_settle - puts into the environment what NCCL reads there: as backend_settle, before a second
 * thread */
void comm_settle(void);

/* comm_nccl_open - sums by NCCL's gather and an add of our own: its sums do not keep the order of
 * ranks.
 *
 * in       host as above, also of threads; the queue of all calls
 * errors   -ENODEV no library, or it does not run here, with its text; of host
 * owns     host, from a success on
 */
int comm_nccl_open(struct comm *host, struct queue *q, const struct comm_settings *s,
                   struct comm **out);

/* comm_nccl_reduce - NCCL's own sum of n bf16 values in place, in whatever order: for comparisons
 * of speed */
void comm_nccl_reduce(struct comm *c, struct queue *q, void *x, size_t n);

#endif
