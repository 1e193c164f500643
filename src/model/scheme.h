/* scheme - which format every weight of a checkpoint has, by its released name: what made-up and
 * converted checkpoints follow.
 *
 *   f32, f16, bf16     everything plain
 *   fp8                the linear layers FP8, 32 x 32 blocks, e8m0 scales; lookup tables too
 *   fp8-128            the same, 128 x 128 blocks, f32 scales under weight_scale_inv
 *   fp8-mxfp4          as the release of V4.1: fp8, experts MXFP4
 *   mxfp4, nvfp4       every linear layer; nvfp4-ct has the names of compressed-tensors
 *   exl3-B             every linear layer at B bits, 1 .. 8, 1.5, 2.5 or 3.5, codebook MUL1; wo_a
 *                      in slices, lookup tables FP8; exl3-B-mcg, exl3-B-3inst: another codebook
 *   exl3-v41           the widths of the published pack of V4.1: 2 to 6 bits, a head of 6
 *
 * What is no linear layer (norms, sinks, embedding, router, hyper-connections, Markov and
 * confidence heads) is bf16; the head is plain unless the scheme is EXL3.
 */
#ifndef TANDEM_MODEL_SCHEME_H
#define TANDEM_MODEL_SCHEME_H

#include "kernels/mat.h"

#include <stdbool.h>
#include <stdint.h>

struct scheme {
    const char *name; /* as parsed; borrowed */
    enum dtype dtype; /* of linear layers */
    struct quant q;   /* of them; slices: of wo_a */
    enum dtype experts;
    bool by_part; /* EXL3: widths differ by part */
};

/* scheme_parse - errors   -EINVAL naming the word */
int scheme_parse(const char *word, struct scheme *out);

/* scheme_format - format of a weight [rows][cols]; q is complete but for an NVFP4 global scale. */
enum dtype scheme_format(const struct scheme *s, const char *released, int64_t rows, int64_t cols,
                         struct quant *q);

/* scheme_is_rows - the weight is a lookup table whose rows are read one by one. */
bool scheme_is_rows(const char *released);

#endif
