/* The ends of a window against the reference. */
#include "tests/device/lab.h"

#define SEGS 3

static const struct segment segments[SEGS] = { { 2, 0, 16, 0 },
                                               { 0, 16, 5, SEG_KNOWN },
                                               { 1, 21, 0, 0 } };

static void run_stage(const struct trial *t, const struct op_table *op, struct queue *q,
                      void *const *b, int row, int rows)
{
    op->stage(q, &(struct stage_args){
                     .seg = b[0], .head = b[1], .tok = b[2], .info = b[3], .segs = SEGS });
}

static void run_accept(const struct trial *t, const struct op_table *op, struct queue *q,
                       void *const *b, int row, int rows)
{
    op->accept(
        q,
        &(struct accept_args){
            .seg = b[0], .tok = b[2], .choice = b[3], .n_ok = b[4], .next = b[5], .segs = SEGS });
}

static void run_commit(const struct trial *t, const struct op_table *op, struct queue *q,
                       void *const *b, int row, int rows)
{
    op->commit(q, &(struct commit_args){
                      .seg = b[0], .n_ok = b[4], .next = b[5], .head = b[1], .segs = SEGS });
}

/* Segments and slot heads, tokens of 21 rows. */
static int32_t *fill_segments(struct trial *t, enum buf_kind heads)
{
    struct segment *seg = trial_buf(t, BUF_IN, BUF_BYTES, sizeof(segments), 0, 0);
    struct slot_head *head = trial_buf(t, heads, BUF_BYTES, sizeof(*head) * SLOTS_MAX, 0, 0);
    int32_t *tok = trial_buf(t, BUF_IN, BUF_BYTES, sizeof(*tok) * 21, 0, 0);

    memcpy(seg, segments, sizeof(segments));
    for (int s = 0; s < SLOTS_MAX; s++)
        head[s] =
            (struct slot_head){ .pos = 100 * s + 7, .base = s % 2, .pend = 3, .next = 40 + s };
    for (int i = 0; i < 21; i++)
        tok[i] = i == 0 ? -1 : 11 * i;
    return tok;
}

static void ends(struct lab *l)
{
    struct trial t;

    lab_begin(l, "stage");
    trial_begin(&t, l, run_stage, NULL, 21, "three segments");
    t.alone = false;
    fill_segments(&t, BUF_IN);
    trial_buf(&t, BUF_OUT, BUF_BYTES, sizeof(struct row_info) * 21, 0, 0);
    lab_run(&t);
    lab_end(l);

    lab_begin(l, "accept");
    for (int n = 0; n <= 16; n++) {
        int32_t *tok, *choice;

        trial_begin(&t, l, run_accept, NULL, 21, "%d tokens are as chosen", n);
        t.alone = false;
        tok = fill_segments(&t, BUF_IN);
        choice = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(*choice) * 21, 0, 0);
        for (int i = 0; i < 21; i++)
            choice[i] = i < 20 && i + 1 < n + 1 ? tok[i + 1] : 5;
        trial_buf(&t, BUF_OUT, BUF_BYTES, sizeof(int32_t) * SEGS, 0, 0);
        trial_buf(&t, BUF_OUT, BUF_BYTES, sizeof(int32_t) * SEGS, 0, 0);
        lab_run(&t);
    }
    lab_end(l);

    lab_begin(l, "commit");
    for (int n = 0; n < 3; n++) {
        int32_t *n_ok, *next;

        trial_begin(&t, l, run_commit, NULL, 21, "%d rows kept", n);
        t.alone = false;
        fill_segments(&t, BUF_INOUT);
        trial_in(&t, 1, 1);
        n_ok = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(int32_t) * SEGS, 0, 0);
        next = trial_buf(&t, BUF_IN, BUF_BYTES, sizeof(int32_t) * SEGS, 0, 0);
        n_ok[0] = n;
        n_ok[1] = 5;
        next[0] = 99;
        next[1] = -1;
        lab_run(&t);
    }
    lab_end(l);
}

struct lookup {
    int vocab, cols, copies;
    enum dtype dtype;
};

static void run_embed(const struct trial *t, const struct op_table *op, struct queue *q,
                      void *const *b, int row, int rows)
{
    const struct lookup *s = t->shape;
    struct table table = { b[0], s->dtype, s->vocab, s->cols };

    op->embed(q, &(struct embed_args){ .table = &table,
                                       .info = (struct row_info *)b[1] + row,
                                       .y = (float *)b[2] + (size_t)(row * s->copies * s->cols),
                                       .rows = rows,
                                       .copies = s->copies });
}

static void embed(struct lab *l)
{
    static const struct lookup shapes[] = { { 4096, 256, 4, DTYPE_BF16 },
                                            { 100, 1, 1, DTYPE_F32 },
                                            { 999, 777, 3, DTYPE_F16 } };

    lab_begin(l, "embed");
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct lookup *s = &shapes[i];
        size_t n = (size_t)(s->vocab * s->cols);
        struct row_info *info;
        struct trial t;
        uint8_t *data;

        trial_begin(&t, l, run_embed, s, LAB_ROWS, "%d x %d type %d", s->vocab, s->cols, s->dtype);
        data = trial_buf(&t, BUF_IN, BUF_BYTES, n * dtype_bytes(s->dtype), 0, 0);
        for (size_t k = 0; k < n * dtype_bytes(s->dtype); k++)
            data[k] = (uint8_t)(k * 37 % 64 + k % 3);
        info = trial_info(&t, NULL, 1);
        for (int r = 0; r < LAB_ROWS; r++)
            info[r].tok = r ? lab_below(l, s->vocab) : s->vocab - 1;
        trial_out(&t, (size_t)(s->copies * s->cols), 0);
        lab_run(&t);
    }
    lab_end(l);
}

void ops_window(struct lab *l)
{
    ends(l);
    embed(l);
}
