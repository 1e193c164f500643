/* cmd_bench_device.c owns what is measured of one rank's device: whole windows by their rows, each
 * op inside one, each op alone with cold caches, and prompts that come in one chunk.
 *
 * The model, its weights and its rows are those of the config. With several ranks it is the first
 * one's device, alone: nobody is there to exchange with, so a sum is a rounding and what comes out
 * of no meaning. Windows follow a prompt of made-up ids and are never committed.
 */
#include "kernels/backend.h"
#include "src/base/clock.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/sort.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/model/slot.h"
#include "src/model/window.h"
#include "src/rank/calls.h"
#include "src/rank/cold.h"
#include "src/rank/commands.h"
#include "src/rank/job.h"
#include "src/rank/rank.h"
#include "src/verify/accept.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT 1600 /* tokens before a window, where the context has room: full selections */
#define CALLS_MAX 8192
#define TAIL (2 * WINDOW_MAX)
#define WINDOWS 20 /* of which a median is taken */

static const int rows_of[] = { 1, 2, 3, 4, 5, 6, 7, 8, 16 };
#define ROWS ((int)(sizeof(rows_of) / sizeof(rows_of[0])))
static const int inside_of[] = { 1, 4, 16 }; /* rows of the windows whose ops are listed */
#define INSIDE ((int)(sizeof(inside_of) / sizeof(inside_of[0])))
static const int prompts_of[] = { 512, 2048, 4096 };
#define PROMPTS ((int)(sizeof(prompts_of) / sizeof(prompts_of[0])))
#define CHUNKS 3 /* of a prompt, of which a median is taken */

/* Calls of one op and shape in a window. */
struct line {
    const struct call *call;
    int at, calls; /* the first one; how many */
    double us;     /* of all */
    double bytes, weights;
    double plain_us, blas_us; /* of the same products done otherwise, 0: not done */
};

struct bench {
    struct job job;
    struct options *o;
    struct rounds *r;
    struct rank *k;
    struct calls *calls;
    struct json_writer json;
    double decode; /* weights a ns of the product that decodes fastest; 0: not known */
    struct cold cold;
    int64_t forward, choose; /* median ns of the window that ran last */
    /* of the pass that was recorded last */
    struct line line[CALLS_MAX];
    double ns[CALLS_MAX];
    int64_t one[CALLS_MAX]; /* ns of its calls in one turn */
};

static int by_us(const void *a, const void *b)
{
    double x = ((const struct line *)a)->us, y = ((const struct line *)b)->us;

    return (x < y) - (x > y);
}

static int64_t median(int64_t *ns, int n)
{
    sort_i64(ns, (size_t)n);
    return ns[n / 2];
}

static bool captures(const struct bench *b)
{
    return b->k->cfg.graphs != GRAPHS_OFF && b->k->dev->ops->caps & BACKEND_GRAPHS;
}

/* ---- a window -------------------------------------------------------------------------------- */

static void make_ids(const struct bench *b, int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((int64_t)i * 7919 % b->k->model->vocab);
}

/* A prompt of which all but the tail has run: windows of up to WINDOW_MAX rows follow it. */
static int admit(struct bench *b)
{
    int context = b->k->bounds.context, n = PROMPT + TAIL < context ? PROMPT + TAIL : context, err;
    int32_t *ids = malloc((size_t)n * sizeof(*ids));
    struct plan_admit a = { .n = n, .flags = ADMIT_DRAFT, .ids = ids };
    struct plan_span s = { 0 };

    if (!ids)
        return fail(-ENOMEM, "bench: no memory for a prompt");
    make_ids(b, ids, n);
    err = order_admit(b->r, &a);
    for (; s.start < n - TAIL && err == 0; s.start = s.end) {
        s.end = s.start + b->k->bounds.prefill_chunk;
        s.end = s.end < n - TAIL ? s.end : n - TAIL;
        err = order_fill(b->r, &s);
    }
    free(ids);
    return err;
}

/* Stages a window of so many rows and runs it as rounds do. */
static int time_window(struct bench *b, int rows)
{
    int64_t f[WINDOWS], c[WINDOWS], ns;
    int err = 0;

    for (int i = -2; i < WINDOWS && err == 0; i++) {
        const int64_t *s = b->k->win->stamp;

        err = order_calibrate(b->r, &(struct plan_calibrate){ .slots = 1, .rows = rows }, &ns);
        f[i < 0 ? 0 : i] = s[STAMP_FORWARD] - s[STAMP_BEGIN];
        c[i < 0 ? 0 : i] = s[STAMP_CHOSEN] - s[STAMP_FORWARD];
    }
    if (err == 0) {
        b->forward = median(f, WINDOWS);
        b->choose = median(c, WINDOWS);
    }
    return err;
}

static int pass_of(struct bench *b, int64_t *out)
{
    int64_t ns[WINDOWS] = { 0 };
    int err = 0;

    *out = 0;
    if (!(b->k->drafter->ops->caps & DRAFTER_DEVICE))
        return 0;
    for (int i = -2; i < WINDOWS && err == 0; i++)
        err = order_calibrate(b->r, &(struct plan_calibrate){ .slots = 1, .flags = CALIBRATE_PASS },
                              &ns[i < 0 ? 0 : i]);
    *out = median(ns, WINDOWS);
    return err;
}

/* The window that was staged last, op by op. */
static void queue_pass(struct bench *b)
{
    struct rank *k = b->k;

    k->arena.used = 0;
    window_send(&k->x, k->pool, k->win);
    k->model->ops->forward(k->model, &k->x, k->pool, k->win);
    accept_window(k->acc, &k->x, k->win);
}

/* How many nodes a graph of the pass has; 0 where there are none. */
static int nodes_of(struct bench *b, int *nodes)
{
    const struct backend_ops *ops = b->k->dev->ops;
    struct graph *g = NULL;
    int err;

    *nodes = 0;
    if (!captures(b))
        return 0;
    err = ops->graph_begin(b->k->q);
    if (err < 0)
        return err;
    queue_pass(b);
    err = ops->graph_end(b->k->q, &g);
    *nodes = b->k->q->nodes;
    ops->graph_close(g);
    return err;
}

/* Median ns of the window as window_of has it, captured without overlap; 0 without graphs. */
static int apart_of(struct bench *b, int64_t *out)
{
    const struct backend_ops *ops = b->k->dev->ops;
    struct rank *k = b->k;
    bool before = k->dev->overlap;
    int64_t ns[WINDOWS], h[2];
    struct graph *g = NULL;
    int err;

    *out = 0;
    if (!captures(b))
        return 0;
    err = ops->graph_begin(k->q);
    if (err < 0)
        return err;
    k->dev->overlap = false;
    k->arena.used = 0;
    ops->op->stamp(k->q, &(struct stamp_args){ .at = b->cold.at, .name = "begin" });
    window_send(&k->x, k->pool, k->win);
    k->model->ops->forward(k->model, &k->x, k->pool, k->win);
    ops->op->stamp(k->q, &(struct stamp_args){ .at = b->cold.at + 1, .name = "forward" });
    k->dev->overlap = before;
    err = ops->graph_end(k->q, &g);
    for (int i = -2; i < WINDOWS && err == 0; i++) {
        ops->graph_launch(k->q, g);
        ops->get(k->q, h, b->cold.at, sizeof(h));
        err = ops->wait(k->q);
        ns[i < 0 ? 0 : i] = h[1] - h[0];
    }
    if (err == 0)
        *out = median(ns, WINDOWS);
    ops->graph_close(g);
    return err;
}

/* The pass one op behind the other. */
static void queue_calls(struct bench *b)
{
    bool before = b->k->x.side;

    b->k->x.side = false;
    queue_pass(b);
    b->k->x.side = before;
    calls_end(b->calls);
}

/* A window of so many rows: its times, and in b->calls what it asks of the device. */
static int window_of(struct bench *b, int rows)
{
    int err = time_window(b, rows);

    if (err < 0)
        return err;
    calls_record(b->calls);
    queue_calls(b);
    return calls_settle(b->calls);
}

/* In b->ns, mean ns of each call inside the pass, less what a note of the clock takes. */
static int inside(struct bench *b)
{
    const struct backend_ops *ops = b->k->dev->ops;
    struct queue *q = b->k->q;
    struct graph *g = NULL;
    int n = calls_count(b->calls), err = 0;

    memset(b->ns, 0, (size_t)n * sizeof(*b->ns));
    if (captures(b)) {
        err = ops->graph_begin(q);
        if (err == 0) {
            calls_stamp(b->calls);
            queue_calls(b);
            err = ops->graph_end(q, &g);
        }
    }
    for (int i = -1; i < WINDOWS && err == 0; i++) {
        if (g) {
            ops->graph_launch(q, g);
        } else {
            calls_stamp(b->calls);
            queue_calls(b);
        }
        err = calls_times(b->calls, b->one);
        for (int c = 0; c < n && i >= 0; c++)
            b->ns[c] += (double)(b->one[c] - b->cold.stamp_ns) / WINDOWS;
    }
    ops->graph_close(g);
    return err;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* In b->line, calls by op and shape; ns NULL: none. Returns how many lines. */
static int gather(struct bench *b, const double *ns)
{
    struct line *line = b->line;
    int n = 0;

    for (int i = 0; i < calls_count(b->calls); i++) {
        const struct call *c = calls_at(b->calls, i);
        int l = 0;

        while (l < n && (strcmp(line[l].call->op, c->op) || strcmp(line[l].call->what, c->what)))
            l++;
        if (l == n)
            line[n++] = (struct line){ .call = c, .at = i };
        line[l].calls++;
        line[l].us += ns ? ns[i] / 1e3 : 0;
        line[l].bytes += c->bytes;
        line[l].weights += c->weights;
    }
    return n;
}

/* Share of the limit: the larger of bytes at the measured rate and weights as fast as they were
 * ever decoded. */
static double limit_share(const struct bench *b, double us, double bytes, double weights)
{
    double ns = bytes / b->cold.copy_gbps, work = b->decode > 0 ? weights / b->decode : 0;

    return us > 0 ? (work > ns ? work : ns) / us / 1e3 : 0;
}

/* us, or that there is none. */
static const char *beside_text(char (*text)[16], double us)
{
    snprintf(*text, sizeof(*text), us > 0 ? "%.1f" : "-", us);
    return *text;
}

static void put_line(struct bench *b, int rows, const struct line *l, double us, double bytes,
                     double weights)
{
    struct json_writer *w = &b->json;
    double rate = us > 0 ? bytes / us / 1e3 : 0;
    char plain[16], blas[16];

    json_begin_object(w, NULL);
    json_put_str(w, "op", l->call->op);
    json_put_str(w, "what", l->call->what);
    json_put_int(w, "rows", rows);
    json_put_int(w, "calls", l->calls);
    json_put_f64(w, "us", us);
    json_put_f64(w, "bytes", bytes);
    json_put_f64(w, "weights", weights);
    if (l->plain_us > 0)
        json_put_f64(w, "plain_us", l->plain_us);
    if (l->blas_us > 0)
        json_put_f64(w, "blas_us", l->blas_us);
    json_end_object(w);
    if (!b->o->json)
        printf("%-12s %-40s %4d %4d %10.2f %12.3f %9.1f %7.1f%% %7.1f%% %8s %8s\n", l->call->op,
               l->call->what, rows, l->calls, us, bytes / 1e6, rate, 100 * rate / b->cold.copy_gbps,
               100 * limit_share(b, us, bytes, weights), beside_text(&plain, l->plain_us),
               beside_text(&blas, l->blas_us));
}

static void head(const struct bench *b, const char *what)
{
    if (!b->o->json)
        printf("\n%s\n%-12s %-40s %4s %4s %10s %12s %9s %8s %8s %8s %8s\n", what, "op", "shape",
               "rows", "n", "us", "MB", "GB/s", "of copy", "of limit", "plain us", "bf16 us");
}

/* ---- windows --------------------------------------------------------------------------------- */

static double pass_bytes(const struct bench *b)
{
    double sum = 0;

    for (int i = 0; i < calls_count(b->calls); i++)
        sum += calls_at(b->calls, i)->bytes;
    return sum;
}

/* Share of a window that takes window_ns in which nothing runs, of ops that take us one after the
 * other: it may take less than these, because they overlap there. */
static double idle_share(double us, int64_t window_ns)
{
    return us * 1e3 < (double)window_ns ? 1 - us * 1e3 / (double)window_ns : 0;
}

/* What the ops of the window take one after the other. */
static void put_sum(struct bench *b, int rows, double us)
{
    double window = (double)b->forward / 1e3, idle = idle_share(us, b->forward);

    json_begin_object(&b->json, NULL);
    json_put_str(&b->json, "op", "all");
    json_put_int(&b->json, "rows", rows);
    json_put_int(&b->json, "calls", calls_count(b->calls));
    json_put_f64(&b->json, "us", us);
    json_put_f64(&b->json, "window_us", window);
    json_put_f64(&b->json, "idle", idle);
    json_end_object(&b->json);
    if (!b->o->json)
        printf("%d calls, %.1f us one after the other; the window takes %.1f, and in %.1f%% of it "
               "nothing runs; a note of the clock takes %.2f us and is taken off\n",
               calls_count(b->calls), us, window, 100 * idle, (double)b->cold.stamp_ns / 1e3);
}

static int inside_table(struct bench *b, int rows)
{
    const struct line *line = b->line;
    double sum = 0;
    int n, err = inside(b);

    if (err < 0)
        return err;
    n = gather(b, b->ns);
    qsort(b->line, (size_t)n, sizeof(*b->line), by_us);
    head(b, "inside the window, all calls of a shape together");
    for (int i = 0; i < n; i++) {
        put_line(b, rows, &line[i], line[i].us, line[i].bytes, line[i].weights);
        sum += line[i].us;
    }
    put_sum(b, rows, sum);
    return 0;
}

/* Different experts that a layer's rows went to, on average. */
static double pass_experts(const struct bench *b)
{
    double sum = 0;
    int layers = 0;

    for (int i = 0; i < calls_count(b->calls); i++) {
        sum += calls_at(b->calls, i)->chosen;
        layers += calls_at(b->calls, i)->moe;
    }
    return layers > 0 ? sum / layers : 0;
}

/* us that the ops of the recorded pass take inside it, one after the other. */
static int sum_of(struct bench *b, double *us)
{
    int err = inside(b);

    *us = 0;
    for (int i = 0; i < calls_count(b->calls) && err == 0; i++)
        *us += b->ns[i] / 1e3;
    return err;
}

static int windows(struct bench *b)
{
    int64_t pass, apart = 0, one = 0;
    int err = pass_of(b, &pass), nodes = 0, at_most = b->k->bounds.window_max;
    double us = 0, idle, bytes, experts, floor_ms;

    json_put_f64(&b->json, "pass_us", (double)pass / 1e3);
    json_begin_array(&b->json, "windows");
    if (!b->o->json)
        printf("draft pass %.3f ms (with its launch and wait)\n%4s %10s %10s %10s %8s %8s %7s "
               "%10s %8s %10s %8s\n",
               (double)pass / 1e6, "rows", "window ms", "apart ms", "choose ms", "of one", "nodes",
               "idle", "MB read", "experts", "floor ms", "share");
    for (int i = 0; i < ROWS && rows_of[i] <= at_most && err == 0; i++) {
        err = window_of(b, rows_of[i]);
        bytes = pass_bytes(b);
        experts = pass_experts(b);
        if (err == 0)
            err = nodes_of(b, &nodes);
        if (err == 0)
            err = apart_of(b, &apart);
        if (err == 0)
            err = sum_of(b, &us);
        if (err < 0)
            break;
        idle = idle_share(us, b->forward);
        one = i == 0 ? b->forward : one;
        floor_ms = bytes / b->cold.copy_gbps / 1e6;
        json_begin_object(&b->json, NULL);
        json_put_int(&b->json, "rows", rows_of[i]);
        json_put_f64(&b->json, "window_us", (double)b->forward / 1e3);
        json_put_f64(&b->json, "apart_us", (double)apart / 1e3);
        json_put_f64(&b->json, "choose_us", (double)b->choose / 1e3);
        json_put_int(&b->json, "nodes", nodes);
        json_put_f64(&b->json, "idle", idle);
        json_put_f64(&b->json, "bytes", bytes);
        json_put_f64(&b->json, "experts", experts);
        json_end_object(&b->json);
        if (!b->o->json)
            printf("%4d %10.3f %10.3f %10.3f %8.2f %8d %6.1f%% %10.1f %8.1f %10.3f %7.1f%%\n",
                   rows_of[i], (double)b->forward / 1e6, (double)apart / 1e6,
                   (double)b->choose / 1e6, (double)b->forward / (double)one, nodes, 100 * idle,
                   bytes / 1e6, experts, floor_ms, 100e6 * floor_ms / (double)b->forward);
    }
    json_end_array(&b->json);
    json_begin_array(&b->json, "inside");
    for (int i = 0; i < INSIDE && inside_of[i] <= at_most && err == 0; i++) {
        err = window_of(b, inside_of[i]);
        if (err == 0)
            err = inside_table(b, inside_of[i]);
    }
    json_end_array(&b->json);
    return err;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* The first rows of another prompt, in one chunk; what it takes with launches and wait. */
static int chunk_of(struct bench *b, int32_t *ids, int rows, int64_t *ns)
{
    struct plan_admit a = { .n = rows + 1, .ids = ids };
    struct plan_span s = { .end = rows };
    int err = order_release(b->r, 0);
    int64_t begin;

    make_ids(b, ids, rows + 1);
    if (err == 0)
        err = order_admit(b->r, &a);
    begin = clock_ns();
    if (err == 0)
        err = order_fill(b->r, &s);
    *ns = clock_ns() - begin;
    return err;
}

static bool dense(const struct call *c)
{
    return strcmp(c->op, "matmul") == 0 || strcmp(c->op, "matmuls") == 0;
}

/* Where the time of a chunk goes, and the rate of the dense products. */
static int chunk_inside(struct bench *b, int32_t *ids, int rows, int *lines, double *dense_us,
                        double *tflops)
{
    int64_t whole;
    double products = 0;
    int err;

    calls_stamp(b->calls);
    err = chunk_of(b, ids, rows, &whole);
    calls_end(b->calls);
    if (err == 0)
        err = calls_times(b->calls, b->one);
    for (int i = 0; err == 0 && i < calls_count(b->calls); i++)
        b->ns[i] = (double)(b->one[i] - b->cold.stamp_ns);
    if (err == 0) {
        calls_record(b->calls);
        err = chunk_of(b, ids, rows, &whole);
        calls_end(b->calls);
    }
    if (err == 0)
        err = calls_settle(b->calls);
    *dense_us = 0;
    for (int i = 0; err == 0 && i < calls_count(b->calls); i++)
        if (dense(calls_at(b->calls, i))) {
            *dense_us += b->ns[i] / 1e3;
            products += calls_at(b->calls, i)->weights * rows;
        }
    *lines = err == 0 ? gather(b, b->ns) : 0;
    qsort(b->line, (size_t)*lines, sizeof(*b->line), by_us);
    *tflops = *dense_us > 0 ? 2 * products / *dense_us / 1e6 : 0;
    return err;
}

/* Prompts that come in one chunk each, as far as the config's chunks and context go. */
static int prompts(struct bench *b)
{
    int most = b->k->bounds.prefill_chunk < b->k->bounds.context ? b->k->bounds.prefill_chunk
                                                                 : b->k->bounds.context - 1;
    int32_t *ids = malloc(((size_t)most + 1) * sizeof(*ids));
    const struct line *line = b->line;
    int err = ids ? 0 : fail(-ENOMEM, "bench: no memory"), lines = 0, rows = 0;
    double most_tflops = 0;

    if (err == 0 && !b->cold.blas)
        err = cold_find_blas(&b->cold);
    if (err == 0)
        err = cold_matrix_rate(&b->cold, &most_tflops);
    err = err > 0 ? 0 : err;
    json_put_f64(&b->json, "matrix_tflops", most_tflops);
    json_begin_array(&b->json, "prompts");
    if (!b->o->json && most_tflops > 0)
        printf("\na large bf16 product of cuBLAS runs at %.0f TFLOP/s", most_tflops);
    if (!b->o->json)
        printf("\n%4s %10s %10s %10s %16s %8s\n", "rows", "prompt ms", "tok/s", "dense ms",
               "dense TFLOP/s", "share");
    for (int i = 0; i < PROMPTS && prompts_of[i] <= most && err == 0; i++) {
        int64_t ns[CHUNKS], one;
        double dense_us, tflops;

        rows = prompts_of[i];
        err = chunk_of(b, ids, rows, &one);
        for (int c = 0; c < CHUNKS && err == 0; c++)
            err = chunk_of(b, ids, rows, &ns[c]);
        if (err == 0)
            err = chunk_inside(b, ids, rows, &lines, &dense_us, &tflops);
        if (err < 0)
            break;
        one = median(ns, CHUNKS);
        json_begin_object(&b->json, NULL);
        json_put_int(&b->json, "rows", rows);
        json_put_f64(&b->json, "prompt_us", (double)one / 1e3);
        json_put_f64(&b->json, "dense_us", dense_us);
        json_put_f64(&b->json, "dense_tflops", tflops);
        json_end_object(&b->json);
        if (!b->o->json)
            printf("%4d %10.3f %10.0f %10.3f %16.1f %7.1f%%\n", rows, (double)one / 1e6,
                   1e9 * rows / (double)one, dense_us / 1e3, tflops,
                   most_tflops > 0 ? 100 * tflops / most_tflops : 0);
    }
    json_end_array(&b->json);
    json_begin_array(&b->json, "inside_prompt");
    if (lines > 0)
        head(b, "inside the last prompt, all calls of a shape together");
    for (int l = 0; l < lines && err == 0; l++)
        put_line(b, rows, &line[l], line[l].us, line[l].bytes, line[l].weights);
    json_end_array(&b->json);
    free(ids);
    return err;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* The product of the recorded pass that decodes the most weights a ns. */
static int find_decode(struct bench *b)
{
    const struct line *line = b->line;
    int n = gather(b, NULL), err = 0;
    double us;

    for (int l = 0; l < n && err == 0; l++) {
        const struct call *c = line[l].call;

        if (!c->bits2 || c->moe)
            continue;
        err = cold_time(&b->cold, line[l].at, &us);
        if (err == 0 && c->weights / us / 1e3 > b->decode)
            b->decode = c->weights / us / 1e3;
    }
    return err;
}

static int kernels(struct bench *b)
{
    struct line *line = b->line;
    double us;
    int err = cold_find_blas(&b->cold);

    if (err == 0)
        err = window_of(b, 1);
    if (err == 0)
        err = find_decode(b);
    json_put_f64(&b->json, "decode_gweights_s", b->decode);
    head(b, "each op alone, cold");
    json_begin_array(&b->json, "kernels");
    for (int i = 0; i < ROWS && err == 0; i++) {
        int rows = rows_of[i], n;

        if (rows > b->k->bounds.window_max || rows == 5 || rows == 7)
            continue;
        err = window_of(b, rows);
        n = err == 0 ? gather(b, NULL) : 0;
        for (int l = 0; l < n && err == 0; l++) {
            err = cold_time(&b->cold, line[l].at, &us);
            if (err == 0)
                err = cold_plain(&b->cold, line[l].at, &line[l].plain_us);
            if (err >= 0)
                err = cold_blas(&b->cold, line[l].at, &line[l].blas_us);
            err = err > 0 ? 0 : err; /* there is none */
            if (err == 0)
                put_line(b, rows, &line[l], us, line[l].call->bytes, line[l].call->weights);
        }
    }
    json_end_array(&b->json);
    if (!b->o->json)
        printf("plain us: a warp has two tiles of outputs and all inputs; bf16 us: %s\n",
               b->cold.blas ? "cuBLAS, where what is spilled has room for weights of 16 bits"
                            : b->cold.why);
    return err;
}

/* Call l of the window once, as a graph of its own with the name "alone" where the backend has
 * graphs. */
static int once(struct bench *b, const struct line *l, int *count)
{
    const struct backend_ops *ops = b->k->dev->ops;
    struct queue *q = b->k->q;
    struct graph *g = NULL;
    int err;

    calls_until(b->calls, l->at);
    err = captures(b) ? ops->graph_begin(q) : 0;
    if (err < 0)
        return err;
    ops->op->stamp(q, &(struct stamp_args){ .at = b->cold.at, .name = "alone" });
    calls_again(b->calls, l->at);
    if (captures(b))
        err = ops->graph_end(q, &g);
    *count = g ? q->nodes - 1 : 0;
    if (g)
        ops->graph_launch(q, g);
    if (err == 0)
        err = ops->wait(q);
    ops->graph_close(g);
    return err;
}

/* Each op of a one-row window that reads weights or states, once: a profiler can look at these and
 * at nothing else, and finds in `kernels` how many are whose, behind a note of the clock. */
static int profiled(struct bench *b)
{
    const struct line *line = b->line;
    int err = window_of(b, 1), n = 0, count;

    if (err == 0)
        n = gather(b, NULL);
    json_begin_array(&b->json, "alone");
    for (int l = 0; l < n && err == 0; l++) {
        if (line[l].bytes <= 0)
            continue;
        err = once(b, &line[l], &count);
        if (err < 0)
            break;
        json_begin_object(&b->json, NULL);
        json_put_str(&b->json, "op", line[l].call->op);
        json_put_str(&b->json, "what", line[l].call->what);
        json_put_int(&b->json, "calls", line[l].calls);
        json_put_int(&b->json, "kernels", count);
        json_end_object(&b->json);
        if (!b->o->json)
            printf("%-12s %-40s %4d calls, %d kernels\n", line[l].call->op, line[l].call->what,
                   line[l].calls, count);
    }
    json_end_array(&b->json);
    return err;
}

static int measure(struct bench *b)
{
    int err = admit(b);

    if (err == 0)
        err = cold_open(b->k->q, b->calls, captures(b), &b->cold);
    if (err == 0) {
        json_put_f64(&b->json, "copy_gbps", b->cold.copy_gbps);
        json_put_f64(&b->json, "stamp_us", (double)b->cold.stamp_ns / 1e3);
        if (!b->o->json)
            printf("a copy reads and writes %.0f GB/s\n", b->cold.copy_gbps);
    }
    if (err == 0 && b->o->kernels)
        err = kernels(b);
    if (err == 0 && b->o->profile)
        err = profiled(b);
    if (err == 0 && b->o->windows)
        err = windows(b);
    if (err == 0 && b->o->windows)
        err = prompts(b);
    cold_close(&b->cold);
    return err;
}

static int lead_bench(struct job *j, struct lead *l)
{
    struct bench *b = (struct bench *)j;
    int err;

    b->r = lead_round(l);
    b->k = b->r->k;
    err = calls_open(&b->k->x, CALLS_MAX, &b->calls);
    if (err < 0)
        return CODE_RESOURCE;
    json_writer_init(&b->json);
    json_begin_object(&b->json, NULL);
    json_put_str(&b->json, "model", b->k->cfg.model);
    json_put_str(&b->json, "backend", b->k->dev->ops->name);
    json_put_str(&b->json, "device", b->k->dev->name);
    json_put_int(&b->json, "ranks", b->k->cfg.ranks);
    err = measure(b);
    if (err == 0)
        err = order_release(b->r, 0);
    json_end_object(&b->json);
    if (err == 0 && b->o->json)
        err = json_write_line(&b->json, stdout);
    json_writer_free(&b->json);
    calls_close(b->calls);
    return job_code(l, err);
}

static int prepare(struct job *j, struct rank *k)
{
    if (k->bounds.context > TAIL)
        return CODE_DONE;
    fail(-EINVAL, "bench: a context of %d, want more than %d", k->bounds.context, TAIL);
    return CODE_CONFIG;
}

int cmd_bench_device(struct options *o)
{
    struct bench *b;
    int code;

    if (o->cfg.rank != 0) {
        fail(-EINVAL, "bench: --window, --kernels and --profile measure rank 0, alone; rank is %d",
             o->cfg.rank);
        return CODE_USAGE;
    }
    b = calloc(1, sizeof(*b));
    if (!b) {
        fail(-ENOMEM, "bench: no memory");
        return CODE_RESOURCE;
    }
    b->job = (struct job){ .prepare = prepare, .lead = lead_bench, .alone = true };
    b->o = o;
    code = job_run(&b->job, &o->cfg);
    free(b);
    return code;
}
