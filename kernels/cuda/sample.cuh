// sample - the sampler's filters (top-p, min-p) and the keyed Gumbel-max draw, over keys of
// order.cuh in ascending order; the bits are those of kernels/ref/sample.c. Everything computed
// from a logit is double, with the exp and log of src/base/rng.h. heat: the temperature.
#ifndef TANDEM_KERNELS_CUDA_SAMPLE_CUH
#define TANDEM_KERNELS_CUDA_SAMPLE_CUH

#include "kernels/cuda/order.cuh"
#include "kernels/sampling.h"

__device__ static inline double scaled(uint64_t key, double heat)
{
    return (double)order_value(key_word(key)) / heat;
}

// A walk along the sorted keys, largest logit first; in shared memory, advanced by thread 0.
struct descent {
    double sum;
    double near; // the least distance of a partial sum from top_p
    int left;    // keys taken
    int done;    // top_p has been reached
};

__device__ static inline void descent_begin(struct descent *d)
{
    d->sum = 0;
    d->near = INFINITY;
    d->left = d->done = 0;
}

// descent_mass - add e^(x - most) of the next n sorted keys to d->sum, in order. term is shared,
// [blockDim]. All threads of the block call it.
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

// descent_reach - take sorted keys until their probabilities, e^(x - most) / whole, add up to
// top_p; then d->done is set. All threads of the block call it.
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
                d->near = fmin(d->near, fabs(d->sum - top_p));
                d->left++;
                d->done = !(d->sum < top_p);
            }
        __syncthreads();
    }
}

// chunk_weigh - the largest of n <= MASS_CHUNK logits load(0) .. load(n - 1) and their sum of exp
// relative to it, by a warp; lane 0 has the result. There are 64 chains, two a lane: chain l adds
// ids l, l + 64, ... in order, then chains are halved as a tree.
template <typename L>
__device__ static inline struct chunk_mass chunk_weigh(int n, double heat, L load)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    struct chunk_mass c = { 0, -INFINITY, -INFINITY };
    double sum[2] = { 0, 0 }, top;

    for (int i = lane; i < n; i += CUDA_WARP) {
        float z = load(i);

        c.peak = z > c.peak ? z : c.peak;
    }
    c.peak = warp_max(c.peak);
    if (c.peak == -INFINITY)
        return c;
    top = (double)c.peak / heat;
    for (int half = 0; half < 2; half++)
        for (int i = lane + half * CUDA_WARP; i < n; i += 2 * CUDA_WARP)
            sum[half] += det_exp((double)load(i) / heat - top);
    sum[0] += sum[1];
    for (int step = CUDA_WARP / 2; step > 0; step /= 2)
        sum[0] += __shfl_down_sync(FULL_MASK, sum[0], step);
    c.sum = sum[0];
    return c;
}

// chunk_share - a chunk's sum of exp, rescaled to logit `most`.
__device__ static inline double chunk_share(const struct chunk_mass &c, float most, double heat)
{
    return c.peak == -INFINITY ? 0 : c.sum * det_exp((double)c.peak / heat - (double)most / heat);
}

// A candidate of a Gumbel-max draw, v = x + g: the largest wins, ties go to the lower id.
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

// lot_best - the winner of one lot of each thread; thread 0 has the result. part is shared,
// [blockDim / 32]. All threads of the block call it.
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

// offer_part - where rank i's candidates or masses begin, from those of rank 0.
template <typename T>
__device__ static inline const T *offer_part(const T *of, int rank, size_t stride)
{
    return (const T *)((const char *)of + (size_t)rank * stride);
}

// offered_best - the id of the best of the ranks' first candidates, -1: none, or a NaN. a.k and
// a.stride are set.
__device__ static inline int32_t offered_best(const struct choose_args &a, int row)
{
    struct candidate top = { 0, -1 };

    for (int i = 0; i < a.ranks; i++) {
        struct candidate c = offer_part(a.best, i, a.stride)[(size_t)row * (size_t)a.k];

        if (c.z != c.z)
            return -1;
        if (c.id >= 0 && (top.id < 0 || c.z > top.z || (c.z == top.z && c.id < top.id)))
            top = c;
    }
    return top.id;
}

// choose_offered - cuda_choose from the ranks' candidates instead of whole rows; offer.cu.
void choose_offered(struct queue *q, const struct choose_args *a, int vocab);

#endif
