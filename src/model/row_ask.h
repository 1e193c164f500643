/* row_ask - who wants which row: the part of a row store that does not read.
 *
 * A want is a row that is not in the cache: one, whoever asks, until everybody who asked has it.
 *
 *   TODO --(next)--> BUSY --(done)--> HERE   its bytes are in buf; the cache has a copy
 *                                \--> LOST   its error goes to everybody who asked; the next ask
 *                                            reads again
 */
#ifndef TANDEM_MODEL_ROW_ASK_H
#define TANDEM_MODEL_ROW_ASK_H

#include "src/model/row_store.h"

#include <stdbool.h>
#include <sys/types.h>

struct row_cache;

enum want_state { WANT_FREE, WANT_TODO, WANT_BUSY, WANT_HERE, WANT_LOST };

struct row_piece {
    int fd;
    off_t place; /* in the file */
    size_t bytes;
};

struct row_want {
    enum want_state state;
    int err;
    uint64_t key;              /* of the row among all files: a place of the first piece */
    struct row_piece piece[2]; /* one behind the other in buf; the second may have no bytes */
    size_t bytes, got;         /* of both */
    unsigned char *buf;        /* stays where it is while the want lives */
    int table, column;
    int64_t row;
    int refs;              /* places in asks that wait for it */
    struct row_want *next; /* of the free list, or of those to do */
    struct row_want *same; /* in its chain */
};

/* row_want_rest - what a reader has to read next, into buf + got: the rest of a piece. */
static inline struct row_piece row_want_rest(const struct row_want *w)
{
    const struct row_piece *p = &w->piece[w->got >= w->piece[0].bytes];
    size_t done = p == w->piece ? w->got : w->got - w->piece[0].bytes;

    return (struct row_piece){ p->fd, p->place + (off_t)done, p->bytes - done };
}

struct row_ticket {
    const struct row_table *t;
    bool open;
    int n, cap;
    size_t rows_cap;
    struct row_want **want; /* [n], NULL where the row came from the cache */
    int32_t *column;        /* [n] */
    unsigned char *rows;    /* [n] as stored, those of the cache filled in */
};

#define WANT_CHAINS 4096

struct row_asks {
    struct pack *pack;
    struct row_cache *cache;
    size_t row_bytes; /* of the longest row */
    struct row_ticket ticket[ROW_TICKETS];
    struct row_want *chain[WANT_CHAINS]; /* wants that are not LOST, by key */
    struct row_want *spare, *todo, *todo_last;
    void **block; /* wants and their buffers */
    /* of a reader whose reads do not run by themselves: tells the kernel what comes. With it a
     * warming is this call and no want. Else NULL. */
    void (*ahead)(int fd, off_t place, size_t bytes);
    int blocks, spares;
    struct row_store_stats stats;
};

/* row_asks_open - errors   -ENOMEM. row_asks_close is fine after a failed one */
int row_asks_open(struct row_asks *a, const struct row_store_settings *s,
                  void (*ahead)(int fd, off_t place, size_t bytes));
void row_asks_close(struct row_asks *a);

/* row_asks_add, row_asks_warm - ask and warm of row_store.h up to the reading. Warming nothing that
 * could be kept is nothing. */
int row_asks_add(struct row_asks *a, const struct row_table *t, int ticket, const int32_t *column,
                 const int64_t *row, int n);
int row_asks_warm(struct row_asks *a, const struct row_table *t, const int32_t *column,
                  const int64_t *row, int n);

/* row_asks_next - the oldest want that nobody reads, now BUSY; NULL if there is none. */
struct row_want *row_asks_next(struct row_asks *a);

/* row_asks_done - the reader is through with a BUSY want: buf holds its bytes, or err < 0. */
void row_asks_done(struct row_asks *a, struct row_want *w, int err);

/* row_asks_left - the ticket's wants that are not done; -EINVAL, logged: it was not asked. */
int row_asks_left(const struct row_asks *a, int ticket);

/* row_asks_take - the rows as f32, or the first error, logged; the ticket is free again. Wants that
 * are not done are -ETIMEDOUT after `waited_ms`. */
int row_asks_take(struct row_asks *a, int ticket, int waited_ms, float *out);

#endif
