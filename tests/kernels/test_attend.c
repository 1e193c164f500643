#include <errno.h>

#include "tests/kernels/bed.h"

struct attend_case {
    const char *name;
    int rows, heads, dim, pos, span, win_cap;
    enum codec win;
    int topk, selected, more_cap; /* topk 0: no second part */
    enum codec more;
    int floor, block; /* block > 0: ATTEND_BLOCK */
    enum round round;
};

static const struct attend_case cases[] = {
    { "first token", 1, 2, 32, 0, 64, 128, CODEC_QW, 0, 0, 0, 0, 0, 0, ROUND_NONE },
    { "window not full", 6, 4, 128, 20, 64, 128, CODEC_QW, 0, 0, 0, 0, 0, 0, ROUND_NONE },
    { "window slides and wraps", 16, 4, 128, 1000, 64, 79, CODEC_QW, 0, 0, 0, 0, 0, 0, ROUND_NONE },
    { "more rows than share a window", 40, 1, 32, 500, 20, 60, CODEC_QW, 0, 0, 0, 0, 0, 0,
      ROUND_NONE },
    { "selection", 6, 4, 128, 300, 64, 128, CODEC_QW, 32, 32, 200, CODEC_QC, 0, 0, ROUND_NONE },
    { "short selection", 3, 9, 64, 300, 17, 64, CODEC_QW, 40, 13, 200, CODEC_QC, 0, 0, ROUND_NONE },
    { "empty selection", 3, 2, 64, 5, 17, 64, CODEC_QW, 40, 0, 200, CODEC_QC, 0, 0, ROUND_NONE },
    { "f32 rows", 5, 3, 16, 100, 33, 64, CODEC_F32, 8, 8, 99, CODEC_F32, 0, 0, ROUND_NONE },
    { "floor", 4, 2, 32, 100, 64, 128, CODEC_QW, 0, 0, 0, 0, 90, 0, ROUND_NONE },
    { "floor below the start", 4, 2, 32, 9, 64, 128, CODEC_QW, 0, 0, 0, 0, -3, 0, ROUND_NONE },
    { "block", 5, 4, 128, 200, 64, 128, CODEC_QW, 0, 0, 0, 0, 0, 5, ROUND_NONE },
    { "block at the start", 5, 4, 32, 3, 64, 128, CODEC_QW, 0, 0, 0, 0, 0, 5, ROUND_NONE },
    { "block above a floor", 5, 4, 32, 200, 64, 128, CODEC_QW, 0, 0, 0, 0, 199, 5, ROUND_NONE },
    { "bf16", 4, 4, 128, 300, 64, 128, CODEC_QW, 32, 32, 200, CODEC_QC, 0, 0, ROUND_BF16 },
};

/* One head of one row over keys [n][dim], in double. */
static void naive_head(const float *q, const float *const *key, int n, int dim, double scale,
                       double sink, enum round round, double *o)
{
    double most = sink, sum = 0, l[512];

    for (int j = 0; j < n; j++) {
        l[j] = 0;
        for (int c = 0; c < dim; c++)
            l[j] += (double)q[c] * (double)key[j][c];
        l[j] *= scale;
        most = fmax(most, l[j]);
    }
    for (int c = 0; c < dim; c++)
        o[c] = 0;
    for (int j = 0; j < n; j++) {
        double p = exp(l[j] - most);

        sum += p;
        if (round == ROUND_BF16)
            p = (double)bf16_round((float)p);
        for (int c = 0; c < dim; c++)
            o[c] += p * (double)key[j][c];
    }
    for (int c = 0; c < dim; c++)
        o[c] /= sum + exp(sink - most);
}

struct scene {
    struct attend_args a;
    struct slot_head head[2];
    struct row_info info[64];
    float *win, *more; /* rows as they read back: position lo + i, entry i */
    int lo;
    double *want;
};

/* Slot 1 holds what is attended; slot 0 holds other values that must not be read. */
static void scene_make(struct bed *b, const struct attend_case *c, struct scene *s)
{
    int end = c->pos + (c->block ? c->block : c->rows), most = c->pos / 2;
    size_t n = (size_t)(c->rows * c->heads * c->dim);
    int32_t *sel = bed_take(b, (size_t)(c->rows * c->topk) * sizeof(*sel));

    memset(s, 0, sizeof(*s));
    s->a = (struct attend_args){ .q = bed_f32(b, n, 2),
                                 .sink = bed_f32(b, (size_t)c->heads, 2),
                                 .win = bed_state(b, 2, c->win_cap, c->win, c->dim),
                                 .head = s->head,
                                 .info = s->info,
                                 .sel = sel,
                                 .o = bed_zeros(b, n),
                                 .rows = c->rows,
                                 .heads = c->heads,
                                 .dim = c->dim,
                                 .span = c->span,
                                 .topk = c->topk,
                                 .block = c->block,
                                 .mode = c->block ? ATTEND_BLOCK : ATTEND_CAUSAL,
                                 .scale = 1 / sqrtf((float)c->dim),
                                 .round = c->round };
    s->a.scratch =
        bed_zeros(b, (size_t)b->d->workers * attend_scratch(c->dim, c->span, c->block, c->topk));
    s->head[1].floor = c->floor;
    s->lo = end - c->win_cap > 0 ? end - c->win_cap : 0;
    bed_rows(s->info, 0, 1, c->pos, c->rows);
    bed_put(b, &s->a.win, 0, s->lo, end, 9);
    s->win = bed_put(b, &s->a.win, 1, s->lo, end, 2);
    if (c->topk) {
        s->a.more = bed_state(b, 2, c->more_cap, c->more, c->dim);
        s->more = bed_put(b, &s->a.more, 1, 0, most, 2);
        for (int r = 0; r < c->rows; r++)
            for (int i = 0; i < c->topk; i++)
                sel[r * c->topk + i] = i < c->selected ? (i * most) / (c->selected + r) : -1;
    }
}

static void scene_naive(struct bed *b, const struct attend_case *c, struct scene *s)
{
    s->want = bed_take(b, (size_t)(c->rows * c->heads * c->dim) * sizeof(double));
    for (int r = 0; r < c->rows; r++) {
        const float *key[512];
        int p = c->pos + r, n = 0;
        int from = c->block ? c->pos - c->span : p - c->span + 1;
        int to = c->block ? c->pos + c->block : p + 1;

        for (int k = from; k < to; k++)
            if (k >= 0 && k >= c->floor)
                key[n++] = s->win + (k - s->lo) * c->dim;
        for (int i = 0; i < c->selected; i++)
            key[n++] = s->more + s->a.sel[r * c->topk + i] * c->dim;
        for (int h = 0; h < c->heads; h++)
            naive_head(s->a.q + (r * c->heads + h) * c->dim, key, n, c->dim, (double)s->a.scale,
                       (double)s->a.sink[h], c->round, s->want + (r * c->heads + h) * c->dim);
    }
}

Test(attend, matches_a_plain_reference_in_double)
{
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct attend_case *c = &cases[i];
        size_t n = (size_t)(c->rows * c->heads * c->dim);
        struct scene s;
        struct bed b;
        double tol = c->round ? 0x1p-7 : 2e-6 * (1 + log2(c->span + c->topk));

        bed_open(&b, 1);
        scene_make(&b, c, &s);
        scene_naive(&b, c, &s);
        b.op->attend(b.q, &s.a);
        cr_assert(eq(int, bed_wait(&b), 0), "%s", c->name);
        cr_expect(le(dbl, bed_error(s.a.o, s.want, n), tol), "%s", c->name);
        bed_close(&b);
    }
}

Test(attend, bits_do_not_depend_on_workers_or_on_rows_beside)
{
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct attend_case *c = &cases[i];
        size_t row = (size_t)(c->heads * c->dim), n = (size_t)c->rows * row;
        struct scene one, many;
        struct bed b, d;
        float *o;

        bed_open(&b, 1);
        bed_open(&d, 3);
        scene_make(&b, c, &one);
        scene_make(&d, c, &many);
        b.op->attend(b.q, &one.a);
        d.op->attend(d.q, &many.a);
        cr_expect(bed_same(one.a.o, many.a.o, n), "%s: 1 and 3 workers", c->name);
        o = bed_zeros(&b, n);
        for (int r = 0; !c->block && r < c->rows; r++) {
            struct attend_args a = one.a;

            a.q += (size_t)r * row;
            a.info += r;
            a.sel += r * c->topk;
            a.o = o + (size_t)r * row;
            a.rows = 1;
            b.op->attend(b.q, &a);
        }
        cr_expect(c->block || bed_same(one.a.o, o, n), "%s: row by row", c->name);
        bed_close(&d);
        bed_close(&b);
    }
}

/* Rows share a decoded window where they can: not across slots, and not with a row that reaches
 * further back. */
Test(attend, only_rows_that_overlap_share_a_window)
{
    const struct attend_case *c = &cases[4];
    size_t row = (size_t)(c->heads * c->dim);
    struct scene s;
    struct bed b;
    float *o;

    bed_open(&b, 1);
    scene_make(&b, c, &s);
    o = bed_zeros(&b, (size_t)c->rows * row);
    bed_put(&b, &s.a.more, 0, 0, 150, 3);
    for (int order = 0; order < 2; order++) {
        bed_rows(s.info, 0, 0, c->pos, 3);
        bed_rows(s.info, 3, 1, c->pos + 3, 3);
        for (int r = 0; order && r < c->rows; r++)
            s.info[r] = (struct row_info){ .slot = 1, .pos = c->pos + 5 - r };
        b.op->attend(b.q, &s.a);
        for (int r = 0; r < c->rows; r++) {
            struct attend_args a = s.a;

            a.q += (size_t)r * row;
            a.info += r;
            a.sel += r * c->topk;
            a.o = o + (size_t)r * row;
            a.rows = 1;
            b.op->attend(b.q, &a);
        }
        cr_expect(bed_same(s.a.o, o, (size_t)c->rows * row), "order %d", order);
    }
    bed_close(&b);
}

/* With freq it is rope, attend, and rope the other way round. */
Test(attend, heads_are_turned_and_turned_back)
{
    enum { DIMS = 16 };

    for (int round = ROUND_NONE; round <= ROUND_BF16; round++) {
        const struct attend_case *c = &cases[4];
        size_t n = (size_t)(c->rows * c->heads * c->dim);
        float freq[DIMS / 2], *q, *o;
        struct rope_args turn;
        struct scene s;
        struct bed b;

        bed_open(&b, 2);
        scene_make(&b, c, &s);
        for (int k = 0; k < DIMS / 2; k++)
            freq[k] = 1 / (float)(1 + k);
        s.a.round = (enum round)round;
        q = bed_zeros(&b, n);
        memcpy(q, s.a.q, n * sizeof(*q));
        turn = (struct rope_args){ .x = s.a.q,
                                   .freq = freq,
                                   .info = s.info,
                                   .rows = c->rows,
                                   .heads = c->heads,
                                   .cols = c->dim,
                                   .dims = DIMS,
                                   .round = s.a.round };
        b.op->rope(b.q, &turn);
        b.op->attend(b.q, &s.a);
        turn.x = o = s.a.o;
        turn.inverse = 1;
        b.op->rope(b.q, &turn);
        s.a.q = q;
        s.a.o = bed_zeros(&b, n);
        s.a.freq = freq;
        s.a.dims = DIMS;
        b.op->attend(b.q, &s.a);
        cr_expect(bed_same(s.a.o, o, n), "round %d", round);
        bed_close(&b);
    }
}

/* Two keys of the same weight p < 1, one in the window and one selected. Where p is no bf16 the
 * rounding shows in the output, and in the denominator it would. */
Test(attend, probabilities_are_rounded_in_both_parts_and_not_in_the_denominator)
{
    enum { DIM = 16 };
    struct slot_head head = { 0 };
    struct row_info info = { 0 };
    int32_t sel = 0;
    int told = 0;
    struct bed b;

    bed_open(&b, 1);
    for (int i = 0; i < 64; i++) {
        float q[DIM] = { 0 }, o[DIM], sink = 0.3f + (float)i / 16;
        double p = exp(-(double)sink), near = (double)bf16_round((float)p);
        struct attend_args a = { .q = q,
                                 .sink = &sink,
                                 .win = bed_state(&b, 1, 1, CODEC_F32, DIM),
                                 .more = bed_state(&b, 1, 1, CODEC_F32, DIM),
                                 .head = &head,
                                 .info = &info,
                                 .sel = &sel,
                                 .o = o,
                                 .rows = 1,
                                 .heads = 1,
                                 .dim = DIM,
                                 .span = 1,
                                 .topk = 1,
                                 .scale = 1,
                                 .round = ROUND_BF16 };
        float want[4];

        for (int c = 0; c < DIM; c++) {
            ((float *)a.win.base)[c] = 1;
            ((float *)a.more.base)[c] = 2;
        }
        a.scratch = bed_zeros(&b, attend_scratch(DIM, 1, 0, 1));
        b.op->attend(b.q, &a);
        for (int k = 0; k < 4; k++) /* the first as it has to be */
            want[k] = bf16_round((float)(((k == 1 ? p : near) + 2 * (k == 2 ? p : near)) /
                                         (2 * (k == 3 ? near : p) + 1)));
        cr_expect(eq(flt, o[0], want[0]), "sink %g", (double)sink);
        for (int k = 1; k < 4; k++)
            told |= (want[k] != want[0]) << k;
        for (int k = 0; k < 3; k++)
            free(b.block[--b.blocks]);
    }
    cr_expect(eq(int, told, 14), "every other rounding would show");
    bed_close(&b);
}

Test(attend, a_huge_sink_or_logit_does_not_overflow)
{
    struct bed b;
    struct scene s;

    bed_open(&b, 1);
    scene_make(&b, &cases[1], &s);
    s.a.scale = 1e4f;
    b.op->attend(b.q, &s.a);
    for (int i = 0; i < 6 * 4 * 128; i++)
        cr_assert(fabsf(s.a.o[i]) <= 2);
    ((float *)s.a.sink)[0] = 3e38f;
    b.op->attend(b.q, &s.a);
    for (int i = 0; i < 128; i++)
        cr_assert(s.a.o[i] == 0, "the sink takes everything");
    bed_close(&b);
}

Test(attend, a_nan_in_a_key_reaches_every_row_that_sees_it_and_no_other)
{
    struct bed b;
    struct scene s;
    float x[128];
    struct row_info at = { .slot = 1, .pos = 1000 - 60 };

    bed_open(&b, 1);
    scene_make(&b, &cases[2], &s);
    for (int c = 0; c < 128; c++)
        x[c] = NAN;
    b.op->row_put(b.q, &(struct row_put_args){ .x = x, .view = s.a.win, .info = &at, .rows = 1 });
    b.op->attend(b.q, &s.a);
    for (int r = 0; r < 16; r++) {
        int sees = 1000 + r - 63 <= at.pos;

        for (int i = 0; i < 4 * 128; i++)
            cr_assert(eq(int, isnan(s.a.o[r * 512 + i]) != 0, sees), "row %d value %d", r, i);
    }
    bed_close(&b);
}

Test(attend, heads_that_are_not_whole_tiles_fail_the_queue)
{
    struct bed b;
    struct scene s;

    bed_open(&b, 1);
    scene_make(&b, &cases[0], &s);
    s.a.dim = 24;
    b.op->attend(b.q, &s.a);
    cr_expect(eq(int, bed_wait(&b), -EINVAL));
    bed_close(&b);
}

/* ---- plain attention ---- */

static const struct {
    int rows, heads, kv_heads, dim, pos;
} plain[] = { { 1, 1, 1, 4, 0 }, { 5, 4, 2, 16, 9 }, { 16, 6, 2, 24, 100 }, { 3, 8, 1, 7, 33 } };

Test(attend, grouped_queries_match_a_plain_reference)
{
    for (size_t i = 0; i < COUNT(plain); i++)
        for (int workers = 1; workers <= 3; workers += 2) {
            int heads = plain[i].heads, dim = plain[i].dim, rows = plain[i].rows,
                end = plain[i].pos + rows;
            int kv = plain[i].kv_heads * dim;
            size_t n = (size_t)(rows * heads * dim);
            struct attend_gqa_args a;
            struct row_info info[16];
            double want[16 * 6 * 24];
            float *k, *v, *single;
            struct bed b;

            bed_open(&b, workers);
            a = (struct attend_gqa_args){ .q = bed_f32(&b, n, 2),
                                          .k = bed_state(&b, 1, end, CODEC_F32, kv),
                                          .v = bed_state(&b, 1, end, CODEC_F32, kv),
                                          .info = info,
                                          .o = bed_zeros(&b, n),
                                          .rows = rows,
                                          .heads = heads,
                                          .kv_heads = plain[i].kv_heads,
                                          .dim = dim,
                                          .scale = 0.5f };
            a.scratch = bed_zeros(&b, (size_t)(workers * end));
            k = bed_put(&b, &a.k, 0, 0, end, 2);
            v = bed_put(&b, &a.v, 0, 0, end, 2);
            bed_rows(info, 0, 0, plain[i].pos, rows);
            b.op->attend_gqa(b.q, &a);
            for (int r = 0; r < rows; r++)
                for (int h = 0; h < heads; h++) {
                    int at = (r * heads + h) * dim, from = h / (heads / plain[i].kv_heads) * dim;
                    double sum = 0, *o = want + at;

                    memset(o, 0, (size_t)dim * sizeof(*o));
                    for (int j = 0; j <= plain[i].pos + r; j++) {
                        double l = 0;

                        for (int c = 0; c < dim; c++)
                            l += (double)a.q[at + c] * (double)k[j * kv + from + c];
                        sum += exp(l * 0.5);
                        for (int c = 0; c < dim; c++)
                            o[c] += exp(l * 0.5) * (double)v[j * kv + from + c];
                    }
                    for (int c = 0; c < dim; c++)
                        o[c] /= sum;
                }
            cr_expect(le(dbl, bed_error(a.o, want, n), 1e-5), "case %zu", i);
            single = bed_zeros(&b, n);
            for (int r = 0; r < rows; r++) {
                struct attend_gqa_args one = a;

                one.q += r * heads * dim;
                one.o = single + r * heads * dim;
                one.info += r;
                one.rows = 1;
                b.op->attend_gqa(b.q, &one);
            }
            cr_expect(bed_same(single, a.o, n), "case %zu row by row", i);
            bed_close(&b);
        }
}

/* Rows before the floor are not there; a row above its own position still sees itself. */
Test(attend, plain_attention_begins_at_the_floor)
{
    static const int floors[] = { 0, 3, 7, 9, 50 };
    const int dim = 8, rows = 4, pos = 6;

    for (size_t i = 0; i < COUNT(floors); i++) {
        struct slot_head head[2] = { { .floor = 1 }, { .floor = floors[i] } };
        struct attend_gqa_args a;
        struct row_info info[4];
        float *k, *v, *all;
        struct bed b;

        bed_open(&b, 1);
        a = (struct attend_gqa_args){ .q = bed_f32(&b, (size_t)(rows * dim), 2),
                                      .k = bed_state(&b, 2, 10, CODEC_F32, dim),
                                      .v = bed_state(&b, 2, 10, CODEC_F32, dim),
                                      .head = head,
                                      .info = info,
                                      .o = bed_zeros(&b, (size_t)(rows * dim)),
                                      .scratch = bed_zeros(&b, 10),
                                      .rows = rows,
                                      .heads = 1,
                                      .kv_heads = 1,
                                      .dim = dim,
                                      .scale = 0.5f };
        k = bed_put(&b, &a.k, 1, 0, 10, 2);
        v = bed_put(&b, &a.v, 1, 0, 10, 2);
        bed_rows(info, 0, 1, pos, rows);
        b.op->attend_gqa(b.q, &a);
        for (int r = 0; r < rows; r++) {
            int first = floors[i] < pos + r ? floors[i] : pos + r;
            double sum = 0, o[8] = { 0 };

            for (int j = first; j <= pos + r; j++) {
                double l = 0;

                for (int c = 0; c < dim; c++)
                    l += (double)a.q[r * dim + c] * (double)k[j * dim + c];
                sum += exp(l * 0.5);
                for (int c = 0; c < dim; c++)
                    o[c] += exp(l * 0.5) * (double)v[j * dim + c];
            }
            for (int c = 0; c < dim; c++)
                o[c] /= sum;
            cr_expect(le(dbl, bed_error(a.o + r * dim, o, (size_t)dim), 1e-5), "floor %d, row %d",
                      floors[i], r);
        }
        all = bed_zeros(&b, (size_t)(rows * dim));
        memcpy(all, a.o, sizeof(float) * (size_t)(rows * dim));
        a.head = NULL;
        b.op->attend_gqa(b.q, &a);
        cr_expect(eq(int, bed_same(all, a.o, (size_t)(rows * dim)), floors[i] == 0), "floor %d",
                  floors[i]);
        bed_close(&b);
    }
}
