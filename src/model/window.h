/* window - R rows, the next tokens of S slots, packed slot after slot. Prompt chunks, plain decoding and
 * verification are the same window with other rows.
 *
 * One writer a field:
 *   plan     seg, tok, segs, rows, pad, head, and what model_stage derives from them (info, engram)
 *   forward  logits, taps
 *   accept   choice, n_ok, next
 *   round    stamp
 * Host arrays are written before window_upload and read after the round's wait; d_ arrays are the device's.
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

struct window {
    /* host, by plan */
    struct segment seg[SLOTS_MAX];
    int32_t *tok;   /* [rows_max] */
    int segs, rows; /* rows of the segments, and pad more */
    int pad; /* rows that fill a captured window up: they run like drafts of the last segment, and nobody looks */
    bool head; /* logits of every row are wanted; rows <= WINDOW_ROWS_SHARED then */

    /* device, by plan's upload */
    struct segment *d_seg, *d_cover; /* cover: seg, the last one with the padding */
    struct segment cover[SLOTS_MAX];
    int32_t *d_tok;
    struct row_info *info;          /* [rows_max] */
    float *engram[WINDOW_TABLES];   /* [rows_max][engram_ld[t]], this rank's hash columns */
    float *h_engram[WINDOW_TABLES]; /* host staging of the same */
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

    int rows_max;
    struct device *dev;
};

/* window_open - buffers for windows of up to rows_max rows of this model.   errors   -ENOMEM */
int window_open(struct device *d, const struct model *m, int rows_max, struct window **out);
void window_close(struct window *w);

/* window_clear, window_add - describe a window: add a slot's tokens behind those already there.
 * flags    SEG_KNOWN: the tokens are known text, every row is kept and no choice is made
 * errors   -EINVAL too many rows or slots, or a slot twice */
void window_clear(struct window *w);
int window_add(struct window *w, int slot, const int32_t *tok, int len, int flags);

/* window_pad - fill up to `rows` rows, behind the last window_add. The last segment's rows and the padding are
 * no more than a slot's largest window. */
void window_pad(struct window *w, int rows);

/* window_upload - window_note, then window_send. */
int window_upload(struct exec *x, struct slot_pool *p, struct window *w);

/* window_note - note the ids in the pool; the host's part of an upload.
 * errors   -EOVERFLOW a row beyond the slot's context, named */
int window_note(struct slot_pool *p, struct window *w);

/* window_send - queue segments, tokens and n-gram rows to the device and expand them to rows.
 * order    may be captured, for equal rows and segs */
void window_send(struct exec *x, const struct slot_pool *p, struct window *w);

/* window_fetch - queue the copy of choices, n_ok, next and stamps to the host; may be captured. */
void window_fetch(struct exec *x, struct window *w);

/* window_stamp, window_fetch_stamps - queue a look at the device's clock, and the copy of all of them; may be
 * captured. */
void window_stamp(struct exec *x, struct window *w, enum window_stamp s);
void window_fetch_stamps(struct exec *x, struct window *w);

#endif
