// device - what all kernels share: launches, reductions in a fixed order, values of stored types,
// the queue's fault.
//
// Nothing here depends on how many rows a call has. Each thread sums every blockDim-th element,
// then the threads' sums are reduced in one fixed tree, so a row has the same bits in every window.
// The sources are built without contraction (-fmad=false); where a multiply-add is meant the code
// says fmaf.
#ifndef TANDEM_KERNELS_CUDA_DEVICE_CUH
#define TANDEM_KERNELS_CUDA_DEVICE_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/numfmt.h"

#define FULL_MASK 0xffffffffu

// queue_skips - every launcher asks first: true after an earlier error, or if there is nothing to
// do.
static inline bool queue_skips(const struct queue *q, int rows)
{
    return q->err || rows <= 0;
}

static inline unsigned blocks_for(size_t n, int threads)
{
    return (unsigned)((n + (size_t)threads - 1) / (size_t)threads);
}

// shared_room - raise a kernel's limit of dynamic shared memory to all that a block may have beside
// the static shared memory that the kernel declares.
template <typename K> static cudaError_t shared_room(K kernel, int shared_max)
{
    cudaFuncAttributes have;
    cudaError_t e = cudaFuncGetAttributes(&have, (const void *)kernel);

    if (e != cudaSuccess)
        return e;
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shared_max - (int)have.sharedSizeBytes);
}

// ---- launches -----------------------------------------------------------------------------------

// launch, launch_cluster - queue a kernel, in clusters of `cluster` blocks (1: none). Where the
// device overlaps launches it is a programmatic dependent launch, unless cuda_apart: blocks may
// start while the kernel before still runs. The kernel therefore calls dependency_wait (or
// dependency_settle) before it
// reads what earlier kernels write or writes what they access. If the kernel before calls
// dependency_next only after its own dependency_settle, everything before that one has ended, and
// this kernel may read at once whatever that one may read.
// launch_behind - the plain launch, which starts when everything before it has ended: for kernels
// without that call.
template <typename... P, typename... A>
static void launch_cluster(struct queue *q, void (*kernel)(P...), unsigned cluster, dim3 grid,
                           dim3 block, size_t shared, A &&...args)
{
    cudaLaunchAttribute attr[2];
    cudaLaunchConfig_t c = {};

    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = cuda_stream(q);
    c.attrs = attr;
    if (q->dev->overlap && !cuda_apart(q)) {
        attr[c.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[c.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attr[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attr[c.numAttrs].val.clusterDim.x = cluster;
        attr[c.numAttrs].val.clusterDim.y = 1;
        attr[c.numAttrs++].val.clusterDim.z = 1;
    }
    (void)cudaLaunchKernelEx(&c, kernel, P(args)...); // queue_note sees the error
}

template <typename... P, typename... A>
static void launch(struct queue *q, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                   A &&...args)
{
    launch_cluster(q, kernel, 1, grid, block, shared, args...);
}

template <typename... P, typename... A>
static void launch_behind(cudaStream_t s, void (*kernel)(P...), dim3 grid, dim3 block,
                          size_t shared, A &&...args)
{
    cudaLaunchConfig_t c = {};

    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = s;
    (void)cudaLaunchKernelEx(&c, kernel, P(args)...); // queue_note or the caller sees the error
}

// dependency_wait - let the next kernel's blocks start, and wait until every kernel before this one
// has ended and its writes are visible. All threads of a block call it before they return.
__device__ static inline void dependency_wait()
{
    dependency_next();
    dependency_settle();
}

// A barrier of the blocks of a cluster. A warp.
__device__ static inline void gang_meet()
{
    gang_arrive();
    gang_wait();
}

__device__ static inline float rounded(float x, enum round round)
{
    if (round != ROUND_BF16)
        return x;
    return f32_from_bits((uint32_t)bf16_nearest(x) << 16);
}

__device__ static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

__device__ static inline float silu(float x)
{
    return x / (1.0f + expf(-x));
}

// The comparisons let a NaN through: it must reach the logits, where it ends the request.
__device__ static inline float swiglu(float g, float u, float by, float limit, enum round round)
{
    if (limit > 0) {
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
    }
    return rounded(by * (silu(g) * u), round);
}

// ---- reductions ---------------------------------------------------------------------------------

__device__ static inline float warp_sum(float v)
{
    for (int step = CUDA_WARP / 2; step > 0; step /= 2)
        v += __shfl_xor_sync(FULL_MASK, v, step);
    return v;
}

// The largest value of the warp; a NaN loses every comparison, as in `a > b ? a : b` from the left.
__device__ static inline float warp_max(float v)
{
    for (int step = CUDA_WARP / 2; step > 0; step /= 2) {
        float o = __shfl_xor_sync(FULL_MASK, v, step);

        v = o > v ? o : v;
    }
    return v;
}

// block_sum - the sum of one value of each thread, the same in every thread. part is shared,
// [WARPS]; the block has WARPS * CUDA_WARP threads, with WARPS 1 any number of warps, each summed
// by itself. All threads call it.
template <int WARPS> __device__ static inline float block_sum(float v, float *part)
{
    v = warp_sum(v);
    if (WARPS == 1)
        return v;
    if (threadIdx.x % CUDA_WARP == 0)
        part[threadIdx.x / CUDA_WARP] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < WARPS; w++)
        v += part[w];
    __syncthreads();
    return v;
}

// last_block - whether this block is the last of `blocks` to arrive here. The last one sees what
// the others wrote before and resets the counter. All threads call it; loads after it must bypass
// L1.
__device__ static inline bool last_block(uint32_t *counter, unsigned blocks)
{
    __shared__ bool last;

    __syncthreads();
    if (threadIdx.x == 0) {
        last = counter_trade(counter) == blocks - 1;
        if (last)
            *counter = 0;
    }
    __syncthreads();
    return last;
}

// ---- stored values ------------------------------------------------------------------------------

__device__ static inline float stored_value(enum dtype t, const void *data, size_t at)
{
    if (t == DTYPE_F32)
        return ((const float *)data)[at];
    if (t == DTYPE_F16)
        return f32_from_f16(((const uint16_t *)data)[at]);
    return f32_from_bf16(((const uint16_t *)data)[at]);
}

// Four adjacent f32 or bf16 values as stored. Issue all loads before the first four_values: where
// load and conversion stand under one condition the compiler makes a branch of them, and the loads
// run one after another.
template <enum dtype D> struct alignas(D == DTYPE_F32 ? 16 : 8) stored_four {
    uint32_t word[D == DTYPE_F32 ? 4 : 2];
};

template <enum dtype D> __device__ static inline float4 four_values(const struct stored_four<D> &v)
{
    const uint32_t *u = v.word;

    if constexpr (D == DTYPE_F32)
        return make_float4(f32_from_bits(u[0]), f32_from_bits(u[1]), f32_from_bits(u[2]),
                           f32_from_bits(u[3]));
    return make_float4(f32_from_bits(u[0] << 16), f32_from_bits(u[0] & 0xffff0000u),
                       f32_from_bits(u[1] << 16), f32_from_bits(u[1] & 0xffff0000u));
}

__device__ static inline unsigned char *state_row(const struct state_view &v, int slot, int row)
{
    return v.base + (size_t)slot * v.slot_stride + (size_t)(row % v.cap) * v.row_bytes;
}

__device__ static inline float *state_f32(const struct state_view &v, int slot, int row)
{
    return (float *)state_row(v, slot, row);
}

// ---- faults -------------------------------------------------------------------------------------

__device__ static inline void alarm_set(const struct cuda_alarm &a, enum fault_kind kind, int slot,
                                        int row, int pos, int value, int limit)
{
    if (atomicCAS(a.taken, 0, 1) != 0)
        return;
    a.record->slot = slot;
    a.record->row = row;
    a.record->pos = pos;
    a.record->value = value;
    a.record->limit = limit;
    a.record->kind = kind;
}

#endif
