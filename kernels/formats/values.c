/* values.c owns the reading of packed matrices, one value at a time. */
#include "kernels/formats/values.h"

#include "kernels/formats/exl3.h"
#include "kernels/formats/repack.h"

static float plain_value(const struct mat *m, int n, int k)
{
    size_t i = (size_t)(n / MAT_TILE) * MAT_TILE * (size_t)m->cols + (size_t)k * MAT_TILE +
               (size_t)(n % MAT_TILE);

    switch (m->dtype) {
    case DTYPE_F32:
        return ((const float *)m->data)[i];
    case DTYPE_F16:
        return f32_from_f16(((const uint16_t *)m->data)[i]);
    default:
        return f32_from_bf16(((const uint16_t *)m->data)[i]);
    }
}

/* The strip of output n and its ring position with input k in their 16 x 16 tile. */
static const unsigned char *strip_of(const struct mat *m, int n)
{
    return (const unsigned char *)m->data +
           (size_t)(n / mat_strip(m->dtype, &m->q)) * mat_strip_bytes(m->dtype, &m->q, m->cols);
}

static uint8_t fp8_code(const struct mat *m, int n, int k)
{
    const unsigned char *s = strip_of(m, n);
    int pos = exl3_tile_pos(k % 16, n % 16), tile = n % 64 / 16;

    if (m->q.layout == LAYOUT_CPU)
        return s[(size_t)k * MAT_TILE + (size_t)(n % MAT_TILE)];
    return s[((size_t)(k / 16) * 2 + (size_t)(tile / 2)) * 512 +
             (size_t)(pos / 8 * 16 + tile % 2 * 8 + pos % 8)];
}

static uint8_t fp4_code(const struct mat *m, int n, int k)
{
    const unsigned char *s = strip_of(m, n);
    int pos = exl3_tile_pos(k % 16, n % 16);

    if (m->q.layout == LAYOUT_CPU)
        return s[(size_t)(k / 2) * MAT_TILE + (size_t)(n % MAT_TILE)] >> (k % 2 * 4) & 15;
    s += (size_t)(k / 16) * 512 + (size_t)(pos / 8 * 16 + n % 64 / 16 * 4 + pos % 8 / 2);
    return *s >> (pos % 2 * 4) & 15;
}

static float fp8_scale(const struct mat *m, int n, int k)
{
    size_t blocks = ((size_t)m->cols + (size_t)m->q.block - 1) / (size_t)m->q.block;
    size_t i = (size_t)(n / MAT_TILE) * blocks + (size_t)(k / m->q.block);

    return m->q.e8m0 ? f32_from_e8m0(((const uint8_t *)m->scale)[i]) : ((const float *)m->scale)[i];
}

static float fp4_scale(const struct mat *m, int n, int k)
{
    const uint8_t *scale = m->scale;
    size_t groups = (size_t)(m->cols / mat_group(m->dtype)), g = (size_t)(k / mat_group(m->dtype));
    float s;

    if (m->q.layout == LAYOUT_CPU)
        scale += ((size_t)(n / 16) * groups + g) * 16 + (size_t)(n % 16);
    else
        scale += ((size_t)(n / 64) * groups + g) * 64 + (size_t)(n % 8 * 8 + n % 64 / 8);
    if (m->dtype == DTYPE_MXFP4)
        return f32_from_e8m0(*scale);
    s = f32_from_e4m3(*scale);
    return m->q.divides ? s / m->q.global : s * m->q.global;
}

static float one_value(const struct mat *m, int n, int k)
{
    switch (m->dtype) {
    case DTYPE_FP8:
        return f32_from_e4m3(fp8_code(m, n, k)) * fp8_scale(m, n, k);
    case DTYPE_MXFP4:
    case DTYPE_NVFP4:
        return f32_from_e2m1(fp4_code(m, n, k)) * fp4_scale(m, n, k);
    default:
        return plain_value(m, n, k);
    }
}

static void exl3_values(const struct mat *m, int tile, int k0, int n_k, float *out)
{
    uint16_t words[EXL3_WORDS_MAX];
    float v[256];

    for (int i = 0; i < n_k; i++) {
        if (i % EXL3_TILE == 0) {
            exl3_tile_get(m, strip_of(m, tile * EXL3_TILE), (k0 + i) / EXL3_TILE, tile % 8, words);
            exl3_tile_values(words, m->q.bits2, (enum codebook)m->q.codebook, v);
        }
        for (int n = 0; n < MAT_TILE; n++)
            out[i * MAT_TILE + n] = v[i % EXL3_TILE * EXL3_TILE + n];
    }
}

void mat_values(const struct mat *m, int tile, int k0, int n_k, float *out)
{
    if (m->dtype == DTYPE_EXL3) {
        exl3_values(m, tile, k0, n_k, out);
        return;
    }
    for (int i = 0; i < n_k; i++)
        for (int n = 0; n < MAT_TILE; n++) {
            int o = tile * MAT_TILE + n;

            out[i * MAT_TILE + n] = o < m->rows && k0 + i < m->cols ? one_value(m, o, k0 + i) : 0;
        }
}

void fp8_row(const uint8_t *code, const uint8_t *scale, int n, float *out)
{
    for (int i = 0; i < n; i++)
        out[i] = f32_from_e4m3(code[i]) * f32_from_e8m0(scale[i / 32]);
}
