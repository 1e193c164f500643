// sheet - the dense product of coded and bf16 weights for many rows; sheet.cu.
#ifndef TANDEM_KERNELS_CUDA_SHEET_CUH
#define TANDEM_KERNELS_CUDA_SHEET_CUH

#include "kernels/cuda/strip.cuh"

// sheet_fits - whether all outputs of every block of 128 share their inputs.
bool sheet_fits(const struct strip_launch *p);

// sheet_least - bytes of the operands of 128 outputs of w: the least room that the product needs.
size_t sheet_least(const struct mat *w);

// sheet_matmul - queue the product; `room` is scratch for the rows as tiles and for decoded
// operands.
void sheet_matmul(struct queue *q, const struct strip_launch *p, void *room, size_t bytes);

#endif
