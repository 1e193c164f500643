/* dense.c owns the pieces every block is made of: norm, product, sum, gate. */
#include <errno.h>
#include <math.h>

#include "kernels/ref/dot.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/rows.h"
#include "kernels/ref/simd.h"

#define GRAIN_ROWS 16 /* rows below which waking a worker costs more than it saves */

float ref_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

float ref_silu(float x)
{
    return x / (1.0f + expf(-x));
}

SIMD static void norm_row(const struct rmsnorm_args *a, const float *x, float square_sum, float *y)
{
    float by = 1.0f / sqrtf(square_sum / (float)a->cols + a->eps);

    if (a->round == ROUND_BF16)
        for (int c = 0; c < a->cols; c++)
            y[c] = bf16_round(x[c] * by * a->w[c]);
    else
        for (int c = 0; c < a->cols; c++)
            y[c] = x[c] * by * a->w[c];
}

static void rmsnorm_rows(const void *args, int lo, int hi, int worker)
{
    const struct rmsnorm_args *a = args;
    size_t cols = (size_t)a->cols;

    for (int r = lo; r < hi; r += ROWS_SUM) {
        int n = hi - r < ROWS_SUM ? hi - r : ROWS_SUM;
        const float *x = a->x + (size_t)r * cols;
        float sum[ROWS_SUM];

        rows_square_sum(x, cols, n, a->cols, sum);
        for (int i = 0; i < n; i++)
            norm_row(a, x + (size_t)i * cols, sum[i], a->y + (size_t)(r + i) * cols);
    }
}

void ref_rmsnorm(struct queue *q, const struct rmsnorm_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, GRAIN_ROWS, rmsnorm_rows, a);
}

/* A task takes some tiles of a group's outputs for all rows. A tile that two groups share is computed for
 * each of them and each stores its own outputs. */
#define PART_TILES 4

struct product {
    const struct matmul_args *a;
    struct dot_tiles w;
    int groups, local; /* local: outputs of a group */
    int parts;         /* tasks of a group */
};

SIMD static void store_outputs(const struct matmul_args *a, const float *sum, int n, float *y)
{
    if (a->round == ROUND_BF16)
        for (int i = 0; i < n; i++)
            y[i] = bf16_round(sum[i]);
    else
        for (int i = 0; i < n; i++)
            y[i] = sum[i];
}

static void product_part(const struct product *p, int group, int part)
{
    const struct matmul_args *a = p->a;
    int begin = group * p->local, end = begin + p->local;
    int tile = begin / MAT_TILE + part * PART_TILES;
    int last = (end + MAT_TILE - 1) / MAT_TILE;
    int tiles = last - tile < PART_TILES ? last - tile : PART_TILES;
    int lo = tile * MAT_TILE < begin ? begin : tile * MAT_TILE;
    int hi = (tile + tiles) * MAT_TILE > end ? end : (tile + tiles) * MAT_TILE;
    size_t ldx = (size_t)p->groups * (size_t)a->w->cols, ldy = (size_t)a->w->rows;
    const float *x0 = a->x + (size_t)group * (size_t)a->w->cols;

    if (tiles <= 0)
        return;
    for (int r = 0; r < a->rows; r += DOT_ROWS) {
        int n = a->rows - r < DOT_ROWS ? a->rows - r : DOT_ROWS;
        float sum[DOT_ROWS][PART_TILES * MAT_TILE];
        const float *x[DOT_ROWS];

        for (int i = 0; i < n; i++)
            x[i] = x0 + (size_t)(r + i) * ldx;
        dot_rows(&p->w, tile, tiles, x, n, sum[0], PART_TILES * MAT_TILE, false);
        for (int i = 0; i < n; i++)
            store_outputs(a, sum[i] + lo - tile * MAT_TILE, hi - lo,
                          a->y + (size_t)(r + i) * ldy + lo);
    }
}

static void product_parts(const void *args, int lo, int hi, int worker)
{
    const struct product *p = args;

    for (int i = lo; i < hi; i++)
        product_part(p, i / p->parts, i % p->parts);
}

void ref_matmul(struct queue *q, const struct matmul_args *a)
{
    struct product p = { .a = a, .groups = a->groups ? a->groups : 1 };
    int tiles;

    if (q->err)
        return;
    if (p.groups < 0 || a->w->rows % p.groups != 0) {
        queue_fail(q, -EINVAL, "matmul: %d outputs in %d groups", a->w->rows, p.groups);
        return;
    }
    p.w = dot_mat(a->w);
    p.local = a->w->rows / p.groups;
    tiles = p.local / MAT_TILE + (p.local % MAT_TILE ? 2 : 0); /* that a group may touch */
    p.parts = (tiles + PART_TILES - 1) / PART_TILES;
    ref_run(q, p.groups * p.parts, 1, product_parts, &p);
}

SIMD static void add_values(const struct add_args *a, size_t lo, size_t hi)
{
    if (a->round == ROUND_BF16)
        for (size_t i = lo; i < hi; i++)
            a->y[i] = bf16_round(a->y[i] + a->x[i]);
    else
        for (size_t i = lo; i < hi; i++)
            a->y[i] += a->x[i];
}

static void add_rows(const void *args, int lo, int hi, int worker)
{
    const struct add_args *a = args;

    add_values(a, (size_t)lo * (size_t)a->cols, (size_t)hi * (size_t)a->cols);
}

void ref_add(struct queue *q, const struct add_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, GRAIN_ROWS, add_rows, a);
}

static void swiglu_rows(const void *args, int lo, int hi, int worker)
{
    const struct swiglu_args *a = args;

    rows_swiglu(a->gate + (size_t)lo * (size_t)a->cols, a->up + (size_t)lo * (size_t)a->cols,
                a->y + (size_t)lo * (size_t)a->cols, (size_t)(hi - lo) * (size_t)a->cols, 1,
                a->limit, a->round);
}

void ref_swiglu(struct queue *q, const struct swiglu_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, GRAIN_ROWS, swiglu_rows, a);
}
