#include <errno.h>

#include "tests/base/capture.h"
#include "tests/kernels/bed.h"

#define ROWS_MAX 17

/* The definition: one sum after the other, k in order, multiply then add. */
static void naive_product(const float *w, int rows, int cols, int groups, const float *x, int n,
                          float *y, enum round round)
{
    for (int r = 0; r < n; r++)
        for (int o = 0; o < rows; o++) {
            const float *in = x + (size_t)(r * groups + o / (rows / groups)) * (size_t)cols;
            volatile float sum = 0; /* keeps the loop scalar and in order */

            for (int k = 0; k < cols; k++) {
                volatile float p = w[(size_t)o * (size_t)cols + (size_t)k] * in[k];

                sum = sum + p;
            }
            y[(size_t)r * (size_t)rows + (size_t)o] = round == ROUND_BF16 ? bf16_round(sum) : sum;
        }
}

static const struct {
    int rows, cols, groups;
} shapes[] = {
    { 16, 1, 1 }, { 1, 5, 1 },   { 24, 64, 1 },  { 128, 256, 1 }, { 200, 77, 1 },
    { 64, 9, 4 }, { 36, 33, 2 }, { 96, 256, 3 }, { 20, 8, 5 },    { 255, 31, 1 },
};

static void matmul_case(struct bed *b, size_t i, enum dtype t, int n, enum round round)
{
    int rows = shapes[i].rows, cols = shapes[i].cols, groups = shapes[i].groups, keep = b->blocks;
    float *dense;
    struct mat w = bed_mat(b, rows, cols, t, 1, &dense);
    float *x = bed_f32(b, (size_t)n * (size_t)(groups * cols), 1);
    float *y = bed_zeros(b, (size_t)n * (size_t)rows),
          *want = bed_zeros(b, (size_t)n * (size_t)rows);

    naive_product(dense, rows, cols, groups, x, n, want, round);
    b->op->matmul(b->q, &(struct matmul_args){ .w = &w,
                                               .x = x,
                                               .y = y,
                                               .rows = n,
                                               .groups = groups == 1 ? 0 : groups,
                                               .round = round });
    cr_expect(bed_same(y, want, (size_t)n * (size_t)rows),
              "%d x %d in %d groups, dtype %d, %d rows", rows, cols, groups, (int)t, n);
    while (b->blocks > keep)
        free(b->block[--b->blocks]);
}

Test(dense, a_product_has_the_bits_of_the_plain_loop)
{
    for (int workers = 1; workers <= 3; workers += 2) {
        struct bed b;

        bed_open(&b, workers);
        for (size_t i = 0; i < COUNT(shapes); i++)
            for (int t = 0; t < DTYPE_COUNT; t++)
                for (int n = 1; n <= ROWS_MAX; n++)
                    matmul_case(&b, i, (enum dtype)t, n, n % 3 ? ROUND_NONE : ROUND_BF16);
        bed_close(&b);
    }
}

Test(dense, every_f16_and_bf16_weight_is_widened_exactly)
{
    struct bed b;
    float one = 1, *y;

    bed_open(&b, 1);
    y = bed_zeros(&b, 65536);
    for (int t = DTYPE_F16; t <= DTYPE_BF16; t++) {
        uint16_t *data = bed_take(&b, 65536 * 2); /* one column: tiles lie one after the other */
        struct mat w = { .data = data, .dtype = (enum dtype)t, .rows = 65536, .cols = 1 };

        for (int i = 0; i < 65536; i++)
            data[i] = (uint16_t)i;
        b.op->matmul(b.q, &(struct matmul_args){ .w = &w, .x = &one, .y = y, .rows = 1 });
        for (int i = 0; i < 65536; i++) {
            float v = t == DTYPE_F16 ? f32_from_f16((uint16_t)i) : f32_from_bf16((uint16_t)i);

            cr_assert(v == v ? y[i] == v : y[i] != y[i], "dtype %d, %04x: %a, want %a", t, i, y[i],
                      v);
        }
    }
    bed_close(&b);
}

Test(dense, products_of_a_list_have_the_bits_that_they_have_alone)
{
    static const int rows[MATMULS_MAX] = { 24, 1, 128, 7, 200, 16 };
    struct bed b;

    bed_open(&b, 3);
    for (int n = 1; n <= MATMULS_MAX; n++) {
        struct matmuls_args list = { .n = n };
        struct mat w[MATMULS_MAX];
        float *x = bed_f32(&b, 5 * 77, 1), *alone[MATMULS_MAX];

        for (int i = 0; i < n; i++) {
            w[i] = bed_mat(&b, rows[i], 77, (enum dtype)(i % DTYPE_COUNT), 1, NULL);
            alone[i] = bed_zeros(&b, 5 * (size_t)rows[i]);
            list.of[i] = (struct matmul_args){ .w = &w[i],
                                               .x = x,
                                               .y = alone[i],
                                               .rows = 5,
                                               .round = i % 2 ? ROUND_NONE : ROUND_BF16 };
            b.op->matmul(b.q, &list.of[i]);
            list.of[i].y = bed_zeros(&b, 5 * (size_t)rows[i]);
        }
        b.op->matmuls(b.q, &list);
        for (int i = 0; i < n; i++)
            cr_expect(bed_same(list.of[i].y, alone[i], 5 * (size_t)rows[i]), "%d of %d", i, n);
    }
    bed_close(&b);
}

Test(dense, lists_that_are_too_long_or_have_no_common_input_fail_the_queue)
{
    struct matmuls_args list = { .n = 2 };
    float x[2][8] = { { 0 } }, y[2][8] = { { 3 } };
    struct bed b;
    struct mat w;

    bed_open(&b, 1);
    w = bed_mat(&b, 4, 8, DTYPE_F32, 1, NULL);
    for (int i = 0; i < 2; i++)
        list.of[i] = (struct matmul_args){ .w = &w, .x = x[0], .y = y[i], .rows = 1 };
    for (int bad = 0; bad < 4; bad++) {
        struct matmuls_args l = list;

        l.n = bad == 0 ? -1 : bad == 1 ? MATMULS_MAX + 1 : 2;
        l.of[1].rows = bad == 2 ? 2 : 1;
        l.of[1].x = bad == 3 ? x[1] : x[0];
        b.op->matmuls(b.q, &l);
        cr_expect(eq(int, bed_wait(&b), -EINVAL), "%d", bad);
        cr_expect(eq(flt, y[0][0], 3));
    }
    bed_close(&b);
}

Test(dense, weights_asked_for_ahead_are_a_list_with_a_rate)
{
    struct prefetch_args bad[] = { { .n = -1, .rate = 1 },
                                   { .n = PREFETCH_MAX + 1, .rate = 1 },
                                   { .n = 1, .rate = 0 } };
    struct bed b;

    bed_open(&b, 1);
    for (int i = 0; i < 3; i++) {
        b.op->prefetch(b.q, &bad[i]);
        cr_expect(eq(int, bed_wait(&b), -EINVAL), "%d", i);
    }
    b.op->prefetch(b.q, &(struct prefetch_args){ .n = 1, .rate = 1, .of[0] = { bad, 8 } });
    cr_expect(eq(int, bed_wait(&b), 0));
    bed_close(&b);
}

Test(dense, inspect_names_the_first_row_with_a_number_that_is_none)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    struct row_info info[3] = { { .slot = 1, .pos = 5 }, { .slot = 2, .pos = 9 }, { .slot = 3 } };
    float x[3][4] = { { 1, -3e38f, 0x1p-149f, 0 } };
    struct inspect_args a = { .x = x[0], .info = info, .rows = 3, .cols = 4, .layer = 7 };
    struct capture c;
    struct bed b;

    capture_start(&c);
    bed_open(&b, 1);
    b.op->inspect(b.q, &a);
    cr_expect(eq(int, bed_wait(&b), 0));
    for (size_t i = 0; i < COUNT(bad); i++) {
        x[1][3] = x[2][0] = bad[i];
        b.op->inspect(b.q, &a);
        cr_expect(eq(int, bed_wait(&b), -EBADMSG), "%f", (double)bad[i]);
        cr_expect(strstr(c.last, "layer 7") && strstr(c.last, "slot 2 row 1 position 9"), "%s",
                  c.last);
    }
    bed_close(&b);
}

Test(dense, stamps_do_not_go_back)
{
    int64_t at[2] = { 0 };
    struct bed b;

    bed_open(&b, 1);
    for (int i = 0; i < 2; i++)
        b.op->stamp(b.q, &(struct stamp_args){ .at = &at[i], .name = "here" });
    cr_expect(0 < at[0] && at[0] <= at[1]);
    bed_close(&b);
}

Test(dense, groups_that_do_not_divide_fail_the_queue)
{
    struct bed b;
    struct mat w;
    float x[64] = { 0 }, y[32] = { 3 };

    bed_open(&b, 1);
    w = bed_mat(&b, 32, 16, DTYPE_F32, 1, NULL);
    b.op->matmul(b.q, &(struct matmul_args){ .w = &w, .x = x, .y = y, .rows = 1, .groups = 3 });
    b.op->add(b.q, &(struct add_args){ .x = x, .y = y, .rows = 1, .cols = 1 });
    cr_expect(eq(flt, y[0], 3));
    cr_expect(eq(int, bed_wait(&b), -EINVAL));
    cr_expect(eq(int, bed_wait(&b), 0));
    bed_close(&b);
}

Test(dense, rmsnorm_is_the_textbook)
{
    struct bed b;
    const int rows = 21, cols = 200;
    size_t n = (size_t)(rows * cols);
    double want[21 * 200];

    bed_open(&b, 2);
    for (int round = 0; round < 2; round++) {
        float *x = bed_f32(&b, n, 3), *w = bed_f32(&b, (size_t)cols, 2), *y = bed_zeros(&b, n);

        for (int r = 0; r < rows; r++) {
            double sum = 0;

            for (int c = 0; c < cols; c++)
                sum += (double)x[r * cols + c] * (double)x[r * cols + c];
            for (int c = 0; c < cols; c++)
                want[r * cols + c] =
                    (double)x[r * cols + c] / sqrt(sum / cols + 1e-6) * (double)w[c];
        }
        b.op->rmsnorm(b.q, &(struct rmsnorm_args){ .x = x,
                                                   .w = w,
                                                   .y = y,
                                                   .rows = rows,
                                                   .cols = cols,
                                                   .eps = 1e-6f,
                                                   .round = (enum round)round });
        cr_expect(le(dbl, bed_error(y, want, n), round ? 0x1p-8 : 1e-6));
        for (size_t i = 0; round && i < n; i++)
            cr_assert(y[i] == bf16_round(y[i]));
        b.op->rmsnorm(b.q, &(struct rmsnorm_args){ .x = x,
                                                   .w = w,
                                                   .y = x,
                                                   .rows = rows,
                                                   .cols = cols,
                                                   .eps = 1e-6f,
                                                   .round = (enum round)round });
        cr_expect(bed_same(x, y, n), "in place");
    }
    bed_close(&b);
}

Test(dense, an_eps_of_1e_20_is_not_flushed)
{
    struct bed b;
    float x[16], w[16], y[16];

    bed_open(&b, 1);
    for (int i = 0; i < 16; i++) {
        x[i] = 1e-10f;
        w[i] = 1;
    }
    b.op->rmsnorm(b.q, &(struct rmsnorm_args){
                           .x = x, .w = w, .y = y, .rows = 1, .cols = 16, .eps = 1e-20f });
    for (int i = 0; i < 16; i++)
        cr_expect(fabs((double)y[i] - sqrt(0.5)) < 1e-6, "%f", (double)y[i]);
    bed_close(&b);
}

Test(dense, add_rounds_once)
{
    struct bed b;
    float x[3] = { 0x1p-9f, 0x1p-8f, 1 }, y[3] = { 1, 1, 2 };

    bed_open(&b, 1);
    b.op->add(b.q, &(struct add_args){ .x = x, .y = y, .rows = 1, .cols = 3 });
    cr_expect(y[0] == 1 + 0x1p-9f && y[1] == 1 + 0x1p-8f && y[2] == 3);
    y[0] = y[1] = 1;
    b.op->add(b.q, &(struct add_args){ .x = x, .y = y, .rows = 3, .cols = 1, .round = ROUND_BF16 });
    cr_expect(y[0] == 1 && y[1] == 1 && y[2] == 4, "1 + 2^-8 ties to even");
    bed_close(&b);
}

Test(dense, swiglu_caps_the_gate_and_clamps_up)
{
    static const struct {
        float gate, up, limit;
        double want;
    } cases[] = {
        { 1, 2, 0, 1.4621171572600098 },
        { 20, 1, 10, 9.999546021312975 },
        { -20, 1, 10, -4.12230724e-08 },
        { 2, 30, 10, 17.615941559557649 },
        { 2, -30, 10, -17.615941559557649 },
        { 20, 30, 0, 599.99999876330838 },
        { 0, 5, 10, 0 },
        { -200, 5, 0, 0 },
    };
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        float g = cases[i].gate, y;
        double want[1] = { cases[i].want };

        b.op->swiglu(b.q, &(struct swiglu_args){ .gate = &g,
                                                 .up = &cases[i].up,
                                                 .y = &y,
                                                 .rows = 1,
                                                 .cols = 1,
                                                 .limit = cases[i].limit });
        cr_expect(le(dbl, bed_error(&y, want, 1), 1e-6), "case %zu: %g", i, (double)y);
        b.op->swiglu(b.q, &(struct swiglu_args){ .gate = &g,
                                                 .up = &cases[i].up,
                                                 .y = &g,
                                                 .rows = 1,
                                                 .cols = 1,
                                                 .limit = cases[i].limit,
                                                 .round = ROUND_BF16 });
        cr_expect(g == bf16_round(y), "case %zu in place", i);
    }
    bed_close(&b);
}

Test(dense, swiglu_lets_a_nan_through_its_limits)
{
    struct bed b;
    float g[2] = { NAN, 1 }, u[2] = { 1, NAN }, y[2];

    bed_open(&b, 1);
    b.op->swiglu(b.q, &(struct swiglu_args){
                          .gate = g, .up = u, .y = y, .rows = 1, .cols = 2, .limit = 10 });
    cr_expect(y[0] != y[0] && y[1] != y[1]);
    bed_close(&b);
}

/* ---- rope ---- */

static void naive_rope(const struct rope_args *a, const float *in, double *out)
{
    int ratio = a->ratio > 1 ? a->ratio : 1, pairs = a->dims / 2;

    for (int i = 0; i < a->rows * a->heads * a->cols; i++)
        out[i] = (double)in[i];
    for (int r = 0; r < a->rows; r++)
        for (int h = 0; h < a->heads; h++)
            for (int i = 0; i < pairs; i++) {
                int at = (r * a->heads + h) * a->cols + a->cols - a->dims;
                int u = at + (a->pairs == ROPE_ADJACENT ? 2 * i : i);
                int v = a->pairs == ROPE_ADJACENT ? u + 1 : u + pairs;
                float angle = (float)(a->info[r].pos / ratio * ratio) * a->freq[i];
                double c = cos((double)angle), s = sin((double)angle) * (a->inverse ? -1 : 1);

                out[u] = (double)in[u] * c - (double)in[v] * s;
                out[v] = (double)in[u] * s + (double)in[v] * c;
            }
}

Test(dense, rope_turns_the_tail_of_each_head)
{
    static const struct {
        const char *name;
        int heads, cols, dims, ratio, inverse, pos;
        enum rope_pairs pairs;
    } cases[] = {
        { "adjacent", 4, 48, 32, 0, 0, 0, ROPE_ADJACENT },
        { "far", 2, 32, 16, 1, 0, 1048560, ROPE_ADJACENT },
        { "group of 4", 1, 48, 32, 4, 0, 1001, ROPE_ADJACENT },
        { "inverse", 3, 40, 24, 0, 1, 77, ROPE_ADJACENT },
        { "halves", 2, 16, 16, 0, 0, 300, ROPE_HALVES },
    };
    struct bed b;

    bed_open(&b, 2);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int rows = 19;
        size_t n = (size_t)(rows * cases[i].heads * cases[i].cols);
        float freq[16], *x = bed_f32(&b, n, 2), *in = bed_zeros(&b, n);
        double *want = bed_take(&b, n * sizeof(*want));
        struct row_info info[19];
        struct rope_args a = { .x = x,
                               .freq = freq,
                               .info = info,
                               .rows = rows,
                               .heads = cases[i].heads,
                               .cols = cases[i].cols,
                               .dims = cases[i].dims,
                               .ratio = cases[i].ratio,
                               .inverse = cases[i].inverse,
                               .pairs = cases[i].pairs };

        for (int k = 0; k < cases[i].dims / 2; k++)
            freq[k] = (float)pow(10000, -2.0 * k / cases[i].dims);
        bed_rows(info, 0, 0, cases[i].pos, rows);
        memcpy(in, x, n * sizeof(*x));
        naive_rope(&a, in, want);
        b.op->rope(b.q, &a);
        cr_expect(le(dbl, bed_error(x, want, n), 1e-6), "%s", cases[i].name);
    }
    bed_close(&b);
}

Test(dense, rope_refuses_more_dims_than_it_has_angles_for)
{
    static float x[2048], freq[1024];
    struct row_info info = { .pos = 1 };
    struct bed b;

    bed_open(&b, 1);
    for (int dims = 1023; dims <= 1026; dims++) {
        b.op->rope(b.q, &(struct rope_args){ .x = x,
                                             .freq = freq,
                                             .info = &info,
                                             .rows = 1,
                                             .heads = 1,
                                             .cols = 2048,
                                             .dims = dims });
        cr_expect(eq(int, bed_wait(&b), dims == 1024 ? 0 : -EINVAL), "%d", dims);
    }
    bed_close(&b);
}

Test(dense, rope_rounds_its_results_only)
{
    struct bed b;
    float x[4] = { 1, 1, 1 + 0x1p-12f, 0 }, freq[1] = { 1 };
    struct row_info info = { .pos = 1 };

    bed_open(&b, 1);
    b.op->rope(b.q, &(struct rope_args){ .x = x,
                                         .freq = freq,
                                         .info = &info,
                                         .rows = 1,
                                         .heads = 1,
                                         .cols = 4,
                                         .dims = 2,
                                         .round = ROUND_BF16 });
    cr_expect(x[0] == 1 && x[1] == 1, "in front of the tail nothing changes");
    cr_expect(eq(flt, x[2], bf16_round((1 + 0x1p-12f) * 0.54030230586f)));
    cr_expect(eq(flt, x[3], bf16_round((1 + 0x1p-12f) * 0.84147098480f)));
    bed_close(&b);
}
