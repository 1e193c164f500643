/* comm_relay - the exchange of comm_link for devices: a kernel stages, waits and adds in memory
 * that host and device see, and a thread of the host carries what it stages over the links.
 *
 *   kernel   stage -> ring the bell ............................ flags of all peers -> add
 *   proxy    ................ bell -> send to every peer; links poll; flags of striped sends raised
 *
 * The proxy makes no call of the device, takes no lock and logs only when it is over. What ends it,
 * a peer that is gone or an abort, it writes where waiting kernels look, so that a graph drains in
 * milliseconds.
 */
#include "src/transport/comm.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/exchange.h"
#include "src/base/clock.h"
#include "src/base/cores.h"
#include "src/base/log.h"
#include "src/transport/comm_record.h"
#include "src/transport/comm_table.h"

enum { IDLE_POLLS = 64 };

#define IDLE_AFTER_NS (2 * NS_PER_MS) /* without a bell; within a window gaps are far shorter */
#define NAP_NS (30 * NS_PER_US)

struct comm_relay {
    struct comm base;
    struct peer *peer;
    struct peer_relay shared;
    enum exchange_wire wire;
    size_t slot_bytes;
    struct link *link[COMM_WORLD_MAX]; /* NULL at the own rank; the proxy's from open to close */
    struct link_mem mem[COMM_WORLD_MAX];
    uint64_t *raised[COMM_WORLD_MAX]; /* flags of links with several rails, else NULL */
    struct comm_steps *steps;         /* or NULL */
    struct peer_record seen;          /* what has been counted already */
    int wait_limit_ms, core;
    uint8_t device[PEER_DEVICE_BYTES]; /* the own one; others show theirs in every barrier */
    bool apart;                        /* no other rank is on it, as of the last barrier */

    pthread_t proxy;
    bool proxied;
    uint32_t seq; /* of the last slot that was sent; the proxy's */
    atomic_int stop, error, lost;
    atomic_int meeting; /* enum meeting */
    int err;
};

/* A barrier is an exchange of the proxies alone: no kernel waits in it, because ranks that share a
 * device meet while they make graphs, and that may wait for every kernel of the device. */
enum meeting { MEETING_NONE, MEETING_ASKED, MEETING_DONE };

/* ---- proxy ----------------------------------------------------------------------------------- */

static void relay_end(struct comm_relay *c, int code, int peer)
{
    atomic_store(&c->lost, peer);
    atomic_store(&c->error, code);
    peer_abort(c->peer, code);
}

static int send_slot(struct comm_relay *c, uint64_t tag)
{
    size_t off = (size_t)((uint32_t)tag & 1) * c->slot_bytes,
           bytes = (size_t)(tag >> 44) * COMM_UNIT_BYTES;
    int me = c->base.rank, world = c->base.world;

    for (int i = 1; i < world; i++) {
        int p = (me + i) % world;
        int r = c->link[p]->ops->send(c->link[p], &c->mem[p], off, bytes, tag);

        if (r < 0) {
            relay_end(c, r, p);
            return r;
        }
    }
    if (c->steps) {
        atomic_store_explicit(&c->steps->done,
                              atomic_load_explicit(&c->steps->posted, memory_order_relaxed),
                              memory_order_relaxed);
        atomic_fetch_add_explicit(&c->steps->posted, 1, memory_order_relaxed);
    }
    return 0;
}

static int poll_links(struct comm_relay *c)
{
    for (int p = 0; p < c->base.world; p++) {
        int r = c->link[p] ? c->link[p]->ops->poll(c->link[p]) : 0;

        if (r < 0) {
            relay_end(c, r, p);
            return r;
        }
        for (int s = 0; c->raised[p] && s < 2; s++) {
            uint64_t tag = atomic_load_explicit(link_flag(&c->mem[p], s), memory_order_acquire);
            uint64_t *flag = c->raised[p] + (size_t)s * LINK_FLAG_STRIDE / sizeof(*flag);

            if (tag != *flag && link_whole(&c->mem[p], s, tag))
                __atomic_store_n(flag, tag, __ATOMIC_RELEASE);
        }
    }
    return 0;
}

static void meet(struct comm_relay *c)
{
    uint32_t seq = c->seq + 1;
    size_t slot = (seq & 1) * c->slot_bytes;
    uint64_t tag = comm_tag(seq, COMM_SITE_BARRIER, 1);
    int64_t begun = clock_ns();
    bool apart = true;

    static_assert(PEER_DEVICE_BYTES == COMM_UNIT_BYTES, "");
    memcpy(c->shared.outbox + slot, c->device, PEER_DEVICE_BYTES);
    if (send_slot(c, tag) < 0)
        return;
    for (int p = 0; p < c->base.world; p++) {
        uint64_t got = c->link[p] ? 0 : tag;

        while (got != tag) {
            if (poll_links(c) < 0 || atomic_load_explicit(&c->stop, memory_order_relaxed))
                return;
            got = atomic_load_explicit(link_flag(&c->mem[p], (int)(seq & 1)), memory_order_acquire);
            if (got != tag && (uint32_t)got == seq) {
                comm_tags_differ("link", tag, got, p);
                relay_end(c, -EPROTO, p);
                return;
            }
            if (c->wait_limit_ms >= 0 && clock_ns() - begun > c->wait_limit_ms * NS_PER_MS) {
                fail(-ETIMEDOUT, "comm link: rank %d did not come to the barrier in time", p);
                relay_end(c, -ETIMEDOUT, p);
                return;
            }
        }
        if (c->link[p])
            apart &= memcmp(c->mem[p].inbox + slot, c->device, PEER_DEVICE_BYTES) != 0;
    }
    c->apart = apart;
    c->seq = seq;
    atomic_store(&c->meeting, MEETING_DONE);
}

static void *proxy_run(void *arg)
{
    struct comm_relay *c = arg;
    int64_t last = clock_ns();

    log_rank(c->base.rank);
    if (c->core >= 0 && cores_stay(&c->core, 1) < 0)
        log_warn("comm link: the proxy cannot stay on core %d", c->core);
    for (unsigned polls = 0; !atomic_load_explicit(&c->stop, memory_order_relaxed); polls++) {
        /* Looked at before the bell: whoever asks for a barrier has waited for its queue first, so
         * once the question is seen, every ring of that queue is visible too. */
        bool asked = atomic_load_explicit(&c->meeting, memory_order_acquire) == MEETING_ASKED;
        uint32_t seq = c->seq + 1;
        uint64_t tag = __atomic_load_n(c->shared.bell + (size_t)(seq & 1) * PEER_BELL_STRIDE,
                                       __ATOMIC_ACQUIRE);
        bool rung = (uint32_t)tag == seq && tag != 0;

        if (rung) {
            if (send_slot(c, tag) < 0)
                break;
            c->seq = seq;
        }
        if (poll_links(c) < 0)
            break;
        if (asked && !rung)
            meet(c);
        if (rung || polls % IDLE_POLLS == 0) {
            int64_t now = clock_ns();

            if (rung)
                last = now;
            else if (now - last > IDLE_AFTER_NS)
                clock_sleep(NAP_NS);
        }
    }
    return NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* What was not exchanged must not be computed with. */
static bool relay_usable(struct comm_relay *c, struct queue *q, int site)
{
    if (c->err == 0)
        c->err = comm_site_check(site);
    if (c->err != 0 && q->err == 0)
        q->err = c->err;
    return c->err == 0;
}

static void relay_sum(struct comm *base, struct queue *q, int site, float *x, size_t n)
{
    struct comm_relay *c = (struct comm_relay *)base;

    if (relay_usable(c, q, site) && n > 0)
        peer_sum(c->peer, q, site, c->wire, x, n);
}

static void relay_gather(struct comm *base, struct queue *q, int site, const void *in, void *out,
                         size_t bytes)
{
    struct comm_relay *c = (struct comm_relay *)base;

    if (relay_usable(c, q, site) && bytes > 0)
        peer_gather(c->peer, q, site, in, out, bytes);
}

static void relay_note(struct comm *base, struct queue *q)
{
    peer_note(((struct comm_relay *)base)->peer, q);
}

static int say_failed(const struct comm_relay *c, const struct peer_record *f)
{
    unsigned seq = (uint32_t)f->want, site = (unsigned)(f->want >> 32 & 0xfff);
    int lost = atomic_load(&c->lost);

    switch (f->code) {
    case -EPROTO:
        return comm_tags_differ("link", f->want, f->got, f->peer);
    case -ETIMEDOUT:
        return fail(f->code, "comm link: exchange %u site %u: rank %d did not come in time", seq,
                    site, f->peer);
    case -ECANCELED:
        return f->code;
    default:
        return fail(f->code, "comm link: exchange %u site %u: rank %d %s", seq, site, lost,
                    f->code == -ECONNRESET ? "is gone" : strerror(-f->code));
    }
}

static int relay_check(struct comm *base)
{
    struct comm_relay *c = (struct comm_relay *)base;
    struct peer_record f;

    peer_check(c->peer, &f);
    comm_note_record(base, &c->seen, &f);
    if (c->steps)
        atomic_store_explicit(&c->steps->done,
                              atomic_load_explicit(&c->steps->posted, memory_order_relaxed),
                              memory_order_relaxed);
    if (c->err == 0 && f.code != 0)
        c->err = say_failed(c, &f);
    if (c->err == 0)
        c->err = atomic_load(&c->error);
    return c->err;
}

static int relay_barrier(struct comm *base)
{
    struct comm_relay *c = (struct comm_relay *)base;
    int r = relay_check(base);

    if (r < 0)
        return r;
    atomic_store(&c->meeting, MEETING_ASKED);
    while (atomic_load(&c->meeting) != MEETING_DONE && atomic_load(&c->error) == 0)
        clock_sleep(NAP_NS);
    atomic_store(&c->meeting, MEETING_NONE);
    if (atomic_load(&c->error) == 0)
        r = peer_count_to(c->peer, c->seq);
    if (r < 0 && c->err == 0)
        c->err = r;
    return relay_check(base);
}

static void relay_abort(struct comm *base, const char *why)
{
    struct comm_relay *c = (struct comm_relay *)base;
    int none = 0;

    if (atomic_compare_exchange_strong(&c->error, &none, -ECANCELED))
        log_debug("comm link: aborted: %s", why);
    peer_abort(c->peer, -ECANCELED);
    for (int r = 0; r < base->world; r++)
        if (c->link[r])
            c->link[r]->ops->abort(c->link[r]);
}

static void relay_close(struct comm *base)
{
    struct comm_relay *c = (struct comm_relay *)base;

    if (c->proxied) {
        atomic_store(&c->stop, 1);
        pthread_join(c->proxy, NULL);
    }
    peer_close(c->peer, true);
    for (int r = base->world - 1; r >= 0; r--)
        if (c->link[r] && c->mem[r].inbox)
            c->link[r]->ops->unreg(c->link[r], &c->mem[r]);
    free(c);
}

const struct comm_ops comm_relay_ops = {
    .name = "link",
    .caps = COMM_CAPTURE | COMM_DEVICE,
    .sum = relay_sum,
    .gather = relay_gather,
    .note = relay_note,
    .barrier = relay_barrier,
    .check = relay_check,
    .abort = relay_abort,
    .close = relay_close,
};

static int attach(struct comm_relay *c, struct link *l)
{
    int p = l->peer, r;

    c->mem[p] = (struct link_mem){
        .channel = l->channel, .slots = 2, .slot_bytes = c->slot_bytes, .outbox = c->shared.outbox
    };
    r = l->ops->reg(l, &c->mem[p]);
    if (r < 0)
        return r;
    c->link[p] = l;
    return peer_attach(c->peer, p, c->mem[p].flags, c->mem[p].inbox, LINK_FLAG_STRIDE,
                       c->mem[p].rails > 1, &c->raised[p]);
}

int comm_relay_open(struct link *const *links, struct device *d, int rank, int world,
                    const struct comm_settings *s, struct comm **out)
{
    struct peer_spec spec = { .rank = rank,
                              .world = world,
                              .slot_bytes = s->slot_bytes,
                              .first_seq = s->first_seq,
                              .limit_ns =
                                  s->wait_limit_ms < 0 ? -1 : (int64_t)s->wait_limit_ms * NS_PER_MS,
                              .relayed = true };
    struct comm_relay *c;
    int r = comm_link_check(rank, world, s);

    if (r < 0)
        return r;
    c = calloc(1, sizeof(*c));
    if (!c)
        return fail(-ENOMEM, "comm link: no memory");
    c->base = (struct comm){ .ops = &comm_relay_ops, .rank = rank, .world = world };
    c->wire = comm_wire(s);
    c->slot_bytes = s->slot_bytes;
    c->seq = s->first_seq;
    c->steps = s->steps;
    c->wait_limit_ms = s->wait_limit_ms;
    c->core = s->proxy_core ? *s->proxy_core : -1;
    r = peer_open(d, &spec, &c->peer);
    if (r < 0) {
        free(c);
        return r;
    }
    peer_relay(c->peer, &c->shared);
    r = peer_device(c->peer, c->device);
    for (int p = 0; p < world && r == 0; p++)
        if (p != rank)
            r = attach(c, links[p]);
    if (r == 0) {
        r = -cores_thread(&c->proxy, proxy_run, c);
        if (r < 0)
            fail(r, "comm link: no thread for the proxy: %s", strerror(-r));
    }
    c->proxied = r == 0;
    if (r == 0)
        r = relay_barrier(&c->base);
    if (r < 0) {
        relay_close(&c->base);
        return r;
    }
    peer_apart(c->peer, c->apart);
    *out = &c->base;
    return 0;
}
