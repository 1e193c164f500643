/* A short table of op times on the device at the sizes of one of two ranks of V4.1: medians of
 * captured launches, weights from several copies in turn so that the cache does not hold them.
 *
 *   bench [-m] [file]    the table as JSON lines too; -m: as on a device with little shared memory
 */
#include "tests/device/lab.h"

#include "kernels/exchange.h"
#include "src/base/clock.h"
#include "src/base/sort.h"
#include "tests/device/parts.h"

#define COPIES 4
#define REPEATS 9
#define INNER 8

static struct lab lab;
static FILE *json;

struct shape {
    const char *name;
    int rows, n, k; /* rows of the window; what the op is about */
    size_t bytes;   /* read by one call, at least */
};

struct bench {
    const struct shape *s;
    const struct backend_ops *b;
    struct queue *q;
    void *w[COPIES], *x, *y, *info, *scratch, *more, *keys, *heads, *sel;
    int turn;
};

typedef void bench_fn(struct bench *b);

static void *filled(struct bench *b, size_t bytes)
{
    size_t part = bytes < (4 << 20) ? bytes : (4 << 20);
    float *v = malloc(part + sizeof(float));
    void *p;

    for (size_t i = 0; i < part / sizeof(float); i++)
        v[i] = f32_from_bits(f32_bits(lab_uniform(&lab)) & 0xbfffbfffu);
    if (b->b->alloc(lab.dev, bytes, &p) < 0)
        exit(1);
    for (size_t at = 0; at < bytes; at += part)
        b->b->put(b->q, (char *)p + at, v, bytes - at < part ? bytes - at : part);
    b->b->wait(b->q);
    free(v);
    return p;
}

static void measure(struct bench *b, bench_fn *fn)
{
    struct graph *g = NULL;
    double us[REPEATS];

    if (b->b->graph_begin(b->q) < 0)
        exit(1);
    for (int i = 0; i < INNER; i++)
        fn(b);
    if (b->b->graph_end(b->q, &g) < 0) {
        lab_fail(&lab, "%s: no graph", b->s->name);
        return;
    }
    b->b->graph_launch(b->q, g);
    b->b->wait(b->q);
    for (int r = 0; r < REPEATS; r++) {
        int64_t start = clock_ns();

        b->b->graph_launch(b->q, g);
        if (b->b->wait(b->q) < 0)
            lab_fail(&lab, "%s", b->s->name);
        us[r] = (double)(clock_ns() - start) / NS_PER_US / INNER;
    }
    sort_f64(us, REPEATS);
    printf("%-34s rows %3d %9.2f us %8.1f GB/s\n", b->s->name, b->s->rows, us[REPEATS / 2],
           (double)b->s->bytes / us[REPEATS / 2] / 1e3);
    if (json)
        fprintf(
            json,
            "{\"op\": \"%s\", \"rows\": %d, \"us\": %.3f, \"least_us\": %.3f, \"bytes\": %zu}\n",
            b->s->name, b->s->rows, us[REPEATS / 2], us[0], b->s->bytes);
    fflush(stdout);
    b->b->graph_close(g);
}

static void run_copy(struct bench *b)
{
    exchange_copy(b->q, b->y, b->w[b->turn++ % COPIES], b->s->bytes / 2);
}

static void run_matmul(struct bench *b)
{
    struct mat w = {
        .data = b->w[b->turn++ % COPIES], .dtype = DTYPE_BF16, .rows = b->s->n, .cols = b->s->k
    };

    b->b->op->matmul(b->q,
                     &(struct matmul_args){ .w = &w, .x = b->x, .y = b->y, .rows = b->s->rows });
}

static void run_mix(struct bench *b)
{
    struct mat fn = {
        .data = b->w[b->turn++ % COPIES], .dtype = DTYPE_F32, .rows = 24, .cols = 20480
    };
    float *y = b->y;

    b->b->op->hc_mix(b->q, &(struct hc_mix_args){ .x = b->x,
                                                  .fn = &fn,
                                                  .base = b->more,
                                                  .scale = b->more,
                                                  .pre = y,
                                                  .post = y + 4096,
                                                  .comb = y + 8192,
                                                  .rows = b->s->rows,
                                                  .hc = 4,
                                                  .dim = 5120,
                                                  .iters = 20,
                                                  .eps = 1e-20f,
                                                  .hc_eps = 1e-6f });
}

static void run_site(struct bench *b)
{
    struct mat fn = {
        .data = b->w[b->turn++ % COPIES], .dtype = DTYPE_F32, .rows = 24, .cols = 20480
    };
    float *y = b->y, *x = b->x;

    b->b->op->hc_site(b->q, &(struct hc_site_args){ .y = x,
                                                    .post = y + 1024,
                                                    .comb = y + 2048,
                                                    .x = x + 16 * 5120,
                                                    .fn = &fn,
                                                    .base = b->more,
                                                    .scale = b->more,
                                                    .to_pre = y,
                                                    .to_post = y + 1024,
                                                    .to_comb = y + 2048,
                                                    .pre = y + 8192,
                                                    .w = b->more,
                                                    .n = y + 16384,
                                                    .rows = b->s->rows,
                                                    .hc = 4,
                                                    .dim = 5120,
                                                    .iters = 20,
                                                    .eps = 1e-20f,
                                                    .hc_eps = 1e-6f,
                                                    .round = ROUND_BF16 });
}

static void run_route(struct bench *b)
{
    struct mat gate = {
        .data = b->w[b->turn++ % COPIES], .dtype = DTYPE_BF16, .rows = 384, .cols = 5120
    };
    float *y = b->y;

    b->b->op->route(b->q, &(struct route_args){ .gate = &gate,
                                                .x = b->x,
                                                .logit = y,
                                                .bias = b->more,
                                                .id = (int32_t *)(y + 16384),
                                                .weight = y + 32768,
                                                .rows = b->s->rows,
                                                .experts = 384,
                                                .k = 6,
                                                .norm = 1,
                                                .scale = 1.5f,
                                                .temp = 1 });
}

static struct state_view view(void *base, enum codec c, int cols, int cap)
{
    size_t row = codec_bytes(c, cols);

    return (struct state_view){ base, row * (size_t)cap, row, cap, c, cols };
}

static void run_attend(struct bench *b)
{
    b->b->op->attend(b->q, &(struct attend_args){ .q = b->heads,
                                                  .sink = b->more,
                                                  .win = view(b->w[0], CODEC_QW, 512, 143),
                                                  .more = view(b->w[1], CODEC_QC, 512, 4096),
                                                  .info = b->info,
                                                  .sel = b->sel,
                                                  .o = b->y,
                                                  .scratch = b->w[2],
                                                  .rows = b->s->rows,
                                                  .heads = 32,
                                                  .dim = 512,
                                                  .span = 128,
                                                  .topk = 512,
                                                  .scale = 0.04f,
                                                  .round = ROUND_BF16 });
}

/* Selections of 512 of `n` entries. */
static void *selections(struct bench *b, int rows, int n)
{
    enum { EACH = 512 };
    int32_t *host = malloc(sizeof(*host) * (size_t)rows * EACH);
    void *p = NULL;

    if (!host || b->b->alloc(lab.dev, sizeof(*host) * (size_t)rows * EACH, &p) != 0)
        exit(1);
    for (int i = 0; i < rows * EACH; i++)
        host[i] = i % EACH * (n / EACH) + i / EACH % (n / EACH);
    b->b->put(b->q, p, host, sizeof(*host) * (size_t)rows * EACH);
    if (b->b->wait(b->q) != 0)
        exit(1);
    free(host);
    return p;
}

static void run_select(struct bench *b)
{
    b->b->op->select(b->q,
                     &(struct select_args){ .q = b->x,
                                            .wt = b->more,
                                            .keys = view(b->keys, CODEC_QI, 128, b->s->n + 16),
                                            .info = b->info,
                                            .sel = b->y,
                                            .scratch = b->scratch,
                                            .rows = b->s->rows,
                                            .heads = 32,
                                            .dim = 128,
                                            .ratio = 1,
                                            .topk = 512,
                                            .in = CODEC_QI,
                                            .scale = 0.02f });
}

static void run_best(struct bench *b)
{
    b->b->op->best(
        b->q,
        &(struct best_args){
            .logits = b->x, .cand = b->y, .rows = b->s->rows, .cols = b->s->n, .k = b->s->k });
}

static void run_moe(struct bench *b)
{
    const struct mat *m = b->more;

    b->b->op->moe(b->q, &(struct moe_args){ .w1 = m,
                                            .w3 = m + 64,
                                            .w2 = m + 128,
                                            .s1 = m,
                                            .s3 = m + 64,
                                            .s2 = m + 128,
                                            .x = b->x,
                                            .weight = b->x,
                                            .id = (int32_t *)b->info + (b->turn++ % COPIES) * 96,
                                            .y = b->y,
                                            .scratch = b->scratch,
                                            .rows = b->s->rows,
                                            .experts = 64,
                                            .k = 6,
                                            .dim = 5120,
                                            .inter = 1152,
                                            .kinds = 1u << DTYPE_BF16,
                                            .limit = 10,
                                            .round = ROUND_BF16 });
}

/* Rows at the end of a context of n tokens. */
static void *rows_at(struct bench *b, int n)
{
    struct row_info info[16], *p;
    void *d;

    for (int r = 0; r < 16; r++)
        info[r] = (struct row_info){ .pos = n - 1 + r };
    if (b->b->alloc(lab.dev, sizeof(info), &d) < 0)
        exit(1);
    p = d;
    b->b->put(b->q, p, info, sizeof(info));
    return p;
}

/* Rows of index keys: any codes, scales of a few binades. */
static void *index_keys(struct bench *b, int n)
{
    size_t row = codec_bytes(CODEC_QI, 128), bytes = row * (size_t)n;
    unsigned char *h = malloc(bytes);
    void *d;

    for (size_t i = 0; i < bytes; i++)
        h[i] = (unsigned char)(i % row < 64 ? lab_below(&lab, 256) : 120 + lab_below(&lab, 8));
    if (b->b->alloc(lab.dev, bytes, &d) < 0)
        exit(1);
    b->b->put(b->q, d, h, bytes);
    b->b->wait(b->q);
    free(h);
    return d;
}

/* Heads as a product leaves them: bf16 numbers. */
static void *heads(struct bench *b)
{
    size_t n = (size_t)16 * 32 * 512;
    float *h = malloc(n * sizeof(*h));
    void *d;

    for (size_t i = 0; i < n; i++)
        h[i] = bf16_round(lab_uniform(&lab));
    if (b->b->alloc(lab.dev, n * sizeof(*h), &d) < 0)
        exit(1);
    b->b->put(b->q, d, h, n * sizeof(*h));
    b->b->wait(b->q);
    free(h);
    return d;
}

/* 64 experts of bf16 at half width, in one allocation, and choices of 16 rows. */
static void moe_setup(struct bench *b)
{
    struct mat m[192];
    int32_t id[COPIES * 96];
    size_t one = mat_bytes(1152, 5120, DTYPE_BF16);
    char *w = filled(b, one * 192);

    for (int i = 0; i < 192; i++)
        m[i] = (struct mat){ .data = w + (size_t)i * one,
                             .dtype = DTYPE_BF16,
                             .rows = i < 128 ? 1152 : 5120,
                             .cols = i < 128 ? 5120 : 1152 };
    for (int i = 0; i < COPIES * 96; i++)
        id[i] = i % 6 * 10 + (i / 6 * 7) % 10;
    b->b->alloc(lab.dev, sizeof(m), &b->more);
    b->b->alloc(lab.dev, sizeof(id), &b->info);
    b->b->put(b->q, b->more, m, sizeof(m));
    b->b->put(b->q, b->info, id, sizeof(id));
    b->b->wait(b->q);
}

static void bench_products(struct bench *b)
{
    static const int sizes[][2] = {
        { 1280, 5120 }, { 16384, 1280 }, { 5120, 4096 }, { 64640, 5120 }
    };
    static const int rows[] = { 1, 4, 8, 16, 512 };

    for (int i = 0; i < COUNT(sizes); i++) {
        size_t bytes = mat_bytes(sizes[i][0], sizes[i][1], DTYPE_BF16);

        for (int c = 0; c < COPIES; c++)
            b->w[c] = filled(b, bytes);
        for (int r = 0; r < COUNT(rows) - (i == 3); r++) {
            char name[64];
            struct shape s = { name, rows[r], sizes[i][0], sizes[i][1], bytes };

            snprintf(name, sizeof(name), "matmul bf16 %d x %d", s.n, s.k);
            b->s = &s;
            measure(b, run_matmul);
        }
        for (int c = 0; c < COPIES; c++)
            b->b->free(lab.dev, b->w[c]);
    }
}

int bench_main(int argc, char **argv)
{
    struct bench b = { 0 };
    struct shape copy = { "copy", 0, 0, 0, (size_t)1 << 30 };
    int r;

    if (argc > 1 && strcmp(argv[1], "-m") == 0) {
        pretend.little_shared = true;
        argc--;
        argv++;
    }
    r = lab_open(&lab);
    if (r != 0)
        return r;
    json = argc > 1 ? fopen(argv[1], "w") : NULL;
    lab.op = "bench";
    b.b = lab.dev->ops;
    b.q = lab.q;
    b.x = filled(&b, (size_t)512 * 20480 * 4);
    b.y = filled(&b, (size_t)1 << 30);
    for (int c = 0; c < COPIES; c++)
        b.w[c] = filled(&b, (size_t)512 << 20);
    b.s = &copy;
    measure(&b, run_copy);
    b.more = filled(&b, 1 << 20);
    b.scratch = filled(&b, (size_t)64 << 20);
    b.heads = heads(&b);
    b.keys = index_keys(&b, 131072 + 16);
    b.sel = selections(&b, 16, 4096);
    for (int rows = 1; rows <= 16; rows *= 4) {
        struct shape mix = { "hc_mix 24 x 20480", rows, 0, 0, 24 * 20480 * 4 };
        struct shape site = { "hc_site 24 x 20480", rows, 0, 0, 24 * 20480 * 4 };
        struct shape route = { "route 6 of 384 x 5120", rows, 0, 0, 384 * 5120 * 2 };
        struct shape sel8 = { "select of 8192 entries", rows, 8192, 0, 8192 * 68 };
        struct shape sel128 = { "select of 131072 entries", rows, 131072, 0, 131072 * 68 };
        struct shape att = { "attend 32 heads, 128 + 512 keys", rows, 0, 0, 128 * 528 + 512 * 288 };
        struct shape one = { "best 1 of 64640", rows, 64640, 1, 64640 * 4 * (size_t)rows };
        struct shape many = { "best 128 of 64640", rows, 64640, 128, 64640 * 4 * (size_t)rows };

        b.s = &mix;
        measure(&b, run_mix);
        b.s = &site;
        measure(&b, run_site);
        b.s = &route;
        measure(&b, run_route);
        b.info = rows_at(&b, 8192);
        b.s = &sel8;
        b.b->op->requant(b.q, &(struct requant_args){
                                  .x = b.x, .rows = 16 * 32, .cols = 128, .codec = CODEC_QI });
        measure(&b, run_select);
        b.s = &att;
        measure(&b, run_attend);
        b.info = rows_at(&b, 131072);
        b.s = &sel128;
        measure(&b, run_select);
        b.s = &one;
        measure(&b, run_best);
        b.s = &many;
        measure(&b, run_best);
    }
    for (int c = 0; c < COPIES; c++)
        b.b->free(lab.dev, b.w[c]);
    bench_products(&b);
    moe_setup(&b);
    for (int rows = 1; rows <= 16; rows *= 4) {
        struct shape moe = { "experts 6 of 64 and shared", rows, 0, 0,
                             (size_t)(6 * (rows < 10 ? rows : 10) + 1) * 3 * 1152 * 5120 * 2 };

        b.s = &moe;
        measure(&b, run_moe);
    }
    if (json)
        fclose(json);
    return lab.failures != 0;
}
