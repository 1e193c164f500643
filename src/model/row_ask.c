/* row_ask.c owns tickets, wants and the cache of a row store; a reader moves wants from TODO to
 * done. */
#include "src/model/row_ask.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "kernels/formats/exl3.h"
#include "kernels/formats/values.h"
#include "src/base/log.h"
#include "src/model/pack.h"
#include "src/model/row_cache.h"
#include "src/model/stored.h"

#define LOOK_AHEAD 8
#define BLOCK_WANTS 1024

int row_asks_open(struct row_asks *a, const struct row_store_settings *s,
                  void (*ahead)(int fd, off_t place, size_t bytes))
{
    uint64_t rows;

    *a = (struct row_asks){ .pack = s->pack, .ahead = ahead };
    pack_rows_size(s->pack, &rows, &a->row_bytes);
    if (a->row_bytes == 0)
        a->row_bytes = 1; /* a pack without tables: nothing will be asked */
    return row_cache_open(s->cache_bytes, a->row_bytes, rows, &a->cache);
}

void row_asks_close(struct row_asks *a)
{
    for (int i = 0; i < ROW_TICKETS; i++) {
        free(a->ticket[i].want);
        free(a->ticket[i].column);
        free(a->ticket[i].rows);
    }
    for (int i = 0; i < a->blocks; i++)
        free(a->block[i]);
    free(a->block);
    row_cache_close(a->cache);
}

/* Where a row lies. */
struct row_spot {
    uint64_t key;
    struct row_piece piece[2];
};

/* ---- wants ----------------------------------------------------------------------------------- */

static struct row_want **chain_of(struct row_asks *a, uint64_t key)
{
    return &a->chain[(key * UINT64_C(0x9e3779b97f4a7c15) >> 40) % WANT_CHAINS];
}

static struct row_want *find(struct row_asks *a, uint64_t key)
{
    struct row_want *w = *chain_of(a, key);

    while (w && w->key != key)
        w = w->same;
    return w;
}

static void unchain(struct row_asks *a, struct row_want *w)
{
    struct row_want **at = chain_of(a, w->key);

    while (*at && *at != w)
        at = &(*at)->same;
    if (*at)
        *at = w->same;
}

static void release(struct row_asks *a, struct row_want *w)
{
    if (w->refs > 0 || w->state == WANT_TODO || w->state == WANT_BUSY)
        return;
    if (w->state == WANT_HERE)
        unchain(a, w);
    w->state = WANT_FREE;
    w->next = a->spare;
    a->spare = w;
    a->spares++;
}

/* Room for n more wants, so that an ask cannot fail half way. Wants never move: a kernel may be
 * writing into their buffers. */
static int reserve(struct row_asks *a, int n)
{
    size_t size = sizeof(struct row_want) + a->row_bytes;

    while (a->spares < n) {
        void **block = realloc(a->block, sizeof(*block) * (size_t)(a->blocks + 1));
        struct row_want *w;
        unsigned char *buf;

        if (block)
            a->block = block;
        w = block ? calloc(BLOCK_WANTS, size) : NULL;
        if (!w)
            return fail(-ENOMEM, "row store: no memory for %d rows", n);
        a->block[a->blocks++] = w;
        buf = (unsigned char *)(w + BLOCK_WANTS);
        for (int i = 0; i < BLOCK_WANTS; i++) {
            w[i].buf = buf + (size_t)i * a->row_bytes;
            w[i].next = a->spare;
            a->spare = &w[i];
        }
        a->spares += BLOCK_WANTS;
    }
    return 0;
}

static struct row_want *add_want(struct row_asks *a, const struct row_table *t,
                                 const struct row_spot *at, int column, int64_t row)
{
    struct row_want *w = a->spare, **chain = chain_of(a, at->key);
    unsigned char *buf = w->buf;

    a->spare = w->next;
    a->spares--;
    *w = (struct row_want){ .state = WANT_TODO,
                            .key = at->key,
                            .piece = { at->piece[0], at->piece[1] },
                            .bytes = (size_t)t->row_bytes,
                            .buf = buf,
                            .table = t->id,
                            .column = t->first + column,
                            .row = row,
                            .same = *chain };
    *chain = w;
    if (a->todo)
        a->todo_last->next = w;
    else
        a->todo = w;
    a->todo_last = w;
    return w;
}

struct row_want *row_asks_next(struct row_asks *a)
{
    struct row_want *w = a->todo;

    if (w) {
        a->todo = w->next;
        w->next = NULL;
        w->state = WANT_BUSY;
    }
    return w;
}

void row_asks_done(struct row_asks *a, struct row_want *w, int err)
{
    assert(w->state == WANT_BUSY);
    w->err = err;
    if (err < 0) {
        unchain(a, w);
        w->state = WANT_LOST;
    } else {
        row_cache_put(a->cache, w->key, w->buf, w->bytes);
        w->state = WANT_HERE;
        a->stats.reads++;
        a->stats.bytes += w->bytes;
    }
    release(a, w);
}

/* ---- tickets --------------------------------------------------------------------------------- */

/* Where row i of an ask lies; every row is in range before the first is asked. */
static int locate(struct row_asks *a, const struct row_table *t, int column, int64_t row,
                  struct row_spot *out)
{
    struct pack_rows c;
    int r = pack_rows_at(a->pack, t->id, column, &c);

    if (r < 0)
        return r;
    if (row < 0 || row >= c.rows)
        return fail(-EINVAL, "row store: table %d column %d: row %lld of %lld", t->id,
                    t->first + column, (long long)row, (long long)c.rows);
    for (int i = 0; i < 2; i++) {
        uint64_t place = c.piece[i].offset + (uint64_t)row * c.piece[i].bytes;

        out->piece[i] = (struct row_piece){ c.piece[i].fd, (off_t)place, c.piece[i].bytes };
    }
    out->key = (uint64_t)out->piece[0].place | (uint64_t)c.file << 56;
    return 0;
}

/* Tell the kernel of a reader that reads later. */
static void tell_ahead(struct row_asks *a, const struct row_spot *at)
{
    for (int i = 0; i < 2 && at->piece[i].bytes > 0; i++)
        a->ahead(at->piece[i].fd, at->piece[i].place, at->piece[i].bytes);
}

static int check(struct row_asks *a, const struct row_table *t, const int32_t *column,
                 const int64_t *row, int n)
{
    struct row_spot at = { 0 };
    int r = 0;

    for (int i = 0; i < n && r == 0; i++) {
        r = locate(a, t, column[i], row[i], &at);
        row_cache_hint(a->cache, at.key, 0);
    }
    return r == 0 ? reserve(a, n) : r;
}

/* Checked rows are looked up one after the other: memory works on those to come. */
static void look_ahead(struct row_asks *a, const struct row_table *t, const int32_t *column,
                       const int64_t *row, int i, int n)
{
    struct row_spot at;

    if (i + LOOK_AHEAD >= n)
        return;
    locate(a, t, column[i + LOOK_AHEAD], row[i + LOOK_AHEAD], &at);
    row_cache_hint(a->cache, at.key, 1);
}

static int grow(struct row_ticket *k, int n, size_t bytes)
{
    if (n > k->cap) {
        struct row_want **want = realloc(k->want, sizeof(struct row_want *) * (size_t)n);
        int32_t *column = realloc(k->column, sizeof(*column) * (size_t)n);

        k->want = want ? want : k->want;
        k->column = column ? column : k->column;
        if (!want || !column)
            return fail(-ENOMEM, "row store: no memory for an ask of %d rows", n);
        k->cap = n;
    }
    if ((size_t)n * bytes > k->rows_cap) {
        unsigned char *rows = realloc(k->rows, (size_t)n * bytes);

        if (!rows)
            return fail(-ENOMEM, "row store: no memory for %d rows", n);
        k->rows = rows;
        k->rows_cap = (size_t)n * bytes;
    }
    return 0;
}

int row_asks_add(struct row_asks *a, const struct row_table *t, int ticket, const int32_t *column,
                 const int64_t *row, int n)
{
    size_t bytes = (size_t)t->row_bytes;
    struct row_ticket *k;
    int r;

    if (ticket < 0 || ticket >= ROW_TICKETS || n < 0)
        return fail(-EINVAL, "row store: ticket %d, %d rows", ticket, n);
    k = &a->ticket[ticket];
    if (k->open)
        return fail(-EINVAL, "row store: ticket %d was asked and not taken", ticket);
    r = check(a, t, column, row, n);
    if (r == 0)
        r = grow(k, n, bytes);
    if (r < 0)
        return r;
    for (int i = 0; i < n; i++) {
        const void *cached;
        struct row_spot at;

        look_ahead(a, t, column, row, i, n);
        locate(a, t, column[i], row[i], &at);
        k->column[i] = column[i];
        k->want[i] = find(a, at.key);
        if (k->want[i]) {
            a->stats.joined++;
        } else if ((cached = row_cache_find(a->cache, at.key))) {
            memcpy(k->rows + (size_t)i * bytes, cached, bytes);
            a->stats.hits++;
            continue;
        } else {
            k->want[i] = add_want(a, t, &at, column[i], row[i]);
            if (a->ahead)
                tell_ahead(a, &at);
        }
        k->want[i]->refs++;
    }
    k->t = t;
    k->n = n;
    k->open = true;
    a->stats.rows += (uint64_t)n;
    return 0;
}

int row_asks_warm(struct row_asks *a, const struct row_table *t, const int32_t *column,
                  const int64_t *row, int n)
{
    int r;

    if (n < 0)
        return fail(-EINVAL, "row store: %d rows to warm", n);
    r = check(a, t, column, row, n);
    if (row_cache_slots(a->cache) == 0)
        return r;
    for (int i = 0; i < n && r == 0; i++) {
        struct row_spot at;

        look_ahead(a, t, column, row, i, n);
        locate(a, t, column[i], row[i], &at);
        if (find(a, at.key) || row_cache_find(a->cache, at.key))
            continue;
        if (a->ahead)
            tell_ahead(a, &at);
        else
            add_want(a, t, &at, column[i], row[i]);
        a->stats.warmed++;
    }
    return r;
}

static const struct row_ticket *open_ticket(const struct row_asks *a, int ticket)
{
    if (ticket >= 0 && ticket < ROW_TICKETS && a->ticket[ticket].open)
        return &a->ticket[ticket];
    fail(-EINVAL, "row store: ticket %d was not asked", ticket);
    return NULL;
}

static bool done(const struct row_want *w)
{
    return !w || w->state == WANT_HERE || w->state == WANT_LOST;
}

int row_asks_left(const struct row_asks *a, int ticket)
{
    const struct row_ticket *k = open_ticket(a, ticket);
    int left = 0;

    if (!k)
        return -EINVAL;
    for (int i = 0; i < k->n; i++)
        left += !done(k->want[i]);
    return left;
}

/* The one line about rows that did not come: the first of them stands for all. */
static int lost(const struct row_asks *a, const struct row_want *w, int waited_ms)
{
    char where[128];

    snprintf(where, sizeof(where), "table %d column %d row %lld (%zu bytes at offset %lld)",
             w->table, w->column, (long long)w->row, w->bytes, (long long)w->piece[0].place);
    if (!done(w))
        return fail(-ETIMEDOUT, "row store: %s: %s: the disk has not answered in %d ms",
                    pack_name(a->pack), where, waited_ms);
    return fail(-EIO, "row store: %s: %s: %s", pack_name(a->pack), where,
                w->err == -ENODATA ? "the file ends before it" : strerror(-w->err));
}

static void decode(const struct row_table *t, int column, const unsigned char *row, float *out)
{
    uint16_t words[1 + NGRAM_COLS * NGRAM_BITS2_MAX / 32];

    switch (t->dtype) {
    case DTYPE_FP8:
        fp8_row(row, row + t->cols, t->cols, out);
        break;
    case DTYPE_EXL3:
        memcpy(words, row, (size_t)t->row_bytes);
        ngram_row(words, t->bits, t->bias + (size_t)column * NGRAM_COLS, out);
        break;
    default:
        f32_widen(t->dtype, row, (size_t)t->cols, out);
    }
}

int row_asks_take(struct row_asks *a, int ticket, int waited_ms, float *out)
{
    const struct row_want *bad = NULL;
    struct row_ticket *k;
    size_t bytes;
    int r = 0;

    if (!open_ticket(a, ticket))
        return -EINVAL;
    k = &a->ticket[ticket];
    bytes = (size_t)k->t->row_bytes;
    for (int i = 0; i < k->n; i++) {
        struct row_want *w = k->want[i];

        if (w && w->state == WANT_HERE)
            memcpy(k->rows + (size_t)i * bytes, w->buf, bytes);
        else if (w && !bad)
            bad = w;
    }
    k->open = false;
    if (bad)
        r = lost(a, bad, waited_ms);
    for (int i = 0; i < k->n && !bad; i++)
        decode(k->t, k->column[i], k->rows + (size_t)i * bytes,
               out + (size_t)i * (size_t)k->t->cols);
    for (int i = 0; i < k->n; i++)
        if (k->want[i]) {
            k->want[i]->refs--;
            release(a, k->want[i]);
        }
    return r;
}
