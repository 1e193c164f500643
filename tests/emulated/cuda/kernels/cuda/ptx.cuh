// ptx - what kernels/cuda/ptx.cuh has, by engine.cpp.
#ifndef TANDEM_TESTS_EMULATED_PTX_CUH
#define TANDEM_TESTS_EMULATED_PTX_CUH

#include <stdint.h>

#include "kernels/numfmt.h"
#include "src/base/clock.h"
#include "tests/emulated/device.h"

static inline uint32_t shared_at(const void *p)
{
    emulated::check_place("shared_at", p, 1, 1, true);
    return (uint32_t)((uintptr_t)p - (uintptr_t)emulated::shared_begin());
}

static inline void dependency_next()
{
    emulated::dependency_next();
}

static inline void dependency_settle()
{
    emulated::dependency_settle();
}

static inline void gang_arrive()
{
    emulated::gang_arrive();
}

static inline void gang_wait()
{
    emulated::gang_wait();
}

static inline void gang_begin()
{
    emulated::gang_arrive();
}

static inline uint64_t device_ns(void)
{
    return (uint64_t)clock_ns();
}

// ---- words that others change ------------------------------------------------------------------

static inline uint32_t counter_trade(uint32_t *counter)
{
    return __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL);
}

static inline uint32_t counter_turn(uint32_t *counter, uint32_t last)
{
    uint32_t before = *counter;

    *counter = before >= last ? 0 : before + 1;
    return before;
}

static inline void counter_add(uint32_t *counter)
{
    ++*counter;
}

static inline uint32_t warp_place(void)
{
    return 0;
}

static inline uint32_t device_sm(void)
{
    return 0;
}

static inline uint32_t thread_here(void)
{
    return threadIdx.x;
}

template <typename T> static inline T held(T v)
{
    return v;
}

static inline void counter_mark(uint32_t *word, uint32_t bits)
{
    *word |= bits;
}

static inline uint32_t counter_read(const uint32_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

static inline void flag_raise(uint64_t *flag, uint64_t v)
{
    __atomic_store_n(flag, v, __ATOMIC_SEQ_CST);
}

static inline uint64_t flag_read(const uint64_t *flag)
{
    emulated::pause();
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static inline uint4 fresh_load(const uint4 *p)
{
    return *p;
}

static inline uint32_t fresh_word(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

// Two words: whoever looks is a fiber of the same thread.
static inline void pair_write(uint4 *at, uint64_t lo, uint64_t hi)
{
    uint64_t v[2] = { lo, hi };

    emulated::check_place("pair_write", at, 16, 16, false);
    memcpy(at, v, sizeof(v));
}

static inline void pair_read(const uint4 *at, uint64_t *lo, uint64_t *hi)
{
    uint64_t v[2];

    emulated::check_place("pair_read", at, 16, 16, false);
    emulated::pause();
    memcpy(v, at, sizeof(v));
    *lo = v[0];
    *hi = v[1];
}

static inline void whole_put(uint64_t *at, uint64_t v)
{
    emulated::check_place("whole_put", at, 8, 8, false);
    *at = v;
}

static inline uint64_t whole_read(const uint64_t *at)
{
    emulated::check_place("whole_read", at, 8, 8, false);
    emulated::pause();
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static inline void words_put(uint4 *at, uint4 v)
{
    emulated::check_place("words_put", at, 16, 16, false);
    *at = v;
}

static inline uint4 words_read(const uint4 *at)
{
    emulated::check_place("words_read", at, 16, 16, false);
    emulated::pause();
    return *at;
}

// ---- memory -------------------------------------------------------------------------------------

static inline uint4 load_once(const uint4 *p)
{
    emulated::check_place("load_once", p, 16, 16, false);
    return *p;
}

static inline void prefetch_l2(const void *)
{
}

static inline void bulk_ahead(const void *p, int bytes)
{
    emulated::check_place("bulk_ahead", p, 16, (size_t)bytes, false);
}

template <int BYTES> static inline void copy_ahead(void *to, const void *from)
{
    emulated::check_place("copy_ahead", from, BYTES, BYTES, false);
    emulated::copy_later(to, from, BYTES, BYTES);
}

static inline void copy_async(uint4 *to, const uint4 *from)
{
    copy_ahead<16>(to, from);
}

static inline void copy_async_once(uint4 *to, const uint4 *from)
{
    copy_ahead<16>(to, from);
}

static inline void copy_async_some(uint32_t to, const void *from, int bytes)
{
    emulated::check_place("copy_async_some", from, 16, 16, false);
    emulated::copy_later(emulated::shared_begin() + to, from, bytes, 16);
}

static inline void copy_commit()
{
    emulated::copy_commit();
}

template <int LEFT> static inline void copy_wait()
{
    emulated::copy_wait(LEFT);
}

static inline void copy_wait_all()
{
    emulated::copy_commit();
    emulated::copy_wait(0);
}

// ---- copies that arrive -------------------------------------------------------------------------

static inline void barrier_init(uint64_t *bar, int arrivals)
{
    emulated::barrier_init(bar, arrivals);
}

static inline void barrier_publish()
{
}

static inline void barrier_arrive(uint64_t *bar)
{
    emulated::barrier_arrive(bar, 0);
}

static inline void barrier_expect(uint64_t *bar, int bytes)
{
    emulated::barrier_arrive(bar, bytes);
}

static inline void barrier_wait(uint64_t *bar, int parity)
{
    emulated::barrier_wait(bar, parity);
}

static inline void bulk_bring(void *to, const void *from, int bytes, uint64_t *bar)
{
    emulated::parcel_fetch(to, from, bytes, bar);
}

static inline void bulk_bring_once(void *to, const void *from, int bytes, uint64_t *bar)
{
    emulated::parcel_fetch(to, from, bytes, bar);
}

static inline void peer_send(float *to, float4 v, uint64_t *bar, int rank)
{
    emulated::parcel_send(to, &v, sizeof(v), bar, rank);
}

static inline void peer_send(float *to, float v, uint64_t *bar, int rank)
{
    emulated::parcel_send(to, &v, sizeof(v), bar, rank);
}

static inline void peer_send(uint2 *to, uint2 v, uint64_t *bar, int rank)
{
    emulated::parcel_send(to, &v, sizeof(v), bar, rank);
}

// ---- values -------------------------------------------------------------------------------------

static inline uint16_t bf16_nearest(float v)
{
    return bf16_from_f32(v);
}

static inline uint32_t bf16_pair(float x, float y)
{
    return bf16_from_f32(x) | (uint32_t)bf16_from_f32(y) << 16;
}

static inline uint32_t bf16_times(uint32_t x, uint32_t y)
{
    return bf16_pair(f32_from_bits(x << 16) * f32_from_bits(y << 16),
                     f32_from_bits(x & 0xffff0000u) * f32_from_bits(y & 0xffff0000u));
}

static inline float f16_value(uint16_t h)
{
    return emulated::f16_value(h);
}

static inline uint16_t f16_nearest(float v)
{
    return f16_from_f32(v);
}

// A product of two f16 numbers and its sum with a third are exact in double, or so near that
// rounding to odd numbers on the way keeps the last rounding right.
static inline uint16_t f16_fused_one(uint16_t x, uint16_t by, uint16_t plus)
{
    double d = (double)f16_value(x) * f16_value(by) + f16_value(plus);
    float f = (float)d;

    if (f != d && f32_bits(f) % 2 == 0)
        f = nextafterf(f, d > f ? INFINITY : -INFINITY);
    return f16_from_f32(f);
}

static inline uint32_t f16_fused(uint32_t x, uint32_t by, uint32_t plus)
{
    return f16_fused_one((uint16_t)x, (uint16_t)by, (uint16_t)plus) |
           (uint32_t)f16_fused_one((uint16_t)(x >> 16), (uint16_t)(by >> 16),
                                   (uint16_t)(plus >> 16))
               << 16;
}

static inline uint32_t f16_plus(uint32_t x, uint32_t y)
{
    return f16_from_f32(f16_value((uint16_t)x) + f16_value((uint16_t)y)) |
           (uint32_t)f16_from_f32(f16_value((uint16_t)(x >> 16)) + f16_value((uint16_t)(y >> 16)))
               << 16;
}

static inline float not_negative(float x)
{
    return x > 0 || x != x ? x : 0;
}

static inline float inverse(float x)
{
    float y = fabsf(x) < 0x1p-126f ? copysignf(INFINITY, x) : 1.0f / x;

    return fabsf(y) < 0x1p-126f ? copysignf(0, y) : y;
}

// ---- matrices -----------------------------------------------------------------------------------

static inline void matrices_load(uint32_t (&m)[4], const uint16_t *row)
{
    emulated::matrices_load(m, row, false);
}

static inline void matrices_load(uint32_t (&m)[4], uint32_t at)
{
    emulated::matrices_load(m, emulated::shared_begin() + at, false);
}

static inline void matrices_load_turned(uint32_t (&m)[4], const uint16_t *row)
{
    emulated::matrices_load(m, row, true);
}

template <bool F16>
static inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulated::multiply(F16, c, a, b0, b1);
}

#endif
