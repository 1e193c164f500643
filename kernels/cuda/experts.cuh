// experts - what the kernels for experts share. A pick is one (row, expert) pair that the router
// chose, number row * k + i. Here: which picks count on this rank, and the order of picks sorted by
// expert.
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_CUH
#define TANDEM_KERNELS_CUDA_EXPERTS_CUH

#include "kernels/cuda/device.cuh"

#define EXPERTS_MAX 1024
#define CHOICES_MAX 64 // experts of a row, at most

// Weights that are multiplied without matrix instructions, in moe.cu.
#define EXPERT_KINDS_LONG (1u << DTYPE_F32 | 1u << DTYPE_F16)

__device__ static inline bool expert_type_ok(const struct moe_args &a, const struct mat &w)
{
    return (mat_kind(&w) & a.kinds) &&
           (w.dtype < DTYPE_COUNT || w.q.layout == LAYOUT_DEVICE || w.rows == 0 || w.cols == 0);
}

// Whether an expert is on this rank, with weights of the kinds that the call was queued for.
__device__ static inline bool expert_is_here(const struct moe_args &a, int e)
{
    return e >= 0 && e < a.experts && expert_type_ok(a, a.w1[e]) && expert_type_ok(a, a.w3[e]) &&
           expert_type_ok(a, a.w2[e]);
}

// A place of the order; pick is -1 past the last pick. left: places of the same expert from this
// one on, within the pass.
struct member {
    int32_t pick, expert, left, unused;
};
static_assert(sizeof(struct member) == 16, "one load");

// expert_sort - queue the sorting of picks by expert; a row has an expert at most once. A pass is
// `places` places of the order, a lot up to `lot` places of one expert in a pass, ending at a
// multiple of `grain`. order [picks]; place [picks]: where each pick is in the order, -1 if its
// expert is not here; heads [passes][lots + 1]: the number of lots, then the places where they
// begin, in any order.
void expert_sort(struct queue *q, const struct moe_args *a, int picks, int places, int lot,
                 int lots, int grain, struct member *order, int32_t *place, int32_t *heads);

#endif
