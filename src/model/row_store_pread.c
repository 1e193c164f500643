/* row_store_pread.c owns a store that reads when it is told to wait: the meaning of a row store,
 * and enough where rows are in the page cache. What is asked or warmed is named to the kernel at
 * once, so that a disk works on all of it before the first read waits.
 */
#include "src/model/row_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/model/row_ask.h"

struct pread_store {
    struct row_store base;
    struct row_asks asks;
};

static void ahead(int fd, off_t place, size_t bytes)
{
    posix_fadvise(fd, place, (off_t)bytes, POSIX_FADV_WILLNEED);
}

static int pread_ask(struct row_store *s, const struct row_table *t, int ticket,
                     const int32_t *column, const int64_t *row_in_column, int n)
{
    return row_asks_add(&((struct pread_store *)s)->asks, t, ticket, column, row_in_column, n);
}

static int pread_warm(struct row_store *s, const struct row_table *t, const int32_t *column,
                      const int64_t *row_in_column, int n)
{
    return row_asks_warm(&((struct pread_store *)s)->asks, t, column, row_in_column, n);
}

static int read_row(struct row_want *w)
{
    while (w->got < w->bytes) {
        struct row_piece p = row_want_rest(w);
        ssize_t n = pread(p.fd, w->buf + w->got, p.bytes, p.place);

        if (n > 0)
            w->got += (size_t)n;
        else if (n == 0)
            return -ENODATA;
        else if (errno != EINTR)
            return -errno;
    }
    return 0;
}

static int pread_take(struct row_store *s, int ticket, float *out)
{
    struct row_asks *a = &((struct pread_store *)s)->asks;
    int left = row_asks_left(a, ticket);
    struct row_want *w;
    int64_t begin;

    if (left < 0)
        return left;
    if (left > 0) {
        begin = clock_ns();
        /* in the order asked: what an earlier ask wants is needed as well */
        while ((w = row_asks_next(a)))
            row_asks_done(a, w, read_row(w));
        a->stats.waits++;
        a->stats.wait_ns += (uint64_t)(clock_ns() - begin);
    }
    return row_asks_take(a, ticket, 0, out);
}

static void pread_stats(struct row_store *s, struct row_store_stats *out)
{
    *out = ((struct pread_store *)s)->asks.stats;
}

static void pread_close(struct row_store *s)
{
    struct pread_store *st = (struct pread_store *)s;

    row_asks_close(&st->asks);
    free(st);
}

static const struct row_store_ops pread_ops = {
    .name = "pread",
    .ask = pread_ask,
    .warm = pread_warm,
    .take = pread_take,
    .stats = pread_stats,
    .close = pread_close,
};

int row_store_pread_open(const struct row_store_settings *s, struct row_store **out)
{
    struct pread_store *st = calloc(1, sizeof(*st));
    int r;

    if (!st)
        return fail(-ENOMEM, "row store: no memory");
    st->base.ops = &pread_ops;
    r = row_asks_open(&st->asks, s, ahead);
    if (r < 0) {
        pread_close(&st->base);
        return r;
    }
    *out = &st->base;
    return 0;
}
