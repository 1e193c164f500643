/* codec.c owns the arithmetic of the cache quantisers. Scales: QW and QI multiply by a rounded
 * reciprocal and take a power of two, QC divides and rounds the scale to e4m3; the difference shows
 * at the boundaries. */
#include "kernels/ref/codec.h"

#include <stddef.h>
#include <string.h>

#include "kernels/numfmt.h"
#include "kernels/ref/dot.h"
#include "kernels/ref/simd.h"

#define QW_BLOCK 32
#define QC_BLOCK 16
#define QI_BLOCK 32
#define QI_TILE 128 /* values of 64 bytes of codes and 4 of scales */

int codec_block(enum codec c)
{
    static const int block[] = {
        [CODEC_F32] = 1, [CODEC_QW] = QW_BLOCK, [CODEC_QC] = QC_BLOCK, [CODEC_QI] = QI_BLOCK
    };

    return block[c];
}

#define E2M1_VALUES                                                                                \
    {                                                                                              \
        0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6                      \
    }

/* ---- decoding with whole registers ----------------------------------------------------------- */

/* The compiler takes loops from bytes to floats four at a time; these take sixteen. Same values,
 * same product. Each decodes whole pieces of 32 values and returns how many values that were. */
#if SIMD_X86
#pragma GCC push_options
#pragma GCC target("avx512f")
typedef float wide __attribute__((vector_size(64)));
typedef float wide_mem __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t wide_ints __attribute__((vector_size(64)));
typedef int32_t wide_ints_mem __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t wide_halves __attribute__((vector_size(32)));
typedef uint8_t wide_bytes __attribute__((vector_size(16), aligned(1), may_alias));

static ALWAYS_INLINE void widen_bytes(const unsigned char *code, wide_ints *out)
{
    wide_halves half = __builtin_convertvector(*(const wide_bytes *)code, wide_halves);

    *out = __builtin_convertvector(half, wide_ints); /* in one step it goes lane by lane */
}

static ALWAYS_INLINE void e4m3_decode_16(const unsigned char *code, float by, float *x)
{
    wide_ints c, a, small, normal, is;

    widen_bytes(code, &c);
    a = c & 0x7f;
    small = (wide_ints)(__builtin_convertvector(a, wide) * 0x1p-9f);
    normal = (a << 20) + (120 << 23);
    is = a < 8;
    normal = (is & small) | (~is & normal);
    normal |= (a == 0x7f) & 0x7fc00000;
    *(wide_mem *)x = (wide)(normal | (c & 0x80) << 24) * by;
}

static int qw_decode_wide(const unsigned char *code, const unsigned char *scale, int cols, float *x)
{
    for (int c = 0; c < cols; c += QW_BLOCK) {
        float by = f32_from_e8m0(scale[c / QW_BLOCK]);

        e4m3_decode_16(code + c, by, x + c);
        e4m3_decode_16(code + c + 16, by, x + c + 16);
    }
    return cols;
}

/* 32 values, the first and the last 16 with a scale each. The sixteen values of e2m1 fill one
 * register, and a code is a lane of it. */
static ALWAYS_INLINE void e2m1_decode_32(const unsigned char *code, float first, float last,
                                         float *x)
{
    const wide value = E2M1_VALUES;
    const wide_ints near = { 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23 };
    const wide_ints far = { 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 };
    wide_ints byte;
    wide even, odd;

    widen_bytes(code, &byte);
    even = __builtin_shuffle(value, byte & 15);
    odd = __builtin_shuffle(value, byte >> 4);
    *(wide_mem *)x = __builtin_shuffle(even, odd, near) * first;
    *(wide_mem *)(x + 16) = __builtin_shuffle(even, odd, far) * last;
}

static int qc_decode_wide(const unsigned char *code, const unsigned char *scale, int cols, float *x)
{
    int c = 0;

    for (; c + 2 * QC_BLOCK <= cols; c += 2 * QC_BLOCK)
        e2m1_decode_32(code + c / 2, f32_from_e4m3(scale[c / QC_BLOCK]),
                       f32_from_e4m3(scale[c / QC_BLOCK + 1]), x + c);
    return c;
}

static int qi_decode_wide(const unsigned char *code, const unsigned char *scale, int cols, float *x)
{
    for (int c = 0; c < cols; c += QI_BLOCK) {
        float by = f32_from_e8m0(scale[c / QI_BLOCK]);

        e2m1_decode_32(code + c / 2, by, by, x + c);
    }
    return cols;
}
/* Eight columns of a tile: code k of each row's word. */
static ALWAYS_INLINE void e2m1_decode_columns(const float *word, const wide *by, float *tile)
{
    const wide value = E2M1_VALUES;
    wide_ints codes = *(const wide_ints_mem *)word;

#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        *(wide_mem *)(tile + k * MAT_TILE) = __builtin_shuffle(value, codes >> 4 * k & 15) * *by;
}

/* A tile of QI rows. Eight codes are a word: words are transposed first, an eighth of what the
 * values would be, and then a code of all sixteen rows is one lookup. */
static void qi_tile_wide(const unsigned char *const *row, int n, int cols, float *tile)
{
    for (int c = 0; c < cols; c += QI_TILE) {
        float word[MAT_TILE * MAT_TILE] = { 0 }, turned[MAT_TILE * MAT_TILE];
        wide_ints scale = { 0 };

        for (int j = 0; j < n; j++) {
            int32_t four;

            memcpy(word + j * MAT_TILE, row[j] + c / 2, QI_TILE / 2);
            memcpy(&four, row[j] + cols / 2 + c / QI_BLOCK, sizeof(four));
            scale[j] = four;
        }
        dot_transpose(word, MAT_TILE, n, MAT_TILE, turned);
        for (int b = 0; b < QI_TILE / QI_BLOCK; b++, scale >>= 8) {
            wide_ints byte = scale & 255, bits = byte << 23;
            wide by;

            bits |= ((byte == 0) & 0x00400000) | ((byte == 255) & 0x7fc00000);
            by = (wide)bits;
            for (int k = 0; k < QI_BLOCK; k += 8)
                e2m1_decode_columns(turned + (b * QI_BLOCK + k) / 8 * MAT_TILE, &by,
                                    tile + (c + b * QI_BLOCK + k) * MAT_TILE);
        }
    }
}
#pragma GCC pop_options

#define DECODE_WIDE(name, code, scale, cols, x)                                                    \
    (__builtin_cpu_supports("avx512f") ? name##_decode_wide(code, scale, cols, x) : 0)
#else
#define DECODE_WIDE(name, code, scale, cols, x) 0
#endif

/* ---- the codecs ------------------------------------------------------------------------------ */

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

static void qw_decode(const unsigned char *code, const unsigned char *scale, int cols, float *x)
{
    for (int b = DECODE_WIDE(qw, code, scale, cols, x) / QW_BLOCK; b < cols / QW_BLOCK; b++) {
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

static void qc_decode(const unsigned char *code, const unsigned char *scale, int cols, float *x)
{
    for (int b = DECODE_WIDE(qc, code, scale, cols, x) / QC_BLOCK; b < cols / QC_BLOCK; b++)
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

static void qi_decode(const unsigned char *code, const unsigned char *scale, int cols, float *x)
{
    for (int b = DECODE_WIDE(qi, code, scale, cols, x) / QI_BLOCK; b < cols / QI_BLOCK; b++)
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

void codec_decode_tile(enum codec c, const unsigned char *const *row, int n, int cols, float *tile)
{
    float value[MAT_TILE * DECODE_COLS];

#if SIMD_X86
    if (c == CODEC_QI && cols % QI_TILE == 0 && __builtin_cpu_supports("avx512f")) {
        qi_tile_wide(row, n, cols, tile);
        return;
    }
#endif
    for (int j = 0; j < n; j++)
        codec_decode(c, row[j], cols, value + j * cols);
    dot_transpose(value, (size_t)cols, n, cols, tile);
}
