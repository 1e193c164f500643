/* Products by weights of every stored type against the reference. */
#include "kernels/plain.h"
#include "tests/device/lab.h"
#include "tests/device/qmats.h"

#include <errno.h>

struct quant_shape {
    struct mat w;
    int groups, rows;
    enum codec in;
    enum round round;
    bool plain; /* the device's is the one of plain.h */
};

static void run_product(const struct trial *t, const struct op_table *op, struct queue *q,
                        void *const *b, int row, int rows)
{
    const struct quant_shape *s = t->shape;
    struct mat w = s->w;
    struct matmul_args a = { .w = &w,
                             .x = (float *)b[1] + (size_t)row * (size_t)(s->groups * w.cols),
                             .y = (float *)b[2] + (size_t)row * (size_t)w.rows,
                             .rows = rows,
                             .groups = s->groups,
                             .in = s->in,
                             .round = s->round };

    mat_place(&w, b[0]);
    if (s->plain && plain_can(q, &a))
        plain_product(q, &a);
    else
        op->matmul(q, &a);
}

/* Weights of FP8 are as large as 448 here, those of MXFP4 above 1 too: smaller inputs keep sums
 * near 1, as tolerances take them.
 * Every other row of the inputs is of bf16 numbers: rows that need fewer planes than their
 * neighbours must not notice. */
static void make_product(struct lab *l, const struct quant_shape *s, struct trial *t)
{
    size_t bytes, cols = (size_t)(s->groups * s->w.cols);
    struct quant_shape placed = *s;
    void *blob = qmats_fill(l, &placed.w, &bytes);
    float *x;

    trial_begin(t, l, run_product, s, s->rows, "%s, %d x %d groups %d slices %d in %d round %d",
                qmats_name(&s->w), s->w.rows, s->w.cols, s->groups, (int)s->w.q.slices, s->in,
                s->round);
    memcpy(trial_buf(t, BUF_IN, BUF_BYTES, bytes, 0, 0), blob, bytes);
    free(blob);
    x = trial_in(t, cols * (size_t)s->rows,
                 s->w.dtype == DTYPE_FP8     ? 0x1p-6f
                 : s->w.dtype == DTYPE_MXFP4 ? 0.5f
                                             : 1);
    for (size_t r = 0; r < (size_t)s->rows; r += 2)
        for (size_t i = 0; i < cols; i++)
            x[r * cols + i] = bf16_round(x[r * cols + i]);
    trial_out(t, (size_t)s->w.rows, s->round ? 0x1p-7 : 2e-6 * sqrt(s->w.cols));
}

static void product(struct lab *l, const struct quant_shape *s)
{
    struct trial t;

    make_product(l, s, &t);
    lab_run(&t);
}

static void matmul(struct lab *l)
{
    static const struct {
        int rows, cols, groups, slices, window;
    } shapes[] = { { 128, 128, 1, 0, 16 }, { 300, 384, 1, 0, 16 },  { 33, 160, 1, 0, 16 },
                   { 1, 32, 1, 0, 16 },    { 256, 1184, 2, 0, 16 }, { 512, 256, 2, 4, 16 },
                   { 768, 288, 3, 2, 3 },  { 130, 2048, 1, 0, 70 }, { 90, 96, 3, 0, 9 },
                   { 256, 128, 1, 0, 70 }, { 256, 384, 2, 0, 70 } };

    lab_begin(l, "quantised");
    for (int i = 0;; i++) {
        struct quant_shape s = { 0 };

        if (!qmats_type(i, &s.w))
            break;
        for (int k = 0; k < COUNT(shapes); k++) {
            bool exl3 = s.w.dtype == DTYPE_EXL3;

            if (s.w.dtype < DTYPE_COUNT ||
                (exl3 && shapes[k].groups > 1 && shapes[k].rows / shapes[k].groups % EXL3_BLOCK))
                continue;
            s.w.rows = shapes[k].rows;
            s.w.cols = shapes[k].cols;
            s.w.q.slices = exl3 ? shapes[k].slices : 0;
            s.w.q.has_bias = exl3 && k % 2;
            s.groups = shapes[k].groups;
            s.rows = shapes[k].window;
            s.in = k % 3 == 1 ? CODEC_QW : CODEC_F32;
            s.round = k % 4 == 1 ? ROUND_BF16 : ROUND_NONE;
            product(l, &s);
        }
    }
    lab_end(l);
}

static void type_product(struct lab *l, int type, int outputs, int inputs, int rows)
{
    struct quant_shape s = { .groups = 1, .rows = rows };

    if (!qmats_type(type, &s.w))
        return;
    s.w.rows = outputs;
    s.w.cols = inputs;
    product(l, &s);
}

static void exl3_product(struct lab *l, int outputs, int inputs, int rows)
{
    type_product(l, QMATS_EXL3, outputs, inputs, rows);
}

/* Shapes of the model, where sums are cut into several splits. */
static void large(struct lab *l)
{
    static const int types[] = { 3, 5, 7, 8, 15, 28, 31, 33, 36 };
    static const int sizes[][2] = { { 5120, 4096 }, { 1280, 5120 } };

    lab_begin(l, "large");
    for (int i = 0; i < COUNT(types); i++)
        for (int k = 0; k < COUNT(sizes); k++) {
            struct quant_shape s = { .groups = 1, .rows = 3 };

            if (!qmats_type(types[i], &s.w))
                break;
            s.w.rows = sizes[k][0] / (l->quick ? 8 : 1);
            s.w.cols = sizes[k][1];
            product(l, &s);
        }
    exl3_product(l, 128, 10496, 3); /* more inputs than a block of thin.cuh takes */
    exl3_product(l, 128, 10496, 16);
    exl3_product(l, 7296, 1056, l->quick ? 3 : 16); /* sums meet in memory, on an H200 */
    exl3_product(l, 3072, 1056, l->quick ? 3 : 16); /* and on a GB10 */
    lab_end(l);
}

/* What ops are timed beside gives what they give. */
static void plain(struct lab *l)
{
    lab_begin(l, "plain");
    for (int i = 0;; i++) {
        struct quant_shape s = { .groups = 1, .rows = l->quick ? 3 : 16, .plain = true };

        if (!qmats_type(i, &s.w))
            break;
        if (s.w.dtype != DTYPE_EXL3)
            continue;
        s.w.rows = l->quick ? 128 : i % 2 ? 300 : 512;
        s.w.cols = l->quick ? 128 : i % 2 ? 384 : 1184;
        s.w.q.has_bias = i % 3 == 0;
        s.round = i % 4 == 1 ? ROUND_BF16 : ROUND_NONE;
        product(l, &s);
    }
    lab_end(l);
}

/* Many rows of sums that are cut into several splits. Values of the cases behind these stay as they
 * are. */
static void prompts(struct lab *l)
{
    static const int types[] = { 2, 3, 5, 7, 8, 15, 28, 31, 33, 36 };
    uint64_t seed = l->seed;

    lab_begin(l, "prompts");
    for (int i = 0; i < COUNT(types); i++) {
        if (!l->quick) {
            type_product(l, types[i], 640, 4096, 70);
            type_product(l, types[i], 384, 5120, 96);
        }
        type_product(l, types[i], 6400, 256,
                     130); /* blocks of 128 rows: more than multiprocessors */
    }
    lab_end(l);
    l->seed = seed;
}

/* F-15: every class of row counts, on both sides of where another kernel takes over; and more
 * strips than an H200 has multiprocessors, which are not of thin.cuh. */
static void row_counts(struct lab *l)
{
    static const int counts[] = { 1, 16, 17, 64, 65, 144, 145, 255, 256, 257, 512 };

    lab_begin(l, "F-15 rows");
    exl3_product(l, 17408, 128, 3);
    for (int i = 0; i < COUNT(counts); i++)
        if (!l->quick || counts[i] == 17)
            exl3_product(l, 256, 384, counts[i]);
    lab_end(l);
}

/* Of every width the kernels that the shapes above may leave out: more strips than an H200 has room
 * for two blocks of each multiprocessor, and two groups of rows. */
static void widths(struct lab *l)
{
    uint64_t seed = l->seed;

    lab_begin(l, "widths");
    for (int i = 0;; i++) {
        struct mat w;

        if (!qmats_type(i, &w))
            break;
        if (w.dtype != DTYPE_EXL3)
            continue;
        type_product(l, i, 34048, 128, 3);
        type_product(l, i, 256, 128, 17);
    }
    lab_end(l);
    l->seed = seed;
}

/* F-27: queues of one device have nothing in common. */
static void two_queues(struct lab *l)
{
    static const struct {
        int outputs, inputs, rows[2];
    } cases[] = {
        { 1280, 2048, { 1, 1 } },   { 1280, 2048, { 3, 70 } },    { 1280, 2048, { 16, 16 } },
        { 1280, 2048, { 8, 200 } }, { 1280, 2048, { 100, 130 } }, { 7296, 1056, { 2, 16 } },
    };

    lab_begin(l, "F-27 queues");
    for (int i = 0; i < COUNT(cases); i++) {
        struct quant_shape s[2] = { { .groups = 1, .rows = cases[i].rows[0] },
                                    { .groups = 1, .rows = cases[i].rows[1] } };
        struct trial t[2];

        for (int k = 0; k < 2; k++) {
            qmats_type(QMATS_EXL3, &s[k].w);
            s[k].w.rows = cases[i].outputs;
            s[k].w.cols = cases[i].inputs;
            make_product(l, &s[k], &t[k]);
        }
        lab_beside(&t[0], &t[1], l->quick ? 2 : 200);
    }
    lab_end(l);
}

/* Shapes whose splits send their sums through memory: on an H200, on a GB10, on a device of four
 * multiprocessors. */
static const int through[][2] = { { 7296, 1056 }, { 3072, 1056 }, { 130, 2048 } };

/* A row with a NaN and one with an infinity, which the first split has, beside one that is
 * finite. */
static void not_finite(struct lab *l)
{
    lab_begin(l, "not finite");
    for (int i = 0; i < COUNT(through); i++) {
        struct quant_shape s = { .groups = 1, .rows = 3 };
        struct trial t;
        float *x;

        qmats_type(QMATS_EXL3, &s.w);
        s.w.rows = through[i][0];
        s.w.cols = through[i][1];
        make_product(l, &s, &t);
        x = t.buf[1].host;
        x[0] = NAN;
        x[s.w.cols + 1] = INFINITY;
        lab_run(&t);
    }
    lab_end(l);
}

struct pair_shape {
    struct mat w[2];
    int rows;
};

/* One product of all rows, and another one row by row. */
static void run_pair(const struct trial *t, const struct op_table *op, struct queue *q,
                     void *const *b, int row, int rows)
{
    const struct pair_shape *s = t->shape;

    for (int i = 0; i < 2; i++) {
        struct mat w = s->w[i];

        mat_place(&w, b[3 * i]);
        for (int r = row, n = i ? 1 : rows; r < row + rows; r += n)
            op->matmul(
                q, &(struct matmul_args){ .w = &w,
                                          .x = (float *)b[3 * i + 1] + (size_t)r * (size_t)w.cols,
                                          .y = (float *)b[3 * i + 2] + (size_t)r * (size_t)w.rows,
                                          .rows = n });
    }
}

/* The same captured and launched three times, where graphs are. */
static void run_replayed(const struct trial *t, const struct op_table *op, struct queue *q,
                         void *const *b, int row, int rows)
{
    const struct backend_ops *ops = q->ops;
    struct graph *g = NULL;

    if (!(ops->caps & BACKEND_GRAPHS)) {
        run_pair(t, op, q, b, row, rows);
        return;
    }
    if (ops->graph_begin(q) < 0)
        return;
    run_pair(t, op, q, b, row, rows);
    if (ops->graph_end(q, &g) < 0)
        return;
    for (int i = 0; i < 3; i++)
        ops->graph_launch(q, g);
    ops->wait(q);
    ops->graph_close(g);
}

/* What sums went through is as it was, whatever shape and rows come next. */
static void replayed(struct lab *l)
{
    static const int others[][2] = { { 5120, 4096 }, { 2944, 1056 }, { 256, 1184 } };

    lab_begin(l, "replayed");
    for (int i = 0; i < COUNT(through); i++) {
        struct pair_shape s = { .rows = 3 };
        struct trial t;

        trial_begin(&t, l, run_replayed, &s, s.rows, "%d x %d and %d x %d", through[i][0],
                    through[i][1], others[i][0], others[i][1]);
        for (int k = 0; k < 2; k++) {
            size_t bytes;
            void *blob;

            qmats_type(QMATS_EXL3, &s.w[k]);
            s.w[k].rows = k ? others[i][0] : through[i][0];
            s.w[k].cols = k ? others[i][1] : through[i][1];
            blob = qmats_fill(l, &s.w[k], &bytes);
            memcpy(trial_buf(&t, BUF_IN, BUF_BYTES, bytes, 0, 0), blob, bytes);
            free(blob);
            trial_in(&t, (size_t)s.rows * (size_t)s.w[k].cols, 1);
            trial_out(&t, (size_t)s.w[k].rows, 2e-6 * sqrt(s.w[k].cols));
        }
        lab_run(&t);
    }
    lab_end(l);
}

struct list_shape {
    struct mat w[MATMULS_MAX];
    int n, rows;
};

static void run_list(const struct trial *t, const struct op_table *op, struct queue *q,
                     void *const *b, int row, int rows)
{
    const struct list_shape *s = t->shape;
    struct matmuls_args list = { .n = s->n };
    struct mat w[MATMULS_MAX];

    for (int i = 0; i < s->n; i++) {
        w[i] = s->w[i];
        mat_place(&w[i], b[1 + 2 * i]);
        list.of[i] =
            (struct matmul_args){ .w = &w[i],
                                  .x = (float *)b[0] + (size_t)row * (size_t)w[i].cols,
                                  .y = (float *)b[2 + 2 * i] + (size_t)row * (size_t)w[i].rows,
                                  .rows = rows,
                                  .round = i % 2 ? ROUND_BF16 : ROUND_NONE };
    }
    op->matmuls(q, &list);
}

/* Products of the same inputs, of one width and of several: each as it is alone. */
static void lists(struct lab *l)
{
    static const struct {
        int rows, cols, first, others, n;
    } cases[] = {
        { 300, 1280, 20, 20, 2 }, { 512, 5120, 20, 20, 4 }, { 128, 384, 20, 18, 6 },
        { 130, 512, 7, 20, 3 },   { 200, 128, 31, 20, 5 },  { 128, 256, 20, 18, 3 },
    };

    lab_begin(l, "lists");
    for (int i = 0; i < COUNT(cases); i++) {
        struct list_shape s = { .n = cases[i].n, .rows = 9 };
        struct trial t;

        trial_begin(&t, l, run_list, &s, s.rows, "%d of %d x %d", s.n, cases[i].rows,
                    cases[i].cols);
        trial_in(&t, (size_t)s.rows * (size_t)cases[i].cols, 1);
        for (int k = 0; k < s.n; k++) {
            size_t bytes;
            void *blob;

            qmats_type(k % 2 ? cases[i].others : cases[i].first, &s.w[k]);
            s.w[k].rows = cases[i].rows * (k == 0 ? 2 : 1);
            s.w[k].cols = cases[i].cols;
            blob = qmats_fill(l, &s.w[k], &bytes);
            memcpy(trial_buf(&t, BUF_IN, BUF_BYTES, bytes, 0, 0), blob, bytes);
            free(blob);
            trial_out(&t, (size_t)s.w[k].rows, k % 2 ? 0x1p-7 : 2e-6 * sqrt(cases[i].cols));
        }
        lab_run(&t);
    }
    lab_end(l);
}

struct synth_shape {
    struct mat w;
    int row, col, cols;
};

static void run_synth(const struct trial *t, const struct op_table *op, struct queue *q,
                      void *const *b, int row, int rows)
{
    const struct synth_shape *s = t->shape;
    struct synth_args a = { .w = s->w,
                            .hash = 0x1234567890abcdefu,
                            .tile_row = s->row,
                            .tile_col = s->col,
                            .tile_cols = s->cols,
                            .strips = 2 };

    a.w.data = b[0];
    op->synth(q, &a);
    a.hash++;
    a.strip0 = 2;
    a.strips = 1;
    op->synth(q, &a);
}

/* Codes made on the device, of every width, for shares that begin anywhere. */
static void synth(struct lab *l)
{
    lab_begin(l, "synth");
    for (int bits2 = 2; bits2 <= 16; bits2++)
        for (int k = 0; k < 2; k++) {
            struct synth_shape s = { .w = { .dtype = DTYPE_EXL3,
                                            .rows = 384,
                                            .cols = k ? 640 : 128,
                                            .q = { .layout = LAYOUT_DEVICE,
                                                   .codebook = CODEBOOK_MUL1,
                                                   .bits2 = (uint8_t)bits2 } },
                                     .row = k ? 1 << 20 : 0,
                                     .col = k ? 72 : 0,
                                     .cols = k ? 1 << 16 : 24 };
            struct trial t;
            struct mat_parts p;

            if (bits2 > 8 && bits2 % 2)
                continue;
            mat_parts(&s.w, &p);
            trial_begin(&t, l, run_synth, &s, 1, "%d half bits, %d inputs", bits2, s.w.cols);
            t.alone = false;
            trial_buf(&t, BUF_OUT, BUF_BYTES, p.bytes[PART_CODES], 0, 0);
            lab_run(&t);
        }
    lab_end(l);
}

static void refusals(struct lab *l)
{
    static const struct {
        const char *name;
        int rows, cols, groups, slices, block;
        enum dtype dtype;
        enum layout layout;
    } cases[] = { { "layout of a host", 128, 128, 1, 0, 0, DTYPE_EXL3, LAYOUT_CPU },
                  { "groups that do not divide", 128, 128, 3, 0, 0, DTYPE_MXFP4, LAYOUT_DEVICE },
                  { "groups inside a block", 256, 128, 4, 0, 0, DTYPE_EXL3, LAYOUT_DEVICE },
                  { "slices that do not divide", 256, 128, 1, 3, 0, DTYPE_EXL3, LAYOUT_DEVICE },
                  { "inputs that end inside a group", 64, 48, 1, 0, 48, DTYPE_FP8,
                    LAYOUT_DEVICE } };

    lab_begin(l, "refusals");
    for (int i = 0; i < COUNT(cases); i++) {
        struct mat w = { .dtype = cases[i].dtype,
                         .rows = cases[i].rows,
                         .cols = cases[i].cols,
                         .q = { .layout = (uint8_t)cases[i].layout,
                                .bits2 = 6,
                                .codebook = CODEBOOK_MUL1,
                                .block = cases[i].block,
                                .slices = cases[i].slices } };

        l->cases++;
        l->dev->ops->op->matmul(
            l->q,
            &(struct matmul_args){ .w = &w, .rows = 1, .groups = cases[i].groups, .in = CODEC_QW });
        if (l->dev->ops->wait(l->q) != -EINVAL)
            lab_fail(l, "%s: not refused", cases[i].name);
    }
    lab_end(l);
}

void ops_quant(struct lab *l)
{
    matmul(l);
    large(l);
    plain(l);
    prompts(l);
    row_counts(l);
    widths(l);
    two_queues(l);
    lists(l);
    not_finite(l);
    replayed(l);
    synth(l);
    refusals(l);
}
