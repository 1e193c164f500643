/* comm_peer - ranks whose devices write into each other's memory.
 *
 * The exchange itself is kernels/cuda/exchange.cu. Here is how the ranks meet: threads of a process
 * leave their side in a hub and join when all have come; processes show each other their memory
 * through a comm of their hosts. After that the host does nothing for an exchange but queue it.
 *
 * A rank that closes may still be written to by one that does not know yet. Sides of threads stay
 * in the hub until the last of them has closed; memory that other processes see is left to the end
 * of this one: nobody waits for anybody.
 */
#include "src/transport/comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/backend.h"
#include "kernels/exchange.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/comm_record.h"
#include "src/transport/comm_table.h"

enum { SITE_CARDS = 1 };

struct comm_hub {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct peer *peer[COMM_WORLD_MAX];
    int sides; /* that are not closed */
    int world;
    int waiting; /* ranks at the barrier */
    unsigned turn;
    bool broken; /* a rank has given up */
};

struct comm_peer {
    struct comm base;
    struct comm_hub *hub; /* of threads, or */
    struct comm *host;    /* of processes */
    struct peer *peer;
    struct peer_record seen; /* what has been counted already */
    enum exchange_wire wire;
    int wait_limit_ms;
    atomic_int aborted;
    int err;
};

int comm_hub_open(int world, struct comm_hub **out)
{
    struct comm_hub *h;
    pthread_condattr_t attr;

    if (world < 1 || world > COMM_WORLD_MAX)
        return fail(-EINVAL, "comm peer: %d ranks, want 1 to %d", world, COMM_WORLD_MAX);
    h = calloc(1, sizeof(*h));
    if (!h)
        return fail(-ENOMEM, "comm peer: no memory");
    h->world = world;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->moved, &attr);
    pthread_condattr_destroy(&attr);
    *out = h;
    return 0;
}

void comm_hub_close(struct comm_hub *h)
{
    if (!h)
        return;
    pthread_cond_destroy(&h->moved);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static void hub_break(struct comm_hub *h)
{
    pthread_mutex_lock(&h->lock);
    h->broken = true;
    pthread_cond_broadcast(&h->moved);
    pthread_mutex_unlock(&h->lock);
}

/* All ranks have come here. */
static int hub_meet(struct comm_hub *h, int limit_ms)
{
    int64_t end = clock_ns() + (int64_t)limit_ms * NS_PER_MS;
    struct timespec at = { .tv_sec = end / NS_PER_S, .tv_nsec = end % NS_PER_S };
    unsigned turn;
    int late = 0, r = 0;

    pthread_mutex_lock(&h->lock);
    turn = h->turn;
    if (++h->waiting == h->world) {
        h->waiting = 0;
        h->turn++;
        pthread_cond_broadcast(&h->moved);
    }
    while (h->turn == turn && !h->broken && late == 0)
        late = limit_ms < 0 ? pthread_cond_wait(&h->moved, &h->lock)
                            : pthread_cond_timedwait(&h->moved, &h->lock, &at);
    if (h->turn == turn) {
        h->waiting--;
        r = h->broken ? -ECANCELED : -ETIMEDOUT;
    }
    pthread_mutex_unlock(&h->lock);
    return r;
}

/* A side comes, and stays when it is no more than a rank's that has closed. */
static void hub_add(struct comm_hub *h, int rank, struct peer *p)
{
    pthread_mutex_lock(&h->lock);
    h->peer[rank] = p;
    h->sides++;
    pthread_mutex_unlock(&h->lock);
}

static void hub_leave(struct comm_hub *h)
{
    pthread_mutex_lock(&h->lock);
    if (--h->sides == 0)
        for (int r = 0; r < h->world; r++) {
            peer_close(h->peer[r], true);
            h->peer[r] = NULL;
        }
    pthread_mutex_unlock(&h->lock);
}

/* What was not exchanged must not be computed with. */
static bool peer_usable(struct comm_peer *c, struct queue *q, int site)
{
    if (c->err == 0 && (site < 0 || site >= COMM_SITES))
        c->err = fail(-EINVAL, "comm peer: site %d, want 0 to %d", site, COMM_SITES - 1);
    if (c->err == 0 && atomic_load_explicit(&c->aborted, memory_order_acquire))
        c->err = -ECANCELED;
    if (c->err != 0 && q->err == 0)
        q->err = c->err;
    return c->err == 0;
}

static void comm_peer_sum(struct comm *base, struct queue *q, int site, float *x, size_t n)
{
    struct comm_peer *c = (struct comm_peer *)base;

    if (!peer_usable(c, q, site) || n == 0)
        return;
    peer_sum(c->peer, q, site, c->wire, x, n);
}

static void comm_peer_gather(struct comm *base, struct queue *q, int site, const void *in,
                             void *out, size_t bytes)
{
    struct comm_peer *c = (struct comm_peer *)base;

    if (!peer_usable(c, q, site) || bytes == 0)
        return;
    peer_gather(c->peer, q, site, in, out, bytes);
}

static void comm_peer_note(struct comm *base, struct queue *q)
{
    peer_note(((struct comm_peer *)base)->peer, q);
}

static int comm_peer_check(struct comm *base)
{
    struct comm_peer *c = (struct comm_peer *)base;
    struct peer_record f;

    peer_check(c->peer, &f);
    comm_note_record(base, &c->seen, &f);
    if (c->err == 0 && f.code != 0) {
        c->err = f.code;
        if (f.code == -EPROTO)
            comm_tags_differ("peer", f.want, f.got, f.peer);
        else if (f.code == -ETIMEDOUT)
            fail(f.code, "comm peer: exchange %u site %u: rank %d did not come in time",
                 (uint32_t)f.want, (unsigned)(f.want >> 32 & 0xfff), f.peer);
    }
    if (c->err == 0 && atomic_load_explicit(&c->aborted, memory_order_acquire))
        c->err = -ECANCELED;
    return c->err;
}

static int comm_peer_barrier(struct comm *base)
{
    struct comm_peer *c = (struct comm_peer *)base;
    int r = comm_peer_check(base);

    if (r < 0)
        return r;
    r = c->host ? comm_barrier(c->host) : hub_meet(c->hub, c->wait_limit_ms);
    if (r == -ETIMEDOUT && c->hub)
        fail(r, "comm peer: a rank did not come to the barrier in time");
    if (r < 0)
        c->err = r;
    return r;
}

static void comm_peer_abort(struct comm *base, const char *why)
{
    struct comm_peer *c = (struct comm_peer *)base;

    if (atomic_exchange(&c->aborted, 1))
        return;
    log_debug("comm peer: aborted: %s", why);
    peer_abort(c->peer, -ECANCELED);
    if (c->host)
        comm_abort(c->host, why);
    else
        hub_break(c->hub);
}

static void comm_peer_close(struct comm *base)
{
    struct comm_peer *c = (struct comm_peer *)base;

    if (c->hub)
        hub_leave(c->hub);
    else
        peer_close(c->peer, false);
    comm_close(c->host);
    free(c);
}

const struct comm_ops comm_peer_ops = {
    .name = "peer",
    .caps = COMM_CAPTURE | COMM_DEVICE,
    .sum = comm_peer_sum,
    .gather = comm_peer_gather,
    .note = comm_peer_note,
    .barrier = comm_peer_barrier,
    .check = comm_peer_check,
    .abort = comm_peer_abort,
    .close = comm_peer_close,
};

/* This rank's side, which nobody else knows yet. */
static int side_open(struct device *d, int rank, int world, const struct comm_settings *s,
                     struct comm_peer **out)
{
    struct peer_spec spec = { .rank = rank,
                              .world = world,
                              .slot_bytes = s->slot_bytes,
                              .first_seq = s->first_seq,
                              .limit_ns = s->wait_limit_ms < 0
                                              ? -1
                                              : (int64_t)s->wait_limit_ms * NS_PER_MS };
    struct comm_peer *c = calloc(1, sizeof(*c));
    int r;

    if (!c)
        return fail(-ENOMEM, "comm peer: no memory");
    c->base = (struct comm){ .ops = &comm_peer_ops, .rank = rank, .world = world };
    c->wire = comm_wire(s);
    c->wait_limit_ms = s->wait_limit_ms;
    r = peer_open(d, &spec, &c->peer);
    if (r < 0) {
        free(c);
        return r;
    }
    *out = c;
    return 0;
}

int comm_peer_open(struct comm_hub *h, struct device *d, int rank, const struct comm_settings *s,
                   struct comm **out)
{
    struct comm_peer *c = NULL;
    int r = side_open(d, rank, h->world, s, &c);

    if (r < 0) {
        hub_break(h);
        return r;
    }
    c->hub = h;
    hub_add(h, rank, c->peer);
    r = hub_meet(h, s->wait_limit_ms);
    if (r == -ETIMEDOUT)
        fail(r, "comm peer: a rank did not come in time");
    if (r == 0)
        r = peer_join(c->peer, h->peer);
    if (r < 0) {
        hub_break(h);
        comm_peer_close(&c->base);
        return r;
    }
    *out = &c->base;
    return 0;
}

/* Nobody exchanges before all have met: the barrier at the end. */
int comm_peer_open_apart(struct comm *host, struct device *d, const struct comm_settings *s,
                         struct comm **out)
{
    uint8_t mine[PEER_CARD_BYTES], card[COMM_WORLD_MAX][PEER_CARD_BYTES];
    struct comm_peer *c = NULL;
    int r = side_open(d, host->rank, host->world, s, &c);

    if (r == 0) {
        r = peer_show(c->peer, mine);
        if (r == 0) {
            comm_gather(host, NULL, SITE_CARDS, mine, card, sizeof(mine));
            r = comm_check(host);
        }
        if (r == 0)
            r = peer_meet(c->peer, card);
        if (r == 0)
            r = comm_barrier(host);
        if (r < 0)
            comm_peer_close(&c->base);
    }
    if (r < 0) {
        comm_abort(host, "comm peer does not open");
        return r;
    }
    c->host = host;
    *out = &c->base;
    return 0;
}
