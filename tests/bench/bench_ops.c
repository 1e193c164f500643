/* bench_ops - speed of the ops that a window spends its time in, one worker of the reference
 * backend.
 *
 * Each case is verified against single sums in order before it is timed. A line gives the time of a
 * call, multiply-adds a second, and their share of the ceiling: a product that stays in the
 * first-level cache, measured first. Weights of a mid-sized case do not fit a cache, so their bytes
 * a second stand beside.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backend.h"
#include "kernels/numfmt.h"
#include "kernels/ops.h"
#include "src/base/clock.h"
#include "src/base/rng.h"
#include "src/base/sort.h"

#define BLOCKS_MAX 512
#define RUN_NS (40 * NS_PER_MS)
#define BATCH_NS (100 * NS_PER_US)
#define SAMPLES 500

static const int row_counts[] = { 1, 2, 4, 6, 8, 16 };

#define ROW_COUNTS (sizeof(row_counts) / sizeof(row_counts[0]))
#define ROWS_MAX 16

struct bench {
    struct device *d;
    struct queue *q;
    const struct op_table *op;
    void *block[BLOCKS_MAX];
    int blocks, wrong;
    uint64_t seed;
    double ceiling; /* multiply-adds a second */
};

typedef void run_fn(struct bench *b, const void *args);

static void *take(struct bench *b, size_t bytes)
{
    void *p;

    if (b->blocks == BLOCKS_MAX || b->d->ops->alloc(b->d, bytes, &p) < 0)
        exit(1);
    b->block[b->blocks++] = p;
    return p;
}

static float *values(struct bench *b, size_t n)
{
    float *x = take(b, n * sizeof(*x));

    b->seed++;
    for (size_t i = 0; i < n; i++)
        x[i] = synth_uniform(b->seed, i);
    return x;
}

static struct mat matrix(struct bench *b, int rows, int cols, enum dtype t)
{
    size_t n = mat_bytes(rows, cols, t) / dtype_bytes(t);
    void *data = take(b, mat_bytes(rows, cols, t));

    b->seed++;
    for (size_t i = 0; i < n; i++) {
        float v = synth_uniform(b->seed, i);

        if (t == DTYPE_F32)
            ((float *)data)[i] = v;
        else
            ((uint16_t *)data)[i] = t == DTYPE_F16 ? f16_from_f32(v) : bf16_from_f32(v);
    }
    return (struct mat){ .data = data, .dtype = t, .rows = rows, .cols = cols };
}

static float weight(const struct mat *w, int n, int k)
{
    size_t at = (size_t)(n / MAT_TILE) * MAT_TILE * (size_t)w->cols + (size_t)k * MAT_TILE +
                (size_t)(n % MAT_TILE);

    if (w->dtype == DTYPE_F32)
        return ((const float *)w->data)[at];
    return w->dtype == DTYPE_F16 ? f32_from_f16(((const uint16_t *)w->data)[at])
                                 : f32_from_bf16(((const uint16_t *)w->data)[at]);
}

/* Time of this thread alone: what else the machine does then matters less. */
static int64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

/* The median of up to SAMPLES measurements; one takes at least BATCH_NS, because reading this clock
 * is a system call. */
static double seconds(struct bench *b, run_fn *run, const void *args)
{
    int64_t sample[SAMPLES], begin = cpu_ns(), until = begin + RUN_NS;
    int calls, n = 0;

    run(b, args);
    calls = (int)(BATCH_NS / (cpu_ns() - begin + 1)) + 1;
    do {
        int64_t t = cpu_ns();

        for (int i = 0; i < calls; i++)
            run(b, args);
        sample[n++] = cpu_ns() - t;
    } while (n < SAMPLES && cpu_ns() < until);
    sort_i64(sample, (size_t)n);
    return (double)(sample[n / 2] + 1) * 1e-9 / calls;
}

static void report(struct bench *b, const char *name, int rows, double s, double macs, double bytes)
{
    printf("%-34s %2d rows %9.1f us %7.2f GMAC/s %4.0f%%", name, rows, s * 1e6, macs / s * 1e-9,
           100 * macs / s / b->ceiling);
    if (bytes > 0)
        printf(" %7.1f GB/s of weights", bytes / s * 1e-9);
    printf("\n");
}

static void expect(struct bench *b, const char *name, int ok)
{
    if (ok)
        return;
    printf("%s: WRONG\n", name);
    b->wrong++;
}

/* ---- products ---- */

static void run_matmul(struct bench *b, const void *args)
{
    b->op->matmul(b->q, args);
}

static float one_sum(const struct mat *w, int n, const float *x)
{
    volatile float sum = 0;

    for (int k = 0; k < w->cols; k++) {
        volatile float p = weight(w, n, k) * x[k];

        sum = sum + p;
    }
    return sum;
}

static int matmul_is_right(const struct matmul_args *a)
{
    for (int r = 0; r < a->rows; r++)
        for (int n = 0; n < a->w->rows; n += 13)
            if (a->y[r * a->w->rows + n] != one_sum(a->w, n, a->x + r * a->w->cols))
                return 0;
    return 1;
}

static void bench_matmul(struct bench *b, int rows, int cols, enum dtype t, const char *label)
{
    struct mat w = matrix(b, rows, cols, t);
    float *x = values(b, ROWS_MAX * (size_t)cols),
          *y = take(b, ROWS_MAX * (size_t)rows * sizeof(*y));
    char name[64];

    snprintf(name, sizeof(name), "matmul %s %d x %d", label, rows, cols);
    for (size_t i = 0; i < ROW_COUNTS; i++) {
        struct matmul_args a = { .w = &w, .x = x, .y = y, .rows = row_counts[i] };

        run_matmul(b, &a);
        expect(b, name, matmul_is_right(&a));
        report(b, name, a.rows, seconds(b, run_matmul, &a), (double)a.rows * rows * cols,
               (double)mat_bytes(rows, cols, t));
    }
}

static void measure_ceiling(struct bench *b)
{
    struct mat w = matrix(b, 64, 96, DTYPE_F32);
    struct matmul_args a = { .w = &w, .x = values(b, 6 * 96), .y = values(b, 6 * 64), .rows = 6 };

    b->ceiling = 6 * 64 * 96 / seconds(b, run_matmul, &a);
    printf("ceiling %.1f GMAC/s: f32 product of 64 x 96, 6 rows\n", b->ceiling * 1e-9);
}

/* ---- experts ---- */

static void run_moe(struct bench *b, const void *args)
{
    b->op->moe(b->q, args);
}

/* Row 0 alone must have the bits of row 0 among others. */
static int moe_is_right(struct bench *b, const struct moe_args *a, int dim)
{
    struct moe_args one = *a;

    one.rows = 1;
    one.y = take(b, (size_t)dim * sizeof(float));
    b->op->moe(b->q, &one);
    return memcmp(one.y, a->y, (size_t)dim * sizeof(float)) == 0 && one.y[0] != 0;
}

static void bench_moe(struct bench *b, int dim, int inter, int experts, int k)
{
    struct mat *w1 = take(b, sizeof(*w1) * (size_t)experts),
               *w3 = take(b, sizeof(*w3) * (size_t)experts);
    struct mat *w2 = take(b, sizeof(*w2) * (size_t)experts);
    struct mat s1 = matrix(b, inter, dim, DTYPE_BF16), s3 = matrix(b, inter, dim, DTYPE_BF16);
    struct mat s2 = matrix(b, dim, inter, DTYPE_BF16);
    int32_t *id = take(b, ROWS_MAX * (size_t)k * sizeof(*id));
    struct moe_args a = { .w1 = w1,
                          .w3 = w3,
                          .w2 = w2,
                          .s1 = &s1,
                          .s3 = &s3,
                          .s2 = &s2,
                          .id = id,
                          .x = values(b, ROWS_MAX * (size_t)dim),
                          .weight = values(b, ROWS_MAX * (size_t)k),
                          .y = take(b, ROWS_MAX * (size_t)dim * sizeof(float)),
                          .scratch =
                              take(b, ROWS_MAX * (size_t)((k + 1) * 2 * inter) * sizeof(float)),
                          .experts = experts,
                          .k = k,
                          .limit = 10 };
    char name[64];

    snprintf(name, sizeof(name), "moe %d of %d experts %d x %d", k, experts, inter, dim);
    for (int e = 0; e < experts; e++) {
        w1[e] = matrix(b, inter, dim, DTYPE_BF16);
        w3[e] = matrix(b, inter, dim, DTYPE_BF16);
        w2[e] = matrix(b, dim, inter, DTYPE_BF16);
    }
    for (int r = 0; r < ROWS_MAX; r++)
        for (int i = 0; i < k; i++)
            id[r * k + i] = i * experts / k + (r * 5 + i) % (experts / k);
    for (size_t i = 0; i < ROW_COUNTS; i++) {
        a.rows = row_counts[i];
        run_moe(b, &a);
        expect(b, name, moe_is_right(b, &a, dim));
        report(b, name, a.rows, seconds(b, run_moe, &a), 3.0 * a.rows * (k + 1) * inter * dim, 0);
    }
}

/* ---- attention and selection ---- */

static struct state_view state(struct bench *b, int cap, enum codec c, int cols)
{
    size_t row = (codec_bytes(c, cols) + 3) / 4 * 4;
    struct state_view v = { .base = take(b, (size_t)cap * row),
                            .slot_stride = (size_t)cap * row,
                            .row_bytes = row,
                            .cap = cap,
                            .codec = c,
                            .cols = cols };
    struct row_info *info = take(b, (size_t)cap * sizeof(*info));

    for (int p = 0; p < cap; p++)
        info[p].pos = p;
    b->op->row_put(b->q, &(struct row_put_args){ .x = values(b, (size_t)cap * (size_t)cols),
                                                 .view = v,
                                                 .info = info,
                                                 .rows = cap });
    return v;
}

static void run_attend(struct bench *b, const void *args)
{
    b->op->attend(b->q, args);
}

static int attend_is_right(struct bench *b, const struct attend_args *a)
{
    size_t row = (size_t)(a->heads * a->dim);
    struct attend_args one = *a;

    one.rows = 1;
    one.q += (size_t)(a->rows - 1) * row;
    one.info += a->rows - 1;
    one.sel += (a->rows - 1) * a->topk;
    one.o = take(b, row * sizeof(float));
    b->op->attend(b->q, &one);
    return memcmp(one.o, a->o + (size_t)(a->rows - 1) * row, row * sizeof(float)) == 0 &&
           one.o[0] != 0;
}

static void bench_attend(struct bench *b, int heads, int dim, int span, int topk)
{
    int pos = 1000, cap = 2048;
    size_t n = ROWS_MAX * (size_t)(heads * dim);
    struct row_info *info = take(b, ROWS_MAX * sizeof(*info));
    int32_t *sel = take(b, ROWS_MAX * (size_t)topk * sizeof(*sel));
    struct attend_args a = { .q = values(b, n),
                             .sink = values(b, (size_t)heads),
                             .win = state(b, cap, CODEC_QW, dim),
                             .more = state(b, cap, CODEC_QC, dim),
                             .info = info,
                             .sel = sel,
                             .o = take(b, n * sizeof(float)),
                             .scratch = take(b, attend_scratch(dim, span, 0, topk) * sizeof(float)),
                             .heads = heads,
                             .dim = dim,
                             .span = span,
                             .topk = topk,
                             .scale = 1 / sqrtf((float)dim) };
    char name[64];

    snprintf(name, sizeof(name), "attend %d x %d, %d + %d keys", heads, dim, span, topk);
    for (int r = 0; r < ROWS_MAX; r++) {
        info[r] = (struct row_info){ .pos = pos + r };
        for (int i = 0; i < topk; i++)
            sel[r * topk + i] = i * (pos / topk) + r;
    }
    for (size_t i = 0; i < ROW_COUNTS; i++) {
        a.rows = row_counts[i];
        run_attend(b, &a);
        expect(b, name, attend_is_right(b, &a));
        report(b, name, a.rows, seconds(b, run_attend, &a),
               2.0 * a.rows * heads * dim * (span + topk), 0);
    }
}

static void run_select(struct bench *b, const void *args)
{
    b->op->select(b->q, args);
}

static int select_is_right(struct bench *b, const struct select_args *a, int n)
{
    int32_t *sel = a->sel + (a->rows - 1) * a->topk;
    struct select_args one = *a;
    int ok = sel[a->topk - 1] >= 0 && sel[a->topk - 1] < n + ROWS_MAX;

    for (int i = 1; i < a->topk; i++)
        ok &= sel[i] > sel[i - 1];
    one.rows = 1;
    one.q += (a->rows - 1) * a->heads * a->dim;
    one.wt += (a->rows - 1) * a->heads;
    one.info += a->rows - 1;
    one.sel = take(b, (size_t)a->topk * sizeof(*sel));
    b->op->select(b->q, &one);
    return ok && memcmp(one.sel, sel, (size_t)a->topk * sizeof(*sel)) == 0;
}

static void bench_select(struct bench *b, int heads, int dim, int n, int topk)
{
    int cap = n + ROWS_MAX;
    struct row_info *info = take(b, ROWS_MAX * sizeof(*info));
    struct select_args a = { .q = values(b, ROWS_MAX * (size_t)(heads * dim)),
                             .wt = values(b, ROWS_MAX * (size_t)heads),
                             .keys = state(b, cap, CODEC_QI, dim),
                             .info = info,
                             .sel = take(b, ROWS_MAX * (size_t)topk * sizeof(int32_t)),
                             .scratch = take(b, (size_t)cap * sizeof(float)),
                             .heads = heads,
                             .dim = dim,
                             .ratio = 1,
                             .topk = topk,
                             .scale = 1.0f / 64 };
    char name[64];

    snprintf(name, sizeof(name), "select %d of %d, %d x %d", topk, n, heads, dim);
    for (int r = 0; r < ROWS_MAX; r++)
        info[r] = (struct row_info){ .pos = n - 1 + r };
    for (size_t i = 0; i < ROW_COUNTS; i++) {
        a.rows = row_counts[i];
        run_select(b, &a);
        expect(b, name, select_is_right(b, &a, n));
        report(b, name, a.rows, seconds(b, run_select, &a), 1.0 * a.rows * heads * dim * n, 0);
    }
}

/* ---- choices ---- */

static void run_best(struct bench *b, const void *args)
{
    b->op->best(b->q, args);
}

static void bench_best(struct bench *b, int cols, int k)
{
    struct best_args a = { .logits = values(b, ROWS_MAX * (size_t)cols),
                           .cand = take(b, ROWS_MAX * (size_t)k * sizeof(struct candidate)),
                           .cols = cols,
                           .k = k };

    for (size_t i = 0; i < ROW_COUNTS; i += 3) {
        int ok = 1;

        a.rows = row_counts[i];
        run_best(b, &a);
        for (int c = 1; c < k; c++)
            ok &= a.cand[c - 1].z > a.cand[c].z ||
                  (a.cand[c - 1].z == a.cand[c].z && a.cand[c - 1].id < a.cand[c].id);
        expect(b, "best", ok);
        printf("best %d of %-22d %2d rows %9.1f us\n", k, cols, a.rows,
               1e6 * seconds(b, run_best, &a));
    }
}

static void run_choose(struct bench *b, const void *args)
{
    b->op->choose(b->q, args);
}

static void bench_choose(struct bench *b, int vocab, const char *name, struct sampler s)
{
    struct row_info *info = take(b, ROWS_MAX * sizeof(*info));
    float *z = values(b, 6 * (size_t)vocab);
    struct choose_args a = { .full = z,
                             .sampler = &s,
                             .info = info,
                             .choice = take(b, ROWS_MAX * sizeof(int32_t)),
                             .scratch = take(b, choose_scratch((size_t)vocab)),
                             .width = { vocab },
                             .ranks = 1,
                             .rows = 6,
                             .ldf = vocab };

    for (int i = 0; i < 6 * vocab; i++)
        z[i] *= 12;
    for (int r = 0; r < 6; r++)
        info[r].pos = r;
    printf("choose %-14s of %-11d  6 rows %9.1f us\n", name, vocab,
           1e6 * seconds(b, run_choose, &a));
}

static void drop_blocks(struct bench *b)
{
    while (b->blocks > 0)
        b->d->ops->free(b->d, b->block[--b->blocks]);
}

int main(void)
{
    const struct backend_ops *ops;
    struct bench b = { .seed = 1 };

    if (backend_find("ref", &ops) < 0 || ops->open(0, 1, &b.d) < 0 ||
        ops->queue_open(b.d, &b.q) < 0)
        return 1;
    b.op = ops->op;
    measure_ceiling(&b);
    bench_matmul(&b, 128, 256, DTYPE_BF16, "bf16");
    bench_matmul(&b, 512, 128, DTYPE_BF16, "bf16");
    bench_matmul(&b, 512, 128, DTYPE_F32, "f32");
    bench_matmul(&b, 512, 128, DTYPE_F16, "f16");
    bench_matmul(&b, 2048, 256, DTYPE_BF16, "bf16");
    bench_matmul(&b, 4096, 2048, DTYPE_BF16, "bf16");
    drop_blocks(&b);
    bench_moe(&b, 256, 64, 6, 3);
    bench_moe(&b, 2048, 512, 16, 4);
    drop_blocks(&b);
    bench_attend(&b, 2, 128, 64, 32);
    bench_attend(&b, 16, 512, 128, 512);
    drop_blocks(&b);
    bench_select(&b, 4, 128, 1000, 32);
    bench_select(&b, 32, 128, 4000, 512);
    drop_blocks(&b);
    bench_best(&b, 2048, 1);
    bench_best(&b, 2048, 64);
    bench_best(&b, 2048, 1024);
    bench_choose(&b, 4096, "draw", (struct sampler){ .temperature = 1, .seed = 1 });
    bench_choose(&b, 4096, "top-p", (struct sampler){ .temperature = 1, .top_p = 0.9, .seed = 1 });
    bench_choose(&b, 129280, "draw", (struct sampler){ .temperature = 1, .seed = 1 });
    bench_choose(&b, 129280, "top-p",
                 (struct sampler){ .temperature = 1, .top_p = 0.9, .seed = 1 });
    bench_choose(&b, 129280, "top-k 40",
                 (struct sampler){ .temperature = 1, .top_k = 40, .seed = 1 });
    drop_blocks(&b);
    ops->queue_close(b.q);
    ops->close(b.d);
    return b.wrong != 0;
}
