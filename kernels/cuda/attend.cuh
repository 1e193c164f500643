// attend - the keys of a row: the window in ascending position, then the selected rows in the order
// of sel. The list depends on the row alone, so the way it is split does too.
#ifndef TANDEM_KERNELS_CUDA_ATTEND_CUH
#define TANDEM_KERNELS_CUDA_ATTEND_CUH

#include "kernels/cuda/device.cuh"

struct span {
    int lo, hi; // positions lo .. hi - 1
};

__device__ static inline struct span window_of(const struct attend_args &a, int r)
{
    struct row_info i = a.info[r];
    int floor = a.head ? a.head[i.slot].floor : 0;
    struct span s = { i.pos - a.span + 1, i.pos + 1 };

    if (a.mode == ATTEND_BLOCK) {
        int begin = a.info[i.first].pos;

        s.lo = begin - a.span;
        s.hi = begin + a.block;
    }
    floor = floor > 0 ? floor : 0;
    s.lo = s.lo > floor ? s.lo : floor;
    return s;
}

// attend_by_gang - gang.cu: on matrix units, for quantised states; false: it cannot. keys: the most
// that a row can have.
bool attend_by_gang(struct queue *q, const struct attend_args *a, int keys);

#endif
