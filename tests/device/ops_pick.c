/* Candidates, choices and the drafter's chain against the reference: no tolerance but the logits'.
 */
#include "tests/device/lab.h"

struct best {
    int cols, k, id0, kind; /* kind 0 random, 1 few values, 2 bad rows, 3 mostly -inf */
};

static void run_best(const struct trial *t, const struct op_table *op, struct queue *q,
                     void *const *b, int row, int rows)
{
    const struct best *s = t->shape;

    op->best(q, &(struct best_args){ .logits = (float *)b[0] + (size_t)row * (size_t)s->cols,
                                     .cand = (struct candidate *)b[1] + (size_t)row * (size_t)s->k,
                                     .rows = rows,
                                     .cols = s->cols,
                                     .k = s->k,
                                     .id0 = s->id0 });
}

static void fill_logits(struct lab *l, float *z, int rows, int cols, int kind)
{
    for (int i = 0; kind == 1 && i < rows * cols; i++)
        z[i] = (float)(lab_below(l, 4) - 2) * 0.0f + (float)lab_below(l, 3);
    for (int i = 0; kind == 1 && i < rows * cols; i += 7)
        z[i] = -0.0f;
    for (int r = 1; kind == 2 && r < rows; r += 3)
        z[r * cols + lab_below(l, cols)] = r % 2 ? NAN : INFINITY;
    for (int i = 0; kind == 3 && i < rows * cols; i++)
        z[i] = lab_below(l, 50) ? -INFINITY : z[i];
    for (int i = 0; kind == 3 && i < cols; i++)
        z[i] = -INFINITY;
}

static void best(struct lab *l)
{
    static const struct best shapes[] = {
        { 4096, 1, 0, 0 },    { 4096, 1, 77, 1 },   { 4096, 1, 0, 2 },    { 301, 1, 0, 3 },
        { 4096, 64, 0, 0 },   { 2048, 128, 9, 1 },  { 5000, 64, 0, 2 },   { 301, 64, 5, 3 },
        { 30, 64, 0, 0 },     { 1, 1, 0, 0 },       { 3000, 1024, 0, 0 }, { 70000, 128, 1, 0 },
        { 4096, 1000, 0, 1 }, { 1024, 1024, 0, 1 },
    };

    lab_begin(l, "best");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct best *s = &shapes[i];
        struct trial t;
        float *z;

        trial_begin(&t, l, run_best, s, LAB_ROWS, "%d of %d kind %d", s->k, s->cols, s->kind);
        z = trial_in(&t, (size_t)(LAB_ROWS * s->cols), 20);
        fill_logits(l, z, LAB_ROWS, s->cols, s->kind);
        trial_buf(&t, BUF_OUT, BUF_BYTES, sizeof(struct candidate) * (size_t)(s->k * LAB_ROWS),
                  sizeof(struct candidate) * (size_t)s->k, 0);
        lab_run(&t);
    }
    lab_end(l);
}

struct vote {
    int ranks, width[RANKS_MAX], rows, kind;
    struct sampler sampler;
    float by;
};

static int widest(const struct vote *s)
{
    int w = 0;

    for (int i = 0; i < s->ranks; i++)
        w = s->width[i] > w ? s->width[i] : w;
    return w;
}

static int vocabulary(const struct vote *s)
{
    int n = 0;

    for (int i = 0; i < s->ranks; i++)
        n += s->width[i];
    return n;
}

static void run_choose(const struct trial *t, const struct op_table *op, struct queue *q,
                       void *const *b, int row, int rows)
{
    const struct vote *s = t->shape;
    struct choose_args a = { .best = b[0],
                             .full = b[1],
                             .sampler = b[2],
                             .info = (struct row_info *)b[3] + row,
                             .choice = (int32_t *)b[4] + row,
                             .scratch = b[5],
                             .ranks = s->ranks,
                             .rows = rows,
                             .ldf = widest(s) };

    memcpy(a.width, s->width, sizeof(a.width));
    if (s->ranks == 1) {
        a.best += row;
        a.full += (size_t)row * (size_t)a.ldf;
    }
    op->choose(q, &a);
}

/* What a rank's best would be: the first of the largest. */
static void fill_best(const struct vote *s, const float *full, struct candidate *best)
{
    int first = 0, ldf = widest(s);

    for (int i = 0; i < s->ranks; first += s->width[i++])
        for (int r = 0; r < s->rows; r++) {
            const float *z = full + ((size_t)i * (size_t)s->rows + (size_t)r) * (size_t)ldf;
            struct candidate c = { -INFINITY, -1 };

            for (int k = 0; k < s->width[i]; k++)
                if (z[k] > c.z)
                    c = (struct candidate){ z[k], first + k };
            best[i * s->rows + r] = c;
        }
}

static void choose(struct lab *l)
{
#define SAMPLER(t, p, m, k)                                                                        \
    {                                                                                              \
        .temperature = t, .top_p = p, .min_p = m, .top_k = k, .seed = 77                           \
    }
    static const struct vote shapes[] = {
        { 1, { 4096 }, 16, 0, SAMPLER(0, 1, 0, 0), 10 },
        { 1, { 4096 }, 16, 1, SAMPLER(0, 1, 0, 0), 10 },
        { 1, { 4096 }, 16, 0, SAMPLER(1, 1, 0, 0), 10 },
        { 1, { 4096 }, 40, 0, SAMPLER(0.7, 0.9, 0, 0), 8 },
        { 1, { 4096 }, 16, 0, SAMPLER(1.3, 0.95, 0.02, 50), 8 },
        { 1, { 4096 }, 16, 1, SAMPLER(1, 0.5, 0, 0), 8 },
        { 1, { 4096 }, 16, 1, SAMPLER(1, 1, 0, 20), 8 },
        { 1, { 5003 }, 16, 0, SAMPLER(1, 0.999, 0, 3000), 1 },
        { 1, { 5003 }, 16, 0, SAMPLER(2, 0.99, 0, 0), 0.1f },
        { 1, { 4096 }, 16, 0, SAMPLER(0.9, 1, 0.1, 0), 5 },
        { 1, { 301 }, 16, 3, SAMPLER(1, 0.9, 0, 5), 5 },
        { 1, { 1 }, 16, 0, SAMPLER(1, 0.9, 0, 5), 5 },
        { 2, { 2000, 1999 }, 16, 0, SAMPLER(1, 0.9, 0, 0), 8 },
        { 2, { 2000, 1999 }, 16, 1, SAMPLER(0, 1, 0, 0), 8 },
        { 3, { 100, 0, 7 }, 16, 0, SAMPLER(1e-9, 0.8, 0, 40), 8 },
        { 1, { 70000 }, 8, 0, SAMPLER(1, 0.9, 0, 0), 12 },
    };

    lab_begin(l, "choose");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct vote *s = &shapes[i];
        size_t full = (size_t)(s->ranks * s->rows * widest(s));
        struct candidate *best;
        struct sampler *sampler;
        struct trial t;
        float *z;

        trial_begin(&t, l, run_choose, s, s->rows,
                    "%d tokens of %d ranks, temperature %g p %g k %d", vocabulary(s), s->ranks,
                    s->sampler.temperature, s->sampler.top_p, s->sampler.top_k);
        t.alone = s->ranks == 1;
        best = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(*best) * (size_t)(s->ranks * s->rows), 0, 0);
        z = trial_in(&t, full, s->by);
        if (s->kind == 1)
            fill_logits(l, z, s->ranks * s->rows, widest(s), 1);
        for (size_t k = 0; s->kind == 3 && k < full; k++)
            z[k] = k % 11 ? -INFINITY : z[k];
        fill_best(s, z, best);
        sampler = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(*sampler) * SLOTS_MAX, 0, 0);
        for (int k = 0; k < SLOTS_MAX; k++) {
            sampler[k] = s->sampler;
            sampler[k].seed += (uint64_t)k;
        }
        sampler[1].temperature = 0; /* greedy rows among sampled ones */
        trial_info(&t, NULL, SLOTS_MAX);
        trial_buf(&t, BUF_OUT, BUF_BYTES, sizeof(int32_t) * (size_t)s->rows, sizeof(int32_t), 0);
        trial_scratch(&t, choose_scratch((size_t)vocabulary(s)) * (size_t)l->dev->workers);
        lab_run(&t);
    }
    lab_end(l);
}

struct chain {
    int ranks, k, block, dim, rank, vocab, bad; /* bad: row with a NaN or without candidates */
    enum dtype dtype;
    struct sampler sampler;
};

static void run_markov(const struct trial *t, const struct op_table *op, struct queue *q,
                       void *const *b, int row, int rows)
{
    const struct chain *s = t->shape;
    struct table embed = { b[1], s->dtype, s->vocab, s->rank };
    struct table head = { b[2], s->dtype, s->vocab, s->rank };

    op->markov(q, &(struct markov_args){ .cand = b[0],
                                         .embed = &embed,
                                         .head = &head,
                                         .h = b[3],
                                         .proj = b[4],
                                         .sampler = b[5],
                                         .info = b[6],
                                         .draft = b[7],
                                         .conf = b[8],
                                         .z = b[9],
                                         .rows = rows,
                                         .block = s->block,
                                         .ranks = s->ranks,
                                         .k = s->k,
                                         .dim = s->dim });
}

static void fill_chain(struct trial *t, const struct chain *s)
{
    struct lab *l = t->lab;
    size_t table = (size_t)(s->vocab * s->rank);
    struct candidate *cand =
        trial_buf(t, BUF_IN, BUF_BYTES, sizeof(*cand) * (size_t)(s->ranks * t->rows * s->k), 0, 0);

    for (int i = 0; i < s->ranks * t->rows; i++)
        for (int k = 0; k < s->k; k++) {
            int share = s->vocab / s->ranks, rank = i / t->rows;

            cand[i * s->k + k] = (struct candidate){ 8 - 0.3f * (float)k + lab_uniform(l),
                                                     rank * share + (k * 7 + i) % share };
            if (k >= share || (k == s->k - 1 && i % 3 == 0 && s->k > 1))
                cand[i * s->k + k] = (struct candidate){ -INFINITY, -1 };
        }
    if (s->bad >= 0) {
        cand[s->bad * s->k] = (struct candidate){ NAN, -1 };
        for (int k = 0; k < s->k; k++)
            cand[(s->bad + s->block) * s->k + k] = (struct candidate){ -INFINITY, -1 };
    }
    for (int i = 0; i < 2; i++) {
        void *data = trial_buf(t, BUF_IN, BUF_BYTES, table * dtype_bytes(s->dtype), 0, 0);

        for (size_t k = 0; k < table; k++) {
            float v = lab_uniform(l) * 0.4f;

            if (s->dtype == DTYPE_F32)
                ((float *)data)[k] = v;
            else
                ((uint16_t *)data)[k] = s->dtype == DTYPE_F16 ? f16_from_f32(v) : bf16_from_f32(v);
        }
    }
}

static void markov(struct lab *l)
{
    static const struct chain shapes[] = {
        { 1, 64, 5, 256, 64, 4096, -1, DTYPE_BF16, SAMPLER(0, 1, 0, 0) },
        { 2, 128, 5, 256, 64, 4096, -1, DTYPE_BF16, SAMPLER(0.8, 0.9, 0, 0) },
        { 2, 33, 7, 100, 257, 999, -1, DTYPE_F32, SAMPLER(1, 1, 0.05, 10) },
        { 1, 1, 3, 16, 8, 50, -1, DTYPE_F16, SAMPLER(1, 0.5, 0, 3) },
        { 1, 16, 4, 32, 1024, 200, 2, DTYPE_BF16, SAMPLER(0, 1, 0, 0) },
        { 2, 1024, 2, 64, 16, 3000, -1, DTYPE_F32, SAMPLER(1, 0.99, 0, 0) },
    };

    lab_begin(l, "markov");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct chain *s = &shapes[i];
        int segs = 3;
        struct sampler *sampler;
        struct row_info *info;
        struct trial t;

        trial_begin(&t, l, run_markov, s, segs * s->block,
                    "%d ranks of %d, rank %d, temperature %g bad %d", s->ranks, s->k, s->rank,
                    s->sampler.temperature, s->bad);
        t.alone = false; /* a row stands on the draft of the row before */
        fill_chain(&t, s);
        trial_in(&t, (size_t)(t.rows * s->dim), 1);
        trial_in(&t, (size_t)(s->dim + s->rank), 0.3f);
        sampler = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(*sampler) * SLOTS_MAX, 0, 0);
        for (int k = 0; k < SLOTS_MAX; k++)
            sampler[k] = s->sampler;
        info = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(*info) * (size_t)t.rows, 0, 0);
        for (int r = 0; r < t.rows; r++)
            info[r] = (struct row_info){ .slot = r / s->block,
                                         .pos = 900 + r % s->block,
                                         .tok = lab_below(l, s->vocab),
                                         .first = r / s->block * s->block };
        trial_buf(&t, BUF_OUT, BUF_BYTES, sizeof(int32_t) * (size_t)t.rows, sizeof(int32_t), 0);
        trial_out(&t, 1, 1e-5);
        trial_out(&t, (size_t)(2 * s->ranks * s->k), 1e-5); /* ids pass as tiny floats */
        lab_run(&t);
    }
    lab_end(l);
}

void ops_pick(struct lab *l)
{
    best(l);
    choose(l);
    markov(l);
}
