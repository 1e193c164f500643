/* What the device says of itself, where a test wants another answer: the call that asks is wrapped
 * (meson.build). */
#include <cuda_runtime_api.h>

#include "tests/device/parts.h"

#define KIB 1024

struct pretend pretend;

cudaError_t __real_cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int device);
cudaError_t __wrap_cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int device);

cudaError_t __wrap_cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int device)
{
    cudaError_t e = __real_cudaDeviceGetAttribute(v, a, device);

    if (pretend.too_old && a == cudaDevAttrComputeCapabilityMajor)
        *v = 8;
    if (pretend.little_shared && a == cudaDevAttrMaxSharedMemoryPerBlockOptin && *v > 99 * KIB)
        *v = 99 * KIB;
    if (pretend.little_shared && a == cudaDevAttrMaxSharedMemoryPerMultiprocessor && *v > 100 * KIB)
        *v = 100 * KIB;
    return e;
}
