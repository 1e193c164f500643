/* The format goldens through the products of a device: inputs with a single one show a weight's
 * value, and a layer's golden inputs its golden outputs. */
#include "tests/kernels/golden.h"
#include "tests/kernels/qmat.h"

#define ROWS_MOST 16

/* The device and what lies on it. */
struct bench {
    struct bed host; /* where blobs are packed */
    const struct backend_ops *ops;
    struct device *d;
    struct queue *q;
};

static void bench_open(struct bench *t)
{
    bed_open(&t->host, 1);
    cr_assert(eq(int, backend_find("cuda", &t->ops), 0));
    cr_assert(eq(int, t->ops->open(0, 1, &t->d), 0));
    cr_assert(eq(int, t->ops->queue_open(t->d, &t->q), 0));
}

static void bench_close(struct bench *t)
{
    t->ops->queue_close(t->q);
    t->ops->close(t->d);
    bed_close(&t->host);
}

/* y = W x for rows of x, W from a blob of the host */
static void product(struct bench *t, struct mat m, const float *x, int rows, float *y)
{
    size_t in = (size_t)(rows * m.cols) * sizeof(*x), out = (size_t)(rows * m.rows) * sizeof(*y);
    void *dx, *dy, *blob;
    struct mat_parts p;

    mat_parts(&m, &p);
    cr_assert(eq(int, t->ops->alloc(t->d, p.total, &blob), 0));
    cr_assert(eq(int, t->ops->alloc(t->d, in, &dx), 0));
    cr_assert(eq(int, t->ops->alloc(t->d, out, &dy), 0));
    t->ops->put(t->q, blob, m.data, p.total);
    t->ops->put(t->q, dx, x, in);
    mat_place(&m, blob);
    t->ops->op->matmul(
        t->q, &(struct matmul_args){ .w = &m, .x = dx, .y = dy, .rows = rows, .groups = 1 });
    t->ops->get(t->q, y, dy, out);
    cr_assert(eq(int, t->ops->wait(t->q), 0));
    t->ops->free(t->d, blob);
    t->ops->free(t->d, dx);
    t->ops->free(t->d, dy);
}

/* Every weight W(n, k) of m, whose blob is packed, to w[k * m.rows + n]. */
static void weights(struct bench *t, struct mat m, float *w)
{
    for (int k = 0; k < m.cols; k += ROWS_MOST) {
        int rows = m.cols - k < ROWS_MOST ? m.cols - k : ROWS_MOST;
        float *x = calloc((size_t)(rows * m.cols), sizeof(*x));

        for (int r = 0; r < rows; r++)
            x[r * m.cols + k + r] = 1;
        product(t, m, x, rows, w + (size_t)k * (size_t)m.rows);
        free(x);
    }
}

static uint8_t layout_of(const struct bench *t)
{
    return t->ops->caps & BACKEND_HOST_MEMORY ? LAYOUT_CPU : LAYOUT_DEVICE;
}

struct value_case {
    const char *file, *codes, *scales, *global, *expect;
    struct mat m;
    size_t code_ld, scale_ld;
};

static const struct value_case values[] = {
    { "fp8_block",
      "v41.weight",
      "v41.scale",
      NULL,
      "v41.expect",
      { .dtype = DTYPE_FP8, .rows = 64, .cols = 96, .q = { .e8m0 = 1, .block = 32 } },
      96,
      3 },
    { "mxfp4",
      "w1.weight",
      "w1.scale",
      NULL,
      "expect",
      { .dtype = DTYPE_MXFP4, .rows = 16, .cols = 128 },
      64,
      4 },
    { "nvfp4",
      "modelopt.weight",
      "modelopt.weight_scale",
      "modelopt.weight_scale_2",
      "modelopt.expect",
      { .dtype = DTYPE_NVFP4, .rows = 8, .cols = 64 },
      32,
      4 },
    { "nvfp4",
      "ct.weight_packed",
      "ct.weight_scale",
      "ct.weight_global_scale",
      "ct.expect",
      { .dtype = DTYPE_NVFP4, .rows = 8, .cols = 64, .q = { .divides = 1 } },
      32,
      4 },
};

Test(golden_products, fp8_and_fp4_weights_have_the_golden_values)
{
    struct bench t;

    bench_open(&t);
    for (size_t i = 0; i < COUNT(values); i++) {
        const struct value_case *c = &values[i];
        struct mat m = c->m;
        struct qmat_source s = { .code_ld = c->code_ld, .scale_ld = c->scale_ld };
        float *want, *global, *got = calloc((size_t)(m.rows * m.cols), sizeof(*got));
        struct golden g;
        int bad = 0;
        /* a device multiplies the global scale last */
        float tol = m.dtype == DTYPE_NVFP4 && layout_of(&t) == LAYOUT_DEVICE ? 0x1p-22f : 0;

        golden_open(&g, c->file);
        s.codes = golden_tensor(&g, NULL, "%s", c->codes);
        s.scales = golden_tensor(&g, NULL, "%s", c->scales);
        want = golden_tensor(&g, NULL, "%s", c->expect);
        if (c->global) {
            global = golden_tensor(&g, NULL, "%s", c->global);
            m.q.global = *global;
            free(global);
        }
        m.q.layout = layout_of(&t);
        qmat_pack(&t.host, &m, &s, 0, 0);
        weights(&t, m, got);
        for (int n = 0; n < m.rows; n++)
            for (int k = 0; k < m.cols; k++)
                bad += !(fabsf(got[k * m.rows + n] - want[n * m.cols + k]) <=
                         fabsf(want[n * m.cols + k]) * tol);
        cr_expect(eq(int, bad, 0), "%s: %d of %d values", c->expect, bad, m.rows * m.cols);
        free(s.codes);
        free(s.scales);
        free(want);
        free(got);
        golden_close(&g);
    }
    bench_close(&t);
}

/* The rotated input of a single one has one magnitude, so its rounding to f16 scales a whole
 * row. */
Test(golden_products, exl3_weights_have_the_golden_values)
{
    struct golden g;
    struct bench t;
    struct mat m = {
        .dtype = DTYPE_EXL3, .rows = 128, .cols = 128, .q = { .codebook = CODEBOOK_MCG, .bits2 = 4 }
    };
    struct qmat_source s = { .code_ld = 8 * 64 };
    float *want, *got = calloc((size_t)(m.rows * m.cols), sizeof(*got));

    bench_open(&t);
    golden_open(&g, "exl3_linear_mcg_b2_128x128");
    s.codes = golden_tensor(&g, NULL, "p.trellis");
    s.suh = golden_tensor(&g, NULL, "p.suh");
    s.svh = golden_tensor(&g, NULL, "p.svh");
    want = golden_tensor(&g, NULL, "expect.W"); /* [in][out] */
    m.q.layout = layout_of(&t);
    qmat_pack(&t.host, &m, &s, 0, 0);
    weights(&t, m, got);
    for (int k = 0; k < m.cols; k++) {
        float largest = 0, far = 0;

        for (int n = 0; n < m.rows; n++) {
            largest = fmaxf(largest, fabsf(want[k * m.rows + n]));
            far = fmaxf(far, fabsf(got[k * m.rows + n] - want[k * m.rows + n]));
        }
        cr_expect(far <= largest * 0x1p-10f + 1e-6f, "input %d: %g beside %g", k, (double)far,
                  (double)largest);
    }
    free(s.codes);
    free(s.suh);
    free(s.svh);
    free(want);
    free(got);
    golden_close(&g);
    bench_close(&t);
}

/* The golden rounds the product with suh once more than the op does (order R): an ulp of f16
 * apart. */
Test(golden_products, an_exl3_layer_has_the_golden_outputs)
{
    struct golden g;
    struct bench t;
    struct mat m = { .dtype = DTYPE_EXL3,
                     .rows = 256,
                     .cols = 256,
                     .q = { .codebook = CODEBOOK_MUL1, .bits2 = 6, .has_bias = true } };
    struct qmat_source s = { .code_ld = 16 * 96 };
    float x[5 * 256], y[5 * 256];
    uint16_t *x16;
    double *want, far = 0;

    bench_open(&t);
    golden_open(&g, "exl3_linear_mul1_b3_256x256");
    s.codes = golden_tensor(&g, NULL, "p.trellis");
    s.suh = golden_tensor(&g, NULL, "p.suh");
    s.svh = golden_tensor(&g, NULL, "p.svh");
    s.bias = golden_tensor(&g, NULL, "p.bias");
    x16 = golden_tensor(&g, NULL, "x");
    want = golden_tensor(&g, NULL, "expect.y");
    m.q.layout = layout_of(&t);
    qmat_pack(&t.host, &m, &s, 0, 0);
    for (size_t i = 0; i < COUNT(x); i++)
        x[i] = f32_from_f16(x16[i]);
    product(&t, m, x, 5, y);
    for (size_t i = 0; i < COUNT(y); i++)
        far = fmax(far, fabs((double)y[i] - want[i]));
    cr_expect(far < 1e-3, "%g", far);
    free(s.codes);
    free(s.suh);
    free(s.svh);
    free(s.bias);
    free(x16);
    free(want);
    golden_close(&g);
    bench_close(&t);
}
