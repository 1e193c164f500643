/* Which kernels the program has, and which of them it has launched: the calls by which nvcc's code
 * makes kernels known and launches them are wrapped (meson.build).
 *
 *   device -k FILE PART...     adds the names of the kernels that PART launched to FILE, alone or
 *                              in a graph
 *   device kernels FILE NAME   1 if FILE lacks one that the program has, but for those with NAME in
 *                              theirs; instances that differ in the width of EXL3 codes alone stand
 *                              for each other
 */
#include <cuda_runtime_api.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tests/device/parts.h"

#define KERNELS_MAX 1024
#define NAME_MAX_BYTES 512

static struct kernel {
    const void *entry; /* what the host knows it by */
    cudaKernel_t handle;
    const char *name;
    int launches;
} kernels[KERNELS_MAX];
static int n;
static bool watched;
static int least; /* launches of the kernel that was launched least often since kernels_least */

static void note(struct kernel *k)
{
    int before = __atomic_fetch_add(&k->launches, 1, __ATOMIC_RELAXED);

    least = before < least ? before : least;
}

static void note_entry(const void *entry)
{
    for (int i = 0; watched && i < n; i++)
        if (kernels[i].entry == entry)
            note(&kernels[i]);
}

void __real___cudaRegisterFunction(void **file, const char *entry, char *function, const char *name,
                                   int limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                                   int *warp);
void __wrap___cudaRegisterFunction(void **file, const char *entry, char *function, const char *name,
                                   int limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                                   int *warp);
void __wrap___cudaRegisterFunction(void **file, const char *entry, char *function, const char *name,
                                   int limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                                   int *warp)
{
    if (n < KERNELS_MAX)
        kernels[n++] = (struct kernel){ .entry = entry, .name = name };
    __real___cudaRegisterFunction(file, entry, function, name, limit, tid, bid, block, grid, warp);
}

cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *entry, void **args);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *entry, void **args);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *entry, void **args)
{
    note_entry(entry);
    return __real_cudaLaunchKernelExC(c, entry, args);
}

/* <<< >>> asks for a handle before it launches the first time; older compilers launch by the
 * entry. */
__attribute__((weak)) cudaError_t __real___cudaGetKernel(cudaKernel_t *kernel, const void *entry);
cudaError_t __wrap___cudaGetKernel(cudaKernel_t *kernel, const void *entry);
cudaError_t __wrap___cudaGetKernel(cudaKernel_t *kernel, const void *entry)
{
    cudaError_t e = __real___cudaGetKernel(kernel, entry);

    for (int i = 0; i < n; i++)
        if (kernels[i].entry == entry)
            kernels[i].handle = *kernel;
    return e;
}

__attribute__((weak)) cudaError_t __real___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid,
                                                            dim3 block, void **args, size_t shared,
                                                            cudaStream_t s);
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                                      size_t shared, cudaStream_t s);
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                                      size_t shared, cudaStream_t s)
{
    for (int i = 0; watched && i < n; i++)
        if (kernels[i].handle == kernel)
            note(&kernels[i]);
    return __real___cudaLaunchKernel(kernel, grid, block, args, shared, s);
}

cudaError_t __real_cudaLaunchKernel(const void *entry, dim3 grid, dim3 block, void **args,
                                    size_t shared, cudaStream_t s);
cudaError_t __wrap_cudaLaunchKernel(const void *entry, dim3 grid, dim3 block, void **args,
                                    size_t shared, cudaStream_t s);
cudaError_t __wrap_cudaLaunchKernel(const void *entry, dim3 grid, dim3 block, void **args,
                                    size_t shared, cudaStream_t s)
{
    note_entry(entry);
    return __real_cudaLaunchKernel(entry, grid, block, args, shared, s);
}

void kernels_watch(void)
{
    watched = true;
}

int kernels_least(void)
{
    int was = least;

    least = INT_MAX;
    return was;
}

int kernels_save(const char *path)
{
    FILE *f = fopen(path, "a");

    for (int i = 0; f && i < n; i++)
        if (kernels[i].launches > 0)
            fprintf(f, "%s\n", kernels[i].name);
    return f && fclose(f) == 0 ? 0 : 1;
}

/* The same but for numbers behind a WIDTH in both. */
static bool alike(const char *a, const char *b)
{
    static const char WIDTH[] = "exl3_codesILi";

    for (; *a && *a == *b; a++, b++)
        if (strncmp(a, WIDTH, sizeof(WIDTH) - 1) == 0 &&
            strncmp(b, WIDTH, sizeof(WIDTH) - 1) == 0) {
            a += sizeof(WIDTH) - 1;
            b += sizeof(WIDTH) - 1;
            a += strspn(a, "0123456789") - 1;
            b += strspn(b, "0123456789") - 1;
        }
    return *a == *b;
}

int kernels_main(int argc, char **argv)
{
    FILE *f = argc > 1 ? fopen(argv[1], "r") : NULL;
    char line[NAME_MAX_BYTES];
    int seen = 0;

    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        for (int i = 0; i < n; i++)
            if (alike(kernels[i].name, line))
                kernels[i].launches++;
    }
    for (int i = 0; i < n; i++) {
        if (argc > 2 && strstr(kernels[i].name, argv[2]))
            kernels[i].launches++;
        seen += kernels[i].launches > 0;
        if (kernels[i].launches == 0)
            printf("FAILED %s was never launched\n", kernels[i].name);
    }
    printf("kernels: %d of %d\n", seen, n);
    if (f)
        fclose(f);
    return n == 0 || n == KERNELS_MAX || seen < n;
}
