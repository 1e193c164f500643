/* bed - what tests of ops stand on: a queue of the reference backend, memory that is freed
 * together, made-up values from a seed, and matrices both as ops read them and row by row. */
#ifndef TANDEM_TESTS_KERNELS_BED_H
#define TANDEM_TESTS_KERNELS_BED_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "kernels/backend.h"
#include "kernels/numfmt.h"
#include "kernels/ops.h"
#include "src/base/rng.h"

#define BED_BLOCKS 256
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

struct bed {
    struct device *d;
    struct queue *q;
    const struct op_table *op;
    void *block[BED_BLOCKS];
    int blocks;
    uint64_t seed;
};

static inline void bed_open_backend(struct bed *b, const char *backend, int workers)
{
    const struct backend_ops *ops;

    memset(b, 0, sizeof(*b));
    b->seed = 1;
    cr_assert(eq(int, backend_find(backend, &ops), 0));
    cr_assert(eq(int, ops->open(0, workers, &b->d), 0));
    cr_assert(eq(int, ops->queue_open(b->d, &b->q), 0));
    b->op = ops->op;
}

static inline void bed_open(struct bed *b, int workers)
{
    bed_open_backend(b, "ref", workers);
}

static inline void bed_close(struct bed *b)
{
    for (int i = 0; i < b->blocks; i++)
        free(b->block[i]);
    b->d->ops->queue_close(b->q);
    b->d->ops->close(b->d);
}

/* Zeroed, and exactly as long as asked, so that a sanitizer sees a step outside. */
static inline void *bed_take(struct bed *b, size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);

    cr_assert(p != NULL && b->blocks < BED_BLOCKS);
    b->block[b->blocks++] = p;
    return p;
}

static inline float *bed_zeros(struct bed *b, size_t n)
{
    return bed_take(b, n * sizeof(float));
}

static inline void bed_fill(struct bed *b, float *x, size_t n, float by)
{
    b->seed++;
    for (size_t i = 0; i < n; i++)
        x[i] = synth_uniform(b->seed, i) * by;
}

/* n values in -by .. by */
static inline float *bed_f32(struct bed *b, size_t n, float by)
{
    float *x = bed_zeros(b, n);

    bed_fill(b, x, n, by);
    return x;
}

static inline int bed_int(struct bed *b, int below)
{
    struct philox p = philox4x32((uint32_t)b->seed, 0, 0, 77, 5);

    b->seed++;
    return (int)(p.w[0] % (uint32_t)below);
}

static inline void bed_store(enum dtype t, void *data, size_t at, float v)
{
    if (t == DTYPE_F32)
        ((float *)data)[at] = v;
    else
        ((uint16_t *)data)[at] = t == DTYPE_F16 ? f16_from_f32(v) : bf16_from_f32(v);
}

static inline float bed_stored(enum dtype t, float v)
{
    return t == DTYPE_F32 ? v : t == DTYPE_F16 ? f32_from_f16(f16_from_f32(v)) : bf16_round(v);
}

/* A matrix of made-up values; dense, if not NULL, gets the same row by row as f32. */
static inline struct mat bed_mat(struct bed *b, int rows, int cols, enum dtype t, float by,
                                 float **dense)
{
    void *data = bed_take(b, mat_bytes(rows, cols, t));
    float *v = bed_f32(b, (size_t)rows * (size_t)cols, by);

    for (int n = 0; n < rows; n++)
        for (int k = 0; k < cols; k++) {
            size_t i = (size_t)n * (size_t)cols + (size_t)k;

            v[i] = bed_stored(t, v[i]);
            bed_store(t, data,
                      (size_t)(n / MAT_TILE) * MAT_TILE * (size_t)cols + (size_t)k * MAT_TILE +
                          (size_t)(n % MAT_TILE),
                      v[i]);
        }
    if (dense)
        *dense = v;
    return (struct mat){ .data = data, .dtype = t, .rows = rows, .cols = cols };
}

static inline struct table bed_table(struct bed *b, int rows, int cols, enum dtype t, float by,
                                     float **dense)
{
    size_t n = (size_t)rows * (size_t)cols;
    void *data = bed_take(b, n * dtype_bytes(t));
    float *v = bed_f32(b, n, by);

    for (size_t i = 0; i < n; i++) {
        v[i] = bed_stored(t, v[i]);
        bed_store(t, data, i, v[i]);
    }
    if (dense)
        *dense = v;
    return (struct table){ .data = data, .dtype = t, .rows = rows, .cols = cols };
}

/* An empty state of `slots` slots. */
static inline struct state_view bed_state(struct bed *b, int slots, int cap, enum codec c, int cols)
{
    size_t row = (codec_bytes(c, cols) + 3) / 4 * 4;

    return (struct state_view){ .base = bed_take(b, (size_t)slots * (size_t)cap * row),
                                .slot_stride = (size_t)cap * row,
                                .row_bytes = row,
                                .cap = cap,
                                .codec = c,
                                .cols = cols };
}

/* Rows of one slot at positions pos .. pos + rows - 1, the window's first row being `first`. */
static inline void bed_rows(struct row_info *info, int first, int slot, int pos, int rows)
{
    for (int i = 0; i < rows; i++)
        info[first + i] = (struct row_info){ .slot = slot, .pos = pos + i, .first = first };
}

/* Write made-up rows at positions lo .. hi - 1 and return what the state gives back, [hi -
 * lo][cols]. */
static inline float *bed_put(struct bed *b, const struct state_view *v, int slot, int lo, int hi,
                             float by)
{
    size_t n = (size_t)(hi - lo);
    float *x = bed_f32(b, n * (size_t)v->cols, by);
    struct row_info *info = bed_take(b, n * sizeof(*info));

    bed_rows(info, 0, slot, lo, hi - lo);
    b->op->row_put(b->q,
                   &(struct row_put_args){ .x = x, .view = *v, .info = info, .rows = hi - lo });
    b->op->requant(b->q, &(struct requant_args){
                             .x = x, .rows = hi - lo, .cols = v->cols, .codec = v->codec });
    return x;
}

/* Largest |x - want| / max(1, |want|); infinite if one of them is not a number. */
static inline double bed_error(const float *x, const double *want, size_t n)
{
    double most = 0;

    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)x[i] - want[i]) / fmax(1, fabs(want[i]));

        most = e > most ? e : e == e ? most : INFINITY;
    }
    return most;
}

static inline int bed_same(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof(*a)) == 0;
}

/* The queue's error, cleared. */
static inline int bed_wait(struct bed *b)
{
    return b->d->ops->wait(b->q);
}

#endif
