/* sample - the sampler's filters and the keyed draw over tokens that are at hand, in double.
 *
 * Filters are prefixes of one order, larger logit first, then lower id; so a row is sorted at most
 * once, and not at all where only the draw or min-p is on.
 */
#ifndef TANDEM_KERNELS_REF_SAMPLE_H
#define TANDEM_KERNELS_REF_SAMPLE_H

#include <stdint.h>

#include "kernels/ops.h"
#include "kernels/ref/order.h"
#include "kernels/sampling.h"

/* Tokens of a row as pairs, order word << 32 | id, in any order. */
struct ballot {
    const struct sampler *s;
    uint64_t pos; /* that the choice will have */
    uint64_t *pair, *tmp;
    int n;
    float most;   /* the largest logit */
    double whole; /* mass of the vocabulary relative to the largest; < 0: what top-k left */
};

static inline uint64_t ballot_pair(float z, int32_t id)
{
    return (uint64_t)order_word(z) << 32 | (uint32_t)id;
}

/* ballot_first - whether pair a comes before b in the order. */
static inline int ballot_first(uint64_t a, uint64_t b)
{
    return a >> 32 != b >> 32 ? a > b : (uint32_t)a < (uint32_t)b;
}

static inline double ballot_x(const struct ballot *b, uint64_t pair)
{
    return (double)order_value((uint32_t)(pair >> 32)) / sampler_heat(b->s);
}

/* ballot_floor - of x, by min-p */
double ballot_floor(const struct ballot *b);

/* ballot_sample - all filters, then the draw: the token. Reorders the pairs. */
int32_t ballot_sample(const struct ballot *b);

/* ballot_nucleus - how many of n sorted pairs top-p leaves: those up to the one that reaches it.
 * near     if not NULL: how close any of the sums came to top-p */
int ballot_nucleus(const struct ballot *b, const uint64_t *sorted, int n, double *near);

/* ballot_draw - the token among n pairs: largest x + g that min-p leaves, ties to the lower id. */
int32_t ballot_draw(const struct ballot *b, const uint64_t *pair, int n);

/* chunk_weigh - of at most MASS_CHUNK logits */
struct chunk_mass chunk_weigh(const float *z, int n, double heat);

/* chunk_share - what a chunk adds to the mass relative to logit `most` */
double chunk_share(const struct chunk_mass *c, float most, double heat);

#endif
