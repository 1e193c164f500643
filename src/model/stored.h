/* stored - how a weight lies in a checkpoint: which tensors it is made of and what they mean.
 *
 * The format of a module prefix P is told by the tensors that exist, their types and shapes:
 *
 *   P.trellis, suh | su, svh | sv, [mcg | mul1], [bias]       EXL3; P.slice.0.* .. are matrices on
 *                                                             top of each other
 *   P.trellis | P.shard_0.trellis .., head_bias               rows of an EXL3 n-gram table
 *   P.weight_packed, weight_scale, weight_global_scale        NVFP4, compressed-tensors
 *   P.weight_packed, weight_scale                             MXFP4, compressed-tensors
 *   P.weight U8, weight_scale, weight_scale_2                 NVFP4, ModelOpt
 *   P.weight I8 | U8, scale E8M0                              MXFP4
 *   P.weight E4M3, scale | weight_scale_inv | weight_scale    FP8
 *   P.weight F32 | F16 | BF16                                 plain
 *
 * Any other set, more than one of these or a part without the rest, is refused and never guessed.
 * source   docs/DECODE.md "weight formats"
 */
#ifndef TANDEM_MODEL_STORED_H
#define TANDEM_MODEL_STORED_H

#include "kernels/mat.h"
#include "src/model/names.h"
#include "src/model/source.h"

#include <stdbool.h>
#include <stdint.h>

#define STORED_SLICES_MAX 16
#define NGRAM_BITS2_MIN 8 /* of the rows of an EXL3 n-gram table: 4, 5 or 6 bits */
#define NGRAM_BITS2_MAX 12

enum stored_as {
    STORED_PLAIN, /* a table or a vector: plain types only */
    STORED_MAT,
    /* rows of a lookup table: plain, FP8 with a scale for 32 values, EXL3 n-gram rows */
    STORED_ROWS
};

struct stored_tensor {
    char name[TENSOR_NAME_MAX + 32]; /* for read; "" if there is none */
    struct tensor t;
};

/* One EXL3 matrix, or a run of n-gram rows (biases are slice 0's); of other formats the codes
 * alone. */
struct stored_slice {
    struct stored_tensor codes, suh, svh, bias;
    bool suh_signs, svh_signs; /* packed signs of an older pack instead of f16 numbers */
};

struct stored {
    enum dtype dtype;
    struct quant q;     /* without a layout; slices as struct mat has it: 0 is one */
    int64_t rows, cols; /* of the model's weight */
    int64_t n, k;       /* of a slice as stored; EXL3 may be padded */
    int slices;         /* at least 1 */
    struct stored_slice slice[STORED_SLICES_MAX];
    struct stored_tensor scale;
    struct stored_tensor beside; /* P.bias where it is no part of the format */
    uint64_t first_element;      /* plain: where row 0 begins, rows follow without gap */
};

/* source_stored - find a weight by its released name, under any of the three generations of names,
 * or as a slice of a fused tensor ([experts][2 * inter][dim] and the like), and check every shape
 * and type. cols 1: any shape of `rows` values.
 *
 * errors   1 if there is none; -EINVAL another shape (both named), a type or format that cannot be
 *          here, tensors that do not belong together, a width or a marker that does not exist, a
 *          scale that is no number, two generations of one name; -EIO */
int source_stored(struct source *s, const char *released, enum stored_as as, int64_t rows,
                  int64_t cols, struct stored *out);

/* format_unit - where a share of rows, or of cols, may begin: multiples of this. The same for both
 * but where whole slices are cut, so that the outputs of one matrix are the inputs of the next. */
int format_unit(enum dtype dtype, const struct quant *q, int64_t rows, int64_t cols, bool of_rows);

/* dtype_name - "bf16", "exl3": for lists and messages. */
const char *dtype_name(enum dtype t);

#endif
