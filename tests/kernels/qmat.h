/* qmat - made-up matrices of every stored type, packed as ops read them, and what they mean by
 * plain loops. */
#ifndef TANDEM_TESTS_KERNELS_QMAT_H
#define TANDEM_TESTS_KERNELS_QMAT_H

#include <stdio.h>

#include "kernels/formats/exl3.h"
#include "kernels/formats/repack.h"
#include "kernels/formats/values.h"
#include "tests/kernels/bed.h"

/* qmat_each - fill m's dtype and q with stored type number i, for rows x cols; false if there is no
 * such number. Plain types, FP8 with both scales and both blocks, MXFP4, NVFP4 both ways, EXL3 of
 * every width and codebook. */
static inline bool qmat_each(int i, struct mat *m)
{
    static const struct mat fixed[] = {
        { .dtype = DTYPE_F32 },
        { .dtype = DTYPE_F16 },
        { .dtype = DTYPE_BF16 },
        { .dtype = DTYPE_FP8, .q = { .block = 32, .e8m0 = 1 } },
        { .dtype = DTYPE_FP8, .q = { .block = 128, .e8m0 = 1 } },
        { .dtype = DTYPE_FP8, .q = { .block = 128 } },
        { .dtype = DTYPE_FP8, .q = { .block = 1 << 20 } },
        { .dtype = DTYPE_MXFP4 },
        { .dtype = DTYPE_NVFP4, .q = { .global = 0.0007f } },
        { .dtype = DTYPE_NVFP4, .q = { .global = 1234.5f, .divides = 1 } },
    };
    int n = (int)COUNT(fixed);

    if (i < n) {
        *m = fixed[i];
        return true;
    }
    for (int c = CODEBOOK_3INST; c <= CODEBOOK_MUL1; c++)
        for (int bits2 = 2; bits2 <= 16; bits2++)
            if (exl3_width_ok((enum codebook)c, 8 * bits2) && n++ == i) {
                *m = (struct mat){ .dtype = DTYPE_EXL3,
                                   .q = { .codebook = (uint8_t)c, .bits2 = (uint8_t)bits2 } };
                return true;
            }
    return false;
}

static inline const char *qmat_name(const struct mat *m)
{
    static const char *const name[] = {
        [DTYPE_F32] = "f32",  [DTYPE_F16] = "f16",     [DTYPE_BF16] = "bf16",
        [DTYPE_FP8] = "fp8",  [DTYPE_MXFP4] = "mxfp4", [DTYPE_NVFP4] = "nvfp4",
        [DTYPE_EXL3] = "exl3"
    };
    static const char *const book[] = { "3inst", "mcg", "mul1" };
    static char text[64];

    if (m->dtype == DTYPE_EXL3)
        snprintf(text, sizeof(text), "exl3 %s %d%s bits", book[m->q.codebook], m->q.bits2 / 2,
                 m->q.bits2 % 2 ? ".5" : "");
    else if (m->dtype == DTYPE_FP8)
        snprintf(text, sizeof(text), "fp8 %d %s", (int)m->q.block, m->q.e8m0 ? "e8m0" : "f32");
    else
        snprintf(text, sizeof(text), "%s%s", name[m->dtype], m->q.divides ? " divided" : "");
    return text;
}

/* A checkpoint's bytes: codes, scales, suh, svh, bias of m's rows x cols. Nothing in them is a NaN.
 */
struct qmat_source {
    unsigned char *codes, *scales;
    size_t code_ld, scale_ld;
    uint16_t *suh, *svh, *bias;
};

static inline uint64_t qmat_word(struct bed *b)
{
    struct philox p = philox4x32((uint32_t)b->seed, (uint32_t)(b->seed >> 32), 3, 1, 4);

    b->seed++;
    return (uint64_t)p.w[0] << 32 | p.w[1];
}

static inline void qmat_noise(struct bed *b, void *to, size_t bytes)
{
    unsigned char *p = to;

    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t w = qmat_word(b);

        memcpy(p + i, &w, bytes - i < 8 ? bytes - i : 8);
    }
}

static inline void qmat_source(struct bed *b, const struct mat *m, struct qmat_source *s)
{
    size_t n = (size_t)m->rows, k = (size_t)m->cols, scale_rows = n, scale_cols;

    memset(s, 0, sizeof(*s));
    if (m->dtype == DTYPE_EXL3) {
        size_t nn = mat_round_up(n, 128), kk = mat_round_up(k, 128);
        int slices = m->q.slices ? m->q.slices : 1;

        s->code_ld = nn / 16 * 16 * m->q.bits2;
        s->codes = bed_take(b, kk / 16 * s->code_ld);
        qmat_noise(b, s->codes, kk / 16 * s->code_ld);
        s->suh = bed_take(b, (size_t)slices * kk * 2);
        s->svh = bed_take(b, nn * 2);
        s->bias = bed_take(b, nn * 2);
        for (size_t i = 0; i < (size_t)slices * kk; i++)
            s->suh[i] = i % 37 == 5
                            ? 3
                            : f16_from_f32(synth_uniform(qmat_word(b), i)); /* some are subnormal */
        for (size_t i = 0; i < nn; i++) {
            s->svh[i] = i % 41 == 7 ? 0 : f16_from_f32(synth_uniform(qmat_word(b), i) * 0.1f);
            s->bias[i] = f16_from_f32(synth_uniform(qmat_word(b), i));
        }
        return;
    }
    if (m->dtype < DTYPE_COUNT)
        return;
    s->code_ld = m->dtype == DTYPE_FP8 ? k : k / 2;
    s->codes = bed_take(b, n * s->code_ld);
    qmat_noise(b, s->codes, n * s->code_ld);
    for (size_t i = 0; m->dtype == DTYPE_FP8 && i < n * k; i++)
        if ((s->codes[i] & 0x7f) == 0x7f)
            s->codes[i] ^= 1;
    if (m->dtype == DTYPE_FP8) {
        size_t block = (size_t)m->q.block;

        scale_rows = (n + block - 1) / block;
        scale_cols = (k + block - 1) / block;
        s->scale_ld = scale_cols * (m->q.e8m0 ? 1 : 4);
    } else {
        s->scale_ld = scale_cols = k / (size_t)mat_group(m->dtype);
    }
    s->scales = bed_take(b, scale_rows * s->scale_ld);
    for (size_t i = 0; i < scale_rows * scale_cols; i++) {
        float f = 0.001f + (float)(qmat_word(b) % 1000) * 0.00002f;

        if (m->dtype == DTYPE_FP8 && !m->q.e8m0)
            memcpy(s->scales + 4 * i, &f, 4);
        else
            s->scales[i] = (unsigned char)(m->dtype == DTYPE_NVFP4 ? qmat_word(b) % 127
                                           : i % 29 == 3           ? 0
                                                                   : 112 + qmat_word(b) % 16);
    }
}

/* qmat_pack - rows first_row .. and cols first_col .. of a source, as m asks (its rows and cols are
 * the share's). */
static inline void qmat_pack(struct bed *b, struct mat *m, const struct qmat_source *s,
                             int first_row, int first_col)
{
    int strip = mat_strip(m->dtype, &m->q), slices = m->q.slices ? m->q.slices : 1;
    size_t kk = mat_round_up((size_t)m->cols, 128), nn = mat_round_up((size_t)m->rows, 128);
    struct mat_parts p;
    unsigned char *blob;

    mat_parts(m, &p);
    blob = bed_take(b, p.total);
    for (int i = 0; i < mat_strips(m) && m->cols > 0; i++) {
        int at = first_row + i * strip,
            n = m->rows - i * strip < strip ? m->rows - i * strip : strip;
        const unsigned char *codes = s->codes;

        if (m->dtype == DTYPE_EXL3) {
            codes += (size_t)(first_col / 16) * s->code_ld + (size_t)(at / 16 * 16) * m->q.bits2;
            mat_pack_codes(m, codes, s->code_ld, n,
                           blob + (size_t)i * mat_strip_bytes(m->dtype, &m->q, m->cols));
            continue;
        }
        codes +=
            (size_t)at * s->code_ld + (size_t)(m->dtype == DTYPE_FP8 ? first_col : first_col / 2);
        mat_pack_codes(m, codes, s->code_ld, n,
                       blob + (size_t)i * mat_strip_bytes(m->dtype, &m->q, m->cols));
        if (m->dtype == DTYPE_FP8)
            mat_pack_scales(m, i,
                            s->scales + (size_t)(at / m->q.block) * s->scale_ld +
                                (size_t)(first_col / m->q.block * (m->q.e8m0 ? 1 : 4)),
                            s->scale_ld, n, blob + p.at[PART_SCALES]);
        else
            mat_pack_scales(m, i,
                            s->scales + (size_t)at * s->scale_ld +
                                (size_t)(first_col / mat_group(m->dtype)),
                            s->scale_ld, n, blob + p.at[PART_SCALES]);
    }
    if (p.bytes[PART_SUH]) {
        /* a share of cols is cut from matrices of one slice only */
        for (int i = 0; i < slices; i++)
            memcpy(blob + p.at[PART_SUH] + (size_t)i * kk * 2, s->suh + (size_t)i * kk + first_col,
                   kk * 2);
        memcpy(blob + p.at[PART_SVH], s->svh + first_row, nn * 2);
        if (m->q.has_bias)
            memcpy(blob + p.at[PART_BIAS], s->bias + first_row, nn * 2);
    }
    mat_place(m, blob);
}

/* A whole matrix of m's type. */
static inline void qmat_make(struct bed *b, struct mat *m)
{
    struct qmat_source s;

    if (m->dtype < DTYPE_COUNT) {
        *m = bed_mat(b, m->rows, m->cols, m->dtype, 1, NULL);
        return;
    }
    qmat_source(b, m, &s);
    qmat_pack(b, m, &s, 0, 0);
}

/* The definition for one output and one row: F0 values, then one sum in order, multiply then add.
 */
static inline float qmat_sum(const float *value, const float *x, int n, float from)
{
    volatile float sum = from; /* keeps the loop scalar and in order */

    for (int k = 0; k < n; k++) {
        volatile float p = value[k] * x[k];

        sum = sum + p;
    }
    return sum;
}

/* Dense W, [rows padded to 128][cols padded to 128], from mat_values. */
static inline float *qmat_dense(const struct mat *m)
{
    size_t nn = mat_round_up((size_t)m->rows, 128), kk = mat_round_up((size_t)m->cols, 128);
    float *w = calloc(nn * kk + 1, sizeof(*w)), *v = malloc((kk * 16 + 1) * sizeof(*v));

    for (size_t t = 0; t < (m->dtype == DTYPE_EXL3 ? nn : mat_round_up((size_t)m->rows, 16)) / 16;
         t++) {
        mat_values(m, (int)t, 0, (int)kk, v);
        for (size_t k = 0; k < kk; k++)
            for (size_t n = 0; n < 16; n++)
                w[(16 * t + n) * kk + k] = v[16 * k + n];
    }
    free(v);
    return w;
}

/* qmat_product - y[rows of x][m->rows] = x W by the definition of mat.h, groups of x as in matmul.
 */
static inline void qmat_product(struct bed *b, const struct mat *m, int groups, enum codec in,
                                const float *x, int rows, float *y)
{
    int kk = (int)mat_round_up((size_t)m->cols, 128), nn = (int)mat_round_up((size_t)m->rows, 128);
    int slices = m->q.slices ? m->q.slices : 1, is_exl3 = m->dtype == DTYPE_EXL3;
    float *w = qmat_dense(m), *xs = malloc((size_t)(kk + 1) * sizeof(float)),
          *z = malloc((size_t)(nn + 1) * sizeof(float));

    for (int r = 0; r < rows; r++) {
        for (int n = 0; n < (is_exl3 ? nn : m->rows); n++) {
            int real = n < m->rows ? n : m->rows - 1;
            const float *from =
                x + (size_t)(r * groups + real / (m->rows / groups)) * (size_t)m->cols;
            int fresh = n == 0 || n % (m->rows / groups) == 0 || (is_exl3 && n % 128 == 0);

            for (int k = 0; fresh && k < m->cols; k += 128) {
                int n_k = m->cols - k < 128 ? m->cols - k : 128;

                memcpy(xs + k, from + k, (size_t)n_k * sizeof(float));
                if (is_exl3)
                    exl3_rotate_in(from + k, n_k, m->suh + real / (m->rows / slices) * kk + k,
                                   EXL3_ORDER_P, xs + k);
            }
            if (fresh && in && (m->dtype == DTYPE_FP8 || m->dtype == DTYPE_MXFP4))
                b->op->requant(b->q, &(struct requant_args){
                                         .x = xs, .rows = 1, .cols = m->cols, .codec = in });
            z[n] = qmat_sum(w + (size_t)n * (size_t)kk, xs, is_exl3 ? kk : m->cols, 0);
        }
        for (int n = 0; is_exl3 && m->cols > 0 && n < nn; n += 128)
            exl3_rotate_out(z + n, m->svh + n, m->bias ? m->bias + n : NULL);
        memcpy(y + (size_t)r * (size_t)m->rows, z, (size_t)m->rows * sizeof(float));
    }
    free(w);
    free(xs);
    free(z);
}

#endif
