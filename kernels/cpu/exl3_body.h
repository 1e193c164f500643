/* exl3_body - EXL3 strips for one instruction set; included once by each set_*.c, which defines
 * before
 *
 *   LANES     8 or 16: column pairs that a vector holds, of one or two tiles side by side
 *   vf vu vi  vectors of LANES f32, u32, i32
 *   mul_add(a, b, c)     a * b + c; fused or not: here the product is always exact
 *   byte_sum(x)          2^23 + the sum of the four bytes of each u32, as f32
 *   f16_load(p)          LANES f16 numbers as f32
 *   f16_round(v)         rounded to f16, any value
 *
 * A tile lies transposed (kernels/mat.h), so that one vector has the same 16-bit unit of every
 * column pair and each of the 32 positions of a pair is the same shift in all lanes: one row of 8
 * outputs, without a gather.
 */

#define TILES (LANES / 8)       /* column tiles side by side */
#define STEPS (EXL3_BLOCK / 16) /* tiles of a block of inputs */
#define AHEAD 2048              /* bytes from a tile to what is fetched while it is decoded */

/* Values of a block of inputs, a row of MAT_TILE an input: of one tile, or of two as two tiles of
 * halves. */
#define PANEL_HALF (TILES == 1 ? LANES : EXL3_BLOCK * MAT_TILE)
#define PANEL_FLOATS (TILES * EXL3_BLOCK * MAT_TILE)

typedef float vf_mem __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t words8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t units8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t lanes8 __attribute__((vector_size(32)));

static ALWAYS_INLINE lanes8 load8(const unsigned char *tile, int row, const int bits2)
{
    if (bits2 % 2)
        return __builtin_convertvector(*(const units8 *)(tile + 16 * row), lanes8);
    return (lanes8) * (const words8 *)(tile + 32 * row);
}

/* Row `row` of a tile of words or units; tiles side by side are `apart` bytes apart. */
static ALWAYS_INLINE vu load_row(const unsigned char *tile, size_t apart, int row, const int bits2)
{
#if LANES == 16
    return __builtin_shufflevector(load8(tile, row, bits2), load8(tile + apart, row, bits2), 0, 1,
                                   2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    return load8(tile, row, bits2);
#endif
}

/* Every pair gets what the pair before it has: the ring goes on there. */
static ALWAYS_INLINE vu pair_before(vu v)
{
#if LANES == 16
    return __builtin_shufflevector(v, v, 7, 0, 1, 2, 3, 4, 5, 6, 15, 8, 9, 10, 11, 12, 13, 14);
#else
    return __builtin_shufflevector(v, v, 7, 0, 1, 2, 3, 4, 5, 6);
#endif
}

/* piece[j]: unit j of the pair in the low half, the unit before it above. */
static ALWAYS_INLINE void load_pieces(const unsigned char *tile, size_t apart, const int bits2,
                                      vu piece[16])
{
    const int rows = bits2 % 2 ? bits2 : bits2 / 2;
    vu last = pair_before(load_row(tile, apart, rows - 1, bits2));

#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        vu v = load_row(tile, apart, i, bits2);

        if (bits2 % 2) {
            piece[i] = last << 16 | v;
        } else {
            piece[2 * i] = last << 16 | v >> 16;
            piece[2 * i + 1] = v;
        }
        last = v;
    }
}

/* The codebook's number. All books make 2^13 times the number before its rounding to f16; adding
 * its own 2^-13 part rounds it to 11 bits, which is that rounding: no number of theirs is
 * subnormal. */
static ALWAYS_INLINE vf book_value(vu state, const int book)
{
    vf wide;

    if (book == CODEBOOK_MUL1) {
#ifdef FUSED
        wide = mul_add(byte_sum(state * 0x83dcd12du), vf_of(55.4375f), vf_of(-465071744.0f));
#else
        wide = (byte_sum(state * 0x83dcd12du) - 0x1p23f) * 55.4375f - 28288;
#endif
    } else {
        vu x = book == CODEBOOK_MCG ? state * 0xcbac1fedu : state * 89226354u + 64248484u;
        vu lo, hi;

        x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
        lo = ((vu)((vi)(x << 16) >> 3) & 0x8fffe000u) + 0x3e800000u;
        hi = ((vu)((vi)x >> 3) & 0x8fffe000u) + 0x3e800000u;
        wide = (vf)lo + (vf)hi;
    }
    return wide * (1 + 0x1p-13f) - wide;
}

/* 16 inputs of TILES tiles. one: add them, times x, to the sums of outputs 0-7 and 8-15 of each
 * tile. Else lay the values down: outputs 0-7 of all tiles in the panel's first half, outputs 8-15
 * in its second. */
static ALWAYS_INLINE void tile_step(const unsigned char *tile, size_t apart, const int bits2,
                                    const int book, const bool one, const float *x, vf acc[2],
                                    float *panel)
{
    vu piece[16];

    load_pieces(tile, apart, bits2, piece);
#pragma GCC unroll 16
    for (int row = 0; row < 16; row++) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const int q = 8 * (row % 8 / 2) + row % 2 + 2 * (row / 8) + 4 * half;
            const int end = (q + 1) * bits2 / 2, j = (end - 1) / 16;
            vf v = book_value(piece[j] >> (16 * (j + 1) - end) & 0xffff, book);

            if (one)
                acc[half] = mul_add(v, vf_of(x[row]), acc[half]);
            else
                *(vf_mem *)(panel + half * PANEL_HALF + row * MAT_TILE) = v;
        }
    }
}

/* ---- rotations ------------------------------------------------------------------------------- */

#define BLOCK_VECS (EXL3_BLOCK / LANES)

/* One stage inside a vector: lanes with the stride's bit get a - b, the others a + b, a from the
 * lower lane. */
static ALWAYS_INLINE vf stage(vf v, const vi partner, const vu sign)
{
    return __builtin_shuffle(v, partner) + (vf)((vu)v ^ sign);
}

static ALWAYS_INLINE void butterflies(vf v[BLOCK_VECS])
{
    const vi lane = LANE_NUMBERS;

#pragma GCC unroll 16
    for (int i = 0; i < BLOCK_VECS; i++) {
#pragma GCC unroll 4
        for (int stride = 1; stride < LANES; stride *= 2)
            v[i] = stage(v[i], lane ^ stride, (vu)((lane & stride) != 0) & 0x80000000u);
    }
#pragma GCC unroll 4
    for (int stride = 1; stride < BLOCK_VECS; stride *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < BLOCK_VECS; i++)
            if ((i & stride) == 0) {
                vf a = v[i], b = v[i + stride];

                v[i] = a + b;
                v[i + stride] = a - b;
            }
    }
}

/* exl3_rotate_in, order P */
static void rotate_in(const float *x, int n, const uint16_t *suh, float *out)
{
    float padded[EXL3_BLOCK];
    vf v[BLOCK_VECS];

    if (n < EXL3_BLOCK) {
        memcpy(padded, x, (size_t)n * sizeof(*x));
        memset(padded + n, 0, (size_t)(EXL3_BLOCK - n) * sizeof(*x));
        x = padded;
    }
    for (int i = 0; i < BLOCK_VECS; i++)
        v[i] = *(const vf_mem *)(x + i * LANES) * f16_load(suh + i * LANES);
    butterflies(v);
    for (int i = 0; i < BLOCK_VECS; i++)
        *(vf_mem *)(out + i * LANES) = f16_round(v[i] * EXL3_SCALE);
}

/* exl3_rotate_out, from the order that tile_step leaves. */
static void rotate_out(float *z, const uint16_t *svh, const uint16_t *bias)
{
    vf v[BLOCK_VECS];

#if LANES == 16
    for (int i = 0; i < BLOCK_VECS; i += 2) {
        vf a = *(const vf_mem *)(z + i * LANES), b = *(const vf_mem *)(z + (i + 1) * LANES);

        v[i] =
            __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
        v[i + 1] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28,
                                           29, 30, 31);
    }
#else
    for (int i = 0; i < BLOCK_VECS; i++)
        v[i] = *(const vf_mem *)(z + i * LANES);
#endif
    butterflies(v);
    for (int i = 0; i < BLOCK_VECS; i++) {
        v[i] = v[i] * EXL3_SCALE * f16_load(svh + i * LANES);
        if (bias)
            v[i] = v[i] + f16_load(bias + i * LANES);
        *(vf_mem *)(z + i * LANES) = v[i];
    }
}

/* ---- a strip --------------------------------------------------------------------------------- */

/* A strip's column tiles are `column` bytes apart; from k-step `step` on. */
static ALWAYS_INLINE void one_row(const unsigned char *strip, size_t column, int step, int steps,
                                  const int bits2, const int book, const float *x, float *z)
{
    for (int t = 0; t < EXL3_BLOCK / 16; t += TILES) {
        const unsigned char *tile = strip + (size_t)t * column + (size_t)step * 16 * bits2;
        vf acc[2] = { *(const vf_mem *)(z + 16 * t), *(const vf_mem *)(z + 16 * t + LANES) };

        for (int s = 0; s < steps; s++, tile += 16 * bits2) {
            for (int line = 0; line < 16 * bits2; line += 64)
                for (int i = 0; i < TILES; i++)
                    __builtin_prefetch(tile + AHEAD + line + (size_t)i * column);
            tile_step(tile, column, bits2, book, true, x + 16 * s, acc, NULL);
        }
        *(vf_mem *)(z + 16 * t) = acc[0];
        *(vf_mem *)(z + 16 * t + LANES) = acc[1];
    }
}

/* A block of inputs of the TILES column tiles at strip. */
static ALWAYS_INLINE void block_values(const unsigned char *strip, size_t column, int step,
                                       const int bits2, const int book, float *panel)
{
    const unsigned char *tile = strip + (size_t)step * 16 * bits2;

    for (int s = 0; s < STEPS; s++)
        tile_step(tile + s * 16 * bits2, column, bits2, book, false, NULL, NULL,
                  panel + 16 * s * MAT_TILE);
}

#ifndef ROWS_AT_ONCE
#define ROWS_AT_ONCE (LANES == 16 ? 8 : 4) /* whose sums registers hold */
#endif

static ALWAYS_INLINE void few_rows_add(const float *panel, const int R, const float *x, float *z,
                                       size_t ldz)
{
    vf acc[ROWS_AT_ONCE][2];

#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        for (int half = 0; half < 2; half++)
            acc[r][half] = *(const vf_mem *)(z + (size_t)r * ldz + half * LANES);
    for (int k = 0; k < EXL3_BLOCK; k++) {
        vf lo = *(const vf_mem *)(panel + k * MAT_TILE);
        vf hi = *(const vf_mem *)(panel + PANEL_HALF + k * MAT_TILE);

#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            vf by = vf_of(x[r * EXL3_BLOCK + k]);

            acc[r][0] = mul_add(lo, by, acc[r][0]);
            acc[r][1] = mul_add(hi, by, acc[r][1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        for (int half = 0; half < 2; half++)
            *(vf_mem *)(z + (size_t)r * ldz + half * LANES) = acc[r][half];
}

/* z[r] += panel x[r] for all rows; x [rows][EXL3_BLOCK]. */
static ALWAYS_INLINE void rows_add(const float *panel, int rows, const float *x, float *z,
                                   size_t ldz)
{
    for (int left = rows; left > 0;) {
        int n = left >= 4 && left < 8 ? 4 : left;

        n = n < ROWS_AT_ONCE ? n : ROWS_AT_ONCE;
        if (n == ROWS_AT_ONCE)
            few_rows_add(panel, ROWS_AT_ONCE, x, z, ldz);
        else if (ROWS_AT_ONCE > 4 && n == 4)
            few_rows_add(panel, 4, x, z, ldz);
        else if (ROWS_AT_ONCE > 3 && n == 3)
            few_rows_add(panel, 3, x, z, ldz);
        else if (ROWS_AT_ONCE > 2 && n == 2)
            few_rows_add(panel, 2, x, z, ldz);
        else
            few_rows_add(panel, 1, x, z, ldz);
        left -= n;
        x += n * EXL3_BLOCK;
        z += (size_t)n * ldz;
    }
}

struct decoder {
    void (*one)(const unsigned char *strip, size_t column, int step, int steps, const float *x,
                float *z);
    void (*values)(const unsigned char *strip, size_t column, int step, float *panel);
};

#define DECODER(book, bits2)                                                                       \
    static void one_##book##_##bits2(const unsigned char *strip, size_t column, int step,          \
                                     int steps, const float *x, float *z)                          \
    {                                                                                              \
        one_row(strip, column, step, steps, bits2, book, x, z);                                    \
    }                                                                                              \
    static void values_##book##_##bits2(const unsigned char *strip, size_t column, int step,       \
                                        float *panel)                                              \
    {                                                                                              \
        block_values(strip, column, step, bits2, book, panel);                                     \
    }
#define WHOLE_WIDTHS(F, book)                                                                      \
    F(book, 2) F(book, 4) F(book, 6) F(book, 8) F(book, 10) F(book, 12) F(book, 14) F(book, 16)
#define ALL_WIDTHS(F)                                                                              \
    WHOLE_WIDTHS(F, CODEBOOK_3INST)                                                                \
    WHOLE_WIDTHS(F, CODEBOOK_MCG)                                                                  \
    WHOLE_WIDTHS(F, CODEBOOK_MUL1)                                                                 \
    F(CODEBOOK_MUL1, 3) F(CODEBOOK_MUL1, 5) F(CODEBOOK_MUL1, 7)

ALL_WIDTHS(DECODER)

#define DECODER_ENTRY(book, bits2)                                                                 \
    [book][bits2] = { one_##book##_##bits2, values_##book##_##bits2 },
static const struct decoder decoders[3][17] = { ALL_WIDTHS(DECODER_ENTRY) };

#define ROTATED (STRIP_ROWS * STRIP_INPUTS) /* floats of rotated inputs at a time */
#define ONE_BLOCKS 8 /* blocks of one row: enough for a long run through each column tile */

static void exl3_strip(const struct strip *s, float *y, size_t ldy)
{
    const struct mat *w = s->w;
    const struct decoder *d = &decoders[w->q.codebook][w->q.bits2];
    int blocks = (w->cols + EXL3_BLOCK - 1) / EXL3_BLOCK;
    int run = s->rows == 1 ? ONE_BLOCKS : 1;
    size_t column = (size_t)blocks * STEPS * 16 * w->q.bits2;
    const unsigned char *strip = (const unsigned char *)w->data + (size_t)(s->first / 16) * column;
    float in[ROTATED] __attribute__((aligned(64))),
        panel[PANEL_FLOATS] __attribute__((aligned(64)));

    for (int r = 0; r < s->rows; r++)
        memset(y + (size_t)r * ldy, 0, EXL3_BLOCK * sizeof(*y));
    for (int b = 0; b < blocks; b += run) {
        int n = blocks - b < run ? blocks - b : run;

        for (int r = 0; r < s->rows; r++)
            for (int i = 0; i < n; i++) {
                int k = (b + i) * EXL3_BLOCK, left = w->cols - k;

                rotate_in(s->x[r] + k, left < EXL3_BLOCK ? left : EXL3_BLOCK, strip_suh(s, k),
                          in + (r + i) * EXL3_BLOCK);
            }
        if (s->rows == 1) {
            d->one(strip, column, b * STEPS, n * STEPS, in, y);
            continue;
        }
        for (int t = 0; t < EXL3_BLOCK / 16; t += TILES) {
            d->values(strip + (size_t)t * column, column, b * STEPS, panel);
            rows_add(panel, s->rows, in, y + 16 * t, ldy);
        }
    }
    for (int r = 0; r < s->rows && blocks; r++)
        rotate_out(y + (size_t)r * ldy, w->svh + s->first, w->bias ? w->bias + s->first : NULL);
}
