/* product.c owns the product of rows with a matrix of any type: the plain strip, and how a product
 * is shared out. moe.c drives the same strips for experts. */
#include "kernels/ref/product.h"

#include <errno.h>
#include <string.h>

#include "kernels/formats/exl3.h"
#include "kernels/formats/values.h"
#include "kernels/lists.h"
#include "kernels/ref/codec.h"
#include "kernels/ref/dot.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/simd.h"

const uint16_t *strip_suh(const struct strip *s, int k0)
{
    int slices = s->w->q.slices ? s->w->q.slices : 1;
    size_t k = mat_round_up((size_t)s->w->cols, EXL3_BLOCK);

    return s->w->suh + (size_t)(s->first / (s->w->rows / slices)) * k + (size_t)k0;
}

void strip_quantise(enum codec c, const float *x, int n, float *out)
{
    unsigned char row[STRIP_INPUTS * 4];

    codec_encode(c, x, n, row);
    codec_decode(c, row, n, out);
}

/* DOT_ROWS rows at a time against tiles that lie as dot_rows reads them. */
static void dot_all(const struct dot_tiles *w, int first, int tiles, const float *const *x,
                    int rows, float *y, size_t ldy, bool onto)
{
    for (int r = 0; r < rows; r += DOT_ROWS)
        dot_rows(w, first, tiles, x + r, rows - r < DOT_ROWS ? rows - r : DOT_ROWS,
                 y + (size_t)r * ldy, ldy, onto);
}

/* A rotation needs the outputs of its whole block. */
static int strip_tiles(const struct strip *s)
{
    int n = s->w->dtype == DTYPE_EXL3 ? EXL3_BLOCK : s->n;

    return (n + MAT_TILE - 1) / MAT_TILE;
}

/* One block of inputs: what the weights meet, and the weights, tile by tile. */
static void block(const struct strip *s, int k0, int n_k, float *y, size_t ldy)
{
    const struct mat *w = s->w;
    int is_exl3 = w->dtype == DTYPE_EXL3, tiles = strip_tiles(s);
    int stored = is_exl3 ? EXL3_BLOCK : n_k;
    float in[STRIP_ROWS][STRIP_INPUTS], value[STRIP_INPUTS * MAT_TILE];
    const float *x[STRIP_ROWS];
    struct dot_tiles panel = {
        .data = value, .dtype = DTYPE_F32, .col_step = MAT_TILE, .cols = stored
    };

    for (int r = 0; r < s->rows; r++) {
        x[r] = s->x[r] + k0;
        if (is_exl3)
            exl3_rotate_in(s->x[r] + k0, n_k, strip_suh(s, k0), EXL3_ORDER_P, in[r]);
        else if (s->in)
            strip_quantise(s->in, s->x[r] + k0, n_k, in[r]);
        if (is_exl3 || s->in)
            x[r] = in[r];
    }
    for (int t = 0; t < tiles; t++) {
        mat_values(w, s->first / MAT_TILE + t, k0, stored, value);
        dot_all(&panel, 0, 1, x, s->rows, y + t * MAT_TILE, ldy, k0 > 0);
    }
}

void ref_strip(const struct strip *s, float *y, size_t ldy)
{
    const struct mat *w = s->w;
    int tiles = strip_tiles(s);

    if (w->dtype < DTYPE_COUNT && !s->in) {
        struct dot_tiles t = dot_mat(w);

        dot_all(&t, s->first / MAT_TILE, tiles, s->x, s->rows, y, ldy, false);
        return;
    }
    for (int r = 0; r < s->rows && w->cols == 0; r++)
        memset(y + (size_t)r * ldy, 0, (size_t)(tiles * MAT_TILE) * sizeof(*y));
    for (int k0 = 0; k0 < w->cols; k0 += STRIP_INPUTS)
        block(s, k0, w->cols - k0 < STRIP_INPUTS ? w->cols - k0 : STRIP_INPUTS, y, ldy);
    if (w->dtype == DTYPE_EXL3 && w->cols > 0)
        for (int r = 0; r < s->rows; r++)
            exl3_rotate_out(y + (size_t)r * ldy, w->svh + s->first,
                            w->bias ? w->bias + s->first : NULL);
}

/* ---- matmul ---------------------------------------------------------------------------------- */

/* A task takes a strip of a group's outputs for all rows. A tile that two groups share is computed
 * for each of them and each stores its own outputs. */
struct product {
    const struct matmul_args *a;
    strip_fn *strip;
    enum codec in;
    int groups, local; /* local: outputs of a group */
    int wide, parts;   /* outputs of a task, tasks of a group */
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
    int first = begin / MAT_TILE * MAT_TILE + part * p->wide;
    int n = end - first < p->wide ? end - first : p->wide;
    int lo = first < begin ? begin : first;
    size_t cols = (size_t)a->w->cols, ldx = (size_t)p->groups * cols, ldy = (size_t)a->w->rows;
    float sum[STRIP_ROWS][STRIP_OUTPUTS];
    const float *x[STRIP_ROWS];
    struct strip s = { .w = a->w, .first = first, .n = n, .x = x, .in = p->in };

    if (n <= 0)
        return;
    for (int r = 0; r < a->rows; r += STRIP_ROWS) {
        s.rows = a->rows - r < STRIP_ROWS ? a->rows - r : STRIP_ROWS;
        for (int i = 0; i < s.rows; i++)
            x[i] = a->x + (size_t)(r + i) * ldx + (size_t)group * cols;
        p->strip(&s, sum[0], STRIP_OUTPUTS);
        for (int i = 0; i < s.rows; i++)
            store_outputs(a, sum[i] + lo - first, first + n - lo,
                          a->y + (size_t)(r + i) * ldy + lo);
    }
}

static void product_parts(const void *args, int lo, int hi, int worker)
{
    const struct product *p = args;

    for (int i = lo; i < hi; i++)
        product_part(p, i / p->parts, i % p->parts);
}

bool product_check(struct queue *q, const char *op, const struct mat *w, enum codec in, int groups)
{
    int slices = w->q.slices ? w->q.slices : 1, cuts = slices > groups ? slices : groups;

    if (groups < 1 || slices < 1 || w->rows % groups != 0 || w->rows % slices != 0) {
        queue_fail(q, -EINVAL, "%s: %d outputs in %d groups, %d slices", op, w->rows, groups,
                   slices);
        return false;
    }
    if (w->dtype == DTYPE_EXL3 && cuts > 1 &&
        (w->rows / groups % EXL3_BLOCK != 0 || w->rows / slices % EXL3_BLOCK != 0)) {
        queue_fail(q, -EINVAL,
                   "%s: %d outputs in %d groups, %d slices; EXL3 is cut at blocks of %d", op,
                   w->rows, groups, slices, EXL3_BLOCK);
        return false;
    }
    if (w->cols % codec_block(product_codec(w, in)) != 0) {
        queue_fail(q, -EINVAL, "%s: %d inputs in blocks of %d", op, w->cols, codec_block(in));
        return false;
    }
    return true;
}

void product_matmul(struct queue *q, const struct matmul_args *a, strip_fn *strip)
{
    struct product p = { .a = a, .strip = strip, .groups = a->groups ? a->groups : 1 };

    if (q->err || !product_check(q, "matmul", a->w, a->in, p.groups))
        return;
    p.in = product_codec(a->w, a->in);
    p.local = a->w->rows / p.groups;
    p.wide = strip_outputs(a->w);
    p.parts =
        (p.local + p.wide - 1) / p.wide + (p.local % MAT_TILE != 0); /* that a group may touch */
    ref_run(q, p.groups * p.parts, 1, product_parts, &p);
}

void ref_matmul(struct queue *q, const struct matmul_args *a)
{
    product_matmul(q, a, ref_strip);
}

void ref_matmuls(struct queue *q, const struct matmuls_args *a)
{
    if (matmuls_refused(q, a))
        return;
    for (int i = 0; i < a->n; i++)
        q->ops->op->matmul(q, &a->of[i]);
}
