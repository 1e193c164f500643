/* penalties - F-10: every landed token weighs, once, on every row behind it, whatever was
 * drafted. */
#include "src/base/rng.h"
#include "src/transport/comm.h"
#include "tests/verify/accept_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define VOCAB 38
#define END 9

/* A reply that goes round in circles, and wants to end. */
static void language(int pos, int tok, int vocab, float *whole)
{
    for (int v = 0; v < vocab; v++)
        whole[v] = synth_normal(3, ((uint64_t)(pos % 4) * 64 + (uint64_t)tok) * 64 + (uint64_t)v);
    whole[(tok + 1) % 5] += 4;
    whole[END] += 2.5f;
}

static const struct logit_bias biases[] = { { 2, -INFINITY }, { 30, 3 }, { 3, -1.5f } };

static const struct voice voices[] = {
    { .s = { .repetition = 1 } },
    { .s = { .frequency = 2 } },
    { .s = { .presence = 1.5 } },
    { .s = { .repetition = 1.3 } },
    { .s = { .frequency = -0.5, .presence = 0.5, .repetition = 1.1 } },
    { .s = { .min_tokens = 10, .ends = 2, .end = { END, 4 } } },
    { .s = { .biases = 3 }, .bias = biases },
    { .s = { .biases = 3, .frequency = 0.3, .min_tokens = 40, .ends = 1, .end = { END } },
      .bias = biases },
    { .s = { .frequency = 0.2, .temperature = 0.8, .seed = 5 } },
    { .s = { .repetition = 1.2, .temperature = 1, .seed = 6, .top_p = 0.8 } },
    { .s = { .presence = 0.7, .temperature = 1, .seed = 7, .top_k = 6 } },
};

#define VOICES ((int)(sizeof(voices) / sizeof(voices[0])))

static const int32_t prompt[] = { 7, 30, 7, 1, 12, 0, 30 };

#define PROMPT ((int)(sizeof(prompt) / sizeof(prompt[0])))

struct talk {
    int depth;
    bool cut;
    struct speech serial[RANKS_MAX][VOICES], drafted[RANKS_MAX][VOICES];
};

static void talk(struct bench *b)
{
    struct talk *t = b->arg;
    struct speech *mine = t->serial[b->m.rank];

    for (int v = 0; v < VOICES; v++)
        speech_serial(b, language, v % SLOTS_MAX, &voices[v], prompt, PROMPT, &mine[v]);
    for (int v = 0; v < VOICES; v += 3) {
        int n = VOICES - v < 3 ? VOICES - v : 3;
        const struct speech *serial[3] = { &mine[v], &mine[v + n / 2], &mine[v + n - 1] };

        if (n == 3)
            serial[1] = &mine[v + 1];
        speech_drafted(b, language, voices + v, n, t->depth, t->cut, prompt, PROMPT, serial,
                       &t->drafted[b->m.rank][v]);
    }
}

/* The reply as the definition has it: the history is kept here, token by token. */
static void expect_defined(const struct voice *v, const struct speech *got, const char *name)
{
    int said[VOCAB] = { 0 };
    bool asked[VOCAB] = { 0 };
    int tok = prompt[PROMPT - 1];

    for (int i = 0; i < PROMPT; i++)
        asked[prompt[i]] = true;
    for (int n = 0; n < SPEECH; n++) {
        float z[VOCAB];
        int best = 0;

        language(PROMPT - 1 + n, tok, VOCAB, z);
        for (int c = 0; c < VOCAB; c++) {
            double x = (double)z[c];

            for (int i = 0; i < v->s.biases; i++)
                x += v->bias[i].id == c ? (double)v->bias[i].add : 0;
            if (v->s.repetition > 0 && (said[c] || asked[c]))
                x = x > 0 ? x / v->s.repetition : x * v->s.repetition;
            x -= v->s.frequency * said[c] + (said[c] ? v->s.presence : 0);
            for (int i = 0; i < v->s.ends && n < v->s.min_tokens; i++)
                x = v->s.end[i] == c ? (double)-INFINITY : x;
            z[c] = (float)x;
            best = z[c] > z[best] ? c : best;
        }
        cr_assert(eq(int, got->id[n], best), "%s, token %d", name, n);
        tok = best;
        said[tok]++;
    }
}

static struct talk t;

Test(penalties, F_10_greedy_replies_are_those_of_the_definition)
{
    worlds_run(1, VOCAB, 1, talk, &t);
    for (int v = 0; v < VOICES; v++) {
        char name[16];

        snprintf(name, sizeof(name), "voice %d", v);
        if (voices[v].s.temperature == 0)
            expect_defined(&voices[v], &t.serial[0][v], name);
        for (int u = 0; u < v; u++)
            cr_expect(
                ne(int, memcmp(t.serial[0][v].id, t.serial[0][u].id, sizeof(int32_t) * SPEECH), 0),
                "voices %d and %d say the same", v, u);
    }
}

static int first(const struct speech *s, int id)
{
    int n = 0;

    while (n < SPEECH && s->id[n] != id)
        n++;
    return n;
}

Test(penalties, F_10_min_tokens_counts_tokens)
{
    worlds_run(1, VOCAB, 1, talk, &t);
    cr_expect(lt(int, first(&t.serial[0][0], END), 10), "an eager end");
    cr_expect(ge(int, first(&t.serial[0][5], END), 10));
    cr_expect(lt(int, first(&t.serial[0][5], END), 20));
    cr_expect(ge(int, first(&t.serial[0][5], 4), 10), "both of the end tokens");
    cr_expect(ge(int, first(&t.serial[0][7], END), 40));
    cr_expect(eq(int, first(&t.serial[0][6], 2), SPEECH), "a banned token");
}

Test(penalties, F_10_drafts_change_nothing, .timeout = 120)
{
    static struct talk one;
    static const int depths[] = { 0, 1, 5, WINDOW_MAX - 1 };
    static const int ranks[] = { 1, 2, 4 };

    worlds_run(1, VOCAB, 1, talk, &one);
    for (int n = 0; n < 3; n++)
        for (int d = 0; d < 4; d++) {
            t.depth = depths[d];
            t.cut = d % 2;
            worlds_run(ranks[n], VOCAB, 1, talk, &t);
            for (int r = 0; r < ranks[n]; r++)
                for (int v = 0; v < VOICES; v++) {
                    const struct speech *s = &t.drafted[r][v];

                    cr_expect(
                        eq(int,
                           memcmp(t.serial[r][v].id, one.serial[0][v].id, sizeof(int32_t) * SPEECH),
                           0),
                        "voice %d, rank %d of %d", v, r, ranks[n]);
                    cr_expect(
                        eq(int, memcmp(s->id, one.serial[0][v].id, sizeof(int32_t) * SPEECH), 0),
                        "voice %d, depth %d, rank %d of %d", v, depths[d], r, ranks[n]);
                    cr_expect(depths[d] < 5 || (s->full > 0 && s->partial > 0 && s->empty > 0),
                              "voice %d: %d full, %d partial, %d empty", v, s->full, s->partial,
                              s->empty);
                }
        }
}
