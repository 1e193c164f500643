// ptx - inline assembler for instructions that CUDA C++ does not expose, one function each. Only
// the wgmma instructions are elsewhere (group.cuh). Shared memory is passed as generic pointers;
// shared_at converts one to the 32-bit address that the instructions take. All lanes of a warp call
// a function whose comment says "warp".
#ifndef TANDEM_KERNELS_CUDA_PTX_CUH
#define TANDEM_KERNELS_CUDA_PTX_CUH

#include <stdint.h>

#include "kernels/numfmt.h"

__device__ static inline uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// ---- programmatic dependent launch, clusters ----------------------------------------------------

// dependency_next - the next kernel's blocks may start once every block of this one has called this
// or ended. Called early, they take room on multiprocessors while this kernel runs; called after
// dependency_settle, they start when every kernel before this one has ended.
__device__ static inline void dependency_next()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// dependency_settle - wait until every kernel before this one has ended and its writes are visible.
__device__ static inline void dependency_settle()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// gang_arrive, gang_wait - the two halves of a cluster barrier: writes before a block's arrive
// (release) are visible to the cluster after the wait (acquire), in shared memory too. A warp.
__device__ static inline void gang_arrive()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ static inline void gang_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// gang_begin - a relaxed arrive: gang_wait then says only that all blocks of the cluster have
// started, so that their shared memory may be written. Enough where the only writes that others
// rely on are barrier_init followed by barrier_publish.
__device__ static inline void gang_begin()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// A clock for time limits; only differences count.
__device__ static inline uint64_t device_ns(void)
{
    uint64_t t;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

// The warp slot of the multiprocessor that the warp has at the moment.
__device__ static inline uint32_t warp_place(void)
{
    uint32_t warp;

    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
    return warp;
}

// The multiprocessor that the warp runs on.
__device__ static inline uint32_t device_sm(void)
{
    uint32_t sm;

    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return sm;
}

// threadIdx.x, read again at each use: the compiler cannot keep values derived from it in registers
// between uses.
__device__ static inline uint32_t thread_here(void)
{
    uint32_t t;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

// held - v, computed here and kept in a register: the compiler neither recomputes it at each use
// nor defers a load to its first use.
template <typename T> __device__ static inline T held(T v)
{
    static_assert(sizeof(T) == sizeof(uint64_t), "a register of 64 bits");
    asm volatile("" : "+l"(v));
    return v;
}

// ---- words that other blocks, the host or other devices change while a kernel runs --------------

// Adds one and returns the count before, acquire and release at device scope: releases the writes
// of the thread (behind a block barrier, of its block) and acquires those of everyone who counted
// before.
__device__ static inline uint32_t counter_trade(uint32_t *counter)
{
    uint32_t before;

    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

// The same, but the count wraps to 0 after `last`.
__device__ static inline uint32_t counter_turn(uint32_t *counter, uint32_t last)
{
    uint32_t before;

    asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(last)
                 : "memory");
    return before;
}

// Adds one with release order; no result.
__device__ static inline void counter_add(uint32_t *counter)
{
    asm volatile("red.add.release.gpu.global.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// Sets bits with release order; no result.
__device__ static inline void counter_mark(uint32_t *word, uint32_t bits)
{
    asm volatile("red.or.release.gpu.global.b32 [%0], %1;" ::"l"(word), "r"(bits) : "memory");
}

// Reads a count or bits with acquire order: what was released before it is visible.
__device__ static inline uint32_t counter_read(const uint32_t *counter)
{
    uint32_t v;

    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
    return v;
}

// flag_raise, flag_read - release and acquire at system scope, so for the host and other devices
// too. flag_raise covers the writes of the thread and, behind a block barrier, of its block.
__device__ static inline void flag_raise(uint64_t *flag, uint64_t v)
{
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(v) : "memory");
}

__device__ static inline uint64_t flag_read(const uint64_t *flag)
{
    uint64_t v;

    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(flag) : "memory");
    return v;
}

// fresh_load, fresh_word - volatile loads, which stale cache lines cannot serve
__device__ static inline uint4 fresh_load(const uint4 *p)
{
    uint4 v;

    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

__device__ static inline uint32_t fresh_word(const uint32_t *p)
{
    uint32_t v;

    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// pair_write, pair_read - two 8-byte words in one access at system scope, relaxed. Each word is
// written and read whole; the pair carries flags of its own (direct.cuh).
__device__ static inline void pair_write(uint4 *at, uint64_t lo, uint64_t hi)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(lo), "l"(hi)
                 : "memory");
}

__device__ static inline void pair_read(const uint4 *at, uint64_t *lo, uint64_t *hi)
{
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(*lo), "=l"(*hi)
                 : "l"(at)
                 : "memory");
}

// whole_put, whole_read - an 8-byte word, never torn; relaxed at device scope, so not ordered with
// other writes
__device__ static inline void whole_put(uint64_t *at, uint64_t v)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}

__device__ static inline uint64_t whole_read(const uint64_t *at)
{
    uint64_t v;

    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}

// words_put, words_read - four 4-byte words in one access, each never torn; relaxed at device
// scope, so not ordered with other writes
__device__ static inline void words_put(uint4 *at, uint4 v)
{
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

__device__ static inline uint4 words_read(const uint4 *at)
{
    uint4 v;

    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

// ---- memory -------------------------------------------------------------------------------------

// For data that no kernel writes and that is read once: read-only path, no allocation in L1.
__device__ static inline uint4 load_once(const uint4 *p)
{
    uint4 v;

    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}

__device__ static inline void prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// The same for a range; bytes is a multiple of 16.
__device__ static inline void bulk_ahead(const void *p, int bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

// Asynchronous copy of BYTES (4, 8 or 16, aligned) to shared memory. copy_commit closes a group of
// copies; after copy_wait<LEFT> all but the last LEFT groups have arrived, for the copying thread.
template <int BYTES> __device__ static inline void copy_ahead(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_at(to)), "l"(from),
                 "n"(BYTES)
                 : "memory");
}

// 16 bytes, cached in L2 only.
__device__ static inline void copy_async(uint4 *to, const uint4 *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from)
                 : "memory");
}

// The same for data that is read once: evict-first in L2. The constant is what createpolicy returns
// for evict_first with fraction 1 on every device so far; creating it costs ten instructions a
// time.
__device__ static inline void copy_async_once(uint4 *to, const uint4 *from)
{
    const uint64_t once = 0x12f0000000000000u;

    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_at(to)),
        "l"(from), "l"(once)
        : "memory");
}

// The first `bytes` of 16, the rest zeros.
__device__ static inline void copy_async_some(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ static inline void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> __device__ static inline void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ static inline void copy_wait_all()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// ---- mbarriers and bulk copies: a barrier in shared memory counts arrivals and bytes ------------

// Every phase of the barrier needs so many arrivals. Other threads may use it after barrier_publish
// and a barrier of the block.
__device__ static inline void barrier_init(uint64_t *bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(bar)), "r"(arrivals)
                 : "memory");
}

__device__ static inline void barrier_publish()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ static inline void barrier_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(bar)) : "memory");
}

// Arrives, and adds so many bytes to what the phase waits for.
__device__ static inline void barrier_expect(uint64_t *bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(bar)),
                 "r"(bytes)
                 : "memory");
}

// Waits until the phase of this parity has ended; the first phase has parity 0.
__device__ static inline void barrier_wait(uint64_t *bar, int parity)
{
    uint32_t there;

    do
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(there)
                     : "r"(shared_at(bar)), "r"(parity)
                     : "memory");
    while (!there);
}

// bulk_bring, bulk_bring_once - bulk copy from global to shared memory, completing on `bar`;
// addresses and bytes are multiples of 16. _once: evict-first in L2, so that data read once does
// not displace other lines.
__device__ static inline void bulk_bring(void *to, const void *from, int bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_at(to)),
                 "l"(from), "r"(bytes), "r"(shared_at(bar))
                 : "memory");
}

__device__ static inline void bulk_bring_once(void *to, const void *from, int bytes, uint64_t *bar)
{
    uint64_t once;

    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_at(to)),
                 "l"(from), "r"(bytes), "r"(shared_at(bar)), "l"(once)
                 : "memory");
}

// Asynchronous store of v to `to` in the shared memory of block `rank` of the cluster; the bytes
// count on that block's `bar`.
__device__ static inline void peer_send(float *to, float4 v, uint64_t *bar, int rank)
{
    uint32_t far, far_bar;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(shared_at(to)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far_bar) : "r"(shared_at(bar)), "r"(rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], "
                 "{%1, %2, %3, %4}, [%5];" ::"r"(far),
                 "r"(f32_bits(v.x)), "r"(f32_bits(v.y)), "r"(f32_bits(v.z)), "r"(f32_bits(v.w)),
                 "r"(far_bar)
                 : "memory");
}

__device__ static inline void peer_send(float *to, float v, uint64_t *bar, int rank)
{
    uint32_t far, far_bar;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(shared_at(to)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far_bar) : "r"(shared_at(bar)), "r"(rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     far),
                 "r"(f32_bits(v)), "r"(far_bar)
                 : "memory");
}

__device__ static inline void peer_send(uint2 *to, uint2 v, uint64_t *bar, int rank)
{
    uint32_t far, far_bar;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(shared_at(to)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far_bar) : "r"(shared_at(bar)), "r"(rank));
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
            far),
        "r"(v.x), "r"(v.y), "r"(far_bar)
        : "memory");
}

// ---- values -------------------------------------------------------------------------------------

__device__ static inline uint16_t bf16_nearest(float v)
{
    uint16_t h;

    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

// Two bf16 numbers in a word: x in the low half.
__device__ static inline uint32_t bf16_pair(float x, float y)
{
    uint32_t u;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(y), "f"(x));
    return u;
}

__device__ static inline uint32_t bf16_times(uint32_t x, uint32_t y)
{
    uint32_t v;

    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(x), "r"(y));
    return v;
}

// f16: the bits of numfmt.h.
__device__ static inline float f16_value(uint16_t h)
{
    float v;

    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
}

__device__ static inline uint16_t f16_nearest(float v)
{
    uint16_t h;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

// Pairs of f16 numbers: x * by + plus, rounded once; x + y.
__device__ static inline uint32_t f16_fused(uint32_t x, uint32_t by, uint32_t plus)
{
    uint32_t v;

    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(x), "r"(by), "r"(plus));
    return v;
}

__device__ static inline uint32_t f16_plus(uint32_t x, uint32_t y)
{
    uint32_t v;

    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(x), "r"(y));
    return v;
}

// max(x, 0); a NaN stays one.
__device__ static inline float not_negative(float x)
{
    float y;

    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x to within one unit in the last place; subnormal numbers count as zeros.
__device__ static inline float inverse(float x)
{
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- matrices -----------------------------------------------------------------------------------

// ldmatrix: four 8 x 8 matrices of 16-bit numbers from shared memory. Lane l passes the address of
// row l % 8 of matrix l / 8 (16 bytes, aligned) and gets pair l % 4 of row l / 4 of each. A warp.
__device__ static inline void matrices_load(uint32_t (&m)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}

__device__ static inline void matrices_load(uint32_t (&m)[4], const uint16_t *row)
{
    matrices_load(m, shared_at(row));
}

// The same, each matrix transposed.
__device__ static inline void matrices_load_turned(uint32_t (&m)[4], const uint16_t *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_at(row))
                 : "memory");
}

// c += a b with a 16 x 16 and b 16 x 8, f16 or bf16; matrix.cuh says which elements a lane holds. A
// warp.
template <bool F16>
__device__ static inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
            "%7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
