#include "tests/kernels/bed.h"

#define HC 4

/* Sinkhorn as the definition has it, in double: softmax over k, then 20 column and 19 row
 * normalisations. */
static void naive_sinkhorn(double *c, int n, int iters, double eps)
{
    for (int j = 0; j < n; j++) {
        double sum = 0;

        for (int k = 0; k < n; k++)
            sum += exp(c[j * n + k]);
        for (int k = 0; k < n; k++)
            c[j * n + k] = exp(c[j * n + k]) / sum + eps;
    }
    for (int step = 1; step < 2 * iters; step++) {
        int is_column = step % 2;

        for (int i = 0; i < n; i++) {
            double sum = eps;

            for (int o = 0; o < n; o++)
                sum += is_column ? c[o * n + i] : c[i * n + o];
            for (int o = 0; o < n; o++)
                c[is_column ? o * n + i : i * n + o] /= sum;
        }
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

struct mix {
    float *fn, *base, *scale, *x;
    double pre[HC], post[HC], comb[HC * HC];
};

static void naive_mix(struct mix *m, int dim, int iters, double eps)
{
    double sum = 0, v[24];

    for (int i = 0; i < HC * dim; i++)
        sum += (double)m->x[i] * (double)m->x[i];
    for (int o = 0; o < 24; o++) {
        v[o] = 0;
        for (int i = 0; i < HC * dim; i++)
            v[o] += (double)m->fn[o * HC * dim + i] * (double)m->x[i];
        v[o] = v[o] / sqrt(sum / (HC * dim) + 1e-20) *
                   (double)m->scale[o < 4   ? 0
                                    : o < 8 ? 1
                                            : 2] +
               (double)m->base[o];
    }
    for (int i = 0; i < HC; i++) {
        m->pre[i] = sigmoid(v[i]) + eps;
        m->post[i] = 2 * sigmoid(v[HC + i]);
    }
    memcpy(m->comb, v + 2 * HC, sizeof(m->comb));
    naive_sinkhorn(m->comb, HC, iters, eps);
}

Test(hyper, mixes_match_the_definition_in_double)
{
    const int rows = 19, dim = 40;
    struct bed b;
    struct mix m;
    float *pre, *post, *comb;
    struct mat fn;

    bed_open(&b, 3);
    fn = bed_mat(&b, 24, HC * dim, DTYPE_F32, 0.3f, &m.fn);
    m.base = bed_f32(&b, 24, 1);
    m.scale = bed_f32(&b, 3, 2);
    m.x = bed_f32(&b, (size_t)(rows * HC * dim), 5);
    pre = bed_zeros(&b, (size_t)(rows * HC));
    post = bed_zeros(&b, (size_t)(rows * HC));
    comb = bed_zeros(&b, (size_t)(rows * HC * HC));
    b.op->hc_mix(b.q, &(struct hc_mix_args){ .x = m.x,
                                             .fn = &fn,
                                             .base = m.base,
                                             .scale = m.scale,
                                             .pre = pre,
                                             .post = post,
                                             .comb = comb,
                                             .rows = rows,
                                             .hc = HC,
                                             .dim = dim,
                                             .iters = 20,
                                             .eps = 1e-20f,
                                             .hc_eps = 1e-6f });
    cr_assert(eq(int, bed_wait(&b), 0));
    for (int r = 0; r < rows; r++) {
        naive_mix(&m, dim, 20, 1e-6);
        cr_expect(le(dbl, bed_error(pre + r * HC, m.pre, HC), 1e-5), "row %d", r);
        cr_expect(le(dbl, bed_error(post + r * HC, m.post, HC), 1e-5), "row %d", r);
        cr_expect(le(dbl, bed_error(comb + r * HC * HC, m.comb, HC * HC), 1e-5), "row %d", r);
        for (int k = 0; k < HC; k++) {
            double sum = 0;

            for (int j = 0; j < HC; j++)
                sum += (double)comb[r * HC * HC + j * HC + k];
            cr_expect(fabs(sum - 1) < 1e-5, "row %d, column %d sums to %f", r, k, sum);
        }
        m.x += HC * dim;
    }
    bed_close(&b);
}

/* With fn = 0 the mixes are those of base alone: one Sinkhorn of a fixed matrix at 1, 2 and 20
 * iterations, with an eps that hides and one that shows where it is added. */
Test(hyper, sinkhorn_of_a_fixed_matrix_ends_on_columns)
{
    static const float base[24] = { 0,  1, -1, 2, 0, 0.5f, -3, 8, 1, 2, 3, 4,
                                    -1, 0, 0,  5, 0, 9,    1,  1, 2, 2, 2, -6 };
    static const int iters[] = { 1, 2, 20, 1, 2 };
    struct bed b;
    struct mat fn;
    float zero[24 * HC] = { 0 }, scale[3] = { 1, 1, 1 }, x[HC] = { 1, 2, 3, 4 };

    bed_open(&b, 1);
    fn = bed_mat(&b, 24, HC, DTYPE_F32, 0, NULL);
    for (size_t i = 0; i < COUNT(iters); i++) {
        struct mix m = { zero, (float *)base, scale, x, { 0 }, { 0 }, { 0 } };
        float pre[HC], post[HC], comb[HC * HC], eps = i < 3 ? 1e-6f : 0.05f;

        b.op->hc_mix(b.q, &(struct hc_mix_args){ .x = x,
                                                 .fn = &fn,
                                                 .base = base,
                                                 .scale = scale,
                                                 .pre = pre,
                                                 .post = post,
                                                 .comb = comb,
                                                 .rows = 1,
                                                 .hc = HC,
                                                 .dim = 1,
                                                 .iters = iters[i],
                                                 .eps = 1e-20f,
                                                 .hc_eps = eps });
        naive_mix(&m, 1, iters[i], (double)eps);
        cr_expect(le(dbl, bed_error(comb, m.comb, HC * HC), 2e-6), "%d iterations", iters[i]);
        cr_expect(fabs((double)pre[1] - (0.7310585786300049 + (double)eps)) < 1e-6);
        cr_expect(fabs((double)post[0] - 1) < 1e-6 &&
                  fabs((double)post[3] - 1.9993292997390672) < 1e-6);
    }
    bed_close(&b);
}

Test(hyper, collapse_expand_and_mean_weigh_the_streams)
{
    enum { DIM = 3 };
    const float x[HC * DIM] = { 1, 2, 3, 10, 20, 30, 100, 200, 300, 1000, 2000, 3000 };
    const float pre[HC] = { 0.5f, 0.25f, 2, 0 }, post[HC] = { 1, 0, 2, -1 }, y[DIM] = { 7, 8, 9 };
    float comb[HC * HC] = { 0 }, io[HC * DIM], out[2 * DIM + 1] = { 0 };
    struct bed b;

    bed_open(&b, 1);
    b.op->hc_collapse(b.q, &(struct hc_collapse_args){
                               .x = x, .pre = pre, .y = out, .rows = 1, .hc = HC, .dim = DIM });
    cr_expect(out[0] == 203 && out[1] == 406 && out[2] == 609);
    b.op->hc_collapse(
        b.q, &(struct hc_collapse_args){ .x = x, .y = out, .rows = 1, .hc = HC, .dim = DIM });
    cr_expect(out[0] == 1 && out[1] == 2 && out[2] == 3, "no mix is the first stream");

    comb[0 * HC + 1] = 1;    /* source 0 goes to destination 1 */
    comb[3 * HC + 0] = 0.5f; /* source 3 goes to destination 0 */
    memcpy(io, x, sizeof(io));
    b.op->hc_expand(
        b.q, &(struct hc_expand_args){
                 .y = y, .post = post, .comb = comb, .x = io, .rows = 1, .hc = HC, .dim = DIM });
    cr_expect(io[0] == 507 && io[1] == 1008, "destination 0: %f", (double)io[0]);
    cr_expect(io[DIM] == 1 && io[DIM + 2] == 3, "destination 1");
    cr_expect(io[2 * DIM] == 14 && io[3 * DIM + 1] == -8, "destinations 2, 3");

    b.op->hc_mean(b.q, &(struct hc_mean_args){
                           .x = x, .y = out + 1, .rows = 1, .hc = HC, .dim = DIM, .ldy = 5 });
    cr_expect(out[1] == 277.75f && out[3] == 833.25f);
    bed_close(&b);
}

Test(hyper, bf16_rounding_points)
{
    struct bed b;
    /* y is rounded, to 1, before it is weighed: three times y would be 3 + 1.5 * 2^-7, beyond the
     * tie. */
    float y = 1 + 0x1p-8f, post = 3, comb = 1, x = 0x1p-9f, pre = 1, out;

    bed_open(&b, 1);
    b.op->hc_expand(b.q, &(struct hc_expand_args){ .y = &y,
                                                   .post = &post,
                                                   .comb = &comb,
                                                   .x = &x,
                                                   .rows = 1,
                                                   .hc = 1,
                                                   .dim = 1,
                                                   .round = ROUND_BF16 });
    cr_expect(eq(flt, x, 3));
    x = 1 + 0x1p-8f + 0x1p-12f;
    b.op->hc_collapse(
        b.q,
        &(struct hc_collapse_args){
            .x = &x, .pre = &pre, .y = &out, .rows = 1, .hc = 1, .dim = 1, .round = ROUND_BF16 });
    cr_expect(eq(flt, out, 1 + 0x1p-7f));
    b.op->hc_mean(
        b.q, &(struct hc_mean_args){
                 .x = &x, .y = &out, .rows = 1, .hc = 1, .dim = 1, .ldy = 1, .round = ROUND_BF16 });
    cr_expect(eq(flt, out, 1 + 0x1p-7f));
    bed_close(&b);
}

Test(hyper, the_ngram_memory_is_gated_per_stream)
{
    const int rows = 9, dim = 48;
    struct bed b;
    float *kv, *qw, *kw, *x;
    double *want;

    bed_open(&b, 2);
    kv = bed_f32(&b, (size_t)(rows * (HC + 1) * dim), 2);
    qw = bed_f32(&b, (size_t)(HC * dim), 1);
    kw = bed_f32(&b, (size_t)(HC * dim), 1);
    x = bed_f32(&b, (size_t)(rows * HC * dim), 3);
    want = bed_take(&b, (size_t)(rows * HC * dim) * sizeof(*want));
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < HC; i++) {
            const float *key = kv + (r * (HC + 1) + i) * dim, *val = kv + (r * (HC + 1) + HC) * dim;
            const float *s = x + (r * HC + i) * dim;
            double d = 0, xx = 0, kk = 0, g;

            for (int c = 0; c < dim; c++) {
                d += (double)s[c] * (double)qw[i * dim + c] * (double)kw[i * dim + c] *
                     (double)key[c];
                xx += (double)s[c] * (double)s[c];
                kk += (double)key[c] * (double)key[c];
            }
            d /= sqrt(xx / dim + 1e-20) * sqrt(kk / dim + 1e-20) * sqrt(dim);
            g = sigmoid(copysign(sqrt(fmax(fabs(d), 1e-6)), d));
            for (int c = 0; c < dim; c++)
                want[(r * HC + i) * dim + c] = (double)s[c] + g * (double)val[c];
        }
    b.op->engram_gate(b.q, &(struct engram_gate_args){ .kv = kv,
                                                       .qw = qw,
                                                       .kw = kw,
                                                       .x = x,
                                                       .rows = rows,
                                                       .hc = HC,
                                                       .dim = dim,
                                                       .eps = 1e-20f });
    cr_expect(le(dbl, bed_error(x, want, (size_t)(rows * HC * dim)), 1e-5));
    bed_close(&b);
}

Test(hyper, the_sign_of_a_zero_dot_decides_the_gate)
{
    struct bed b;
    float one = 1, key[2] = { 0.0f, 1 }, x = 1;

    bed_open(&b, 1);
    b.op->engram_gate(b.q, &(struct engram_gate_args){ .kv = key,
                                                       .qw = &one,
                                                       .kw = &one,
                                                       .x = &x,
                                                       .rows = 1,
                                                       .hc = 1,
                                                       .dim = 1,
                                                       .eps = 1e-20f });
    cr_expect(fabs((double)x - (1 + sigmoid(1e-3))) < 1e-6, "%.9f", (double)x);
    bed_close(&b);
}

Test(hyper, a_nan_in_a_stream_goes_through_its_gate)
{
    struct bed b;
    float w[2] = { 1, 1 }, kv[4] = { 1, 2, 3, 4 }, x[2] = { NAN, 1 };

    bed_open(&b, 1);
    b.op->engram_gate(
        b.q, &(struct engram_gate_args){
                 .kv = kv, .qw = w, .kw = w, .x = x, .rows = 1, .hc = 1, .dim = 2, .eps = 1e-20f });
    cr_expect(x[0] != x[0] && x[1] != x[1], "%f %f", (double)x[0], (double)x[1]);
    bed_close(&b);
}
