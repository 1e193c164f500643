// gang_loose - gangs whose blocks are not a cluster and synchronise through global memory.
#ifndef TANDEM_KERNELS_CUDA_GANG_LOOSE_CUH
#define TANDEM_KERNELS_CUDA_GANG_LOOSE_CUH

#include "kernels/cuda/gang_keys.cuh"

// In global memory, zero between launches: how many blocks have begun; for each gang, a cache
// line apart, how many blocks have stored what others read; and its largest logits, [GANG][TALL],
// each the lower half of a word whose upper half says that it is valid.
struct gang_loose {
    uint32_t *begun, *stored;
    uint64_t *most;
};

#define LOOSE_NAP 20   // ns between two reads of a count
#define LOOSE_LINE 32  // words from one gang's count to the next
#define LOOSE_GANGS 64 // gangs of a launch, at most
#define LOOSE_THERE ((uint64_t)1 << 32)

// Which block this is: blocks get their places in the order in which they begin. So at most one
// gang is incomplete at any time, and the next blocks to begin complete it; those of all other
// gangs need nothing more, end, and make room. Nobody waits for ever, whatever order blocks begin
// in and whatever else runs, as long as that ends by itself; that all blocks are resident at once
// is only for speed. Several such launches could block each other only if the waiting blocks of
// their incomplete gangs, at most GANG - 1 of each, filled the device: 38 launches on one with
// 264 places, 19 on one with 132.
__device__ static inline uint32_t loose_place(const struct gang_loose &l, uint32_t *place)
{
    if (threadIdx.x == 0)
        *place = counter_turn(l.begun, gridDim.x * gridDim.y * gridDim.z - 1);
    __syncthreads();
    return *place;
}

// The largest logit of head h in the gang; `most` is that of this block. A warp.
__device__ static inline float loose_most(uint64_t *at, int rank, int h, float most)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    uint64_t word;

    if (lane == 0)
        whole_put(at + rank * TALL + h, LOOSE_THERE | f32_bits(most));
    if (lane < GANG) {
        float other;

        do
            word = whole_read(at + lane * TALL + h);
        while (!(word & LOOSE_THERE));
        other = f32_from_bits((uint32_t)word);
        most = other > most ? other : most;
    }
    return warp_max(most);
}

// A barrier of the gang: stores of all its blocks are visible to all; leaves its words zero again.
__device__ static inline void loose_meet(uint32_t *stored, uint64_t *most)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        counter_turn(stored, 2 * GANG - 1);
        while (counter_read(stored) < GANG)
            __nanosleep(LOOSE_NAP);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        counter_turn(stored, 2 * GANG - 1);
    if (threadIdx.x < TALL)
        whole_put(most + threadIdx.x, 0);
}

#endif
