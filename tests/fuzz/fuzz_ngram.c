/* fuzz_ngram - rows of n-gram tables of any bytes: every value is its own few symbols' doing.
 *
 * Input: bits a value, then a row, zeros where it runs out.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats/exl3.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint16_t bias[NGRAM_COLS] = { 0 };
    int bits = bytes ? 4 + data[0] % 3 : 4, words = ngram_row_words(bits), flip;
    uint16_t *row = calloc((size_t)words, sizeof(*row));
    float v[NGRAM_COLS], w[NGRAM_COLS];
    float scale;

    if (!row)
        abort();
    if (bytes > 1)
        memcpy(row, data + 1, bytes - 1 < 2 * (size_t)words ? bytes - 1 : 2 * (size_t)words);
    scale = f32_from_f16(row[0]);
    ngram_row(row, bits, bias, v);
    for (int i = 0; isfinite(scale) && i < NGRAM_COLS; i++)
        if (!(fabsf(v[i]) <= 4 * fabsf(scale)))
            abort();
    /* a symbol reaches the values whose 16 bits of state it is part of, and no others */
    flip = bytes ? data[bytes - 1] % NGRAM_COLS : 0;
    row[1 + flip * bits / 16] ^= (uint16_t)(1u << flip * bits % 16);
    ngram_row(row, bits, bias, w);
    for (int i = 0; i < NGRAM_COLS; i++) {
        int behind = (i - flip + NGRAM_COLS) % NGRAM_COLS;

        if (behind * bits >= 16 && f32_bits(v[i]) != f32_bits(w[i]))
            abort();
    }
    free(row);
    return 0;
}
