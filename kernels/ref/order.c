/* order.c owns selection by counting digits of order words: linear, exact, no copies. */
#include "kernels/ref/order.h"

#include <stddef.h>

#include "kernels/ref/simd.h"

#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)

/* Two of the three lists are NULL. */
static ALWAYS_INLINE struct order_cut cut(const uint32_t *word, const uint64_t *pair,
                                          const float *x, int n, int k)
{
    static const int shift[] = { 21, 10, 0 };
    static const uint32_t mask[] = { DIGITS - 1, DIGITS - 1, (1 << 10) - 1 };
    uint32_t prefix = 0, known = 0;
    int left = k;

    if (k >= n || k <= 0)
        return (struct order_cut){ .word = k > 0 ? 0 : UINT32_MAX, .ties = k > 0 ? n : 0 };
    for (int d = 0; d < 3; d++) {
        int count[DIGITS] = { 0 };
        uint32_t digit = mask[d];

        for (int i = 0; i < n; i++) {
            uint32_t w = word ? word[i] : pair ? (uint32_t)(pair[i] >> 32) : order_word(x[i]);

            count[w >> shift[d] & mask[d]] += (w & known) == prefix;
        }
        while (count[digit] < left)
            left -= count[digit--];
        prefix |= digit << shift[d];
        known |= mask[d] << shift[d];
    }
    return (struct order_cut){ .word = prefix, .ties = left };
}

struct order_cut order_cut(const uint32_t *word, int n, int k)
{
    return cut(word, NULL, NULL, n, k);
}

struct order_cut order_cut_pairs(const uint64_t *pair, int n, int k)
{
    return cut(NULL, pair, NULL, n, k);
}

struct order_cut order_cut_f32(const float *x, int n, int k)
{
    return cut(NULL, NULL, x, n, k);
}

/* Runs of equal words by id; they are short, and mostly in order. */
static void sort_ties(uint64_t *pair, int n)
{
    for (int i = 1; i < n; i++) {
        uint64_t p = pair[i];
        int at = i;

        for (; at > 0 && pair[at - 1] >> 32 == p >> 32 && pair[at - 1] > p; at--)
            pair[at] = pair[at - 1];
        pair[at] = p;
    }
}

uint64_t *order_sort(uint64_t *pair, uint64_t *tmp, int n)
{
    static const int shift[] = { 32, 42, 53 };
    static const uint32_t mask[] = { (1 << 10) - 1, DIGITS - 1, DIGITS - 1 };

    for (int d = 0; d < 3; d++) {
        int start[DIGITS] = { 0 }, at = 0;
        uint64_t *swap = pair;

        for (int i = 0; i < n; i++)
            start[pair[i] >> shift[d] & mask[d]]++;
        for (int b = (int)mask[d]; b >= 0; b--) {
            int here = start[b];

            start[b] = at;
            at += here;
        }
        for (int i = 0; i < n; i++)
            tmp[start[pair[i] >> shift[d] & mask[d]]++] = pair[i];
        pair = tmp;
        tmp = swap;
    }
    sort_ties(pair, n);
    return pair;
}
