/* fault - decorators of links. */
#include "tests/transport/fault.h"

#include <errno.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "tests/transport/wires.h"

enum torn { TORN_NOT, TORN_COMES, TORN_HALF };

/* What a waiter reads from the base changes with the real link. */
static int forward(struct fault_link *f, int r)
{
    f->base.pending = f->real->pending;
    f->base.bell = f->real->bell;
    return r;
}

static int fault_reg(struct link *l, struct link_mem *m)
{
    struct fault_link *f = (struct fault_link *)l;

    if (f->fault == FAULT_REG) {
        f->real->ops->abort(f->real);
        return fail(-ENOMEM, "link fault: no queue pair");
    }
    f->mem = m;
    return forward(f, f->real->ops->reg(f->real, m));
}

static void fault_unreg(struct link *l, struct link_mem *m)
{
    struct fault_link *f = (struct fault_link *)l;

    f->real->ops->unreg(f->real, m);
}

/* Behind the peer's answer to everything before, which is in slot 0. The peer's thread sends the
 * rest, and nobody else sends meanwhile. */
static void send_half(struct fault_link *f)
{
    while (atomic_load(link_flag(f->mem, 0)) != f->last && f->real->ops->poll(f->real) == 0)
        clock_sleep(50 * NS_PER_US);
    atomic_store(&f->torn, TORN_COMES);
    f->real->ops->send(f->real, f->rest.mem, f->rest.off, f->rest.len / 2, f->rest.tag);
    atomic_store(&f->torn, TORN_HALF);
    while (atomic_load(&f->torn) != TORN_NOT)
        clock_sleep(50 * NS_PER_US);
}

/* Behind the first poll that finds the flag up its bytes are looked at; the second one brings the
 * rest. */
static void bring_rest(struct fault_link *f)
{
    struct fault_link *from = f->torn_by;
    int slot;

    if (!from || !f->mem || atomic_load(&from->torn) == TORN_NOT)
        return;
    slot = (int)(from->rest.off / f->mem->slot_bytes);
    if (atomic_load(link_flag(f->mem, slot)) != from->rest.tag || f->looks++ == 0)
        return;
    while (atomic_load(&from->torn) != TORN_HALF)
        clock_sleep(10 * NS_PER_US);
    from->real->ops->send(from->real, from->rest.mem, from->rest.off, from->rest.len,
                          from->rest.tag);
    atomic_store(&from->torn, TORN_NOT);
}

static int fault_send(struct link *l, const struct link_mem *m, size_t off, size_t len,
                      uint64_t tag)
{
    struct fault_link *f = (struct fault_link *)l;
    const struct link_ops *real = f->real->ops;
    int now = f->at-- == 0;

    if (f->fault == FAULT_DIE && (now || f->at < 0)) {
        real->abort(f->real);
        return -ECONNRESET;
    }
    if (f->fault == FAULT_DROP && now)
        return 0;
    if (f->fault == FAULT_DELAY)
        clock_sleep((int64_t)(wires_random(&f->dice) % 200) * NS_PER_US);
    if (f->fault == FAULT_DUPLICATE)
        real->send(f->real, m, off, len, tag);
    if ((f->fault == FAULT_TEAR || f->fault == FAULT_HALF) && now) {
        f->rest.mem = m;
        f->rest.off = off;
        f->rest.len = len;
        f->rest.tag = tag;
        if (f->fault == FAULT_TEAR)
            send_half(f);
        else
            real->send(f->real, m, off, len / 2, tag);
        return forward(f, 0);
    }
    f->last = tag;
    return forward(f, real->send(f->real, m, off, len, tag));
}

static int fault_poll(struct link *l)
{
    struct fault_link *f = (struct fault_link *)l;

    bring_rest(f);
    return forward(f, f->real->ops->poll(f->real));
}

static void fault_abort(struct link *l)
{
    struct fault_link *f = (struct fault_link *)l;

    f->real->ops->abort(f->real);
}

static void fault_close(struct link *l)
{
    struct fault_link *f = (struct fault_link *)l;

    f->real->ops->close(f->real);
}

static const struct link_ops fault_ops = {
    .name = "fault",
    .caps = LINK_WAKES,
    .reg = fault_reg,
    .unreg = fault_unreg,
    .send = fault_send,
    .poll = fault_poll,
    .news = link_no_news,
    .abort = fault_abort,
    .close = fault_close,
};

void fault_peer(struct fault_link *f, struct link *real, struct fault_link *torn_by)
{
    fault_wrap(f, real, FAULT_NONE, 0);
    f->torn_by = torn_by;
}

void fault_wrap(struct fault_link *f, struct link *real, enum fault fault, int at)
{
    *f = (struct fault_link){ .base = *real, .real = real, .fault = fault, .at = at, .dice = 1 };
    f->base.ops = &fault_ops;
}
