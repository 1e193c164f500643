/* codec.c owns the arithmetic of the cache quantisers. Scales: QW and QI multiply by a rounded reciprocal and
 * take a power of two, QC divides and rounds the scale to e4m3; the difference shows at the boundaries. */
#include "kernels/ref/codec.h"

#include <stddef.h>
#include <string.h>

#include "kernels/numfmt.h"
#include "kernels/ref/simd.h"

#define QW_BLOCK 32
#define QC_BLOCK 16
#define QI_BLOCK 32

int codec_block(enum codec c)
{
    static const int block[] = {
        [CODEC_F32] = 1, [CODEC_QW] = QW_BLOCK, [CODEC_QC] = QC_BLOCK, [CODEC_QI] = QI_BLOCK
    };

    return block[c];
}

/* Largest magnitude, by bits: an infinity or a NaN wins. */
static ALWAYS_INLINE float block_amax(const float *x, int n)
{
    uint32_t most = 0;

    for (int i = 0; i < n; i++) {
        uint32_t a = f32_bits(x[i]) & 0x7fffffffu;

        most = a > most ? a : most;
    }
    return f32_from_bits(most);
}

static ALWAYS_INLINE float at_least(float x, float floor)
{
    return x < floor ? floor : x; /* keeps a NaN */
}

SIMD static void qw_encode(const float *x, int cols, unsigned char *code, unsigned char *scale)
{
    for (int b = 0; b < cols / QW_BLOCK; b++) {
        const float *v = x + b * QW_BLOCK;
        uint8_t s = pow2ceil_e8m0(at_least(block_amax(v, QW_BLOCK), 1e-4f) * (1.0f / 448));
        float by = f32_from_e8m0(s);

        scale[b] = s;
        for (int i = 0; i < QW_BLOCK; i++)
            code[b * QW_BLOCK + i] = e4m3_from_f32(v[i] / by);
    }
}

SIMD static void qw_decode(const unsigned char *code, const unsigned char *scale, int cols,
                           float *x)
{
    for (int b = 0; b < cols / QW_BLOCK; b++) {
        float by = f32_from_e8m0(scale[b]);

        for (int i = 0; i < QW_BLOCK; i++)
            x[b * QW_BLOCK + i] = f32_from_e4m3(code[b * QW_BLOCK + i]) * by;
    }
}

/* Two e2m1 codes a byte, the even element in the low nibble. */
static ALWAYS_INLINE void e2m1_pack(const float *v, float by, int n, unsigned char *code)
{
    for (int i = 0; i < n / 2; i++)
        code[i] =
            (unsigned char)(e2m1_from_f32(v[2 * i] / by) | e2m1_from_f32(v[2 * i + 1] / by) << 4);
}

static ALWAYS_INLINE void e2m1_unpack(const unsigned char *code, float by, int n, float *x)
{
    for (int i = 0; i < n / 2; i++) {
        x[2 * i] = f32_from_e2m1(code[i] & 15) * by;
        x[2 * i + 1] = f32_from_e2m1(code[i] >> 4) * by;
    }
}

SIMD static void qc_encode(const float *x, int cols, unsigned char *code, unsigned char *scale)
{
    for (int b = 0; b < cols / QC_BLOCK; b++) {
        const float *v = x + b * QC_BLOCK;
        float amax = block_amax(v, QC_BLOCK);
        uint8_t s = e4m3_from_f32(at_least(amax, 6 * 0x1p-9f) / 6);

        scale[b] = f32_bits(amax) < 0x7f800000u ? s : 0x7f;
        e2m1_pack(v, f32_from_e4m3(s), QC_BLOCK, code + b * QC_BLOCK / 2);
    }
}

SIMD static void qc_decode(const unsigned char *code, const unsigned char *scale, int cols,
                           float *x)
{
    for (int b = 0; b < cols / QC_BLOCK; b++)
        e2m1_unpack(code + b * QC_BLOCK / 2, f32_from_e4m3(scale[b]), QC_BLOCK, x + b * QC_BLOCK);
}

SIMD static void qi_encode(const float *x, int cols, unsigned char *code, unsigned char *scale)
{
    for (int b = 0; b < cols / QI_BLOCK; b++) {
        const float *v = x + b * QI_BLOCK;
        float amax = at_least(block_amax(v, QI_BLOCK), 6 * 0x1p-126f);
        uint8_t s = pow2ceil_e8m0(amax * (1.0f / 6));

        scale[b] = s;
        e2m1_pack(v, f32_from_e8m0(s), QI_BLOCK, code + b * QI_BLOCK / 2);
    }
}

SIMD static void qi_decode(const unsigned char *code, const unsigned char *scale, int cols,
                           float *x)
{
    for (int b = 0; b < cols / QI_BLOCK; b++)
        e2m1_unpack(code + b * QI_BLOCK / 2, f32_from_e8m0(scale[b]), QI_BLOCK, x + b * QI_BLOCK);
}

void codec_encode(enum codec c, const float *x, int cols, unsigned char *row)
{
    switch (c) {
    case CODEC_QW:
        qw_encode(x, cols, row, row + cols);
        break;
    case CODEC_QC:
        qc_encode(x, cols, row, row + cols / 2);
        break;
    case CODEC_QI:
        qi_encode(x, cols, row, row + cols / 2);
        break;
    default:
        memcpy(row, x, (size_t)cols * sizeof(*x));
        break;
    }
}

void codec_decode(enum codec c, const unsigned char *row, int cols, float *x)
{
    switch (c) {
    case CODEC_QW:
        qw_decode(row, row + cols, cols, x);
        break;
    case CODEC_QC:
        qc_decode(row, row + cols / 2, cols, x);
        break;
    case CODEC_QI:
        qi_decode(row, row + cols / 2, cols, x);
        break;
    default:
        memcpy(x, row, (size_t)cols * sizeof(*x));
        break;
    }
}
