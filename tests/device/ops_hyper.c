/* Residual streams and the n-gram memory against the reference. */
#include "tests/device/lab.h"

struct streams {
    int hc, dim, iters, ldy;
    enum dtype dtype;
    enum round round;
    bool first; /* no mix yet */
};

static double tol_of(const struct streams *s, double tol)
{
    return s->round ? 0x1p-7 : tol;
}

static void run_mix(const struct trial *t, const struct op_table *op, struct queue *q,
                    void *const *b, int row, int rows)
{
    const struct streams *s = t->shape;
    size_t hc = (size_t)s->hc, r = (size_t)row;
    struct mat fn = {
        .data = b[0], .dtype = s->dtype, .rows = (2 + s->hc) * s->hc, .cols = s->hc * s->dim
    };

    op->hc_mix(q, &(struct hc_mix_args){ .x = (float *)b[1] + r * hc * (size_t)s->dim,
                                         .fn = &fn,
                                         .base = b[2],
                                         .scale = b[3],
                                         .pre = (float *)b[4] + r * hc,
                                         .post = (float *)b[5] + r * hc,
                                         .comb = (float *)b[6] + r * hc * hc,
                                         .rows = rows,
                                         .hc = s->hc,
                                         .dim = s->dim,
                                         .iters = s->iters,
                                         .eps = 1e-20f,
                                         .hc_eps = 1e-6f });
}

static void run_collapse(const struct trial *t, const struct op_table *op, struct queue *q,
                         void *const *b, int row, int rows)
{
    const struct streams *s = t->shape;
    size_t dim = (size_t)s->dim, r = (size_t)row;

    op->hc_collapse(
        q, &(struct hc_collapse_args){ .x = (float *)b[0] + r * (size_t)s->hc * dim,
                                       .pre = s->first ? NULL : (float *)b[1] + r * (size_t)s->hc,
                                       .y = (float *)b[2] + r * dim,
                                       .rows = rows,
                                       .hc = s->hc,
                                       .dim = s->dim,
                                       .round = s->round });
}

static void run_expand(const struct trial *t, const struct op_table *op, struct queue *q,
                       void *const *b, int row, int rows)
{
    const struct streams *s = t->shape;
    size_t dim = (size_t)s->dim, hc = (size_t)s->hc, r = (size_t)row;

    op->hc_expand(q, &(struct hc_expand_args){ .y = (float *)b[0] + r * dim,
                                               .post = (float *)b[1] + r * hc,
                                               .comb = (float *)b[2] + r * hc * hc,
                                               .x = (float *)b[3] + r * hc * dim,
                                               .rows = rows,
                                               .hc = s->hc,
                                               .dim = s->dim,
                                               .round = s->round });
}

static void run_mean(const struct trial *t, const struct op_table *op, struct queue *q,
                     void *const *b, int row, int rows)
{
    const struct streams *s = t->shape;
    size_t r = (size_t)row;

    op->hc_mean(q, &(struct hc_mean_args){ .x = (float *)b[0] + r * (size_t)s->hc * (size_t)s->dim,
                                           .y = (float *)b[1] + r * (size_t)s->ldy,
                                           .rows = rows,
                                           .hc = s->hc,
                                           .dim = s->dim,
                                           .ldy = s->ldy,
                                           .round = s->round });
}

static void run_gate(const struct trial *t, const struct op_table *op, struct queue *q,
                     void *const *b, int row, int rows)
{
    const struct streams *s = t->shape;
    size_t dim = (size_t)s->dim, r = (size_t)row;

    op->engram_gate(q,
                    &(struct engram_gate_args){ .kv = (float *)b[0] + r * (size_t)(s->hc + 1) * dim,
                                                .qw = b[1],
                                                .kw = b[2],
                                                .x = (float *)b[3] + r * (size_t)s->hc * dim,
                                                .rows = rows,
                                                .hc = s->hc,
                                                .dim = s->dim,
                                                .eps = 1e-6f,
                                                .round = s->round });
}

static void one_shape(struct lab *l, const struct streams *s, int which)
{
    size_t hc = (size_t)s->hc, dim = (size_t)s->dim;
    trial_fn *const fn[] = { run_mix, run_collapse, run_expand, run_mean, run_gate };
    struct trial t;

    trial_begin(&t, l, fn[which], s, LAB_ROWS, "%d streams of %d type %d round %d first %d", s->hc,
                s->dim, s->dtype, s->round, s->first);
    if (which == 0) {
        /* mixes of order one */
        trial_mat(&t, (2 + s->hc) * s->hc, s->hc * s->dim, s->dtype, 1 / sqrtf((float)(hc * dim)));
        trial_in(&t, LAB_ROWS * hc * dim, 1);
        trial_in(&t, (2 + hc) * hc, 1);
        trial_in(&t, 3, 1);
        trial_out(&t, hc, 1e-5);
        trial_out(&t, hc, 1e-5);
        trial_out(&t, hc * hc, 1e-5);
    } else if (which == 1) {
        trial_in(&t, LAB_ROWS * hc * dim, 3);
        trial_in(&t, LAB_ROWS * hc, 1);
        trial_out(&t, dim, tol_of(s, 1e-6));
    } else if (which == 2) {
        trial_in(&t, LAB_ROWS * dim, 3);
        trial_in(&t, LAB_ROWS * hc, 2);
        trial_in(&t, LAB_ROWS * hc * hc, 1);
        trial_inout(&t, hc * dim, 3, tol_of(s, 1e-6));
    } else if (which == 3) {
        trial_in(&t, LAB_ROWS * hc * dim, 3);
        trial_inout(&t, (size_t)s->ldy, 1, tol_of(s, 1e-6));
    } else {
        trial_in(&t, LAB_ROWS * (hc + 1) * dim, 1);
        trial_in(&t, hc * dim, 1);
        trial_in(&t, hc * dim, 1);
        trial_inout(&t, hc * dim, 1, tol_of(s, 1e-5));
    }
    lab_run(&t);
}

static void streams(struct lab *l)
{
    static const char *const names[] = { "hc_mix", "hc_collapse", "hc_expand", "hc_mean",
                                         "engram_gate" };
    static const struct streams shapes[] = {
        { 4, 256, 20, 256, DTYPE_F32, ROUND_NONE, false },
        { 4, 255, 20, 300, DTYPE_BF16, ROUND_BF16, true },
        { 4, 5120, 20, 15360, DTYPE_F32, ROUND_BF16, false },
        { 4, 5120, 20, 5120, DTYPE_BF16, ROUND_NONE, false },
        { 3, 77, 3, 77, DTYPE_F16, ROUND_NONE, false },
        { 2, 1, 1, 5, DTYPE_F32, ROUND_NONE, true },
        { 1, 600, 20, 640, DTYPE_F32, ROUND_NONE, false },
    };

    for (int w = 0; w < COUNT(names); w++) {
        lab_begin(l, names[w]);
        for (int i = 0; i < COUNT(shapes); i++)
            one_shape(l, &shapes[i], w);
        lab_end(l);
    }
}

struct crossing {
    struct streams s;
    bool taken, mixed, kept; /* a sublayer's sum comes in; mixes are made; h is wanted */
    int rows;                /* 0: LAB_ROWS */
};

static void run_site(const struct trial *t, const struct op_table *op, struct queue *q,
                     void *const *b, int row, int rows)
{
    const struct crossing *c = t->shape;
    const struct streams *s = &c->s;
    size_t dim = (size_t)s->dim, hc = (size_t)s->hc, r = (size_t)row;
    struct mat fn = {
        .data = b[0], .dtype = s->dtype, .rows = (2 + s->hc) * s->hc, .cols = s->hc * s->dim
    };

    op->hc_site(q, &(struct hc_site_args){ .y = c->taken ? (float *)b[1] + r * dim : NULL,
                                           .post = (float *)b[2] + r * hc,
                                           .comb = (float *)b[3] + r * hc * hc,
                                           .x = (float *)b[4] + r * hc * dim,
                                           .fn = c->mixed ? &fn : NULL,
                                           .base = b[5],
                                           .scale = b[6],
                                           .to_pre = (float *)b[7] + r * hc,
                                           .to_post = (float *)b[8] + r * hc,
                                           .to_comb = (float *)b[9] + r * hc * hc,
                                           .pre = s->first ? NULL : (float *)b[10] + r * hc,
                                           .w = b[11],
                                           .h = c->kept ? (float *)b[12] + r * dim : NULL,
                                           .n = (float *)b[13] + r * dim,
                                           .rows = rows,
                                           .hc = s->hc,
                                           .dim = s->dim,
                                           .iters = s->iters,
                                           .eps = 1e-20f,
                                           .hc_eps = 1e-6f,
                                           .round = s->round });
}

static void sites(struct lab *l)
{
    static const struct crossing shapes[] = {
        { { 4, 256, 20, 0, DTYPE_F32, ROUND_NONE, false }, true, true, true },
        { { 4, 5120, 20, 0, DTYPE_F32, ROUND_BF16, false }, true, true, false },
        { { 4, 5120, 20, 0, DTYPE_BF16, ROUND_BF16, true }, false, true, false },
        { { 4, 5120, 20, 0, DTYPE_F32, ROUND_BF16, false }, true, false, true },
        { { 4, 64, 3, 0, DTYPE_BF16, ROUND_NONE, false }, true, true, false },
        { { 4, 512, 20, 0, DTYPE_F32, ROUND_BF16, false }, true, true, false },
        { { 4, 512, 3, 0, DTYPE_BF16, ROUND_NONE, false }, true, true, true },
        { { 4, 1024, 3, 0, DTYPE_F32, ROUND_NONE, true }, true, false, false },
        { { 4, 512, 20, 0, DTYPE_F32, ROUND_BF16, false }, true, true, false, 39 },
        { { 4, 512, 3, 0, DTYPE_BF16, ROUND_NONE, false }, true, true, true, 41 },
        { { 4, 512, 3, 0, DTYPE_F32, ROUND_NONE, true }, false, true, true, 33 },
        { { 4, 512, 3, 0, DTYPE_BF16, ROUND_BF16, false }, true, false, false, 64 },
        { { 4, 5120, 20, 0, DTYPE_F32, ROUND_BF16, false }, true, true, false, 261 },
        { { 4, 5120, 20, 0, DTYPE_BF16, ROUND_BF16, false }, true, true, true, 200 },
        { { 4, 5120, 20, 0, DTYPE_F32, ROUND_BF16, false }, true, false, false, 131 },
        { { 4, 255, 20, 0, DTYPE_F32, ROUND_NONE, false }, true, true, true },
        { { 4, 128, 20, 0, DTYPE_F16, ROUND_BF16, false }, false, true, true },
        { { 3, 77, 3, 0, DTYPE_F32, ROUND_NONE, false }, true, true, false },
    };

    lab_begin(l, "hc_site");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct crossing *c = &shapes[i];
        const struct streams *s = &c->s;
        size_t hc = (size_t)s->hc, dim = (size_t)s->dim;
        size_t rows = c->rows > 0 ? (size_t)c->rows : LAB_ROWS;
        struct trial t;

        trial_begin(&t, l, run_site, c, (int)rows,
                    "%d streams of %d type %d round %d taken %d "
                    "mixed %d, %zu rows",
                    s->hc, s->dim, s->dtype, s->round, c->taken, c->mixed, rows);
        trial_mat(&t, (2 + s->hc) * s->hc, s->hc * s->dim, s->dtype, 1 / sqrtf((float)(hc * dim)));
        trial_in(&t, rows * dim, 3);
        trial_in(&t, rows * hc, 2);
        trial_in(&t, rows * hc * hc, 1);
        trial_inout(&t, hc * dim, 3, tol_of(s, 1e-6));
        trial_in(&t, (2 + hc) * hc, 1);
        trial_in(&t, 3, 1);
        for (int m = 0; m < 3; m++) {
            size_t row = m < 2 ? hc : hc * hc;

            if (c->mixed)
                trial_out(&t, row, 1e-5);
            else
                trial_scratch(&t, rows * row * sizeof(float));
        }
        trial_in(&t, rows * hc, 1);
        trial_in(&t, dim, 1);
        if (c->kept)
            trial_out(&t, dim, tol_of(s, 1e-6));
        else
            trial_scratch(&t, rows * dim * sizeof(float));
        trial_out(&t, dim, tol_of(s, 1e-5));
        lab_run(&t);
    }
    lab_end(l);
}

struct pieces {
    int ranks, ldx, width[RANKS_MAX];
};

static void run_unshard(const struct trial *t, const struct op_table *op, struct queue *q,
                        void *const *b, int row, int rows)
{
    const struct pieces *s = t->shape;
    struct unshard_args a = {
        .x = b[0], .y = b[1], .ranks = s->ranks, .rows = rows, .ldx = s->ldx
    };

    memcpy(a.width, s->width, sizeof(a.width));
    op->unshard(q, &a);
}

static void unshard(struct lab *l)
{
    static const struct pieces shapes[] = {
        { 1, 64, { 64 } },
        { 2, 512, { 512, 512 } },
        { 3, 40, { 40, 7, 0 } },
        { 8, 300, { 300, 299, 1, 0, 300, 5, 6, 7 } },
    };

    lab_begin(l, "unshard");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct pieces *s = &shapes[i];
        size_t cols = 0;
        struct trial t;

        for (int k = 0; k < s->ranks; k++)
            cols += (size_t)s->width[k];
        trial_begin(&t, l, run_unshard, s, LAB_ROWS, "%d ranks, rows of %d", s->ranks, s->ldx);
        t.alone = false; /* where a rank's rows lie depends on how many there are */
        trial_in(&t, (size_t)(s->ranks * LAB_ROWS * s->ldx), 1);
        trial_out(&t, cols, 0);
        lab_run(&t);
    }
    lab_end(l);
}

void ops_hyper(struct lab *l)
{
    streams(l);
    sites(l);
    unshard(l);
}
