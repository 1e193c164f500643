/* row_store_uring.c owns a ring of the kernel's: reads begin when rows are asked for and end while
 * the host does something else. The home of liburing.
 *
 * At most DEPTH reads are under way; the rest wait in the order asked and follow as others end.
 */
#include "src/model/row_store.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/model/row_ask.h"

enum { DEPTH = 256, CLOSE_MS = 1000 };

struct uring_store {
    struct row_store base;
    struct row_asks asks;
    struct io_uring ring;
    int busy; /* reads that the kernel has */
    int wait_limit_ms;
};

static void submit_read(struct uring_store *st, struct row_want *w)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&st->ring);
    struct row_piece p = row_want_rest(w);

    assert(sqe); /* there are as many entries as reads under way */
    io_uring_prep_read(sqe, p.fd, w->buf + w->got, (unsigned)p.bytes, (__u64)p.place);
    io_uring_sqe_set_data(sqe, w);
}

/* Hand over what there is room for. */
static int pump(struct uring_store *st)
{
    struct row_want *w;
    int r;

    while (st->busy < DEPTH && (w = row_asks_next(&st->asks))) {
        submit_read(st, w);
        st->busy++;
    }
    while (io_uring_sq_ready(&st->ring) > 0) {
        r = io_uring_submit(&st->ring);
        if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
            return fail(-EIO, "row store: io_uring takes no reads: %s", strerror(-r));
        if (r < 0)
            return 0; /* the kernel is short of something: they go with the next call */
    }
    return 0;
}

/* A read has ended: done, or it goes on behind what has come. */
static void ended(struct uring_store *st, struct row_want *w, int got)
{
    int err = got == 0 ? -ENODATA : got;

    if (got > 0) {
        w->got += (size_t)got;
        err = 0;
    }
    if ((err == 0 && w->got < w->bytes) || err == -EINTR || err == -EAGAIN) {
        submit_read(st, w);
        return;
    }
    st->busy--;
    row_asks_done(&st->asks, w, err);
}

/* Everything that has ended by now; no call of the kernel. */
static void reap(struct uring_store *st)
{
    struct io_uring_cqe *cqe;

    while (io_uring_peek_cqe(&st->ring, &cqe) == 0 && cqe) {
        struct row_want *w = io_uring_cqe_get_data(cqe);
        int got = cqe->res;

        io_uring_cqe_seen(&st->ring, cqe);
        if (w && cqe->user_data != LIBURING_UDATA_TIMEOUT)
            ended(st, w, got);
    }
}

static int uring_ask(struct row_store *s, const struct row_table *t, int ticket,
                     const int32_t *column, const int64_t *row_in_column, int n)
{
    struct uring_store *st = (struct uring_store *)s;
    int r = row_asks_add(&st->asks, t, ticket, column, row_in_column, n);

    if (r < 0)
        return r;
    reap(st);
    pump(st); /* what it says, take says again */
    return 0;
}

static int uring_warm(struct row_store *s, const struct row_table *t, const int32_t *column,
                      const int64_t *row_in_column, int n)
{
    struct uring_store *st = (struct uring_store *)s;
    int r;

    reap(st);
    r = row_asks_warm(&st->asks, t, column, row_in_column, n);
    return r < 0 ? r : pump(st);
}

/* Until the ticket's reads have ended, or the limit. */
static int wait_for(struct uring_store *st, int ticket)
{
    int64_t begin = clock_ns(), limit = st->wait_limit_ms * NS_PER_MS;
    int r = 0;

    while (r == 0 && row_asks_left(&st->asks, ticket) > 0) {
        struct __kernel_timespec t = { .tv_nsec = 50 * NS_PER_MS };
        struct io_uring_cqe *cqe;

        r = pump(st);
        if (r < 0)
            break;
        r = io_uring_wait_cqe_timeout(&st->ring, &cqe, &t);
        r = r == 0 || r == -ETIME || r == -EINTR || r == -EAGAIN
                ? 0
                : fail(-EIO, "row store: io_uring: %s", strerror(-r));
        reap(st);
        if (st->wait_limit_ms >= 0 && clock_ns() - begin >= limit)
            break;
    }
    st->asks.stats.waits++;
    st->asks.stats.wait_ns += (uint64_t)(clock_ns() - begin);
    return r;
}

static int uring_take(struct row_store *s, int ticket, float *out)
{
    struct uring_store *st = (struct uring_store *)s;
    int left, r = 0;

    reap(st);
    left = row_asks_left(&st->asks, ticket);
    if (left < 0)
        return left;
    if (left > 0)
        r = wait_for(st, ticket);
    return r < 0 ? r : row_asks_take(&st->asks, ticket, st->wait_limit_ms, out);
}

static void uring_stats(struct row_store *s, struct row_store_stats *out)
{
    *out = ((struct uring_store *)s)->asks.stats;
}

/* The kernel may still write into the buffers of reads that it has: they are taken back first, and
 * what does not come back keeps its memory. */
static int take_back(struct uring_store *st)
{
    int64_t until = clock_ns() + CLOSE_MS * NS_PER_MS;

    if (st->busy > 0) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&st->ring);

        if (sqe) {
            io_uring_prep_cancel(sqe, NULL, IORING_ASYNC_CANCEL_ANY);
            io_uring_sqe_set_data(sqe, NULL);
        }
    }
    while (st->busy > 0 && clock_ns() < until) {
        struct __kernel_timespec t = { .tv_nsec = 10 * NS_PER_MS };
        struct io_uring_cqe *cqe;

        io_uring_submit(&st->ring);
        if (io_uring_wait_cqe_timeout(&st->ring, &cqe, &t) < 0)
            continue;
        do {
            struct row_want *w = io_uring_cqe_get_data(cqe);

            if (w && cqe->user_data != LIBURING_UDATA_TIMEOUT)
                st->busy--;
            io_uring_cqe_seen(&st->ring, cqe);
        } while (io_uring_peek_cqe(&st->ring, &cqe) == 0);
    }
    return st->busy;
}

static void uring_close(struct row_store *s)
{
    struct uring_store *st = (struct uring_store *)s;
    int left = take_back(st);

    io_uring_queue_exit(&st->ring);
    if (left > 0) {
        log_warn("row store: %d reads have not come back, their memory stays", left);
        return;
    }
    row_asks_close(&st->asks);
    free(st);
}

static const struct row_store_ops uring_ops = {
    .name = "uring",
    .ask = uring_ask,
    .warm = uring_warm,
    .take = uring_take,
    .stats = uring_stats,
    .close = uring_close,
};

/* The first kernels with rings had no plain reads. */
static int can_read(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    int can = probe && io_uring_opcode_supported(probe, IORING_OP_READ);

    io_uring_free_probe(probe);
    return can;
}

int row_store_uring_open(const struct row_store_settings *s, struct row_store **out)
{
    struct uring_store *st = calloc(1, sizeof(*st));
    int r;

    if (!st)
        return fail(-ENOMEM, "row store: no memory");
    st->base.ops = &uring_ops;
    st->wait_limit_ms = s->wait_limit_ms;
    r = io_uring_queue_init(2 * DEPTH, &st->ring, 0);
    if (r < 0) {
        free(st);
        return r == -ENOMEM ? -ENODEV : r; /* a limit on locked memory in old kernels */
    }
    r = can_read(&st->ring) ? row_asks_open(&st->asks, s, NULL) : -ENOSYS;
    if (r < 0) {
        row_asks_close(&st->asks);
        io_uring_queue_exit(&st->ring);
        free(st);
        return r;
    }
    *out = &st->base;
    return 0;
}
