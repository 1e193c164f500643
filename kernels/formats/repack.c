/* repack.c owns the change of order between a checkpoint and a blob. Packs of hundreds of GB go
 * through here, so the loops move words, not bits. */
#include "kernels/formats/repack.h"

#include <string.h>

#include "kernels/formats/exl3.h"
#include "kernels/ref/simd.h"

#define STRIP_TILES 8 /* column tiles of an EXL3 strip */
#define LANES 32

int mat_strips(const struct mat *m)
{
    int strip = mat_strip(m->dtype, &m->q);

    return (m->rows + strip - 1) / strip;
}

static int k_steps(const struct mat *m)
{
    return (int)(mat_round_up((size_t)m->cols, EXL3_BLOCK) / EXL3_TILE);
}

static uint32_t load_u32(const unsigned char *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* ---- EXL3 ------------------------------------------------------------------------------------ */

/* Pair c owns 2 bits2 of the tile's 16-bit units in ring order; a word's upper half comes first. */
static int unit_index(int unit)
{
    return unit ^ 1;
}

static void columns_put(const unsigned char *tile, int bits2, unsigned char *out)
{
    if (bits2 % 2 == 0) {
        int words = bits2 / 2;

        for (int i = 0; i < words; i++)
            for (int c = 0; c < 8; c++)
                memcpy(out + 4 * (8 * i + c), tile + 4 * (words * c + i), 4);
        return;
    }
    for (int i = 0; i < bits2; i++)
        for (int c = 0; c < 8; c++)
            memcpy(out + 2 * (8 * i + c), tile + 2 * unit_index(bits2 * c + i), 2);
}

static void columns_get(const unsigned char *in, int bits2, unsigned char *tile)
{
    if (bits2 % 2 == 0) {
        int words = bits2 / 2;

        for (int i = 0; i < words; i++)
            for (int c = 0; c < 8; c++)
                memcpy(tile + 4 * (words * c + i), in + 4 * (8 * i + c), 4);
        return;
    }
    for (int i = 0; i < bits2; i++)
        for (int c = 0; c < 8; c++)
            memcpy(tile + 2 * unit_index(bits2 * c + i), in + 2 * (8 * i + c), 2);
}

/* The tile's ring as bytes, first bit highest, and 8 bytes of room behind them. */
static void ring_bytes(const unsigned char *tile, int bits2, unsigned char *ring)
{
    for (int i = 0; i < 4 * bits2; i++) {
        uint32_t be = __builtin_bswap32(load_u32(tile + 4 * i));

        memcpy(ring + 4 * i, &be, sizeof(be));
    }
    memset(ring + 16 * bits2, 0, 8);
}

#define RING_MAX (2 * EXL3_WORDS_MAX + 8)

/* One lane-major group: every lane's bits of tile after tile run through a shift register into
 * words. bits2 is a constant where this is inlined, so that shifts and counts are too. */
static ALWAYS_INLINE void lanes_put(const unsigned char *src, size_t ld, const int bits2,
                                    uint32_t *out)
{
    const int own = 4 * bits2, tiles = STRIP_TILES * exl3_group(bits2); /* own: at most 64 bits */
    unsigned char ring[4 * STRIP_TILES][RING_MAX];

    for (int i = 0; i < tiles; i++)
        ring_bytes(src + (size_t)(i / STRIP_TILES) * ld + (size_t)(i % STRIP_TILES * 16 * bits2),
                   bits2, ring[i]);
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t reg = 0;
        int held = 0, word = 0;

#pragma GCC unroll 32
        for (int i = 0; i < tiles; i++) {
            uint64_t bits;

            memcpy(&bits, ring[i] + lane * own / 8, sizeof(bits));
            bits = __builtin_bswap64(bits) << (lane * own % 8);
            for (int left = own; left > 0; left -= 32) { /* 32 at a time: fewer than 32 are held */
                const int n = left < 32 ? left : 32;

                reg = reg << n | bits >> (64 - n);
                bits = n < 64 ? bits << n : 0;
                held += n;
                if (held >= 32) {
                    held -= 32;
                    out[(word / 4 * LANES + lane) * 4 + word % 4] = (uint32_t)(reg >> held);
                    word++;
                }
            }
        }
    }
}

static void group_put(const unsigned char *src, size_t ld, int bits2, uint32_t *out)
{
#define GROUP_PUT(b)                                                                               \
    case b:                                                                                        \
        lanes_put(src, ld, b, out);                                                                \
        break;
    switch (bits2) {
        GROUP_PUT(2)
        GROUP_PUT(3)
        GROUP_PUT(4)
        GROUP_PUT(5)
        GROUP_PUT(6)
        GROUP_PUT(7)
        GROUP_PUT(8)
        GROUP_PUT(10)
        GROUP_PUT(12)
        GROUP_PUT(14)
        GROUP_PUT(16)
    }
#undef GROUP_PUT
}

static void lanes_get(const uint32_t *group, int bits2, int index, unsigned char *tile)
{
    int own = 4 * bits2;
    uint32_t ring[2 * EXL3_WORDS_MAX / 4] = { 0 };

    for (int lane = 0; lane < LANES; lane++)
        for (int b = 0; b < own; b++) {
            int from = index * own + b, to = lane * own + b, word = from / 32;
            uint32_t w = group[(word / 4 * LANES + lane) * 4 + word % 4];

            ring[to / 32] |= (w >> (31 - from % 32) & 1) << (31 - to % 32);
        }
    memcpy(tile, ring, (size_t)(16 * bits2));
}

static void exl3_pack(const struct mat *m, const unsigned char *src, size_t ld,
                      unsigned char *strip)
{
    int steps = k_steps(m), bits2 = m->q.bits2, group = exl3_group(bits2);
    size_t bytes = (size_t)(16 * bits2); /* of a tile */

    if (m->q.layout == LAYOUT_DEVICE) {
        for (int s = 0; s < steps; s += group)
            group_put(src + (size_t)s * ld, ld, bits2,
                      (uint32_t *)(strip + (size_t)s * STRIP_TILES * bytes));
        return;
    }
    for (int s = 0; s < steps; s++)
        for (int t = 0; t < STRIP_TILES; t++)
            columns_put(src + (size_t)s * ld + (size_t)t * bytes, bits2,
                        strip + ((size_t)t * (size_t)steps + (size_t)s) * bytes);
}

void exl3_tile_get(const struct mat *m, const void *strip, int kstep, int column, uint16_t *tile)
{
    int steps = k_steps(m), bits2 = m->q.bits2, group = exl3_group(bits2);
    const unsigned char *s = strip;
    size_t bytes = (size_t)(16 * bits2);

    if (m->q.layout == LAYOUT_CPU)
        columns_get(s + ((size_t)column * (size_t)steps + (size_t)kstep) * bytes, bits2,
                    (unsigned char *)tile);
    else
        lanes_get((const uint32_t *)(s + (size_t)(kstep / group * group) * STRIP_TILES * bytes),
                  bits2, kstep % group * STRIP_TILES + column, (unsigned char *)tile);
}

/* ---- FP8, FP4 -------------------------------------------------------------------------------- */

/* Where input k of a k-step goes in an output's column of a device strip, in codes. */
static void lane_places(int n, int place[16])
{
    for (int k = 0; k < 16; k++) {
        int pos = exl3_tile_pos(k, n % 16);

        place[k] = pos / 8 * 32 + n / 16 * 8 + pos % 8; /* [lane][4 tiles][8 codes] */
    }
}

static void fp8_output(const struct mat *m, const unsigned char *row, int n, unsigned char *strip)
{
    int place[16], cols = m->cols;

    if (m->q.layout == LAYOUT_CPU) {
        for (int k = 0; k < cols; k++)
            strip[(size_t)k * MAT_TILE + (size_t)n] = row[k];
        return;
    }
    lane_places(n, place);
    for (int k = 0; k < 16; k++) /* [2 chunks][lane][2 tiles][8 codes] */
        place[k] = place[k] / 16 % 2 * 512 + place[k] / 32 * 16 + place[k] % 16;
    for (int k0 = 0; k0 < cols; k0 += 16)
        for (int k = 0; k < 16 && k0 + k < cols; k++)
            strip[(size_t)k0 * 64 + (size_t)place[k]] = row[k0 + k];
}

static void fp4_output(const struct mat *m, const unsigned char *row, int n, unsigned char *strip)
{
    int place[16], pairs = m->cols / 2;

    if (m->q.layout == LAYOUT_CPU) {
        for (int i = 0; i < pairs; i++)
            strip[(size_t)i * MAT_TILE + (size_t)n] = row[i];
        return;
    }
    /* Inputs 2 i and 2 i + 1 are neighbours in the ring, so a byte stays a byte. */
    lane_places(n, place);
    for (int i0 = 0; i0 < pairs; i0 += 8)
        for (int i = 0; i < 8; i++)
            strip[(size_t)i0 * 64 + (size_t)(place[2 * i] / 2)] = row[i0 + i];
}

void mat_pack_codes(const struct mat *m, const void *src, size_t ld, int outputs, void *strip)
{
    if (m->dtype == DTYPE_EXL3) {
        exl3_pack(m, src, ld, strip);
        return;
    }
    memset(strip, 0, mat_strip_bytes(m->dtype, &m->q, m->cols));
    for (int n = 0; n < outputs; n++) {
        const unsigned char *row = (const unsigned char *)src + (size_t)n * ld;

        if (m->dtype == DTYPE_FP8)
            fp8_output(m, row, n, strip);
        else
            fp4_output(m, row, n, strip);
    }
}

static void fp8_scales(const struct mat *m, int strip, const unsigned char *src, size_t ld,
                       unsigned char *scales)
{
    int wide = mat_strip(m->dtype, &m->q), first = strip * wide;
    size_t each = m->q.e8m0 ? 1 : 4,
           row = mat_round_up((size_t)m->cols, (size_t)m->q.block) / (size_t)m->q.block * each;

    for (int n = first; n < first + wide && n < m->rows; n += MAT_TILE)
        memcpy(scales + (size_t)(n / MAT_TILE) * row,
               src + (size_t)(n / m->q.block - first / m->q.block) * ld, row);
}

void mat_pack_scales(const struct mat *m, int strip, const void *src, size_t ld, int outputs,
                     void *scales)
{
    const unsigned char *in = src;
    size_t wide = (size_t)mat_strip(m->dtype, &m->q);
    size_t groups = mat_group(m->dtype) ? (size_t)(m->cols / mat_group(m->dtype)) : 0;
    unsigned char *out = (unsigned char *)scales + (size_t)strip * groups * wide;

    if (m->dtype == DTYPE_FP8) {
        fp8_scales(m, strip, in, ld, scales);
        return;
    }
    memset(out, 0, groups * wide);
    for (int n = 0; n < outputs; n++)
        for (size_t g = 0; g < groups; g++)
            out[g * wide + (size_t)(wide == 64 ? n % 8 * 8 + n / 8 : n)] = in[(size_t)n * ld + g];
}

/* ---- checks ---------------------------------------------------------------------------------- */

int64_t find_bad_f16(const void *src, int64_t n)
{
    const unsigned char *p = src;

    for (int64_t i = 0; i < n; i++)
        if ((p[2 * i + 1] & 0x7c) == 0x7c)
            return i;
    return -1;
}

int64_t find_bad_f32(const void *src, int64_t n)
{
    const unsigned char *p = src;

    for (int64_t i = 0; i < n; i++)
        if ((load_u32(p + 4 * i) & 0x7f800000u) == 0x7f800000u)
            return i;
    return -1;
}

/* Blocks without a bad byte are passed over quickly: the loop inside has no exit and becomes vector
 * code. */
#define SCAN_BLOCK 4096
#define FIND_BAD(name, bad)                                                                        \
    int64_t name(const void *src, int64_t n)                                                       \
    {                                                                                              \
        const unsigned char *p = src;                                                              \
                                                                                                   \
        for (int64_t at = 0; at < n; at += SCAN_BLOCK) {                                           \
            int64_t end = at + SCAN_BLOCK < n ? at + SCAN_BLOCK : n;                               \
            unsigned char found = 0;                                                               \
                                                                                                   \
            for (int64_t i = at; i < end; i++)                                                     \
                found |= (unsigned char)(bad);                                                     \
            for (int64_t i = at; found && i < end; i++)                                            \
                if (bad)                                                                           \
                    return i;                                                                      \
        }                                                                                          \
        return -1;                                                                                 \
    }

FIND_BAD(find_bad_e4m3, (p[i] & 0x7f) == 0x7f)
FIND_BAD(find_bad_e4m3_scale, p[i] >= 0x7f)
FIND_BAD(find_bad_e8m0, p[i] == 0xff)
