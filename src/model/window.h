/* window - R rows, the next tokens of S slots, packed slot after slot. Prompt chunks, plain
 * decoding and verification are the same window with other rows.
 *
 * One writer a field:
 *   plan     seg, tok, segs, rows, pad, head, and what is derived from them (info)
 *   stage    owed; who fetches what is owed: h_engram, brought_ns
 *   forward  logits, taps
 *   accept   choice, n_ok, next
 *   round    stamp, tapped
 * Host arrays are written before window_send and read after the round's wait; d_ arrays are the
 * device's.
 *
 * N-gram rows are fetched while the window runs, so that its start waits neither for a disk nor for
 * decoding. Before it runs it is only noted which rows it needs; a row that was noted and has not
 * been fetched is owed:
 *
 *   owe -> window queued -> ... layers before the first n-gram layer ... -> op bring: rows are
 *   there -> the layer
 *            \- ask, take, by whoever op bring says: where the call runs, or in the wait for a
 *            captured one
 */
#ifndef TANDEM_MODEL_WINDOW_H
#define TANDEM_MODEL_WINDOW_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;
struct exec;
struct model;
struct queue;
struct row_store;
struct row_table;
struct slot_pool;

#define WINDOW_ROWS_SHARED (SLOTS_MAX * WINDOW_MAX) /* rows whose logits are computed, at most */
#define WINDOW_TABLES 4                             /* n-gram tables of a family, at most */

enum window_stamp {
    STAMP_BEGIN,
    STAMP_FORWARD,
    STAMP_CHOSEN,
    STAMP_INGESTED,
    STAMP_DRAFTED,
    WINDOW_STAMPS
};

/* What a store owes a window: the n-gram rows of a table. */
struct window_debt {
    struct window *w;
    int table;               /* the ticket too */
    struct row_store *store; /* NULL: nothing is owed */
    bool asked;
    bool launched; /* a device may be waiting for it */
    const struct row_table *of;
    const int32_t *column;
    const int64_t *row;
    int n;
    int64_t *flag; /* of op bring */
};

struct window {
    /* host, by plan */
    struct segment seg[SLOTS_MAX];
    int32_t *tok;   /* [rows_max] */
    int segs, rows; /* rows of the segments, and pad more */
    /* rows that fill a captured window up: they run like drafts of the last segment, and nobody
     * looks */
    int pad;
    bool head; /* logits of every row are wanted; rows <= WINDOW_ROWS_SHARED then */

    /* device, by plan's upload */
    struct segment *d_seg, *d_cover; /* cover: seg, the last one with the padding */
    struct segment cover[SLOTS_MAX];
    int32_t *d_tok;
    struct row_info *info;          /* [rows_max] */
    float *engram[WINDOW_TABLES];   /* [rows_max][engram_ld[t]], this rank's hash columns */
    float *h_engram[WINDOW_TABLES]; /* host staging of the same */
    struct window_debt owed[WINDOW_TABLES];
    int64_t brought_ns; /* the host's time in taking rows, until somebody sets it to 0 */
    int bring_limit_ms; /* of a device's wait for rows, longer than the store's own; < 0: none */
    int engram_ld[WINDOW_TABLES];

    /* device, by forward */
    float *logits; /* [WINDOW_ROWS_SHARED][vocab share] */
    float *taps;   /* [rows_max][tap_cols], NULL if the model has none */

    /* device, by accept; the host's copies are valid after the round's wait */
    int32_t *d_choice, *d_n_ok, *d_next;
    int32_t choice[WINDOW_ROWS_SHARED];
    int32_t n_ok[SLOTS_MAX], next[SLOTS_MAX];

    /* the device's clock where a part of the round ends; the host's copy is valid after the wait */
    int64_t *d_stamp, stamp[WINDOW_STAMPS];

    /* what forward queues as soon as the taps are there, see window_tapped; NULL: nothing */
    void (*tapped)(void *arg, struct exec *x);
    void *tapped_arg;

    int rows_max;
    struct device *dev;
};

/* window_open - buffers for windows of up to rows_max rows of this model.   errors   -ENOMEM */
int window_open(struct device *d, const struct model *m, int rows_max, struct window **out);
void window_close(struct window *w);

/* window_cancel - owed rows are not fetched any more; a device that waits for them ends its queue
 * with -ECANCELED.
 * order    before anything is closed that waits for the device; NULL is fine */
void window_cancel(struct window *w);

/* window_clear, window_add - describe a window: add a slot's tokens behind those already there.
 * flags    SEG_KNOWN: the tokens are known text, every row is kept and no choice is made
 * errors   -EINVAL too many rows or slots, or a slot twice */
void window_clear(struct window *w);
int window_add(struct window *w, int slot, const int32_t *tok, int len, int flags);

/* window_pad - fill up to `rows` rows, behind the last window_add. The last segment's rows and the
 * padding are no more than a slot's largest window. */
void window_pad(struct window *w, int rows);

/* window_upload - window_note, then window_send. */
int window_upload(struct exec *x, struct slot_pool *p, struct window *w);

/* window_note - note the ids in the pool; the host's part of an upload.
 * errors   -EOVERFLOW a row beyond the slot's context, named */
int window_note(struct slot_pool *p, struct window *w);

/* window_forget - drop the rows owed of table t: they were for a window that was described but
 * never ran.
 * errors   -EBUSY that window was launched and nobody has waited for it yet */
int window_forget(struct window *w, int t);

/* window_owe - the window needs n rows of table t, [rows][engram_ld[t]] values in all, named as
 * row_store ask has them; column and row are borrowed until the window has run. */
void window_owe(struct window *w, int t, struct row_store *s, const struct row_table *table,
                const int32_t *column, const int64_t *row, int n);

/* window_ask - ask the store for all rows that are owed, so that it begins to read. Without this
 * call that happens when the first of them are fetched. An error shows later: it ends the queue
 * where the rows are needed. */
void window_ask(struct window *w);

/* window_launched - a captured window runs from now on: what is owed stays noted until the queue's
 * wait has fetched it. */
void window_launched(struct window *w);

/* window_bring - queue op bring: from here on table t's rows are in engram[t]. Waits for nothing if
 * none is owed. If the store fails, its error ends the queue.
 * order    before the first op that reads them; may be captured, for equal rows */
void window_bring(struct exec *x, struct window *w, int t);

/* window_send - queue segments and tokens to the device and expand them to rows.
 * order    may be captured, for equal rows and segs */
void window_send(struct exec *x, const struct slot_pool *p, struct window *w);

/* window_fetch - queue the copy of choices, n_ok, next and stamps to the host; may be captured. */
void window_fetch(struct exec *x, struct window *w);

/* window_tapped - by forward, where the taps have been queued: queue what waits for them.
 * note     may be a section of op `side`. What it takes of x->tmp is given back by the caller, and
 *          only after the queue has waited for that section */
void window_tapped(struct exec *x, struct window *w);

/* window_stamp, window_fetch_stamps - queue a look at the device's clock, and the copy of all of
 * them; may be captured. */
void window_stamp(struct exec *x, struct window *w, enum window_stamp s);
void window_fetch_stamps(struct exec *x, struct window *w);

#endif
