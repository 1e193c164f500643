/* row_store - rows of n-gram tables, read one by one from this rank's pack and never resident.
 *
 * Implementers: row_store_pread.c; an asynchronous one plugs in here. `ask` starts reads, `take` waits for
 * them: a caller asks as soon as ids are known and takes before the window is uploaded.
 */
#ifndef TANDEM_MODEL_ROW_STORE_H
#define TANDEM_MODEL_ROW_STORE_H

#include <stddef.h>
#include <stdint.h>

struct pack;
struct row_table;
struct row_store;

struct row_store_stats {
    uint64_t rows, bytes, reads; /* asked, read from the file, read calls */
};

struct row_store_ops {
    const char *name;
    /* ask - begin to fetch n rows of table t: index[i] is a row of the table's global numbering whose column
     * is column[i] (0 .. t->count - 1, local). Out of range: -EINVAL. At most one ask is open a ticket. */
    int (*ask)(struct row_store *s, const struct row_table *t, int ticket, const int32_t *column,
               const int64_t *row_in_column, int n);
    /* take - the rows of the ticket as f32, [n][t->cols], in the order asked.
     * errors   -EIO naming table, row and cause; out is not written */
    int (*take)(struct row_store *s, int ticket, float *out);
    void (*stats)(struct row_store *s, struct row_store_stats *out);
    void (*close)(struct row_store *s);
};

struct row_store {
    const struct row_store_ops *ops;
};

/* row_store_pread_open - plain reads at take; borrows the pack. */
int row_store_pread_open(struct pack *p, struct row_store **out);

#endif
