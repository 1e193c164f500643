/* The router's choice and the experts against the reference. */
#include "kernels/cuda/cuda.h"
#include "tests/device/lab.h"
#include "tests/device/qmats.h"

#include <errno.h>

struct router {
    int experts, k, norm;
    bool ties;
    float top_p;
};

static void run_route(const struct trial *t, const struct op_table *op, struct queue *q,
                      void *const *b, int row, int rows)
{
    const struct router *s = t->shape;
    size_t r = (size_t)row;

    op->route(q, &(struct route_args){ .logit = (float *)b[0] + r * (size_t)s->experts,
                                       .bias = b[1],
                                       .id = (int32_t *)b[2] + r * (size_t)s->k,
                                       .weight = (float *)b[3] + r * (size_t)s->k,
                                       .rows = rows,
                                       .experts = s->experts,
                                       .k = s->k,
                                       .norm = s->norm,
                                       .scale = 2.5f,
                                       .temp = 1,
                                       .top_p = s->top_p });
}

static void route(struct lab *l)
{
    static const struct router shapes[] = { { 6, 3, 1, false },         { 4, 2, 0, false },
                                            { 384, 6, 1, false },       { 1024, 8, 1, false },
                                            { 40, 40, 1, false },       { 1, 1, 1, false },
                                            { 64, 7, 1, true },         { 33, 5, 0, true },
                                            { 384, 6, 1, false, 0.8f }, { 40, 40, 1, false, 0.5f },
                                            { 6, 3, 0, false, 0.6f },   { 64, 7, 1, true, 0.5f } };

    lab_begin(l, "route");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct router *s = &shapes[i];
        struct trial t;
        float *logit, *bias;

        trial_begin(&t, l, run_route, s, 80, "%d of %d experts norm %d ties %d top_p %g", s->k,
                    s->experts, s->norm, s->ties, (double)s->top_p);
        logit = trial_in(&t, (size_t)(80 * s->experts), 12);
        bias = trial_in(&t, (size_t)s->experts, 0.5f);
        for (int k = 0; s->ties && k < 80 * s->experts; k++)
            logit[k] = (float)lab_below(l, 3);
        for (int k = 0; s->ties && k < s->experts; k++)
            bias[k] = 0;
        logit[0] = 25; /* beyond where softplus is the identity */
        trial_buf(&t, BUF_OUT, BUF_BYTES, sizeof(int32_t) * (size_t)(80 * s->k),
                  sizeof(int32_t) * (size_t)s->k, 0);
        trial_out(&t, (size_t)s->k, 1e-6);
        lab_run(&t);
    }
    lab_end(l);
}

struct gated {
    int experts, k, dim;
    enum dtype dtype;
    int rows;
    int biases; /* that differ, logits being zero; 0: all */
    float top_p;
};

static void run_gated(const struct trial *t, const struct op_table *op, struct queue *q,
                      void *const *b, int row, int rows)
{
    const struct gated *s = t->shape;
    size_t r = (size_t)row;
    struct mat gate = { .data = b[0], .dtype = s->dtype, .rows = s->experts, .cols = s->dim };

    op->route(q, &(struct route_args){ .gate = &gate,
                                       .x = (float *)b[1] + r * (size_t)s->dim,
                                       .logit = (float *)b[2] + r * (size_t)s->experts,
                                       .bias = b[3],
                                       .id = (int32_t *)b[4] + r * (size_t)s->k,
                                       .weight = (float *)b[5] + r * (size_t)s->k,
                                       .rows = rows,
                                       .experts = s->experts,
                                       .k = s->k,
                                       .norm = 1,
                                       .scale = 1.5f,
                                       .temp = 1,
                                       .top_p = s->top_p });
}

static void run_gated_trial(struct lab *l, const struct gated *s)
{
    struct trial t;
    float *bias;

    trial_begin(&t, l, run_gated, s, s->rows,
                "%d of %d experts from %d type %d, %d rows, %d biases, top_p %g", s->k, s->experts,
                s->dim, s->dtype, s->rows, s->biases, (double)s->top_p);
    /* of scores that are all but equal another order of sums leaves out others */
    trial_mat(&t, s->experts, s->dim, s->dtype, s->top_p > 0 ? 0.05f : 1e-3f);
    trial_in(&t, (size_t)(s->rows * s->dim), s->biases ? 0 : 1);
    trial_out(&t, (size_t)s->experts, 2e-6 * sqrt(s->dim));
    bias = trial_in(&t, (size_t)s->experts, 1);
    for (int e = 0; e < s->experts; e++)
        bias[e] = (float)(s->biases ? e % s->biases : e * 7 % s->experts);
    trial_buf(&t, BUF_OUT, BUF_BYTES, sizeof(int32_t) * (size_t)(s->rows * s->k),
              sizeof(int32_t) * (size_t)s->k, 0);
    trial_out(&t, (size_t)s->k, 1e-5);
    lab_run(&t);
}

/* Biases a step apart, so that another order of sums chooses the same experts; and few of them
 * where all logits are zero, so that experts tie, inside a tile and between tiles. At last with
 * scratch for the sums of a few rows. */
static void route_gated(struct lab *l)
{
    static const struct gated shapes[] = {
        { 192, 6, 5120, DTYPE_BF16, 37 },        { 384, 6, 5120, DTYPE_F32, 37 },
        { 384, 6, 640, DTYPE_F16, 37 },          { 40, 3, 641, DTYPE_F32, 37 },
        { 8, 2, 256, DTYPE_BF16, 37 },           { 7, 7, 33, DTYPE_BF16, 37 },
        { 20, 3, 772, DTYPE_F32, 41 },           { 37, 6, 640, DTYPE_BF16, 71 },
        { 384, 6, 5120, DTYPE_BF16, 261 },       { 520, 4, 132, DTYPE_F32, 37, 7 },
        { 384, 6, 640, DTYPE_BF16, 9 },          { 384, 6, 640, DTYPE_F32, 15 },
        { 520, 4, 132, DTYPE_BF16, 16 },         { 520, 4, 132, DTYPE_F32, 9, 7 },
        { 520, 4, 132, DTYPE_BF16, 37 },         { 600, 6, 1284, DTYPE_BF16, 37, 5 },
        { 72, 20, 1920, DTYPE_F32, 37 },         { 72, 20, 644, DTYPE_BF16, 37, 5 },
        { 1024, 16, 36, DTYPE_BF16, 37, 9 },     { 384, 6, 640, DTYPE_BF16, 37, 0, 0.8f },
        { 40, 12, 644, DTYPE_F32, 37, 0, 0.3f }, { 72, 20, 644, DTYPE_BF16, 37, 5, 0.55f }
    };
    static const struct gated passed[] = { { 40, 3, 644, DTYPE_F32, 61 },
                                           { 72, 20, 644, DTYPE_BF16, 37, 5 } };
    struct cuda_lane *lane = &cuda_queue(l->q)->lane[0];
    size_t all = lane->scratch_bytes;

    lab_begin(l, "route, gate");
    for (int i = 0; i < COUNT(shapes); i++)
        run_gated_trial(l, &shapes[i]);
    lane->scratch_bytes = 8 << 10;
    for (int i = 0; i < COUNT(passed); i++)
        run_gated_trial(l, &passed[i]);
    lane->scratch_bytes = all;
    lab_end(l);
}

struct expert_shape {
    int experts, k, dim, inter, shared; /* shared: inter of the shared expert, 0: none */
    int type, type_shared;              /* numbers of qmats_type */
    enum round round;
    int rows;
    int crowd; /* rows that choose the same experts; 0: nobody chooses any */
    int step;  /* shares of the width differ by so much from expert to expert */
    enum codec in;
    int type_down;        /* of the routed experts' down, 0: as the others */
    int type_shared_down; /* and of the shared one's */
};

static uint32_t kinds(const struct expert_shape *s, int *mixed)
{
    struct mat routed, shared, down, shared_down;

    qmats_type(s->type, &routed);
    qmats_type(s->type_shared, &shared);
    qmats_type(s->type_down ? s->type_down : s->type, &down);
    qmats_type(s->type_shared_down ? s->type_shared_down : s->type_shared, &shared_down);
    *mixed = mats_mixed(&routed, &routed, &down) || mats_mixed(&shared, &shared, &shared_down);
    return mat_kind(&routed) | mat_kind(&shared) | mat_kind(&down) | mat_kind(&shared_down);
}

static void run_moe(const struct trial *t, const struct op_table *op, struct queue *q,
                    void *const *b, int row, int rows)
{
    const struct expert_shape *s = t->shape;
    const struct mat *w = b[1];
    size_t r = (size_t)row, n = (size_t)s->experts;
    int mixed;
    uint32_t all = kinds(s, &mixed);

    op->moe(q, &(struct moe_args){ .w1 = w,
                                   .w3 = w + n,
                                   .w2 = w + 2 * n,
                                   .s1 = s->shared ? w + 3 * n : NULL,
                                   .s3 = s->shared ? w + 3 * n + 1 : NULL,
                                   .s2 = s->shared ? w + 3 * n + 2 : NULL,
                                   .x = (float *)b[2] + r * (size_t)s->dim,
                                   .weight = (float *)b[4] + r * (size_t)s->k,
                                   .id = (int32_t *)b[3] + r * (size_t)s->k,
                                   .y = (float *)b[5] + r * (size_t)s->dim,
                                   .scratch = b[6],
                                   .rows = rows,
                                   .experts = s->experts,
                                   .k = s->k,
                                   .dim = s->dim,
                                   .inter = s->inter > s->shared ? s->inter : s->shared,
                                   .kinds = all,
                                   .mixed = mixed,
                                   .in = s->in,
                                   .limit = 10,
                                   .round = s->round });
}

/* All matrices in one blob and the structs that describe them in another buffer. */
static void fill_mats(struct trial *t, const struct expert_shape *s)
{
    int n = s->experts, total = 3 * n + 3;
    struct mat *made = calloc((size_t)total, sizeof(*made)), *m;
    void **blobs = calloc((size_t)total, sizeof(*blobs));
    size_t bytes = 0, *len = calloc((size_t)total, sizeof(*len));
    char *blob;

    for (int i = 0; i < total; i++) {
        int shared = i >= 3 * n, down = shared ? i == 3 * n + 2 : i >= 2 * n;
        int type = shared ? s->type_shared : s->type;
        int type_down = shared ? s->type_shared_down : s->type_down;
        int inter = shared ? (s->shared ? s->shared : s->inter)
                           : s->inter - (i % n % 2 && s->inter > s->step ? s->step : 0);

        qmats_type(down && type_down ? type_down : type, &made[i]);
        made[i].rows = down ? s->dim : inter;
        made[i].cols = down ? inter : s->dim;
        blobs[i] = qmats_fill(t->lab, &made[i], &len[i]);
        bytes += mat_round_up(len[i], MAT_ALIGN);
    }
    blob = trial_buf(t, BUF_IN, BUF_BYTES, bytes, 0, 0);
    m = trial_buf(t, BUF_MATS, BUF_BYTES, sizeof(*m) * (size_t)total, 0, 0);
    t->buf[t->bufs - 1].blob = t->bufs - 2;
    for (int i = 0; i < total; i++, blob += mat_round_up(len[i - 1], MAT_ALIGN)) {
        memcpy(blob, blobs[i], len[i]);
        m[i] = made[i];
        mat_place(&m[i], blob);
        free(blobs[i]);
    }
    free(made);
    free(blobs);
    free(len);
}

static void fill_choices(struct lab *l, const struct expert_shape *s, int32_t *id)
{
    for (int r = 0; r < s->rows; r++)
        for (int i = 0; i < s->k; i++) {
            int32_t *c = id + r * s->k;

            if (s->crowd == 0) {
                c[i] = -1;
                continue;
            }
            if (r % s->crowd) {
                c[i] = c[i - s->k];
                continue;
            }
            /* ascending, some missing here */
            c[i] = i * s->experts / s->k + lab_below(l, s->experts / s->k);
            if (lab_below(l, 9) == 0)
                c[i] = -1;
        }
}

enum { F32, F16, BF16, FP8_32, FP8_128, FP8_F32, FP8_ONE, MXFP4, NVFP4, NVFP4_BY };
enum {
    MCG_3 = 20,
    MUL1_1 = 26,
    MUL1_15,
    MUL1_2,
    MUL1_25,
    MUL1_3,
    MUL1_35,
    MUL1_4,
    MUL1_5 = QMATS_EXL3
};
enum { MUL1_6 = MUL1_5 + 1, MUL1_7, MUL1_8 };

static void make_moe(struct lab *l, const struct expert_shape *s, struct trial *t)
{
    int inter = s->inter > s->shared ? s->inter : s->shared;
    struct mat routed, shared;
    int32_t *id;
    bool fp8; /* weights as large as 448 */

    qmats_type(s->type, &routed);
    qmats_type(s->type_shared, &shared);
    fp8 = routed.dtype == DTYPE_FP8 || shared.dtype == DTYPE_FP8;
    trial_begin(t, l, run_moe, s, s->rows,
                "%d of %d experts, %d x %d shared %d types %d and %d round %d, %d rows", s->k,
                s->experts, s->dim, s->inter, s->shared, s->type, s->type_shared, s->round,
                s->rows);
    fill_mats(t, s);
    trial_in(t, (size_t)(s->rows * s->dim), fp8 ? 1e-3f : 0.2f);
    id = trial_buf(t, BUF_IN, BUF_BYTES, sizeof(*id) * (size_t)(s->rows * s->k), 0, 0);
    fill_choices(l, s, id);
    trial_in(t, (size_t)(s->rows * s->k), 1);
    /* hidden values that round to another bf16 move a sum by a weight's share of 2^-8 */
    trial_out(t, (size_t)s->dim, s->round ? 2e-2 : 2e-6 * sqrt(s->dim) * 8);
    trial_scratch(t, sizeof(float) * (size_t)(s->rows * (s->k + 1) * 2 * inter));
}

static void try_moe(struct lab *l, const struct expert_shape *s)
{
    struct trial t;

    make_moe(l, s, &t);
    lab_run(&t);
}

static void moe(struct lab *l)
{
    static const struct expert_shape shapes[] = {
        { 6, 3, 256, 128, 128, BF16, BF16, ROUND_BF16, 16, 1, 1 },
        { 6, 3, 256, 128, 128, F32, F32, ROUND_NONE, 16, 3, 1 },
        { 20, 6, 129, 37, 50, F16, F16, ROUND_NONE, 16, 2, 1 },
        { 4, 2, 64, 1, 0, BF16, BF16, ROUND_NONE, 16, 16, 1 },
        { 8, 8, 48, 33, 20, F32, F32, ROUND_BF16, 70, 7, 1 },
        { 2, 1, 40, 300, 0, BF16, BF16, ROUND_NONE, 257, 257, 1 },
        { 6, 3, 256, 256, 128, MUL1_3, MUL1_5, ROUND_BF16, 16, 1, 128 },
        { 2, 1, 256, 128, 384, MUL1_3, MUL1_5, ROUND_BF16, 16, 2, 128 },
        { 2, 1, 128, 128, 256, MUL1_3, MUL1_3, ROUND_NONE, 15, 2, 128 },
        { 1, 1, 128, 2048, 0, MUL1_1, MUL1_1, ROUND_NONE, 3, 3, 128 },
        { 6, 3, 384, 256, 384, MUL1_2, MUL1_4, ROUND_NONE, 16, 3, 128 },
        { 12, 6, 2048, 128, 128, MUL1_15, MCG_3, ROUND_NONE, 40, 2, 128 },
        { 3, 2, 256, 128, 0, MUL1_1, MUL1_1, ROUND_NONE, 16, 16, 128 },
        { 6, 3, 256, 256, 128, MUL1_3, MUL1_5, ROUND_NONE, 530, 4, 128 },
        { 6, 3, 160, 96, 64, MXFP4, FP8_32, ROUND_NONE, 530, 1, 32 },
        { 6, 3, 256, 128, 128, MXFP4, FP8_32, ROUND_BF16, 16, 2, 32, CODEC_QW },
        { 6, 3, 192, 96, 64, MXFP4, FP8_32, ROUND_NONE, 16, 1, 32 },
        { 6, 3, 448, 96, 64, MXFP4, FP8_32, ROUND_NONE, 16, 2, 32 },
        { 4, 2, 704, 96, 64, NVFP4, NVFP4, ROUND_NONE, 16, 2, 32 },
        { 9, 4, 288, 160, 0, NVFP4, NVFP4, ROUND_NONE, 16, 4, 32 },
        { 4, 4, 160, 64, 64, NVFP4_BY, FP8_F32, ROUND_NONE, 19, 1, 32 },
        { 4, 2, 512, 384, 256, FP8_128, MUL1_5, ROUND_NONE, 16, 2, 128 },
        { 4, 2, 256, 256, 128, MUL1_25, MUL1_35, ROUND_NONE, 16, 2, 128 },
        { 4, 2, 640, 256, 128, MUL1_6, MUL1_7, ROUND_NONE, 16, 1, 128 },
        { 4, 2, 256, 128, 256, MUL1_8, MUL1_4, ROUND_BF16, 16, 4, 128 },
        { 4, 2, 256, 256, 128, MUL1_3, MUL1_5, ROUND_NONE, 16, 2, 128, CODEC_F32, MUL1_4 },
        { 4, 2, 256, 256, 128, MXFP4, MUL1_5, ROUND_NONE, 16, 2, 128, CODEC_F32, MUL1_3 },
        { 4, 2, 256, 256, 128, MUL1_3, MUL1_5, ROUND_NONE, 16, 2, 128, CODEC_F32, 0, MUL1_6 },
        { 4, 2, 128, 128, 256, MUL1_3, MUL1_5, ROUND_BF16, 16, 2, 128, CODEC_F32, MUL1_4, MUL1_3 },
        { 4, 2, 128, 128, 128, MUL1_3, MUL1_5, ROUND_NONE, 70, 2, 128, CODEC_F32, 0, MUL1_6 },
        /* hidden values of more than 32 strips */
        { 1, 1, 128, 4224, 128, MUL1_1, MUL1_1, ROUND_NONE, 1, 1, 128 },
        { 2, 1, 128, 128, 4224, MUL1_1, MUL1_1, ROUND_NONE, 1, 1, 128, CODEC_F32, 0, MUL1_15 },
        { 1, 1, 64, 2176, 64, MXFP4, FP8_32, ROUND_NONE, 3, 1, 32 },
        { 7, 3, 129, 37, 50, BF16, BF16, ROUND_NONE, 19, 2, 1 },
        { 6, 3, 160, 96, 64, BF16, BF16, ROUND_NONE, 530, 4, 1 },
        { 6, 3, 160, 96, 64, BF16, FP8_32, ROUND_NONE, 16, 2, 32 },
        { 6, 3, 160, 96, 64, MXFP4, BF16, ROUND_NONE, 70, 3, 32, CODEC_QW },
        { 4, 2, 256, 256, 128, MUL1_3, BF16, ROUND_NONE, 16, 2, 128 },
        { 4, 2, 256, 256, 128, MUL1_3, BF16, ROUND_NONE, 16, 1, 128, CODEC_F32, BF16 },
        { 4, 2, 256, 128, 128, BF16, MUL1_5, ROUND_NONE, 16, 2, 128, CODEC_F32, NVFP4 },
        { 4, 2, 256, 128, 128, MUL1_3, F16, ROUND_NONE, 16, 2, 128 },
        { 4, 2, 256, 128, 128, MUL1_3, BF16, ROUND_NONE, 150, 150, 128 },
        { 4, 2, 128, 128, 128, FP8_32, MUL1_2, ROUND_NONE, 150, 75, 128 },
        { 6, 3, 160, 96, 64, F32, FP8_32, ROUND_NONE, 70, 2, 32, CODEC_F32, MXFP4 },
        { 6, 3, 161, 99, 65, F16, F32, ROUND_NONE, 70, 4, 1, CODEC_F32, BF16 },
        { 6, 3, 256, 128, 128, BF16, F32, ROUND_BF16, 16, 2, 1, CODEC_F32, F16 },
    };

    struct mat w;

    lab_begin(l, "moe");
    for (int i = 0; i < COUNT(shapes); i++)
        try_moe(l, &shapes[i]);
    lab_end(l);
    lab_begin(l, "moe types");
    for (int i = 0; qmats_type(i, &w); i++)
        for (int k = 0; w.dtype > DTYPE_COUNT && k < 3; k++) {
            /* 16 rows; 70, few and many of them to an expert */
            struct expert_shape s = { k == 2 ? 2 : 6, 2,           128, 128, 128, i, i,
                                      ROUND_NONE,     k ? 70 : 16, 1,   128 };
            try_moe(l, &s);
        }
    lab_end(l);
}

/* Little scratch: the order of many rows' picks comes in passes, which begin and end inside an
 * expert's rows. The second time EXL3 goes where devices have it that are not for crowd.cu. */
static void passes(struct lab *l)
{
    static const struct expert_shape shapes[] = {
        { 4, 2, 128, 128, 128, MUL1_3, MUL1_5, ROUND_NONE, 66, 2, 128 },
        { 4, 2, 128, 64, 64, MXFP4, FP8_32, ROUND_NONE, 66, 2, 32 },
        { 6, 3, 256, 256, 128, MUL1_3, MUL1_5, ROUND_BF16, 190, 1, 128 },
        { 2, 2, 256, 128, 128, MUL1_3, MUL1_5, ROUND_NONE, 150, 5, 128 },
        { 9, 4, 160, 96, 64, MXFP4, FP8_32, ROUND_NONE, 100, 2, 32 },
        { 9, 4, 160, 96, 0, BF16, BF16, ROUND_NONE, 100, 2, 32 },
        { 6, 3, 161, 99, 65, F32, F16, ROUND_NONE, 80, 4, 1 },
    };
    struct cuda_lane *lane = &cuda_queue(l->q)->lane[0];
    struct cuda_device *d = (struct cuda_device *)l->q->dev;
    size_t all = lane->scratch_bytes;
    bool crowds = d->crowds;

    lab_begin(l, "moe in passes");
    lane->scratch_bytes = 320 << 10;
    for (int i = 0; i < (crowds ? 2 : 1) * COUNT(shapes); i++) {
        d->crowds = crowds && i < COUNT(shapes);
        try_moe(l, &shapes[i % COUNT(shapes)]);
    }
    d->crowds = crowds;
    lane->scratch_bytes = all;
    lab_end(l);
}

/* F-15: one expert gets all rows, of every class of row counts. */
static void one_expert(struct lab *l)
{
    static const int counts[] = { 1, 16, 17, 144, 145, 255, 256, 257, 512 };

    lab_begin(l, "F-15 experts");
    for (int i = 0; i < COUNT(counts) && !l->quick; i++) {
        struct expert_shape s = { 3,      1,          256,       256,       128, MUL1_3,
                                  MUL1_5, ROUND_NONE, counts[i], counts[i], 128 };
        try_moe(l, &s);
    }
    lab_end(l);
}

/* Calls at the ends of what each kernel takes. */
static void ends(struct lab *l)
{
    static const struct expert_shape shapes[] = {
        /* as many picks and rows as one launch takes, and one more of either */
        { 12, 6, 128, 128, 128, MUL1_1, MUL1_2, ROUND_NONE, 64, 1, 128 },
        { 12, 6, 128, 128, 0, MUL1_15, MUL1_15, ROUND_NONE, 65, 65, 128 },
        { 64, 64, 32, 32, 32, MXFP4, FP8_32, ROUND_NONE, 7, 1, 32 },
        { 64, 64, 128, 128, 128, MUL1_8, MUL1_7, ROUND_NONE, 6, 1, 128 },
        { 64, 64, 128, 128, 128, MUL1_2, MUL1_3, ROUND_NONE, 7, 1, 128 },
        /* nobody chooses an expert; nor is there a shared one */
        { 6, 3, 128, 128, 128, MUL1_3, MUL1_5, ROUND_NONE, 9, 0, 128 },
        { 6, 3, 128, 128, 0, MUL1_3, MUL1_3, ROUND_NONE, 9, 0, 128 },
        { 6, 3, 128, 128, 128, MUL1_3, MUL1_5, ROUND_NONE, 67, 0, 128 },
        { 6, 3, 128, 128, 0, MUL1_3, MUL1_3, ROUND_NONE, 67, 0, 128 },
        { 6, 3, 64, 64, 0, MXFP4, MXFP4, ROUND_NONE, 67, 0, 32 },
        /* lots that end where an expert's rows do, before and behind; items of many units, of which
         * most parts are */
        { 2, 1, 128, 128, 0, MUL1_3, MUL1_3, ROUND_NONE, 96, 96, 128 },
        { 2, 1, 128, 128, 0, MUL1_3, MUL1_3, ROUND_NONE, 97, 97, 128 },
        { 2, 1, 128, 128, 128, MUL1_3, MUL1_5, ROUND_NONE, 127, 127, 128 },
        { 2, 1, 1408, 128, 128, MUL1_3, MUL1_5, ROUND_NONE, 129, 3, 128 },
        { 8, 2, 1408, 128, 128, MUL1_25, MUL1_35, ROUND_NONE, 71, 3, 128 },
    };

    lab_begin(l, "moe ends");
    for (int i = 0; i < COUNT(shapes); i++)
        try_moe(l, &shapes[i]);
    lab_end(l);
}

/* A pick of no expert, or of one that the call was not queued for, is told by the wait, and the
 * next call finds the queue's counters as they were. Few rows, and many by both kernels. */
static void faults(struct lab *l)
{
    static const struct expert_shape shapes[] = {
        { 4, 2, 128, 128, 128, MUL1_3, MUL1_5, ROUND_NONE, 1, 1, 128 },
        { 4, 2, 128, 128, 128, MUL1_3, MUL1_5, ROUND_NONE, 11, 2, 128 },
        { 4, 2, 128, 64, 0, MXFP4, MXFP4, ROUND_NONE, 11, 2, 32 },
        { 4, 2, 128, 128, 128, MUL1_3, MUL1_5, ROUND_NONE, 70, 2, 128 },
        { 4, 2, 128, 64, 64, MXFP4, FP8_32, ROUND_NONE, 70, 2, 32 },
    };
    enum { NO_EXPERT, FAR, TYPE, TYPES };

    lab_begin(l, "moe faults");
    for (int i = 0; i < COUNT(shapes) * TYPES; i++) {
        const struct expert_shape *s = &shapes[i / TYPES];
        struct trial t;
        int32_t *id;

        make_moe(l, s, &t);
        id = t.buf[3].host;
        for (int e = 0; e < s->k; e++)
            id[(s->rows - 1) * s->k + e] = e;
        if (i % TYPES == NO_EXPERT)
            id[s->rows * s->k - 1] = s->experts;
        else if (i % TYPES == FAR)
            id[s->rows * s->k - 1] = INT32_MAX;
        else
            ((struct mat *)t.buf[1].host)[s->k - 1].dtype = DTYPE_F32;
        lab_refuse(&t, i % TYPES == TYPE ? -ENOTSUP : -EINVAL);
        try_moe(l, s);
    }
    lab_end(l);
}

/* F-27: experts of one queue beside those of another. */
static void two_queues(struct lab *l)
{
    static const int rows[][2] = { { 1, 1 }, { 4, 40 }, { 16, 130 } };

    lab_begin(l, "F-27 experts");
    for (int i = 0; i < COUNT(rows); i++) {
        struct expert_shape s[2] = {
            { 12, 6, 512, 256, 128, MUL1_3, MUL1_5, ROUND_BF16, rows[i][0], 1, 128 },
            { 12, 6, 512, 256, 128, MUL1_2, MUL1_4, ROUND_BF16, rows[i][1], 2, 128 }
        };
        struct trial t[2];

        make_moe(l, &s[0], &t[0]);
        make_moe(l, &s[1], &t[1]);
        lab_beside(&t[0], &t[1], l->quick ? 2 : 200);
    }
    lab_end(l);
}

/* What a call is not queued for ends it with one line, before anything is launched or on the
 * device. */
static void refusals(struct lab *l)
{
    static const struct {
        const char *name;
        uint32_t kinds;
        int dim, want;
        enum codec in;
    } cases[] = {
        { "inputs that end inside a block of the quantiser", 1u << DTYPE_FP8, 48, -EINVAL,
          CODEC_QW },
    };

    lab_begin(l, "refusals");
    for (int i = 0; i < COUNT(cases); i++) {
        l->cases++;
        l->dev->ops->op->moe(l->q, &(struct moe_args){ .rows = 1,
                                                       .experts = 2,
                                                       .k = 1,
                                                       .dim = cases[i].dim,
                                                       .inter = 128,
                                                       .kinds = cases[i].kinds,
                                                       .in = cases[i].in });
        if (l->dev->ops->wait(l->q) != cases[i].want)
            lab_fail(l, "%s: not refused", cases[i].name);
    }
    lab_end(l);
}

void ops_experts(struct lab *l)
{
    route(l);
    route_gated(l);
    moe(l);
    passes(l);
    one_expert(l);
    ends(l);
    faults(l);
    two_queues(l);
    refusals(l);
}
