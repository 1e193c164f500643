/* fuzz_rows - rows of lookup tables of any bytes: every value is a number that its codes allow.
 *
 * Input: a format, then head biases and rows.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats/exl3.h"
#include "kernels/formats/values.h"

/* A row of exactly its size, so that a read behind it is seen. */
static void ngram(const uint8_t *data, int bits)
{
    size_t row_bytes = 2 * (size_t)ngram_row_words(bits);
    uint16_t *row = malloc(row_bytes), bias[NGRAM_COLS];
    float v[NGRAM_COLS], scale;

    memcpy(row, data, row_bytes);
    memcpy(bias, data + row_bytes, sizeof(bias));
    ngram_row(row, bits, bias, v);
    scale = f32_from_f16(row[0]);
    for (int i = 0; i < NGRAM_COLS; i++) {
        float b = f32_from_f16(bias[i]);

        if (isfinite(scale) && isfinite(b) &&
            !(fabsf(v[i] - b) <= 3.5f * fabsf(scale) + 1e-3f * fabsf(b)))
            abort();
    }
    free(row);
}

static void fp8(const uint8_t *data)
{
    uint8_t *code = malloc(256), *scale = malloc(8);
    float v[256];

    memcpy(code, data, 256);
    memcpy(scale, data + 256, 8);
    fp8_row(code, scale, 256, v);
    for (int i = 0; i < 256; i++)
        if (scale[i / 32] < 240 && (code[i] & 0x7f) != 0x7f &&
            !(fabsf(v[i]) <= 448 * ldexpf(1, scale[i / 32] - 127)))
            abort();
    free(code);
    free(scale);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t input[1 + 2 * (1 + NGRAM_COLS * 6 / 16) + 2 * NGRAM_COLS + 256] = { 0 };

    memcpy(input, data, bytes < sizeof(input) ? bytes : sizeof(input));
    if (input[0] % 4 == 3)
        fp8(input + 1);
    else
        ngram(input + 1, 4 + input[0] % 4);
    return 0;
}
