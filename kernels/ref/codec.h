/* codec - how a row of a state is stored, and read back. */
#ifndef TANDEM_KERNELS_REF_CODEC_H
#define TANDEM_KERNELS_REF_CODEC_H

#include "kernels/ops.h"

/* codec_block - values that share a scale; 1 for CODEC_F32. */
int codec_block(enum codec c);

/* codec_encode - cols values, a multiple of the block, to codec_bytes(c, cols) bytes.
 * note     a block with a NaN or an infinity gets a NaN as its scale: it reads back as NaN */
void codec_encode(enum codec c, const float *x, int cols, unsigned char *row);
void codec_decode(enum codec c, const unsigned char *row, int cols, float *x);

/* codec_decode_tile - tile[k * MAT_TILE + j] = value k of row j for n <= MAT_TILE rows, zeros
 * behind them; cols is a multiple of MAT_TILE and of the block, at most DECODE_COLS. */
#define DECODE_COLS 512
void codec_decode_tile(enum codec c, const unsigned char *const *row, int n, int cols, float *tile);

#endif
