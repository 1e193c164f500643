// sheet - the dense product of coded weights for many rows; sheet.cu.
#ifndef TANDEM_KERNELS_CUDA_SHEET_CUH
#define TANDEM_KERNELS_CUDA_SHEET_CUH

#include "kernels/cuda/strip.cuh"

// sheet_fits - whether 128 outputs always share their inputs.
bool sheet_fits(const struct strip_launch *p);

// sheet_least - bytes of room that a sheet of w needs at least.
size_t sheet_least(const struct mat *w);

// sheet_matmul - queue the product; `room` is scratch for the rows as tiles and for sheets.
void sheet_matmul(struct queue *q, const struct strip_launch *p, void *room, size_t bytes);

#endif
