// experts - what both products of experts share: which picks count, and in which order.
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_CUH
#define TANDEM_KERNELS_CUDA_EXPERTS_CUH

#include "kernels/cuda/device.cuh"

#define EXPERTS_MAX 1024
#define CHOICES_MAX 64 // experts of a row

// Weights that are no operands of matrix instructions; moe.cu multiplies them.
#define EXPERT_KINDS_LONG (1u << DTYPE_F32 | 1u << DTYPE_F16)

__device__ static inline bool expert_type_ok(const struct moe_args &a, const struct mat &w)
{
    return (mat_kind(&w) & a.kinds) &&
           (w.dtype < DTYPE_COUNT || w.q.layout == LAYOUT_DEVICE || w.rows == 0 || w.cols == 0);
}

// An expert of this rank, of types the call was queued for.
__device__ static inline bool expert_is_here(const struct moe_args &a, int e)
{
    return e >= 0 && e < a.experts && expert_type_ok(a, a.w1[e]) && expert_type_ok(a, a.w3[e]) &&
           expert_type_ok(a, a.w2[e]);
}

// A place of the order; pick -1 behind the last. `left` counts the members of the expert that a pass has from this one on.
struct member {
    int32_t pick, expert, left, unused;
};
static_assert(sizeof(struct member) == 16, "one load");

// expert_sort - queue the sorting of picks by expert, of which a row has each once. order [picks]; place [picks]: where each
// pick is in it, -1 if its expert is not here; heads [passes][lots + 1], a pass being `places` of the order: their
// number, and the places where lots of up to `lot` members of an expert begin, in any order; lots end where `grain`
// places do.
void expert_sort(struct queue *q, const struct moe_args *a, int picks, int places, int lot,
                 int lots, int grain, struct member *order, int32_t *place, int32_t *heads);

#endif
