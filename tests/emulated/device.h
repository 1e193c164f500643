// device - what kernels use of the language, for the processor of this machine: a thread of a block
// is a fiber, all on one thread of the process (engine.cpp). What all lanes of a warp do together
// is where its fibers meet.
#ifndef TANDEM_TESTS_EMULATED_DEVICE_H
#define TANDEM_TESTS_EMULATED_DEVICE_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__                                                                                 \
    thread_local // of the device's thread; what a block has of it comes and goes with the block

struct __align__(8) uint2
{
    uint32_t x, y;
};
struct __align__(16) uint4
{
    uint32_t x, y, z, w;
};
struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};

static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return { x, y };
}

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return { x, y, z, w };
}

static inline float2 make_float2(float x, float y)
{
    return { x, y };
}

static inline float4 make_float4(float x, float y, float z, float w)
{
    return { x, y, z, w };
}

struct emulated_index {
    unsigned x, y, z;
};

extern emulated_index threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulated
{
constexpr int LANES = 32;

// What a lane brings to where its warp meets, and takes from there.
struct __align__(16) seat
{
    char bytes[64];
};

// meet - waits for all lanes of the warp that `mask` names, which call it with the same `what`; the
// last one that comes calls `all`, before others go on. The seats are as they were left until the
// lane meets again.
seat *meet(const char *what, unsigned mask, const void *mine, size_t bytes,
           void (*all)(seat *) = nullptr);
int lane();

// barrier - of the block; what all threads that have not ended brought, added up.
int barrier(int mine);

// pause - before another look at what others change: they go on first.
void pause();

// broken - the kernel's fault: prints which block of which kernel, then `what`, and ends the
// program.
[[noreturn]] __attribute__((format(printf, 1, 2))) void broken(const char *what, ...);

// Whole words of `bytes` bytes at p, in the block's shared memory if `shared`.
void check_place(const char *what, const void *p, size_t align, size_t bytes, bool shared);

unsigned rank_of_block();
void *peer_place(const void *p, int rank,
                 bool used); // used: now, not behind a barrier of the cluster
void gang_arrive();
void gang_wait();
void dependency_next();
void dependency_settle();

// Copies behind the thread's back: they are made as late as they may be.
void copy_later(void *to, const void *from, int bytes, int all);
void copy_commit();
void copy_wait(int left);

// Barriers that count bytes; a parcel for one is delivered when somebody waits there.
void barrier_init(uint64_t *bar, int arrivals);
void barrier_arrive(uint64_t *bar, int bytes);
void barrier_wait(uint64_t *bar, int parity);
void parcel_fetch(void *to, const void *from, int bytes, uint64_t *bar);
void parcel_send(void *to, const void *data, int bytes, uint64_t *bar, int rank);

char *shared_begin();
float f16_value(uint16_t h);
void matrices_load(uint32_t (&m)[4], const void *row, bool turned);
void multiply(bool f16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

// The arguments of a launch.
struct call {
    virtual ~call()
    {
    }
    virtual void run() const = 0;
    virtual call *copy() const = 0;
    virtual void set(void *const *args) = 0;
};

template <typename... P> struct call_of : call {
    void (*kernel)(P...);
    std::tuple<std::remove_cv_t<P>...> args;

    call_of(void (*kernel)(P...), P... args) : kernel(kernel), args(args...)
    {
    }

    void run() const override
    {
        std::apply(kernel, args);
    }

    call *copy() const override
    {
        return new call_of(*this);
    }

    void set(void *const *from) override
    {
        std::apply(
            [&](auto &...arg) {
                ((arg = *(std::remove_reference_t<decltype(arg)> *)*from++), ...);
            },
            args);
    }
};

cudaError_t submit(const cudaLaunchConfig_t *c, const void *kernel, call *what);
cudaError_t clusters_at_once(int *n, const void *kernel, const cudaLaunchConfig_t *c);
} // namespace emulated

template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A &&...args)
{
    return emulated::submit(c, (const void *)kernel,
                            new emulated::call_of<P...>(kernel, P(args)...));
}

template <typename K>
cudaError_t cudaOccupancyMaxActiveClusters(int *n, K kernel, const cudaLaunchConfig_t *c)
{
    return emulated::clusters_at_once(n, (const void *)kernel, c);
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

// ---- where threads meet -------------------------------------------------------------------------

static inline void __syncthreads()
{
    (void)emulated::barrier(0);
}

static inline int __syncthreads_or(int p)
{
    return emulated::barrier(p != 0) != 0;
}

static inline int __syncthreads_count(int p)
{
    return emulated::barrier(p != 0);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulated::meet("syncwarp", mask, nullptr, 0);
}

template <typename T> static inline T emulated_from(unsigned mask, T v, int lane)
{
    static_assert(sizeof(T) <= sizeof(emulated::seat));
    emulated::seat *all = emulated::meet("shuffle", mask, &v, sizeof(v));

    memcpy(&v, all[lane].bytes, sizeof(v));
    return v;
}

template <typename T> static inline T __shfl_sync(unsigned mask, T v, int lane)
{
    return emulated_from(mask, v, lane & 31);
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int by)
{
    return emulated_from(mask, v, (emulated::lane() ^ by) & 31);
}

template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, int by)
{
    int at = emulated::lane() - by;

    return emulated_from(mask, v, at < 0 ? emulated::lane() : at);
}

template <typename T> static inline T __shfl_down_sync(unsigned mask, T v, int by)
{
    int at = emulated::lane() + by;

    return emulated_from(mask, v, at > 31 ? emulated::lane() : at);
}

template <typename T, typename F> static inline T emulated_fold(unsigned mask, T v, F fold)
{
    emulated::seat *all = emulated::meet("vote", mask, &v, sizeof(v));
    bool some = false;

    for (int i = 0; i < emulated::LANES; i++)
        if (mask >> i & 1) {
            T o;

            memcpy(&o, all[i].bytes, sizeof(o));
            v = some ? fold(v, o, i) : fold(T(), o, i);
            some = true;
        }
    return v;
}

static inline unsigned __ballot_sync(unsigned mask, int p)
{
    return emulated_fold(mask, (unsigned)(p != 0),
                         [](unsigned v, unsigned o, int i) { return v | o << i; });
}

static inline int __any_sync(unsigned mask, int p)
{
    return __ballot_sync(mask, p) != 0;
}

template <typename T> static inline T __reduce_add_sync(unsigned mask, T v)
{
    return emulated_fold(mask, v, [](T v, T o, int) { return v + o; });
}

template <typename T> static inline T __reduce_min_sync(unsigned mask, T v)
{
    return emulated_fold(mask, v, [](T v, T o, int i) { return i == 0 || o < v ? o : v; });
}

template <typename T> static inline T __reduce_max_sync(unsigned mask, T v)
{
    return emulated_fold(mask, v, [](T v, T o, int i) { return i == 0 || o > v ? o : v; });
}

static inline void __cluster_barrier_arrive()
{
    emulated::gang_arrive();
}

static inline void __cluster_barrier_wait()
{
    emulated::gang_wait();
}

static inline void *__cluster_map_shared_rank(const void *p, unsigned rank)
{
    return emulated::peer_place(p, (int)rank, false);
}

static inline void __nanosleep(unsigned)
{
    emulated::pause();
}

static inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// ---- memory -------------------------------------------------------------------------------------

template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

template <typename T, typename V> static inline T atomicAdd(T *p, V v)
{
    return __atomic_fetch_add(p, (T)v, __ATOMIC_SEQ_CST);
}

template <typename T, typename V> static inline T atomicOr(T *p, V v)
{
    return __atomic_fetch_or(p, (T)v, __ATOMIC_SEQ_CST);
}

template <typename T, typename V> static inline T atomicMin(T *p, V v)
{
    T was = __atomic_load_n(p, __ATOMIC_SEQ_CST);

    while ((T)v < was &&
           !__atomic_compare_exchange_n(p, &was, (T)v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return was;
}

template <typename T, typename V> static inline T atomicCAS(T *p, V was, V v)
{
    T w = (T)was;

    __atomic_compare_exchange_n(p, &w, (T)v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return w;
}

// ---- values -------------------------------------------------------------------------------------

static inline int min(int a, int b)
{
    return a < b ? a : b;
}

static inline int max(int a, int b)
{
    return a > b ? a : b;
}

static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}

static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by)
{
    return (unsigned)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}

static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which)
{
    uint64_t all = (uint64_t)high << 32 | low;
    unsigned v = 0;

    for (int i = 0; i < 4; i++) {
        unsigned byte = (unsigned)(all >> (which >> 4 * i & 7) * 8) & 0xff;

        v |= (which >> 4 * i & 8 ? (byte & 0x80 ? 0xffu : 0) : byte) << 8 * i;
    }
    return v;
}

static inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum)
{
    for (int i = 0; i < 32; i += 8)
        sum += (a >> i & 0xff) * (b >> i & 0xff);
    return sum;
}

#endif
