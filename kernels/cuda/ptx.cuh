// ptx - the instructions that the language has no words for: all inline assembler but that of the four-warp
// matrix unit (group.cuh), one function each. Shared memory is named by pointers; shared_at is what the
// instructions take for one. What says "warp" is called by all lanes of a warp together.
#ifndef TANDEM_KERNELS_CUDA_PTX_CUH
#define TANDEM_KERNELS_CUDA_PTX_CUH

#include <stdint.h>

#include "kernels/numfmt.h"

__device__ static inline uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// ---- kernels behind each other and blocks beside each other ----------------------------------------

// Blocks of the next kernel may come in, once all blocks of this one have said so or ended: early they take places where
// this one runs; behind dependency_settle they find that all before this one has ended.
__device__ static inline void dependency_next()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Every kernel before this one has ended, and its writes are seen.
__device__ static inline void dependency_settle()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// gang_arrive, gang_wait - a barrier of the blocks of a cluster: what was written before the one is seen
// behind the other, in shared memory too. All threads of a warp together.
__device__ static inline void gang_arrive()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ static inline void gang_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// gang_begin - the same where nothing has been written that others look for but barriers that barrier_publish followed, and
// nothing is waited for: behind gang_wait all blocks have begun.
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

// Which place of the multiprocessor the warp has at the moment.
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

// threadIdx.x, asked for where it is wanted: what is made from it takes no registers from one place to the next.
__device__ static inline uint32_t thread_here(void)
{
    uint32_t t;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

// ---- words that others change or wait for while a kernel runs ---------------------------------------

// Counts one; releases what the thread, and by a barrier its block, wrote, acquires what others did that
// counted before.
__device__ static inline uint32_t counter_trade(uint32_t *counter)
{
    uint32_t before;

    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

// The same; behind `last` it begins again at 0.
__device__ static inline uint32_t counter_turn(uint32_t *counter, uint32_t last)
{
    uint32_t before;

    asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(last)
                 : "memory");
    return before;
}

// Counts one, releasing, and asks for nothing.
__device__ static inline void counter_add(uint32_t *counter)
{
    asm volatile("red.add.release.gpu.global.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// Sets bits, releasing as counter_add does.
__device__ static inline void counter_mark(uint32_t *word, uint32_t bits)
{
    asm volatile("red.or.release.gpu.global.b32 [%0], %1;" ::"l"(word), "r"(bits) : "memory");
}

// A count, or bits; what was written before that is seen.
__device__ static inline uint32_t counter_read(const uint32_t *counter)
{
    uint32_t v;

    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
    return v;
}

// flag_raise - after everything this thread, and by a barrier its block, wrote before; flag_read: for host and
// other devices alike.
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

// fresh_load, fresh_word - past caches that may hold what was there before
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

// pair_write, pair_read - two words of any device at once: who reads the one reads the other with it
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

// whole_put, whole_read - one word of this device, of which who reads has both halves; in no order with what is written beside it
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

// words_put, words_read - four words, each of which who reads has whole; in no order with what is written beside them
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

// What no kernel writes and nobody reads again.
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

// The same of bytes in units of 16.
__device__ static inline void bulk_ahead(const void *p, int bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

// Words into shared memory, behind the thread's back; `to` and `from` are aligned to their size. They are there, for the
// thread itself, behind copy_wait: all but the last LEFT groups of copies that copy_commit ended.
template <int BYTES> __device__ static inline void copy_ahead(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_at(to)), "l"(from),
                 "n"(BYTES)
                 : "memory");
}

// 16 bytes that only the second level of caches keeps.
__device__ static inline void copy_async(uint4 *to, const uint4 *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from)
                 : "memory");
}

// The same of what nobody reads again: the first to make room in the cache. The policy is the one that createpolicy makes
// for evict_first of all, on every device so far; to have it made is ten instructions each time.
__device__ static inline void copy_async_once(uint4 *to, const uint4 *from)
{
    const uint64_t once = 0x12f0000000000000u;

    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_at(to)),
        "l"(from), "l"(once)
        : "memory");
}

// The first `bytes` of 16, then zeros.
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

// ---- copies that arrive: a barrier in shared memory counts arrivals and bytes ------------------------------

// The barrier's phase ends with so many arrivals; others use it behind barrier_publish and a barrier of the block.
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

// An arrival; the phase also needs so many bytes.
__device__ static inline void barrier_expect(uint64_t *bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(bar)),
                 "r"(bytes)
                 : "memory");
}

// Until the phase of this parity has ended; the first one has parity 0.
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

// bulk_bring, bulk_bring_once - bytes from memory to shared memory, which `bar` counts; all in units of 16. Those that nobody
// reads again make room for each other in the cache, and leave what is there.
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

// v to where block `rank` of the cluster has what this one has at `to`; its `bar` counts the bytes.
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

// ---- values --------------------------------------------------------------------------------------

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

// Two f16 numbers in a word: x by + plus, rounded once; x + y.
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

// The larger of x and 0; keeps a NaN.
__device__ static inline float not_negative(float x)
{
    float y;

    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x within an unit of the last place, subnormal numbers as zeros.
__device__ static inline float inverse(float x)
{
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- matrices ------------------------------------------------------------------------------------

// Four matrices of 8 x 8 numbers of 16 bits from shared memory: lane l names row l % 8 of matrix l / 8, 16 bytes,
// aligned, and gets the pair lane % 4 of row lane / 4 of each. A warp.
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

// The same, rows and columns exchanged.
__device__ static inline void matrices_load_turned(uint32_t (&m)[4], const uint16_t *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_at(row))
                 : "memory");
}

// c += a b, of 16 x 16 and 16 x 8 numbers, f16 or bf16, as lanes have them: matrix.cuh. A warp.
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
