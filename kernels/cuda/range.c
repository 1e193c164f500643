/* range.c owns the names that a profiler shows on its time line. */
#include "kernels/cuda/cuda.h"

#include <nvtx3/nvToolsExt.h>

void cuda_range_begin(const char *name)
{
    nvtxRangePushA(name ? name : "graph");
}

void cuda_range_end(void)
{
    nvtxRangePop();
}

void cuda_mark(const char *name)
{
    if (name)
        nvtxMarkA(name);
}
