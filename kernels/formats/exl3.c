/* exl3.c owns the arithmetic of EXL3 as the format defines it, one value at a time. */
#include "kernels/formats/exl3.h"

#include <string.h>

static uint32_t tile_word(const uint16_t *tile, int i)
{
    return tile[2 * i] | (uint32_t)tile[2 * i + 1] << 16;
}

void exl3_states(const uint16_t *tile, int bits2, uint16_t state[256])
{
    int bits = 128 * bits2, words = bits / 32;

    for (int p = 0; p < 256; p++) {
        int s = (exl3_end(bits2, p) + bits - 16) % bits, i = s >> 5;
        uint64_t pair = (uint64_t)tile_word(tile, i) << 32 | tile_word(tile, (i + 1) % words);

        state[p] = (uint16_t)(pair >> (48 - (s & 31)));
    }
}

void exl3_tile_values(const uint16_t *tile, int bits2, enum codebook c, float out[256])
{
    uint16_t state[256];

    exl3_states(tile, bits2, state);
    for (int p = 0; p < 256; p++)
        out[exl3_tile_row(p) * EXL3_TILE + exl3_tile_col(p)] =
            f32_from_f16(exl3_value(c, state[p]));
}

void exl3_signs(const uint16_t *packed, int n, uint16_t *f16)
{
    for (int i = 0; i < n; i++)
        f16[i] = packed[i / 16] >> (i % 16) & 1 ? 0xbc00 : 0x3c00;
}

void exl3_butterflies(float v[EXL3_BLOCK])
{
    for (int stride = 1; stride < EXL3_BLOCK; stride *= 2)
        for (int i = 0; i < EXL3_BLOCK; i++)
            if ((i & stride) == 0) {
                float a = v[i], b = v[i + stride];

                v[i] = a + b;
                v[i + stride] = a - b;
            }
}

static float f16_round(float x)
{
    return f32_from_f16(f16_from_f32(x));
}

void exl3_rotate_in(const float *x, int n, const uint16_t suh[EXL3_BLOCK], enum exl3_order order,
                    float out[EXL3_BLOCK])
{
    for (int i = 0; i < EXL3_BLOCK; i++) {
        float v = i < n ? x[i] : 0, by = f32_from_f16(suh[i]);

        out[i] = order == EXL3_ORDER_P ? v * by : f16_round(f16_round(v) * by);
    }
    exl3_butterflies(out);
    for (int i = 0; i < EXL3_BLOCK; i++)
        out[i] = f16_round(out[i] * EXL3_SCALE);
}

void exl3_rotate_out(float z[EXL3_BLOCK], const uint16_t svh[EXL3_BLOCK], const uint16_t *bias)
{
    exl3_butterflies(z);
    for (int i = 0; i < EXL3_BLOCK; i++) {
        z[i] = z[i] * EXL3_SCALE * f32_from_f16(svh[i]);
        if (bias)
            z[i] += f32_from_f16(bias[i]);
    }
}

/* The first bit of every symbol is its lowest one. */
static inline uint32_t ngram_symbol(const uint16_t *ring, int bits, int i)
{
    unsigned at = (unsigned)(i * bits);

    return (ring[at / 16] | (uint32_t)ring[at / 16 + 1] << 16) >> (at % 16) & ((1u << bits) - 1);
}

/* f32_from_f16 without a branch, so that a loop of it becomes vectors. */
static inline float f16_widen(uint32_t h)
{
    uint32_t a = h & 0x7fff, tiny = -(uint32_t)(a < 0x400), huge = -(uint32_t)(a >= 0x7c00);
    uint32_t small = f32_bits((float)(int32_t)a * 0x1p-24f), normal = (a << 13) + (112u << 23);
    uint32_t none = a << 13 | 0x7f800000u | (-(uint32_t)(a > 0x7c00) & 0x400000u);

    return f32_from_bits((h & 0x8000) << 16 | (small & tiny) | (normal & ~tiny & ~huge) |
                         (none & huge));
}

void ngram_row(const uint16_t *row, int bits, const uint16_t *bias, float out[NGRAM_COLS])
{
    uint16_t ring[NGRAM_COLS * NGRAM_BITS_MAX / 16 + 1] = { 0 };
    float scale = f32_from_f16(row[0]);
    uint32_t state = 0, x[NGRAM_COLS];

    memcpy(ring, row + 1, NGRAM_COLS * (size_t)bits / 8);

    /* Symbol i is the lowest of state i; before the first one come the last ones. */
    for (int i = NGRAM_COLS - 16 / bits - 1; i < NGRAM_COLS; i++)
        state = state << bits | ngram_symbol(ring, bits, i);
    for (int i = 0; i < NGRAM_COLS; i++) {
        state = (state << bits | ngram_symbol(ring, bits, i)) & 0xffff;
        x[i] = state;
    }
    for (int i = 0; i < NGRAM_COLS; i++) {
        uint32_t v = x[i] * 0x83dcd12du;

        /* exl3_value in a form that vectors take: its numbers are neither zero nor subnormal in
         * f16 */
        v = (v & 0xff) + (v >> 8 & 0xff) + (v >> 16 & 0xff) + (v >> 24);
        v = f32_bits((float)((int32_t)v * 1774 - 905216) * 0x1p-18f);
        v = (v + 0xfff + (v >> 13 & 1)) & ~0x1fffu;
        out[i] = f32_from_bits(v) * scale + f16_widen(bias[i]);
    }
}
