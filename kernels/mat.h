/* mat - how weights lie in memory: plain types, FP8 blocks, MXFP4, NVFP4, EXL3.
 *
 * A matrix is W [rows][cols] for y = W x: rows are outputs (N), cols inputs (K), of this rank's
 * share. Its bytes are one blob of up to five parts: mat_parts says where each begins, mat_place
 * points a struct mat into a blob. Plain data, the same on host and device: copy the struct, and
 * place it again where the blob's address is another one.
 *
 * What an op computes from it:
 *   F0  W(n, k) as f32, bit for bit, the same in every backend and layout: formats/values.h
 *   F1  EXL3: the rotated input x_hat with one f16 rounding, EXL3_ORDER_P of formats/exl3.h; bit
 *       for bit on host backends
 *   F2  y[n] = sum over k, ascending, in f32, multiply then add, of W(n, k) x[k]. EXL3: z[n] = that
 *       sum of Wq(n, k) x_hat[k] (every product is exact, so a fused multiply-add has the same
 *       bits), then the output rotation, svh and bias in f32. A row's result depends on its own
 *       values and on (K, N) alone; host backends agree bit for bit
 *   F3  a device against ref: the tolerance beside the op
 *
 * ---- what a pack stores ----
 *
 * layout     LAYOUT_CPU for host backends, LAYOUT_DEVICE for cuda. Host backends read both and are
 *            fast with LAYOUT_CPU.
 * plain      one part, the same in both layouts: tiles of MAT_TILE consecutive outputs, inside a
 *            tile column by column: value (n, k) is element
 *            (n / MAT_TILE) * MAT_TILE * cols + k * MAT_TILE + n % MAT_TILE.
 *            A last tile that is not full is padded with zeros.
 * quantised  codes are strips of mat_strip outputs; a strip that is not full is padded with zero
 *            codes (EXL3 has no such strips):
 *   FP8, cpu      strip 16: [strip][cols][16] code bytes, like a plain tile
 *   FP4, cpu      strip 16: [strip][cols / 2][16] bytes; byte n has output n, even k in the low
 *                 nibble
 *   EXL3, cpu     strip 128: [strip][8 column tiles][K / 16] tiles. A tile is column-transposed:
 *                 integer widths uint32 [bits][8], word i of column pair c at 8 i + c; half widths
 *                 uint16 [2 bits][8], the pair's 16-bit units in ring order instead of words
 *   EXL3, device  strip 128: [strip][K / 16 / G] groups of G = exl3_group(bits2) k-steps. The
 *                 ring bits that lane l owns in the group's tiles, (k-step, tile) ascending, first
 *                 bits highest, are cut into 16-byte chunks of four uint32;
 *                 chunk c of lane l is chunk 32 c + l of the group
 *   FP8, device   strip 64: [strip][ceil(cols / 16)][2][32 lanes][16]: a chunk is two tiles of 16
 *                 outputs, of each a lane has 8 codes, in the order of exl3_tile_row and _col
 *   FP4, device   strip 64: [strip][cols / 16][32 lanes][4 tiles] uint32: the lane's code j of the
 *                 tile in bits 4 j .. 4 j + 3, the same order
 * scales     FP8   [ceil(rows / 16)][ceil(cols / block)] e8m0 bytes or f32: a tile of 16 outputs
 *                  has its block's scale. The same in both layouts
 *            FP4   a byte (MXFP4 e8m0, NVFP4 e4m3) for each output and group, 0 where padded.
 *                  cpu [strip][groups][16]; device [strip][groups][8][8]: byte 8 g + i is output
 *                  16 (i / 2) + 8 (i % 2) + g of the strip
 * suh, svh   EXL3: f16 [slices][K] and [N]; legacy signs are expanded
 * bias       EXL3: f16 [N], on rank 0 alone where cols are split
 *
 * K and N here are cols and rows rounded up to 128. EXL3 checkpoints are padded so; blocks that lie
 * wholly beyond the model's sizes are not stored. formats/repack.h makes all of this from a
 * checkpoint's bytes, a strip at a time.
 *
 * ---- how a share is cut ----
 *
 * At whole blocks: rows at multiples of mat_row_unit, cols at multiples of mat_col_unit: 128 and
 * 128 for EXL3 (inside each slice), `block` twice for FP8, 1 and the group for FP4, 1 and 1 for
 * plain types. A share may be empty.
 */
#ifndef TANDEM_KERNELS_MAT_H
#define TANDEM_KERNELS_MAT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MAT_FN static inline __host__ __device__
#else
#define MAT_FN static inline
#endif

#define MAT_TILE 16
#define MAT_ALIGN 256 /* of a blob and of its parts */
#define EXL3_BLOCK 128

/* Types below DTYPE_COUNT are plain, a value each; those above it are quantised. */
enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_COUNT,
    DTYPE_FP8,   /* e4m3, a scale for a square block: e8m0 or f32, it multiplies */
    DTYPE_MXFP4, /* e2m1, an e8m0 scale for 32 inputs */
    DTYPE_NVFP4, /* e2m1, an e4m3 scale for 16 inputs, and one f32 for the matrix */
    DTYPE_EXL3,  /* trellis codes of 16 x 16 tiles between two Hadamard rotations */
    DTYPE_END
};

enum layout { LAYOUT_CPU, LAYOUT_DEVICE };

enum codebook { CODEBOOK_3INST, CODEBOOK_MCG, CODEBOOK_MUL1 };

/* What it takes to read a quantised matrix, beside its bytes; all 0 for plain types. */
struct quant {
    uint8_t layout;   /* enum layout */
    uint8_t codebook; /* EXL3: enum codebook */
    uint8_t bits2;    /* EXL3: twice the bits of a weight: 2, 4 .. 16, with MUL1 also 3, 5, 7 */
    uint8_t has_bias; /* EXL3 */
    uint8_t e8m0;     /* FP8: scales are e8m0 bytes, else f32 */
    uint8_t divides;  /* NVFP4: a group's scale is scale / global, else scale * global, rounded */
    int32_t block;    /* FP8: outputs and inputs that share a scale; only one: as large as both */
    int32_t slices;   /* EXL3: matrices on top of each other, each with its own suh; 0 is 1 */
    float global;     /* NVFP4 */
};

struct mat {
    const void *data; /* values or codes */
    enum dtype dtype;
    int rows, cols; /* outputs and inputs, this rank's share, without padding */
    struct quant q;
    const void *scale;                /* FP8, MXFP4, NVFP4 */
    const uint16_t *suh, *svh, *bias; /* EXL3; bias NULL if there is none */
};

struct table {
    const void *data;
    enum dtype dtype;
    int rows, cols;
};

/* dtype_bytes - bytes of one value of a plain type. */
MAT_FN size_t dtype_bytes(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : 2;
}

MAT_FN size_t mat_round_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

/* mat_bytes - of a plain matrix. */
MAT_FN size_t mat_bytes(int rows, int cols, enum dtype t)
{
    return mat_round_up((size_t)rows, MAT_TILE) * (size_t)cols * dtype_bytes(t);
}

/* mat_group - inputs of an output that share a scale, 0 for types that have no such scale. */
MAT_FN int mat_group(enum dtype t)
{
    return t == DTYPE_MXFP4 ? 32 : t == DTYPE_NVFP4 ? 16 : 0;
}

/* mat_row_unit, mat_col_unit - where a share may begin. */
MAT_FN int mat_row_unit(enum dtype t, const struct quant *q)
{
    return t == DTYPE_EXL3 ? EXL3_BLOCK : t == DTYPE_FP8 ? q->block : 1;
}

MAT_FN int mat_col_unit(enum dtype t, const struct quant *q)
{
    return mat_group(t) ? mat_group(t) : mat_row_unit(t, q);
}

/* mat_strip - outputs that lie together; the unit in which codes are packed. */
MAT_FN int mat_strip(enum dtype t, const struct quant *q)
{
    return t == DTYPE_EXL3                                 ? EXL3_BLOCK
           : t > DTYPE_COUNT && q->layout == LAYOUT_DEVICE ? 64
                                                           : MAT_TILE;
}

#define MAT_KIND_EXL3 128u /* shifted by bits2 */

/* mat_kind - one bit: types that differ in it are multiplied by different code. Plain types, FP8,
 * MXFP4 and NVFP4 have a kind each, EXL3 one for each width. */
MAT_FN uint32_t mat_kind(const struct mat *m)
{
    return m->dtype == DTYPE_EXL3 ? MAT_KIND_EXL3 << m->q.bits2 : 1u << m->dtype;
}

/* mats_mixed - whether an expert's gate and up differ in kind, or only one of gate and down is
 * EXL3: hidden values are then not made where both sums are. */
MAT_FN int mats_mixed(const struct mat *gate, const struct mat *up, const struct mat *down)
{
    return mat_kind(gate) != mat_kind(up) ||
           (gate->dtype == DTYPE_EXL3) != (down->dtype == DTYPE_EXL3);
}

/* exl3_group - k-steps of a lane-major group: a lane's bits of it are whole 16-byte chunks. */
MAT_FN int exl3_group(int bits2)
{
    return bits2 % 2 ? 4 : bits2 % 4 ? 2 : 1;
}

/* mat_strip_bytes - bytes of the codes of one strip. */
MAT_FN size_t mat_strip_bytes(enum dtype t, const struct quant *q, int cols)
{
    size_t n = (size_t)mat_strip(t, q), k = (size_t)cols;

    if (t < DTYPE_COUNT)
        return n * k * dtype_bytes(t);
    if (t == DTYPE_EXL3)
        return n * mat_round_up(k, EXL3_BLOCK) * q->bits2 / 16;
    if (t == DTYPE_FP8)
        return n * (q->layout == LAYOUT_DEVICE ? mat_round_up(k, 16) : k);
    return n * k / 2;
}

enum mat_part { PART_CODES, PART_SCALES, PART_SUH, PART_SVH, PART_BIAS, MAT_PARTS };

struct mat_parts {
    size_t at[MAT_PARTS],
        bytes[MAT_PARTS]; /* at is a multiple of MAT_ALIGN; absent parts have 0 bytes */
    size_t total;
};

/* mat_parts - the parts of a blob, from dtype, rows, cols and q. */
MAT_FN void mat_parts(const struct mat *m, struct mat_parts *p)
{
    size_t strip = (size_t)mat_strip(m->dtype, &m->q);
    size_t n = mat_round_up((size_t)m->rows, strip), k = (size_t)m->cols;

    for (int i = 0; i < MAT_PARTS; i++)
        p->bytes[i] = 0;
    p->bytes[PART_CODES] = n / strip * mat_strip_bytes(m->dtype, &m->q, m->cols);
    if (m->dtype == DTYPE_FP8)
        p->bytes[PART_SCALES] = mat_round_up((size_t)m->rows, MAT_TILE) / MAT_TILE *
                                (mat_round_up(k, m->q.block) / m->q.block) * (m->q.e8m0 ? 1 : 4);
    if (mat_group(m->dtype))
        p->bytes[PART_SCALES] = n * (k / (size_t)mat_group(m->dtype));
    if (m->dtype == DTYPE_EXL3 && m->rows && m->cols) {
        p->bytes[PART_SUH] =
            (size_t)(m->q.slices ? m->q.slices : 1) * mat_round_up(k, EXL3_BLOCK) * 2;
        p->bytes[PART_SVH] = n * 2;
        p->bytes[PART_BIAS] = m->q.has_bias ? n * 2 : 0;
    }
    p->total = 0;
    for (int i = 0; i < MAT_PARTS; i++) {
        p->at[i] = mat_round_up(p->total, MAT_ALIGN);
        if (p->bytes[i])
            p->total = p->at[i] + p->bytes[i];
    }
}

/* mat_place - point m, whose dtype, rows, cols and q are set, into its blob. */
MAT_FN void mat_place(struct mat *m, const void *blob)
{
    const unsigned char *b = (const unsigned char *)blob;
    struct mat_parts p;

    mat_parts(m, &p);
    m->data = b;
    m->scale = p.bytes[PART_SCALES] ? b + p.at[PART_SCALES] : NULL;
    m->suh = p.bytes[PART_SUH] ? (const uint16_t *)(b + p.at[PART_SUH]) : NULL;
    m->svh = p.bytes[PART_SVH] ? (const uint16_t *)(b + p.at[PART_SVH]) : NULL;
    m->bias = p.bytes[PART_BIAS] ? (const uint16_t *)(b + p.at[PART_BIAS]) : NULL;
}

#endif
