#include <stdio.h>

#include "tests/kernels/bed.h"

/* The golden file is a safetensors container: header length, JSON, data. Only offsets are looked
 * for. */
struct golden {
    char *bytes;
    const char *data;
};

static void golden_open(struct golden *g)
{
    FILE *f = fopen(VECTORS "/formats/smallfloat_tables.safetensors", "rb");
    uint64_t header;
    size_t n;

    cr_assert(f != NULL);
    g->bytes = calloc(1, 1 << 16);
    n = fread(g->bytes, 1, (1 << 16) - 1, f);
    fclose(f);
    memcpy(&header, g->bytes, sizeof(header));
    cr_assert(header + 8 < n);
    g->data = g->bytes + 8 + header;
}

static const void *golden_tensor(const struct golden *g, const char *name, size_t bytes)
{
    char key[64], *at;
    size_t lo, hi;

    snprintf(key, sizeof(key), "\"%s\"", name);
    at = strstr(g->bytes + 8, key);
    cr_assert(at != NULL, "%s", name);
    at = strstr(at, "\"data_offsets\"");
    cr_assert(eq(int, sscanf(strchr(at, '['), "[%zu,%zu]", &lo, &hi), 2), "%s", name);
    cr_assert(eq(sz, hi - lo, bytes), "%s", name);
    return g->data + lo;
}

static void expect_table(const struct golden *g, const char *name, int n, float (*decode)(uint8_t))
{
    const unsigned char *want = golden_tensor(g, name, (size_t)n * 4);

    for (int c = 0; c < n; c++) {
        float w, x = decode((uint8_t)c);

        memcpy(&w, want + 4 * c, sizeof(w));
        cr_expect(w != w ? x != x : f32_bits(w) == f32_bits(x), "%s code %d: %a, want %a", name, c,
                  x, w);
    }
}

static float e2m1(uint8_t c)
{
    return f32_from_e2m1(c);
}

static float e4m3(uint8_t c)
{
    return f32_from_e4m3(c);
}

static float e8m0(uint8_t c)
{
    return f32_from_e8m0(c);
}

Test(numfmt, decodes_every_code_as_the_golden_tables)
{
    struct golden g;

    golden_open(&g);
    expect_table(&g, "e2m1", 16, e2m1);
    expect_table(&g, "e4m3", 256, e4m3);
    expect_table(&g, "e8m0", 256, e8m0);
    free(g.bytes);
}

Test(numfmt, casts_round_as_the_golden_cases)
{
    struct golden g;
    const int n = 29;
    uint32_t f32;
    uint16_t f16, bf16;

    golden_open(&g);
    for (int i = 0; i < n; i++) {
        memcpy(&f32, (const char *)golden_tensor(&g, "cast.f32_bits", 4 * n) + 4 * i, 4);
        memcpy(&f16, (const char *)golden_tensor(&g, "cast.f16_bits", 2 * n) + 2 * i, 2);
        memcpy(&bf16, (const char *)golden_tensor(&g, "cast.bf16_bits", 2 * n) + 2 * i, 2);
        cr_expect(eq(u16, f16_from_f32(f32_from_bits(f32)), f16), "f16 of %08x", f32);
        cr_expect(eq(u16, bf16_from_f32(f32_from_bits(f32)), bf16), "bf16 of %08x", f32);
    }
    free(g.bytes);
}

Test(numfmt, sixteen_bit_values_survive_a_round_trip)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f32_from_f16((uint16_t)h), b = f32_from_bf16((uint16_t)h);

        if (f == f)
            cr_assert(eq(u16, f16_from_f32(f), (uint16_t)h));
        else
            cr_assert(f16_from_f32(f) == (h | 0x200));
        if (b == b)
            cr_assert(eq(u16, bf16_from_f32(b), (uint16_t)h));
        else
            cr_assert(bf16_from_f32(b) == (h | 0x40));
    }
}

/* Nearest of the codes 0 .. top, among two equally near the even one; by distances in double. */
static int nearest(double x, int top, float (*decode)(uint8_t))
{
    int best = 0;

    x = fmin(x, (double)decode((uint8_t)top)); /* they saturate */
    for (int c = 1; c <= top; c++) {
        double d = fabs(x - (double)decode((uint8_t)c)),
               e = fabs(x - (double)decode((uint8_t)best));

        if (d < e || (d == e && c % 2 == 0))
            best = c;
    }
    return best;
}

static void expect_nearest(float x)
{
    int e4 = nearest(fabs((double)x), 0x7e, e4m3), e2 = nearest(fabs((double)x), 7, e2m1);
    int sign = signbit(x) != 0;

    cr_expect(eq(int, e4m3_from_f32(x), e4 | sign << 7), "e4m3 of %a", x);
    cr_expect(eq(int, e2m1_from_f32(x), e2 | sign << 3), "e2m1 of %a", x);
}

Test(numfmt, small_encoders_take_the_nearest_code_and_the_even_one_of_two)
{
    /* every border between two codes, and its neighbours */
    for (int c = 0; c < 0x7e; c++) {
        float mid = (e4m3((uint8_t)c) + e4m3((uint8_t)(c + 1))) / 2;

        expect_nearest(mid);
        expect_nearest(nextafterf(mid, 1000));
        expect_nearest(-nextafterf(mid, 0));
    }
    for (int c = 0; c < 7; c++) {
        float mid = (e2m1((uint8_t)c) + e2m1((uint8_t)(c + 1))) / 2;

        expect_nearest(mid);
        expect_nearest(-nextafterf(mid, 1000));
        expect_nearest(nextafterf(mid, 0));
    }
    for (int i = 0; i < 20000; i++)
        expect_nearest(ldexpf(synth_uniform(3, (uint64_t)i), i % 24 - 12));
    expect_nearest(1e30f);
    expect_nearest(-0x1p-140f);
    expect_nearest(0x1p-149f);
    cr_expect(eq(int, e4m3_from_f32(INFINITY), 0x7e));
    cr_expect(eq(int, e4m3_from_f32(NAN) & 0x7f, 0x7f));
    cr_expect(eq(int, e2m1_from_f32(-INFINITY), 15));
}

Test(numfmt, pow2ceil_is_the_next_power_of_two)
{
    static const struct {
        float t;
        int byte;
    } cases[] = {
        { 1, 127 },       { 0x1.000002p0f, 128 }, { 0.75f, 127 },           { 0.5f, 126 },
        { 0x1p-126f, 1 }, { 0x1p127f, 254 },      { 0x1.000002p127f, 255 }, { INFINITY, 255 },
        { NAN, 255 },     { 0x1p-127f, 1 },
    };

    for (size_t i = 0; i < COUNT(cases); i++)
        cr_expect(eq(int, pow2ceil_e8m0(cases[i].t), cases[i].byte), "%a", cases[i].t);
}
