// gang_loose - gangs whose blocks are no cluster and meet in memory; a part of gang.cu.
#ifndef TANDEM_KERNELS_CUDA_GANG_LOOSE_CUH
#define TANDEM_KERNELS_CUDA_GANG_LOOSE_CUH

#include "kernels/cuda/gang_keys.cuh"

// Of gangs that are no clusters, in memory and zero between launches: which block of all is the next to begin; of each
// gang the largest logits, [GANG][TALL], each below a half that says that it is there; and how many have stored their sums,
// a line each.
struct gang_loose {
    uint32_t *begun, *stored;
    uint64_t *most;
};

#define LOOSE_NAP 20   // ns between two looks at what others count
#define LOOSE_LINE 32  // words from one gang's count to the next
#define LOOSE_GANGS 64 // of a launch, at most
#define LOOSE_THERE ((uint64_t)1 << 32)

// Which block this is: places are dealt out as blocks begin. So of one gang at most not all blocks have begun, and they are
// the next ones to: those of every other gang need nothing more, end, and leave room. Nobody waits for ever, in whatever
// order blocks come in and whatever else runs that ends without them; that all of them find room at once is only for speed.
// Other such launches end without them too unless so many have begun in part that the blocks that wait, GANG - 1 of each,
// take all room of the device: 38 on one of 264 places.
__device__ static inline uint32_t loose_place(const struct gang_loose &l, uint32_t *place)
{
    if (threadIdx.x == 0)
        *place = counter_number(l.begun, gridDim.x * gridDim.y * gridDim.z - 1);
    __syncthreads();
    return *place;
}

// The largest of all blocks' logits of head h, by a warp whose block has `most`.
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

// What all blocks of the gang stored is seen by all of them; then nothing of the gang is left that is not zero.
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
