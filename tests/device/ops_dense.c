/* Norm, product, sum, gate, rotation against the reference. */
#include "tests/device/lab.h"

struct dense_shape {
    int rows, cols, heads, groups;
    enum dtype dtype;
    enum round round;
    float limit;
};

static void run_rmsnorm(const struct trial *t, const struct op_table *op, struct queue *q,
                        void *const *b, int row, int rows)
{
    const struct dense_shape *s = t->shape;
    size_t at = (size_t)row * (size_t)s->cols;

    op->rmsnorm(q, &(struct rmsnorm_args){ .x = (float *)b[0] + at,
                                           .w = b[1],
                                           .y = (float *)b[2] + at,
                                           .rows = rows,
                                           .cols = s->cols,
                                           .eps = 1e-6f,
                                           .round = s->round });
}

static void rmsnorm(struct lab *l)
{
    static const int cols[] = { 1, 7, 64, 128, 512, 513, 1000, 4096, 5120 };

    lab_begin(l, "rmsnorm");
    for (int c = 0; c < COUNT(cols); c++)
        for (int round = 0; round < 2; round++) {
            struct dense_shape s = { .cols = cols[c], .round = round };
            struct trial t;

            trial_begin(&t, l, run_rmsnorm, &s, c == 4 ? 200 : LAB_ROWS, "cols %d round %d",
                        cols[c], round);
            trial_in(&t, (size_t)cols[c] * (size_t)t.rows, c % 2 ? 3 : 1e-3f);
            trial_in(&t, (size_t)cols[c], 1);
            trial_out(&t, (size_t)cols[c], round ? 0x1p-7 : 1e-6 + 3e-8 * sqrt(cols[c]));
            lab_run(&t);
        }
    lab_end(l);
}

static void run_matmul(const struct trial *t, const struct op_table *op, struct queue *q,
                       void *const *b, int row, int rows)
{
    const struct dense_shape *s = t->shape;
    int groups = s->groups ? s->groups : 1;
    struct mat w = { .data = b[0], .dtype = s->dtype, .rows = s->rows, .cols = s->cols };

    op->matmul(q,
               &(struct matmul_args){ .w = &w,
                                      .x = (float *)b[1] + (size_t)row * (size_t)(groups * s->cols),
                                      .y = (float *)b[2] + (size_t)row * (size_t)s->rows,
                                      .rows = rows,
                                      .groups = s->groups,
                                      .round = s->round });
}

static void matmul(struct lab *l)
{
    static const struct {
        int rows, cols, groups, window;
    } shapes[] = { { 1, 1, 0, 16 },     { 16, 16, 0, 16 },   { 17, 1, 1, 16 },
                   { 24, 1024, 0, 16 }, { 37, 129, 0, 45 },  { 100, 33, 0, 16 },
                   { 256, 512, 0, 16 }, { 48, 48, 3, 16 },   { 40, 65, 5, 16 },
                   { 64, 256, 2, 16 },  { 30, 1000, 3, 16 }, { 160, 3000, 0, 16 },
                   { 300, 514, 0, 70 }, { 256, 384, 2, 70 }, { 90, 97, 3, 130 },
                   { 1, 32, 0, 65 } };

    lab_begin(l, "matmul");
    for (int i = 0; i < COUNT(shapes); i++)
        for (int d = 0; d < DTYPE_COUNT; d++)
            for (int round = 0; round < 2; round++) {
                struct dense_shape s = { .rows = shapes[i].rows,
                                         .cols = shapes[i].cols,
                                         .groups = shapes[i].groups,
                                         .dtype = d,
                                         .round = round };
                int groups = s.groups ? s.groups : 1;
                struct trial t;
                float *x;

                trial_begin(&t, l, run_matmul, &s, shapes[i].window,
                            "%d x %d groups %d type %d round %d", s.rows, s.cols, s.groups, d,
                            round);
                trial_mat(&t, s.rows, s.cols, d, 1);
                x = trial_in(&t, (size_t)(groups * s.cols * t.rows), 1);
                for (int k = 0; k < groups * s.cols * t.rows;
                     k++) /* rows that need fewer planes than others */
                    x[k] = k / (groups * s.cols) % 3 == 1 ? bf16_round(x[k]) : x[k];
                trial_out(&t, (size_t)s.rows, round ? 0x1p-7 : 2e-6 * sqrt(s.cols));
                lab_run(&t);
            }
    lab_end(l);
}

static void run_add(const struct trial *t, const struct op_table *op, struct queue *q,
                    void *const *b, int row, int rows)
{
    const struct dense_shape *s = t->shape;
    size_t at = (size_t)row * (size_t)s->cols;

    op->add(q, &(struct add_args){ .x = (float *)b[0] + at,
                                   .y = (float *)b[1] + at,
                                   .rows = rows,
                                   .cols = s->cols,
                                   .round = s->round });
}

static void run_swiglu(const struct trial *t, const struct op_table *op, struct queue *q,
                       void *const *b, int row, int rows)
{
    const struct dense_shape *s = t->shape;
    size_t at = (size_t)row * (size_t)s->cols;

    op->swiglu(q, &(struct swiglu_args){ .gate = (float *)b[0] + at,
                                         .up = (float *)b[1] + at,
                                         .y = (float *)b[2] + at,
                                         .rows = rows,
                                         .cols = s->cols,
                                         .limit = s->limit,
                                         .round = s->round });
}

static void pointwise(struct lab *l)
{
    static const int cols[] = { 1, 31, 256, 777 };
    struct trial t;

    lab_begin(l, "add");
    for (int c = 0; c < COUNT(cols); c++)
        for (int round = 0; round < 2; round++) {
            struct dense_shape s = { .cols = cols[c], .round = round };

            trial_begin(&t, l, run_add, &s, LAB_ROWS, "cols %d round %d", cols[c], round);
            trial_in(&t, (size_t)(cols[c] * LAB_ROWS), 5);
            trial_inout(&t, (size_t)cols[c], 5, 0);
            lab_run(&t);
        }
    lab_end(l);
    lab_begin(l, "swiglu");
    for (int c = 0; c < COUNT(cols); c++)
        for (int round = 0; round < 2; round++)
            for (int limit = 0; limit < 2; limit++) {
                struct dense_shape s = { .cols = cols[c], .round = round, .limit = limit ? 10 : 0 };
                float *gate;

                trial_begin(&t, l, run_swiglu, &s, LAB_ROWS, "cols %d round %d limit %d", cols[c],
                            round, limit);
                gate = trial_in(&t, (size_t)(cols[c] * LAB_ROWS), 20);
                gate[0] = limit ? NAN : 0;
                trial_in(&t, (size_t)(cols[c] * LAB_ROWS), 15);
                trial_out(&t, (size_t)cols[c], round ? 0x1p-7 : 1e-6);
                lab_run(&t);
            }
    lab_end(l);
}

struct rope_shape {
    int heads, cols, dims, ratio, inverse;
    enum rope_pairs pairs;
    enum round round;
};

static void run_rope(const struct trial *t, const struct op_table *op, struct queue *q,
                     void *const *b, int row, int rows)
{
    const struct rope_shape *s = t->shape;

    op->rope(q,
             &(struct rope_args){ .x = (float *)b[2] + (size_t)row * (size_t)(s->heads * s->cols),
                                  .freq = b[0],
                                  .info = (struct row_info *)b[1] + row,
                                  .rows = rows,
                                  .heads = s->heads,
                                  .cols = s->cols,
                                  .dims = s->dims,
                                  .ratio = s->ratio,
                                  .inverse = s->inverse,
                                  .pairs = s->pairs,
                                  .round = s->round });
}

static void rope(struct lab *l)
{
    static const struct rope_shape shapes[] = {
        { 1, 2, 2, 0, 0, ROPE_ADJACENT, ROUND_NONE },
        { 4, 128, 32, 1, 0, ROPE_ADJACENT, ROUND_NONE },
        { 4, 128, 32, 2, 1, ROPE_ADJACENT, ROUND_BF16 },
        { 33, 96, 96, 4, 0, ROPE_HALVES, ROUND_NONE },
        { 64, 512, 64, 1, 0, ROPE_ADJACENT, ROUND_BF16 },
        { 3, 1024, 1024, 1, 1, ROPE_HALVES, ROUND_NONE },
    };

    lab_begin(l, "rope");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct rope_shape *s = &shapes[i];
        struct trial t;
        float *freq;

        trial_begin(&t, l, run_rope, s, LAB_ROWS, "%d heads of %d, dims %d ratio %d", s->heads,
                    s->cols, s->dims, s->ratio);
        freq = trial_in(&t, (size_t)s->dims / 2, 1);
        for (int k = 0; k < s->dims / 2; k++)
            freq[k] = powf(10000, -2.0f * (float)k / (float)s->dims);
        trial_info(&t, NULL, 3);
        trial_inout(&t, (size_t)(s->heads * s->cols), 2, s->round ? 0x1p-7 : 1e-6);
        lab_run(&t);
    }
    lab_end(l);
}

void ops_dense(struct lab *l)
{
    rmsnorm(l);
    matmul(l);
    pointwise(l);
    rope(l);
}
