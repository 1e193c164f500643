/* comm_self - a sum with one term: of a world of one rank, or of the only rank that there is. */
#include "src/transport/comm.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/exchange.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/comm_record.h"
#include "src/transport/comm_table.h"

enum { SELF_PIECE = 1024 };

struct comm_self {
    struct comm base;
    enum exchange_wire wire;
    int err;
    atomic_int aborted;
    float piece[SELF_PIECE]; /* wire form of what is being rounded */
};

static int self_usable(struct comm_self *s, int site)
{
    if (s->err == 0 && (site < 0 || site >= COMM_SITES))
        s->err = fail(-EINVAL, "comm self: site %d, want 0 to %d", site, COMM_SITES - 1);
    return s->err == 0 && !atomic_load_explicit(&s->aborted, memory_order_acquire);
}

static bool on_device(const struct queue *q)
{
    return q && !(q->ops->caps & BACKEND_HOST_MEMORY);
}

static void self_sum(struct comm *c, struct queue *q, int site, float *x, size_t n)
{
    struct comm_self *s = (struct comm_self *)c;
    int64_t start = clock_ns();

    if (!self_usable(s, site) || n == 0 || s->wire == EXCHANGE_F32)
        return;
    if (on_device(q)) {
        exchange_round(q, s->wire, x, n);
        return;
    }
    for (size_t at = 0; at < n; at += SELF_PIECE) {
        size_t k = n - at < SELF_PIECE ? n - at : SELF_PIECE;
        const void *part[1] = { s->piece };

        exchange_stage(s->wire, s->piece, x + at, k);
        exchange_add(s->wire, part, 1, x + at, k);
    }
    c->stats.move_ns += (uint64_t)(clock_ns() - start);
}

static void self_gather(struct comm *c, struct queue *q, int site, const void *in, void *out,
                        size_t bytes)
{
    if (!self_usable((struct comm_self *)c, site) || bytes == 0)
        return;
    for (int r = 0; r < c->world; r++) {
        void *to = (char *)out + (size_t)r * bytes;

        if (to == in)
            continue;
        if (on_device(q))
            exchange_copy(q, to, in, bytes);
        else
            memcpy(to, in, bytes);
    }
}

/* Nothing to look at: a rank alone waits for nobody. */
static void self_note(struct comm *c, struct queue *q)
{
}

static int self_check(struct comm *c)
{
    struct comm_self *s = (struct comm_self *)c;

    if (s->err == 0 && atomic_load_explicit(&s->aborted, memory_order_acquire))
        s->err = -ECANCELED;
    return s->err;
}

static void self_abort(struct comm *c, const char *why)
{
    struct comm_self *s = (struct comm_self *)c;

    if (!atomic_exchange(&s->aborted, 1))
        log_debug("comm self: aborted: %s", why);
}

static void self_close(struct comm *c)
{
    free(c);
}

const struct comm_ops comm_self_ops = {
    .name = "self",
    .caps = COMM_CAPTURE | COMM_DEVICE,
    .sum = self_sum,
    .gather = self_gather,
    .note = self_note,
    .barrier = self_check,
    .check = self_check,
    .abort = self_abort,
    .close = self_close,
};

int comm_self_open(const struct comm_settings *set, struct comm **out)
{
    return comm_self_alone(set, 0, 1, out);
}

int comm_self_alone(const struct comm_settings *set, int rank, int world, struct comm **out)
{
    struct comm_self *s = calloc(1, sizeof(*s));

    if (!s)
        return fail(-ENOMEM, "comm self: no memory");
    s->base = (struct comm){ .ops = &comm_self_ops, .rank = rank, .world = world };
    s->wire = comm_wire(set);
    *out = &s->base;
    return 0;
}
