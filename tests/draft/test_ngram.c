/* ngram - copies: what is found, what is proposed, and what it is worth. */
#include "src/draft/draft_ngram.h"

#include "src/base/rng.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 1000000
#define CONTEXT 3000

struct bench {
    struct slot_pool pool;
    struct model m;
    struct drafter *d;
    struct proposal p;
    int32_t text[CONTEXT];
    int n;
};

static const struct family_ops no_family = { .name = "other" };

static void bench_open(struct bench *b)
{
    memset(b, 0, sizeof(*b));
    b->m = (struct model){ .ops = &no_family, .vocab = VOCAB, .ranks = 1 };
    b->pool.slots = 2;
    b->pool.context = CONTEXT;
    for (int s = 0; s < 2; s++)
        b->pool.ids[s] = calloc(CONTEXT + WINDOW_MAX, sizeof(int32_t));
    cr_assert(eq(int, drafter_open("ngram", NULL, &b->m, &b->d), 0));
    cr_assert(eq(int, b->d->ops->ready(b->d, NULL, &b->pool), 0));
}

static void bench_close(struct bench *b)
{
    b->d->ops->close(b->d);
    free(b->pool.ids[0]);
    free(b->pool.ids[1]);
}

/* The slot's text is ids[0 .. n - 1], the last of them pending. */
static int ask(struct bench *b, int slot, const int32_t *ids, int n)
{
    memcpy(b->pool.ids[slot], ids, sizeof(*ids) * (size_t)(n - 1));
    b->pool.ids[slot][n - 1] = 999; /* what a rejected draft left */
    b->pool.pos[slot] = n - 1;
    b->p = (struct proposal){ .n = 1, .slot = { slot }, .anchor = { ids[n - 1] } };
    b->d->ops->propose(b->d, NULL, &b->pool, &b->p, NULL);
    b->d->ops->collect(b->d, &b->p);
    return b->p.len[0];
}

struct find_case {
    const char *name;
    int32_t ids[48];
    int n, match, len;
    int32_t draft[WINDOW_MAX];
};

static const struct find_case cases[] = {
    { "nothing yet", { 1 }, 1, 0, 0, { 0 } },
    { "nothing like it", { 1, 2, 3, 4, 5, 6, 7, 8 }, 8, 0, 0, { 0 } },
    { "three are too few", { 9, 1, 2, 3, 50, 60, 1, 2, 3 }, 9, 0, 0, { 0 } },
    { "four are enough, and it reads on in its own drafts",
      { 1, 2, 3, 4, 50, 60, 1, 2, 3, 4 },
      10,
      4,
      15,
      { 50, 60, 1, 2, 3, 4, 50, 60, 1, 2, 3, 4, 50, 60, 1 } },
    { "a period",
      { 7, 8, 7, 8, 7, 8, 7, 8 },
      8,
      6,
      15,
      { 7, 8, 7, 8, 7, 8, 7, 8, 7, 8, 7, 8, 7, 8, 7 } },
    { "one token over and over",
      { 5, 5, 5, 5, 5, 5 },
      6,
      5,
      15,
      { 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5 } },
    { "the longest wins over the newest",
      { 40, 1,  2,  3,  4,  70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80,
        81, 82, 83, 84, 41, 1,  2,  3,  4,  60, 40, 1,  2,  3,  4 },
      31,
      5,
      15,
      { 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84 } },
    { "the newest of equally long ones",
      { 1, 2, 3, 4, 70, 71, 1, 2, 3, 4, 60, 61, 1, 2, 3, 4 },
      16,
      4,
      15,
      { 60, 61, 1, 2, 3, 4, 60, 61, 1, 2, 3, 4, 60, 61, 1 } },
    { "placeholders of pictures are no drafts",
      { 1, 2, 3, 4, 50, VOCAB, 51, 1, 2, 3, 4 },
      11,
      4,
      1,
      { 50 } },
};

Test(ngram, copies_what_came_after_the_longest_match)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct find_case *c = &cases[i];
        struct bench b;

        bench_open(&b);
        cr_expect(eq(int, ask(&b, 1, c->ids, c->n), c->len), "%s", c->name);
        cr_expect(eq(int, ngram_match(b.d, 1), c->match), "%s", c->name);
        for (int j = 0; j < c->len; j++) {
            cr_expect(eq(int, b.p.draft[0][j], c->draft[j]), "%s, draft %d", c->name, j);
            cr_expect(epsilon_eq(flt, b.p.conf[0][j], 0.45f, 1e-6f), "%s", c->name);
        }
        bench_close(&b);
    }
}

/* Backwards over everything, as the definition has it, without an index. */
static int naive(const int32_t *ids, int n, int *from)
{
    int most = 0, seen = 0;

    *from = -1;
    for (int at = n - 2; at >= 2 && seen < 64; at--) {
        int same = 0;

        while (same < 64 && at - same >= 0 && ids[at - same] == ids[n - 1 - same])
            same++;
        seen += same >= 3;
        if (same > most) {
            most = same;
            *from = at;
        }
    }
    return most >= 4 ? most : 0;
}

/* A text that grows as rounds land tokens, with tokens taken back now and then. */
Test(ngram, an_index_that_follows_the_text_finds_what_a_scan_finds)
{
    int32_t ids[CONTEXT];
    int n = 1, found = 0;
    struct bench b;

    bench_open(&b);
    ids[0] = 1;
    for (uint64_t round = 0; n < CONTEXT - 40; round++) {
        int grow = 1 + (int)(draw_u(1, round, 0, DRAW_OTHER) * 8), from, match;

        if (draw_u(1, round, 1, DRAW_OTHER) < 0.1 && n > 20)
            n -= (int)(draw_u(1, round, 2, DRAW_OTHER) * 8);
        for (int i = 0; i < grow; i++, n++)
            ids[n] = n > 100 && draw_u(1, round, 3, DRAW_OTHER) < 0.6
                         ? ids[n - 60 - (int)(round % 37)]
                         : (int32_t)(draw_u(1, round, (uint32_t)i + 9, DRAW_OTHER) * 6);
        match = naive(ids, n, &from);
        ask(&b, 0, ids, n);
        cr_assert(eq(int, ngram_match(b.d, 0), match), "round %d, %d tokens", (int)round, n);
        cr_assert(eq(int, b.p.len[0], match ? 15 : 0));
        for (int j = 0; j < b.p.len[0] && from + 1 + j < n; j++)
            cr_assert(eq(int, b.p.draft[0][j], ids[from + 1 + j]));
        found += match > 0;
    }
    cr_expect(gt(int, found, 100));
    bench_close(&b);
}

Test(ngram, a_new_request_knows_nothing_of_the_old_one)
{
    static const int32_t text[] = { 1, 2, 3, 4, 50, 1, 2, 3, 4 }, other[] = { 9, 1, 2, 3, 4 };
    struct bench b;

    bench_open(&b);
    cr_expect(eq(int, ask(&b, 0, text, 9), 15));
    ngram_note(b.d, 0, 5, 0);
    cr_expect(eq(int, ask(&b, 1, other, 5), 0), "another slot");
    b.d->ops->reset(b.d, NULL, &b.pool, 0, 0);
    cr_expect(eq(int, ask(&b, 0, other, 5), 0));
    cr_expect(eq(int, ask(&b, 0, text, 9), 15));
    cr_expect(epsilon_eq(flt, b.p.conf[0][0], 0.45f, 1e-6f), "evidence is the request's");
    bench_close(&b);
}

/* ---- prices ---------------------------------------------------------------------------------- */

/* The text goes on with n new tokens, 20 others, and the n again. */
static void match(struct bench *b, int n)
{
    for (int i = 0; i < 2 * n + 20; i++, b->n++)
        b->text[b->n] = i < n + 20 ? b->n : b->text[b->n - n - 20];
    cr_assert(eq(int, ask(b, 0, b->text, b->n), 15));
    cr_assert(eq(int, ngram_match(b->d, 0), n));
}

Test(ngram, evidence_moves_the_chance_of_a_band)
{
    static const struct {
        int length;
        double prior;
    } bands[] = { { 4, .45 }, { 7, .45 }, { 8, .7 },  { 15, .7 },
                  { 16, .8 }, { 31, .8 }, { 32, .9 }, { 63, .9 } };
    struct bench b;

    bench_open(&b);
    for (size_t i = 0; i < sizeof(bands) / sizeof(bands[0]); i++) {
        match(&b, bands[i].length);
        cr_expect(epsilon_eq(flt, b.p.conf[0][0], (float)bands[i].prior, 1e-6f), "%d tokens",
                  bands[i].length);
    }
    match(&b, 10);
    ngram_note(b.d, 0, 6, 4);
    match(&b, 12);
    cr_expect(epsilon_eq(flt, b.p.conf[0][0], (float)((2 * .7 + 4) / (2 + 5)), 1e-6f), "one miss");
    ngram_note(b.d, 0, 3, 3);
    match(&b, 9);
    cr_expect(
        epsilon_eq(flt, b.p.conf[0][0], (float)((1.4 + 4 * .85 + 3) / (2 + 5 * .85 + 3)), 1e-6f),
        "no miss; what is older weighs less");
    match(&b, 4);
    cr_expect(epsilon_eq(flt, b.p.conf[0][0], 0.45f, 1e-6f), "bands are apart");
    for (int i = 0; i < 60; i++)
        ngram_note(b.d, 0, 15, 15);
    match(&b, 4);
    cr_expect(le(flt, b.p.conf[0][0], 0.995f), "never certain");
    bench_close(&b);
}

static struct cost_table straight(void)
{
    struct cost_table t = { .rows = 16, .draft_us = { 0, 3500 } };

    for (int r = 1; r <= 16; r++)
        t.window_us[r] = 21800 + 4650 * (r - 1);
    return t;
}

Test(ngram, a_copy_window_must_earn_more_than_the_going_rate)
{
    struct cost_table t = straight();
    double q[15], lambda = 2.0 / 29950, eleven;
    struct bench b;

    bench_open(&b);
    match(&b, 4);
    for (int i = 0; i < 15; i++)
        q[i] = .45;
    cr_expect(eq(int, ngram_depth(b.d, 0, q, 15, lambda, &t, -INFINITY), 0),
              "0.45 a draft is below the rate");
    for (int i = 0; i < 15; i++)
        q[i] = .9;
    cr_expect(eq(int, ngram_depth(b.d, 0, q, 15, lambda, &t, -INFINITY), 11));
    eleven = depth_expect(q, 11) - lambda * cost_window(&t, 12);
    cr_expect(eq(int, ngram_depth(b.d, 0, q, 15, lambda, &t, eleven + 1e-9), 0),
              "the model's own drafts are worth as much");
    cr_expect(eq(int, ngram_depth(b.d, 0, q, 15, lambda, &t, eleven - 1e-9), 11));
    cr_expect(eq(int, ngram_depth(b.d, 0, q, 15, 8e-5, &t, -INFINITY), 9),
              "a faster stream wants surer rows");
    cr_expect(eq(int, ngram_depth(b.d, 0, q, 3, lambda, &t, -INFINITY), 3),
              "no deeper than what is left");
    cr_expect(eq(int, ngram_depth(b.d, 0, q, 0, lambda, &t, -INFINITY), 0));
    bench_close(&b);
}

Test(ngram, a_long_band_that_is_passed_over_is_tried_once)
{
    struct cost_table t = straight();
    double q[15];
    struct bench b;

    bench_open(&b);
    for (int i = 0; i < 15; i++)
        q[i] = .2;
    match(&b, 20);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 7; i++)
            cr_expect(eq(int, ngram_depth(b.d, 0, q, 15, 7e-5, &t, -INFINITY), 0));
        cr_expect(eq(int, ngram_depth(b.d, 0, q, 15, 7e-5, &t, -INFINITY), 1));
    }
    match(&b, 10);
    for (int i = 0; i < 20; i++)
        cr_expect(eq(int, ngram_depth(b.d, 0, q, 15, 7e-5, &t, -INFINITY), 0),
                  "a short one never is");
    bench_close(&b);
}
