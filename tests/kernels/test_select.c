#include <errno.h>

#include "tests/kernels/bed.h"

#define HEADS 3
#define DIM_MAX 128 /* a multiple of what is decoded at once */
#define NARROW 32

struct scene {
    struct select_args a;
    struct row_info info[32];
    float *key; /* [entries][dim] as they read back */
    float *score;
};

static void scene_make(struct bed *b, struct scene *s, int dim, int rows, int pos, int ratio,
                       int topk)
{
    int n = (pos + rows) / ratio, cap = n + 3;

    memset(s, 0, sizeof(*s));
    s->a = (struct select_args){ .q = bed_f32(b, (size_t)(rows * HEADS * dim), 2),
                                 .wt = bed_f32(b, (size_t)(rows * HEADS), 1),
                                 .keys = bed_state(b, 2, cap, CODEC_QI, dim),
                                 .info = s->info,
                                 .sel = bed_take(b, (size_t)(rows * topk) * sizeof(int32_t)),
                                 .rows = rows,
                                 .heads = HEADS,
                                 .dim = dim,
                                 .ratio = ratio,
                                 .topk = topk,
                                 .scale = 1.0f / 64 };
    s->a.scratch = bed_zeros(b, (size_t)(b->d->workers * cap));
    s->key = bed_put(b, &s->a.keys, 1, 0, n, 2);
    s->score = bed_zeros(b, (size_t)n);
    bed_rows(s->info, 0, 1, pos, rows);
    b->op->requant(
        b->q, &(struct requant_args){
                  .x = (float *)s->a.q, .rows = rows * HEADS, .cols = dim, .codec = CODEC_QI });
}

/* Scores of row r, in the order the contract gives; returns how many entries it sees. */
static int naive_scores(struct scene *s, int r)
{
    int n = (s->info[r].pos + 1) / s->a.ratio;

    for (int j = 0; j < n; j++) {
        volatile float sum = 0;

        for (int h = 0; h < HEADS; h++) {
            volatile float dot = 0, p;

            for (int c = 0; c < s->a.dim; c++) {
                p = s->a.q[(r * HEADS + h) * s->a.dim + c] * s->key[j * s->a.dim + c];
                dot = dot + p;
            }
            p = s->a.wt[r * HEADS + h] * (dot < 0 ? 0 : dot);
            sum = sum + p;
        }
        s->score[j] = s->a.scale * sum;
    }
    return n;
}

/* Entry j's place by (score descending, entry ascending) among those that compete. */
static int place_of(const float *score, const char *competes, int n, int j)
{
    int place = 0;

    for (int i = 0; i < n; i++)
        if (competes[i] && (score[i] > score[j] || (score[i] == score[j] && i < j)))
            place++;
    return place;
}

static void naive_select(struct scene *s, int r, const int32_t *cand, int32_t *sel)
{
    int n = naive_scores(s, r), at = 0;
    char competes[2048];

    memset(competes, cand && n > s->a.topk ? 0 : 1, sizeof(competes));
    for (int b = 0; cand && n > s->a.topk && b < s->a.blocks && cand[b] >= 0; b++)
        memset(competes + cand[b] * s->a.block, 1, (size_t)s->a.block);
    for (int j = 0; j < n; j++)
        if (competes[j] && place_of(s->score, competes, n, j) < s->a.topk)
            sel[at++] = j;
    for (; at < s->a.topk; at++)
        sel[at] = -1;
}

static void naive_blocks(struct scene *s, int r, int32_t *out)
{
    int n = naive_scores(s, r), blocks = (n + s->a.block - 1) / s->a.block, at = 0;
    float most[2048];
    char all[2048];

    memset(all, 1, sizeof(all));
    for (int b = 0; b < blocks; b++) {
        most[b] = -INFINITY;
        for (int j = b * s->a.block; j < n && j < (b + 1) * s->a.block; j++)
            most[b] = fmaxf(most[b], s->score[j]);
    }
    if (blocks > 0)
        most[blocks - 1] = INFINITY;
    for (int b = 0; b < blocks; b++)
        if (place_of(most, all, blocks, b) < s->a.blocks)
            out[at++] = b;
    for (; at < s->a.blocks; at++)
        out[at] = -1;
}

static void expect_rows(struct scene *s, const char *name)
{
    for (int r = 0; r < s->a.rows; r++) {
        int32_t want[256];

        naive_select(s, r, s->a.cand_in ? s->a.cand_in + r * s->a.blocks : NULL, want);
        for (int i = 0; i < s->a.topk; i++)
            cr_assert(eq(int, s->a.sel[r * s->a.topk + i], want[i]), "%s: row %d place %d", name, r,
                      i);
        if (!s->a.cand_out)
            continue;
        naive_blocks(s, r, want);
        for (int i = 0; i < s->a.blocks; i++)
            cr_assert(eq(int, s->a.cand_out[r * s->a.blocks + i], want[i]), "%s: row %d block %d",
                      name, r, i);
    }
}

static const struct {
    const char *name;
    int rows, pos, ratio, topk, blocks, block;
} cases[] = {
    { "nothing visible", 3, 0, 4, 8, 2, 4 },
    { "fewer than top-k", 8, 3, 1, 16, 4, 4 },
    { "crossing top-k", 16, 24, 1, 32, 4, 8 },
    { "crossing inside a window", 9, 60, 2, 32, 3, 8 },
    { "many entries", 6, 1200, 1, 32, 16, 8 },
    { "ratio 4", 7, 1500, 4, 32, 5, 7 },
    { "one block kept", 4, 100, 1, 8, 1, 8 },
    { "top-k of one", 4, 100, 1, 1, 20, 3 },
    { "more blocks than there are", 4, 90, 1, 8, 99, 8 },
    { "blocks of one", 5, 70, 1, 16, 16, 1 },
};

Test(select, takes_the_best_entries_and_blocks)
{
    for (int workers = 1; workers <= 3; workers += 2)
        for (size_t i = 0; i < COUNT(cases); i++) {
            struct scene s;
            struct bed b;
            int32_t *cand;

            bed_open(&b, workers);
            scene_make(&b, &s, i % 2 ? NARROW : DIM_MAX, cases[i].rows, cases[i].pos,
                       cases[i].ratio, cases[i].topk);
            s.a.blocks = cases[i].blocks;
            s.a.block = cases[i].block;
            b.op->select(b.q, &s.a);
            expect_rows(&s, cases[i].name);
            cand = bed_take(&b, (size_t)(cases[i].rows * cases[i].blocks) * sizeof(*cand));
            s.a.cand_out = cand;
            b.op->select(b.q, &s.a);
            expect_rows(&s, cases[i].name);

            /* other queries, held to those candidates */
            s.a.cand_out = NULL;
            s.a.cand_in = cand;
            bed_fill(&b, (float *)s.a.wt, (size_t)(cases[i].rows * HEADS), 1);
            b.op->select(b.q, &s.a);
            expect_rows(&s, cases[i].name);
            cr_assert(eq(int, bed_wait(&b), 0));
            bed_close(&b);
        }
}

/* With these weights scores are few: ties everywhere, many inside the cut, and zeros of both
 * signs. */
Test(select, ties_go_to_the_lower_entry)
{
    static const float weights[][HEADS] = {
        { 0, 0, 0 },       /* all equal */
        { -0.0f, -1, -1 }, /* -0 wherever every head is rectified */
        { 1, 0, 0 },
        { -1, 1, 0 },
    };

    for (size_t w = 0; w < COUNT(weights); w++) {
        struct scene s;
        struct bed b;
        int32_t *cand;

        bed_open(&b, 1);
        scene_make(&b, &s, NARROW, 5, 300, 1, 32);
        s.a.blocks = 6;
        s.a.block = 8;
        cand = bed_take(&b, 5 * 6 * sizeof(*cand));
        s.a.cand_out = cand;
        for (int i = 0; i < 5 * HEADS * NARROW; i++)
            ((float *)s.a.q)[i] = (float)((i * 7 % 11) < 2) - (float)((i * 5 % 13) < 2);
        for (int j = 0; j < 305; j++) {
            struct row_info at = { .slot = 1, .pos = j };
            float x[NARROW];

            for (int c = 0; c < NARROW; c++)
                x[c] = s.key[j * NARROW + c] = (float)((j * 3 + c) % 5 == 0) * (j % 2 ? 1 : -1);
            x[(j * 3) % NARROW] = s.key[j * NARROW + (j * 3) % NARROW] = 6;
            b.op->row_put(
                b.q, &(struct row_put_args){ .x = x, .view = s.a.keys, .info = &at, .rows = 1 });
        }
        for (int r = 0; r < 5; r++)
            memcpy((float *)s.a.wt + r * HEADS, weights[w], sizeof(weights[w]));
        b.op->select(b.q, &s.a);
        expect_rows(&s, "ties");
        bed_close(&b);
    }
}

Test(select, the_newest_block_is_kept_even_if_it_is_the_worst)
{
    struct scene s;
    struct bed b;
    int32_t cand[3];
    float q[HEADS * NARROW] = { 1 }, wt[HEADS] = { 1, 0, 0 };

    bed_open(&b, 1);
    scene_make(&b, &s, NARROW, 1, 40, 1, 4);
    for (int j = 0; j < 41; j++) { /* scores fall with the entry */
        struct row_info at = { .slot = 1, .pos = j };
        float x[NARROW] = { j < 8 ? 6 : j < 16 ? 4 : j < 24 ? 3 : j < 32 ? 2 : 0.5f };

        b.op->row_put(b.q,
                      &(struct row_put_args){ .x = x, .view = s.a.keys, .info = &at, .rows = 1 });
    }
    s.a.q = q;
    s.a.wt = wt;
    s.a.blocks = 3;
    s.a.block = 8;
    s.a.cand_out = cand;
    b.op->select(b.q, &s.a);
    cr_expect(cand[0] == 0 && cand[1] == 1 && cand[2] == 5, "%d %d %d", cand[0], cand[1], cand[2]);
    for (int i = 0; i < 4; i++)
        cr_expect(eq(int, s.a.sel[i], i));
    bed_close(&b);
}

Test(select, an_entry_whose_score_is_no_number_is_the_last_to_be_taken)
{
    struct row_info at = { .slot = 1, .pos = 5 };
    float x[NARROW] = { NAN };
    struct scene s;
    struct bed b;

    bed_open(&b, 1);
    scene_make(&b, &s, NARROW, 1, 40, 1, 40); /* of 41 entries */
    b.op->row_put(b.q, &(struct row_put_args){ .x = x, .view = s.a.keys, .info = &at, .rows = 1 });
    b.op->select(b.q, &s.a);
    for (int i = 0; i < 40; i++)
        cr_expect(eq(int, s.a.sel[i], i < 5 ? i : i + 1));
    bed_close(&b);
}

Test(select, rows_are_independent)
{
    struct scene s;
    struct bed b;
    int32_t one[32], cand[16], *all;

    bed_open(&b, 2);
    scene_make(&b, &s, DIM_MAX, 16, 800, 2, 32);
    s.a.blocks = 16;
    s.a.block = 8;
    all = bed_take(&b, 16 * 16 * sizeof(*all));
    s.a.cand_out = all;
    b.op->select(b.q, &s.a);
    for (int r = 0; r < 16; r++) {
        struct select_args a = s.a;

        a.q += r * HEADS * DIM_MAX;
        a.wt += r * HEADS;
        a.info += r;
        a.sel = one;
        a.cand_out = cand;
        a.rows = 1;
        b.op->select(b.q, &a);
        cr_expect(memcmp(one, s.a.sel + r * 32, sizeof(one)) == 0, "row %d", r);
        cr_expect(memcmp(cand, all + r * 16, sizeof(cand)) == 0, "row %d", r);
    }
    bed_close(&b);
}

Test(select, bad_shapes_fail_the_queue)
{
    struct scene s;
    struct bed b;
    int32_t cand[8] = { 0 };

    bed_open(&b, 1);
    scene_make(&b, &s, NARROW, 1, 40, 1, 4);
    s.a.cand_out = cand;
    b.op->select(b.q, &s.a);
    cr_expect(eq(int, bed_wait(&b), -EINVAL), "no blocks");
    s.a.blocks = 2;
    s.a.block = 4;
    s.a.cand_in = cand;
    b.op->select(b.q, &s.a);
    cr_expect(eq(int, bed_wait(&b), -EINVAL), "both candidates");
    s.a.cand_in = s.a.cand_out = NULL;
    s.a.dim = 16;
    b.op->select(b.q, &s.a);
    cr_expect(eq(int, bed_wait(&b), -EINVAL), "keys of another width");
    bed_close(&b);
}
