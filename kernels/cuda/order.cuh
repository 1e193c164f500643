// order - exact top-k selection and sorting inside a block. A key is 64 bits: the value's order
// word, complemented, above the id. Ascending keys are larger values first, then lower ids; no two
// keys are equal, so results do not depend on the order in which threads arrive.
#ifndef TANDEM_KERNELS_CUDA_ORDER_CUH
#define TANDEM_KERNELS_CUDA_ORDER_CUH

#include "kernels/cuda/device.cuh"

#define KEY_NONE UINT64_MAX // sorts after every key

// An unsigned word that orders like the float; -0 and +0 have the same one, a NaN is below
// everything.
__device__ static inline uint32_t order_word(float x)
{
    uint32_t u = f32_bits(x + 0.0f); // -0 + 0 is +0

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0;
    return u >> 31 ? ~u : u | 0x80000000u;
}

__device__ static inline float order_value(uint32_t word)
{
    return f32_from_bits(word >> 31 ? word & 0x7fffffffu : ~word);
}

__device__ static inline uint64_t order_key(uint32_t word, uint32_t id)
{
    return (uint64_t)~word << 32 | id;
}

__device__ static inline uint32_t key_word(uint64_t key)
{
    return ~(uint32_t)(key >> 32);
}

__device__ static inline int key_id(uint64_t key)
{
    return (int)(uint32_t)key;
}

#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)

struct order_count {
    int bin[DIGITS], warp[CUDA_WARP];
    int digit, left,
        here; // the digit found, how many of its keys are still wanted, how many it has
};

// The first digit at which the running count reaches `left`; load(d) is the count of digit d. Each
// thread scans a run of digits. All threads of the block call it, a power of two of them.
template <typename L>
__device__ static inline void digit_find(int left, L load, struct order_count *n)
{
    int run = DIGITS / (int)blockDim.x, t = (int)threadIdx.x, lane = t % CUDA_WARP, sum = 0, upto;

    for (int i = 0; i < run; i++)
        sum += load(t * run + i);
    upto = sum;
    for (int step = 1; step < CUDA_WARP; step *= 2) {
        int o = __shfl_up_sync(FULL_MASK, upto, step);

        upto += lane >= step ? o : 0;
    }
    if (lane == CUDA_WARP - 1)
        n->warp[t / CUDA_WARP] = upto;
    __syncthreads();
    for (int w = 0; w < t / CUDA_WARP; w++)
        upto += n->warp[w];
    if (upto - sum < left && left <= upto) {
        int d = t * run, here = load(d);

        for (left -= upto - sum; here < left; here = load(d)) {
            left -= here;
            d++;
        }
        n->digit = d;
        n->left = left;
        n->here = here;
    }
    __syncthreads();
}

// key_cut - radix select: a bound that exactly k of the keys load(0) .. load(n - 1) do not exceed;
// 1 <= k <= keys that are not KEY_NONE. Counts digit by digit from the top and stops where all keys
// with the digit are wanted. All threads of the block call it and get the same result.
template <typename L>
__device__ static uint64_t key_cut(int n, int k, L load, struct order_count *count)
{
    const int shift[] = { 53, 42, 32, 21, 10, 0 }, bits[] = { 11, 11, 10, 11, 11, 10 };
    uint64_t prefix = 0, known = 0;

    for (int d = 0; d < 6; d++) {
        uint64_t mask = ((uint64_t)1 << bits[d]) - 1;

        for (int i = (int)threadIdx.x; i < DIGITS; i += (int)blockDim.x)
            count->bin[i] = 0;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
            uint64_t key = load(i);

            if ((key & known) == prefix)
                atomicAdd(&count->bin[key >> shift[d] & mask], 1);
        }
        __syncthreads();
        digit_find(
            k, [=](int d) { return count->bin[d]; }, count);
        prefix |= (uint64_t)count->digit << shift[d];
        known |= mask << shift[d];
        k = count->left;
        if (count->here == k)
            break;
        __syncthreads(); // count is read before the next digit clears it
    }
    __syncthreads();
    return prefix | ~known;
}

// key_sort - bitonic sort, ascending, in place; n is a power of two. All threads of the block call
// it.
__device__ static inline void key_sort(uint64_t *key, int n)
{
    for (int size = 2; size <= n; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = (int)threadIdx.x; i < n / 2; i += (int)blockDim.x) {
                int lo = i / step * 2 * step + i % step, hi = lo + step;
                uint64_t a = key[lo], b = key[hi];

                if ((a > b) == ((lo & size) == 0)) {
                    key[lo] = b;
                    key[hi] = a;
                }
            }
        }
    __syncthreads();
}

__host__ __device__ static inline int pow2_at_least(int n)
{
    int p = 1;

    while (p < n)
        p *= 2;
    return p;
}

// block_place - exclusive prefix count of `take` over the threads of the block; *total is the count
// of all. part is shared, [blockDim / 32]. All threads of the block call it.
__device__ static inline int block_place(bool take, int *part, int *total)
{
    unsigned set = __ballot_sync(FULL_MASK, take);
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP, before = 0,
        sum = 0;

    if (lane == 0)
        part[warp] = __popc(set);
    __syncthreads();
    for (int w = 0; w < (int)blockDim.x / CUDA_WARP; w++) {
        before += w < warp ? part[w] : 0;
        sum += part[w];
    }
    __syncthreads();
    *total = sum;
    return before + __popc(set & ((1u << lane) - 1));
}

#endif
