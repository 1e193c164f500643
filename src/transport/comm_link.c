/* comm_link - the one-shot exchange over any link, on the host.
 *
 *   stage into outbox slot s = seq & 1  ->  send to every peer
 *   ->  wait for every peer's flag of slot s  ->  add outbox and inboxes in rank order
 *
 * Two slots are enough because every exchange is symmetric: a peer sends k + 2 only after it has
 * everybody's k + 1, and everybody sends k + 1 after it has read k. The tag word carries the
 * sequence, the site and the size, so ranks that run different programs find out at the first
 * exchange in which they differ.
 */
#include "src/transport/comm.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/backend.h"
#include "kernels/exchange.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/comm_record.h"
#include "src/transport/comm_table.h"
#include "src/transport/link_area.h"

struct comm_link {
    struct comm base;
    enum exchange_wire wire;
    size_t slot_bytes;
    struct link *link[COMM_WORLD_MAX]; /* NULL at the own rank */
    struct link_mem mem[COMM_WORLD_MAX];
    uint64_t seen[COMM_WORLD_MAX][2]; /* last tag of a peer in a slot */
    uint8_t *outbox;
    struct link_wait wait;
    struct comm_steps *steps; /* or NULL */
    uint32_t seq;             /* of the last exchange */
    int err;                  /* written by the calls */
    atomic_int aborted;
};

/* A link has failed: name the exchange. An abort was logged by whoever made it, other errors by the
 * link. */
static int link_failed(const struct comm_link *c, int r, uint64_t tag, int peer)
{
    const char *why = r == -ECONNRESET ? "is gone" : "did not come in time";

    if (r == -ECANCELED || atomic_load_explicit(&c->aborted, memory_order_acquire))
        return -ECANCELED;
    if (r != -ECONNRESET && r != -ETIMEDOUT)
        return r;
    return fail(r, "comm link: exchange %u site %u: rank %d %s", (uint32_t)tag,
                (unsigned)(tag >> 32 & 0xfff), peer, why);
}

static uint8_t *out_slot(struct comm_link *c)
{
    return c->outbox + ((c->seq + 1) & 1) * c->slot_bytes;
}

/* Exchange the bytes staged in out_slot. Afterwards the peers' bytes are in their in_slot. */
static int exchange(struct comm_link *c, int site, size_t bytes)
{
    uint32_t seq = c->seq + 1;
    int me = c->base.rank, world = c->base.world, s = (int)(seq & 1), r, late;
    size_t off = (size_t)s * c->slot_bytes, units = (bytes + COMM_UNIT_BYTES - 1) / COMM_UNIT_BYTES;
    uint64_t tag = comm_tag(seq, site, units);
    int64_t start;
    uint64_t waited;

    memset(c->outbox + off + bytes, 0, units * COMM_UNIT_BYTES - bytes);
    /* from the next rank round, or all would send to rank 0 first */
    for (int i = 1; i < world; i++) {
        int p = (me + i) % world;

        r = c->link[p]->ops->send(c->link[p], &c->mem[p], off, units * COMM_UNIT_BYTES, tag);
        if (r < 0)
            return link_failed(c, r, tag, p);
    }
    if (c->steps)
        atomic_fetch_add_explicit(&c->steps->posted, 1, memory_order_relaxed);
    start = clock_ns();
    for (int i = 1; i < world; i++) {
        int p = (me + i) % world;
        uint64_t got;

        r = link_wait_flag(&c->wait, c->link[p], &c->mem[p], s, c->seen[p][s], &got);
        if (r < 0)
            return link_failed(c, r, tag, p);
        if (got != tag)
            return comm_tags_differ("link", tag, got, p);
        c->seen[p][s] = tag;
    }
    r = link_wait_sent(&c->wait, &late);
    if (r < 0)
        return link_failed(c, r, tag, late);
    c->seq = seq;
    if (c->steps)
        atomic_fetch_add_explicit(&c->steps->done, 1, memory_order_relaxed);
    waited = (uint64_t)(clock_ns() - start);
    c->base.stats.exchanges++;
    c->base.stats.bytes += units * COMM_UNIT_BYTES;
    c->base.stats.wait_ns += waited;
    if (waited > c->base.stats.wait_max_ns)
        c->base.stats.wait_max_ns = waited;
    return 0;
}

/* Bytes of rank r in the exchange that has just run. */
static const uint8_t *slot_of(const struct comm_link *c, int r)
{
    size_t off = (size_t)(c->seq & 1) * c->slot_bytes;

    return (r == c->base.rank ? c->outbox : c->mem[r].inbox) + off;
}

/* What a queue that has failed would exchange is garbage, and the other rank's text then. */
static int usable(struct comm_link *c, const struct queue *q, int site)
{
    if (c->err == 0)
        c->err = comm_site_check(site);
    if (c->err == 0 && q && q->err < 0)
        c->err = -ECANCELED;
    if (c->err == 0 && atomic_load_explicit(&c->aborted, memory_order_acquire))
        c->err = -ECANCELED;
    return c->err == 0;
}

/* What was not exchanged must not be computed with: ids that nobody sent would be used as
 * indices. */
static void end_queue(const struct comm_link *c, struct queue *q)
{
    if (q && q->err == 0)
        q->err = c->err;
}

static void link_sum(struct comm *base, struct queue *q, int site, float *x, size_t n)
{
    struct comm_link *c = (struct comm_link *)base;
    size_t most = c->slot_bytes / exchange_wire_bytes(c->wire);

    if (!usable(c, q, site)) {
        end_queue(c, q);
        return;
    }
    for (size_t at = 0; at < n; at += most) {
        size_t k = n - at < most ? n - at : most;
        const void *part[COMM_WORLD_MAX];
        int64_t t0 = clock_ns(), t1;

        exchange_stage(c->wire, out_slot(c), x + at, k);
        t1 = clock_ns();
        c->err = exchange(c, site, k * exchange_wire_bytes(c->wire));
        if (c->err < 0) {
            end_queue(c, q);
            return;
        }
        base->stats.move_ns += (uint64_t)(t1 - t0);
        t0 = clock_ns();
        for (int r = 0; r < base->world; r++)
            part[r] = slot_of(c, r);
        exchange_add(c->wire, part, base->world, x + at, k);
        base->stats.move_ns += (uint64_t)(clock_ns() - t0);
    }
}

static void link_gather(struct comm *base, struct queue *q, int site, const void *in, void *out,
                        size_t bytes)
{
    struct comm_link *c = (struct comm_link *)base;

    if (!usable(c, q, site)) {
        end_queue(c, q);
        return;
    }
    for (size_t at = 0; at < bytes; at += c->slot_bytes) {
        size_t k = bytes - at < c->slot_bytes ? bytes - at : c->slot_bytes;
        int64_t t0;

        memcpy(out_slot(c), (const uint8_t *)in + at, k);
        c->err = exchange(c, site, k);
        if (c->err < 0) {
            end_queue(c, q);
            return;
        }
        t0 = clock_ns();
        for (int r = 0; r < base->world; r++) {
            uint8_t *to = (uint8_t *)out + (size_t)r * bytes + at;

            /* the own share may already be in its place; what follows of it is still to be sent */
            if (r != base->rank || to != (const uint8_t *)in + at)
                memcpy(to, slot_of(c, r), k);
        }
        base->stats.move_ns += (uint64_t)(clock_ns() - t0);
    }
}

/* The calls have counted while they ran. */
static void link_note(struct comm *base, struct queue *q)
{
}

static int link_check(struct comm *base)
{
    struct comm_link *c = (struct comm_link *)base;

    usable(c, NULL, 0);
    return c->err;
}

static int link_barrier(struct comm *base)
{
    struct comm_link *c = (struct comm_link *)base;

    if (usable(c, NULL, COMM_SITE_BARRIER)) {
        memset(out_slot(c), 0, COMM_UNIT_BYTES);
        c->err = exchange(c, COMM_SITE_BARRIER, COMM_UNIT_BYTES);
    }
    return c->err;
}

static void link_abort(struct comm *base, const char *why)
{
    struct comm_link *c = (struct comm_link *)base;

    if (!atomic_exchange(&c->aborted, 1))
        log_debug("comm link: aborted: %s", why);
    for (int r = 0; r < base->world; r++)
        if (c->link[r])
            c->link[r]->ops->abort(c->link[r]);
}

static void link_close(struct comm *base)
{
    struct comm_link *c = (struct comm_link *)base;

    for (int r = base->world - 1; r >= 0; r--)
        if (c->link[r] && c->mem[r].inbox)
            c->link[r]->ops->unreg(c->link[r], &c->mem[r]);
    munmap(c->outbox, 2 * c->slot_bytes);
    free(c);
}

const struct comm_ops comm_link_ops = {
    .name = "link",
    .caps = 0,
    .sum = link_sum,
    .gather = link_gather,
    .note = link_note,
    .barrier = link_barrier,
    .check = link_check,
    .abort = link_abort,
    .close = link_close,
};

int comm_link_open(struct link *const *links, int rank, int world, const struct comm_settings *s,
                   struct comm **out)
{
    struct comm_link *c;
    int r = comm_link_check(rank, world, s);

    if (r < 0)
        return r;
    c = calloc(1, sizeof(*c));
    if (!c)
        return fail(-ENOMEM, "comm link: no memory");
    c->base = (struct comm){ .ops = &comm_link_ops, .rank = rank, .world = world };
    c->wire = comm_wire(s);
    c->slot_bytes = s->slot_bytes;
    c->seq = s->first_seq;
    c->steps = s->steps;
    c->wait = (struct link_wait){
        .links = c->link, .n = world, .spin_us = s->spin_us, .limit_ms = s->wait_limit_ms
    };
    c->outbox = link_area_map(2 * s->slot_bytes);
    if (!c->outbox) {
        free(c);
        return -ENOMEM;
    }
    for (int p = 0; p < world; p++) {
        if (p == rank)
            continue;
        assert(links[p] && links[p]->peer == p);
        c->mem[p] = (struct link_mem){ .channel = links[p]->channel,
                                       .slots = 2,
                                       .slot_bytes = s->slot_bytes,
                                       .outbox = c->outbox };
        r = links[p]->ops->reg(links[p], &c->mem[p]);
        if (r < 0)
            goto close_comm;
        c->link[p] = links[p];
    }
    *out = &c->base;
    return 0;

close_comm:
    link_close(&c->base);
    return r;
}
