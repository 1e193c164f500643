#include <errno.h>

#include "kernels/ref/product.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/qmat.h"

static void expect_bits(const float *y, const float *want, int rows, int cols, const struct mat *m,
                        const char *what)
{
    for (int i = 0; i < rows * cols; i++)
        if (f32_bits(y[i]) != f32_bits(want[i])) {
            cr_expect(false, "%s, layout %d, %d x %d, %s: row %d of %d, output %d: %a, want %a",
                      qmat_name(m), m->q.layout, m->rows, m->cols, what, i / cols, rows, i % cols,
                      y[i], want[i]);
            return;
        }
}

static const int row_counts[] = { 1, 2, 3, 5, 8, 16, 70 };

/* All rows at once and any first rows of them have the bits of the definition. */
static void product_case(const char *backend, struct mat m, int groups, enum codec in, int workers)
{
    int most = row_counts[COUNT(row_counts) - 1];
    float *x, *y, *want;
    struct bed b;

    bed_open_backend(&b, backend, workers);
    b.seed += (uint64_t)m.rows * 1000 + (uint64_t)m.cols + (uint64_t)m.dtype * 77 + m.q.bits2;
    qmat_make(&b, &m);
    x = bed_f32(&b, (size_t)(most * groups * m.cols), 1);
    y = bed_zeros(&b, (size_t)(most * m.rows));
    want = bed_zeros(&b, (size_t)(most * m.rows));
    qmat_product(&b, &m, groups, in, x, most, want);
    for (size_t i = 0; i < COUNT(row_counts); i++) {
        bed_fill(&b, y, (size_t)(most * m.rows), 1);
        b.op->matmul(
            b.q, &(struct matmul_args){
                     .w = &m, .x = x, .y = y, .rows = row_counts[i], .groups = groups, .in = in });
        expect_bits(y, want, row_counts[i], m.rows, &m, backend);
    }
    /* the last row alone: where a row stands does not matter */
    b.op->matmul(b.q, &(struct matmul_args){ .w = &m,
                                             .x = x + (size_t)((most - 1) * groups * m.cols),
                                             .y = y,
                                             .rows = 1,
                                             .groups = groups,
                                             .in = in,
                                             .round = ROUND_BF16 });
    for (int n = 0; n < m.rows; n++)
        want[n] = bf16_round(want[(most - 1) * m.rows + n]);
    expect_bits(y, want, 1, m.rows, &m, "rounded");
    cr_expect(eq(int, bed_wait(&b), 0));
    bed_close(&b);
}

static const char *const backends[] = { "ref", "cpu" };

Test(product, every_type_has_the_bits_of_its_definition)
{
    struct mat m;

    for (size_t j = 0; j < COUNT(backends); j++)
        for (int i = 0; qmat_each(i, &m); i++)
            for (int layout = LAYOUT_CPU; layout <= LAYOUT_DEVICE; layout++) {
                m.q.layout = (uint8_t)layout;
                m.q.has_bias = i % 2 != 0;
                m.rows = 200; /* a strip that is not full, in every type */
                m.cols = 288;
                product_case(backends[j], m, 1, CODEC_F32, 1 + i % 3);
            }
}

Test(product, shapes_with_ragged_edges_and_empty_ones)
{
    static const struct {
        int rows, cols;
    } shapes[] = { { 1, 32 },  { 128, 128 }, { 130, 160 }, { 17, 640 },
                   { 0, 128 }, { 384, 0 },   { 256, 384 } };
    struct mat m;

    for (size_t j = 0; j < COUNT(backends); j++)
        for (size_t s = 0; s < COUNT(shapes); s++)
            for (int i = 0; qmat_each(i, &m); i += 4) {
                m.rows = shapes[s].rows;
                m.cols = shapes[s].cols;
                product_case(backends[j], m, 1, CODEC_F32, 2);
            }
}

Test(product, fp8_blocks_may_be_ragged_along_the_inputs)
{
    for (size_t j = 0; j < COUNT(backends); j++)
        for (int cols = 129; cols < 180; cols += 7)
            product_case(
                backends[j],
                (struct mat){ .dtype = DTYPE_FP8, .rows = 40, .cols = cols, .q = { .block = 32 } },
                1, CODEC_F32, 1);
}

Test(product, groups_and_slices_take_their_own_inputs_and_scales)
{
    struct mat m;

    for (size_t j = 0; j < COUNT(backends); j++)
        for (int i = 0; qmat_each(i, &m); i += 3)
            for (int groups = 1; groups <= 4; groups += 3)
                for (int slices = 1; slices <= 2; slices++) {
                    m.rows = 512;
                    m.cols = 128;
                    m.q.slices = slices == 1 ? 0 : 4;
                    product_case(backends[j], m, groups, CODEC_F32, 3);
                }
}

/* Groups that begin inside a tile touch one more strip than their outputs fill. */
Test(product, groups_need_not_begin_with_a_tile)
{
    static const int locals[] = { 8, 24, 120, 127, 130 };

    for (size_t j = 0; j < COUNT(backends); j++)
        for (size_t i = 0; i < COUNT(locals); i++) {
            product_case(backends[j],
                         (struct mat){ .dtype = DTYPE_BF16, .rows = 3 * locals[i], .cols = 64 }, 3,
                         CODEC_F32, 2);
            product_case(backends[j],
                         (struct mat){ .dtype = DTYPE_MXFP4, .rows = 3 * locals[i], .cols = 64 }, 3,
                         CODEC_F32, 2);
        }
}

Test(product, released_numerics_quantise_the_inputs_of_fp8_and_mxfp4_alone)
{
    struct mat m;

    for (size_t j = 0; j < COUNT(backends); j++)
        for (int i = 0; qmat_each(i, &m); i += i < 10 ? 1 : 9) {
            m.rows = 80;
            m.cols = m.dtype == DTYPE_FP8 || m.dtype == DTYPE_MXFP4 ? 288 : 272; /* half a block */
            product_case(backends[j], m, 1, CODEC_QW, 2);
        }
}

Test(product, what_cannot_be_multiplied_fails_the_queue)
{
    static const struct {
        struct mat m;
        int groups;
        enum codec in;
    } cases[] = {
        { { .dtype = DTYPE_EXL3, .rows = 256, .cols = 128, .q = { .bits2 = 4, .slices = 4 } },
          1,
          CODEC_F32 },
        { { .dtype = DTYPE_EXL3, .rows = 256, .cols = 128, .q = { .bits2 = 4 } }, 4, CODEC_F32 },
        { { .dtype = DTYPE_MXFP4, .rows = 32, .cols = 64 }, 5, CODEC_F32 },
        { { .dtype = DTYPE_MXFP4, .rows = 32, .cols = 64 }, -1, CODEC_F32 },
        { { .dtype = DTYPE_FP8, .rows = 32, .cols = 72, .q = { .block = 32 } }, 1, CODEC_QW },
    };
    float x[512] = { 0 }, y[256];
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        y[0] = 4;
        b.op->matmul(b.q, &(struct matmul_args){ .w = &cases[i].m,
                                                 .x = x,
                                                 .y = y,
                                                 .rows = 1,
                                                 .groups = cases[i].groups,
                                                 .in = cases[i].in });
        cr_expect(eq(flt, y[0], 4));
        cr_expect(eq(int, bed_wait(&b), -EINVAL), "case %zu", i);
    }
    bed_close(&b);
}

/* ---- against the goldens --------------------------------------------------------------------- */

static double f64_at(const void *p, size_t i)
{
    double v;

    memcpy(&v, (const char *)p + 8 * i, sizeof(v));
    return v;
}

/* The golden layer: a whole matrix or the tiles of some blocks of it. */
static struct mat golden_layer(struct bed *b, const struct golden *g, int rows, int cols,
                               int first_row, int first_col, bool bias)
{
    struct mat m = { .dtype = DTYPE_EXL3,
                     .rows = rows,
                     .cols = cols,
                     .q = { .codebook = CODEBOOK_MUL1, .bits2 = 6, .has_bias = bias } };
    struct qmat_source s = { .code_ld = 16 * 96 };

    s.codes = golden_tensor(g, NULL, "p.trellis");
    s.suh = golden_tensor(g, NULL, "p.suh");
    s.svh = golden_tensor(g, NULL, "p.svh");
    s.bias = golden_tensor(g, NULL, "p.bias");
    qmat_pack(b, &m, &s, first_row, first_col);
    free(s.codes);
    free(s.suh);
    free(s.svh);
    free(s.bias);
    return m;
}

/* z and y from the golden rotated inputs; y may be a partial one. */
static void expect_layer(const struct mat *m, const float *xh, const void *z, const void *y,
                         double bound)
{
    for (int r = 0; r < 5; r++) {
        float *w = qmat_dense(m), out[256];

        for (int n = 0; n < m->rows; n++) {
            out[n] = qmat_sum(w + n * m->cols, xh + 256 * r, m->cols, 0);
            if (z)
                cr_expect(fabs((double)out[n] - f64_at(z, (size_t)(256 * r + n))) < bound * 40,
                          "z row %d output %d", r, n);
        }
        for (int n = 0; n < m->rows; n += 128)
            exl3_rotate_out(out + n, m->svh + n, m->bias ? m->bias + n : NULL);
        for (int n = 0; n < m->rows; n++)
            cr_expect(fabs((double)out[n] - f64_at(y, (size_t)(256 * r + n))) < bound,
                      "y row %d output %d: %g", r, n,
                      (double)out[n] - f64_at(y, (size_t)(256 * r + n)));
        free(w);
    }
}

Test(product, the_golden_layer_is_within_its_bound)
{
    struct golden g;
    struct bed b;
    struct mat m;
    uint16_t *xh;
    double *z, *y, *no_bias;
    float x[5 * 256];

    bed_open(&b, 1);
    golden_open(&g, "exl3_linear_mul1_b3_256x256");
    xh = golden_tensor(&g, NULL, "expect.xh");
    z = golden_tensor(&g, NULL, "expect.z");
    y = golden_tensor(&g, NULL, "expect.y");
    no_bias = golden_tensor(&g, NULL, "expect.y_nobias");
    for (int i = 0; i < 5 * 256; i++)
        x[i] = f32_from_f16(xh[i]);
    m = golden_layer(&b, &g, 256, 256, 0, 0, true);
    expect_layer(&m, x, z, y, 2e-6);
    m = golden_layer(&b, &g, 256, 256, 0, 0, false);
    expect_layer(&m, x, z, no_bias, 2e-6);
    free(xh);
    free(z);
    free(y);
    free(no_bias);
    golden_close(&g);
    bed_close(&b);
}

/* The op rotates in order P: against double sums over the golden x_hat of that order. */
Test(product, the_op_is_within_the_bound_of_exact_sums)
{
    struct golden g;

    golden_open(&g, "exl3_linear_mul1_b3_256x256");
    for (size_t j = 0; j < COUNT(backends); j++) {
        uint16_t *xh = golden_tensor(&g, NULL, "expect.xh_f32product"),
                 *x16 = golden_tensor(&g, NULL, "x");
        double *order_r = golden_tensor(&g, NULL, "expect.y"), far = 0;
        float x[5 * 256], y[5 * 256], *w;
        struct bed b;
        struct mat m;

        bed_open_backend(&b, backends[j], 2);
        m = golden_layer(&b, &g, 256, 256, 0, 0, true);
        for (int i = 0; i < 5 * 256; i++)
            x[i] = f32_from_f16(x16[i]);
        b.op->matmul(b.q, &(struct matmul_args){ .w = &m, .x = x, .y = y, .rows = 5 });
        w = qmat_dense(&m);
        for (int r = 0; r < 5; r++)
            for (int n = 0; n < 256; n += 128) {
                double z[128];

                for (int i = 0; i < 128; i++) {
                    z[i] = 0;
                    for (int k = 0; k < 256; k++)
                        z[i] +=
                            (double)w[(n + i) * 256 + k] * (double)f32_from_f16(xh[256 * r + k]);
                }
                for (int i = 0; i < 128; i++) {
                    double sum = 0;

                    for (int k = 0; k < 128; k++)
                        sum += __builtin_popcount((unsigned)(i & k)) % 2 ? -z[k] : z[k];
                    sum = sum * (double)EXL3_SCALE * (double)f32_from_f16(m.svh[n + i]) +
                          (double)f32_from_f16(m.bias[n + i]);
                    cr_expect(fabs(sum - (double)y[256 * r + n + i]) < 2e-6, "row %d output %d: %g",
                              r, n + i, sum - (double)y[256 * r + n + i]);
                    far = fmax(far, fabs(f64_at(order_r, (size_t)(256 * r + n + i)) -
                                         (double)y[256 * r + n + i]));
                }
            }
        cr_expect(far < 1e-3, "order P is %g from order R", far);
        free(w);
        free(xh);
        free(x16);
        free(order_r);
        bed_close(&b);
    }
    golden_close(&g);
}

Test(product, the_golden_dense_matrix_is_within_its_bound)
{
    struct golden g;
    struct bed b;
    struct mat m = {
        .dtype = DTYPE_EXL3, .rows = 128, .cols = 128, .q = { .codebook = CODEBOOK_MCG, .bits2 = 4 }
    };
    struct qmat_source s = { .code_ld = 8 * 64 };
    float *want, *w;

    bed_open(&b, 1);
    golden_open(&g, "exl3_linear_mcg_b2_128x128");
    s.codes = golden_tensor(&g, NULL, "p.trellis");
    s.suh = golden_tensor(&g, NULL, "p.suh");
    s.svh = golden_tensor(&g, NULL, "p.svh");
    want = golden_tensor(&g, NULL, "expect.W"); /* [in][out] */
    qmat_pack(&b, &m, &s, 0, 0);
    w = qmat_dense(&m);
    cr_expect(s.suh[5] != 0 && (s.suh[5] & 0x7c00) == 0 && s.svh[17] == 0);
    for (int k = 0; k < 128; k++) { /* row k of H Wq H, scaled on both sides */
        float z[128] = { 0 };

        for (int i = 0; i < 128; i++)
            for (int n = 0; n < 128; n++)
                z[n] +=
                    __builtin_popcount((unsigned)(i & k)) % 2 ? -w[n * 128 + i] : w[n * 128 + i];
        for (int n = 0; n < 128; n++)
            z[n] *= EXL3_SCALE * f32_from_f16(s.suh[k]);
        exl3_rotate_out(z, m.svh, NULL);
        for (int n = 0; n < 128; n++)
            cr_expect(fabsf(z[n] - want[128 * k + n]) < 5e-7f, "(%d, %d): %g", k, n,
                      z[n] - want[128 * k + n]);
    }
    free(s.codes);
    free(s.suh);
    free(s.svh);
    free(want);
    free(w);
    golden_close(&g);
    bed_close(&b);
}

Test(product, golden_shares_have_the_golden_tiles_and_partial_sums)
{
    struct golden g;
    struct bed b;
    struct mat m;
    uint16_t *xh, tile[EXL3_WORDS_MAX], *col1, *row1;
    float x[2][5 * 256];
    double *part[2];

    bed_open(&b, 1);
    golden_open(&g, "exl3_linear_mul1_b3_256x256");
    xh = golden_tensor(&g, NULL, "expect.xh");
    col1 = golden_tensor(&g, NULL, "tp.col1.trellis");
    row1 = golden_tensor(&g, NULL, "tp.row1.trellis");
    for (int i = 0; i < 5 * 256; i++) {
        x[0][i] = f32_from_f16(xh[i]);
        x[1][i] = i % 256 < 128 ? f32_from_f16(xh[i + 128]) : 0;
    }
    m = golden_layer(&b, &g, 128, 256, 128, 0, true);
    for (int s = 0; s < 16; s++)
        for (int t = 0; t < 8; t++) {
            exl3_tile_get(&m, m.data, s, t, tile);
            cr_expect(memcmp(tile, col1 + (8 * s + t) * 48, 96) == 0, "column share, tile %d, %d",
                      s, t);
        }
    for (int rank = 0; rank < 2; rank++) {
        part[rank] = golden_tensor(&g, NULL, "tp.row%d.y_partial", rank);
        m = golden_layer(&b, &g, 256, 128, 0, 128 * rank, rank == 0);
        expect_layer(&m, x[rank], NULL, part[rank], 2e-6);
        for (int s = 0; rank == 1 && s < 8; s++)
            for (int t = 0; t < 16; t++) {
                exl3_tile_get(&m,
                              (const char *)m.data +
                                  (size_t)(t / 8) * mat_strip_bytes(DTYPE_EXL3, &m.q, 128),
                              s, t % 8, tile);
                cr_expect(memcmp(tile, row1 + (16 * s + t) * 48, 96) == 0, "row share, tile %d, %d",
                          s, t);
            }
        free(part[rank]);
    }
    free(xh);
    free(col1);
    free(row1);
    golden_close(&g);
    bed_close(&b);
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* first and count of rank's blocks of `unit`; the first ranks get one more. */
static void share(int n, int unit, int rank, int ranks, int *first, int *count)
{
    int blocks = (n + unit - 1) / unit, more = blocks % ranks;
    int lo = blocks / ranks * rank + (rank < more ? rank : more),
        hi = lo + blocks / ranks + (rank < more);

    *first = lo * unit < n ? lo * unit : n;
    *count = (hi * unit < n ? hi * unit : n) - *first;
}

static void shares_case(struct bed *b, struct mat m, int ranks, float *x, float *whole)
{
    struct qmat_source s;
    struct mat w = m;
    double most = 0, far = 0;
    float *y = bed_zeros(b, 3 * (size_t)m.rows), *sum = bed_zeros(b, 3 * (size_t)m.rows);

    qmat_source(b, &m, &s);
    qmat_pack(b, &w, &s, 0, 0);
    b->op->matmul(b->q, &(struct matmul_args){ .w = &w, .x = x, .y = whole, .rows = 3 });
    for (int rank = 0; rank < ranks; rank++) {
        struct mat rows = m, cols = m;
        int first, count;

        share(m.rows, mat_row_unit(m.dtype, &m.q), rank, ranks, &first, &count);
        rows.rows = count;
        qmat_pack(b, &rows, &s, first, 0);
        b->op->matmul(b->q, &(struct matmul_args){ .w = &rows, .x = x, .y = y, .rows = 3 });
        for (int r = 0; r < 3; r++)
            cr_expect(bed_same(y + r * count, whole + r * m.rows + first, (size_t)count),
                      "%s rank %d of %d: own outputs", qmat_name(&m), rank, ranks);
        share(m.cols, mat_col_unit(m.dtype, &m.q), rank, ranks, &first, &count);
        cols.cols = count;
        cols.q.has_bias = m.q.has_bias && rank == 0;
        qmat_pack(b, &cols, &s, 0, first);
        for (int r = 0; r < 3; r++) {
            float *part = bed_zeros(b, (size_t)count);

            memcpy(part, x + r * m.cols + first, (size_t)count * sizeof(float));
            b->op->matmul(b->q, &(struct matmul_args){ .w = &cols, .x = part, .y = y, .rows = 1 });
            for (int n = 0; n < m.rows; n++)
                sum[r * m.rows + n] += y[n];
        }
    }
    for (int i = 0; i < 3 * m.rows; i++) {
        most = fmax(most, fabs((double)whole[i]));
        far = fmax(far, fabs((double)whole[i] - (double)sum[i]));
    }
    cr_expect(far <= 2e-6 * most * sqrt(m.cols), "%s over %d ranks: %g of %g", qmat_name(&m), ranks,
              far, most);
    cr_expect(most > 0);
}

Test(product, partial_sums_of_shares_add_up_to_the_whole)
{
    struct mat m;

    for (int i = 3; qmat_each(i, &m); i++)
        for (int ranks = 1; ranks <= 4; ranks *= 2) {
            struct bed b;

            if (m.dtype == DTYPE_FP8 && m.q.block > 128)
                continue;
            bed_open(&b, 1);
            m.rows = 384; /* three blocks: uneven over two ranks, one empty share of four */
            m.cols = 384;
            m.q.has_bias = 1;
            shares_case(&b, m, ranks, bed_f32(&b, 3 * 384, 1), bed_zeros(&b, 3 * 384));
            cr_expect(eq(int, bed_wait(&b), 0));
            bed_close(&b);
        }
}

/* ---- experts --------------------------------------------------------------------------------- */

Test(product, picks_are_grouped_as_the_golden_says)
{
    struct json *root;
    const struct json *picks, *unique, *members;
    int32_t id[24];
    int uid[16], start[17], order[24], n;

    cr_assert(eq(int, json_read(VECTORS "/formats/moe_grouping.json", 1 << 20, 8, &root), 0));
    picks = json_get(root, "picks");
    unique = json_get(root, "unique_experts");
    members = json_get(root, "members_row_slot");
    for (int r = 0; r < 6; r++)
        for (int j = 0; j < 4; j++)
            cr_assert(json_as_int(json_at(json_at(picks, (size_t)r), (size_t)j), 0, 15,
                                  &id[4 * r + j]) == 0);
    n = moe_group(id, 24, 16, uid, start, order);
    cr_assert(eq(sz, (size_t)n, json_count(unique)));
    for (int i = 0; i < n; i++) {
        const struct json *m = json_at(members, (size_t)i);
        int want, row, slot;

        cr_assert(json_as_int(json_at(unique, (size_t)i), 0, 15, &want) == 0);
        cr_expect(eq(int, uid[i], want));
        cr_assert(eq(sz, (size_t)(start[i + 1] - start[i]), json_count(m)));
        for (int j = 0; j < start[i + 1] - start[i]; j++) {
            cr_assert(json_as_int(json_at(json_at(m, (size_t)j), 0), 0, 5, &row) == 0);
            cr_assert(json_as_int(json_at(json_at(m, (size_t)j), 1), 0, 3, &slot) == 0);
            cr_expect(eq(int, order[start[i] + j], 4 * row + slot), "expert %d member %d", uid[i],
                      j);
        }
    }
    json_close(root);
}

#define EXPERTS 5
#define DIM 256
#define INTER 384

/* Row by row, expert by expert, by the definition of the product. */
static void experts_by_parts(struct bed *b, const struct moe_args *a, int r, float *y)
{
    static float g[INTER], u[INTER], out[DIM];

    memset(y, 0, DIM * sizeof(*y));
    for (int j = 0; j <= a->k; j++) {
        int is_shared = j == a->k, e = is_shared ? 0 : a->id[r * a->k + j];
        const struct mat *w1 = is_shared ? a->s1 : &a->w1[e], *w3 = is_shared ? a->s3 : &a->w3[e];
        const struct mat *w2 = is_shared ? a->s2 : &a->w2[e];
        float weight = is_shared ? 1 : a->weight[r * a->k + j];

        qmat_product(b, w1, 1, a->in, a->x + r * DIM, 1, g);
        qmat_product(b, w3, 1, a->in, a->x + r * DIM, 1, u);
        for (int i = 0; i < w1->rows && a->round == ROUND_BF16; i++) {
            g[i] = bf16_round(g[i]);
            u[i] = bf16_round(u[i]);
        }
        b->op->swiglu(
            b->q, &(struct swiglu_args){
                      .gate = g, .up = u, .y = g, .rows = 1, .cols = w1->rows, .limit = a->limit });
        for (int i = 0; i < w1->rows; i++)
            g[i] = a->round == ROUND_BF16 ? bf16_round(weight * g[i]) : weight * g[i];
        qmat_product(b, w2, 1, a->in, g, 1, out);
        for (int c = 0; c < DIM; c++)
            y[c] += out[c];
    }
}

/* Experts of mixed types and widths, the shared one wider than they are. */
static void experts_case(const char *backend, int first, int rows, enum codec in, enum round round,
                         int workers)
{
    struct mat w1[EXPERTS], w3[EXPERTS], w2[EXPERTS], s[3], m;
    struct moe_args a = { .w1 = w1,
                          .w3 = w3,
                          .w2 = w2,
                          .s1 = &s[0],
                          .s3 = &s[1],
                          .s2 = &s[2],
                          .rows = rows,
                          .experts = EXPERTS,
                          .k = 2,
                          .limit = 2,
                          .in = in,
                          .round = round };
    int32_t *id;
    float *y;
    struct bed b;

    bed_open_backend(&b, backend, workers);
    for (int e = 0; e <= EXPERTS; e++) {
        struct mat *to[3] = { e < EXPERTS ? &w1[e] : &s[0], e < EXPERTS ? &w3[e] : &s[1],
                              e < EXPERTS ? &w2[e] : &s[2] };
        int inter = e < EXPERTS ? 128 + 128 * (e % 2) : INTER;

        for (int i = 0; i < 3; i++) {
            cr_assert(qmat_each((first + 2 * e) % 37, &m));
            m.rows = i == 2 ? DIM : inter;
            m.cols = i == 2 ? inter : DIM;
            qmat_make(&b, &m);
            *to[i] = m;
        }
    }
    id = bed_take(&b, (size_t)(2 * rows) * sizeof(*id));
    for (int r = 0; r < rows; r++) {
        id[2 * r] = bed_int(&b, EXPERTS - 1);
        id[2 * r + 1] = id[2 * r] + 1 + bed_int(&b, EXPERTS - 1 - id[2 * r]);
    }
    a.id = id;
    a.x = bed_f32(&b, (size_t)(rows * DIM), 0.2f);
    a.weight = bed_f32(&b, (size_t)(rows * 2), 1);
    a.y = bed_f32(&b, (size_t)(rows * DIM), 1);
    a.scratch = bed_zeros(&b, (size_t)(rows * 3 * 2 * INTER));
    b.op->moe(b.q, &a);
    cr_expect(eq(int, bed_wait(&b), 0));
    y = bed_zeros(&b, DIM);
    for (int r = 0; r<rows; r += rows> 8 ? 23 : 1) {
        experts_by_parts(&b, &a, r, y);
        expect_bits(a.y + r * DIM, y, 1, DIM, &w1[id[2 * r]], "experts");
    }
    bed_close(&b);
}

Test(product, experts_have_the_bits_of_one_row_and_one_expert_at_a_time)
{
    for (size_t j = 0; j < COUNT(backends); j++)
        for (int first = 0; first < 37; first += 5) {
            experts_case(backends[j], first, 3, CODEC_F32, ROUND_NONE, 1);
            experts_case(backends[j], first, 5, CODEC_QW, ROUND_BF16, 3);
        }
    experts_case(backends[0], 20, 150, CODEC_F32, ROUND_BF16,
                 2); /* more members than share a decoded block */
}
