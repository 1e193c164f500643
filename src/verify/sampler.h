/* sampler - a request's sampling parameters, checked. */
#ifndef TANDEM_VERIFY_SAMPLER_H
#define TANDEM_VERIFY_SAMPLER_H

#include "kernels/ops.h"

/* sampler_default - greedy, no filters, seed 0. */
void sampler_default(struct sampler *s);

/* sampler_check - refuse what has no meaning: NaN, temperature outside 0 .. 100, top_k below 0,
 * top_p outside 0 .. 1, min_p outside 0 .. 1.
 * errors   -EINVAL naming the parameter and its range */
int sampler_check(const struct sampler *s);

/* sampler_greedy - whether a choice is the largest logit. */
static inline int sampler_greedy(const struct sampler *s)
{
    return !(s->temperature > 0);
}

/* sampler_seed_derive - the seed of reply i of a request for several. */
static inline uint64_t sampler_seed_derive(uint64_t seed, int i)
{
    return seed + (uint64_t)i * 0x9E3779B97F4A7C15u;
}

#endif
