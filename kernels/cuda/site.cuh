// site - what the files of the residual streams share.
#ifndef TANDEM_KERNELS_CUDA_SITE_CUH
#define TANDEM_KERNELS_CUDA_SITE_CUH

#include "kernels/cuda/device.cuh"

// mix_by_gang - site.cu: the mixes, with the bits that hc_site gives them; false: it cannot.
bool mix_by_gang(struct queue *q, const struct hc_mix_args *a);

#endif
