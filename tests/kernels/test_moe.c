#include <errno.h>

#include "tests/kernels/bed.h"

/* ---- router ---- */

Test(moe, route_takes_the_best_by_biased_score_and_weighs_by_the_plain_one)
{
    float logit[5] = { 1, 30, -2, 1, 0.5f };
    const float bias[5] = { 0, -100, 3, 0, 0 };
    double s[5];
    int32_t id[3];
    float w[3];
    struct bed b;

    bed_open(&b, 1);
    for (int e = 0; e < 5; e++)
        s[e] = sqrt(log1p(exp((double)logit[e])));
    b.op->route(b.q, &(struct route_args){ .logit = logit,
                                           .bias = bias,
                                           .id = id,
                                           .weight = w,
                                           .rows = 1,
                                           .experts = 5,
                                           .k = 3,
                                           .norm = 1,
                                           .scale = 1.5f,
                                           .temp = 1 });
    cr_expect(id[0] == 0 && id[1] == 2 && id[2] == 3, "%d %d %d", id[0], id[1], id[2]);
    for (int i = 0; i < 3; i++)
        cr_expect(fabs((double)w[i] - 1.5 * s[id[i]] / (s[0] + s[2] + s[3])) < 1e-6, "%d", i);
    b.op->route(b.q, &(struct route_args){ .logit = logit,
                                           .bias = bias,
                                           .id = id,
                                           .weight = w,
                                           .rows = 1,
                                           .experts = 5,
                                           .k = 1,
                                           .norm = 0,
                                           .scale = 2,
                                           .temp = 0.5f });
    cr_expect(eq(int, id[0], 2));
    cr_expect(fabs((double)w[0] - 2 * sqrt(log1p(exp(-1)))) < 1e-6);
    bed_close(&b);
}

Test(moe, route_breaks_ties_to_the_lower_id)
{
    float logit[40] = { 0 }, bias[40] = { 0 }, w[4];
    int32_t id[4];
    struct bed b;

    bed_open(&b, 1);
    bias[39] = bias[20] = 1;
    b.op->route(b.q, &(struct route_args){ .logit = logit,
                                           .bias = bias,
                                           .id = id,
                                           .weight = w,
                                           .rows = 1,
                                           .experts = 40,
                                           .k = 4,
                                           .norm = 1,
                                           .scale = 1,
                                           .temp = 1 });
    cr_expect(id[0] == 0 && id[1] == 1 && id[2] == 20 && id[3] == 39, "%d %d %d %d", id[0], id[1],
              id[2], id[3]);
    cr_expect(eq(flt, w[0], 0.25f));
    bed_close(&b);
}

/* A row that goes to all of four experts but for those that top_p leaves out. */
static void route_four(struct bed *b, float logit[4], int norm, float top_p, int32_t id[4],
                       float w[4])
{
    static const float bias[4];

    b->op->route(b->q, &(struct route_args){ .logit = logit,
                                             .bias = bias,
                                             .id = id,
                                             .weight = w,
                                             .rows = 1,
                                             .experts = 4,
                                             .k = 4,
                                             .norm = norm,
                                             .scale = 1,
                                             .temp = 1,
                                             .top_p = top_p });
}

Test(moe, route_leaves_out_what_others_hold_enough_without)
{
    /* scores: nearly 5, 4, 3, 2 for ids 3, 0, 2, 1, so sums of the larger ones are 0, 5, 9, 12 of
     * 14 */
    static const float score[4] = { 4, 2, 3, 5 };
    static const struct {
        float top_p;
        int norm, stay;
    } cases[] = { { 0, 1, 4 },    { 0.01f, 1, 1 }, { 0.3f, 0, 1 },  { 0.4f, 1, 2 },
                  { 0.6f, 1, 2 }, { 0.7f, 1, 3 },  { 0.84f, 0, 3 }, { 0.9f, 1, 4 } };
    static const int rank[4] = { 1, 3, 2, 0 };
    float logit[4], equal[4] = { 1, 1, 1, 1 }, w[4];
    int32_t id[4];
    struct bed b;

    bed_open(&b, 1);
    for (int e = 0; e < 4; e++)
        logit[e] = (float)log(expm1((double)(score[e] * score[e])));
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        float kept = 0;

        route_four(&b, logit, cases[c].norm, cases[c].top_p, id, w);
        for (int e = 0; e < 4; e++)
            kept += rank[e] < cases[c].stay ? score[e] : 0;
        for (int e = 0; e < 4; e++) {
            bool stays = rank[e] < cases[c].stay;
            float want = stays ? score[e] / (cases[c].norm ? kept : 1) : 0;

            cr_expect(eq(int, id[e], stays ? e : -1), "case %zu expert %d", c, e);
            cr_expect(fabsf(w[e] - want) < 1e-5f, "case %zu expert %d: %g", c, e, (double)w[e]);
        }
    }
    route_four(&b, equal, 1, 0.5f, id, w); /* of equal ones the lower ids stay */
    cr_expect(id[0] == 0 && id[1] == 1 && id[2] == -1 && id[3] == -1);
    cr_expect(eq(flt, w[1], 0.5f));
    bed_close(&b);
}

/* Far below zero a score is e^(logit / 2), in the end nothing; then nobody holds enough. */
Test(moe, route_weighs_scores_next_to_nothing)
{
    float low[4] = { -25, -31, -25, -90 }, none[4] = { -400, -400, -400, -400 }, w[4];
    int32_t id[4];
    struct bed b;
    double sum = 2 + exp(-3) + exp(-32.5);

    bed_open(&b, 1);
    route_four(&b, low, 1, 0, id, w);
    for (int e = 0; e < 4; e++)
        cr_expect(fabs((double)w[e] / (exp(((double)low[e] + 25) / 2) / sum) - 1) < 1e-6, "%d: %a",
                  e, (double)w[e]);
    route_four(&b, none, 1, 0.5f, id, w);
    for (int e = 0; e < 4; e++)
        cr_expect(id[e] == e && w[e] == 0, "%d: %d, %f", e, (int)id[e], (double)w[e]);
    bed_close(&b);
}

Test(moe, route_always_gives_valid_ids)
{
    float logit[6], bias[6] = { 0 }, w[3];
    int32_t id[3];
    struct bed b;

    bed_open(&b, 1);
    for (int e = 0; e < 6; e++)
        logit[e] = e == 4 ? 1 : NAN;
    b.op->route(b.q, &(struct route_args){ .logit = logit,
                                           .bias = bias,
                                           .id = id,
                                           .weight = w,
                                           .rows = 1,
                                           .experts = 6,
                                           .k = 3,
                                           .norm = 1,
                                           .scale = 1,
                                           .temp = 1 });
    cr_expect(0 <= id[0] && id[0] < id[1] && id[1] < id[2] && id[2] < 6, "%d %d %d", id[0], id[1],
              id[2]);
    cr_expect(w[2] != w[2], "the NaN is not hidden");
    b.op->route(b.q, &(struct route_args){ .logit = logit,
                                           .bias = bias,
                                           .id = id,
                                           .weight = w,
                                           .rows = 1,
                                           .experts = 6,
                                           .k = 7,
                                           .scale = 1,
                                           .temp = 1 });
    cr_expect(eq(int, bed_wait(&b), -EINVAL));
    bed_close(&b);
}

/* ---- experts ---- */

struct layer {
    struct mat w1[8], w3[8], w2[8], s1, s3, s2;
    float *d1[9], *d3[9], *d2[9]; /* the same row by row, the shared one last */
    struct moe_args a;
    int inter, shared;
};

static void layer_make(struct bed *b, struct layer *l, int rows, int dim, int inter, int shared,
                       int experts, int k, enum dtype t)
{
    int wide = shared > inter ? shared : inter;
    int32_t *id = bed_take(b, (size_t)(rows * k) * sizeof(*id));

    memset(l, 0, sizeof(*l));
    l->inter = inter;
    l->shared = shared;
    for (int e = 0; e < experts; e++) {
        l->w1[e] = bed_mat(b, inter, dim, t, 0.5f, &l->d1[e]);
        l->w3[e] = bed_mat(b, inter, dim, t, 0.5f, &l->d3[e]);
        l->w2[e] = bed_mat(b, dim, inter, t, 0.5f, &l->d2[e]);
    }
    l->s1 = bed_mat(b, shared, dim, t, 0.5f, &l->d1[8]);
    l->s3 = bed_mat(b, shared, dim, t, 0.5f, &l->d3[8]);
    l->s2 = bed_mat(b, dim, shared, t, 0.5f, &l->d2[8]);
    for (int r = 0; r < rows;
         r++) /* k ascending ids, other ones in each row; some of them elsewhere */
        for (int i = 0, e = 0; i < k; i++) {
            e += bed_int(b, experts - k + i + 1 - e);
            id[r * k + i] = bed_int(b, 7) == 0 ? -1 : e;
            e++;
        }
    l->a = (struct moe_args){ .w1 = l->w1,
                              .w3 = l->w3,
                              .w2 = l->w2,
                              .x = bed_f32(b, (size_t)(rows * dim), 1),
                              .weight = bed_f32(b, (size_t)(rows * k), 1),
                              .id = id,
                              .y = bed_zeros(b, (size_t)(rows * dim)),
                              .scratch = bed_zeros(b, (size_t)(rows * (k + 1) * 2 * wide)),
                              .rows = rows,
                              .experts = experts,
                              .k = k,
                              .limit = 1.5f };
    if (shared) {
        l->a.s1 = &l->s1;
        l->a.s3 = &l->s3;
        l->a.s2 = &l->s2;
    }
}

static void naive_expert(const struct layer *l, int e, int inter, const float *x, float weight,
                         int dim, double *y)
{
    double h[256];

    for (int i = 0; i < inter; i++) {
        double g = 0, u = 0;

        for (int c = 0; c < dim; c++) {
            g += (double)l->d1[e][i * dim + c] * (double)x[c];
            u += (double)l->d3[e][i * dim + c] * (double)x[c];
        }
        g = fmin(g, 1.5);
        u = fmin(fmax(u, -1.5), 1.5);
        h[i] = (double)weight * (g / (1 + exp(-g))) * u;
    }
    for (int c = 0; c < dim; c++)
        for (int i = 0; i < inter; i++)
            y[c] += (double)l->d2[e][c * inter + i] * h[i];
}

static const struct {
    int rows, dim, inter, shared, experts, k;
    enum dtype t;
} shapes[] = {
    { 1, 32, 16, 16, 3, 2, DTYPE_F32 },  { 6, 64, 40, 24, 6, 3, DTYPE_BF16 },
    { 16, 48, 128, 0, 8, 1, DTYPE_F16 }, { 33, 40, 20, 70, 8, 8, DTYPE_F32 },
    { 5, 50, 9, 7, 4, 2, DTYPE_BF16 },
};

Test(moe, experts_match_a_plain_reference_in_double)
{
    for (size_t i = 0; i < COUNT(shapes); i++) {
        int rows = shapes[i].rows, dim = shapes[i].dim, k = shapes[i].k;
        struct layer l;
        struct bed b;
        double *want;

        bed_open(&b, 2);
        layer_make(&b, &l, rows, dim, shapes[i].inter, shapes[i].shared, shapes[i].experts, k,
                   shapes[i].t);
        want = bed_take(&b, (size_t)(rows * dim) * sizeof(*want));
        for (int r = 0; r < rows; r++) {
            for (int j = 0; j < k; j++)
                if (l.a.id[r * k + j] >= 0)
                    naive_expert(&l, l.a.id[r * k + j], l.inter, l.a.x + r * dim,
                                 l.a.weight[r * k + j], dim, want + r * dim);
            if (l.shared)
                naive_expert(&l, 8, l.shared, l.a.x + r * dim, 1, dim, want + r * dim);
        }
        bed_fill(&b, l.a.y, (size_t)(rows * dim), 1);
        b.op->moe(b.q, &l.a);
        cr_assert(eq(int, bed_wait(&b), 0));
        cr_expect(le(dbl, bed_error(l.a.y, want, (size_t)(rows * dim)), 2e-6 * sqrt(dim)),
                  "shape %zu", i);
        bed_close(&b);
    }
}

/* The roundings, the order of experts, and the partial sum in f32, by the dense ops. */
static void moe_by_parts(struct bed *b, const struct layer *l, int r, float *y)
{
    const struct moe_args *a = &l->a;
    int dim = a->w2[0].rows;

    for (int c = 0; c < dim; c++)
        y[c] = 0;
    for (int j = 0; j <= a->k; j++) {
        int is_shared = j == a->k, e = is_shared ? 0 : a->id[r * a->k + j];
        const struct mat *w1 = is_shared ? a->s1 : &a->w1[e < 0 ? 0 : e];
        const struct mat *w3 = is_shared ? a->s3 : &a->w3[e < 0 ? 0 : e];
        const struct mat *w2 = is_shared ? a->s2 : &a->w2[e < 0 ? 0 : e];
        float g[256], u[256], out[256], weight = is_shared ? 1 : a->weight[r * a->k + j];

        if (e < 0 || !w1)
            continue;
        b->op->matmul(b->q,
                      &(struct matmul_args){
                          .w = w1, .x = a->x + r * dim, .y = g, .rows = 1, .round = a->round });
        b->op->matmul(b->q,
                      &(struct matmul_args){
                          .w = w3, .x = a->x + r * dim, .y = u, .rows = 1, .round = a->round });
        b->op->swiglu(
            b->q, &(struct swiglu_args){
                      .gate = g, .up = u, .y = g, .rows = 1, .cols = w1->rows, .limit = a->limit });
        for (int i = 0; i < w1->rows; i++)
            g[i] = a->round == ROUND_BF16 ? bf16_round(weight * g[i]) : weight * g[i];
        b->op->matmul(b->q, &(struct matmul_args){ .w = w2, .x = g, .y = out, .rows = 1 });
        for (int c = 0; c < dim; c++)
            y[c] += out[c];
    }
}

Test(moe, bits_are_those_of_one_row_and_one_expert_at_a_time)
{
    for (int workers = 1; workers <= 3; workers += 2)
        for (size_t i = 0; i < COUNT(shapes); i++) {
            struct layer l;
            struct bed b;

            bed_open(&b, workers);
            layer_make(&b, &l, shapes[i].rows, shapes[i].dim, shapes[i].inter, shapes[i].shared,
                       shapes[i].experts, shapes[i].k, shapes[i].t);
            l.a.round = i % 2 ? ROUND_BF16 : ROUND_NONE;
            b.op->moe(b.q, &l.a);
            for (int r = 0; r < shapes[i].rows; r++) {
                float y[256];

                moe_by_parts(&b, &l, r, y);
                cr_expect(bed_same(y, l.a.y + r * shapes[i].dim, (size_t)shapes[i].dim),
                          "shape %zu row %d, %d workers", i, r, workers);
            }
            bed_close(&b);
        }
}

Test(moe, an_empty_share_adds_nothing)
{
    struct layer l;
    struct bed b;

    bed_open(&b, 1);
    layer_make(&b, &l, 3, 32, 0, 0, 3, 2, DTYPE_F32);
    bed_fill(&b, l.a.y, 96, 1);
    b.op->moe(b.q, &l.a);
    for (int i = 0; i < 96; i++)
        cr_assert(l.a.y[i] == 0);
    bed_close(&b);
}

Test(moe, an_unknown_expert_fails_the_queue)
{
    struct layer l;
    struct bed b;

    bed_open(&b, 1);
    layer_make(&b, &l, 3, 32, 16, 16, 3, 2, DTYPE_F32);
    l.a.experts = 1;
    ((int32_t *)l.a.id)[5] = 1;
    l.a.y[0] = 4;
    b.op->moe(b.q, &l.a);
    cr_expect(eq(flt, l.a.y[0], 4));
    cr_expect(eq(int, bed_wait(&b), -EINVAL));
    bed_close(&b);
}

/* Experts are as wide as they are, the first one not the widest. */
Test(moe, experts_may_differ_in_width)
{
    static const int inter[] = { 9, 130, 40 };
    struct layer l;
    struct bed b;

    bed_open(&b, 2);
    layer_make(&b, &l, 5, 48, 130, 16, 3, 2, DTYPE_BF16);
    for (int e = 0; e < 3; e++) {
        l.w1[e] = bed_mat(&b, inter[e], 48, DTYPE_BF16, 0.5f, NULL);
        l.w3[e] = bed_mat(&b, inter[e], 48, DTYPE_F16, 0.5f, NULL);
        l.w2[e] = bed_mat(&b, 48, inter[e], DTYPE_F32, 0.5f, NULL);
    }
    b.op->moe(b.q, &l.a);
    for (int r = 0; r < 5; r++) {
        float y[48];

        moe_by_parts(&b, &l, r, y);
        cr_expect(bed_same(y, l.a.y + r * 48, 48), "row %d", r);
    }
    bed_close(&b);
}

/* Inputs that are quantised in blocks have whole ones, whichever weight meets them. */
Test(moe, a_weight_that_cannot_be_multiplied_fails_the_queue)
{
    for (int bad = 0; bad < 6; bad++) {
        struct layer l;
        struct bed b;
        struct mat *of[] = { &l.w1[2], &l.w3[2], &l.w2[2], &l.s1, &l.s3, &l.s2 };

        bed_open(&b, 1);
        layer_make(&b, &l, 1, 40, 40, 40, 3, 1, DTYPE_F32);
        ((int32_t *)l.a.id)[0] = 2;
        l.a.in = CODEC_QW;
        *of[bad] = (struct mat){ .data = of[bad]->data,
                                 .scale = of[bad]->data,
                                 .dtype = DTYPE_FP8,
                                 .rows = 40,
                                 .cols = 40,
                                 .q = { .block = 32 } };
        l.a.y[0] = 4;
        b.op->moe(b.q, &l.a);
        cr_expect(eq(flt, l.a.y[0], 4), "weight %d", bad);
        cr_expect(eq(int, bed_wait(&b), -EINVAL), "weight %d", bad);
        bed_close(&b);
    }
}
