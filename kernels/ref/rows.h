/* rows - row helpers that several ops of the reference share. */
#ifndef TANDEM_KERNELS_REF_ROWS_H
#define TANDEM_KERNELS_REF_ROWS_H

#include <stddef.h>

#include "kernels/ops.h"

#define ROWS_SUM 8

/* rows_square_sum - sum over c in order of x[r * ld + c]^2 for n <= ROWS_SUM rows. The sums of
 * several rows run side by side, because one alone waits for each addition. */
void rows_square_sum(const float *x, size_t ld, int n, int cols, float *sum);

/* rows_swiglu - y = round(by * silu(gate) * up); limit > 0 caps the gate and clamps up. */
void rows_swiglu(const float *gate, const float *up, float *y, size_t n, float by, float limit,
                 enum round round);

#endif
