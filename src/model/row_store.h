/* row_store - rows of n-gram tables, read one by one from this rank's pack and never resident.
 *
 *   warm     ids that may be asked for soon: their reads begin, nobody waits for them
 *   ask      ids of a window: what neither the cache nor a read under way has begins to be read
 *   take     the rows; waits only for reads that have not ended
 *
 * A row is read once however many windows, columns or warmings want it, and is kept in a cache of
 * bounded size afterwards (row_cache.h). Implementers of the reading: row_store_pread.c, which
 * reads in take and asks the kernel to read ahead before; row_store_uring.c, whose reads run from
 * the moment of asking. One thread uses a store.
 */
#ifndef TANDEM_MODEL_ROW_STORE_H
#define TANDEM_MODEL_ROW_STORE_H

#include <stddef.h>
#include <stdint.h>

#define ROW_TICKETS 64 /* tickets are 0 .. ROW_TICKETS - 1 */

struct pack;
struct row_table;
struct row_store;

/* Since open. rows = hits + joined + the rows that had to be read; those of warmings not
 * counted. */
struct row_store_stats {
    uint64_t rows;         /* asked */
    uint64_t hits, joined; /* were in the cache; the same row was being read already */
    uint64_t warmed;       /* reads that a warming began */
    uint64_t reads, bytes; /* reads that ended well, of asks and warmings, and what they brought */
    uint64_t waits;        /* takes that had to wait */
    uint64_t wait_ns;
};

struct row_store_ops {
    const char *name;
    /* ask - begin to fetch n rows of table t: row_in_column[i] of local column column[i] (0 ..
     * t->count - 1). The arrays are copied; t is borrowed until take.
     * errors   -EINVAL out of range, or an ask of this ticket is open; -ENOMEM; then nothing was
     *          asked */
    int (*ask)(struct row_store *s, const struct row_table *t, int ticket, const int32_t *column,
               const int64_t *row_in_column, int n);
    /* warm - the same rows without a ticket: a hint, nothing is owed. Errors of it are those of
     * ask; one of the disk comes back when the row is asked for. */
    int (*warm)(struct row_store *s, const struct row_table *t, const int32_t *column,
                const int64_t *row_in_column, int n);
    /* take - the rows of the ticket as f32, [n][t->cols], in the order asked. The ticket is free
     * again.
     * errors   -EIO naming pack, table, row and cause; -ETIMEDOUT the same, the disk has not
     *          answered in wait_limit_ms; -EINVAL nothing was asked; out is not written */
    int (*take)(struct row_store *s, int ticket, float *out);
    void (*stats)(struct row_store *s, struct row_store_stats *out);
    void (*close)(struct row_store *s);
};

struct row_store {
    const struct row_store_ops *ops;
};

struct row_store_settings {
    struct pack *pack;  /* borrowed */
    const char *io;     /* auto, uring, pread; auto is uring where kernel and build have it */
    size_t cache_bytes; /* bound of everything that the cache takes */
    int wait_limit_ms;  /* of a take; -1: none. A plain read cannot be given up */
};

/* row_store_open - errors   -ENOMEM; -ENODEV uring is asked for but not there, with the cause */
int row_store_open(const struct row_store_settings *s, struct row_store **out);

/* the implementers of row_store_open; uring: -ENOTSUP in a build without it, else the kernel's
 * errno, unlogged */
int row_store_pread_open(const struct row_store_settings *s, struct row_store **out);
int row_store_uring_open(const struct row_store_settings *s, struct row_store **out);

#endif
