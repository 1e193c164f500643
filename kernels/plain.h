/* plain - products as one would first write them, to be timed beside the ops: nothing else uses
 * them.
 *
 * Results go where the op's would, within its tolerance of them. Backends without a device have
 * none.
 */
#ifndef TANDEM_KERNELS_PLAIN_H
#define TANDEM_KERNELS_PLAIN_H

#include "kernels/ops.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct blas;

/* plain_can - whether plain_product takes this one: EXL3 for a device, one group, one slice, up to
 * 16 rows. */
bool plain_can(const struct queue *q, const struct matmul_args *a);

/* plain_product - inputs, tiles and outputs in a launch each; a warp has two tiles of outputs and
 * all inputs. */
void plain_product(struct queue *q, const struct matmul_args *a);

/* blas_open - the device's library of products, on q's work.
 * errors   1: it is not there, why says what is missing; -EIO of the library, -ENOMEM
 * owns     scratch of q, while its products run */
int blas_open(struct queue *q, char *why, size_t cap, struct blas **out);
void blas_close(struct blas *b);

/* blas_product - y [rows][outputs] f32 = x w, both bf16: w [outputs][inputs], x [rows][inputs]. May
 * be captured. */
void blas_product(struct blas *b, const void *w, const void *x, float *y, int rows, int outputs,
                  int inputs);

#ifdef __cplusplus
}
#endif

#endif
