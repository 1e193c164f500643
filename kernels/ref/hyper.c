/* hyper.c owns the residual streams: their mixes, and what goes in and out of a sublayer. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/dot.h"
#include "kernels/ref/exp.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/rows.h"
#include "kernels/ref/simd.h"

#define MIX_TILES (((2 + HC_MAX) * HC_MAX + MAT_TILE - 1) / MAT_TILE)
#define GRAIN_ROWS 8
#define PIECE 256  /* channels */
#define HC_USUAL 4 /* loops over this number of streams are compiled out */

/* Rows to one by softmax, then columns; the rest of the iterations divide rows and columns in turn.
 * eps is added to every softmax value and to every divisor. The last step divides columns. */
static ALWAYS_INLINE void sinkhorn_of(float *c, const int n, int iters, float eps)
{
    for (int j = 0; j < n; j++) {
        float most = c[j * n], sum = 0;

        for (int k = 1; k < n; k++)
            most = c[j * n + k] > most ? c[j * n + k] : most;
        for (int k = 0; k < n; k++) {
            c[j * n + k] = exp_f32(c[j * n + k] - most);
            sum += c[j * n + k];
        }
        for (int k = 0; k < n; k++)
            c[j * n + k] = c[j * n + k] / sum + eps;
    }
    for (int i = 0; i < iters; i++) {
        for (int j = 0; i > 0 && j < n; j++) {
            float sum = 0;

            for (int k = 0; k < n; k++)
                sum += c[j * n + k];
            for (int k = 0; k < n; k++)
                c[j * n + k] /= sum + eps;
        }
        for (int k = 0; k < n; k++) {
            float sum = 0;

            for (int j = 0; j < n; j++)
                sum += c[j * n + k];
            for (int j = 0; j < n; j++)
                c[j * n + k] /= sum + eps;
        }
    }
}

static void sinkhorn(float *c, int n, int iters, float eps)
{
    if (n == HC_USUAL)
        sinkhorn_of(c, HC_USUAL, iters, eps);
    else
        sinkhorn_of(c, n, iters, eps);
}

/* m: the (2 + hc) * hc sums of a row, not yet scaled by the row's norm. */
static void mix_row(const struct hc_mix_args *a, int r, const float *m, float square_sum)
{
    int hc = a->hc;
    float by = 1.0f / sqrtf(square_sum / (float)(hc * a->dim) + a->eps);
    float *pre = a->pre + (size_t)r * (size_t)hc, *post = a->post + (size_t)r * (size_t)hc;
    float *comb = a->comb + (size_t)r * (size_t)(hc * hc);

    for (int i = 0; i < hc; i++) {
        pre[i] = sigmoid_f32(m[i] * by * a->scale[0] + a->base[i]) + a->hc_eps;
        post[i] = 2 * sigmoid_f32(m[hc + i] * by * a->scale[1] + a->base[hc + i]);
    }
    for (int i = 0; i < hc * hc; i++)
        comb[i] = m[2 * hc + i] * by * a->scale[2] + a->base[2 * hc + i];
    sinkhorn(comb, hc, a->iters, a->hc_eps);
}

static void hc_mix_rows(const void *args, int lo, int hi, int worker)
{
    const struct hc_mix_args *a = args;
    struct dot_tiles w = dot_mat(a->fn);
    size_t cols = (size_t)a->hc * (size_t)a->dim;
    int tiles = (a->fn->rows + MAT_TILE - 1) / MAT_TILE;

    for (int r = lo; r < hi; r += DOT_ROWS) {
        int n = hi - r < DOT_ROWS ? hi - r : DOT_ROWS;
        float m[DOT_ROWS][MIX_TILES * MAT_TILE], sum[DOT_ROWS];
        const float *x[DOT_ROWS];

        for (int i = 0; i < n; i++)
            x[i] = a->x + (size_t)(r + i) * cols;
        dot_rows(&w, 0, tiles, x, n, m[0], MIX_TILES * MAT_TILE, false);
        rows_square_sum(x[0], cols, n, (int)cols, sum);
        for (int i = 0; i < n; i++)
            mix_row(a, r + i, m[i], sum[i]);
    }
}

void ref_hc_mix(struct queue *q, const struct hc_mix_args *a)
{
    if (q->err)
        return;
    if (a->hc < 1 || a->hc > HC_MAX || a->fn->rows != (2 + a->hc) * a->hc ||
        a->fn->cols != a->hc * a->dim) {
        queue_fail(q, -EINVAL, "hc_mix: %d x %d mixes for %d streams of %d", a->fn->rows,
                   a->fn->cols, a->hc, a->dim);
        return;
    }
    if (a->fn->dtype >= DTYPE_COUNT) {
        queue_fail(q, -EINVAL, "hc_mix: the mixes are quantised");
        return;
    }
    ref_run(q, a->rows, GRAIN_ROWS, hc_mix_rows, a);
}

static ALWAYS_INLINE void round_row(float *y, int n, enum round round)
{
    if (round == ROUND_BF16)
        for (int c = 0; c < n; c++)
            y[c] = bf16_round(y[c]);
}

static ALWAYS_INLINE void weighted_sum(const float *x, const float *pre, float *y, size_t dim,
                                       const int hc)
{
    for (size_t c = 0; c < dim; c++) {
        float sum = 0;

#pragma GCC unroll 4
        for (int i = 0; i < hc; i++)
            sum += pre[i] * x[(size_t)i * dim + c];
        y[c] = sum;
    }
}

SIMD static void collapse_row(const struct hc_collapse_args *a, int r)
{
    size_t dim = (size_t)a->dim;
    const float *x = a->x + (size_t)r * (size_t)a->hc * dim;
    const float *pre = a->pre ? a->pre + (size_t)r * (size_t)a->hc : NULL;
    float *y = a->y + (size_t)r * dim;

    if (!pre)
        memcpy(y, x, dim * sizeof(*y));
    else if (a->hc == HC_USUAL)
        weighted_sum(x, pre, y, dim, HC_USUAL);
    else
        weighted_sum(x, pre, y, dim, a->hc);
    round_row(y, a->dim, a->round);
}

static void hc_collapse_rows(const void *args, int lo, int hi, int worker)
{
    for (int r = lo; r < hi; r++)
        collapse_row(args, r);
}

void ref_hc_collapse(struct queue *q, const struct hc_collapse_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, GRAIN_ROWS, hc_collapse_rows, a);
}

/* Channels at .. at + n - 1 of a row; all streams are read before one is written. */
static ALWAYS_INLINE void expand_piece(const struct hc_expand_args *a, int r, int at, int n,
                                       const int hc)
{
    size_t dim = (size_t)a->dim;
    float *x = a->x + (size_t)r * (size_t)hc * dim + (size_t)at;
    const float *post = a->post + (size_t)r * (size_t)hc;
    const float *comb = a->comb + (size_t)r * (size_t)(hc * hc);
    float y[PIECE], out[HC_MAX][PIECE];

    memcpy(y, a->y + (size_t)r * dim + (size_t)at, (size_t)n * sizeof(*y));
    round_row(y, n, a->round);
    for (int k = 0; k < hc; k++)
        for (int c = 0; c < n; c++) {
            float mixed = 0;

#pragma GCC unroll 4
            for (int j = 0; j < hc; j++)
                mixed += comb[j * hc + k] * x[(size_t)j * dim + (size_t)c];
            out[k][c] = post[k] * y[c] + mixed;
        }
    for (int k = 0; k < hc; k++) {
        round_row(out[k], n, a->round);
        memcpy(x + (size_t)k * dim, out[k], (size_t)n * sizeof(*x));
    }
}

SIMD static void expand_row(const struct hc_expand_args *a, int r)
{
    for (int at = 0; at < a->dim; at += PIECE) {
        int n = a->dim - at < PIECE ? a->dim - at : PIECE;

        if (a->hc == HC_USUAL)
            expand_piece(a, r, at, n, HC_USUAL);
        else
            expand_piece(a, r, at, n, a->hc);
    }
}

static void hc_expand_rows(const void *args, int lo, int hi, int worker)
{
    for (int r = lo; r < hi; r++)
        expand_row(args, r);
}

void ref_hc_expand(struct queue *q, const struct hc_expand_args *a)
{
    if (q->err)
        return;
    if (a->hc < 1 || a->hc > HC_MAX) {
        queue_fail(q, -EINVAL, "hc_expand: %d streams, want 1 .. %d", a->hc, HC_MAX);
        return;
    }
    ref_run(q, a->rows, GRAIN_ROWS, hc_expand_rows, a);
}

void ref_hc_site(struct queue *q, const struct hc_site_args *a)
{
    float *h = a->h ? a->h : a->n;

    if (a->y)
        ref_hc_expand(q, &(struct hc_expand_args){ .y = a->y,
                                                   .post = a->post,
                                                   .comb = a->comb,
                                                   .x = a->x,
                                                   .rows = a->rows,
                                                   .hc = a->hc,
                                                   .dim = a->dim,
                                                   .round = a->round });
    if (a->fn)
        ref_hc_mix(q, &(struct hc_mix_args){ .x = a->x,
                                             .fn = a->fn,
                                             .base = a->base,
                                             .scale = a->scale,
                                             .pre = a->to_pre,
                                             .post = a->to_post,
                                             .comb = a->to_comb,
                                             .rows = a->rows,
                                             .hc = a->hc,
                                             .dim = a->dim,
                                             .iters = a->iters,
                                             .eps = a->eps,
                                             .hc_eps = a->hc_eps });
    ref_hc_collapse(q, &(struct hc_collapse_args){ .x = a->x,
                                                   .pre = a->pre,
                                                   .y = h,
                                                   .rows = a->rows,
                                                   .hc = a->hc,
                                                   .dim = a->dim,
                                                   .round = a->round });
    ref_rmsnorm(q, &(struct rmsnorm_args){ .x = h,
                                           .w = a->w,
                                           .y = a->n,
                                           .rows = a->rows,
                                           .cols = a->dim,
                                           .eps = a->eps,
                                           .round = a->round });
}

SIMD static void mean_row(const struct hc_mean_args *a, int r)
{
    const float *x = a->x + (size_t)r * (size_t)a->hc * (size_t)a->dim;
    float *y = a->y + (size_t)r * (size_t)a->ldy;

    for (int c = 0; c < a->dim; c++) {
        float sum = 0;

        for (int i = 0; i < a->hc; i++)
            sum += x[(size_t)i * (size_t)a->dim + (size_t)c];
        y[c] = sum / (float)a->hc;
    }
    round_row(y, a->dim, a->round);
}

static void hc_mean_rows(const void *args, int lo, int hi, int worker)
{
    for (int r = lo; r < hi; r++)
        mean_row(args, r);
}

void ref_hc_mean(struct queue *q, const struct hc_mean_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, GRAIN_ROWS, hc_mean_rows, a);
}
