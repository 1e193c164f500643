/* fuzz_exl3 - tiles of any bytes: repacked and back they are the same, and all ways to multiply
 * agree.
 *
 * Input: codebook, layout, width, blocks of outputs and inputs, rows; then bytes for suh, svh and
 * tiles, zeros where they run out. Linked with the kernels and base libraries of a build with
 * -Db_sanitize=address,undefined, and with clang's -fsanitize=fuzzer or with fuzz_run.c.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/formats/exl3.h"
#include "kernels/formats/repack.h"
#include "kernels/formats/values.h"

struct input {
    const uint8_t *at;
    size_t left;
};

static void *take(struct input *in, size_t bytes)
{
    unsigned char *p = calloc(1, bytes ? bytes : 1);
    size_t n = bytes < in->left ? bytes : in->left;

    if (!p)
        abort();
    memcpy(p, in->at, n);
    in->at += n;
    in->left -= n;
    return p;
}

/* Every tile comes back, and its values are numbers. */
static void check_tiles(const struct mat *m, const unsigned char *tiles, size_t ld)
{
    size_t tile = (size_t)(16 * m->q.bits2);
    uint16_t words[EXL3_WORDS_MAX];
    float value[EXL3_BLOCK * MAT_TILE];

    for (int t = 0; t < m->rows / 16; t++)
        for (int s = 0; s < m->cols / 16; s++) {
            exl3_tile_get(m,
                          (const char *)m->data +
                              (size_t)(t / 8) * mat_strip_bytes(DTYPE_EXL3, &m->q, m->cols),
                          s, t % 8, words);
            if (memcmp(words, tiles + (size_t)s * ld + (size_t)t * tile, tile) != 0)
                abort();
        }
    for (int t = 0; t < m->rows / 16; t++) {
        mat_values(m, t, 0, EXL3_BLOCK, value);
        for (int i = 0; i < EXL3_BLOCK * MAT_TILE; i++)
            if (!(fabsf(value[i]) < 4))
                abort();
    }
}

static void check_products(const struct mat *m, int rows)
{
    float *x = calloc((size_t)(rows * m->cols), sizeof(*x));
    float(*y)[STRIP_OUTPUTS] = malloc((size_t)rows * sizeof(*y)),
    (*z)[STRIP_OUTPUTS] = malloc((size_t)rows * sizeof(*z));
    const float *in[STRIP_ROWS];

    if (!x || !y || !z)
        abort();
    for (int i = 0; i < rows * m->cols; i++)
        x[i] = (float)(i % 31 - 15) * 0.01f;
    for (int r = 0; r < rows; r++)
        in[r] = x + r * m->cols;
    for (int first = 0; first < m->rows; first += EXL3_BLOCK) {
        struct strip s = { .w = m, .first = first, .n = EXL3_BLOCK, .x = in, .rows = rows };

        ref_strip(&s, y[0], STRIP_OUTPUTS);
        for (int i = 0; cpu_set_at(i); i++) {
            if (!cpu_set_at(i)->works())
                continue;
            cpu_set_at(i)->strip(&s, z[0], STRIP_OUTPUTS);
            for (int r = 0; r < rows; r++)
                for (int n = 0; n < EXL3_BLOCK; n++)
                    if (f32_bits(y[r][n]) != f32_bits(z[r][n]) &&
                        !(isnan(y[r][n]) && isnan(z[r][n])))
                        abort();
        }
    }
    free(x);
    free(y);
    free(z);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct mat m = { .dtype = DTYPE_EXL3 };
    struct input in = { data + 6, bytes < 6 ? 0 : bytes - 6 };
    unsigned char *tiles, *blob;
    struct mat_parts p;
    uint16_t *suh, *svh;
    size_t ld;

    if (bytes < 6 || !exl3_width_ok((enum codebook)(data[0] % 3), 8 * (data[2] % 18)))
        return 0;
    m.q.codebook = data[0] % 3;
    m.q.layout = data[1] % 2;
    m.q.bits2 = data[2] % 18;
    m.rows = EXL3_BLOCK * (1 + data[3] % 2);
    m.cols = EXL3_BLOCK * (1 + data[4] % 2);
    ld = (size_t)m.rows * m.q.bits2;
    suh = take(&in, (size_t)m.cols * 2);
    svh = take(&in, (size_t)m.rows * 2);
    tiles = take(&in, (size_t)(m.cols / 16) * ld);
    mat_parts(&m, &p);
    blob = aligned_alloc(MAT_ALIGN, mat_round_up(p.total, MAT_ALIGN));
    if (!blob)
        abort();
    if (find_bad_f16(suh, m.cols) < 0 && find_bad_f16(svh, m.rows) < 0) {
        for (int i = 0; i < mat_strips(&m); i++)
            mat_pack_codes(&m, tiles + (size_t)i * 8 * 16 * m.q.bits2, ld, EXL3_BLOCK,
                           blob + (size_t)i * mat_strip_bytes(m.dtype, &m.q, m.cols));
        memcpy(blob + p.at[PART_SUH], suh, p.bytes[PART_SUH]);
        memcpy(blob + p.at[PART_SVH], svh, p.bytes[PART_SVH]);
        mat_place(&m, blob);
        check_tiles(&m, tiles, ld);
        check_products(&m, 1 + data[5] % 5);
    }
    free(blob);
    free(suh);
    free(svh);
    free(tiles);
    return 0;
}
