/* values - the weights of a packed matrix as f32: the definition every other decoder is held to. */
#ifndef TANDEM_KERNELS_FORMATS_VALUES_H
#define TANDEM_KERNELS_FORMATS_VALUES_H

#include "kernels/mat.h"

/* mat_values - W(16 tile + n, k0 + i), for EXL3 Wq, at out[i * MAT_TILE + n], i in 0 .. n_k - 1.
 *
 *   plain          the value
 *   FP8            RN32(e4m3 * scale)
 *   MXFP4          RN32(e2m1 * scale)
 *   NVFP4          RN32(e2m1 * RN32(scale * global)), or scale / global
 *   EXL3           the codebook's f16
 *
 * in, out  k0 a multiple of 16. Values behind rows are zeros, or for EXL3 what the padding's codes
 *          say; so are those behind cols, up to cols rounded up to 128
 */
void mat_values(const struct mat *m, int tile, int k0, int n_k, float *out);

/* fp8_row - a row of a lookup table: n e4m3 codes, one e8m0 scale for 32 of them, as RN32(e4m3 *
 * scale). */
void fp8_row(const uint8_t *code, const uint8_t *scale, int n, float *out);

#endif
