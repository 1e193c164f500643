/* blas_none.c is in the place of blas.c where the header of cuBLAS is not there to build with. */
#include <stdio.h>

#include "kernels/plain.h"

int blas_open(struct queue *q, char *why, size_t cap, struct blas **out)
{
    snprintf(why, cap, "this build has no cuBLAS");
    return 1;
}

void blas_close(struct blas *b)
{
}

void blas_product(struct blas *b, const void *w, const void *x, float *y, int rows, int outputs,
                  int inputs)
{
}
