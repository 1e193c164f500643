/* exl3 - EXL3 tiles bit for bit: trellis states, codebooks, tile order, rotations, n-gram rows.
 *
 * A tile is 256 weights in ring order p and 128 bits2 bits arranged as a ring. In a checkpoint's
 * uint16 words [8 bits2], read two by two as little-endian uint32, ring bit 0 is bit 31 of the
 * first uint32. Weight p is a function of the 16 ring bits that end before bit exl3_end(p), its
 * state; any bits are a valid tile. bits2 is twice the bits of a weight; odd ones are the half
 * widths.
 *
 * source   exllamav3 1.4.1; docs/DECODE.md "EXL3, FP8, MXFP4, NVFP4"
 */
#ifndef TANDEM_KERNELS_FORMATS_EXL3_H
#define TANDEM_KERNELS_FORMATS_EXL3_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/mat.h"
#include "kernels/numfmt.h"

#define EXL3_TILE 16              /* inputs and outputs of a tile */
#define EXL3_WORDS_MAX 128        /* uint16 words of the widest tile */
#define EXL3_SCALE 0x1.6a09e6p-4f /* 1 / sqrt(128) as the format rounds it, bits 0x3DB504F3 */

/* exl3_value - the f16 number that a codebook has for a state. */
NUM_FN uint16_t exl3_value(enum codebook c, uint32_t state)
{
    uint32_t x;

    if (c == CODEBOOK_MUL1) {
        x = state * 0x83dcd12du;
        x = (x & 0xff) + (x >> 8 & 0xff) + (x >> 16 & 0xff) + (x >> 24);
        return f16_from_f32((float)((int32_t)x * 1774 - 905216) * 0x1p-18f);
    }
    x = c == CODEBOOK_MCG ? state * 0xcbac1fedu : state * 89226354u + 64248484u;
    x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    return f16_from_f32(f32_from_f16((uint16_t)x) + f32_from_f16((uint16_t)(x >> 16)));
}

/* exl3_end - the ring bit behind the last one of weight p's state. Half widths: even p take the
 * smaller step. */
NUM_FN int exl3_end(int bits2, int p)
{
    return (p + 1) * bits2 / 2;
}

/* exl3_tile_row, exl3_tile_col - input and output, inside the tile, of ring position p: lane p / 8
 * of 32 holds its 8 values as the operand registers of a 16 x 8 x 16 matrix instruction. */
NUM_FN int exl3_tile_row(int p)
{
    return 2 * (p >> 3 & 3) + (p & 1) + 8 * (p >> 1 & 1);
}

NUM_FN int exl3_tile_col(int p)
{
    return (p >> 5) + 8 * (p >> 2 & 1);
}

/* exl3_tile_pos - the other way round: ring position of an input and an output of the tile. */
NUM_FN int exl3_tile_pos(int row, int col)
{
    return 32 * (col & 7) + 8 * (row >> 1 & 3) + 4 * (col >> 3) + 2 * (row >> 3) + (row & 1);
}

/* exl3_width_ok - shape[2] of a trellis, 8 bits2, is one of the widths that exist with this
 * codebook. */
static inline int exl3_width_ok(enum codebook c, int64_t words)
{
    int64_t bits2 = words / 8;

    return words % 8 == 0 && bits2 >= 2 && bits2 <= 16 &&
           (bits2 % 2 == 0 || (c == CODEBOOK_MUL1 && bits2 >= 3 && bits2 <= 7));
}

/* exl3_states - the 256 states of a tile, ring order. tile [8 bits2] as in a checkpoint. */
void exl3_states(const uint16_t *tile, int bits2, uint16_t state[256]);

/* exl3_tile_values - value of input k and output n of a tile at out[k * EXL3_TILE + n]. */
void exl3_tile_values(const uint16_t *tile, int bits2, enum codebook c, float out[256]);

/* exl3_signs - n / 16 words of packed signs, lowest bit first, to n f16 numbers 1 and -1. */
void exl3_signs(const uint16_t *packed, int n, uint16_t *f16);

/* exl3_butterflies - the 7 stages of the Hadamard transform of 128 values, strides 1, 2, .. 64,
 * without scale. */
void exl3_butterflies(float v[EXL3_BLOCK]);

/* Where the product x * suh is rounded: P nowhere (ours, in every op), R to f16, x before it too
 * (exllamav3). */
enum exl3_order { EXL3_ORDER_P, EXL3_ORDER_R };

/* exl3_rotate_in - x_hat of one block of inputs: (x * suh) rotated and rounded to f16, kept as f32.
 * note     inputs from n on do not exist: they are zeros */
void exl3_rotate_in(const float *x, int n, const uint16_t suh[EXL3_BLOCK], enum exl3_order order,
                    float out[EXL3_BLOCK]);

/* exl3_rotate_out - z of one block of outputs, in place: rotated, times svh, plus bias unless it is
 * NULL. */
void exl3_rotate_out(float z[EXL3_BLOCK], const uint16_t svh[EXL3_BLOCK], const uint16_t *bias);

#define NGRAM_COLS 160
#define NGRAM_BITS_MAX 6

/* ngram_row_words - uint16 words of a row of an n-gram table with this many bits a value: 4, 5, 6.
 */
static inline int ngram_row_words(int bits)
{
    return 1 + NGRAM_COLS * bits / 16;
}

/* ngram_row - decode one row: MUL1(state) * scale + bias. bias f16 [NGRAM_COLS] of the head asked
 * for.
 * note     its ring is least significant bit first, unlike a tile's */
void ngram_row(const uint16_t *row, int bits, const uint16_t *bias, float out[NGRAM_COLS]);

#endif
