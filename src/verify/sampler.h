/* sampler - a request's sampling parameters, checked. */
#ifndef TANDEM_VERIFY_SAMPLER_H
#define TANDEM_VERIFY_SAMPLER_H

#include "kernels/ops.h"
#include "kernels/sampling.h"

#define LOGIT_BIASES_MAX 1024

/* What is added to the logit of a token in every row of a request; -INFINITY bans the token. */
struct logit_bias {
    int32_t id;
    float add;
};

/* sampler_default - greedy, no filters, no penalties, seed 0. */
void sampler_default(struct sampler *s);

/* sampler_check - refuse what has no meaning: NaN, temperature outside 0 .. 100, top_k below 0,
 * top_p or min_p outside 0 .. 1, repetition outside 0.01 .. 100 (0: off), frequency or presence
 * outside -100 .. 100, min_tokens below 0, more logprobs or end tokens than there is room for.
 * errors   -EINVAL naming the parameter and its range */
int sampler_check(const struct sampler *s);

/* sampler_check_biases - ids of the vocabulary, each once; values -1000 .. 1000, or -INFINITY.
 * errors   -EINVAL naming the id or the number */
int sampler_check_biases(const struct logit_bias *b, int n, int vocab);

/* sampler_greedy - whether a choice is the largest logit. */
static inline int sampler_greedy(const struct sampler *s)
{
    return !sampler_draws(s);
}

#endif
