// sample - the sampler's filters and the keyed draw over keys in ascending order; the bits are
// those of kernels/ref/pick.c. Everything behind a logit is double, with the exp and log of
// src/base/rng.h.
#ifndef TANDEM_KERNELS_CUDA_SAMPLE_CUH
#define TANDEM_KERNELS_CUDA_SAMPLE_CUH

#include "kernels/cuda/order.cuh"
#include "src/base/rng.h"

__device__ static inline double heat_of(const struct sampler &s)
{
    return s.temperature < 1e-6 ? 1e-6 : s.temperature;
}

__device__ static inline bool has_top_p(const struct sampler &s)
{
    return s.top_p > 0 && s.top_p < 1;
}

__device__ static inline double scaled(uint64_t key, double heat)
{
    return (double)order_value(key_word(key)) / heat;
}

// A walk down the sorted keys; in shared memory, moved by thread 0.
struct descent {
    double sum;
    int left; // keys taken
    int done; // top_p has been reached
};

// descent_mass - add e^(x - most) of the next n sorted keys to d->sum, in order. term is shared,
// [blockDim].
__device__ static inline void descent_mass(struct descent *d, const uint64_t *key, int n,
                                           double most, double heat, double *term)
{
    for (int first = 0; first < n; first += (int)blockDim.x) {
        int i = first + (int)threadIdx.x;

        if (i < n)
            term[threadIdx.x] = det_exp(scaled(key[i], heat) - most);
        __syncthreads();
        for (int j = 0; threadIdx.x == 0 && j < (int)blockDim.x && first + j < n; j++)
            d->sum += term[j];
        __syncthreads();
    }
}

// descent_reach - take sorted keys until their shares of `whole` reach top_p; d->done says that
// they have.
__device__ static inline void descent_reach(struct descent *d, const uint64_t *key, int n,
                                            double most, double heat, double whole, double top_p,
                                            double *term)
{
    for (int first = 0; first < n && !d->done; first += (int)blockDim.x) {
        int i = first + (int)threadIdx.x;

        if (i < n)
            term[threadIdx.x] = det_exp(scaled(key[i], heat) - most) / whole;
        __syncthreads();
        if (threadIdx.x == 0)
            for (int j = 0; j < (int)blockDim.x && first + j < n && !d->done; j++) {
                d->sum += term[j];
                d->left++;
                d->done = !(d->sum < top_p);
            }
        __syncthreads();
    }
}

// What competes in a draw: the largest x + g, ties to the lower id.
struct lot {
    double v;
    int32_t id; // -1: none
};

__device__ static inline bool lot_beats(const struct lot &a, const struct lot &b)
{
    return a.id >= 0 && (b.id < 0 || a.v > b.v || (a.v == b.v && a.id < b.id));
}

__device__ static inline struct lot lot_of(const struct sampler &s, double x, uint64_t pos, int id)
{
    struct lot l = { x + draw_gumbel(s.seed, pos, (uint32_t)id, DRAW_TOKEN), id };

    return l;
}

// lot_best - of a lot a thread; the result is thread 0's. part is shared, [blockDim / 32]. All
// threads call it.
__device__ static inline struct lot lot_best(struct lot l, struct lot *part)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warps = (int)blockDim.x / CUDA_WARP;

    for (int step = CUDA_WARP / 2; step > 0; step /= 2) {
        struct lot o = { __shfl_xor_sync(FULL_MASK, l.v, step),
                         __shfl_xor_sync(FULL_MASK, l.id, step) };

        l = lot_beats(o, l) ? o : l;
    }
    if (lane == 0)
        part[threadIdx.x / CUDA_WARP] = l;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < warps; w++)
            l = lot_beats(part[w], l) ? part[w] : l;
    __syncthreads();
    return l;
}

#endif
