/* convert_parts - the encoders of convert, for convert*.c and their tests. */
#ifndef TANDEM_MODEL_CONVERT_PARTS_H
#define TANDEM_MODEL_CONVERT_PARTS_H

#include <stdbool.h>
#include <stdint.h>

/* encode_largest - the largest magnitude of n values. */
float encode_largest(const float *v, int64_t n);

/* encode_fp8 - a band of at most `block` rows that share their scales.
 * shapes   v, code [rows][cols]; scale [ceil(cols / block)], a byte or an f32 each */
void encode_fp8(const float *v, int64_t rows, int64_t cols, int block, bool e8m0,
                unsigned char *code, unsigned char *scale);

/* encode_mxfp4, encode_nvfp4 - one row.
 * shapes   v [cols]; code [cols / 2]; scale [cols / group] */
void encode_mxfp4(const float *v, int64_t cols, unsigned char *code, unsigned char *scale);
void encode_nvfp4(const float *v, int64_t cols, float global, unsigned char *code,
                  unsigned char *scale);

#endif
