#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <math.h>

#include "src/model/pack_file.h"
#include "src/model/scheme.h"
#include "tests/model/quant_rig.h"

/* ---- packs of every rank, open and bound --------------------------------------------------- */

#define RANKS_TESTED 4

struct some {
    struct mat wide, deep, whole, heads, sliced, one_block;
};

/* Widths of 5 blocks of 128 and of one, heads in units of 256, slices in units of 128. */
static void some_weights(void *object, struct walk *w)
{
    struct some *s = object;

    walk_mat(w, &s->wide, 640, 256, SHARD_ROWS, 1, "layers.0.ffn.shared_experts.w1.weight");
    walk_mat(w, &s->deep, 256, 640, SHARD_COLS, 1, "layers.0.ffn.shared_experts.w2.weight");
    walk_mat(w, &s->whole, 128, 384, SHARD_NONE, 1, "layers.0.attn.wq_a.weight");
    walk_mat(w, &s->heads, 1024, 128, SHARD_ROWS, 256, "layers.0.attn.wq_b.weight");
    walk_mat(w, &s->sliced, 1024, 256, SHARD_ROWS, 128, "layers.0.attn.wo_a.weight");
    walk_mat(w, &s->one_block, 128, 128, SHARD_COLS, 1, "layers.0.ffn.experts.0.w2.weight");
}

/* Widths that are no whole blocks: EXL3 stores them padded. */
static void odd_weights(void *object, struct walk *w)
{
    struct some *s = object;

    walk_mat(w, &s->wide, 200, 130, SHARD_ROWS, 1, "layers.0.ffn.shared_experts.w1.weight");
    walk_mat(w, &s->deep, 130, 200, SHARD_COLS, 1, "layers.0.ffn.shared_experts.w2.weight");
    walk_mat(w, &s->heads, 300, 130, SHARD_ROWS, 1, "head.weight");
}

struct world {
    void (*weights)(void *object, struct walk *w);
    int ranks;
    char folder[PATH_CAP];
    struct pack *p[RANKS_TESTED];
    struct some w[RANKS_TESTED];
};

static void world_open(struct world *w, void (*weights)(void *object, struct walk *w),
                       struct source *src, int ranks, int layouts, enum layout prefer)
{
    temp_folder(w->folder);
    w->weights = weights;
    w->ranks = ranks;
    for (int r = 0; r < ranks; r++) {
        struct walk_part part = { weights, &w->w[r] };
        struct pack_spec spec = spec_of(&part, r, ranks, layouts);
        char path[PATH_CAP], name[16];

        snprintf(name, sizeof(name), "%d.pack", r);
        path_join(path, sizeof(path), w->folder, name);
        cr_assert(eq(int, pack_write(path, &spec, src), 0), "rank %d of %d", r, ranks);
        cr_assert(eq(int, pack_open(path, &w->p[r]), 0), "rank %d of %d", r, ranks);
        pack_prefer(w->p[r], prefer);
        cr_assert(eq(int, pack_bind(w->p[r], &part, 1), 0), "rank %d of %d", r, ranks);
        cr_expect(eq(int, pack_verify(w->p[r]), 0));
    }
    for (int r = 1; r < ranks; r++)
        cr_expect(memcmp(pack_set_digest(w->p[0]), pack_set_digest(w->p[r]), SHA256_BYTES) == 0,
                  "set digest of rank %d", r);
}

static void world_close(struct world *w)
{
    for (int r = 0; r < w->ranks; r++)
        pack_close(w->p[r]);
    folder_count(w->folder, 1);
}

/* ---- values: shares against the checkpoint, read in another way ---------------------------- */

/* f16 number i of a side's scales, whatever they are stored as. */
static uint16_t side(const void *stored, bool signs, int64_t i)
{
    const uint16_t *v = stored;

    return signs ? (v[i / 16] >> (i % 16) & 1 ? 0xbc00 : 0x3c00) : v[i];
}

static void expect_sides(struct source *s, const struct stored *w, int slice, const struct mat *m,
                         int local_slice, int64_t row, int64_t col, const char *name)
{
    void *suh = take(s, &w->slice[slice].suh), *svh = take(s, &w->slice[slice].svh);
    int per = m->rows / (m->q.slices ? m->q.slices : 1);
    int64_t k_all = (int64_t)mat_round_up((size_t)m->cols, EXL3_BLOCK);

    for (int64_t k = 0; k < k_all; k++)
        cr_assert(m->suh[local_slice * k_all + k] == side(suh, w->slice[slice].suh_signs, col + k),
                  "%s: suh %ld", name, (long)k);
    for (int64_t n = 0; n < per; n++)
        cr_assert(m->svh[local_slice * per + n] == side(svh, w->slice[slice].svh_signs, row + n),
                  "%s: svh %ld", name, (long)n);
    free(suh);
    free(svh);
}

struct check {
    struct walk w;
    struct source *src;
    enum layout layout;
    int64_t *covered; /* values of each weight that some rank has, by order in the walk */
    int at;
};

static int check_visit(struct walk *walk, const struct weight *d, void *target)
{
    struct check *c = (struct check *)walk;
    const struct mat *m = target;
    int64_t row = d->shard == SHARD_ROWS ? d->first : 0,
            col = d->shard == SHARD_COLS ? d->first : 0;
    int64_t rows, cols;
    struct stored w;
    int slices = m->q.slices ? m->q.slices : 1, per = m->rows / slices;
    float *v, *is;

    weight_local(d, &rows, &cols);
    cr_assert(m->rows == rows && m->cols == cols, "%s", d->name);
    c->covered[c->at++] += rows * cols;
    cr_assert(eq(int, source_stored(c->src, d->name, STORED_MAT, d->rows, d->cols, &w), 0));
    cr_assert(m->dtype == w.dtype && (m->dtype < DTYPE_COUNT || m->q.layout == c->layout), "%s",
              d->name);
    if (rows == 0 || cols == 0 || m->dtype < DTYPE_COUNT)
        return 0;
    v = malloc((size_t)(w.n * w.k) * sizeof(*v));
    is = bound_values(m);
    for (int i = 0; i < slices; i++) {
        int slice = w.slices > 1 ? (int)(row / w.n) + i : 0;
        int64_t from = w.slices > 1 ? 0 : row;

        stored_values(c->src, &w, slice, v);
        for (int n = 0; n < per; n++)
            for (int k = 0; k < m->cols; k++)
                cr_assert(f32_bits(is[(i * per + n) * m->cols + k]) ==
                              f32_bits(v[(from + n) * w.k + col + k]),
                          "rank %d of %d, %s: value %d, %d", c->w.rank, c->w.ranks, d->name, n, k);
        if (m->dtype == DTYPE_EXL3)
            expect_sides(c->src, &w, slice, m, i, from, col, d->name);
    }
    free(is);
    free(v);
    return 0;
}

/* covered [weights]: how many values of each the ranks have together. */
static void expect_values(struct world *w, struct source *src, enum layout layout, int64_t *covered)
{
    for (int r = 0; r < w->ranks; r++) {
        struct walk_part part = { w->weights, &w->w[r] };
        struct check c = { .w = { .visit = check_visit,
                                  .rank = r,
                                  .ranks = w->ranks,
                                  .width_unit = pack_width_unit(w->p[r]) },
                           .src = src,
                           .layout = layout,
                           .covered = covered };

        cr_assert(eq(int, walk_parts(&c.w, &part, 1), 0));
    }
}

static void expect_shares(struct world *w, struct source *src, enum layout layout)
{
    int64_t covered[6] = { 0 };
    static const int64_t want[6] = { 640 * 256,  256 * 640,  128 * 384,
                                     1024 * 128, 1024 * 256, 128 * 128 };

    expect_values(w, src, layout, covered);
    for (int i = 0; i < 6; i++)
        cr_expect(covered[i] == want[i] * (i == 2 ? w->ranks : 1), "weight %d", i);
}

/* ---- products: partial sums against the unsplit one ---------------------------------------- */

static float *inputs(int cols, uint64_t seed)
{
    float *x = malloc((size_t)(ROWS_TEST * cols) * sizeof(*x));

    for (int i = 0; i < ROWS_TEST * cols; i++)
        x[i] = bf16_round(synth_normal(seed, (uint64_t)i));
    return x;
}

/* Outputs of all ranks side by side are those of one rank, bit for bit. */
static void expect_joined(struct ref *f, const struct mat *whole, const struct world *w,
                          const struct mat *(*of)(const struct some *), int groups)
{
    float *x = inputs(whole->cols * groups, 1), *y, *part;
    int at = 0, group0 = 0;

    y = malloc((size_t)(ROWS_TEST * whole->rows) * sizeof(*y));
    part = malloc((size_t)(ROWS_TEST * whole->rows) * sizeof(*y));
    multiply(f, whole, x, groups, y);
    for (int r = 0; r < w->ranks; r++) {
        const struct mat *m = of(&w->w[r]);
        int local = groups * m->rows / whole->rows;
        float *own = cut(x, whole->cols * groups, group0 * whole->cols,
                         (groups > 1 ? local : 1) * whole->cols);

        multiply(f, m, own, groups > 1 ? local : 1, part);
        for (int i = 0; i < ROWS_TEST; i++)
            cr_expect(memcmp(part + i * m->rows, y + i * whole->rows + at,
                             (size_t)m->rows * sizeof(*y)) == 0,
                      "rank %d of %d, row %d", r, w->ranks, i);
        at += m->rows;
        group0 += groups > 1 ? local : 0;
        free(own);
    }
    cr_expect(eq(int, at, whole->rows));
    free(x);
    free(y);
    free(part);
}

/* The sum over ranks of a product cut along its inputs, in rank order. */
static void expect_summed(struct ref *f, const struct mat *whole, const struct world *w,
                          const struct mat *(*of)(const struct some *), const char *scheme)
{
    size_t n = (size_t)(ROWS_TEST * whole->rows);
    float *x = inputs(whole->cols, 2), *y = malloc(n * 4), *part = malloc(n * 4),
          *sum = calloc(n, 4), most = 0, off = 0;
    int at = 0;

    multiply(f, whole, x, 1, y);
    for (int r = 0; r < w->ranks; r++) {
        const struct mat *m = of(&w->w[r]);
        float *own = cut(x, whole->cols, at, m->cols);

        multiply(f, m, own, 1, part);
        for (size_t i = 0; i < n; i++)
            sum[i] += part[i];
        at += m->cols;
        free(own);
    }
    cr_expect(eq(int, at, whole->cols));
    for (size_t i = 0; i < n; i++) {
        most = fmaxf(most, fabsf(y[i]));
        off = fmaxf(off, fabsf(sum[i] - y[i]));
    }
    cr_expect(most > 0.1f && off <= 2e-6f * fmaxf(1, most) * sqrtf((float)whole->cols),
              "%s over %d ranks: %g of %g", scheme, w->ranks, (double)off, (double)most);
    free(x);
    free(y);
    free(part);
    free(sum);
}

static const struct mat *wide(const struct some *s)
{
    return &s->wide;
}

static const struct mat *deep(const struct some *s)
{
    return &s->deep;
}

static const struct mat *heads(const struct some *s)
{
    return &s->heads;
}

static const struct mat *sliced(const struct some *s)
{
    return &s->sliced;
}

static const struct mat *one_block(const struct some *s)
{
    return &s->one_block;
}

static const char *const schemes[] = { "exl3-1",   "exl3-1.5",  "exl3-2-mcg", "exl3-2.5",
                                       "exl3-3",   "exl3-3.5",  "exl3-4",     "exl3-5-3inst",
                                       "exl3-6",   "exl3-7",    "exl3-8",     "fp8",
                                       "fp8-128",  "fp8-mxfp4", "mxfp4",      "nvfp4",
                                       "nvfp4-ct", "bf16" };
#define SCHEMES (sizeof(schemes) / sizeof(schemes[0]))

/* A line for each weight with its format, shape, share, bytes and digest. */
static void expect_listed(const struct pack *p, const char *scheme)
{
    struct pack_item w;
    size_t bytes, n = 0;
    char *text, *line, *end;
    FILE *f = open_memstream(&text, &bytes);

    pack_list(p, f);
    fclose(f);
    for (line = text; *line; line = end + 1, n++) {
        char want[64], hex[33] = "";

        end = strchr(line, '\n');
        cr_assert(end && pack_item(p, n, &w) == 0, "%s", scheme);
        *end = 0;
        snprintf(want, sizeof(want), " %s ", dtype_name(w.dtype));
        cr_expect(strncmp(line, w.name, strlen(w.name)) == 0 && strstr(line, want), "%s: %s",
                  scheme, line);
        snprintf(want, sizeof(want), " [%lld, %lld] ", (long long)w.rows, (long long)w.cols);
        cr_expect(strstr(line, want) != NULL, "%s: %s", scheme, line);
        snprintf(want, sizeof(want), " %llu ", (unsigned long long)w.bytes);
        cr_expect(strstr(line, want) != NULL, "%s: %s", scheme, line);
        cr_expect(strlen(line) > 33 && sscanf(strrchr(line, ' '), " %32[0-9a-f]", hex) == 1 &&
                      strlen(hex) == 32,
                  "%s: digest of %s", scheme, line);
        if (w.dtype == DTYPE_EXL3) {
            snprintf(want, sizeof(want), " exl3 %g ", w.q.bits2 / 2.0);
            cr_expect(strstr(line, want) != NULL, "%s: %s", scheme, line);
        }
        if (w.dtype == DTYPE_FP8) {
            snprintf(want, sizeof(want), " fp8 8 %d ", w.q.block);
            cr_expect(strstr(line, want) != NULL, "%s: %s", scheme, line);
        }
    }
    cr_expect(eq(int, pack_item(p, n, &w), 1), "%s: %zu lines", scheme, n);
    free(text);
}

static void expect_scheme(const char *name)
{
    static const int ranks[] = { 1, 2, 4 };
    struct world one, w;
    struct scheme scheme;
    struct source *src;
    struct ref f;

    cr_assert(eq(int, scheme_parse(name, &scheme), 0));
    cr_assert(eq(int, source_synth_open_scheme(5, &scheme, &src), 0));
    ref_open(&f);
    world_open(&one, some_weights, src, 1, PACK_CPU, LAYOUT_CPU);
    expect_listed(one.p[0], name);
    for (int i = 0; i < 3; i++)
        for (enum layout layout = LAYOUT_CPU; layout <= LAYOUT_DEVICE; layout++) {
            world_open(&w, some_weights, src, ranks[i],
                       i == 1   ? PACK_BOTH
                       : layout ? PACK_DEVICE
                                : PACK_CPU,
                       layout);
            expect_shares(&w, src, layout);
            expect_joined(&f, wide(&one.w[0]), &w, wide, 1);
            expect_joined(&f, heads(&one.w[0]), &w, heads, 1);
            expect_joined(&f, sliced(&one.w[0]), &w, sliced, 8);
            expect_summed(&f, deep(&one.w[0]), &w, deep, name);
            expect_summed(&f, one_block(&one.w[0]), &w, one_block, name);
            world_close(&w);
        }
    world_close(&one);
    ref_close(&f);
    src->ops->close(src);
}

/* A process of its own for each, so that they run beside each other. */
#define SCHEME_TEST(n)                                                                             \
    Test(pack_quant, shares_hold_the_values_and_sum_up_##n, .timeout = 120)                        \
    {                                                                                              \
        log_open(-1, LOG_WARN);                                                                    \
        for (size_t i = n; i < SCHEMES; i += 3)                                                    \
            expect_scheme(schemes[i]);                                                             \
    }
SCHEME_TEST(0)
SCHEME_TEST(1)
SCHEME_TEST(2)

Test(pack_quant, padded_widths_are_cut_and_sum_up, .timeout = 120)
{
    static const char *const books[] = { "exl3-1", "exl3-2-mcg", "exl3-2.5", "exl3-5-3inst" };
    struct ref f;

    log_open(-1, LOG_WARN);
    ref_open(&f);
    for (size_t i = 0; i < sizeof(books) / sizeof(books[0]); i++) {
        struct scheme scheme;
        struct source *src;
        struct world one, w;

        cr_assert(eq(int, scheme_parse(books[i], &scheme), 0));
        cr_assert(eq(int, source_synth_open_scheme(5, &scheme, &src), 0));
        world_open(&one, odd_weights, src, 1, PACK_CPU, LAYOUT_CPU);
        for (int ranks = 1; ranks <= RANKS_TESTED; ranks++) {
            int64_t covered[3] = { 0 };

            world_open(&w, odd_weights, src, ranks, PACK_BOTH, LAYOUT_DEVICE);
            expect_values(&w, src, LAYOUT_DEVICE, covered);
            cr_expect(covered[0] == 200 * 130 && covered[1] == 130 * 200 && covered[2] == 300 * 130,
                      "%s over %d ranks", books[i], ranks);
            expect_joined(&f, wide(&one.w[0]), &w, wide, 1);
            expect_joined(&f, heads(&one.w[0]), &w, heads, 1);
            expect_summed(&f, deep(&one.w[0]), &w, deep, books[i]);
            world_close(&w);
        }
        world_close(&one);
        src->ops->close(src);
    }
    ref_close(&f);
}

Test(pack_quant, widths_are_cut_at_whole_blocks_and_a_share_may_be_empty)
{
    static const struct {
        const char *scheme;
        int unit, ranks, rank;
        int wide, deep, one_block;
    } cases[] = {
        { "exl3-3", 128, 2, 0, 384, 384, 128 }, { "exl3-3", 128, 2, 1, 256, 256, 0 },
        { "exl3-3", 128, 4, 0, 256, 256, 128 }, { "exl3-3", 128, 4, 3, 128, 128, 0 },
        { "fp8", 32, 2, 1, 320, 320, 64 },      { "fp8-128", 128, 2, 1, 256, 256, 0 },
        { "mxfp4", 32, 4, 3, 160, 160, 32 },    { "nvfp4", 16, 4, 0, 160, 160, 32 },
        { "bf16", 1, 4, 2, 160, 160, 32 },
    };

    log_open(-1, LOG_WARN);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct scheme scheme;
        struct source *src;
        struct world w;
        const struct some *s = &w.w[cases[i].rank];

        cr_assert(eq(int, scheme_parse(cases[i].scheme, &scheme), 0));
        cr_assert(eq(int, source_synth_open_scheme(5, &scheme, &src), 0));
        world_open(&w, some_weights, src, cases[i].ranks, PACK_CPU, LAYOUT_CPU);
        cr_expect(eq(int, pack_width_unit(w.p[0]), cases[i].unit), "%s", cases[i].scheme);
        cr_expect(s->wide.rows == cases[i].wide && s->deep.cols == cases[i].deep &&
                      s->one_block.cols == cases[i].one_block,
                  "%s, rank %d of %d: %d %d %d", cases[i].scheme, cases[i].rank, cases[i].ranks,
                  s->wide.rows, s->deep.cols, s->one_block.cols);
        world_close(&w);
        src->ops->close(src);
    }
}

/* ---- scales of blocks as halves ------------------------------------------------------------ */

struct scaled {
    struct mat rows, cols, one;
};

static void scaled_weights(void *object, struct walk *w)
{
    struct scaled *s = object;

    walk_mat(w, &s->rows, 256, 320, SHARD_ROWS, 1, "r.weight");
    walk_mat(w, &s->cols, 48, 512, SHARD_COLS, 1, "c.weight");
    walk_mat(w, &s->one, 32, 64, SHARD_ROWS, 1, "o.weight");
}

/* Codes and scales that differ from each other, scales as stored by `type`. */
static void put_scaled(struct tensors *f, const char *name, const char *type, int rows, int cols,
                       int grid_rows, int grid_cols)
{
    bool wide = strcmp(type, "F32") == 0, bf16 = strcmp(type, "BF16") == 0;
    size_t codes = (size_t)(rows * cols), scales = (size_t)(grid_rows * grid_cols);
    unsigned char *code = malloc(codes);
    char tensor[64], shape[64];
    float *scale = malloc(scales * 4);
    uint16_t *half = malloc(scales * 2);

    for (size_t i = 0; i < codes; i++)
        code[i] = (unsigned char)(i * 31 % 127);
    for (size_t i = 0; i < scales; i++) {
        scale[i] = bf16_round(0.01f + 0.001f * (float)i);
        half[i] = bf16 ? bf16_from_f32(scale[i]) : f16_from_f32(scale[i]);
    }
    snprintf(tensor, sizeof(tensor), "%s.weight", name);
    snprintf(shape, sizeof(shape), "[%d,%d]", rows, cols);
    tensors_add(f, tensor, "F8_E4M3", shape, code, codes);
    snprintf(tensor, sizeof(tensor), "%s.weight_scale_inv", name);
    snprintf(shape, sizeof(shape), "[%d,%d]", grid_rows, grid_cols);
    tensors_add(f, tensor, type, shape, wide ? (void *)scale : (void *)half,
                scales * (wide ? 4 : 2));
    free(code);
    free(scale);
    free(half);
}

static int scaled_visit(struct walk *walk, const struct weight *d, void *target)
{
    struct check *c = (struct check *)walk;
    const struct mat *m = target;
    int64_t row = d->shard == SHARD_ROWS ? d->first : 0,
            col = d->shard == SHARD_COLS ? d->first : 0;
    struct stored w;
    float *v, *is = bound_values(m);

    cr_assert(eq(int, source_stored(c->src, d->name, STORED_MAT, d->rows, d->cols, &w), 0));
    v = malloc((size_t)(w.n * w.k) * sizeof(*v));
    stored_values(c->src, &w, 0, v);
    for (int n = 0; n < m->rows; n++)
        for (int k = 0; k < m->cols; k++)
            cr_assert(f32_bits(is[n * m->cols + k]) == f32_bits(v[(row + n) * w.k + col + k]),
                      "rank %d of %d, %s: value %d, %d", walk->rank, walk->ranks, d->name, n, k);
    free(v);
    free(is);
    return 0;
}

Test(pack_quant, scales_of_blocks_may_be_halves)
{
    static const char *const types[] = { "F32", "BF16", "F16" };
    char folder[PATH_CAP], path[PATH_CAP];

    log_open(-1, LOG_WARN);
    temp_folder(folder);
    path_join(path, sizeof(path), folder, "x.pack");
    for (int i = 0; i < 3; i++)
        for (int ranks = 1; ranks <= 2; ranks++) {
            struct tensors f = { 0 };
            struct source *src;

            put_scaled(&f, "r", types[i], 256, 320, 2, 3);
            put_scaled(&f, "c", types[i], 48, 512, 1, 4);
            put_scaled(&f, "o", types[i], 32, 64, 1, 1);
            tensors_write(&f, folder, "model.safetensors");
            cr_assert(eq(int, source_hf_open(folder, &src), 0));
            for (int rank = 0; rank < ranks; rank++) {
                struct scaled s;
                struct walk_part part = { scaled_weights, &s };
                struct pack_spec spec = spec_of(&part, rank, ranks, PACK_CPU);
                struct check c = { .src = src };
                struct pack *p;

                cr_assert(eq(int, pack_write(path, &spec, src), 0), "%s", types[i]);
                cr_assert(eq(int, pack_open(path, &p), 0));
                cr_assert(eq(int, pack_bind(p, &part, 1), 0));
                c.w = (struct walk){ .visit = scaled_visit,
                                     .rank = rank,
                                     .ranks = ranks,
                                     .width_unit = pack_width_unit(p) };
                cr_assert(eq(int, walk_parts(&c.w, &part, 1), 0));
                pack_close(p);
                unlink(path);
            }
            src->ops->close(src);
        }
    folder_count(folder, 1);
}

/* ---- experts on one rank each -------------------------------------------------------------- */

#define EXPERTS 5

struct experts {
    struct mat w1[EXPERTS], w2[EXPERTS];
};

static void expert_weights(void *object, struct walk *w)
{
    struct experts *e = object;

    for (int i = 0; i < EXPERTS; i++) {
        walk_expert(w, &e->w1[i], 128, 256, SHARD_ROWS, i, EXPERTS,
                    "layers.0.ffn.experts.%d.w1.weight", i);
        walk_expert(w, &e->w2[i], 256, 128, SHARD_COLS, i, EXPERTS,
                    "layers.0.ffn.experts.%d.w2.weight", i);
    }
}

Test(pack_quant, experts_may_lie_whole_on_one_rank)
{
    /* By the number of ranks; the last ones may have none. */
    static const struct {
        int ranks, owner[EXPERTS];
    } cases[] = {
        { 1, { 0 } }, { 2, { 0, 0, 0, 1, 1 } }, { 4, { 0, 0, 1, 2, 3 } }, { 7, { 0, 1, 2, 3, 4 } }
    };
    struct scheme scheme;
    struct source *src;
    char folder[PATH_CAP], path[PATH_CAP];

    log_open(-1, LOG_WARN);
    temp_folder(folder);
    path_join(path, sizeof(path), folder, "x.pack");
    cr_assert(eq(int, scheme_parse("exl3-2", &scheme), 0));
    cr_assert(eq(int, source_synth_open_scheme(5, &scheme, &src), 0));
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        for (int rank = 0; rank < cases[c].ranks; rank++) {
            struct experts e;
            struct walk_part part = { expert_weights, &e };
            struct pack_spec spec = spec_of(&part, rank, cases[c].ranks, PACK_CPU);
            struct pack *p;

            spec.whole_experts = true;
            cr_assert(eq(int, pack_write(path, &spec, src), 0));
            cr_assert(eq(int, pack_open(path, &p), 0));
            cr_assert(eq(int, pack_bind(p, &part, 1), 0));
            for (int i = 0; i < EXPERTS; i++) {
                int share = cases[c].owner[i] == rank ? 128 : 0;

                cr_expect(e.w1[i].rows == share && e.w1[i].cols == 256, "expert %d, rank %d of %d",
                          i, rank, cases[c].ranks);
                cr_expect(e.w2[i].rows == 256 && e.w2[i].cols == share, "expert %d, rank %d of %d",
                          i, rank, cases[c].ranks);
            }
            pack_close(p);
            unlink(path);
        }
    src->ops->close(src);
    folder_count(folder, 1);
}
