/* order.c owns selection by counting digits of order words: linear, exact, no copies. */
#include "kernels/ref/order.h"

#include <string.h>

#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)

struct order_cut order_cut(const uint32_t *word, int n, int k)
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

        for (int i = 0; i < n; i++)
            count[word[i] >> shift[d] & mask[d]] += (word[i] & known) == prefix;
        while (count[digit] < left)
            left -= count[digit--];
        prefix |= digit << shift[d];
        known |= mask[d] << shift[d];
    }
    return (struct order_cut){ .word = prefix, .ties = left };
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
    return pair;
}
