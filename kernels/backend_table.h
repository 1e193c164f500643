/* backend_table - the implementers that backend.c lists. */
#ifndef TANDEM_KERNELS_BACKEND_TABLE_H
#define TANDEM_KERNELS_BACKEND_TABLE_H

#include "kernels/backend.h"

extern const struct backend_ops backend_cpu; /* in cpu/backend.c */
/* in cuda/backend.c, or cuda_none.c where CUDA is missing */
extern const struct backend_ops backend_cuda;

#endif
