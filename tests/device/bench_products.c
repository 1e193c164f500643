/* Products by weights of every format at the shapes of one of two ranks of V4.1, cold: captured
 * calls that each read other bytes of a buffer many times the cache, medians of REPEATS launches.
 *
 *   products [-s] [-w] [-c NAME] [file]
 *                 -s lets no launches overlap, -w reads the same bytes in each call of a matrix:
 *                 what weights that lie in L2 could gain; -c the cases with NAME in theirs; file:
 *                 JSON lines too
 */
#include "tests/device/lab.h"

#include "kernels/exchange.h"
#include "src/base/clock.h"
#include "src/base/sort.h"
#include "tests/device/parts.h"

#define POOL ((size_t)2 << 30)
#define REPEATS 9
#define EXPERTS 128
#define CHOICES 6

struct product_bench {
    struct lab lab;
    const struct backend_ops *b;
    FILE *json;
    bool warm;                          /* see -w */
    const char *only;                   /* cases with this in their name, NULL for all */
    char *pool, *x, *x16, *y, *scratch; /* x16: rows of bf16 numbers */
    size_t at;                          /* in the pool */
    double copy;                        /* GB/s */
    /* of a call */
    struct mat w;
    const char *from;
    struct moe_args moe;
    int32_t *id;
    int rows, turn;
};

typedef void call_fn(struct product_bench *p);

static void *room(struct product_bench *p, size_t bytes)
{
    void *to;

    if (p->b->alloc(p->lab.dev, bytes, &to) < 0)
        exit(1);
    return to;
}

/* Random bits, of which those of mask. */
static void fill(struct product_bench *p, char *to, size_t bytes, uint32_t mask)
{
    static uint32_t part[1 << 18];

    for (size_t i = 0; i < COUNT(part); i++)
        part[i] = philox4x32((uint32_t)i, 7, 7, 7, 7).w[0] & mask;
    for (size_t at = 0; at < bytes; at += sizeof(part))
        p->b->put(p->lab.q, to + at, part, bytes - at < sizeof(part) ? bytes - at : sizeof(part));
    p->b->wait(p->lab.q);
}

/* The next bytes of the pool, from the front again when it ends. */
static char *cold(struct product_bench *p, size_t bytes)
{
    char *at;

    if (p->at + bytes > POOL || p->warm)
        p->at = 0;
    at = p->pool + p->at;
    p->at += mat_round_up(bytes, MAT_ALIGN);
    return at;
}

/* Median time of a call in us. */
static double time_of(struct product_bench *p, call_fn *fn, int calls)
{
    struct graph *g = NULL;
    double us[REPEATS];

    if (p->b->graph_begin(p->lab.q) < 0)
        exit(1);
    for (int i = 0; i < calls; i++)
        fn(p);
    if (p->b->graph_end(p->lab.q, &g) < 0) {
        lab_fail(&p->lab, "no graph");
        return 1;
    }
    for (int r = -2; r < REPEATS; r++) {
        int64_t start = clock_ns();

        p->b->graph_launch(p->lab.q, g);
        if (p->b->wait(p->lab.q) < 0)
            lab_fail(&p->lab, "a launch failed");
        us[r < 0 ? 0 : r] = (double)(clock_ns() - start) / NS_PER_US / calls;
    }
    sort_f64(us, REPEATS);
    p->b->graph_close(g);
    return us[REPEATS / 2];
}

static void say(struct product_bench *p, const char *name, double us, size_t bytes, double flops)
{
    double rate = (double)bytes / us / 1e3;

    printf("%-30s rows %4d %9.2f us %7.0f GB/s %5.1f%% of a copy %7.1f TFLOP/s\n", name, p->rows,
           us, rate, 100 * rate / p->copy, flops / us / 1e6);
    if (p->json)
        fprintf(p->json, "{\"op\": \"%s\", \"rows\": %d, \"us\": %.3f, \"bytes\": %zu}\n", name,
                p->rows, us, bytes);
    fflush(stdout);
}

static void call_copy(struct product_bench *p)
{
    exchange_copy(p->lab.q, p->pool, p->pool + POOL / 2, POOL / 2);
}

static void call_matmul(struct product_bench *p)
{
    struct mat w = p->w;
    struct mat_parts parts;

    mat_parts(&w, &parts);
    mat_place(&w, cold(p, parts.total));
    p->b->op->matmul(p->lab.q, &(struct matmul_args){ .w = &w,
                                                      .x = (const float *)p->from,
                                                      .y = (float *)p->y,
                                                      .rows = p->rows,
                                                      .round = ROUND_BF16 });
}

static void call_moe(struct product_bench *p)
{
    struct moe_args a = p->moe;

    a.id = p->id + p->turn++ % 8 * 4096 * CHOICES;
    a.rows = p->rows;
    p->b->op->moe(p->lab.q, &a);
}

static bool wanted(const struct product_bench *p, const char *name)
{
    return !p->only || strstr(name, p->only);
}

static void dense(struct product_bench *p)
{
    static const struct {
        const char *name;
        struct mat w;
        bool prompts, x16;
    } cases[] = {
#define EXL3(b, n, k)                                                                              \
    { "exl3 " #b " bits " #n " x " #k,                                                             \
      { .dtype = DTYPE_EXL3,                                                                       \
        .rows = n,                                                                                 \
        .cols = k,                                                                                 \
        .q = { 1, CODEBOOK_MUL1, 2 * b, .slices = 1 } },                                           \
      b == 5 && n <= 16384 && k <= 5120 }
        EXL3(5, 1280, 5120),
        EXL3(5, 16384, 1280),
        EXL3(5, 5120, 4096),
        EXL3(5, 12800, 6144),
        EXL3(5, 32768, 1280),
        EXL3(6, 64640, 5120),
        EXL3(2, 5120, 4096),
        EXL3(3, 5120, 4096),
        EXL3(4, 5120, 4096),
        EXL3(8, 5120, 4096),
        { "fp8 32 5120 x 4096",
          { .dtype = DTYPE_FP8, .rows = 5120, .cols = 4096, .q = { 1, .block = 32, .e8m0 = 1 } },
          true },
        { "mxfp4 5120 x 4096",
          { .dtype = DTYPE_MXFP4, .rows = 5120, .cols = 4096, .q = { .layout = 1 } },
          true },
        { "nvfp4 5120 x 4096",
          { .dtype = DTYPE_NVFP4, .rows = 5120, .cols = 4096, .q = { 1, .global = 0.01f } },
          true },
        { "bf16 1280 x 5120", { .dtype = DTYPE_BF16, .rows = 1280, .cols = 5120 } },
        { "bf16 16384 x 1280", { .dtype = DTYPE_BF16, .rows = 16384, .cols = 1280 } },
        { "bf16 5120 x 4096", { .dtype = DTYPE_BF16, .rows = 5120, .cols = 4096 }, true },
        { "bf16 5120 x 4096, rows too",
          { .dtype = DTYPE_BF16, .rows = 5120, .cols = 4096 },
          true,
          true },
        { "bf16 64640 x 5120", { .dtype = DTYPE_BF16, .rows = 64640, .cols = 5120 }, false, true },
    };
    static const int rows[] = { 1, 2, 4, 8, 16, 512, 2048, 4096 };

    for (int i = 0; i < COUNT(cases); i++)
        for (int r = 0; r < COUNT(rows); r++) {
            const struct mat *w = &cases[i].w;
            struct mat_parts parts;

            if ((rows[r] > 16 && !cases[i].prompts) || !wanted(p, cases[i].name))
                continue;
            p->w = *w;
            p->from = cases[i].x16 ? p->x16 : p->x;
            p->rows = rows[r];
            mat_parts(w, &parts);
            say(p, cases[i].name, time_of(p, call_matmul, rows[r] > 16 ? 2 : 40), parts.total,
                2.0 * rows[r] * w->rows * w->cols);
        }
}

#define MUL1(b2)                                                                                   \
    {                                                                                              \
        .dtype = DTYPE_EXL3, .q = { 1, CODEBOOK_MUL1, b2, .slices = 1 }                            \
    }
/* Half of the width is a rank's of two. */
static const struct {
    const char *name;
    int inter;
    struct mat routed, shared;
} mixtures[] = {
    { "experts 3 bits and shared 5", 1152, MUL1(6), MUL1(10) },
    { "experts 3 bits and 5, whole", 2304, MUL1(6), MUL1(10) },
    { "experts mxfp4 and shared fp8",
      1152,
      { .dtype = DTYPE_MXFP4, .q = { .layout = 1 } },
      { .dtype = DTYPE_FP8, .q = { 1, .block = 32, .e8m0 = 1 } } },
    { "experts bf16", 1152, { .dtype = DTYPE_BF16 }, { .dtype = DTYPE_BF16 } },
};
#undef MUL1

/* EXPERTS experts and a shared one; rows choose evenly. */
static void experts(struct product_bench *p, int which)
{
    static const int rows[] = { 1, 2, 3, 4, 8, 16, 512 };
    size_t mats = 3 * EXPERTS + 3, bytes[3] = { 0 }, n = 8 * 4096 * CHOICES;
    struct mat *m = calloc(mats, sizeof(*m)), *d = room(p, mats * sizeof(*m));
    int32_t *id = calloc(n, sizeof(*id));

    p->at = 0;
    for (size_t i = 0; i < mats; i++) {
        bool down = i < 3 * EXPERTS ? i >= 2 * EXPERTS : i == 3 * EXPERTS + 2;
        struct mat_parts parts;

        m[i] = i < 3 * EXPERTS ? mixtures[which].routed : mixtures[which].shared;
        m[i].rows = down ? 5120 : mixtures[which].inter;
        m[i].cols = down ? mixtures[which].inter : 5120;
        mat_parts(&m[i], &parts);
        mat_place(&m[i], cold(p, parts.total));
        bytes[i < 3 * EXPERTS ? down : 2] += parts.total;
    }
    for (size_t i = 0; i < n; i++)
        id[i] =
            (int32_t)(i % CHOICES * (EXPERTS / CHOICES) + lab_below(&p->lab, EXPERTS / CHOICES));
    p->id = room(p, n * sizeof(*id));
    p->b->put(p->lab.q, d, m, mats * sizeof(*m));
    p->b->put(p->lab.q, p->id, id, n * sizeof(*id));
    p->b->wait(p->lab.q);
    p->moe = (struct moe_args){ .w1 = d,
                                .w3 = d + EXPERTS,
                                .w2 = d + 2 * EXPERTS,
                                .s1 = d + 3 * EXPERTS,
                                .s3 = d + 3 * EXPERTS + 1,
                                .s2 = d + 3 * EXPERTS + 2,
                                .x = (float *)(mixtures[which].routed.dtype == DTYPE_EXL3 ? p->x
                                                                                          : p->x16),
                                .weight = (float *)p->x,
                                .y = (float *)p->y,
                                .scratch = (float *)p->scratch,
                                .experts = EXPERTS,
                                .k = CHOICES,
                                .dim = 5120,
                                .inter = mixtures[which].inter,
                                .kinds = mat_kind(&m[0]) | mat_kind(&m[mats - 1]),
                                .limit = 10,
                                .round = ROUND_BF16 };
    for (int r = 0; r < COUNT(rows); r++) {
        bool seen[EXPERTS] = { false };
        size_t distinct = 0;

        for (int i = 0; i < rows[r] * CHOICES; i++) {
            distinct += !seen[id[i]];
            seen[id[i]] = true;
        }
        p->rows = rows[r];
        say(p, mixtures[which].name, time_of(p, call_moe, rows[r] > 16 ? 2 : 16),
            (bytes[0] + bytes[1]) / EXPERTS * distinct + bytes[2],
            6.0 * rows[r] * (CHOICES + 1) * 5120 * mixtures[which].inter);
    }
    free(m);
    free(id);
}

int products_main(int argc, char **argv)
{
    static struct product_bench p;
    int r = lab_open(&p.lab);

    if (r != 0)
        return r;
    p.lab.op = "products";
    for (; argc > 1 && argv[1][0] == '-'; argc--, argv++)
        if (argv[1][1] == 's') {
            p.lab.dev->overlap = false;
        } else if (argv[1][1] == 'w') {
            p.warm = true;
        } else if (argc > 2) {
            p.only = argv[2];
            argc--;
            argv++;
        }
    p.json = argc > 1 ? fopen(argv[1], "w") : NULL;
    p.b = p.lab.dev->ops;
    p.pool = room(&p, POOL);
    p.x = room(&p, (size_t)4096 * 5120 * 4);
    p.x16 = room(&p, (size_t)4096 * 5120 * 4);
    p.y = room(&p, (size_t)4096 * 16384 * 4);
    p.scratch = room(&p, (size_t)4096 * 7 * 2304 * 4);
    /* f32, f16 and bf16 readings are all below 2 */
    fill(&p, p.pool, POOL, 0xbfffbfffu);
    fill(&p, p.x, (size_t)4096 * 5120 * 4, 0xbfffbfffu);
    fill(&p, p.x16, (size_t)4096 * 5120 * 4, 0xbfff0000u);
    p.copy = POOL / time_of(&p, call_copy, 2) / 1e3;
    printf("a copy reads and writes %.0f GB/s\n", p.copy);
    dense(&p);
    for (int i = 0; i < COUNT(mixtures); i++)
        if (!p.warm && wanted(&p, mixtures[i].name))
            experts(&p, i);
    if (p.json)
        fclose(p.json);
    lab_close(&p.lab);
    return p.lab.failures != 0;
}
