/* product - matmul and moe over any type of weight, given a function for one strip of outputs.
 *
 * A host backend is this driver with a strip function of its own: which outputs a worker takes, how
 * rows are cut and how experts are summed is the same in all of them, and a strip's result is
 * defined by ref_strip.
 */
#ifndef TANDEM_KERNELS_REF_PRODUCT_H
#define TANDEM_KERNELS_REF_PRODUCT_H

#include <stdbool.h>

#include "kernels/ops.h"

#define STRIP_ROWS 64     /* rows that share what is decoded */
#define STRIP_OUTPUTS 128 /* of the widest strip */
#define STRIP_INPUTS 128  /* decoded at a time: an EXL3 block, whole groups of every type */

/* Outputs first .. first + n - 1 of w for some rows of inputs. first is a multiple of MAT_TILE, for
 * EXL3 of EXL3_BLOCK; n is at most strip_outputs(w). */
struct strip {
    const struct mat *w;
    int first, n;
    const float *const *x; /* [rows] */
    int rows;              /* at most STRIP_ROWS */
    enum codec in;         /* of the inputs, already decided for this weight */
};

/* y[r * ldy + i] for i in 0 .. n - 1, not rounded; up to the next multiple of MAT_TILE (EXL3:
 * EXL3_BLOCK) y is written too, with anything. */
typedef void strip_fn(const struct strip *s, float *y, size_t ldy);

/* ref_strip - the definition, F2 of mat.h: a block of STRIP_INPUTS inputs after the other. */
strip_fn ref_strip;

/* strip_outputs - outputs of a strip of w. */
static inline int strip_outputs(const struct mat *w)
{
    return w->dtype == DTYPE_EXL3 ? EXL3_BLOCK : 4 * MAT_TILE;
}

/* product_codec - what the inputs of w go through when an op asks for `in`: nothing unless w is FP8
 * or MXFP4. */
static inline enum codec product_codec(const struct mat *w, enum codec in)
{
    return w->dtype == DTYPE_FP8 || w->dtype == DTYPE_MXFP4 ? in : CODEC_F32;
}

/* product_check - whether w can be multiplied so; if not the queue fails with -EINVAL, naming the
 * op. */
bool product_check(struct queue *q, const char *op, const struct mat *w, enum codec in, int groups);

/* strip_suh - the input scales of the strip's slice, from input k0 on. */
const uint16_t *strip_suh(const struct strip *s, int k0);

/* strip_quantise - n inputs as the codec gives them back; n is a multiple of its block, at most
 * STRIP_INPUTS. */
void strip_quantise(enum codec c, const float *x, int n, float *out);

void product_matmul(struct queue *q, const struct matmul_args *a, strip_fn *strip);
void product_moe(struct queue *q, const struct moe_args *a, strip_fn *strip);

/* moe_group - picks by expert: the experts that were picked, ascending, to uid, and the picks of
 * uid[i], by row, to order[start[i]] .. order[start[i + 1] - 1]. Picks of -1 are left out. Returns
 * the number of experts.
 * shapes   id, order [picks]; uid [experts]; start [experts + 1] */
int moe_group(const int32_t *id, int picks, int experts, int *uid, int *start, int *order);

#endif
