/* What is stored in states, bit for bit, and the compressor. */
#include "tests/device/lab.h"

static const int block_of[] = {
    [CODEC_F32] = 1, [CODEC_QW] = 32, [CODEC_QC] = 16, [CODEC_QI] = 32
};

/* Values where a quantiser's cases lie: zeros of both signs, ties, tiny, huge, not finite. */
static void spice(struct lab *l, float *x, size_t n)
{
    static const float odd[] = { 0,     -0.0f,   1e-30f, -1e-45f, 448, 449, 464,   6, 0.25f,
                                 0.75f, 0x1p-9f, 1e-4f,  3e38f,   240, 2.5, -3.5f, 5, 0.125f };

    for (size_t i = 0; i < n; i++)
        x[i] *= ldexpf(1, lab_below(l, 24) - 14);
    for (size_t i = 0; i < n; i += 1 + (size_t)lab_below(l, 40))
        x[i] = odd[lab_below(l, COUNT(odd))];
}

struct store {
    enum codec codec;
    int cols, cap, ratio, ldx, col0, width, slots;
};

static void run_requant(const struct trial *t, const struct op_table *op, struct queue *q,
                        void *const *b, int row, int rows)
{
    const struct store *s = t->shape;

    op->requant(q, &(struct requant_args){ .x = (float *)b[0] + (size_t)row * (size_t)s->cols,
                                           .rows = rows,
                                           .cols = s->cols,
                                           .codec = s->codec });
}

static void requant(struct lab *l)
{
    static const int cols[] = { 32, 64, 96, 512, 16, 48 };

    lab_begin(l, "requant");
    for (int c = CODEC_QW; c <= CODEC_QI; c++)
        for (int i = 0; i < COUNT(cols); i++) {
            struct store s = { .codec = c, .cols = cols[i] };
            struct trial t;
            float *x;

            if (cols[i] % block_of[c])
                continue;
            trial_begin(&t, l, run_requant, &s, 64, "codec %d cols %d", c, cols[i]);
            x = trial_inout(&t, (size_t)cols[i], 1, 0);
            spice(l, x, 64 * (size_t)cols[i]);
            x[3] = INFINITY;
            x[cols[i]] = NAN;
            lab_run(&t);
        }
    lab_end(l);
}

static struct state_view view_of(const struct store *s, void *base)
{
    size_t row = codec_bytes(s->codec, s->cols);

    return (struct state_view){ .base = base,
                                .slot_stride = (row * (size_t)s->cap + 255) / 256 * 256,
                                .row_bytes = row,
                                .cap = s->cap,
                                .codec = s->codec,
                                .cols = s->cols };
}

static void run_put(const struct trial *t, const struct op_table *op, struct queue *q,
                    void *const *b, int row, int rows)
{
    const struct store *s = t->shape;
    int ldx = s->ldx ? s->ldx : s->cols;

    op->row_put(q, &(struct row_put_args){ .x = (float *)b[0] + (size_t)row * (size_t)ldx,
                                           .view = view_of(s, b[2]),
                                           .info = (struct row_info *)b[1] + row,
                                           .rows = rows,
                                           .ratio = s->ratio,
                                           .ldx = s->ldx,
                                           .col0 = s->col0,
                                           .width = s->width });
}

#define BESIDE 1280 /* values of a row that is normed beside */

struct kept {
    struct store s;
    int dims;
    bool normed;
    enum round round;
};

static void run_keep(const struct trial *t, const struct op_table *op, struct queue *q,
                     void *const *b, int row, int rows)
{
    const struct kept *k = t->shape;
    struct row_keep stored = { .x = (float *)b[0] + (size_t)row * (size_t)k->s.cols,
                               .w = k->normed ? b[3] : NULL,
                               .freq = b[4],
                               .view = view_of(&k->s, b[2]),
                               .info = (struct row_info *)b[1] + row,
                               .rows = rows,
                               .dims = k->dims,
                               .ratio = k->s.ratio,
                               .eps = 1e-20f,
                               .round = k->round };
    struct row_keep beside = { .x = (float *)b[5] + (size_t)row * BESIDE,
                               .w = b[6],
                               .view.cols = BESIDE,
                               .rows = rows,
                               .eps = 1e-6f,
                               .round = k->round };

    op->row_keeps(q, &(struct row_keeps_args){ .of = { beside, stored }, .n = 2 });
}

/* Not normed, and normed with a single value in a row, so that the sum has one term: bit for
 * bit. */
static void row_keeps(struct lab *l)
{
    static const struct kept shapes[] = {
        { { CODEC_QW, 512, 40, 1, 0, 0, 0, 2 }, 64, false, ROUND_BF16 },
        { { CODEC_QC, 512, 20, 2, 0, 0, 0, 2 }, 64, false, ROUND_BF16 },
        { { CODEC_QI, 128, 20, 2, 0, 0, 0, 2 }, 64, true, ROUND_BF16 },
        { { CODEC_F32, 128, 40, 1, 0, 0, 0, 2 }, 32, true, ROUND_NONE },
        { { CODEC_F32, 1024, 40, 0, 0, 0, 0, 1 }, 1024, false, ROUND_NONE },
    };

    lab_begin(l, "row_keeps");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct kept *k = &shapes[i];
        const struct store *s = &k->s;
        size_t slot = (codec_bytes(s->codec, s->cols) * (size_t)s->cap + 255) / 256 * 256;
        int pos[LAB_ROWS];
        struct trial t;
        float *x;

        for (int r = 0; r < LAB_ROWS; r++)
            pos[r] = r;
        trial_begin(&t, l, run_keep, k, LAB_ROWS, "codec %d cols %d dims %d normed %d", s->codec,
                    s->cols, k->dims, k->normed);
        x = trial_in(&t, (size_t)(LAB_ROWS * s->cols), 2);
        t.buf[0].kind = BUF_SPENT;
        for (int c = 0; k->normed && c < LAB_ROWS * s->cols; c++)
            x[c] = c % s->cols == c / s->cols * 8 + 1 ? x[c] : 0;
        trial_info(&t, pos, s->slots);
        trial_buf(&t, BUF_INOUT, BUF_BYTES, slot * (size_t)s->slots, 0, 0);
        trial_in(&t, (size_t)s->cols, 1);
        trial_in(&t, (size_t)k->dims / 2, 0.1f);
        trial_inout(&t, BESIDE, 1, k->round == ROUND_BF16 ? 8e-3 : 3e-6);
        trial_in(&t, BESIDE, 1);
        t.alone = false; /* the state holds what all rows stored */
        lab_run(&t);
    }
    lab_end(l);
}

static void row_put(struct lab *l)
{
    static const struct store shapes[] = {
        { CODEC_F32, 7, 40, 0, 0, 0, 0, 1 },     { CODEC_F32, 512, 17, 1, 0, 0, 0, 3 },
        { CODEC_F32, 64, 20, 2, 32, 32, 32, 2 }, { CODEC_F32, 64, 20, 1, 48, 0, 32, 2 },
        { CODEC_QW, 32, 33, 1, 0, 0, 0, 2 },     { CODEC_QW, 512, 19, 1, 0, 0, 0, 4 },
        { CODEC_QC, 512, 16, 2, 0, 0, 0, 4 },    { CODEC_QC, 16, 16, 4, 0, 0, 0, 1 },
        { CODEC_QC, 48, 16, 1, 64, 0, 48, 2 },   { CODEC_QI, 128, 18, 1, 0, 0, 0, 3 },
        { CODEC_QI, 32, 40, 4, 0, 0, 0, 1 },
    };

    lab_begin(l, "row_put");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct store *s = &shapes[i];
        int pos[LAB_ROWS], ldx = s->ldx ? s->ldx : s->cols;
        struct trial t;
        float *x;

        trial_begin(&t, l, run_put, s, LAB_ROWS, "codec %d cols %d ratio %d", s->codec, s->cols,
                    s->ratio);
        t.alone = false; /* the state is one output of all rows */
        for (int r = 0; r < LAB_ROWS; r++)
            pos[r] = 1000 + r / s->slots;
        x = trial_in(&t, (size_t)(ldx * LAB_ROWS), 1);
        spice(l, x, (size_t)(ldx * LAB_ROWS));
        trial_info(&t, pos, s->slots);
        trial_buf(&t, BUF_INOUT, BUF_BYTES, view_of(s, NULL).slot_stride * (size_t)s->slots, 0, 0);
        lab_run(&t);
    }
    lab_end(l);
}

struct gotten {
    struct store s;
    int offset;
};

static void run_get(const struct trial *t, const struct op_table *op, struct queue *q,
                    void *const *b, int row, int rows)
{
    const struct gotten *k = t->shape;

    op->row_get(q, &(struct row_get_args){ .view = view_of(&k->s, b[0]),
                                           .info = (struct row_info *)b[1] + row,
                                           .y = (float *)b[2] + (size_t)row * (size_t)k->s.cols,
                                           .rows = rows,
                                           .offset = k->offset });
}

/* Rows before the first one are zeros: of each slot the first rows, by the offset. */
static void row_get(struct lab *l)
{
    static const struct gotten shapes[] = { { { CODEC_F32, 7, 40, 0, 0, 0, 0, 1 }, 0 },
                                            { { CODEC_F32, 512, 40, 0, 0, 0, 0, 3 }, -1 },
                                            { { CODEC_F32, 300, 70, 0, 0, 0, 0, 2 }, -5 },
                                            { { CODEC_F32, 5120, 33, 0, 0, 0, 0, 2 }, 2 } };

    lab_begin(l, "row_get");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct gotten *k = &shapes[i];
        int pos[LAB_ROWS];
        struct trial t;

        trial_begin(&t, l, run_get, k, LAB_ROWS, "cols %d offset %d", k->s.cols, k->offset);
        for (int r = 0; r < LAB_ROWS; r++)
            pos[r] = r / k->s.slots;
        trial_in(&t, view_of(&k->s, NULL).slot_stride / sizeof(float) * (size_t)k->s.slots, 1);
        trial_info(&t, pos, k->s.slots);
        trial_out(&t, (size_t)k->s.cols, 0);
        lab_run(&t);
    }
    lab_end(l);
}

struct group {
    int cols, ratio, cap;
    enum round round;
};

static void run_pool(const struct trial *t, const struct op_table *op, struct queue *q,
                     void *const *b, int row, int rows)
{
    const struct group *s = t->shape;
    struct store raw = { .codec = CODEC_F32, .cols = 2 * s->cols, .cap = s->cap };

    op->pool(q, &(struct pool_args){ .raw = view_of(&raw, b[0]),
                                     .info = (struct row_info *)b[1] + row,
                                     .y = (float *)b[2] + (size_t)row * (size_t)s->cols,
                                     .rows = rows,
                                     .cols = s->cols,
                                     .ratio = s->ratio,
                                     .round = s->round });
}

static void pool(struct lab *l)
{
    static const struct group shapes[] = { { 1, 2, 17, ROUND_NONE },
                                           { 128, 2, 17, ROUND_BF16 },
                                           { 512, 4, 19, ROUND_NONE },
                                           { 300, 3, 3, ROUND_NONE } };

    lab_begin(l, "pool");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct group *s = &shapes[i];
        struct store raw = { .codec = CODEC_F32, .cols = 2 * s->cols, .cap = s->cap };
        int pos[LAB_ROWS];
        struct trial t;

        for (int r = 0; r < LAB_ROWS; r++)
            pos[r] = 500 + r;
        trial_begin(&t, l, run_pool, s, LAB_ROWS, "cols %d ratio %d round %d", s->cols, s->ratio,
                    s->round);
        trial_in(&t, view_of(&raw, NULL).slot_stride / sizeof(float) * 2, 4);
        trial_info(&t, pos, 2);
        trial_out(&t, (size_t)s->cols, s->round ? 0x1p-7 : 1e-6);
        lab_run(&t);
    }
    lab_end(l);
}

void ops_state(struct lab *l)
{
    requant(l);
    row_put(l);
    row_keeps(l);
    row_get(l);
    pool(l);
}
