// group - the product of two tiles that lie in shared memory: by wgmma, four warps (a warpgroup)
// together, on sm_90a; elsewhere by ldmatrix and mma, each warp by itself. Both give the same sums,
// bit for bit.
//
// A tile has 64 inputs (a unit) and rows in groups of 8: [groups][8 pieces of 8 inputs][8 rows][8
// values], the core matrices of wgmma without swizzle: the 8 rows of a piece are 128 adjacent
// bytes, a group is 1 KB. Operands of weights have the same layout, with outputs as rows.
#ifndef TANDEM_KERNELS_CUDA_GROUP_CUH
#define TANDEM_KERNELS_CUDA_GROUP_CUH

#include "kernels/cuda/strip.cuh"

#define GROUP_ROWS 8
#define GROUP_VALUES (GROUP_ROWS * STRIP_UNIT) // values of a group of rows
#define GROUP_BYTES (GROUP_VALUES * 2)
#define GROUP_PIECE 128 // bytes of 8 rows of a piece

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define GROUP_ASYNC 1
#else
#define GROUP_ASYNC 0
#endif

// ---- products -----------------------------------------------------------------------------------

// A warp's accumulators, N of 16 outputs x 8 rows, and which outputs and rows they are. wgmma: a
// warpgroup has 64 outputs x 8 N rows, ACROSS warpgroups stand side by side along the outputs. mma:
// a warp has 64 outputs x 2 N rows, ACROSS warps stand side by side.
template <int N, int ACROSS = 2> struct group_sums {
    float v[N ? N : 1][4];

#if GROUP_ASYNC
    static constexpr int TILES = 1; // of 16 outputs

    __device__ static int tile(int)
    {
        return (int)threadIdx.x / CUDA_WARP % (4 * ACROSS);
    }

    __device__ static int rows(int i) // group of 8
    {
        return (int)threadIdx.x / CUDA_WARP / (4 * ACROSS) * N + i;
    }
#else
    static constexpr int TILES = 4, DOWN = N / TILES; // groups of rows of a warp

    __device__ static int tile(int i)
    {
        return (int)threadIdx.x / CUDA_WARP % ACROSS * TILES + i / DOWN;
    }

    __device__ static int rows(int i)
    {
        return (int)threadIdx.x / CUDA_WARP / ACROSS * DOWN + i % DOWN;
    }
#endif
};

// The number of the thread's warpgroup in the block, uniform over the warp.
__device__ static inline int group_four()
{
    return __shfl_sync(FULL_MASK, (int)threadIdx.x / (4 * CUDA_WARP), 0);
}

// to + from, by each value
template <int N, int A>
__device__ static inline void group_add(group_sums<N, A> &to, const group_sums<N, A> &from)
{
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            to.v[i][c] += from.v[i][c];
}

template <int N, int A> __device__ static inline void group_add(group_sums<N, A> &to, float by)
{
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            to.v[i][c] += by;
}

template <int N, int A> __device__ static inline void group_set(group_sums<N, A> &to, float value)
{
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            to.v[i][c] = value;
}

#if GROUP_ASYNC

// The wgmma descriptor of a tile at shared address `at`: GROUP_PIECE from piece to piece (leading
// byte offset), GROUP_BYTES from group to group (stride byte offset), in units of 16 bytes, no
// swizzle.
__device__ static inline uint64_t group_place(uint32_t at)
{
    return (uint64_t)(at >> 4) | (uint64_t)(GROUP_PIECE >> 4) << 16 |
           (uint64_t)(GROUP_BYTES >> 4) << 32;
}

#define GROUP_4(v, i) "+f"(v[i][0]), "+f"(v[i][1]), "+f"(v[i][2]), "+f"(v[i][3])
#define GROUP_16(v, i) GROUP_4(v, i), GROUP_4(v, i + 1), GROUP_4(v, i + 2), GROUP_4(v, i + 3)
#define GROUP_MMA_32(type, s, a, b, more)                                                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                       \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "       \
                 "%16, %17, p, 1, 1, 0, 0;\n}"                                                     \
                 : GROUP_16(s.v, 0)                                                                \
                 : "l"(a), "l"(b), "r"(more))
#define GROUP_32(v, i)                                                                             \
    GROUP_4(v, i), GROUP_4(v, i + 1), GROUP_4(v, i + 2), GROUP_4(v, i + 3), GROUP_4(v, i + 4),     \
        GROUP_4(v, i + 5), GROUP_4(v, i + 6), GROUP_4(v, i + 7)
#define GROUP_MMA_64(type, s, a, b, more)                                                          \
    asm volatile(                                                                                  \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                               \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                 \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "        \
        "%32, %33, p, 1, 1, 0, 0;\n}"                                                              \
        : GROUP_32(s.v, 0)                                                                         \
        : "l"(a), "l"(b), "r"(more))
#define GROUP_MMA_96(type, s, a, b, more)                                                          \
    asm volatile(                                                                                  \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"                                               \
        "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type                                \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                 \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "         \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "        \
        "%48, %49, p, 1, 1, 0, 0;\n}"                                                              \
        : GROUP_32(s.v, 0), GROUP_16(s.v, 8)                                                       \
        : "l"(a), "l"(b), "r"(more))
#define GROUP_MMA_128(type, s, a, b, more)                                                         \
    asm volatile(                                                                                  \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                               \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                               \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                 \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "         \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "         \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "        \
        "%64, %65, p, 1, 1, 0, 0;\n}"                                                              \
        : GROUP_32(s.v, 0), GROUP_32(s.v, 8)                                                       \
        : "l"(a), "l"(b), "r"(more))

// A fence to the asynchronous proxy: after the next barrier, wgmma may read what this thread stored
// in shared memory.
__device__ static inline void group_publish()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// setmaxnreg of a warpgroup: from here on it has COUNT registers a thread, more or fewer than at
// the start. Every warp of a block passes one such place, in the branch of its role.
template <int COUNT, bool MORE> __device__ static inline void group_registers()
{
    if (MORE)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// wgmma.fence: the products that follow see earlier writes to their accumulators.
__device__ static inline void group_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Wait for all products so far; then the accumulators may be read.
template <int N, int A> __device__ static inline void group_settle(group_sums<N, A> &s)
{
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : GROUP_4(s.v, i)::"memory");
}

// Two k-steps (half a unit, pieces from 4 * half on) of the outputs' tile at a times the rows' tile
// at b, shared addresses. Sums start from 0 unless `more`. four: group_four().
template <bool F16, int N, int A>
__device__ static inline void group_steps(group_sums<N, A> &s, uint32_t a, uint32_t b, int half,
                                          bool more, int four)
{
    a += (uint32_t)(four % A * 8 * GROUP_BYTES);
    b += (uint32_t)(four / A * N * GROUP_BYTES);
#pragma unroll
    for (int step = 0; step < 2; step++) {
        uint32_t at = (uint32_t)((half * 4 + step * 2) * GROUP_PIECE);
        uint64_t pa = group_place(a + at), pb = group_place(b + at);
        int on = more || step;

        if constexpr (N == 4 && F16)
            GROUP_MMA_32("f16", s, pa, pb, on);
        else if constexpr (N == 4)
            GROUP_MMA_32("bf16", s, pa, pb, on);
        else if constexpr (N == 12 && F16)
            GROUP_MMA_96("f16", s, pa, pb, on);
        else if constexpr (N == 16 && F16)
            GROUP_MMA_128("f16", s, pa, pb, on);
        else if constexpr (N == 16)
            GROUP_MMA_128("bf16", s, pa, pb, on);
        else if constexpr (F16)
            GROUP_MMA_64("f16", s, pa, pb, on);
        else
            GROUP_MMA_64("bf16", s, pa, pb, on);
    }
}

#undef GROUP_MMA_32
#undef GROUP_16
#undef GROUP_MMA_64
#undef GROUP_MMA_96
#undef GROUP_MMA_128
#undef GROUP_32
#undef GROUP_4

#else

__device__ static inline void group_publish()
{
}

template <int, bool> __device__ static inline void group_registers()
{
}

__device__ static inline void group_begin()
{
}

template <int N, int A> __device__ static inline void group_settle(group_sums<N, A> &)
{
}

template <bool F16, int N, int A>
__device__ static inline void group_steps(group_sums<N, A> &s, uint32_t a, uint32_t b, int half,
                                          bool more, int)
{
    constexpr int DOWN = group_sums<N, A>::DOWN;
    int lane = (int)threadIdx.x % CUDA_WARP, piece = lane / 8, at = lane % 8 * 16;
    uint32_t x[DOWN][4], w[4];

    if (!more)
        group_set(s, 0);
#pragma unroll
    for (int r = 0; r < DOWN; r++)
        matrices_load(x[r], b + (uint32_t)(group_sums<N, A>::rows(r) * GROUP_BYTES +
                                           (half * 4 + piece) * GROUP_PIECE + at));
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int tile = group_sums<N, A>::tile(k * DOWN);

            matrices_load(w, a + (uint32_t)((tile * 2 + piece % 2) * GROUP_BYTES +
                                            (half * 4 + step * 2 + piece / 2) * GROUP_PIECE + at));
#pragma unroll
            for (int r = 0; r < DOWN; r++)
                mma<F16>(s.v[k * DOWN + r], w, x[r][2 * step], x[r][2 * step + 1]);
        }
}

#endif

// A warp's sums on their way up: of the part, of the split, of all (the order is strip.cuh's).
// Empty sums are -0, since -0 + x is x for every x. HELD > 0: the sums of all lie in shared memory
// instead of registers; HELD threads, each with every HELD-th value.
template <int N, int ACROSS = 2, int HELD = 0> struct group_parts {
    group_sums<N, ACROSS> part, split;
    group_sums<HELD ? 0 : N, ACROSS> all;
    float *held;
    int pieces, halves, parts, warps, done,
        until;         // half of a unit before which the part ends; warps: parts of a split
    uint32_t by_parts; // 2^32 / parts, rounded up
    bool more;         // the part has a sum

    __device__ void begin(const struct mat &w, int splits, int of_split, float *memory)
    {
        held = memory + threadIdx.x;
        warps = of_split;
        pieces = strip_pieces(w);
        halves = strip_halves(w);
        parts = splits * warps;
        done = 0;
        by_parts = (uint32_t)((0x100000000ull + (uint32_t)parts - 1) / (uint32_t)parts);
        until = first(1);
        more = false;
        group_set(part, 0);
        group_set(split, -0.0f);
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                total(i, c) = -0.0f;
    }

    __device__ float &total(int i, int c)
    {
        if constexpr (HELD > 0)
            return held[(i * 4 + c) * HELD];
        else
            return all.v[i][c];
    }

    // The half of a unit at which a part begins.
    __device__ int first(int part) const
    {
        return (int)__umulhi((uint32_t)(pieces * part), by_parts) * halves;
    }

    __device__ bool ends(int at) const
    {
        return done < parts && until <= at;
    }

    // Close the parts that end at half `at` or before. some: the first of them has a sum.
    __device__ void end(int at, bool some)
    {
        do {
            if (some)
                group_add(split, part);
            else
                group_add(split, 0.0f);
            some = false;
            if ((++done & (warps - 1)) == 0) {
#pragma unroll
                for (int i = 0; i < N; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        total(i, c) += split.v[i][c];
                group_set(split, -0.0f);
            }
            until = first(done + 1);
        } while (ends(at));
        more = false;
    }
};

#endif
