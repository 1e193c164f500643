/* fault - decorators of links. */
#include "tests/transport/fault.h"

#include <errno.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "tests/transport/wires.h"

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
    return forward(f, f->real->ops->reg(f->real, m));
}

static void fault_unreg(struct link *l, struct link_mem *m)
{
    struct fault_link *f = (struct fault_link *)l;

    f->real->ops->unreg(f->real, m);
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
        real->send(f->real, m, off, len / 2, tag);
        if (f->fault == FAULT_HALF)
            return forward(f, 0);
        clock_sleep(100 * NS_PER_US);
    }
    return forward(f, real->send(f->real, m, off, len, tag));
}

static int fault_poll(struct link *l)
{
    struct fault_link *f = (struct fault_link *)l;

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

void fault_wrap(struct fault_link *f, struct link *real, enum fault fault, int at)
{
    *f = (struct fault_link){ .base = *real, .real = real, .fault = fault, .at = at, .dice = 1 };
    f->base.ops = &fault_ops;
}
