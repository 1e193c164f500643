// copies.cu owns how bytes are copied within the device and between it and pinned host memory: by
// kernels. A graph of kernels alone launches faster than one with copy nodes, and adjacent copies
// are merged into one node. A device also has few copy engines: where ranks share a device, a copy
// queued behind a kernel that waits for another rank would block that rank's copies. Bound by the
// host's bus, within the device by bytes.
#include "kernels/cuda/device.cuh"

#define THREADS 256
#define BLOCK_BYTES 4096
#define BLOCKS_MAX 16 // to and from the host: so many saturate its bus
#define BLOCKS_WITHIN 1024

// Copy c.at[blockIdx.y] by the blocks in x, 16 bytes a thread where aligned.
__global__ static void copy_pieces(struct cuda_copies c)
{
    const struct cuda_copy &p = c.at[blockIdx.y];
    size_t step = (size_t)gridDim.x * THREADS, first = (size_t)blockIdx.x * THREADS + threadIdx.x;
    size_t lines = (((uintptr_t)p.dst | (uintptr_t)p.src) & 15) == 0 ? p.bytes / 16 : 0;

    for (size_t i = first; i < lines; i += step)
        ((uint4 *)p.dst)[i] = fresh_load((const uint4 *)p.src + i);
    for (size_t i = lines * 16 + first; i < p.bytes; i += step)
        ((volatile char *)p.dst)[i] = ((const volatile char *)p.src)[i];
}

static dim3 grid_of(const struct cuda_copies *c)
{
    size_t most = 1;

    for (int i = 0; i < c->n; i++)
        most = c->at[i].bytes > most ? c->at[i].bytes : most;
    most = (most + BLOCK_BYTES - 1) / BLOCK_BYTES;
    return dim3((unsigned)(most < BLOCKS_MAX ? most : BLOCKS_MAX), (unsigned)c->n);
}

// The node that what is captured next depends on; NULL if there is not exactly one.
static cudaError_t last_node(cudaStream_t s, cudaGraphNode_t *out)
{
    enum cudaStreamCaptureStatus status;
    const cudaGraphNode_t *node = NULL;
    const cudaGraphEdgeData *edge = NULL;
    size_t n = 0;
    cudaError_t e = cudaStreamGetCaptureInfo(s, &status, NULL, NULL, &node, &edge, &n);

    *out = e == cudaSuccess && n == 1 ? node[0] : NULL;
    return e;
}

static bool may_join(const struct cuda_copies *c, const struct cuda_copy *p, bool in)
{
    if (c->n == 0 || c->n == CUDA_COPIES || c->in != in)
        return false;
    for (int i = 0; i < c->n; i++) {
        const char *a = (const char *)c->at[i].dst, *b = (const char *)p->dst;

        if (a < b + p->bytes && b < a + c->at[i].bytes)
            return false;
    }
    return true;
}

extern "C" cudaError_t cuda_copy(cudaStream_t s, void *dst, const void *src, size_t bytes)
{
    struct cuda_copies c = {};

    c.at[c.n++] = { dst, src, bytes };
    launch_behind(s, copy_pieces, grid_of(&c), THREADS, 0, c);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_copy_within(cudaStream_t s, void *dst, const void *src, size_t bytes)
{
    struct cuda_copies c = {};
    size_t blocks = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;

    c.at[c.n++] = { dst, src, bytes };
    launch_behind(s, copy_pieces, (unsigned)(blocks < BLOCKS_WITHIN ? blocks : BLOCKS_WITHIN),
                  THREADS, 0, c);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_copies_add(cudaStream_t s, struct cuda_copies *c, bool in, void *dst,
                                       const void *src, size_t bytes)
{
    struct cuda_copy p = { dst, src, bytes };
    cudaGraphNode_t last;
    cudaError_t e = last_node(s, &last);

    if (e != cudaSuccess)
        return e;
    if (last && last == c->node && may_join(c, &p, in)) {
        cudaKernelNodeParams params = {};
        void *args[] = { c };

        c->at[c->n++] = p;
        params.func = (void *)copy_pieces;
        params.gridDim = grid_of(c);
        params.blockDim = dim3(THREADS);
        params.kernelParams = args;
        return cudaGraphKernelNodeSetParams(c->node, &params);
    }
    *c = {};
    c->in = in;
    c->at[c->n++] = p;
    launch_behind(s, copy_pieces, grid_of(c), THREADS, 0, *c);
    e = cudaGetLastError();
    return e == cudaSuccess ? last_node(s, &c->node) : e;
}
