/* What ranks offer of their shares, choices and logprobs from it, and penalties: bit for bit. */
#include "kernels/sampling.h"
#include "tests/device/lab.h"

struct offer {
    int ranks, cols, rows, k; /* cols: of a share */
    int kind;                 /* of logits: 0 smooth, 1 few values, 3 mostly -inf */
    struct sampler sampler; /* of slots 0 and 2; slot 1 is greedy, slot 3 draws without a filter */
    float by;
};

static int ldm(const struct offer *s)
{
    return mass_chunks(s->cols) + 1;
}

static size_t stride(const struct offer *s)
{
    return (size_t)s->rows *
           ((size_t)s->k * sizeof(struct candidate) + (size_t)ldm(s) * sizeof(struct chunk_mass));
}

/* Buffers: 0 logits [ranks][rows][cols], 1 sampler, 2 info, 3 offers, 4 choice, 5 logprobs, 6
 * scratch, 7 lots. */
static void run_offer(const struct trial *t, const struct op_table *op, struct queue *q,
                      void *const *b, int row, int rows)
{
    const struct offer *s = t->shape;
    struct row_info *info = (struct row_info *)b[2] + row;
    char *offers = b[3];
    size_t masses = sizeof(struct candidate) * (size_t)(s->rows * s->k);
    struct candidate *cand = (struct candidate *)offers + (size_t)row * (size_t)s->k;
    struct chunk_mass *mass = (struct chunk_mass *)(offers + masses) + (size_t)row * (size_t)ldm(s);
    struct choose_args c = { .best = cand,
                             .mass = mass,
                             .sampler = b[1],
                             .info = info,
                             .choice = (int32_t *)b[4] + row,
                             .scratch = b[6],
                             .ranks = s->ranks,
                             .rows = rows,
                             .k = s->k,
                             .ldm = ldm(s),
                             .stride = stride(s) };
    struct logprob_args p = { .best = cand,
                              .mass = mass,
                              .sampler = b[1],
                              .info = info,
                              .out = (struct logprobs *)b[5] + row,
                              .ranks = s->ranks,
                              .rows = rows,
                              .k = s->k,
                              .ldm = ldm(s),
                              .stride = stride(s) };

    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < s->ranks; i++) {
            const float *z = (float *)b[0] + (size_t)((i * s->rows + row) * s->cols);
            size_t at = (size_t)i * stride(s);
            struct candidate *mine = (struct candidate *)((char *)cand + at);

            c.width[i] = p.width[i] = s->cols;
            op->best(q, &(struct best_args){ z, mine, rows, s->cols, s->k, i * s->cols });
            if (turn == 0)
                op->draw(q, &(struct draw_args){ .logits = z,
                                                 .sampler = b[1],
                                                 .info = info,
                                                 .cand = mine,
                                                 .scratch = b[7],
                                                 .rows = rows,
                                                 .cols = s->cols,
                                                 .k = s->k,
                                                 .id0 = i * s->cols });
            op->mass(q, &(struct mass_args){ .logits = z,
                                             .sampler = b[1],
                                             .info = info,
                                             .pick = turn ? c.choice : NULL,
                                             .mass = (struct chunk_mass *)((char *)mass + at),
                                             .rows = rows,
                                             .cols = s->cols,
                                             .id0 = i * s->cols,
                                             .ld = ldm(s) });
        }
        if (turn == 0)
            op->choose(q, &c);
        else
            op->logprob(q, &p);
    }
}

#define PLAIN .temperature = 1.1, .seed = 3
static const struct offer offers[] = {
    { 1, 320, 16, 8, 0, { .temperature = 1, .top_k = 7, .logprobs = 5 }, 9 },
    { 2, 2240, 16, 64, 0, { .temperature = 0.8, .top_k = 50, .top_p = 0.8, .logprobs = 21 }, 8 },
    { 2, 2240, 16, 64, 0, { .temperature = 0.8, .top_p = 0.9, .min_p = 0.01, .logprobs = 1 }, 12 },
    { 4, 640, 16, 100, 1, { .temperature = 1, .top_p = 0.5 }, 8 },
    { 4, 640, 16, 30, 3, { .temperature = 1, .top_p = 0.99, .logprobs = 21 }, 8 },
    { 2, 2240, 16, 512, 0, { .temperature = 1, .min_p = 0.05 }, 8 },
    { 2, 3200, 40, 4, 0, { .temperature = 1, .min_p = 0.01, .top_p = 0.9 }, 3 },
    { 1, 5003, 16, 1, 0, { .temperature = 0, .logprobs = 21 }, 8 },
    { 2, 64640, 4, 512, 0, { .temperature = 1, .top_p = 0.9, .logprobs = 21 }, 14 },
    { 2, 64640, 4, 1024, 0, { .temperature = 1, .top_k = 1000, .top_p = 0.95 }, 14 },
    { 8, 320, 16, 320, 0, { .temperature = 2, .top_p = 0.999, .logprobs = 3 }, 8 },
};

static void offer(struct lab *l)
{
    lab_begin(l, "offers");
    for (int i = 0; i < COUNT(offers); i++) {
        const struct offer *s = &offers[i];
        struct sampler *sampler;
        struct trial t;
        float *z;

        trial_begin(&t, l, run_offer, s, s->rows, "%d x %d, %d candidates, p %g k %d m %g kind %d",
                    s->ranks, s->cols, s->k, s->sampler.top_p, s->sampler.top_k, s->sampler.min_p,
                    s->kind);
        z = trial_in(&t, (size_t)(s->ranks * s->rows * s->cols), s->by);
        for (int k = 0; k < s->ranks * s->rows * s->cols; k++) {
            float f = z[k] / s->by;

            z[k] = s->kind == 1 ? (float)lab_below(l, 4) : s->by * f * fabsf(f);
            if (s->kind == 3 && lab_below(l, 40))
                z[k] = -INFINITY;
        }
        sampler = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(*sampler) * SLOTS_MAX, 0, 0);
        for (int k = 0; k < SLOTS_MAX; k++) {
            sampler[k] = s->sampler;
            sampler[k].seed = (uint64_t)(k + 5);
        }
        sampler[1].temperature = 0;
        sampler[3] = (struct sampler){ PLAIN, .logprobs = s->sampler.logprobs };
        trial_info(&t, NULL, SLOTS_MAX);
        trial_buf(&t, BUF_INOUT, BUF_BYTES, (size_t)s->ranks * stride(s), 0, 0);
        trial_buf(&t, BUF_OUT, BUF_BYTES, sizeof(int32_t) * (size_t)s->rows, sizeof(int32_t), 0);
        trial_buf(&t, BUF_INOUT, BUF_BYTES, sizeof(struct logprobs) * (size_t)s->rows,
                  sizeof(struct logprobs), 0);
        trial_scratch(&t, choose_scratch((size_t)(s->ranks * s->cols)) * (size_t)l->dev->workers);
        trial_scratch(&t, DRAW_SCRATCH * (size_t)s->rows);
        lab_run(&t);
    }
    lab_end(l);
}

/* ---- penalties ---- */

struct edit {
    int cols, id0, prompt;
    struct sampler sampler;
};

/* Buffers: 0 logits, 1 sampler, 2 info, 3 history, 4 bias, 5 count, 6 y. */
static void run_penalize(const struct trial *t, const struct op_table *op, struct queue *q,
                         void *const *b, int row, int rows)
{
    const struct edit *s = t->shape;

    if (row == 0 && rows == t->rows)
        op->count(q, &(struct count_args){ .info = b[3],
                                           .sampler = b[1],
                                           .count = b[5],
                                           .rows = 1000,
                                           .cols = s->cols,
                                           .id0 = s->id0 });
    op->penalize(q, &(struct penalize_args){ .logits = b[0],
                                             .y = b[6],
                                             .sampler = b[1],
                                             .info = b[2],
                                             .count = b[5],
                                             .bias = b[4],
                                             .rows = rows,
                                             .cols = s->cols,
                                             .id0 = s->id0 });
}

static void penalize(struct lab *l)
{
    static const struct edit shapes[] = {
        { 300, 0, 0, { .frequency = 0.7, .presence = 0.3, .repetition = 1.3 } },
        { 300, 40, 90, { .repetition = 1.7, .biases = 1 } },
        { 2048, 2048, 9, { .frequency = -1.1, .min_tokens = 500, .ends = 2, .end = { 2050, 7 } } },
        { 64640,
          64640,
          100,
          { .presence = 1, .repetition = 0.5, .biases = 2, .min_tokens = 3, .ends = 1 } },
    };

    lab_begin(l, "penalize");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct edit *s = &shapes[i];
        size_t table = (size_t)(SLOTS_MAX * s->cols);
        struct row_info *info, *past;
        struct sampler *sampler;
        struct trial t;
        float *z, *bias;

        trial_begin(&t, l, run_penalize, s, LAB_ROWS, "%d columns, prompt %d", s->cols, s->prompt);
        t.alone = false;
        z = trial_in(&t, (size_t)(LAB_ROWS * s->cols), 10);
        z[s->cols + 4] = -INFINITY;
        sampler = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(*sampler) * SLOTS_MAX, 0, 0);
        for (int k = 0; k < SLOTS_MAX; k++) {
            sampler[k] = k == 2 ? (struct sampler){ 0 } : s->sampler;
            sampler[k].prompt = s->prompt + k;
        }
        info = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(*info) * LAB_ROWS, 0, 0);
        for (int r = 0; r < LAB_ROWS; r++)
            info[r] = (struct row_info){ .slot = r / 4,
                                         .pos = 97 + r % 4,
                                         .tok = s->id0 + lab_below(l, 6) - 1,
                                         .first = r / 4 * 4 };
        past = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(*past) * 1000, 0, 0);
        for (int r = 0; r < 1000; r++)
            past[r] =
                (struct row_info){ .slot = lab_below(l, SLOTS_MAX + 1) - 1,
                                   .pos = r,
                                   .tok = s->id0 + lab_below(l, r % 2 ? 12 : 2 * s->cols) - 2 };
        bias = trial_in(&t, table, 2);
        for (size_t k = 0; k < table; k += 17)
            bias[k] = k % 2 ? 0 : -INFINITY;
        trial_buf(&t, BUF_INOUT, BUF_BYTES, table * sizeof(uint32_t), 0, 0);
        trial_buf(&t, BUF_OUT, BUF_BYTES, sizeof(float) * (size_t)(LAB_ROWS * s->cols), 0, 0);
        lab_run(&t);
    }
    lab_end(l);
}

void ops_offer(struct lab *l)
{
    offer(l);
    penalize(l);
}
