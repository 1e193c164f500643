// strip_exl3.cu owns the instances of narrow.cuh and wide.cuh for EXL3, one for each width of
// codes.
#include "kernels/cuda/wide.cuh"

void strip_launch_exl3(struct queue *q, int bits2, const struct strip_launch *p, dim3 grid)
{
    switch (bits2) {
#define WIDTH(b)                                                                                   \
    case b:                                                                                        \
        strip_go<exl3_codes<b>>(q, p, grid);                                                       \
        break;
        EXL3_WIDTHS(WIDTH)
#undef WIDTH
    }
}

cudaError_t strip_limits_exl3(cudaError_t e)
{
#define WIDTH(b) e = strip_limits<exl3_codes<b>>(e);
    EXL3_WIDTHS(WIDTH)
#undef WIDTH
    return e;
}
