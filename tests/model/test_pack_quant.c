#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <math.h>

#include "kernels/backend.h"
#include "kernels/formats/exl3.h"
#include "kernels/formats/values.h"
#include "kernels/ops.h"
#include "src/model/pack_file.h"
#include "src/model/row_store.h"
#include "src/model/scheme.h"
#include "tests/model/stored_rig.h"

/* ---- packs of every rank, open and bound --------------------------------------------------- */

#define RANKS_TESTED 4
#define ROWS_TEST 5 /* of inputs */

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

struct world {
    int ranks;
    char folder[PATH_CAP];
    struct pack *p[RANKS_TESTED];
    struct some w[RANKS_TESTED];
};

static struct pack_spec spec_of(const struct walk_part *part, int rank, int ranks, int layouts)
{
    return (struct pack_spec){ .family = "test",
                               .parts = part,
                               .n_parts = 1,
                               .rank = rank,
                               .ranks = ranks,
                               .layouts = layouts };
}

static void world_open(struct world *w, struct source *src, int ranks, int layouts,
                       enum layout prefer)
{
    temp_folder(w->folder);
    w->ranks = ranks;
    for (int r = 0; r < ranks; r++) {
        struct walk_part part = { some_weights, &w->w[r] };
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

/* W [rows][cols] of a bound matrix. */
static float *bound_values(const struct mat *m)
{
    size_t k_all = mat_round_up((size_t)m->cols, EXL3_BLOCK);
    float *w = malloc((size_t)(m->rows * m->cols + 1) * sizeof(*w));
    float *v = malloc(k_all * MAT_TILE * sizeof(*v));

    for (int tile = 0; tile * MAT_TILE < m->rows; tile++) {
        mat_values(m, tile, 0, (int)k_all, v);
        for (int n = tile * MAT_TILE; n < m->rows && n < (tile + 1) * MAT_TILE; n++)
            for (int k = 0; k < m->cols; k++)
                w[n * m->cols + k] = v[k * MAT_TILE + n % MAT_TILE];
    }
    free(v);
    return w;
}

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

static void expect_shares(struct world *w, struct source *src, enum layout layout)
{
    int64_t covered[6] = { 0 };
    static const int64_t want[6] = { 640 * 256,  256 * 640,  128 * 384,
                                     1024 * 128, 1024 * 256, 128 * 128 };

    for (int r = 0; r < w->ranks; r++) {
        struct walk_part part = { some_weights, &w->w[r] };
        struct check c = { .w = { .visit = check_visit,
                                  .rank = r,
                                  .ranks = w->ranks,
                                  .width_unit = pack_width_unit(w->p[r]) },
                           .src = src,
                           .layout = layout,
                           .covered = covered };

        cr_assert(eq(int, walk_parts(&c.w, &part, 1), 0));
    }
    for (int i = 0; i < 6; i++)
        cr_expect(covered[i] == want[i] * (i == 2 ? w->ranks : 1), "weight %d", i);
}

/* ---- products: partial sums against the unsplit one ---------------------------------------- */

struct ref {
    const struct backend_ops *b;
    struct device *d;
    struct queue *q;
};

static void ref_open(struct ref *f)
{
    cr_assert(eq(int, backend_find("ref", &f->b), 0));
    cr_assert(eq(int, f->b->open(0, 1, &f->d), 0));
    cr_assert(eq(int, f->b->queue_open(f->d, &f->q), 0));
}

static void ref_close(struct ref *f)
{
    f->b->queue_close(f->q);
    f->b->close(f->d);
}

static void multiply(struct ref *f, const struct mat *m, const float *x, int groups, float *y)
{
    f->b->op->matmul(
        f->q, &(struct matmul_args){ .w = m, .x = x, .y = y, .rows = ROWS_TEST, .groups = groups });
    cr_assert(eq(int, f->b->wait(f->q), 0));
}

/* Columns first .. first + n - 1 of x [ROWS_TEST][cols]. */
static float *cut(const float *x, int cols, int64_t first, int n)
{
    float *y = malloc((size_t)(ROWS_TEST * n + 1) * sizeof(*y));

    for (int r = 0; r < ROWS_TEST; r++)
        memcpy(y + r * n, x + r * cols + first, (size_t)n * sizeof(*y));
    return y;
}

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
    world_open(&one, src, 1, PACK_CPU, LAYOUT_CPU);
    for (int i = 0; i < 3; i++)
        for (enum layout layout = LAYOUT_CPU; layout <= LAYOUT_DEVICE; layout++) {
            world_open(&w, src, ranks[i],
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
        world_open(&w, src, cases[i].ranks, PACK_CPU, LAYOUT_CPU);
        cr_expect(eq(int, pack_width_unit(w.p[0]), cases[i].unit), "%s", cases[i].scheme);
        cr_expect(s->wide.rows == cases[i].wide && s->deep.cols == cases[i].deep &&
                      s->one_block.cols == cases[i].one_block,
                  "%s, rank %d of %d: %d %d %d", cases[i].scheme, cases[i].rank, cases[i].ranks,
                  s->wide.rows, s->deep.cols, s->one_block.cols);
        world_close(&w);
        src->ops->close(src);
    }
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
    static const int owner[EXPERTS] = { 0, 0, 0, 1, 1 };
    struct scheme scheme;
    struct source *src;
    char folder[PATH_CAP], path[PATH_CAP];

    log_open(-1, LOG_WARN);
    temp_folder(folder);
    path_join(path, sizeof(path), folder, "x.pack");
    cr_assert(eq(int, scheme_parse("exl3-2", &scheme), 0));
    cr_assert(eq(int, source_synth_open_scheme(5, &scheme, &src), 0));
    for (int rank = 0; rank < 2; rank++) {
        struct experts e;
        struct walk_part part = { expert_weights, &e };
        struct pack_spec spec = spec_of(&part, rank, 2, PACK_CPU);
        struct pack *p;

        spec.whole_experts = true;
        cr_assert(eq(int, pack_write(path, &spec, src), 0));
        cr_assert(eq(int, pack_open(path, &p), 0));
        cr_assert(eq(int, pack_bind(p, &part, 1), 0));
        for (int i = 0; i < EXPERTS; i++) {
            bool mine = owner[i] == rank;

            cr_expect(e.w1[i].rows == (mine ? 128 : 0) && e.w1[i].cols == 256, "expert %d", i);
            cr_expect(e.w2[i].rows == 256 && e.w2[i].cols == (mine ? 128 : 0), "expert %d", i);
        }
        pack_close(p);
        unlink(path);
    }
    src->ops->close(src);
    folder_count(folder, 1);
}

/* ---- goldens through a pack ---------------------------------------------------------------- */

struct golden {
    const char *file, *weight, *expect;
    int rows, cols;
    bool mat;
};

struct one {
    const struct golden *g;
    enum shard shard;
    struct mat m;
};

static void one_weight(void *object, struct walk *w)
{
    struct one *o = object;

    walk_mat(w, &o->m, o->g->rows, o->g->cols, o->shard, 1, "%s", o->g->weight);
}

/* A folder whose model.safetensors is a golden file. */
static struct source *golden_source(const char *file)
{
    char folder[PATH_CAP], from[PATH_CAP], to[PATH_CAP], *data;
    struct source *s;
    size_t bytes;

    temp_folder(folder);
    snprintf(from, sizeof(from), VECTORS "/formats/%s.safetensors", file);
    path_join(to, sizeof(to), folder, "model.safetensors");
    cr_assert(eq(int, file_read(from, 1 << 24, &data, &bytes), 0));
    cr_assert(eq(int, file_write(to, data, bytes, 0644), 0));
    free(data);
    cr_assert(eq(int, source_hf_open(folder, &s), 0), "%s", file);
    folder_count(folder, 1);
    return s;
}

static void *golden_take(struct source *s, const char *name)
{
    struct stored_tensor t;

    snprintf(t.name, sizeof(t.name), "%s", name);
    cr_assert(eq(int, s->ops->find(s, name, 0, 0, &t.t), 0), "%s", name);
    return take(s, &t);
}

/* Pack a weight of a source for a rank and bind it. */
static struct pack *pack_one(struct source *src, struct one *o, int rank, int ranks, int layouts)
{
    struct walk_part part = { one_weight, o };
    struct pack_spec spec = spec_of(&part, rank, ranks, layouts);
    char folder[PATH_CAP], path[PATH_CAP];
    struct pack *p;

    temp_folder(folder);
    path_join(path, sizeof(path), folder, "x.pack");
    cr_assert(eq(int, pack_write(path, &spec, src), 0), "%s", o->g->weight);
    cr_assert(eq(int, pack_open(path, &p), 0));
    cr_assert(eq(int, pack_bind(p, &part, 1), 0));
    folder_count(folder, 1);
    return p;
}

Test(pack_quant, golden_values_come_out_bit_for_bit)
{
    static const struct golden cases[] = {
        { "nvfp4", "modelopt.weight", "modelopt.expect", 8, 64, true },
        { "nvfp4", "ct.weight", "ct.expect", 8, 64, true },
        { "mxfp4", "w1.weight", "expect", 16, 128, true },
        { "fp8_block", "v41.weight", "v41.expect", 64, 96, true },
    };

    log_open(-1, LOG_ERR);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int layouts = PACK_CPU; layouts <= PACK_DEVICE; layouts++) {
            const struct golden *g = &cases[i];
            struct one o = { .g = g };
            struct source *src = golden_source(g->file);
            struct pack *p = pack_one(src, &o, 0, 1, layouts);
            float *want = golden_take(src, g->expect), *is = bound_values(&o.m);

            for (int n = 0; n < g->rows; n++)
                for (int k = 0; k < g->cols; k++)
                    cr_assert(f32_bits(is[n * g->cols + k]) == f32_bits(want[n * g->cols + k]),
                              "%s: %d, %d", g->expect, n, k);
            free(is);
            free(want);
            pack_close(p);
            src->ops->close(src);
        }
}

/* The layer of the goldens over one rank, two that share its outputs, two that share its inputs. */
Test(pack_quant, golden_layer_holds_over_ranks)
{
    static const struct golden g = {
        "exl3_linear_mul1_b3_256x256", "p.weight", NULL, 256, 256, true
    };
    struct source *src = golden_source(g.file);
    double *want = golden_take(src, "expect.y");
    uint16_t *half = golden_take(src, "x");
    float x[ROWS_TEST * 256], y[ROWS_TEST * 256];
    struct ref f;

    log_open(-1, LOG_ERR);
    ref_open(&f);
    f32_widen(DTYPE_F16, half, ROWS_TEST * 256, x);
    for (enum shard shard = SHARD_NONE; shard <= SHARD_COLS; shard++)
        for (int layouts = PACK_CPU; layouts <= PACK_DEVICE; layouts++) {
            int ranks = shard == SHARD_NONE ? 1 : 2, at = 0;
            double sum[ROWS_TEST * 256] = { 0 }, off = 0;

            for (int rank = 0; rank < ranks; rank++) {
                struct one o = { .g = &g, .shard = shard };
                struct pack *p = pack_one(src, &o, rank, ranks, layouts);
                float *own = cut(x, 256, shard == SHARD_COLS ? at : 0, o.m.cols);

                cr_expect(eq(int, o.m.bias != NULL, shard != SHARD_COLS || rank == 0));
                multiply(&f, &o.m, own, 1, y);
                for (int i = 0; i < ROWS_TEST * o.m.rows; i++)
                    sum[i / o.m.rows * 256 + i % o.m.rows + (shard == SHARD_ROWS ? at : 0)] += y[i];
                at += shard == SHARD_COLS ? o.m.cols : o.m.rows;
                free(own);
                pack_close(p);
            }
            for (int i = 0; i < ROWS_TEST * 256; i++)
                off = fmax(off, fabs(sum[i] - want[i]));
            cr_expect(off < 5e-4, "shard %d, layouts %d: off by %g", (int)shard, layouts, off);
        }
    free(half);
    free(want);
    ref_close(&f);
    src->ops->close(src);
}

/* ---- rows of lookup tables ----------------------------------------------------------------- */

struct rows {
    struct row_table t;
    int64_t prime[3];
    int cols;
};

static void rows_weights(void *object, struct walk *w)
{
    struct rows *r = object;

    walk_rows(w, &r->t, r->prime, 3, r->cols, "layers.1.engram.embed.weight");
}

/* All rows of a rank's columns through the store. */
static void expect_rows(struct pack *p, const struct rows *r, const float *want, const float *bias)
{
    struct row_store *s;
    int64_t before = 0;

    cr_assert(eq(int,
                 row_store_open(
                     &(struct row_store_settings){
                         .pack = p, .io = "auto", .cache_bytes = 1 << 16, .wait_limit_ms = 10000 },
                     &s),
                 0));
    for (int c = 0; c < r->t.first; c++)
        before += r->prime[c];
    for (int c = 0; c < r->t.count; c++)
        for (int64_t i = 0; i < r->prime[r->t.first + c]; i++, before++) {
            int32_t column = c;
            float v[256];

            cr_assert(eq(int, s->ops->ask(s, &r->t, 0, &column, &i, 1), 0));
            cr_assert(eq(int, s->ops->take(s, 0, v), 0));
            for (int k = 0; k < r->cols; k++) {
                float w = want[before * r->cols + k];

                if (bias)
                    w += bias[(r->t.first + c) * r->cols + k];
                cr_assert(f32_bits(v[k]) == f32_bits(w), "row %ld, value %d", (long)before, k);
            }
        }
    s->ops->close(s);
}

static void expect_table(struct source *src, struct rows *r, const float *want, const float *bias)
{
    char folder[PATH_CAP], path[PATH_CAP];

    temp_folder(folder);
    path_join(path, sizeof(path), folder, "x.pack");
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int rank = 0; rank < ranks; rank++) {
            struct walk_part part = { rows_weights, r };
            struct pack_spec spec = spec_of(&part, rank, ranks, PACK_CPU);
            struct pack *p;

            cr_assert(eq(int, pack_write(path, &spec, src), 0), "rank %d of %d", rank, ranks);
            cr_assert(eq(int, pack_open(path, &p), 0));
            cr_assert(eq(int, pack_bind(p, &part, 1), 0));
            cr_expect(eq(int, pack_verify(p), 0));
            expect_rows(p, r, want, bias);
            pack_close(p);
            unlink(path);
        }
    folder_count(folder, 1);
}

Test(pack_quant, rows_in_fp8_are_those_of_the_golden_table)
{
    struct source *golden = golden_source("fp8_block"), *src;
    uint8_t *code = golden_take(golden, "table.weight"),
            *scale = golden_take(golden, "table.scale");
    float *want = golden_take(golden, "table.expect");
    struct rows r = { .prime = { 1, 2, 1 }, .cols = 256 };
    struct tensors f = { 0 };
    char folder[PATH_CAP];

    log_open(-1, LOG_ERR);
    temp_folder(folder);
    tensors_add(&f, "layers.1.engram.embed.weight", "F8_E4M3", "[4,256]", code, 1024);
    tensors_add(&f, "layers.1.engram.embed.scale", "F8_E8M0", "[4,8]", scale, 32);
    tensors_write(&f, folder, "model.safetensors");
    cr_assert(eq(int, source_hf_open(folder, &src), 0));
    folder_count(folder, 1);
    expect_table(src, &r, want, NULL);
    src->ops->close(src);
    golden->ops->close(golden);
    free(code);
    free(scale);
    free(want);
}

/* Three heads with the same golden rows and biases of their own: expect has the golden head's. */
Test(pack_quant, rows_in_exl3_have_the_bias_of_their_head)
{
    static const char *const names[] = { "b4", "b6" };

    log_open(-1, LOG_ERR);
    for (int i = 0; i < 2; i++) {
        struct source *golden = golden_source("exl3_ngram_rows"), *src;
        char name[64], folder[PATH_CAP], shape[32];
        uint16_t *rows, *bias, biases[3][160] = { 0 };
        struct rows r = { .prime = { 1, 1, 2 }, .cols = 160 };
        struct tensors f = { 0 };
        float *want;
        struct pack *p;
        struct walk_part part = { rows_weights, &r };
        struct pack_spec spec = spec_of(&part, 0, 1, PACK_CPU);
        int words = ngram_row_words(i ? 6 : 4);

        rows = golden_take(golden, (snprintf(name, 64, "%s.rows", names[i]), name));
        bias = golden_take(golden, (snprintf(name, 64, "%s.head_bias", names[i]), name));
        want = golden_take(golden, (snprintf(name, 64, "%s.expect", names[i]), name));
        for (int h = 0; h < 3; h++)
            memcpy(biases[h], bias, sizeof(biases[h]));
        memset(biases[1], 0, sizeof(biases[1]));
        temp_folder(folder);
        snprintf(shape, sizeof(shape), "[4,%d]", words);
        tensors_add(&f, "layers.1.engram.embed.trellis", "I16", shape, rows, (size_t)words * 8);
        tensors_add(&f, "layers.1.engram.embed.head_bias", "F16", "[3,160]", biases,
                    sizeof(biases));
        tensors_write(&f, folder, "model.safetensors");
        cr_assert(eq(int, source_hf_open(folder, &src), 0));
        path_join(name, sizeof(name), folder, "x.pack");
        cr_assert(eq(int, pack_write(name, &spec, src), 0));
        cr_assert(eq(int, pack_open(name, &p), 0));
        cr_assert(eq(int, pack_bind(p, &part, 1), 0));
        {
            static const float zero[160];
            float v[4 * 160], other[160];
            int32_t column[] = { 2, 0, 1, 2 };
            int64_t row[] = { 1, 0, 0, 0 };
            struct row_store *s;
            uint16_t none[160] = { 0 };

            cr_assert(eq(int,
                         row_store_open(&(struct row_store_settings){ .pack = p,
                                                                      .io = "auto",
                                                                      .cache_bytes = 1 << 16,
                                                                      .wait_limit_ms = 10000 },
                                        &s),
                         0));
            cr_assert(eq(int, s->ops->ask(s, &r.t, 0, column, row, 4), 0));
            cr_assert(eq(int, s->ops->take(s, 0, v), 0));
            ngram_row(rows + words, i ? 6 : 4, none, other);
            cr_expect(memcmp(v, want + 3 * 160, sizeof(zero)) == 0, "last row of the last head");
            cr_expect(memcmp(v + 160, want, sizeof(zero)) == 0, "first head");
            cr_expect(memcmp(v + 2 * 160, other, sizeof(zero)) == 0, "a head without bias");
            cr_expect(memcmp(v + 3 * 160, want + 2 * 160, sizeof(zero)) == 0);
            s->ops->close(s);
        }
        pack_close(p);
        src->ops->close(src);
        golden->ops->close(golden);
        folder_count(folder, 1);
        free(rows);
        free(bias);
        free(want);
    }
}

/* ---- what no checkpoint may hold ----------------------------------------------------------- */

struct bad_case {
    const char *name, *tensors;
    enum shard shard;
    int rows, cols, unit, ranks, result;
    const char *says;
};

#define EXL3_OK "a.trellis:I16[8,16,16] "

static const struct bad_case bad[] = {
    { "fine", "a.weight:F8_E4M3[32,32] a.scale:F8_E8M0[1,1]", SHARD_NONE, 32, 32, 1, 1, 0, NULL },
    { "a code that is NaN", "a.weight:F8_E4M3[32,32]=007f0000 a.scale:F8_E8M0[1,1]", SHARD_NONE, 32,
      32, 1, 1, -EINVAL, "a.weight: element 2," },
    { "e8m0 255", "a.weight:F8_E4M3[32,128] a.scale:F8_E8M0[1,4]=ff000000", SHARD_NONE, 32, 128, 1,
      1, -EINVAL, "a.scale: element 3," },
    { "f32 scale that is NaN", "a.weight:F8_E4M3[32,32] a.scale:F32[1,1]=7fc00000", SHARD_NONE, 32,
      32, 1, 1, -EINVAL, "a.scale: element 0," },
    { "mxfp4 scale of 255", "a.weight:I8[4,32] a.scale:F8_E8M0[4,2]=0000ff00", SHARD_NONE, 4, 64, 1,
      1, -EINVAL, "a.scale: element 1," },
    { "negative nvfp4 scale",
      "a.weight:U8[4,32] a.weight_scale:F8_E4M3[4,4]=00800000 a.weight_scale_2:F32[]=3f800000",
      SHARD_NONE, 4, 64, 1, 1, -EINVAL, "a.weight_scale: element 2," },
    { "suh without end", EXL3_OK "a.suh:F16[128]=7c000000 a.svh:F16[256]", SHARD_NONE, 256, 128, 1,
      1, -EINVAL, "a.suh: element 1," },
    { "svh that is NaN", EXL3_OK "a.suh:F16[128] a.svh:F16[256]=00007e00", SHARD_NONE, 256, 128, 1,
      1, -EINVAL, "a.svh: element 0," },
    { "bias that is NaN", EXL3_OK "a.suh:F16[128] a.svh:F16[256] a.bias:F16[256]=00007e00",
      SHARD_NONE, 256, 128, 1, 1, -EINVAL, "a.bias: element 0," },
    { "heads that cut a block", EXL3_OK "a.suh:F16[128] a.svh:F16[256]", SHARD_ROWS, 256, 128, 64,
      4, -EINVAL, "cuts a block of 128" },
    { "groups that cut a slice",
      "a.slice.0.trellis:I16[8,16,16] a.slice.0.suh:F16[128] a.slice.0.svh:F16[256]", SHARD_ROWS,
      256, 128, 128, 2, 0, NULL },
    { "missing", "b.weight:BF16[4,4]", SHARD_NONE, 4, 4, 1, 1, -ENOENT, "a.weight" },
};

static void bad_weights(void *object, struct walk *w)
{
    const struct bad_case *c = object;
    static struct mat m;

    walk_mat(w, &m, c->rows, c->cols, c->shard, c->unit, "a.weight");
}

Test(pack_quant, what_is_no_number_is_refused_and_nothing_is_left)
{
    struct last_line line;

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct bad_case *c = &bad[i];
        struct walk_part part = { bad_weights, (void *)c };
        struct pack_spec spec = spec_of(&part, 0, c->ranks, PACK_BOTH);
        char folder[PATH_CAP], path[PATH_CAP];
        struct source *src;

        temp_folder(folder);
        path_join(path, sizeof(path), folder, "x.pack");
        cr_assert(eq(int, source_of(c->tensors, NULL, &src), 0));
        line = (struct last_line){ 0 };
        cr_expect(eq(int, pack_write(path, &spec, src), c->result), "%s: %s", c->name, line.text);
        cr_expect(eq(int, line.n, c->result != 0), "%s: one line", c->name);
        if (c->says)
            cr_expect(strstr(line.text, c->says) &&
                          strstr(line.text, c->result == -ENOENT ? "checkpoint"
                                            : c->ranks > 1       ? "share"
                                                                 : "offset"),
                      "%s: %s", c->name, line.text);
        cr_expect(eq(int, folder_count(folder, 0), c->result == 0), "%s", c->name);
        src->ops->close(src);
        folder_count(folder, 1);
    }
    log_sink(NULL, NULL);
}

/* ---- tables of contents that lie about formats --------------------------------------------- */

struct lie {
    const char *name;
    enum dtype dtype;
    struct quant q;
    enum shard shard;
    int64_t rows, cols, count;
};

static const struct lie lies[] = {
    { "layout 2", DTYPE_EXL3, { .bits2 = 6, .layout = 2 }, SHARD_NONE, 128, 128, 128 },
    { "codebook 3", DTYPE_EXL3, { .bits2 = 6, .codebook = 3 }, SHARD_NONE, 128, 128, 128 },
    { "no width", DTYPE_EXL3, { .bits2 = 0 }, SHARD_NONE, 128, 128, 128 },
    { "half width of 3inst", DTYPE_EXL3, { .bits2 = 5 }, SHARD_NONE, 128, 128, 128 },
    { "nine bits", DTYPE_EXL3, { .bits2 = 18 }, SHARD_NONE, 128, 128, 128 },
    { "slices that are no blocks",
      DTYPE_EXL3,
      { .bits2 = 4, .slices = 2 },
      SHARD_NONE,
      128,
      128,
      128 },
    { "slices below 0", DTYPE_EXL3, { .bits2 = 4, .slices = -1 }, SHARD_NONE, 128, 128, 128 },
    { "block 0", DTYPE_FP8, { .block = 0 }, SHARD_NONE, 64, 64, 64 },
    { "block 8", DTYPE_FP8, { .block = 8 }, SHARD_NONE, 64, 64, 64 },
    { "block below 0", DTYPE_FP8, { .block = -32 }, SHARD_NONE, 64, 64, 64 },
    { "half a group", DTYPE_MXFP4, { 0 }, SHARD_COLS, 64, 64, 16 },
    { "no whole groups", DTYPE_MXFP4, { 0 }, SHARD_NONE, 64, 40, 64 },
    { "no global scale", DTYPE_NVFP4, { .global = 0 }, SHARD_NONE, 64, 64, 64 },
    { "global scale without end", DTYPE_NVFP4, { .global = INFINITY }, SHARD_NONE, 64, 64, 64 },
    { "type behind the last", DTYPE_END, { 0 }, SHARD_NONE, 64, 64, 64 },
};

Test(pack_quant, tables_of_contents_that_lie_about_formats_are_refused)
{
    struct last_line line;

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct pack_weight w = { .d = { .name = "m",
                                        .kind = WEIGHT_MAT,
                                        .rows = lies[i].rows,
                                        .cols = lies[i].cols,
                                        .shard = lies[i].shard,
                                        .count = lies[i].count },
                                 .dtype = lies[i].dtype,
                                 .q = lies[i].q,
                                 .offset = 256 };
        struct pack_toc t = { .family = (char *)"test",
                              .ranks = 1,
                              .width_unit = 1,
                              .layouts = PACK_CPU,
                              .weight = &w,
                              .n = 1 },
                        got;
        uint8_t *data;
        size_t bytes;

        line = (struct last_line){ 0 };
        cr_assert(eq(int, pack_toc_encode(&t, &data, &bytes), 0));
        cr_expect(eq(int, pack_toc_decode("x.pack", data, bytes, 256, &got), -EINVAL), "%s",
                  lies[i].name);
        cr_expect(eq(int, line.n, 1), "%s", lies[i].name);
        free(data);
    }
    log_sink(NULL, NULL);
}
