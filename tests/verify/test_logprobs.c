/* logprobs - of the model's own rows, whatever was edited, filtered or drafted. */
#include "src/base/rng.h"
#include "src/transport/comm.h"
#include "tests/verify/accept_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <string.h>

static void language(int pos, int tok, int vocab, float *whole)
{
    for (int v = 0; v < vocab; v++)
        whole[v] =
            3 * synth_normal(11, ((uint64_t)pos * 64 + (uint64_t)(tok % 61)) * 65536 + (uint64_t)v);
    whole[(tok + 1) % vocab] = whole[(tok + 2) % vocab] = 8; /* two best ones */
}

static const struct logit_bias biases[] = { { 5, 4 } };

static const struct voice voices[] = {
    { .s = { .logprobs = 1 } },
    { .s = { .logprobs = 1 + LOGPROBS_MAX, .frequency = 3, .repetition = 1.5 } },
    { .s = { .logprobs = 6, .temperature = 0.6, .seed = 1, .top_p = 0.6, .biases = 1 },
      .bias = biases },
    { .s = { .logprobs = 4, .temperature = 1.4, .seed = 2 } },
    { .s = { .logprobs = 1, .temperature = 0.6, .seed = 4, .top_p = 0.6 } },
    { .s = { .temperature = 1, .seed = 3, .top_k = 5 } },
};

#define VOICES ((int)(sizeof(voices) / sizeof(voices[0])))

static const int32_t prompt[] = { 3, 5, 8 };

struct talk {
    int candidates;
    struct speech serial[RANKS_MAX][VOICES], drafted[RANKS_MAX][VOICES];
};

static void talk(struct bench *b)
{
    struct talk *of = b->arg;
    struct speech *mine = of->serial[b->m.rank], *drafted = of->drafted[b->m.rank];
    const struct speech *serial[VOICES];

    accept_route(b->a, of->candidates, false);
    for (int v = 0; v < VOICES; v++) {
        serial[v] = &mine[v];
        speech_serial(b, language, v % SLOTS_MAX, &voices[v], prompt, 3, &mine[v]);
    }
    speech_drafted(b, language, voices, 3, 5, true, prompt, 3, serial, drafted);
    speech_drafted(b, language, voices + 3, 3, 15, false, prompt, 3, serial + 3, drafted + 3);
}

static void expect_row(const struct voice *v, const struct logprobs *lp, int id, int pos, int tok,
                       int vocab)
{
    static float z[5000];
    long double whole = 0;
    int n = v->s.logprobs - 1;

    language(pos, tok, vocab, z);
    for (int c = 0; c < vocab; c++)
        whole += expl((long double)z[c]);
    cr_assert(epsilon_eq(dbl, lp->chosen, (double)((long double)z[id] - logl(whole)), 1e-12));
    cr_assert(eq(int, lp->n, n < vocab ? n : vocab));
    for (int i = 0; i < lp->n; i++) {
        int best = 0;

        for (int c = 0; c < vocab; c++)
            best = z[c] > z[best] ? c : best;
        cr_assert(eq(int, lp->id[i], best), "rank %d of the row at %d", i, pos);
        cr_assert(epsilon_eq(dbl, lp->top[i], (double)((long double)z[best] - logl(whole)), 1e-12));
        z[best] = -INFINITY;
    }
}

static bool same(const struct speech *a, const struct speech *b)
{
    for (int i = 0; i < SPEECH; i++)
        if (a->id[i] != b->id[i] || a->lp[i].chosen != b->lp[i].chosen ||
            a->lp[i].n != b->lp[i].n ||
            memcmp(a->lp[i].top, b->lp[i].top, sizeof(double) * (size_t)a->lp[i].n) != 0 ||
            memcmp(a->lp[i].id, b->lp[i].id, sizeof(int32_t) * (size_t)a->lp[i].n) != 0)
            return false;
    return true;
}

static struct talk one, t;

static void expect_all(int ranks, int vocab)
{
    for (int r = 0; r < ranks; r++)
        for (int v = 0; v < VOICES - 1; v++) {
            cr_expect(same(&t.serial[r][v], &one.serial[0][v]), "voice %d, rank %d of %d", v, r,
                      ranks);
            cr_expect(same(&t.drafted[r][v], &one.serial[0][v]), "voice %d drafted, rank %d of %d",
                      v, r, ranks);
        }
    for (int v = 0; v < VOICES - 1; v++)
        for (int i = 0; i < SPEECH; i += 7)
            expect_row(&voices[v], &one.serial[0][v].lp[i], one.serial[0][v].id[i], 2 + i,
                       i ? one.serial[0][v].id[i - 1] : prompt[2], vocab);
}

Test(logprobs, are_those_of_the_row_with_drafts_and_without, .timeout = 60)
{
    enum { VOCAB = 4 * MASS_CHUNK };
    static const int ranks[] = { 1, 2, 4 };

    worlds_run(1, VOCAB, 1, talk, &one);
    for (int n = 0; n < 3; n++) {
        t.candidates = n == 1 ? 2 : 0; /* with slots that candidates leave undecided */
        worlds_run(ranks[n], VOCAB, 1, talk, &t);
        expect_all(ranks[n], VOCAB);
    }
}

Test(logprobs, are_the_same_where_shares_cut_a_chunk, .timeout = 60)
{
    t.candidates = 0;
    worlds_run(1, 700, 1, talk, &one);
    worlds_run(2, 700, 1, talk, &t);
    expect_all(2, 700);
    worlds_run(1, 13, 1, talk, &one);
    worlds_run(4, 13, 1, talk, &t);
    expect_all(4, 13);
}
