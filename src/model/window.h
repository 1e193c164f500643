/* window - R rows, the next tokens of S slots, packed slot after slot. Prompt chunks, plain decoding and
 * verification are the same window with other rows.
 *
 * One writer a field:
 *   plan     seg, tok, segs, rows, head, and what model_stage derives from them (info, engram)
 *   forward  logits, taps
 *   accept   choice, n_ok, next
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

struct window {
    /* host, by plan */
    struct segment seg[SLOTS_MAX];
    int32_t *tok; /* [rows_max] */
    int segs, rows;
    bool head; /* logits of every row are wanted; rows <= WINDOW_ROWS_SHARED then */

    /* device, by plan's upload */
    struct segment *d_seg;
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

/* window_upload - queue segments and tokens to the device, expand them to rows, and note the ids in the pool.
 * errors   -EOVERFLOW a row beyond the slot's context, named */
int window_upload(struct exec *x, struct slot_pool *p, struct window *w);

/* window_fetch - queue the copy of choices, n_ok and next to the host. */
void window_fetch(struct exec *x, struct window *w);

#endif
