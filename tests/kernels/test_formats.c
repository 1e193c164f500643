#include <inttypes.h>

#include "kernels/formats/exl3.h"
#include "kernels/formats/repack.h"
#include "kernels/formats/values.h"
#include "src/base/hash.h"
#include "tests/kernels/bed.h"
#include "tests/kernels/golden.h"

static const char *const book_names[] = {
    [CODEBOOK_3INST] = "3inst", [CODEBOOK_MCG] = "mcg", [CODEBOOK_MUL1] = "mul1"
};

static void digest_hex(const void *data, size_t bytes, char hex[2 * SHA256_BYTES + 1])
{
    uint8_t d[SHA256_BYTES];

    cr_assert(eq(int, sha256_of(data, bytes, d), 0));
    for (int i = 0; i < SHA256_BYTES; i++)
        sprintf(hex + 2 * i, "%02x", d[i]);
}

Test(formats, codebooks_have_the_golden_hashes)
{
    struct json *root;

    cr_assert(eq(int, json_read(VECTORS "/formats/exl3_codebooks.json", 1 << 20, 8, &root), 0));
    for (int c = CODEBOOK_3INST; c <= CODEBOOK_MUL1; c++) {
        const struct json *book = json_get(root, book_names[c]),
                          *samples = json_get(book, "samples");
        static uint16_t table[65536];
        const char *want;
        char hex[2 * SHA256_BYTES + 1];

        for (uint32_t s = 0; s < 65536; s++)
            table[s] = exl3_value((enum codebook)c, s);
        cr_assert(eq(int, json_str(book, "sha256_le_f16_table", &want), 0));
        digest_hex(table, sizeof(table), hex);
        cr_expect(eq(str, hex, (char *)want), "%s", book_names[c]);
        cr_expect(json_count(samples) > 0);
        for (size_t i = 0; i < json_count(samples); i++) {
            int state;

            cr_assert(eq(int, json_as_int(json_at(json_at(samples, i), 0), 0, 65535, &state), 0));
            cr_assert(eq(int, json_as_str(json_at(json_at(samples, i), 1), &want), 0));
            cr_expect(eq(int, table[state], (int)strtol(want, NULL, 16)), "%s %d", book_names[c],
                      state);
        }
    }
    json_close(root);
}

/* bits2 as the goldens write it: b2, b2.5 */
static const char *width_name(int bits2)
{
    static char name[8];

    snprintf(name, sizeof(name), bits2 % 2 ? "b%d.5" : "b%d", bits2 / 2);
    return name;
}

static bool width_exists(int c, int bits2)
{
    return exl3_width_ok((enum codebook)c, 8 * bits2);
}

/* A share of one strip whose first tile row holds the golden's tiles and whose others are made
 * up. */
static struct mat strip_of_tiles(struct bed *b, int c, int bits2, enum layout layout,
                                 const void *tiles, int n_tiles)
{
    struct mat m = {
        .dtype = DTYPE_EXL3,
        .rows = 128,
        .cols = 128,
        .q = { .layout = (uint8_t)layout, .codebook = (uint8_t)c, .bits2 = (uint8_t)bits2 }
    };
    size_t tile = (size_t)(16 * bits2);
    unsigned char *src = bed_take(b, 8 * 8 * tile);
    struct mat_parts p;
    unsigned char *blob;

    for (size_t i = 0; i < 8 * 8 * tile; i++)
        src[i] = (unsigned char)bed_int(b, 256);
    memcpy(src, tiles, (size_t)n_tiles * tile);
    mat_parts(&m, &p);
    blob = bed_take(b, p.total);
    mat_pack_codes(&m, src, 8 * tile, 128, blob);
    mat_place(&m, blob);
    for (int s = 0; s < 8; s++)
        for (int t = 0; t < 8; t++) {
            uint16_t back[EXL3_WORDS_MAX];

            exl3_tile_get(&m, blob, s, t, back);
            cr_expect(memcmp(back, src + (size_t)(8 * s + t) * tile, tile) == 0,
                      "layout %d %s tile %d, %d", (int)layout, width_name(bits2), s, t);
        }
    return m;
}

Test(formats, tiles_decode_to_the_golden_states_and_values)
{
    struct golden g;
    int cases = 0;

    golden_open(&g, "exl3_tiles");
    for (int c = CODEBOOK_3INST; c <= CODEBOOK_MUL1; c++)
        for (int bits2 = 2; bits2 <= 16; bits2++) {
            uint16_t state[256], *tiles, *states0;
            float *wq, v[256];
            struct bed b;

            if (!width_exists(c, bits2))
                continue;
            cases++;
            bed_open(&b, 1);
            tiles = golden_tensor(&g, NULL, "%s.%s.trellis", book_names[c], width_name(bits2));
            states0 = golden_tensor(&g, NULL, "%s.%s.states0", book_names[c], width_name(bits2));
            wq = golden_tensor(&g, NULL, "%s.%s.wq", book_names[c], width_name(bits2));
            exl3_states(tiles, bits2, state);
            cr_expect(memcmp(state, states0, sizeof(state)) == 0, "%s %s", book_names[c],
                      width_name(bits2));
            for (int t = 0; t < 2; t++) {
                exl3_tile_values(tiles + t * 8 * bits2, bits2, (enum codebook)c, v);
                for (int k = 0; k < 16; k++)
                    cr_expect(memcmp(v + 16 * k, wq + 32 * k + 16 * t, 16 * sizeof(float)) == 0,
                              "%s %s tile %d input %d", book_names[c], width_name(bits2), t, k);
            }
            for (int layout = LAYOUT_CPU; layout <= LAYOUT_DEVICE; layout++) {
                struct mat m = strip_of_tiles(&b, c, bits2, (enum layout)layout, tiles, 2);

                for (int t = 0; t < 2; t++) {
                    mat_values(&m, t, 0, 16, v);
                    for (int k = 0; k < 16; k++)
                        cr_expect(memcmp(v + 16 * k, wq + 32 * k + 16 * t, 16 * sizeof(float)) ==
                                  0);
                }
            }
            free(tiles);
            free(states0);
            free(wq);
            bed_close(&b);
        }
    cr_expect(eq(int, cases, 27));
    golden_close(&g);
}

Test(formats, ring_positions_are_a_permutation_of_the_tile)
{
    for (int p = 0; p < 256; p++)
        cr_expect(eq(int, exl3_tile_pos(exl3_tile_row(p), exl3_tile_col(p)), p));
    cr_expect(eq(int, exl3_tile_row(255), 15));
    cr_expect(eq(int, exl3_tile_col(255), 15));
    cr_expect(eq(int, exl3_tile_row(6), 8));
    cr_expect(eq(int, exl3_tile_col(6), 8));
}

Test(formats, a_blob_has_the_golden_order_of_words)
{
    static const int bits2s[] = { 4, 6, 10, 12 };
    struct golden g;

    golden_open(&g, "exl3_repack");
    for (size_t i = 0; i < COUNT(bits2s); i++) {
        int bits2 = bits2s[i], words = bits2 / 2;
        uint16_t *tiles;
        uint32_t *lanes, *columns;
        struct bed b;
        struct mat m;
        size_t bytes;

        bed_open(&b, 1);
        tiles = golden_tensor(&g, &bytes, "mul1.b%d.trellis", words);
        cr_assert(eq(sz, bytes, (size_t)(2 * 8 * 16 * bits2)));
        lanes = golden_tensor(&g, &bytes, "mul1.b%d.lane_major_G%d", words, exl3_group(bits2));
        columns = golden_tensor(&g, NULL, "mul1.b%d.col_transposed", words);
        m = strip_of_tiles(&b, CODEBOOK_MUL1, bits2, LAYOUT_DEVICE, tiles, 16);
        cr_expect(memcmp(m.data, lanes, bytes) == 0, "b%d", words);
        m = strip_of_tiles(&b, CODEBOOK_MUL1, bits2, LAYOUT_CPU, tiles, 16);
        for (int t = 0; t < 8; t++)
            for (int s = 0; s < 2; s++)
                cr_expect(memcmp((const uint32_t *)m.data + (8 * t + s) * 8 * words,
                                 columns + (2 * t + s) * 8 * words, (size_t)(32 * words)) == 0,
                          "b%d tile %d, %d", words, s, t);
        free(tiles);
        free(lanes);
        free(columns);
        bed_close(&b);
    }
    golden_close(&g);
}

Test(formats, butterflies_and_scale_have_the_golden_bits)
{
    struct golden g;
    float *in, *unscaled, *scaled;

    golden_open(&g, "hadamard128");
    in = golden_tensor(&g, NULL, "in");
    unscaled = golden_tensor(&g, NULL, "unscaled");
    scaled = golden_tensor(&g, NULL, "scaled");
    for (int r = 0; r < 4; r++) {
        float *v = in + 128 * r;

        exl3_butterflies(v);
        cr_expect(bed_same(v, unscaled + 128 * r, 128), "row %d", r);
        for (int i = 0; i < 128; i++)
            v[i] *= EXL3_SCALE;
        cr_expect(bed_same(v, scaled + 128 * r, 128), "row %d", r);
    }
    free(in);
    free(unscaled);
    free(scaled);
    golden_close(&g);
}

Test(formats, packed_signs_become_f16_ones)
{
    struct golden g;
    uint16_t *su, *suh, out[128];

    golden_open(&g, "exl3_signs");
    su = golden_tensor(&g, NULL, "su");
    suh = golden_tensor(&g, NULL, "suh");
    exl3_signs(su, 128, out);
    cr_expect(memcmp(out, suh, sizeof(out)) == 0);
    free(su);
    free(suh);
    golden_close(&g);
}

Test(formats, both_orders_of_the_input_rotation_are_golden)
{
    struct golden g;
    uint16_t *x, *suh, *want[2];

    golden_open(&g, "exl3_linear_mul1_b3_256x256");
    x = golden_tensor(&g, NULL, "x");
    suh = golden_tensor(&g, NULL, "p.suh");
    want[EXL3_ORDER_P] = golden_tensor(&g, NULL, "expect.xh_f32product");
    want[EXL3_ORDER_R] = golden_tensor(&g, NULL, "expect.xh");
    for (int order = EXL3_ORDER_P; order <= EXL3_ORDER_R; order++)
        for (int r = 0; r < 5; r++)
            for (int k = 0; k < 256; k += 128) {
                float in[128], out[128];

                for (int i = 0; i < 128; i++)
                    in[i] = f32_from_f16(x[256 * r + k + i]);
                exl3_rotate_in(in, 128, suh + k, (enum exl3_order)order, out);
                for (int i = 0; i < 128; i++)
                    cr_expect(eq(int, f16_from_f32(out[i]), want[order][256 * r + k + i]),
                              "order %d row %d input %d", order, r, k + i);
            }
    cr_expect(memcmp(want[0], want[1], 5 * 256 * 2) != 0);
    free(x);
    free(suh);
    free(want[0]);
    free(want[1]);
    golden_close(&g);
}

Test(formats, ngram_rows_decode_to_golden_values)
{
    struct golden g;

    golden_open(&g, "exl3_ngram_rows");
    for (int bits = 4; bits <= 6; bits += 2) {
        uint16_t *rows = golden_tensor(&g, NULL, "b%d.rows", bits);
        uint16_t *bias = golden_tensor(&g, NULL, "b%d.head_bias", bits);
        float *want = golden_tensor(&g, NULL, "b%d.expect", bits), out[NGRAM_COLS];

        for (int r = 0; r < 4; r++) {
            ngram_row(rows + r * ngram_row_words(bits), bits, bias, out);
            cr_expect(bed_same(out, want + r * NGRAM_COLS, NGRAM_COLS), "b%d row %d", bits, r);
        }
        free(rows);
        free(bias);
        free(want);
    }
    golden_close(&g);
}

/* The goldens have no rows of 5 bits: every width by the words of the format, bit by bit. */
Test(formats, ngram_rows_of_every_width_are_what_the_format_says)
{
    static const int words[] = { [4] = 41, [5] = 51, [6] = 61 };
    struct bed b;

    bed_open(&b, 1);
    for (int bits = 4; bits <= NGRAM_BITS_MAX; bits++) {
        uint16_t row[1 + NGRAM_COLS * NGRAM_BITS_MAX / 16], bias[NGRAM_COLS];
        float out[NGRAM_COLS];

        cr_assert(eq(int, ngram_row_words(bits), words[bits]));
        for (int i = 0; i < words[bits]; i++)
            row[i] = (uint16_t)bed_int(&b, 1 << 16);
        row[0] = f16_from_f32(0.37f);
        for (int i = 0; i < NGRAM_COLS; i++)
            bias[i] = f16_from_f32(synth_uniform(5, (uint64_t)i));
        ngram_row(row, bits, bias, out);
        for (int i = 0; i < NGRAM_COLS; i++) {
            uint32_t state = 0;

            for (int bit = 0; bit < 16; bit++) { /* of the symbol bit / bits places before */
                int at = (i + NGRAM_COLS - bit / bits) % NGRAM_COLS * bits + bit % bits;

                state |= (uint32_t)(row[1 + at / 16] >> at % 16 & 1) << bit;
            }
            cr_expect(f32_bits(out[i]) == f32_bits(f32_from_f16(exl3_value(CODEBOOK_MUL1, state)) *
                                                       f32_from_f16(row[0]) +
                                                   f32_from_f16(bias[i])),
                      "%d bits, value %d", bits, i);
        }
    }
    bed_close(&b);
}

Test(formats, an_ngram_row_of_scale_zero_is_its_bias)
{
    uint16_t row[41] = { 0 }, bias[NGRAM_COLS];
    float out[NGRAM_COLS];

    for (uint32_t first = 0; first < 65536; first += NGRAM_COLS) {
        for (uint32_t i = 0; i < NGRAM_COLS; i++)
            bias[i] = (uint16_t)(first + i);
        ngram_row(row, 4, bias, out);
        for (uint32_t i = 0; i < NGRAM_COLS; i++) {
            float want = f32_from_f16(bias[i]);

            cr_expect(out[i] == want || (out[i] != out[i] && want != want), "%04x: %a", bias[i],
                      out[i]);
        }
    }
}

/* ---- FP8, MXFP4, NVFP4 ----------------------------------------------------------------------- */

static size_t not_zero(const unsigned char *p, size_t bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        n += p[i] != 0;
    return n;
}

/* Pack codes [rows][code_ld bytes] and scales (ld bytes a row) in both layouts; every value must be
 * want's, and what pads the codes, and scales of FP4, zeros. */
static void values_case(const char *name, struct mat m, const unsigned char *codes, size_t code_ld,
                        const unsigned char *scales, size_t scale_ld, const float *want)
{
    for (int layout = LAYOUT_CPU; layout <= LAYOUT_DEVICE; layout++) {
        struct mat_parts p;
        unsigned char *blob;
        int strip;

        m.q.layout = (uint8_t)layout;
        mat_parts(&m, &p);
        blob = malloc(p.total);
        memset(blob, 0x5a, p.total);
        strip = mat_strip(m.dtype, &m.q);
        for (int s = 0; s < mat_strips(&m); s++) {
            int first = s * strip, n = m.rows - first < strip ? m.rows - first : strip;
            int scale_row = m.dtype == DTYPE_FP8 ? first / m.q.block : first;

            mat_pack_codes(&m, codes + (size_t)first * code_ld, code_ld, n,
                           blob + (size_t)s * mat_strip_bytes(m.dtype, &m.q, m.cols));
            mat_pack_scales(&m, s, scales + (size_t)scale_row * scale_ld, scale_ld, n,
                            blob + p.at[PART_SCALES]);
        }
        mat_place(&m, blob);
        cr_expect(
            eq(sz, not_zero(blob, p.bytes[PART_CODES]), not_zero(codes, (size_t)m.rows * code_ld)),
            "%s layout %d", name, layout);
        if (mat_group(m.dtype))
            cr_expect(eq(sz, not_zero(blob + p.at[PART_SCALES], p.bytes[PART_SCALES]),
                         not_zero(scales, (size_t)m.rows * scale_ld)),
                      "%s layout %d", name, layout);
        for (int t = 0; t < (m.rows + 15) / 16; t++) {
            int n_k = (int)mat_round_up((size_t)m.cols, 128);
            float *v = malloc((size_t)n_k * 16 * sizeof(float));

            mat_values(&m, t, 0, n_k, v);
            for (int k = 0; k < n_k; k++)
                for (int n = 0; n < 16; n++) {
                    float w =
                        16 * t + n < m.rows && k < m.cols ? want[(16 * t + n) * m.cols + k] : 0;

                    cr_expect(f32_bits(v[16 * k + n]) == f32_bits(w),
                              "%s layout %d (%d, %d): %a, want %a", name, layout, 16 * t + n, k,
                              v[16 * k + n], w);
                }
            free(v);
        }
        free(blob);
    }
}

Test(formats, fp8_blocks_of_32_and_e8m0_decode_to_golden_values)
{
    struct golden g;
    unsigned char *w, *s;
    float *want;

    golden_open(&g, "fp8_block");
    w = golden_tensor(&g, NULL, "v41.weight");
    s = golden_tensor(&g, NULL, "v41.scale");
    want = golden_tensor(&g, NULL, "v41.expect");
    values_case(
        "v41",
        (struct mat){ .dtype = DTYPE_FP8, .rows = 64, .cols = 96, .q = { .e8m0 = 1, .block = 32 } },
        w, 96, s, 3, want);
    free(w);
    free(s);
    free(want);
    golden_close(&g);
}

Test(formats, fp8_blocks_of_128_and_f32_decode_to_golden_values)
{
    struct golden g;
    unsigned char *w, *s;
    float *rows, *want = calloc(130 * 136, sizeof(float)), grid[4];
    int32_t *index;
    size_t bytes;

    golden_open(&g, "fp8_block");
    w = golden_tensor(&g, NULL, "v3.weight");
    s = golden_tensor(&g, NULL, "v3.weight_scale_inv");
    rows = golden_tensor(&g, NULL, "v3.expect_rows");
    index = golden_tensor(&g, &bytes, "v3.expect_rows_index");
    memcpy(grid, s, sizeof(grid));
    /* The rows that the golden leaves out: by the formula. */
    for (int n = 0; n < 130; n++)
        for (int k = 0; k < 136; k++)
            want[136 * n + k] = f32_from_e4m3(w[136 * n + k]) * grid[n / 128 * 2 + k / 128];
    for (size_t i = 0; i < 4; i++)
        memcpy(want + 136 * (bytes == 16 ? (size_t)index[i] : (size_t)((int64_t *)index)[i]),
               rows + 136 * i, 136 * sizeof(float));
    values_case("v3",
                (struct mat){ .dtype = DTYPE_FP8, .rows = 130, .cols = 136, .q = { .block = 128 } },
                w, 136, s, 8, want);
    free(w);
    free(s);
    free(rows);
    free(want);
    free(index);
    golden_close(&g);
}

/* The smallest blocks that a pack has: every tile of outputs has scales of its own. */
Test(formats, fp8_blocks_of_16_decode_by_the_formula)
{
    unsigned char w[40 * 40], s[3 * 3];
    float want[40 * 40];
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < sizeof(w); i++)
        w[i] = (unsigned char)(bed_int(&b, 127) | bed_int(&b, 2) << 7);
    for (size_t i = 0; i < sizeof(s); i++)
        s[i] = (unsigned char)(100 + 3 * i);
    for (int n = 0; n < 40; n++)
        for (int k = 0; k < 40; k++)
            want[40 * n + k] = f32_from_e4m3(w[40 * n + k]) * f32_from_e8m0(s[n / 16 * 3 + k / 16]);
    values_case(
        "16",
        (struct mat){ .dtype = DTYPE_FP8, .rows = 40, .cols = 40, .q = { .e8m0 = 1, .block = 16 } },
        w, 40, s, 3, want);
    bed_close(&b);
}

Test(formats, mxfp4_decodes_to_golden_values)
{
    struct golden g;
    unsigned char *w, *s;
    float *want;

    golden_open(&g, "mxfp4");
    w = golden_tensor(&g, NULL, "w1.weight");
    s = golden_tensor(&g, NULL, "w1.scale");
    want = golden_tensor(&g, NULL, "expect");
    values_case("mxfp4", (struct mat){ .dtype = DTYPE_MXFP4, .rows = 16, .cols = 128 }, w, 64, s, 4,
                want);
    free(w);
    free(s);
    free(want);
    golden_close(&g);
}

Test(formats, both_namings_of_nvfp4_decode_to_golden_values)
{
    struct golden g;

    golden_open(&g, "nvfp4");
    for (int ct = 0; ct < 2; ct++) {
        unsigned char *w = golden_tensor(&g, NULL, ct ? "ct.weight_packed" : "modelopt.weight");
        unsigned char *s =
            golden_tensor(&g, NULL, ct ? "ct.weight_scale" : "modelopt.weight_scale");
        float *global =
            golden_tensor(&g, NULL, ct ? "ct.weight_global_scale" : "modelopt.weight_scale_2");
        float *want = golden_tensor(&g, NULL, ct ? "ct.expect" : "modelopt.expect");

        values_case(ct ? "compressed-tensors" : "modelopt",
                    (struct mat){ .dtype = DTYPE_NVFP4,
                                  .rows = 8,
                                  .cols = 64,
                                  .q = { .divides = (uint8_t)ct, .global = *global } },
                    w, 32, s, 4, want);
        free(w);
        free(s);
        free(global);
        free(want);
    }
    golden_close(&g);
}

Test(formats, rows_of_lookup_tables_are_fp8_of_groups_in_a_row)
{
    struct golden g;
    unsigned char *w, *s;
    float *want;

    golden_open(&g, "fp8_block");
    w = golden_tensor(&g, NULL, "table.weight");
    s = golden_tensor(&g, NULL, "table.scale");
    want = golden_tensor(&g, NULL, "table.expect");
    for (int r = 0; r < 4; r++) {
        float out[256];

        fp8_row(w + 256 * r, s + 8 * r, 256, out);
        cr_expect(bed_same(out, want + 256 * r, 256), "row %d", r);
    }
    free(w);
    free(s);
    free(want);
    golden_close(&g);
}

/* ---- what a checkpoint must not hold, and sizes ---------------------------------------------- */

Test(formats, bad_numbers_are_found_where_they_are)
{
    static const struct {
        int64_t (*find)(const void *, int64_t);
        size_t each;
        uint32_t good, bad;
    } cases[] = {
        { find_bad_f16, 2, 0x7bff, 0x7c00 },
        { find_bad_f16, 2, 0x8001, 0xfe00 },
        { find_bad_f32, 4, 0xff7fffff, 0xff800000 },
        { find_bad_f32, 4, 1, 0x7fc00000 },
        { find_bad_e4m3, 1, 0xfe, 0xff },
        { find_bad_e4m3, 1, 0x7e, 0x7f },
        { find_bad_e4m3_scale, 1, 0x7e, 0x7f },
        { find_bad_e4m3_scale, 1, 0, 0x80 },
        { find_bad_e8m0, 1, 0xfe, 0xff },
    };
    enum { N = 9000 };
    unsigned char *buf = malloc(N * 4 + 1), *p = buf + 1;

    for (size_t i = 0; i < COUNT(cases); i++)
        for (int64_t at = -1; at < N; at += at % 4096 < 20 || at % 4096 > 4090 ? 1 : 509) {
            for (int64_t j = 0; j < N; j++)
                memcpy(p + (size_t)j * cases[i].each, j == at ? &cases[i].bad : &cases[i].good,
                       cases[i].each);
            cr_expect(eq(i64, cases[i].find(p, N), at), "case %zu at %" PRId64, i, at);
        }
    free(buf);
}

Test(formats, widths_that_no_checkpoint_has_are_refused)
{
    static const int words[] = { 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128 };

    for (int w = 0; w <= 200; w++)
        for (int c = CODEBOOK_3INST; c <= CODEBOOK_MUL1; c++) {
            int known = 0;

            for (size_t i = 0; i < COUNT(words); i++)
                known |= words[i] == w && (w / 8 % 2 == 0 || c == CODEBOOK_MUL1);
            cr_expect(eq(int, exl3_width_ok((enum codebook)c, w), known), "%d words, %s", w,
                      book_names[c]);
        }
}

Test(formats, parts_of_a_blob_are_aligned_and_as_long_as_they_must_be)
{
    static const struct {
        struct mat m;
        size_t bytes[MAT_PARTS];
    } cases[] = {
        { { .dtype = DTYPE_BF16, .rows = 20, .cols = 7 }, { 32 * 7 * 2 } },
        { { .dtype = DTYPE_EXL3,
            .rows = 640,
            .cols = 300,
            .q = { .bits2 = 3, .has_bias = 1, .slices = 5 } },
          { 640 * 384 * 3 / 16, 0, 5 * 384 * 2, 640 * 2, 640 * 2 } },
        { { .dtype = DTYPE_EXL3, .rows = 0, .cols = 128, .q = { .bits2 = 6 } }, { 0 } },
        { { .dtype = DTYPE_EXL3, .rows = 128, .cols = 0, .q = { .bits2 = 6 } }, { 0 } },
        { { .dtype = DTYPE_FP8, .rows = 130, .cols = 136, .q = { .block = 128 } },
          { 144 * 136, 9 * 2 * 4 } },
        { { .dtype = DTYPE_FP8,
            .rows = 130,
            .cols = 136,
            .q = { .block = 32, .e8m0 = 1, .layout = LAYOUT_DEVICE } },
          { 192 * 144, 9 * 5 } },
        { { .dtype = DTYPE_MXFP4, .rows = 40, .cols = 64 }, { 48 * 32, 48 * 2 } },
        { { .dtype = DTYPE_NVFP4, .rows = 40, .cols = 64, .q = { .layout = LAYOUT_DEVICE } },
          { 64 * 32, 64 * 4 } },
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mat_parts p;
        size_t end = 0;

        mat_parts(&cases[i].m, &p);
        for (int j = 0; j < MAT_PARTS; j++) {
            cr_expect(eq(sz, p.bytes[j], cases[i].bytes[j]), "case %zu part %d", i, j);
            if (!p.bytes[j])
                continue;
            cr_expect(p.at[j] % MAT_ALIGN == 0 && p.at[j] >= end);
            end = p.at[j] + p.bytes[j];
        }
        cr_expect(eq(sz, p.total, end));
    }
}

Test(formats, shares_begin_at_whole_blocks)
{
    static const struct {
        struct mat m;
        int rows, cols;
    } cases[] = {
        { { .dtype = DTYPE_BF16 }, 1, 1 },
        { { .dtype = DTYPE_FP8, .q = { .block = 32 } }, 32, 32 },
        { { .dtype = DTYPE_MXFP4 }, 1, 32 },
        { { .dtype = DTYPE_NVFP4 }, 1, 16 },
        { { .dtype = DTYPE_EXL3, .q = { .bits2 = 6 } }, 128, 128 },
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        cr_expect(eq(int, mat_row_unit(cases[i].m.dtype, &cases[i].m.q), cases[i].rows), "%zu", i);
        cr_expect(eq(int, mat_col_unit(cases[i].m.dtype, &cases[i].m.q), cases[i].cols), "%zu", i);
    }
}

Test(formats, kinds_are_a_bit_each_and_experts_of_two_kinds_are_mixed)
{
    static const struct mat wide = { .dtype = DTYPE_EXL3, .q = { .bits2 = 8 } },
                            narrow = { .dtype = DTYPE_EXL3, .q = { .bits2 = 6 } },
                            mx = { .dtype = DTYPE_MXFP4 }, nv = { .dtype = DTYPE_NVFP4 };
    static const struct {
        const struct mat *gate, *up, *down;
        int mixed;
    } cases[] = {
        { &wide, &wide, &wide, 0 }, { &wide, &wide, &narrow, 0 }, { &wide, &narrow, &wide, 1 },
        { &wide, &narrow, &mx, 1 }, { &mx, &mx, &nv, 0 },         { &mx, &nv, &mx, 1 },
        { &wide, &wide, &mx, 1 },   { &mx, &mx, &wide, 1 },
    };
    uint32_t seen = 0;

    for (size_t i = 0; i < COUNT(cases); i++)
        cr_expect(eq(int, mats_mixed(cases[i].gate, cases[i].up, cases[i].down), cases[i].mixed),
                  "case %zu", i);
    for (int t = DTYPE_F32; t < DTYPE_EXL3; t++) {
        uint32_t kind = mat_kind(&(struct mat){ .dtype = (enum dtype)t });

        cr_expect(kind && !(kind & (kind - 1)) && !(seen & kind), "type %d", t);
        seen |= kind;
    }
    for (int bits2 = 2; bits2 <= 16; bits2++) {
        uint32_t kind =
            mat_kind(&(struct mat){ .dtype = DTYPE_EXL3, .q = { .bits2 = (uint8_t)bits2 } });

        cr_expect(kind >= MAT_KIND_EXL3 && !(kind & (kind - 1)) && !(seen & kind), "%d half bits",
                  bits2);
        seen |= kind;
    }
}
