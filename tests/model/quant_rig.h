/* quant_rig - packs of quantised weights, what a bound matrix holds, and products of it. */
#ifndef TANDEM_TESTS_MODEL_QUANT_RIG_H
#define TANDEM_TESTS_MODEL_QUANT_RIG_H

#include "kernels/backend.h"
#include "kernels/formats/values.h"
#include "kernels/ops.h"
#include "tests/model/stored_rig.h"

#define ROWS_TEST 5 /* of inputs */

static inline struct pack_spec spec_of(const struct walk_part *part, int rank, int ranks,
                                       int layouts)
{
    return (struct pack_spec){ .family = "test",
                               .parts = part,
                               .n_parts = 1,
                               .rank = rank,
                               .ranks = ranks,
                               .layouts = layouts };
}

/* W [rows][cols] of a bound matrix. */
static inline float *bound_values(const struct mat *m)
{
    size_t k_all = mat_round_up((size_t)m->cols, EXL3_BLOCK);
    float *w = malloc((size_t)(m->rows * m->cols + 1) * sizeof(*w));
    float *v = malloc(k_all * MAT_TILE * sizeof(*v));

    for (int tile = 0; tile * MAT_TILE < m->rows; tile++) {
        mat_values(m, tile, 0, (int)k_all, v);
        for (int n = tile * MAT_TILE; n < m->rows && n < (tile + 1) * MAT_TILE; n++)
            for (int k = 0; k < m->cols; k++)
                w[n * m->cols + k] = v[k * MAT_TILE + n % MAT_TILE];
    }
    free(v);
    return w;
}

/* What multiplies: the meaning of a product. */
struct ref {
    const struct backend_ops *b;
    struct device *d;
    struct queue *q;
};

static inline void ref_open(struct ref *f)
{
    cr_assert(eq(int, backend_find("ref", &f->b), 0));
    cr_assert(eq(int, f->b->open(0, 1, &f->d), 0));
    cr_assert(eq(int, f->b->queue_open(f->d, &f->q), 0));
}

static inline void ref_close(struct ref *f)
{
    f->b->queue_close(f->q);
    f->b->close(f->d);
}

static inline void multiply(struct ref *f, const struct mat *m, const float *x, int groups,
                            float *y)
{
    f->b->op->matmul(
        f->q, &(struct matmul_args){ .w = m, .x = x, .y = y, .rows = ROWS_TEST, .groups = groups });
    cr_assert(eq(int, f->b->wait(f->q), 0));
}

/* Columns first .. first + n - 1 of x [ROWS_TEST][cols]. */
static inline float *cut(const float *x, int cols, int64_t first, int n)
{
    float *y = malloc((size_t)(ROWS_TEST * n + 1) * sizeof(*y));

    for (int r = 0; r < ROWS_TEST; r++)
        memcpy(y + r * n, x + r * cols + first, (size_t)n * sizeof(*y));
    return y;
}

#endif
