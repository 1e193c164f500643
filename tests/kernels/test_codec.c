#include <errno.h>

#include "kernels/ref/codec.h"
#include "tests/kernels/bed.h"

static const struct {
    enum codec codec;
    const char *name;
    int block, cols;
    size_t bytes;
    double code_top;
} codecs[] = {
    { CODEC_QW, "QW", 32, 512, 528, 448 },
    { CODEC_QC, "QC", 16, 512, 288, 6 },
    { CODEC_QI, "QI", 32, 128, 68, 6 },
};

/* The definition in double, one block: scale by its rule, nearest code, ties to the even one. */
static void naive_block(enum codec c, const float *x, int n, float *y)
{
    double amax = 0, s;

    for (int i = 0; i < n; i++)
        amax = fmax(amax, fabs((double)x[i]));
    if (c == CODEC_QC) {
        s = (double)f32_from_e4m3(e4m3_from_f32((float)fmax(amax, 6 * 0x1p-9) / 6.0f));
    } else {
        float t = c == CODEC_QW ? (float)fmax(amax, (double)1e-4f) * (1.0f / 448.0f)
                                : (float)fmax(amax, 6 * 0x1p-126) * (1.0f / 6.0f);
        int e;

        s = frexp((double)t, &e) == 0.5 ? ldexp(1, e - 1) : ldexp(1, e);
    }
    for (int i = 0; i < n; i++) {
        float v = x[i] / (float)s;

        y[i] = (c == CODEC_QW ? f32_from_e4m3(e4m3_from_f32(v)) : f32_from_e2m1(e2m1_from_f32(v))) *
               (float)s;
    }
}

static void requant(struct bed *b, float *x, int rows, int cols, enum codec c)
{
    b->op->requant(b->q, &(struct requant_args){ .x = x, .rows = rows, .cols = cols, .codec = c });
}

Test(codec, rows_take_the_bytes_of_the_spec)
{
    for (size_t i = 0; i < COUNT(codecs); i++)
        cr_expect(eq(sz, codec_bytes(codecs[i].codec, codecs[i].cols), codecs[i].bytes), "%s",
                  codecs[i].name);
}

Test(codec, follows_the_definition_at_every_magnitude)
{
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(codecs); i++) {
        for (int e = -140; e <= 120; e += 4) {
            int cols = codecs[i].cols;
            float *x = bed_f32(&b, (size_t)cols, 1), want[512];

            for (int k = 0; k < cols; k++)
                x[k] = ldexpf(x[k], e);
            if (codecs[i].codec == CODEC_QC &&
                e > 10) /* its scale saturates; the next test has that */
                continue;
            for (int k = 0; k < cols; k += codecs[i].block)
                naive_block(codecs[i].codec, x + k, codecs[i].block, want + k);
            requant(&b, x, 1, cols, codecs[i].codec);
            cr_expect(bed_same(x, want, (size_t)cols), "%s at 2^%d", codecs[i].name, e);
            free(b.block[--b.blocks]);
        }
    }
    bed_close(&b);
}

Test(codec, blocks_at_the_edges)
{
    /* first value of a block of zeros, and what it reads back as */
    static const struct {
        const char *name;
        enum codec codec;
        float x, y;
    } cases[] = {
        { "QW zero", CODEC_QW, 0, 0 },
        { "QC zero", CODEC_QC, 0, 0 },
        { "QI zero", CODEC_QI, 0, 0 },
        { "QW keeps 448", CODEC_QW, 448, 448 },
        { "QW: 449 doubles the scale, 224.5 ties to 224", CODEC_QW, 449, 448 },
        { "QW: 480 is 240 at scale 2", CODEC_QW, 480, 480 },
        { "QW: below the floor of 1e-4 the scale stays 2^-22", CODEC_QW, 0x1p-31f, 0x1p-31f },
        { "QW: half a unit of the floor ties to zero", CODEC_QW, 0x1p-32f, 0 },
        { "QC: 6 at scale 1", CODEC_QC, 6, 6 },
        { "QC: 6.2 / 6 rounds to the scale 1", CODEC_QC, 6.2f, 6 },
        { "QC: 6.75 / 6 is the scale 1.125", CODEC_QC, 6.75f, 6.75f },
        { "QC: a tie of the scale, 6.375 / 6, goes to the even 1", CODEC_QC, 6.375f, 6 },
        { "QC: 5 / 6 rounds to the scale 0.8125, 6.15 saturates at 6", CODEC_QC, 5, 4.875f },
        { "QC saturates at 448 * 6", CODEC_QC, 5000, 2688 },
        { "QI: 6 at scale 1", CODEC_QI, 6, 6 },
        { "QI: 7 at scale 2 ties 3.5 to 4", CODEC_QI, 7, 8 },
        { "QI: 5 at scale 1 ties to 4", CODEC_QI, 5, 4 },
        { "QI: negative tie", CODEC_QI, -5, -4 },
    };
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        float x[64] = { 0 };

        x[32] = cases[i].x;
        requant(&b, x, 1, 64, cases[i].codec);
        cr_expect(eq(flt, x[32], cases[i].y), "%s", cases[i].name);
        for (int k = 0; k < 64; k++)
            cr_expect(k == 32 || x[k] == 0, "%s: value %d is %a", cases[i].name, k, x[k]);
    }
    bed_close(&b);
}

Test(codec, zero_blocks_store_the_smallest_scale)
{
    static const struct {
        enum codec codec;
        int scale;
    } cases[] = { { CODEC_QW, 127 - 22 }, { CODEC_QC, 1 }, { CODEC_QI, 1 } };
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct state_view v = bed_state(&b, 1, 1, cases[i].codec, 32);
        struct row_info info = { 0 };
        size_t codes = cases[i].codec == CODEC_QW ? 32 : 16;
        float x[32] = { 0 };

        memset(v.base, 0x55, v.row_bytes);
        b.op->row_put(b.q, &(struct row_put_args){ .x = x, .view = v, .info = &info, .rows = 1 });
        for (size_t k = 0; k < codes; k++)
            cr_expect(eq(int, v.base[k], 0));
        cr_expect(eq(int, v.base[codes], cases[i].scale), "case %zu", i);
    }
    bed_close(&b);
}

Test(codec, even_elements_lie_in_low_nibbles)
{
    struct bed b;
    struct state_view v;
    struct row_info info = { 0 };
    float x[32] = { 6, -0.5f, 1, 3 };

    bed_open(&b, 1);
    v = bed_state(&b, 1, 1, CODEC_QI, 32);
    b.op->row_put(b.q, &(struct row_put_args){ .x = x, .view = v, .info = &info, .rows = 1 });
    cr_expect(eq(int, v.base[0], 0x97));
    cr_expect(eq(int, v.base[1], 0x52));
    cr_expect(eq(int, v.base[16], 127));
    bed_close(&b);
}

Test(codec, reading_back_what_was_read_back_changes_nothing)
{
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(codecs); i++) {
        size_t n = 64 * (size_t)codecs[i].cols;
        float *x = bed_f32(&b, n, 30), *once = bed_zeros(&b, n);

        for (size_t k = 0; k < n; k += 7)
            x[k] *= 1e-3f;
        requant(&b, x, 64, codecs[i].cols, codecs[i].codec);
        memcpy(once, x, n * sizeof(*x));
        requant(&b, x, 64, codecs[i].cols, codecs[i].codec);
        cr_expect(bed_same(x, once, n), "%s", codecs[i].name);
        for (size_t k = 0; k < n; k++)
            cr_assert(bf16_round(x[k]) == x[k], "%s: %a is not a bf16", codecs[i].name, x[k]);
    }
    bed_close(&b);
}

/* Rows of more values than are taken at a time: each block is its own. */
Test(codec, long_rows_are_their_blocks)
{
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(codecs); i++) {
        int cols = 2 * 512 + 96;
        size_t n = 3 * (size_t)cols;
        float *x = bed_f32(&b, n, 30), *parts = bed_zeros(&b, n);

        memcpy(parts, x, n * sizeof(*x));
        requant(&b, x, 3, cols, codecs[i].codec);
        requant(&b, parts, (int)n / codecs[i].block, codecs[i].block, codecs[i].codec);
        cr_expect(bed_same(x, parts, n), "%s", codecs[i].name);
    }
    bed_close(&b);
}

Test(codec, a_block_that_is_not_finite_reads_back_as_nan)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(codecs); i++)
        for (size_t k = 0; k < COUNT(bad); k++) {
            float x[64];

            for (int c = 0; c < 64; c++)
                x[c] = 1.5f; /* exact in all three */
            x[40] = bad[k];
            requant(&b, x, 1, 64, codecs[i].codec);
            for (int c = 0; c < 64; c++)
                cr_expect(c / codecs[i].block == 40 / codecs[i].block ? x[c] != x[c] : x[c] == 1.5f,
                          "%s with %f: value %d is %f", codecs[i].name, bad[k], c, x[c]);
        }
    bed_close(&b);
}

/* Value k of a stored row, by the words of ops.h. */
static float stored(enum codec c, const unsigned char *row, int cols, int k)
{
    unsigned char code = row[c == CODEC_QW ? k : k / 2] >> (c == CODEC_QW ? 0 : k % 2 * 4);
    float v;

    switch (c) {
    case CODEC_QW:
        return f32_from_e4m3(code) * f32_from_e8m0(row[cols + k / 32]);
    case CODEC_QC:
        return f32_from_e2m1(code & 15) * f32_from_e4m3(row[cols / 2 + k / 16]);
    case CODEC_QI:
        return f32_from_e2m1(code & 15) * f32_from_e8m0(row[cols / 2 + k / 32]);
    default:
        memcpy(&v, row + 4 * k, sizeof(v));
        return v;
    }
}

/* Rows of any bytes: every code, and every scale that a byte can be. */
Test(codec, a_row_reads_back_as_its_bytes_say_alone_and_in_a_tile)
{
    static const struct {
        enum codec codec;
        int cols;
    } cases[] = { { CODEC_F32, 48 }, { CODEC_QW, 96 },  { CODEC_QC, 48 },         { CODEC_QI, 96 },
                  { CODEC_QI, 128 }, { CODEC_QI, 256 }, { CODEC_QI, DECODE_COLS } };
    static float tile[MAT_TILE * DECODE_COLS], row[DECODE_COLS];
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int n = 1; n <= MAT_TILE; n += 5) {
            int cols = cases[i].cols;
            size_t bytes = codec_bytes(cases[i].codec, cols);
            const unsigned char *rows[MAT_TILE];

            for (int j = 0; j < n; j++) {
                unsigned char *p = bed_take(&b, bytes);

                for (size_t k = 0; k < bytes; k++)
                    p[k] = (unsigned char)(k % 7 ? bed_int(&b, 256) : bed_int(&b, 2) - 1);
                rows[j] = p;
            }
            memset(tile, 0x5a, sizeof(tile));
            codec_decode_tile(cases[i].codec, rows, n, cols, tile);
            for (int j = 0; j < MAT_TILE; j++) {
                memset(row, 0, sizeof(row));
                if (j < n)
                    codec_decode(cases[i].codec, rows[j], cols, row);
                for (int k = 0; k < cols; k++) {
                    float v = tile[k * MAT_TILE + j],
                          want = j < n ? stored(cases[i].codec, rows[j], cols, k) : 0;

                    cr_assert(v != v ? row[k] != row[k] && want != want
                                     : v == want && row[k] == want,
                              "case %zu, %d rows, row %d value %d: %a, %a, want %a", i, n, j, k,
                              (double)v, (double)row[k], (double)want);
                }
            }
            while (b.blocks > 0)
                free(b.block[--b.blocks]);
        }
    bed_close(&b);
}

Test(codec, rows_that_are_not_whole_blocks_fail_the_queue)
{
    struct bed b;
    float x[40] = { 1 };

    bed_open(&b, 1);
    requant(&b, x, 1, 40, CODEC_QW);
    cr_expect(eq(int, bed_wait(&b), -EINVAL));
    cr_expect(eq(flt, x[0], 1));
    bed_close(&b);
}
