/* convert_encode.c owns the encoders: values of a matrix to codes and scales, a band of rows at a
 * time.
 */
#include "src/model/convert_parts.h"

#include <math.h>
#include <string.h>

#include "kernels/numfmt.h"

#define E4M3_MOST 448.0f
#define E2M1_MOST 6.0f

static float largest(const float *v, int64_t n, size_t ld, int64_t rows)
{
    float most = 0;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            most = fmaxf(most, fabsf(v[(size_t)r * ld + (size_t)i]));
    return most;
}

float encode_largest(const float *v, int64_t n)
{
    return largest(v, n, 0, 1);
}

/* A scale is stored and what is stored divides. */
static float put_scale(bool e8m0, float most, float code_most, unsigned char *out)
{
    float scale = most / code_most;
    uint8_t byte;

    if (e8m0) {
        byte = pow2ceil_e8m0(scale);
        *out = byte;
        return f32_from_e8m0(byte);
    }
    scale = scale > 0 ? scale : 1;
    memcpy(out, &scale, sizeof(scale));
    return scale;
}

void encode_fp8(const float *v, int64_t rows, int64_t cols, int block, bool e8m0,
                unsigned char *code, unsigned char *scale)
{
    size_t each = e8m0 ? 1 : 4, ld = (size_t)cols;

    for (int64_t k = 0; k < cols; k += block, scale += each) {
        int64_t n = cols - k < block ? cols - k : block;
        float s = put_scale(e8m0, largest(v + k, n, ld, rows), E4M3_MOST, scale);

        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = k; i < k + n; i++)
                code[(size_t)r * ld + (size_t)i] = e4m3_from_f32(v[(size_t)r * ld + (size_t)i] / s);
    }
}

/* Codes of one group: two a byte, the even one low. */
static void put_fp4(const float *v, int n, float scale, unsigned char *code)
{
    for (int i = 0; i < n; i += 2)
        code[i / 2] =
            (unsigned char)(e2m1_from_f32(v[i] / scale) | e2m1_from_f32(v[i + 1] / scale) << 4);
}

void encode_mxfp4(const float *v, int64_t cols, unsigned char *code, unsigned char *scale)
{
    for (int64_t k = 0; k < cols; k += 32)
        put_fp4(v + k, 32, put_scale(true, encode_largest(v + k, 32), E2M1_MOST, scale++),
                code + k / 2);
}

void encode_nvfp4(const float *v, int64_t cols, float global, unsigned char *code,
                  unsigned char *scale)
{
    for (int64_t k = 0; k < cols; k += 16) {
        float s;

        *scale = e4m3_from_f32(encode_largest(v + k, 16) / E2M1_MOST / global);
        s = f32_from_e4m3(*scale++) * global;
        put_fp4(v + k, 16, s > 0 ? s : 1, code + k / 2);
    }
}
