/* order - exact selection by value: a word for each float that orders like it, and the cut of the k
 * largest.
 *
 * -0 and +0 have the same word. A NaN orders below everything, -inf included: whoever must fail on
 * a NaN looks for it first.
 */
#ifndef TANDEM_KERNELS_REF_ORDER_H
#define TANDEM_KERNELS_REF_ORDER_H

#include <stdint.h>

#include "kernels/numfmt.h"

static inline uint32_t order_word(float x)
{
    uint32_t u = f32_bits(x + 0.0f); /* -0 + 0 is +0 */

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0;
    return u >> 31 ? ~u : u | 0x80000000u;
}

static inline float order_value(uint32_t word)
{
    return f32_from_bits(word >> 31 ? word & 0x7fffffffu : ~word);
}

struct order_cut {
    uint32_t word; /* the k-th largest word */
    int ties;      /* how many words equal to it belong to the k largest: the first ones */
};

/* order_cut - of n words, of the words of n pairs, or of n floats; k >= n takes all of them. */
struct order_cut order_cut(const uint32_t *word, int n, int k);
struct order_cut order_cut_pairs(const uint64_t *pair, int n, int k);
struct order_cut order_cut_f32(const float *x, int n, int k);

/* order_sort - n pairs word << 32 | id by larger word, then lower id.
 * note     tmp holds n pairs; the sorted pairs are returned in one of the two arrays. It is fast
 *          where equal words come by ascending id */
uint64_t *order_sort(uint64_t *pair, uint64_t *tmp, int n);

#endif
