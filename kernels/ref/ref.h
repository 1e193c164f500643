/* ref - what the files of the reference backend share: its ops, its way to share out work, row
 * helpers. */
#ifndef TANDEM_KERNELS_REF_REF_H
#define TANDEM_KERNELS_REF_REF_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/numfmt.h"
#include "kernels/ops.h"

extern const struct backend_ops backend_ref;
extern const struct op_table ref_ops;

#define REF_ENTRY(name) void ref_##name(struct queue *q, const struct name##_args *a);
OP_LIST(REF_ENTRY)
#undef REF_ENTRY

/* ref_run - fn for the items 0 .. items - 1, cut into contiguous ranges, at most one a worker and
 * none smaller than grain. worker picks scratch. The outputs of different items are independent. */
typedef void ref_fn(const void *args, int lo, int hi, int worker);
void ref_run(struct queue *q, int items, int grain, ref_fn *fn, const void *args);

static inline float ref_round(float x, enum round round)
{
    return round == ROUND_BF16 ? bf16_round(x) : x;
}

/* ref_table_row - a row of a table as f32. */
void ref_table_row(const struct table *t, int row, float *y);

static inline int round_up(int n, int step)
{
    return (n + step - 1) / step * step;
}

static inline const float *state_f32(const struct state_view *v, int slot, int row)
{
    return (const float *)(v->base + (size_t)slot * v->slot_stride +
                           (size_t)(row % v->cap) * v->row_bytes);
}

static inline unsigned char *state_row(const struct state_view *v, int slot, int row)
{
    return v->base + (size_t)slot * v->slot_stride + (size_t)(row % v->cap) * v->row_bytes;
}

#endif
