/* repack - from a checkpoint's order of codes and scales to the order of a blob (kernels/mat.h),
 * and what a checkpoint's bytes must not contain.
 *
 * Plain matrices are not made here. m gives dtype, rows, cols and q of the share; its pointers are
 * not read.
 */
#ifndef TANDEM_KERNELS_FORMATS_REPACK_H
#define TANDEM_KERNELS_FORMATS_REPACK_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/mat.h"

/* mat_strips - strips of the codes part. */
int mat_strips(const struct mat *m);

/* mat_pack_codes - the codes of one strip, mat_strip_bytes of them, to strip.
 *
 * in       EXL3  the strip's 8 tiles, 128 bits2 bytes, of k-step i are at src + i * ld, for the
 *                share's K / 16 k-steps, K padded to 128; src may have any alignment
 *          else  output i's codes are at src + i * ld: cols bytes (FP8), cols / 2 (FP4, even k in
 *                the low nibble); outputs of them are there, the strip's others become zero codes
 */
void mat_pack_codes(const struct mat *m, const void *src, size_t ld, int outputs, void *strip);

/* mat_pack_scales - the scales of the strip's outputs, into the scales part (its begin).
 *
 * in       FP8   src is the grid's row of the block that the strip's first output is in, ld bytes a
 *          row; as many
 *                rows are read as the strip has blocks
 *          FP4   output i's scales are at src + i * ld; `outputs` of them
 */
void mat_pack_scales(const struct mat *m, int strip, const void *src, size_t ld, int outputs,
                     void *scales);

/* exl3_tile_get - a tile of a packed EXL3 strip in the checkpoint's order, 8 bits2 words. Column
 * tile 0 .. 7. */
void exl3_tile_get(const struct mat *m, const void *strip, int kstep, int column, uint16_t *tile);

/* find_bad_* - index of the first element that no valid checkpoint holds, -1 if there is none: an
 * infinity or a NaN; a NaN code; a NaN or a negative scale; 255. src may have any alignment. */
int64_t find_bad_f16(const void *src, int64_t n);
int64_t find_bad_f32(const void *src, int64_t n);
int64_t find_bad_e4m3(const void *src, int64_t n);
int64_t find_bad_e4m3_scale(const void *src, int64_t n);
int64_t find_bad_e8m0(const void *src, int64_t n);

#endif
