/* row_store_pread.c owns the open asks of a store that reads when it is told to wait: the meaning
 * of a row store, and enough where rows are in the page cache. Its buffers grow to the largest ask
 * and stay.
 */
#include "src/model/row_store.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "kernels/formats/exl3.h"
#include "kernels/formats/values.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/pack.h"
#include "src/model/stored.h"

struct ask {
    const struct row_table *t;
    bool open;
    int fd, n, cap;
    uint64_t *offset; /* [n] in the file */
    int32_t *column;  /* [n] */
};

struct pread_store {
    struct row_store base;
    struct pack *p;
    struct ask ask[ROW_TICKETS];
    char *rows; /* as stored */
    size_t rows_bytes;
    struct row_store_stats stats;
};

static int grow_ask(struct ask *a, int n)
{
    uint64_t *offset;
    int32_t *column;

    if (n <= a->cap)
        return 0;
    offset = realloc(a->offset, (size_t)n * sizeof(*offset));
    a->offset = offset ? offset : a->offset;
    column = realloc(a->column, (size_t)n * sizeof(*column));
    a->column = column ? column : a->column;
    if (!offset || !column)
        return fail(-ENOMEM, "row store: no memory for an ask of %d rows", n);
    a->cap = n;
    return 0;
}

static int pread_ask(struct row_store *s, const struct row_table *t, int ticket,
                     const int32_t *column, const int64_t *row_in_column, int n)
{
    struct pread_store *st = (struct pread_store *)s;
    struct ask *a;
    int r;

    if (ticket < 0 || ticket >= ROW_TICKETS || n < 0)
        return fail(-EINVAL, "row store: ticket %d, %d rows", ticket, n);
    a = &st->ask[ticket];
    if (a->open)
        return fail(-EINVAL, "row store: ticket %d was asked and not taken", ticket);
    r = grow_ask(a, n);
    if (r < 0)
        return r;
    for (int i = 0; i < n; i++) {
        int64_t rows;

        r = pack_rows_fd(st->p, t->id, column[i], &a->fd, &a->offset[i], &rows);
        if (r < 0)
            return r;
        if (row_in_column[i] < 0 || row_in_column[i] >= rows)
            return fail(-EINVAL, "row store: table %d column %d: row %lld of %lld", t->id,
                        t->first + column[i], (long long)row_in_column[i], (long long)rows);
        a->offset[i] += (uint64_t)row_in_column[i] * (uint64_t)t->row_bytes;
        a->column[i] = column[i];
    }
    a->t = t;
    a->n = n;
    a->open = true;
    st->stats.rows += (uint64_t)n;
    return 0;
}

static int grow_rows(struct pread_store *st, size_t bytes)
{
    char *rows;

    if (bytes <= st->rows_bytes)
        return 0;
    rows = realloc(st->rows, bytes);
    if (!rows)
        return fail(-ENOMEM, "row store: no memory for %zu bytes of rows", bytes);
    st->rows = rows;
    st->rows_bytes = bytes;
    return 0;
}

static void decode(const struct row_table *t, int column, const char *row, float *out)
{
    uint16_t words[1 + NGRAM_COLS * NGRAM_BITS2_MAX / 32];

    switch (t->dtype) {
    case DTYPE_FP8:
        fp8_row((const uint8_t *)row, (const uint8_t *)row + t->cols, t->cols, out);
        break;
    case DTYPE_EXL3:
        memcpy(words, row, (size_t)t->row_bytes);
        ngram_row(words, t->bits, t->bias + (size_t)column * NGRAM_COLS, out);
        break;
    default:
        f32_widen(t->dtype, row, (size_t)t->cols, out);
    }
}

static int pread_take(struct row_store *s, int ticket, float *out)
{
    struct pread_store *st = (struct pread_store *)s;
    struct ask *a;
    size_t row_bytes;
    int r;

    if (ticket < 0 || ticket >= ROW_TICKETS || !st->ask[ticket].open)
        return fail(-EINVAL, "row store: ticket %d was not asked", ticket);
    a = &st->ask[ticket];
    a->open = false;
    row_bytes = (size_t)a->t->row_bytes;
    r = grow_rows(st, (size_t)a->n * row_bytes);
    for (int i = 0; i < a->n && r == 0; i++) {
        char label[96];

        snprintf(label, sizeof(label), "row store: table %d, row %d of ticket %d", a->t->id, i,
                 ticket);
        r = full_pread(a->fd, st->rows + (size_t)i * row_bytes, row_bytes, (off_t)a->offset[i],
                       label);
        st->stats.reads++;
        st->stats.bytes += row_bytes;
    }
    if (r < 0)
        return r == -ENOMEM ? r : -EIO;
    for (int i = 0; i < a->n; i++)
        decode(a->t, a->column[i], st->rows + (size_t)i * row_bytes,
               out + (size_t)i * (size_t)a->t->cols);
    return 0;
}

static void pread_stats(struct row_store *s, struct row_store_stats *out)
{
    *out = ((struct pread_store *)s)->stats;
}

static void pread_close(struct row_store *s)
{
    struct pread_store *st = (struct pread_store *)s;

    for (int i = 0; i < ROW_TICKETS; i++) {
        free(st->ask[i].offset);
        free(st->ask[i].column);
    }
    free(st->rows);
    free(st);
}

static const struct row_store_ops pread_ops = {
    .name = "pread",
    .ask = pread_ask,
    .take = pread_take,
    .stats = pread_stats,
    .close = pread_close,
};

int row_store_pread_open(struct pack *p, struct row_store **out)
{
    struct pread_store *st = calloc(1, sizeof(*st));

    if (!st)
        return fail(-ENOMEM, "row store: no memory");
    st->base.ops = &pread_ops;
    st->p = p;
    *out = &st->base;
    return 0;
}
