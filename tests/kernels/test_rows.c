/* The law of every op with rows: R rows at once, on any number of workers, have the bits of one at
 * a time. Products, experts, attention and selection have theirs beside their other cases. */
#include "tests/kernels/bed.h"

#define ROWS 40
#define HC 4
#define DIM 80 /* not a multiple of what vectors hold, but of every codec's block */
#define WIDE (HC * DIM)
#define EXPERTS 37
#define VOCAB 333

/* Inputs of ROWS rows, WIDE values each, and what else ops need. */
struct field {
    struct bed b;
    float *x, *y, *z, *w, *logits;
    struct mat fn;
    struct state_view raw;
    struct row_info info[ROWS];
    struct sampler s[SLOTS_MAX];
    struct candidate best[ROWS];
    float freq[DIM / 2];
    void *scratch;
    enum round round;
};

/* Rows first .. first + rows - 1 of an op; row i of the result is WIDE values at out + i * WIDE. */
typedef void op_fn(struct field *f, int first, int rows, float *out);

static void run_rmsnorm(struct field *f, int first, int rows, float *out)
{
    f->b.op->rmsnorm(f->b.q, &(struct rmsnorm_args){ .x = f->x + first * WIDE,
                                                     .w = f->w,
                                                     .y = out,
                                                     .rows = rows,
                                                     .cols = WIDE,
                                                     .eps = 1e-6f,
                                                     .round = f->round });
}

static void run_add(struct field *f, int first, int rows, float *out)
{
    memcpy(out, f->y + first * WIDE, (size_t)(rows * WIDE) * sizeof(*out));
    f->b.op->add(
        f->b.q,
        &(struct add_args){
            .x = f->x + first * WIDE, .y = out, .rows = rows, .cols = WIDE, .round = f->round });
}

static void run_swiglu(struct field *f, int first, int rows, float *out)
{
    f->b.op->swiglu(f->b.q, &(struct swiglu_args){ .gate = f->x + first * WIDE,
                                                   .up = f->y + first * WIDE,
                                                   .y = out,
                                                   .rows = rows,
                                                   .cols = WIDE,
                                                   .limit = 2,
                                                   .round = f->round });
}

static void run_rope(struct field *f, int first, int rows, float *out)
{
    memcpy(out, f->x + first * WIDE, (size_t)(rows * WIDE) * sizeof(*out));
    f->b.op->rope(f->b.q, &(struct rope_args){ .x = out,
                                               .freq = f->freq,
                                               .info = f->info + first,
                                               .rows = rows,
                                               .heads = HC,
                                               .cols = DIM,
                                               .dims = 48,
                                               .round = f->round });
}

static void run_requant(struct field *f, int first, int rows, float *out)
{
    memcpy(out, f->x + first * WIDE, (size_t)(rows * WIDE) * sizeof(*out));
    f->b.op->requant(f->b.q, &(struct requant_args){ .x = out,
                                                     .rows = rows,
                                                     .cols = WIDE,
                                                     .codec = f->round ? CODEC_QW : CODEC_QC });
}

static void run_pool(struct field *f, int first, int rows, float *out)
{
    f->b.op->pool(f->b.q, &(struct pool_args){ .raw = f->raw,
                                               .info = f->info + first,
                                               .y = out,
                                               .rows = rows,
                                               .cols = WIDE,
                                               .ratio = 2,
                                               .round = f->round });
}

static void run_hc_mix(struct field *f, int first, int rows, float *out)
{
    float pre[ROWS * HC], post[ROWS * HC], comb[ROWS * HC * HC];

    f->b.op->hc_mix(f->b.q, &(struct hc_mix_args){ .x = f->x + first * WIDE,
                                                   .fn = &f->fn,
                                                   .base = f->w,
                                                   .scale = f->w + 24,
                                                   .pre = pre,
                                                   .post = post,
                                                   .comb = comb,
                                                   .rows = rows,
                                                   .hc = HC,
                                                   .dim = DIM,
                                                   .iters = 20,
                                                   .eps = 1e-20f,
                                                   .hc_eps = 1e-6f });
    for (int r = 0; r < rows; r++) {
        memset(out + r * WIDE, 0, WIDE * sizeof(*out));
        memcpy(out + r * WIDE, pre + r * HC, HC * sizeof(*out));
        memcpy(out + r * WIDE + HC, post + r * HC, HC * sizeof(*out));
        memcpy(out + r * WIDE + 2 * HC, comb + r * HC * HC, HC * HC * sizeof(*out));
    }
}

static void run_collapse(struct field *f, int first, int rows, float *out)
{
    float y[ROWS * DIM];

    f->b.op->hc_collapse(f->b.q, &(struct hc_collapse_args){ .x = f->x + first * WIDE,
                                                             .pre = f->y + first * HC,
                                                             .y = y,
                                                             .rows = rows,
                                                             .hc = HC,
                                                             .dim = DIM,
                                                             .round = f->round });
    for (int r = 0; r < rows; r++) {
        memset(out + r * WIDE, 0, WIDE * sizeof(*out));
        memcpy(out + r * WIDE, y + r * DIM, DIM * sizeof(*out));
    }
}

static void run_expand(struct field *f, int first, int rows, float *out)
{
    memcpy(out, f->x + first * WIDE, (size_t)(rows * WIDE) * sizeof(*out));
    f->b.op->hc_expand(f->b.q, &(struct hc_expand_args){ .y = f->z + first * DIM,
                                                         .post = f->y + first * HC,
                                                         .comb = f->z + first * HC * HC,
                                                         .x = out,
                                                         .rows = rows,
                                                         .hc = HC,
                                                         .dim = DIM,
                                                         .round = f->round });
}

static void run_mean(struct field *f, int first, int rows, float *out)
{
    memset(out, 0, (size_t)(rows * WIDE) * sizeof(*out));
    f->b.op->hc_mean(f->b.q, &(struct hc_mean_args){ .x = f->x + first * WIDE,
                                                     .y = out,
                                                     .rows = rows,
                                                     .hc = HC,
                                                     .dim = DIM,
                                                     .ldy = WIDE,
                                                     .round = f->round });
}

static void run_gate(struct field *f, int first, int rows, float *out)
{
    memcpy(out, f->x + first * WIDE, (size_t)(rows * WIDE) * sizeof(*out));
    f->b.op->engram_gate(f->b.q, &(struct engram_gate_args){ .kv = f->z + first * (HC + 1) * DIM,
                                                             .qw = f->w,
                                                             .kw = f->w + WIDE,
                                                             .x = out,
                                                             .rows = rows,
                                                             .hc = HC,
                                                             .dim = DIM,
                                                             .eps = 1e-20f,
                                                             .round = f->round });
}

static void run_route(struct field *f, int first, int rows, float *out)
{
    int32_t id[ROWS * 6];
    float weight[ROWS * 6];

    f->b.op->route(f->b.q, &(struct route_args){ .logit = f->x + first * EXPERTS,
                                                 .bias = f->w,
                                                 .id = id,
                                                 .weight = weight,
                                                 .rows = rows,
                                                 .experts = EXPERTS,
                                                 .k = 6,
                                                 .norm = 1,
                                                 .scale = 1.5f,
                                                 .temp = 1 });
    for (int r = 0; r < rows; r++) {
        memset(out + r * WIDE, 0, WIDE * sizeof(*out));
        memcpy(out + r * WIDE, id + r * 6, sizeof(*id) * 6);
        memcpy(out + r * WIDE + 6, weight + r * 6, sizeof(*weight) * 6);
    }
}

static void run_best(struct field *f, int first, int rows, float *out)
{
    struct candidate c[ROWS * 100];
    int k = f->round ? 100 : 5;

    f->b.op->best(
        f->b.q,
        &(struct best_args){
            .logits = f->logits + first * VOCAB, .cand = c, .rows = rows, .cols = VOCAB, .k = k });
    for (int r = 0; r < rows; r++) {
        memset(out + r * WIDE, 0, WIDE * sizeof(*out));
        memcpy(out + r * WIDE, c + r * k, (size_t)k * sizeof(*c));
    }
}

static void run_choose(struct field *f, int first, int rows, float *out)
{
    int32_t choice[ROWS];

    f->b.op->choose(f->b.q, &(struct choose_args){ .best = f->best + first,
                                                   .full = f->logits + first * VOCAB,
                                                   .sampler = f->s,
                                                   .info = f->info + first,
                                                   .choice = choice,
                                                   .scratch = f->scratch,
                                                   .width = { VOCAB },
                                                   .ranks = 1,
                                                   .rows = rows,
                                                   .ldf = VOCAB });
    memset(out, 0, (size_t)(rows * WIDE) * sizeof(*out));
    for (int r = 0; r < rows; r++)
        memcpy(out + r * WIDE, &choice[r], sizeof(*choice));
}

static const struct {
    const char *name;
    op_fn *run;
} ops[] = {
    { "rmsnorm", run_rmsnorm },  { "add", run_add },
    { "swiglu", run_swiglu },    { "rope", run_rope },
    { "requant", run_requant },  { "pool", run_pool },
    { "hc_mix", run_hc_mix },    { "hc_collapse", run_collapse },
    { "hc_expand", run_expand }, { "hc_mean", run_mean },
    { "engram_gate", run_gate }, { "route", run_route },
    { "best", run_best },        { "choose", run_choose },
};

static void field_open(struct field *f, int workers)
{
    memset(f, 0, sizeof(*f));
    bed_open(&f->b, workers);
    f->x = bed_f32(&f->b, ROWS * WIDE, 3);
    f->y = bed_f32(&f->b, ROWS * WIDE, 1);
    f->z = bed_f32(&f->b, ROWS * (HC + 1) * DIM, 1);
    f->w = bed_f32(&f->b, 2 * WIDE, 1);
    f->logits = bed_f32(&f->b, ROWS * VOCAB, 4);
    f->fn = bed_mat(&f->b, (2 + HC) * HC, WIDE, DTYPE_F32, 0.5f, NULL);
    f->raw = bed_state(&f->b, 1, ROWS + 1, CODEC_F32, 2 * WIDE);
    bed_put(&f->b, &f->raw, 0, 100, 101 + ROWS, 2);
    bed_rows(f->info, 0, 0, 101, ROWS);
    for (int i = 0; i < DIM / 2; i++)
        f->freq[i] = powf(10000, -(float)i / 24);
    f->s[0] = (struct sampler){ .temperature = 0.8, .top_k = 40, .top_p = 0.9, .seed = 5 };
    f->scratch = bed_take(&f->b, (size_t)workers * choose_scratch(VOCAB));
}

Test(rows, at_once_are_the_bits_of_one_at_a_time_on_any_number_of_workers)
{
    static const int counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 33, 40 };
    static float one[ROWS * WIDE], many[ROWS * WIDE];

    for (size_t o = 0; o < COUNT(ops); o++) {
        struct field f, g;

        field_open(&f, 1);
        field_open(&g, 3);
        for (int round = 0; round < 2; round++) {
            f.round = g.round = (enum round)round;
            for (int r = 0; r < ROWS; r++)
                ops[o].run(&f, r, 1, one + r * WIDE);
            for (size_t i = 0; i < COUNT(counts); i++) {
                int first = counts[i] < 20 ? counts[i] % 5 : 0;

                memset(many, 0xff, sizeof(many));
                ops[o].run(&g, first, counts[i], many);
                cr_expect(bed_same(many, one + first * WIDE, (size_t)(counts[i] * WIDE)),
                          "%s: %d rows, 3 workers", ops[o].name, counts[i]);
                memset(many, 0xff, sizeof(many));
                ops[o].run(&f, first, counts[i], many);
                cr_expect(bed_same(many, one + first * WIDE, (size_t)(counts[i] * WIDE)),
                          "%s: %d rows", ops[o].name, counts[i]);
            }
        }
        cr_expect(bed_wait(&f.b) == 0 && bed_wait(&g.b) == 0, "%s", ops[o].name);
        bed_close(&g.b);
        bed_close(&f.b);
    }
}
