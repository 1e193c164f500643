/* sampling - what a request's sampler asks for, and what it does to one logit; one source for C and
 * CUDA, so that no backend and no rank can differ in a bit. */
#ifndef TANDEM_KERNELS_SAMPLING_H
#define TANDEM_KERNELS_SAMPLING_H

#include "kernels/ops.h"
#include "src/base/rng.h"

/* mass_chunks - of so many ids. */
RNG_FN int mass_chunks(int ids)
{
    return (ids + MASS_CHUNK - 1) / MASS_CHUNK;
}

RNG_FN double sampler_heat(const struct sampler *s)
{
    return s->temperature < 1e-6 ? 1e-6 : s->temperature;
}

RNG_FN int sampler_draws(const struct sampler *s)
{
    return s->temperature > 0;
}

RNG_FN int sampler_has_top_p(const struct sampler *s)
{
    return s->top_p > 0 && s->top_p < 1;
}

/* sampler_is_plain - a draw from the whole vocabulary: no filter is on. */
RNG_FN int sampler_is_plain(const struct sampler *s)
{
    return sampler_draws(s) && s->top_k <= 0 && !sampler_has_top_p(s) && !(s->min_p > 0);
}

/* sampler_weighs - whether a choice needs the mass of the whole vocabulary. */
RNG_FN int sampler_weighs(const struct sampler *s)
{
    return sampler_draws(s) && s->top_k <= 0 && sampler_has_top_p(s);
}

RNG_FN int sampler_repeats(const struct sampler *s)
{
    return s->repetition > 0 && s->repetition != 1;
}

/* sampler_counts - whether tokens of the history weigh on a choice. */
RNG_FN int sampler_counts(const struct sampler *s)
{
    return sampler_repeats(s) || s->frequency != 0 || s->presence != 0;
}

/* sampler_edits - whether a row is edited before it is sampled from. */
RNG_FN int sampler_edits(const struct sampler *s)
{
    return sampler_counts(s) || s->biases > 0 || (s->min_tokens > 0 && s->ends > 0);
}

/* sampler_bans - whether `id` may not stand at position `pos` yet, because it would end the
 * reply. */
RNG_FN int sampler_bans(const struct sampler *s, int32_t pos, int32_t id)
{
    if (pos - s->prompt >= s->min_tokens)
        return 0;
    for (int i = 0; i < s->ends; i++)
        if (s->end[i] == id)
            return 1;
    return 0;
}

/* sampler_edit - a logit with its bias, then the penalties for how often its token stood before:
 *   bias; repetition for tokens of prompt and output; frequency and presence for those of the
 *   output
 * in double, rounded once. count as the op count makes it. */
RNG_FN float sampler_edit(const struct sampler *s, float z, float bias, uint32_t count)
{
    uint32_t said = count & ~COUNT_PROMPT;
    double v = z;

    if (bias == 0 && count == 0)
        return z;
    v = v + (double)bias;
    if (count && sampler_repeats(s))
        v = v > 0 ? v / s->repetition : det_mul(v, s->repetition);
    if (said) {
        v = v - det_mul(s->frequency, (double)said);
        v = v - s->presence;
    }
    return (float)v;
}

#endif
