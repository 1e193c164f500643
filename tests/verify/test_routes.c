/* routes - whatever crosses the wire between the ranks, the token is the one of the whole row. */
#include "src/base/rng.h"
#include "src/transport/comm.h"
#include "tests/verify/accept_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <string.h>

#define CHUNKS 8
#define VOCAB (CHUNKS * MASS_CHUNK) /* halves and quarters begin with whole chunks */

/* Few tokens matter at even positions, many at odd ones; ties everywhere. */
static void language(int pos, int tok, int vocab, float *whole)
{
    for (int v = 0; v < vocab; v++) {
        float z =
            synth_normal(7, ((uint64_t)pos * 64 + (uint64_t)(tok % 61)) * 65536 + (uint64_t)v);

        whole[v] = pos % 2 ? 2 * z : truncf(z * 8) / 2;
    }
    for (int i = 0; i < 40 && pos % 5 == 0; i++)
        whole[(i * 83 + tok) % vocab] = 9; /* more equal best ones than some candidates can hold */
}

static const struct voice voices[] = {
    { .s = { .temperature = 0 } },
    { .s = { .temperature = 1, .seed = 2 } },
    { .s = { .temperature = 0.8, .seed = 3, .top_k = 20 } },
    { .s = { .temperature = 1, .seed = 4, .top_k = 40, .top_p = 0.8 } },
    { .s = { .temperature = 0.9, .seed = 5, .top_p = 0.7 } },
    { .s = { .temperature = 1, .seed = 6, .top_p = 0.95, .min_p = 0.2 } },
    { .s = { .temperature = 0.7, .seed = 7, .min_p = 0.05 } },
    { .s = { .temperature = 1, .seed = 8, .top_k = 2000 } },
    { .s = { .temperature = 0.3, .seed = 9, .top_p = 0.999 } },
    { .s = { .temperature = 1, .seed = 10, .top_k = TOPK_MAX - 8 } }, /* candidates do it, */
    { .s = { .temperature = 1, .seed = 11, .top_k = TOPK_MAX - 7 } }, /* and just not */
};

#define VOICES ((int)(sizeof(voices) / sizeof(voices[0])))

struct routes {
    int candidates; /* of top-p and min-p, 0: as they need */
    bool whole;
    struct speech serial[RANKS_MAX][VOICES];
    int resolved[RANKS_MAX][VOICES];
};

static const int32_t prompt[] = { 1, 2, 3 };

static void talk(struct bench *b)
{
    struct routes *t = b->arg;

    accept_route(b->a, t->candidates, t->whole);
    for (int v = 0; v < VOICES; v++) {
        b->resolved = 0;
        speech_serial(b, language, v % SLOTS_MAX, &voices[v], prompt, 3, &t->serial[b->m.rank][v]);
        t->resolved[b->m.rank][v] = b->resolved;
    }
}

static struct routes one, t;

static void expect_same(int ranks, const char *how)
{
    for (int r = 0; r < ranks; r++)
        for (int v = 0; v < VOICES; v++) {
            cr_expect(
                eq(int, memcmp(t.serial[r][v].id, one.serial[0][v].id, sizeof(one.serial[0][v].id)),
                   0),
                "voice %d, rank %d of %d, %s", v, r, ranks, how);
            cr_expect(eq(int, t.resolved[r][v], t.resolved[0][v]), "ranks differ in their route");
        }
}

Test(routes, all_of_them_choose_the_same_tokens, .timeout = 120)
{
    static const int ranks[] = { 1, 2, 4 };

    one.whole = true;
    worlds_run(1, VOCAB, 1, talk, &one);
    for (int v = 0; v < VOICES; v++)
        cr_expect(eq(int, one.resolved[0][v], 0));
    for (int n = 0; n < 3; n++)
        for (int k = 0; k < 3; k++) {
            static const int few[] = { 0, 3, 24 };

            t.whole = false;
            t.candidates = few[k];
            worlds_run(ranks[n], VOCAB, 1, talk, &t);
            expect_same(ranks[n], "candidates");
            for (int v = 0; v < VOICES; v++) {
                bool prefix = voices[v].s.temperature > 0 && voices[v].s.top_k == 0 && v != 1;

                if (k == 1)
                    cr_expect(eq(int, t.resolved[0][v] > 0, prefix),
                              "voice %d: %d windows undecided by 3 candidates", v,
                              t.resolved[0][v]);
                if (k == 0 && v != 8)
                    cr_expect(lt(int, t.resolved[0][v], SPEECH / 20),
                              "voice %d of %d ranks: %d windows undecided", v, ranks[n],
                              t.resolved[0][v]);
            }
        }
    t.whole = true;
    worlds_run(2, VOCAB, 1, talk, &t);
    expect_same(2, "whole rows");
}

/* 1000 = 3 chunks and a piece: the second half begins inside a chunk, and whole rows are
 * gathered. */
Test(routes, shares_that_cut_a_chunk_choose_the_same_tokens, .timeout = 120)
{
    one.whole = true;
    worlds_run(1, 1000, 1, talk, &one);
    t.whole = false;
    t.candidates = 0;
    worlds_run(2, 1000, 1, talk, &t);
    expect_same(2, "cut chunks");
    worlds_run(3, 1000, 1, talk, &t);
    expect_same(3, "cut chunks");
}

/* ---- what crosses the wire ------------------------------------------------------------------- */

struct traffic {
    int voice;
    uint64_t bytes[RANKS_MAX];
};

static void count(struct bench *b)
{
    struct traffic *of = b->arg;
    const int32_t tok[] = { 1, 2, 3 };

    b->sampler[0] = voices[of->voice].s;
    window_clear(b->w);
    bench_must(b, window_add(b->w, 0, tok, 3, 0), "add");
    b->w->head = true;
    bench_must(b, window_upload(&b->x, b->pool, b->w), "upload");
    for (int i = 0; i < 3; i++) {
        float whole[VOCAB];

        language(1 + 2 * i, tok[i], VOCAB, whole);
        put_row(b, i, whole);
    }
    comm_stats_take(b->x.comm);
    bench_must(b, decide(b), "decide");
    of->bytes[b->m.rank] = comm_stats_take(b->x.comm).bytes;
}

Test(routes, gathers_are_sized_by_what_is_asked)
{
    static const struct {
        int voice, candidates, masses;
    } cases[] = {
        { 0, 1, 0 }, { 1, 1, 0 }, { 2, 32, 0 }, { 3, 64, 0 }, { 5, 512, CHUNKS / 2 }, { 6, 512, 0 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct traffic of = { .voice = cases[i].voice };
        uint64_t cand = (3 * 8 * (uint64_t)cases[i].candidates + 15) / 16 * 16;

        worlds_run(2, VOCAB, 1, count, &of);
        for (int r = 0; r < 2; r++)
            cr_expect(eq(u64, of.bytes[r], cand + 3 * 16 * (uint64_t)cases[i].masses), "voice %d",
                      cases[i].voice);
    }
}

/* ---- F-08 ------------------------------------------------------------------------------------ */

struct company {
    int n, depth; /* slots at once */
    struct speech serial[RANKS_MAX][SLOTS_MAX], drafted[RANKS_MAX][SLOTS_MAX];
};

static const struct voice company_voices[] = {
    { .s = { .temperature = 0.8, .seed = 7 } },
    { .s = { .temperature = 0.8, .seed = 7, .top_p = 0.7 } },
    { .s = { .temperature = 0.8, .seed = 8, .top_k = 20 } },
    { .s = { .temperature = 0 } },
};

static void keep_company(struct bench *b)
{
    struct company *c = b->arg;
    const struct speech *serial[SLOTS_MAX];

    for (int i = 0; i < SLOTS_MAX; i++) {
        serial[i] = &c->serial[b->m.rank][i];
        speech_serial(b, language, i, &company_voices[i], prompt, 3, &c->serial[b->m.rank][i]);
    }
    speech_drafted(b, language, company_voices, c->n, c->depth, false, prompt, 3, serial,
                   c->drafted[b->m.rank]);
}

Test(routes, F_08_a_seed_says_the_same_alone_and_in_company, .timeout = 120)
{
    static struct company c;
    static const int depths[] = { 0, 1, 5 };

    for (int n = 1; n <= SLOTS_MAX; n++)
        for (int d = 0; d < 3; d++) {
            c.n = n;
            c.depth = depths[d];
            worlds_run(1 + n % 2, VOCAB, 1, keep_company, &c);
            for (int r = 0; r < 1 + n % 2; r++)
                for (int i = 0; i < n; i++)
                    cr_expect(
                        eq(int,
                           memcmp(c.serial[0][i].id, c.drafted[r][i].id, SPEECH * sizeof(int32_t)),
                           0),
                        "slot %d of %d, depth %d, rank %d", i, n, depths[d], r);
        }
}
