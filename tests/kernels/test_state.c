#include <errno.h>

#include "tests/kernels/bed.h"

Test(state, stage_expands_segments_to_rows)
{
    const struct segment seg[] = { { 2, 0, 3, 0 }, { 0, 3, 0, 0 }, { 1, 3, 2, SEG_KNOWN } };
    const struct slot_head head[4] = { { .pos = 9 },
                                       { .pos = 100, .next = 55 },
                                       { .pos = 7, .next = 44 } };
    const int32_t tok[] = { -1, 11, 12, 13, 14 };
    static const struct row_info want[] = {
        { 2, 7, 44, 0 }, { 2, 8, 11, 0 }, { 2, 9, 12, 0 }, { 1, 100, 13, 3 }, { 1, 101, 14, 3 },
    };
    struct row_info info[5];
    struct bed b;

    bed_open(&b, 1);
    b.op->stage(
        b.q, &(struct stage_args){ .seg = seg, .head = head, .tok = tok, .info = info, .segs = 3 });
    cr_expect(eq(int, memcmp(info, want, sizeof(want)), 0));
    b.op->stage(b.q,
                &(struct stage_args){
                    .seg = seg, .head = head, .tok = tok, .info = info, .segs = 3, .ahead = 4 });
    for (int r = 0; r < 5; r++)
        cr_expect(eq(int, info[r].pos, want[r].pos + 4), "row %d of a chain's fifth draft", r);
    bed_close(&b);
}

Test(state, embed_copies_a_row_into_each_stream)
{
    const int rows = 33, cols = 24;
    struct row_info info[33];
    struct bed b;

    for (int t = 0; t < DTYPE_COUNT; t++) {
        struct table table;
        float *dense, *y;

        bed_open(&b, 3);
        table = bed_table(&b, 50, cols, (enum dtype)t, 2, &dense);
        y = bed_zeros(&b, (size_t)(rows * 4 * cols));
        for (int r = 0; r < rows; r++)
            info[r].tok = (r * 17) % 50;
        b.op->embed(b.q, &(struct embed_args){
                             .table = &table, .info = info, .y = y, .rows = rows, .copies = 4 });
        for (int r = 0; r < rows * 4; r++)
            cr_expect(bed_same(y + r * cols, dense + info[r / 4].tok * cols, (size_t)cols),
                      "row %d", r);
        bed_close(&b);
    }
}

Test(state, a_token_outside_the_table_fails_the_queue)
{
    static const int32_t bad[] = { -1, 50 };
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct table table = bed_table(&b, 50, 4, DTYPE_F32, 2, NULL);
        struct row_info info[2] = { { .tok = 3 }, { .tok = bad[i] } };
        float y[8] = { 5 };

        b.op->embed(b.q, &(struct embed_args){
                             .table = &table, .info = info, .y = y, .rows = 2, .copies = 1 });
        cr_expect(eq(flt, y[0], 5), "nothing is written");
        cr_expect(eq(int, bed_wait(&b), -EINVAL));
    }
    bed_close(&b);
}

Test(state, rows_land_at_their_position_in_their_slot)
{
    struct bed b;
    struct state_view v;
    struct row_info info[6];
    float x[6][4];

    bed_open(&b, 1);
    v = bed_state(&b, 3, 5, CODEC_F32, 4);
    bed_rows(info, 0, 2, 8, 3);
    bed_rows(info, 3, 0, 4, 3);
    for (int r = 0; r < 6; r++)
        for (int c = 0; c < 4; c++)
            x[r][c] = (float)(10 * r + c + 1);
    b.op->row_put(b.q, &(struct row_put_args){ .x = x[0], .view = v, .info = info, .rows = 6 });
    for (int r = 0; r < 6; r++)
        cr_expect(bed_same((float *)(v.base + (size_t)info[r].slot * v.slot_stride +
                                     (size_t)(info[r].pos % 5) * v.row_bytes),
                           x[r], 4),
                  "row %d", r);
    cr_expect(eq(flt, ((float *)(v.base + v.slot_stride))[0], 0), "slot 1 is untouched");
    bed_close(&b);
}

Test(state, rows_are_read_at_an_offset)
{
    static const int offsets[] = { -1, 0, 2 };
    struct bed b;
    struct state_view v;
    struct row_info info[6];
    float y[6][4], *x[2];

    bed_open(&b, 1);
    v = bed_state(&b, 2, 7, CODEC_F32, 4);
    x[0] = bed_put(&b, &v, 0, 0, 7, 1);
    x[1] = bed_put(&b, &v, 1, 10, 17, 1);
    bed_rows(info, 0, 0, 0, 3);
    bed_rows(info, 3, 1, 12, 3);
    for (int i = 0; i < 3; i++) {
        b.op->row_get(b.q,
                      &(struct row_get_args){
                          .view = v, .info = info, .y = y[0], .rows = 6, .offset = offsets[i] });
        for (int r = 0; r < 6; r++) {
            static const float none[4];
            int pos = info[r].pos + offsets[i];

            cr_expect(bed_same(y[r], pos < 0 ? none : x[r / 3] + 4 * (r < 3 ? pos : pos - 10), 4),
                      "offset %d, row %d", offsets[i], r);
        }
    }
    v.codec = CODEC_QW;
    b.op->row_get(b.q, &(struct row_get_args){ .view = v, .info = info, .y = y[0], .rows = 6 });
    cr_expect(eq(int, bed_wait(&b), -EINVAL));
    bed_close(&b);
}

Test(state, lists_of_kept_rows_that_are_too_long_or_differ_in_rows_fail_the_queue)
{
    float x[2][4] = { { 3, 4, 5, 6 } }, w[4] = { 1, 1, 1, 1 };
    struct row_keeps_args list = { .n = 2 };
    struct bed b;

    bed_open(&b, 1);
    for (int i = 0; i < 2; i++)
        list.of[i] =
            (struct row_keep){ .x = x[0], .w = w, .view.cols = 4, .rows = 1, .eps = 1e-6f };
    for (int bad = 0; bad < 3; bad++) {
        struct row_keeps_args l = list;

        l.n = bad == 0 ? -1 : bad == 1 ? ROW_KEEPS_MAX + 1 : 2;
        l.of[1].rows = bad == 2 ? 2 : 1;
        b.op->row_keeps(b.q, &l);
        cr_expect(eq(int, bed_wait(&b), -EINVAL), "%d", bad);
        cr_expect(eq(flt, x[0][0], 3));
    }
    bed_close(&b);
}

/* What kept rows become is what norm, rope and row_put make of them one after the other. */
Test(state, kept_rows_are_normed_turned_and_stored)
{
    enum { ROWS = 9, COLS = 64, DIMS = 16 };
    static const int ratios[] = { 1, 4 };
    struct bed b;

    bed_open(&b, 2);
    for (size_t i = 0; i < COUNT(ratios); i++) {
        struct state_view kept = bed_state(&b, 1, 16, CODEC_QW, COLS), put = kept;
        float *x = bed_f32(&b, ROWS * COLS, 2), *y = bed_zeros(&b, ROWS * COLS);
        float *w = bed_f32(&b, COLS, 1), freq[DIMS / 2];
        struct row_info info[ROWS];
        size_t bytes = kept.slot_stride;
        struct row_keep keep = { .x = x,
                                 .w = w,
                                 .freq = freq,
                                 .view = kept,
                                 .info = info,
                                 .rows = ROWS,
                                 .dims = DIMS,
                                 .ratio = ratios[i],
                                 .eps = 1e-6f,
                                 .round = ROUND_BF16 };

        put.base = bed_take(&b, bytes);
        bed_rows(info, 0, 0, 5, ROWS);
        for (int k = 0; k < DIMS / 2; k++)
            freq[k] = 1 / (float)(1 + k);
        b.op->rmsnorm(b.q, &(struct rmsnorm_args){ .x = x,
                                                   .w = w,
                                                   .y = y,
                                                   .rows = ROWS,
                                                   .cols = COLS,
                                                   .eps = 1e-6f,
                                                   .round = ROUND_BF16 });
        keep.view.base = NULL;
        b.op->row_keeps(b.q, &(struct row_keeps_args){ .of[0] = keep, .n = 1 });
        cr_expect(bed_same(x, y, ROWS * COLS), "normed and no more");
        b.op->rope(b.q, &(struct rope_args){ .x = y,
                                             .freq = freq,
                                             .info = info,
                                             .rows = ROWS,
                                             .heads = 1,
                                             .cols = COLS,
                                             .dims = DIMS,
                                             .ratio = ratios[i],
                                             .round = ROUND_BF16 });
        b.op->row_put(b.q,
                      &(struct row_put_args){
                          .x = y, .view = put, .info = info, .rows = ROWS, .ratio = ratios[i] });
        keep.view.base = kept.base;
        keep.w = NULL; /* that was before */
        b.op->row_keeps(b.q, &(struct row_keeps_args){ .of[0] = keep, .n = 1 });
        cr_expect(memcmp(kept.base, put.base, bytes) == 0, "ratio %d", ratios[i]);
        cr_expect(eq(int, bed_wait(&b), 0));
    }
    bed_close(&b);
}

Test(state, only_rows_that_end_a_group_are_stored)
{
    struct bed b;
    struct state_view v;
    struct row_info info[9];
    float x[9][32];

    bed_open(&b, 1);
    v = bed_state(&b, 1, 8, CODEC_QI, 32);
    bed_rows(info, 0, 0, 6, 9); /* positions 6 .. 14, groups of 4 end at 7 and 11 */
    for (int r = 0; r < 9; r++)
        for (int c = 0; c < 32; c++)
            x[r][c] = 6;
    b.op->row_put(
        b.q, &(struct row_put_args){ .x = x[0], .view = v, .info = info, .rows = 9, .ratio = 4 });
    for (int j = 0; j < 8; j++)
        cr_expect(eq(int, v.base[(size_t)j * v.row_bytes], j == 1 || j == 2 ? 0x77 : 0), "entry %d",
                  j);
    bed_close(&b);
}

Test(state, a_row_is_written_in_pieces)
{
    struct bed b;
    struct state_view v;
    struct row_info info[2];
    float x[2][7] = { { 1, 2, 3, 4, 5, 6, 7 }, { 8, 9, 10, 11, 12, 13, 14 } };
    const float want[2][5] = { { 0, 0, 1, 2, 3 }, { 0, 0, 8, 9, 10 } };

    bed_open(&b, 1);
    v = bed_state(&b, 1, 2, CODEC_F32, 5);
    bed_rows(info, 0, 0, 0, 2);
    b.op->row_put(
        b.q, &(struct row_put_args){
                 .x = x[0], .view = v, .info = info, .rows = 2, .ldx = 7, .col0 = 2, .width = 3 });
    cr_expect(bed_same((float *)v.base, want[0], 10));
    b.op->row_put(
        b.q, &(struct row_put_args){
                 .x = x[0], .view = v, .info = info, .rows = 2, .ldx = 7, .col0 = 3, .width = 3 });
    cr_expect(eq(int, bed_wait(&b), -EINVAL), "past the row's end");
    cr_expect(bed_same((float *)v.base, want[0], 10));
    bed_close(&b);
}

Test(state, pool_weighs_a_group_by_softmax_per_channel)
{
    static const int ratios[] = { 1, 2, 4 };
    const int cols = 24, rows = 21, pos = 30;
    struct bed b;

    for (size_t i = 0; i < COUNT(ratios); i++) {
        int ratio = ratios[i];
        struct state_view raw;
        struct row_info info[21];
        double want[21 * 24] = { 0 };
        float *x, *y;

        bed_open(&b, 3);
        raw = bed_state(&b, 2, rows + ratio - 1, CODEC_F32, 2 * cols);
        x = bed_put(&b, &raw, 1, pos - ratio + 1, pos + rows, 3);
        y = bed_f32(&b, (size_t)(rows * cols), 1);
        bed_rows(info, 0, 1, pos, rows);
        b.op->pool(
            b.q,
            &(struct pool_args){
                .raw = raw, .info = info, .y = y, .rows = rows, .cols = cols, .ratio = ratio });
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < cols && (pos + r + 1) % ratio == 0; c++) {
                double sum = 0, total = 0;

                for (int t = 0; t < ratio; t++) {
                    double e = exp((double)x[(r + t) * 2 * cols + cols + c]);

                    sum += e * (double)x[(r + t) * 2 * cols + c];
                    total += e;
                }
                want[r * cols + c] = sum / total;
            }
        cr_expect(le(dbl, bed_error(y, want, (size_t)(rows * cols)), 1e-6), "ratio %d", ratio);
        for (int r = 0; r < rows; r++)
            cr_expect(0 == (pos + r + 1) % ratio || y[r * cols] == 0, "row %d ends no group", r);
        bed_close(&b);
    }
}

Test(state, pool_does_not_overflow_and_rounds_once)
{
    struct bed b;
    struct state_view raw;
    struct row_info info[2];
    float x[2][2] = { { 1, 1000 }, { 3, 1000 } }, y[2];

    bed_open(&b, 1);
    raw = bed_state(&b, 1, 2, CODEC_F32, 2);
    bed_rows(info, 0, 0, 0, 2);
    b.op->row_put(b.q, &(struct row_put_args){ .x = x[0], .view = raw, .info = info, .rows = 2 });
    b.op->pool(b.q, &(struct pool_args){
                        .raw = raw, .info = info, .y = y, .rows = 2, .cols = 1, .ratio = 2 });
    cr_expect(y[0] == 0 && y[1] == 2);
    x[0][0] = 1 + 0x1p-7f;
    x[1][0] = 1;
    b.op->row_put(b.q, &(struct row_put_args){ .x = x[0], .view = raw, .info = info, .rows = 2 });
    b.op->pool(b.q, &(struct pool_args){ .raw = raw,
                                         .info = info,
                                         .y = y,
                                         .rows = 2,
                                         .cols = 1,
                                         .ratio = 2,
                                         .round = ROUND_BF16 });
    cr_expect(eq(flt, y[1], 1), "a tie goes to even");
    bed_close(&b);
}

Test(state, unshard_lays_the_ranks_pieces_side_by_side)
{
    /* [ranks][rows][ldx], widths 2, 0, 3 of 3 */
    const float x[3][2][3] = { { { 1, 2, 99 }, { 3, 4, 99 } },
                               { { 99, 99, 99 }, { 99, 99, 99 } },
                               { { 5, 6, 7 }, { 8, 9, 10 } } };
    const float want[2][5] = { { 1, 2, 5, 6, 7 }, { 3, 4, 8, 9, 10 } };
    float y[2][5] = { { 0 } };
    struct bed b;

    bed_open(&b, 1);
    b.op->unshard(
        b.q, &(struct unshard_args){
                 .x = x[0][0], .y = y[0], .width = { 2, 0, 3 }, .ranks = 3, .rows = 2, .ldx = 3 });
    cr_expect(bed_same(y[0], want[0], 10));
    b.op->unshard(b.q,
                  &(struct unshard_args){
                      .x = x[0][0], .y = y[0], .width = { 4 }, .ranks = 1, .rows = 2, .ldx = 3 });
    cr_expect(eq(int, bed_wait(&b), -EINVAL));
    bed_close(&b);
}

static const struct accept_case {
    const char *name;
    int32_t tok[4], choice[4];
    int len, flags, n_ok, next;
} accepts[] = {
    { .name = "no rows", .len = 0, .n_ok = 0, .next = -1 },
    { .name = "nothing drafted", .tok = { 5 }, .choice = { 7 }, .len = 1, .n_ok = 1, .next = 7 },
    { .name = "draft wrong", .tok = { 5, 6 }, .choice = { 7, 9 }, .len = 2, .n_ok = 1, .next = 7 },
    { .name = "draft right", .tok = { 5, 7 }, .choice = { 7, 4 }, .len = 2, .n_ok = 2, .next = 4 },
    { .name = "a right draft behind a wrong one does not count",
      .tok = { 5, 7, 1, 4 },
      .choice = { 7, 2, 4, 3 },
      .len = 4,
      .n_ok = 2,
      .next = 2 },
    { .name = "all right",
      .tok = { 5, 7, 2, 4 },
      .choice = { 7, 2, 4, 3 },
      .len = 4,
      .n_ok = 4,
      .next = 3 },
    { .name = "a choice that is open",
      .tok = { 5, 7, 2 },
      .choice = { 7, CHOICE_OPEN, 4 },
      .len = 3,
      .n_ok = 0,
      .next = CHOICE_OPEN },
    { .name = "an open choice behind a wrong draft does not count",
      .tok = { 5, 7, 2 },
      .choice = { 8, CHOICE_OPEN, 4 },
      .len = 3,
      .n_ok = 1,
      .next = 8 },
    { .name = "known text",
      .tok = { 5, 1, 1 },
      .choice = { -9, -9, -9 },
      .len = 3,
      .flags = SEG_KNOWN,
      .n_ok = 3,
      .next = -1 },
};

Test(state, accept_keeps_the_matching_prefix)
{
    for (size_t i = 0; i < COUNT(accepts); i++) {
        const struct accept_case *c = &accepts[i];
        struct segment seg[2] = { { 0, 2, c->len, c->flags }, { 1, 0, 1, 0 } };
        int32_t tok[6] = { 1, 2 }, choice[6] = { 30, 31 }, n_ok[2], next[2];
        struct bed b;

        memcpy(tok + 2, c->tok, sizeof(c->tok));
        memcpy(choice + 2, c->choice, sizeof(c->choice));
        bed_open(&b, 1);
        b.op->accept(
            b.q,
            &(struct accept_args){
                .seg = seg, .tok = tok, .choice = choice, .n_ok = n_ok, .next = next, .segs = 2 });
        cr_expect(n_ok[0] == c->n_ok && next[0] == c->next, "%s: %d, %d", c->name, n_ok[0],
                  next[0]);
        cr_expect(n_ok[1] == 1 && next[1] == 30, "%s: the other slot", c->name);
        bed_close(&b);
    }
}

Test(state, commit_moves_positions_and_flips_lanes)
{
    const struct segment seg[] = { { 3, 0, 4, 0 }, { 1, 4, 0, 0 } };
    const int32_t n_ok[] = { 3, 0 }, next[] = { 77, -1 };
    struct slot_head head[4] = {
        [1] = { 10, 1, 2, 5, 66, { 0 } }, [3] = { 20, 0, 1, 6, 8, { 0 } }
    };
    const struct slot_head want[4] = {
        [1] = { 10, 1, 2, 5, 66, { 0 } }, [3] = { 23, 1, 3, 6, 77, { 0 } }
    };
    struct bed b;

    bed_open(&b, 1);
    b.op->commit(b.q, &(struct commit_args){
                          .seg = seg, .n_ok = n_ok, .next = next, .head = head, .segs = 2 });
    cr_expect(eq(int, memcmp(head, want, sizeof(want)), 0));
    bed_close(&b);
}
