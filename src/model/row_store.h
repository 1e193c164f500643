/* row_store - rows of n-gram tables, read one by one from this rank's pack and never resident.
 *
 * Implementers: row_store_pread.c; an asynchronous one plugs in here. `ask` starts reads, `take`
 * waits for them: a caller asks as soon as ids are known and takes before the window is uploaded.
 */
#ifndef TANDEM_MODEL_ROW_STORE_H
#define TANDEM_MODEL_ROW_STORE_H

#include <stddef.h>
#include <stdint.h>

#define ROW_TICKETS 64 /* tickets are 0 .. ROW_TICKETS - 1 */

struct pack;
struct row_table;
struct row_store;

struct row_store_stats {
    uint64_t rows, bytes, reads; /* asked, read from the file, read calls */
    uint64_t wait_ns;            /* how long take has waited for the file */
};

struct row_store_ops {
    const char *name;
    /* ask - begin to fetch n rows of table t: row_in_column[i] of local column column[i] (0 ..
     * t->count - 1). The arrays are copied; t is borrowed until take.
     * errors   -EINVAL out of range, or an ask of this ticket is open; then nothing was asked */
    int (*ask)(struct row_store *s, const struct row_table *t, int ticket, const int32_t *column,
               const int64_t *row_in_column, int n);
    /* take - the rows of the ticket as f32, [n][t->cols], in the order asked. The ticket is free
     * again.
     * errors   -EIO naming table, row and cause; -EINVAL nothing was asked; out is not written */
    int (*take)(struct row_store *s, int ticket, float *out);
    void (*stats)(struct row_store *s, struct row_store_stats *out);
    void (*close)(struct row_store *s);
};

struct row_store {
    const struct row_store_ops *ops;
};

/* row_store_pread_open - plain reads at take; borrows the pack.   errors   -ENOMEM */
int row_store_pread_open(struct pack *p, struct row_store **out);

#endif
