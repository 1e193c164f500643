/* blas.c owns cuBLAS: products of bf16 to time others by. The library is looked for when it is
 * asked for; a program that never times anything does not need it. */
#include <cublas_v2.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/plain.h"
#include "src/base/log.h"

#define CALLS(F)                                                                                   \
    F(cublasCreate_v2)                                                                             \
    F(cublasDestroy_v2) F(cublasSetStream_v2) F(cublasSetWorkspace_v2) F(cublasGemmEx)

struct blas {
    struct queue *q;
    void *lib;
    cublasHandle_t handle;
#define DECLARE(name) __typeof__(name) *name;
    CALLS(DECLARE)
#undef DECLARE
};

/* The name with the version that this was built with, then without one. */
static void *find_library(void)
{
    char name[32];
    void *lib;

    snprintf(name, sizeof(name), "libcublas.so.%d", CUBLAS_VER_MAJOR);
    lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return lib ? lib : dlopen("libcublas.so", RTLD_NOW | RTLD_LOCAL);
}

int blas_open(struct queue *q, char *why, size_t cap, struct blas **out)
{
    struct blas *b;
    int r;

    if (q->ops != &backend_cuda) {
        snprintf(why, cap, "backend %s has none", q->ops->name);
        return 1;
    }
    b = calloc(1, sizeof(*b));
    if (!b)
        return fail(-ENOMEM, "blas: no memory");
    b->q = q;
    b->lib = find_library();
    if (!b->lib) {
        snprintf(why, cap, "%s", dlerror());
        free(b);
        return 1;
    }
#define FIND(name)                                                                                 \
    b->name = (__typeof__(b->name))(uintptr_t)dlsym(b->lib, #name);                                \
    if (!b->name) {                                                                                \
        snprintf(why, cap, "cublas has no %s", #name);                                             \
        r = 1;                                                                                     \
        goto close_library;                                                                        \
    }
    CALLS(FIND)
#undef FIND
    if (b->cublasCreate_v2(&b->handle) != CUBLAS_STATUS_SUCCESS) {
        r = fail(-EIO, "blas: the library does not open");
        goto close_library;
    }
    if (b->cublasSetStream_v2(b->handle, cuda_stream(q)) != CUBLAS_STATUS_SUCCESS ||
        b->cublasSetWorkspace_v2(b->handle, cuda_lane(q)->scratch, cuda_lane(q)->scratch_bytes) !=
            CUBLAS_STATUS_SUCCESS) {
        r = fail(-EIO, "blas: no stream or no workspace");
        goto destroy;
    }
    *out = b;
    return 0;

destroy:
    b->cublasDestroy_v2(b->handle);
close_library:
    dlclose(b->lib);
    free(b);
    return r;
}

void blas_close(struct blas *b)
{
    if (!b)
        return;
    b->cublasDestroy_v2(b->handle);
    dlclose(b->lib);
    free(b);
}

/* The library counts columns first: y' [outputs][rows] = w' x. */
void blas_product(struct blas *b, const void *w, const void *x, float *y, int rows, int outputs,
                  int inputs)
{
    const float one = 1, zero = 0;
    cublasStatus_t s;

    if (b->q->err)
        return;
    s = b->cublasGemmEx(b->handle, CUBLAS_OP_T, CUBLAS_OP_N, outputs, rows, inputs, &one, w,
                        CUDA_R_16BF, inputs, x, CUDA_R_16BF, inputs, &zero, y, CUDA_R_32F, outputs,
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (s != CUBLAS_STATUS_SUCCESS)
        queue_fail(b->q, -EIO, "blas: %d x %d, %d rows: status %d", outputs, inputs, rows, (int)s);
}
