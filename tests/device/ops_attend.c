/* The indexer's exact selection and attention against the reference. */
#include "tests/device/lab.h"

#include "kernels/ref/codec.h"
#include "src/base/log.h"

/* `rows` made-up rows of a state, values around `off`, every seventh `loud` times as large, stored
 * by its codec; behind them the bytes are poison. */
static unsigned char *stored_rows(struct trial *t, enum codec c, int cols, int cap, int slots,
                                  int rows, float off, float by, float loud)
{
    size_t row = codec_bytes(c, cols);
    unsigned char *base = trial_buf(t, BUF_IN, BUF_BYTES, row * (size_t)cap * (size_t)slots, 0, 0);
    float *x = malloc((size_t)cols * sizeof(float));

    memset(base, 0xff, row * (size_t)cap * (size_t)slots);
    for (int s = 0; s < slots; s++)
        for (int r = 0; r < rows; r++) {
            for (int k = 0; k < cols; k++)
                x[k] = (off + lab_uniform(t->lab) * by) * (r % 7 == 3 ? loud : 1);
            codec_encode(c, x, cols, base + ((size_t)s * (size_t)cap + (size_t)r) * row);
        }
    free(x);
    return base;
}

static struct state_view view_of(enum codec c, int cols, int cap, void *base)
{
    size_t row = codec_bytes(c, cols);

    return (struct state_view){ .base = base,
                                .slot_stride = row * (size_t)cap,
                                .row_bytes = row,
                                .cap = cap,
                                .codec = c,
                                .cols = cols };
}

struct index {
    enum codec codec;
    int heads, dim, ratio, topk, blocks, block, pos, cap;
    int cand; /* 0 none, 1 written, 2 read */
    float by; /* of keys and queries; small integers make ties */
    enum codec in;
    float off; /* what keys and queries are around: scores that are close */
};

static void run_select(const struct trial *t, const struct op_table *op, struct queue *q,
                       void *const *b, int row, int rows)
{
    const struct index *s = t->shape;
    size_t r = (size_t)row;

    op->select(q, &(struct select_args){
                      .q = (float *)b[0] + r * (size_t)(s->heads * s->dim),
                      .wt = (float *)b[1] + r * (size_t)s->heads,
                      .keys = view_of(s->codec, s->dim, s->cap, b[2]),
                      .info = (struct row_info *)b[3] + row,
                      .cand_in = s->cand == 2 ? (int32_t *)b[4] + r * (size_t)s->blocks : NULL,
                      .cand_out = s->cand == 1 ? (int32_t *)b[4] + r * (size_t)s->blocks : NULL,
                      .sel = (int32_t *)b[5] + r * (size_t)s->topk,
                      .scratch = b[6],
                      .rows = rows,
                      .heads = s->heads,
                      .dim = s->dim,
                      .ratio = s->ratio,
                      .topk = s->topk,
                      .blocks = s->blocks,
                      .block = s->block,
                      .in = s->in,
                      .scale = 0.0625f });
}

/* Blocks as a candidate layer leaves them: ascending, the newest last, or all of them. */
static void fill_candidates(struct lab *l, const struct index *s, const struct row_info *info,
                            int rows, int32_t *cand)
{
    for (int r = 0; r < rows; r++) {
        int n = (info[r].pos + 1) / s->ratio, all = (n + s->block - 1) / s->block, at = 0;
        int32_t *c = cand + r * s->blocks;

        for (int b = 0; b < all && at < s->blocks; b++) {
            int left = all - b, room = s->blocks - at;

            if (left <= room || lab_below(l, left) < room || b == all - 1)
                c[at++] = b;
        }
        if (at == s->blocks && all > 0)
            c[at - 1] = all - 1;
        while (at < s->blocks)
            c[at++] = -1;
    }
}

static void select_rows(struct lab *l)
{
    static const struct index shapes[] = {
        { CODEC_F32, 4, 128, 1, 32, 16, 8, 700, 800, 0, 1 },
        { CODEC_QI, 4, 128, 2, 32, 16, 8, 900, 500, 1, 2 },
        { CODEC_QI, 64, 128, 1, 512, 16, 64, 3000, 3100, 1, 2 },
        { CODEC_QI, 4, 128, 1, 32, 16, 8, 900, 1000, 2, 2 },
        { CODEC_F32, 3, 16, 4, 5, 3, 4, 60, 40, 1, 1 },
        { CODEC_F32, 1, 16, 1, 8, 4, 2, 40, 64, 0, 0 },
        { CODEC_F32, 2, 32, 1, 16, 4, 2, 300, 400, 1, 0 },
        { CODEC_QI, 8, 512, 1, 7, 5, 16, 260, 300, 2, 3 },
        { CODEC_QI, 4, 128, 2, 512, 0, 0, 40, 100, 0, 2 },
        { CODEC_QI, 32, 128, 1, 512, 0, 0, 5000, 5100, 0, 2, CODEC_QI },
        { CODEC_QI, 32, 128, 1, 512, 0, 0, 4000, 4100, 0, 0.1f, CODEC_QI },
        { CODEC_QI, 32, 128, 1, 512, 0, 0, 5000, 5100, 0, 12.1f, CODEC_QI }, /* scales of 2 and 4 */
        { CODEC_QI, 4, 128, 2, 32, 16, 8, 900, 500, 1, 2, CODEC_QI },
        { CODEC_QI, 20, 128, 1, 512, 100, 8, 3000, 3100, 2, 2, CODEC_QI },
        { CODEC_QI, 9, 128, 1, 1000, 16, 64, 3000, 3100, 1, 2, CODEC_QI },
        /* more than a list has: slots whose keys no bulk copy can bring, and candidates */
        { CODEC_QI, 32, 128, 1, 512, 0, 0, 5000, 5101, 0, 2, CODEC_QI },
        { CODEC_QI, 20, 128, 1, 512, 80, 64, 5500, 5600, 2, 2, CODEC_QI },
        { CODEC_QI, 4, 128, 1, 32, 4, 8, 900, 1000, 2, 2, CODEC_QI },
        { CODEC_QI, 32, 128, 1, 600, 0, 0, 4000, 4100, 0, -1, CODEC_QI }, /* all scores are 0 */
        { CODEC_QI, 8, 128, 1, 600, 0, 0, 9000, 9100, 0, -1, CODEC_QI },
        { CODEC_QI, 20, 128, 1, 512, 0, 0, 9000, 9100, 0, 1, CODEC_QI, 8 },
        { CODEC_QI, 16, 128, 1, 40, 0, 0, 2000, 2100, 0, 1, CODEC_QI, 8 },
        { CODEC_QI, 1, 128, 1, 512, 0, 0, 140000, 140100, 0, 2, CODEC_QI },
    };

    lab_begin(l, "select");
    for (int i = 0; i < COUNT(shapes) - l->quick; i++) { /* the last one takes long under a tool */
        const struct index *s = &shapes[i];
        int rows = i == 0 ? 37 : LAB_ROWS, *pos = malloc(sizeof(int) * 64);
        size_t cand = (size_t)(s->blocks ? s->blocks : 1);
        struct row_info *info;
        struct trial t;
        int32_t *c;
        float *x, by = s->by > 0 ? s->by : 1;

        for (int r = 0; r < rows; r++)
            pos[r] = r < 3 ? r * s->ratio : s->pos - 5 * r;
        trial_begin(&t, l, run_select, s, rows, "codec %d dim %d topk %d blocks %d cand %d",
                    s->codec, s->dim, s->topk, s->blocks, s->cand);
        x = trial_in(&t, (size_t)(rows * s->heads * s->dim), by);
        if (s->by == 0) /* scores of few different values, of both zeros too: all ties */
            for (int k = 0; k < rows * s->heads * s->dim; k++)
                x[k] = k % 5 ? 0 : -1;
        for (int k = 0; s->off && k < rows * s->heads * s->dim; k++)
            x[k] += s->off;
        for (int k = 0; s->by < 0 && k < rows * s->heads * s->dim; k++)
            x[k] = 0;
        for (int k = 0; s->in == CODEC_QI && k < rows * s->heads; k++) {
            unsigned char row[68];

            codec_encode(s->in, x + k * s->dim, s->dim, row);
            codec_decode(s->in, row, s->dim, x + k * s->dim);
        }
        trial_in(&t, (size_t)(rows * s->heads), 1);
        stored_rows(&t, s->codec, s->dim, s->cap, 2, s->pos / s->ratio + 1, s->off, by, 1);
        info = trial_info(&t, pos, 2);
        c = trial_buf(&t, s->cand == 1 ? BUF_OUT : BUF_IN, BUF_BYTES,
                      cand * (size_t)rows * sizeof(int32_t), cand * sizeof(int32_t), 0);
        if (s->cand == 2)
            fill_candidates(l, s, info, rows, c);
        trial_buf(&t, BUF_OUT, BUF_BYTES, (size_t)(s->topk * rows) * sizeof(int32_t),
                  (size_t)s->topk * sizeof(int32_t), 0);
        trial_scratch(&t, (size_t)l->dev->workers * (size_t)s->cap * sizeof(float));
        if (s->by == 0) {
            float *keys = t.buf[2].host;

            for (int k = 0; k < s->cap * 2 * s->dim; k++)
                keys[k] = (float)(lab_below(l, 3) - 1);
        }
        lab_run(&t);
        free(pos);
    }
    lab_end(l);
}

struct look {
    enum codec win, more;
    int heads, dim, span, topk, block, pos, floor;
    enum attend_span mode;
    enum round round;
    int dims;   /* turned by position; 0: none */
    int rows;   /* 0: LAB_ROWS */
    bool whole; /* all rows under a tool too */
    bool large; /* a slower kernel may run */
    float loud; /* every seventh key is so many times as large; 0: none is */
};

#define LOOK_BUFS 10 /* of a call */

static int look_rows(const struct look *s)
{
    return s->rows ? s->rows : LAB_ROWS;
}

static void call_attend(const struct look *s, const struct op_table *op, struct queue *q,
                        void *const *b, int row, int rows)
{
    size_t r = (size_t)row, width = (size_t)(s->heads * s->dim);

    op->attend(q, &(struct attend_args){
                      .q = (float *)b[0] + r * width,
                      .sink = b[1],
                      .freq = s->dims ? b[9] : NULL,
                      .win = view_of(s->win, s->dim, s->span + s->block + look_rows(s), b[2]),
                      .more = s->topk ? view_of(s->more, s->dim, s->topk * 2, b[3])
                                      : (struct state_view){ 0 },
                      .head = s->floor ? b[4] : NULL,
                      .info = (struct row_info *)b[5] + row,
                      .sel = (int32_t *)b[6] + r * (size_t)s->topk,
                      .o = (float *)b[7] + r * width,
                      .scratch = b[8],
                      .rows = rows,
                      .heads = s->heads,
                      .dim = s->dim,
                      .span = s->span,
                      .topk = s->topk,
                      .block = s->block,
                      .dims = s->dims,
                      .mode = s->mode,
                      .scale = 1.0f / sqrtf((float)s->dim),
                      .round = s->round });
}

static void run_attend(const struct trial *t, const struct op_table *op, struct queue *q,
                       void *const *b, int row, int rows)
{
    call_attend(t->shape, op, q, b, row, rows);
}

/* The buffers of a call of attend; row r is of slot r % slots. */
static void fill_attend(struct trial *t, const struct look *s, int slots)
{
    int rows = t->rows, cap = s->span + s->block + look_rows(s), pos[64];
    int keys = s->span + s->block + s->topk, first = t->bufs;
    size_t width = (size_t)(s->heads * s->dim);
    float loud = s->loud > 0 ? s->loud : 1;
    struct slot_head *head;
    struct row_info *info;
    int32_t *sel;
    float *q;

    for (int r = 0; r < rows; r++)
        pos[r] = s->pos + r;
    q = trial_in(t, width * (size_t)rows, 2);
    t->buf[first].kind = s->dims ? BUF_SPENT : BUF_IN;
    for (size_t k = 0; s->dims && s->round && k < width * (size_t)rows; k++)
        q[k] = bf16_round(q[k]); /* as a product leaves them */
    trial_in(t, (size_t)s->heads, 3);
    stored_rows(t, s->win, s->dim, cap, 2, cap, 0, 2, loud);
    stored_rows(t, s->more, s->dim, s->topk * 2 + 1, 2, s->topk * 2, 0, 2, loud);
    head = trial_buf(t, BUF_IN, BUF_BYTES, sizeof(*head) * 2, 0, 0);
    head[0].floor = head[1].floor = s->floor;
    info = trial_info(t, pos, slots);
    if (s->mode == ATTEND_BLOCK) {
        t->alone = false; /* a row reads where its slot's first row stands */
        for (int r = 0; r < rows; r++)
            info[r].first = r / 5 * 5;
    }
    sel = trial_buf(t, BUF_IN, BUF_BYTES, (size_t)(s->topk * rows + 1) * sizeof(*sel), 0, 0);
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < s->topk; k++)
            sel[r * s->topk + k] = k < s->topk - r ? k + lab_below(t->lab, 2) * (k % 2) : -1;
    trial_out(t, width, s->round ? 0x1p-7 : 2e-6 * (1 + log2(keys)));
    trial_scratch(t, sizeof(float) * (size_t)t->lab->dev->workers *
                         attend_scratch(s->dim, s->span, s->block, s->topk));
    trial_in(t, (size_t)s->dims / 2 + 1, 0.1f);
}

/* Counts lines about kernels that had no room; all are written as without it. */
static void count_slower(void *arg, enum log_level level, const char *line)
{
    (void)level;
    *(int *)arg += strstr(line, "a slower kernel runs") != NULL;
    fprintf(stderr, "%s\n", line);
}

static void attend(struct lab *l)
{
    static const struct look shapes[] = {
        { CODEC_F32, CODEC_F32, 1, 16, 4, 3, 0, 100, 0, ATTEND_CAUSAL, ROUND_NONE },
        { CODEC_QW, CODEC_QC, 4, 128, 64, 32, 0, 500, 0, ATTEND_CAUSAL, ROUND_NONE },
        { CODEC_QW, CODEC_QC, 4, 128, 64, 32, 0, 500, 0, ATTEND_CAUSAL, ROUND_BF16 },
        { CODEC_QW, CODEC_QC, 33, 512, 128, 512, 0, 2000, 0, ATTEND_CAUSAL, ROUND_NONE },
        { CODEC_QW, CODEC_QC, 5, 512, 128, 0, 0, 40, 0, ATTEND_CAUSAL, ROUND_BF16 },
        { CODEC_QW, CODEC_QC, 4, 128, 64, 0, 5, 300, 250, ATTEND_BLOCK, ROUND_BF16 },
        { CODEC_QW, CODEC_QC, 64, 512, 128, 512, 0, 900, 0, ATTEND_CAUSAL, ROUND_BF16, 64 },
        { CODEC_QW, CODEC_QC, 17, 256, 128, 100, 0, 3, 0, ATTEND_CAUSAL, ROUND_NONE, 32 },
        /* few rows' sums fit into the scratch, not those of all; then two blocks of the second one
         * find room if they are laid out closer */
        { CODEC_QW, CODEC_QC, 96, 512, 128, 200, 0, 900, 0, ATTEND_CAUSAL, ROUND_BF16, 64 },
        { CODEC_QW, CODEC_QC, 112, 512, 128, 300, 0, 900, 0, ATTEND_CAUSAL, ROUND_BF16, 64 },
        /* 32 gangs of 16 rows: on 132 multiprocessors all blocks fit at once, but not as
         * clusters */
        { CODEC_QW, CODEC_QC, 32, 512, 128, 512, 0, 900, 0, ATTEND_CAUSAL, ROUND_BF16, 64 },
        { CODEC_QW, CODEC_QC, 32, 512, 128, 512, 0, 900, 0, ATTEND_CAUSAL, ROUND_NONE, 64 },
        { CODEC_QW, CODEC_QC, 32, 512, 128, 64, 0, 900, 0, ATTEND_CAUSAL, ROUND_BF16, 64,
          .whole = true },
        { CODEC_QW, CODEC_QC, 33, 512, 128, 512, 0, 700, 0, ATTEND_CAUSAL, ROUND_BF16, 64, 40 },
        { CODEC_QW, CODEC_QC, 1, 512, 128, 512, 0, 700, 0, ATTEND_CAUSAL, ROUND_NONE, 64 },
        { CODEC_QW, CODEC_QC, 9, 256, 128, 896, 0, 1000, 0, ATTEND_CAUSAL, ROUND_BF16 },
        /* sums of short keys go through the scratch where gangs fill the device */
        { CODEC_QW, CODEC_QC, 112, 256, 128, 100, 0, 700, 0, ATTEND_CAUSAL, ROUND_BF16, 64, 3,
          .whole = true },
        { CODEC_QW, CODEC_QC, 112, 128, 128, 100, 0, 700, 0, ATTEND_CAUSAL, ROUND_BF16, 64, 3,
          .whole = true },
        /* keys with scales that are multiplied twice, beside others */
        { CODEC_QW, CODEC_QC, 8, 512, 16, 24, 0, 900, 0, ATTEND_CAUSAL, ROUND_BF16, 64, 3,
          .loud = 0x1p4f },
        { CODEC_QW, CODEC_QC, 8, 512, 16, 24, 0, 900, 0, ATTEND_CAUSAL, ROUND_BF16, 64, 3,
          .loud = 0x1p16f },
        { CODEC_F32, CODEC_F32, 2, 64, 9, 6, 0, 64, 0, ATTEND_CAUSAL, ROUND_BF16, 16 },
        { CODEC_F32, CODEC_F32, 3, 320, 20, 0, 4, 10, 2, ATTEND_BLOCK, ROUND_NONE },
        { CODEC_F32, CODEC_F32, 2, 1024, 9, 6, 0, 64, 0, ATTEND_CAUSAL, ROUND_NONE },
        /* 128 keys a block: more than a device of little shared memory has room for; the last one,
         * for that is told once */
        { CODEC_QW, CODEC_QC, 32, 512, 128, 896, 0, 1500, 0, ATTEND_CAUSAL, ROUND_BF16, 64, 3,
          .large = true },
    };

    /* than on matrix units, which have room for all of these on every device but for the large one
     * */
    int slower = 0;

    lab_begin(l, "attend");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct look *s = &shapes[i];
        /* every block of a cluster is slow under a tool */
        int rows = l->quick && !s->whole ? 2 : look_rows(s);
        struct trial t;

        log_sink(s->large ? NULL : count_slower, &slower);
        trial_begin(&t, l, run_attend, s, rows, "%d heads of %d, span %d topk %d mode %d round %d",
                    s->heads, s->dim, s->span, s->topk, s->mode, s->round);
        fill_attend(&t, s, s->mode == ATTEND_CAUSAL ? 1 + i % 2 : 1);
        lab_run(&t);
    }
    log_sink(NULL, NULL);
    if (slower)
        lab_fail(l, "a slower kernel ran");
    lab_end(l);
}

/* 16 rows of the first, 8 rows of the second: on 132 multiprocessors gangs of both find room, but
 * not as clusters. */
static const struct look crowds[] = {
    { CODEC_QW, CODEC_QC, 32, 512, 128, 64, 0, 900, 0, ATTEND_CAUSAL, ROUND_BF16, 64 },
    { CODEC_QW, CODEC_QC, 64, 512, 128, 64, 0, 700, 0, ATTEND_CAUSAL, ROUND_BF16, 64 },
};

/* What a call leaves, one of another shape finds. */
static void run_behind(const struct trial *t, const struct op_table *op, struct queue *q,
                       void *const *b, int row, int rows)
{
    (void)t;
    call_attend(&crowds[0], op, q, b, row, rows);
    for (int i = 0; i < rows; i += 8)
        call_attend(&crowds[1], op, q, b + LOOK_BUFS, row + i, rows - i < 8 ? rows - i : 8);
}

static void attend_behind(struct lab *l)
{
    struct trial t;

    lab_begin(l, "attend behind it");
    trial_begin(&t, l, run_behind, crowds, LAB_ROWS, "32 and 64 heads");
    fill_attend(&t, &crowds[0], 2);
    fill_attend(&t, &crowds[1], 1);
    lab_run(&t);
    lab_end(l);
}

/* F-27: gangs of one queue beside those of another; not under a tool, which takes a minute for
 * it. */
static void two_queues(struct lab *l)
{
    static const int rows[] = { 16, 8 };

    if (l->quick)
        return;
    lab_begin(l, "F-27 attention");
    for (int i = 0; i < COUNT(crowds); i++) {
        struct trial t[2];

        for (int k = 0; k < 2; k++) {
            const struct look *s = &crowds[i * k];

            trial_begin(&t[k], l, run_attend, s, rows[i * k], "%d rows of %d heads", rows[i * k],
                        s->heads);
            fill_attend(&t[k], s, 1 + k);
        }
        lab_beside(&t[0], &t[1], 200);
    }
    lab_end(l);
}

struct plain {
    int heads, kv_heads, dim, pos;
    enum round round;
};

static void run_gqa(const struct trial *t, const struct op_table *op, struct queue *q,
                    void *const *b, int row, int rows)
{
    const struct plain *s = t->shape;
    size_t at = (size_t)row * (size_t)(s->heads * s->dim);
    int cap = s->pos + LAB_ROWS + 1, cols = s->kv_heads * s->dim;

    op->attend_gqa(q, &(struct attend_gqa_args){ .q = (float *)b[0] + at,
                                                 .k = view_of(CODEC_F32, cols, cap, b[1]),
                                                 .v = view_of(CODEC_F32, cols, cap, b[2]),
                                                 .info = (struct row_info *)b[3] + row,
                                                 .o = (float *)b[4] + at,
                                                 .scratch = b[5],
                                                 .rows = rows,
                                                 .heads = s->heads,
                                                 .kv_heads = s->kv_heads,
                                                 .dim = s->dim,
                                                 .scale = 1.0f / sqrtf((float)s->dim),
                                                 .round = s->round });
}

static void attend_gqa(struct lab *l)
{
    static const struct plain shapes[] = { { 1, 1, 2, 0, ROUND_NONE },
                                           { 8, 2, 64, 90, ROUND_NONE },
                                           { 6, 3, 128, 300, ROUND_BF16 },
                                           { 4, 4, 200, 33, ROUND_NONE },
                                           { 2, 1, 512, 50, ROUND_NONE } };

    lab_begin(l, "attend_gqa");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct plain *s = &shapes[i];
        int pos[LAB_ROWS], cap = s->pos + LAB_ROWS + 1, cols = s->kv_heads * s->dim;
        struct trial t;

        for (int r = 0; r < LAB_ROWS; r++)
            pos[r] = s->pos + r;
        trial_begin(&t, l, run_gqa, s, LAB_ROWS, "%d on %d heads of %d round %d", s->heads,
                    s->kv_heads, s->dim, s->round);
        trial_in(&t, (size_t)(s->heads * s->dim * LAB_ROWS), 2);
        trial_in(&t, (size_t)(2 * cap * cols), 2);
        trial_in(&t, (size_t)(2 * cap * cols), 2);
        trial_info(&t, pos, 2);
        trial_out(&t, (size_t)(s->heads * s->dim), s->round ? 0x1p-7 : 1e-5);
        trial_scratch(&t, sizeof(float) * (size_t)(l->dev->workers * cap));
        lab_run(&t);
    }
    lab_end(l);
}

void ops_attend(struct lab *l)
{
    select_rows(l);
    attend(l);
    attend_behind(l);
    two_queues(l);
    attend_gqa(l);
}
