// fresh - loads and stores of words that somebody else changes or waits for while a kernel runs.
#ifndef TANDEM_KERNELS_CUDA_FRESH_CUH
#define TANDEM_KERNELS_CUDA_FRESH_CUH

#include <stdint.h>

// flag_raise - after everything this thread, and by a barrier its block, wrote before.
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

// fresh_load - past caches that may hold the line of an exchange before
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

// device_ns - a clock for time limits; only differences count
__device__ static inline uint64_t device_ns(void)
{
    uint64_t t;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

__device__ static inline void device_nap(void)
{
    __nanosleep(128);
}

#endif
