#include <errno.h>

#include "tests/base/capture.h"
#include "tests/kernels/choices.h"

/* ---- best ---- */

Test(pick, best_lists_the_largest_first_and_the_lower_id_of_equals)
{
    static const int ks[] = { 1, 2, 7, 64, 65, 1000 }, cols[] = { 1, 63, 64, 1000, 1500 };
    struct bed b;

    bed_open(&b, 2);
    for (size_t i = 0; i < COUNT(ks); i++)
        for (size_t j = 0; j < COUNT(cols); j++) {
            size_t n = 5 * (size_t)cols[j];
            float *z = bed_f32(&b, n, 4);
            struct candidate *cand = bed_take(&b, 5 * (size_t)ks[i] * sizeof(*cand)), want[1000];

            for (size_t c = 0; c < n; c++) {
                z[c] = c / (size_t)cols[j] == 3 ? truncf(z[c])
                                                : z[c]; /* a row of ties, zeros of both signs */
                z[c] = c % 11 == 5 ? -INFINITY : z[c];
            }
            b.op->best(b.q, &(struct best_args){ .logits = z,
                                                 .cand = cand,
                                                 .rows = 5,
                                                 .cols = cols[j],
                                                 .k = ks[i],
                                                 .id0 = 100 });
            for (int r = 0; r < 5; r++) {
                naive_best(z + r * cols[j], cols[j], ks[i], 100, want);
                for (int c = 0; c < ks[i]; c++) {
                    struct candidate got = cand[r * ks[i] + c];

                    cr_assert(got.id == want[c].id && got.z == want[c].z,
                              "k %d of %d, row %d place %d: %d", ks[i], cols[j], r, c, got.id);
                }
            }
        }
    bed_close(&b);
}

Test(pick, best_marks_a_row_that_is_not_finite)
{
    static const float bad[] = { NAN, INFINITY };
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(bad); i++)
        for (int at = 0; at < 40; at += 13) {
            float z[80];
            struct candidate c[6];

            bed_fill(&b, z, 80, 3);
            z[at] = bad[i];
            b.op->best(
                b.q, &(struct best_args){ .logits = z, .cand = c, .rows = 2, .cols = 40, .k = 3 });
            cr_expect(c[0].z != c[0].z && c[0].id == -1, "at %d", at);
            cr_expect(c[1].id == -1 && c[1].z == -INFINITY);
            cr_expect(c[3].id >= 0 && c[3].z >= c[4].z, "the other row is as it was");
        }
    bed_close(&b);
}

/* ---- choose ---- */

struct poll {
    struct bed b;
    struct sampler s[SLOTS_MAX];
    struct row_info info[16];
    float *full;
    struct candidate *best;
    int32_t choice[16];
    struct choose_args a;
};

/* Rows of logits [rows][vocab] shared out over ranks as the gather would leave them. */
static void poll_open(struct poll *p, const float *z, int rows, int vocab, int ranks)
{
    int at = 0, ldf = (vocab + ranks - 1) / ranks + 2;

    memset(p, 0, sizeof(*p));
    bed_open(&p->b, ranks % 3 + 1);
    p->full = bed_zeros(&p->b, (size_t)(ranks * rows * ldf));
    p->best = bed_take(&p->b, (size_t)(ranks * rows) * sizeof(*p->best));
    p->a = (struct choose_args){ .best = p->best,
                                 .full = p->full,
                                 .sampler = p->s,
                                 .info = p->info,
                                 .choice = p->choice,
                                 .ranks = ranks,
                                 .rows = rows,
                                 .ldf = ldf };
    p->a.scratch = bed_take(&p->b, (size_t)p->b.d->workers * choose_scratch((size_t)vocab));
    for (int i = 0; i < ranks; i++) {
        int width = i == ranks - 1 ? vocab - at : vocab / ranks;

        for (int r = 0; r < rows; r++)
            memcpy(p->full + (i * rows + r) * ldf, z + r * vocab + at, (size_t)width * sizeof(*z));
        for (int r = 0; r < rows; r++)
            naive_best(z + r * vocab + at, width, 1, at, &p->best[i * rows + r]);
        p->a.width[i] = width;
        at += width;
    }
}

static int poll_run(struct poll *p)
{
    p->b.op->choose(p->b.q, &p->a);
    return bed_wait(&p->b);
}

Test(pick, choices_follow_the_definition_whatever_the_split)
{
    enum { ROWS = 6 };
    static const int vocabs[] = { 5, 64, 700, 4096 };
    static float z[ROWS * VOCAB_MAX];

    for (size_t v = 0; v < COUNT(vocabs); v++)
        for (size_t i = 0; i < COUNT(samplers); i++)
            for (int ranks = 1; ranks <= 4; ranks *= 2) {
                int vocab = vocabs[v];
                struct poll p;

                for (int c = 0; c < ROWS * vocab; c++) {
                    z[c] = 9 * synth_normal(i * 10 + v, (uint64_t)c) * (c / vocab % 2 ? 1 : 0.3f);
                    z[c] = c / vocab == 4 ? truncf(z[c]) : z[c]; /* ties */
                    z[c] = c % 13 == 3 ? -INFINITY : z[c];
                }
                poll_open(&p, z, ROWS, vocab, ranks);
                for (int r = 0; r < ROWS; r++)
                    p.info[r] = (struct row_info){ .slot = r % 3, .pos = 1000 * r + 7 };
                for (int s = 0; s < 3; s++) {
                    p.s[s] = samplers[i];
                    p.s[s].seed += (uint64_t)s << 40;
                }
                cr_assert(eq(int, poll_run(&p), 0));
                for (int r = 0; r < ROWS; r++) {
                    const struct sampler *s = &p.s[r % 3];
                    struct candidate top;
                    int n;

                    naive_best(z + r * vocab, vocab, 1, 0, &top);
                    cr_assert(eq(int, p.choice[r],
                                 s->temperature > 0 ? naive_choice(s, z + r * vocab, vocab,
                                                                   (uint64_t)p.info[r].pos + 1, &n)
                                                    : top.id),
                              "sampler %zu, vocabulary %d, row %d, %d ranks", i, vocab, r, ranks);
                }
                bed_close(&p.b);
            }
}

Test(pick, filters_leave_the_prefix_that_they_should)
{
    /* probabilities 1/2, 1/4, 1/8, 1/16, 1/16 in another order of ids */
    static const float z[5] = { -2.0794415f, -0.6931472f, -2.7725887f, -1.3862944f, -2.7725887f };
    static const struct {
        const char *name;
        struct sampler s;
        unsigned ids; /* bit set of those that may be drawn */
    } cases[] = {
        { "nothing on", { .temperature = 1 }, 0x1f },
        { "top-k", { .temperature = 1, .top_k = 2 }, 0x0a },
        { "top-k cuts a tie at the lower id", { .temperature = 1, .top_k = 4 }, 0x0f },
        { "top-p below the first", { .temperature = 1, .top_p = 0.49 }, 0x02 },
        { "top-p keeps the one that reaches it", { .temperature = 1, .top_p = 0.51 }, 0x0a },
        { "top-p of nearly all", { .temperature = 1, .top_p = 0.93 }, 0x0f },
        { "top-p counts what top-k left", { .temperature = 1, .top_k = 2, .top_p = 0.6 }, 0x02 },
        { "min-p", { .temperature = 1, .min_p = 0.3 }, 0x0a },
        { "min-p of one", { .temperature = 1, .min_p = 1 }, 0x02 },
        { "temperature comes first", { .temperature = 2, .min_p = 0.3 }, 0x1f },
        { "top-p at 1 is off", { .temperature = 1, .top_p = 1 }, 0x1f },
        { "the smallest of all decides",
          { .temperature = 1, .top_k = 3, .top_p = 0.99, .min_p = 0.3 },
          0x0a },
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        unsigned seen = 0;
        struct poll p;

        poll_open(&p, z, 1, 5, 1);
        p.s[0] = cases[i].s;
        for (int pos = 0; pos < 500; pos++) {
            p.info[0].pos = pos;
            cr_assert(eq(int, poll_run(&p), 0));
            seen |= 1u << p.choice[0];
        }
        cr_expect(eq(uint, seen, cases[i].ids), "%s", cases[i].name);
        bed_close(&p.b);
    }
}

Test(pick, top_p_stops_at_the_one_that_reaches_it_exactly)
{
    static const float z[4]; /* a quarter each */
    unsigned seen = 0;
    struct poll p;

    poll_open(&p, z, 1, 4, 1);
    p.s[0] = (struct sampler){ .temperature = 1, .top_p = 0.5 };
    for (int pos = 0; pos < 200; pos++) {
        p.info[0].pos = pos;
        cr_assert(eq(int, poll_run(&p), 0));
        seen |= 1u << p.choice[0];
    }
    cr_expect(eq(uint, seen, 3));
    bed_close(&p.b);
}

Test(pick, draws_have_the_distribution_of_the_softmax)
{
    enum { VOCAB = 8, DRAWS = 100000 };
    static const float z[VOCAB] = { 0, 1, 2, -1, 0.5f, 1.5f, -2, 0 };
    double weight[VOCAB], whole = 0, chi = 0;
    int seen[VOCAB] = { 0 };
    struct poll p;

    poll_open(&p, z, 1, VOCAB, 2);
    p.s[0] = (struct sampler){ .temperature = 0.9, .seed = 20240817 };
    for (int i = 0; i < VOCAB; i++)
        whole += weight[i] = exp((double)z[i] / 0.9);
    for (int pos = 0; pos < DRAWS; pos++) {
        p.info[0].pos = pos;
        p.b.op->choose(p.b.q, &p.a);
        seen[p.choice[0]]++;
    }
    for (int i = 0; i < VOCAB; i++) {
        double want = DRAWS * weight[i] / whole;

        chi += ((double)seen[i] - want) * ((double)seen[i] - want) / want;
    }
    cr_expect(chi < 24.3, "chi-square of 7 degrees is %f, 1 in 1000 lies above 24.3", chi);
    cr_expect(chi > 0.5, "chi-square %f is too good", chi);
    bed_close(&p.b);
}

Test(pick, a_choice_is_keyed_by_the_position_it_will_have)
{
    static float z[4 * 64];
    struct poll p;
    int n;

    poll_open(&p, z, 4, 64, 1); /* all logits equal: the noise alone decides */
    p.s[0] = p.s[1] = (struct sampler){ .temperature = 1, .seed = 42 };
    p.s[2] = (struct sampler){ .temperature = 1, .seed = 43 };
    p.info[0] = (struct row_info){ .slot = 0, .pos = 10 };
    p.info[1] = (struct row_info){ .slot = 0, .pos = 11 };
    p.info[2] = (struct row_info){ .slot = 1, .pos = 10 };
    p.info[3] = (struct row_info){ .slot = 2, .pos = 10 };
    cr_assert(eq(int, poll_run(&p), 0));
    cr_expect(eq(int, p.choice[0], naive_choice(&p.s[0], z, 64, 11, &n)));
    cr_expect(eq(int, p.choice[1], naive_choice(&p.s[0], z, 64, 12, &n)));
    cr_expect(eq(int, p.choice[2], p.choice[0]), "the slot does not matter");
    cr_expect(ne(int, p.choice[3], p.choice[0]), "the seed does");
    bed_close(&p.b);
}

Test(pick, greedy_ties_between_ranks_go_to_the_lower_id)
{
    static const float z[8] = { -1, 3, 0, 0, 1, 3, 3, 2 };
    static const float zero[8] = { -1, -1, -0.0f, -1, 0.0f, -1, -1, -2 };
    struct poll p;

    poll_open(&p, z, 1, 8, 4);
    cr_assert(eq(int, poll_run(&p), 0));
    cr_expect(eq(int, p.choice[0], 1));
    bed_close(&p.b);
    poll_open(&p, zero, 1, 8, 2);
    cr_assert(eq(int, poll_run(&p), 0));
    cr_expect(eq(int, p.choice[0], 2), "zeros of both signs are equal");
    bed_close(&p.b);
}

static const struct {
    const char *name;
    float bad;
    int at; /* index into 3 rows of 8, the vocabulary halved over two ranks; -1: a whole row */
} faults[] = {
    { "NaN in the first place", NAN, 8 },     { "NaN in the last place", NAN, 15 },
    { "NaN in rank 1's half only", NAN, 13 }, { "+inf", INFINITY, 10 },
    { "nothing finite", -INFINITY, -1 },
};

Test(pick, a_row_without_finite_logits_fails_and_names_slot_and_row)
{
    for (int sampled = 0; sampled < 2; sampled++)
        for (size_t i = 0; i < COUNT(faults); i++) {
            float z[24] = {
                1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8
            };
            struct capture c;
            struct poll p;

            for (int k = 8; k < 16; k++)
                z[k] = faults[i].at < 0 || k == faults[i].at ? faults[i].bad : z[k];
            poll_open(&p, z, 3, 8, 2);
            for (int rank = 0; rank < 2; rank++)
                p.b.op->best(p.b.q, &(struct best_args){ .logits = z + 8 + rank * 4,
                                                         .cand = p.best + rank * 3 + 1,
                                                         .rows = 1,
                                                         .cols = 4,
                                                         .k = 1,
                                                         .id0 = 4 * rank });
            p.info[1].slot = 2;
            p.info[1].pos = 99;
            p.s[2].temperature = sampled;
            capture_start(&c);
            cr_expect(eq(int, poll_run(&p), -EBADMSG), "%s", faults[i].name);
            cr_expect(strstr(c.last, "slot 2 row 1 position 99") != NULL, "%s", c.last);
            bed_close(&p.b);
        }
}

/* ---- choices from offers ---- */

/* What the ranks of a poll offer instead of their logits. */
static void poll_offer(struct poll *p, int k, int ldm)
{
    int rows = p->a.rows, id0 = 0;
    size_t masses = sizeof(struct candidate) * (size_t)(rows * k);
    size_t stride = masses + sizeof(struct chunk_mass) * (size_t)(rows * ldm);
    char *offers = bed_take(&p->b, stride * (size_t)p->a.ranks);

    p->a.best = (struct candidate *)offers;
    p->a.mass = (struct chunk_mass *)(offers + masses);
    p->a.k = k;
    p->a.ldm = ldm;
    p->a.stride = stride;
    for (int i = 0; i < p->a.ranks; id0 += p->a.width[i++]) {
        const float *z = p->full + (size_t)(i * rows * p->a.ldf);
        char *mine = offers + (size_t)i * stride;
        struct candidate *cand = (struct candidate *)mine;
        int cols = p->a.width[i];
        float *share = bed_zeros(&p->b, (size_t)(rows * cols));

        for (int r = 0; r < rows; r++)
            memcpy(share + r * cols, z + r * p->a.ldf, (size_t)cols * sizeof(*z));
        p->b.op->best(p->b.q, &(struct best_args){ share, cand, rows, cols, k, id0 });
        p->b.op->draw(p->b.q,
                      &(struct draw_args){ .logits = share,
                                           .sampler = p->s,
                                           .info = p->info,
                                           .cand = cand,
                                           .scratch = bed_take(&p->b, (size_t)rows * DRAW_SCRATCH),
                                           .rows = rows,
                                           .cols = cols,
                                           .k = k,
                                           .id0 = id0 });
        if (ldm)
            p->b.op->mass(p->b.q, &(struct mass_args){ .logits = share,
                                                       .sampler = p->s,
                                                       .info = p->info,
                                                       .mass = (struct chunk_mass *)(mine + masses),
                                                       .rows = rows,
                                                       .cols = cols,
                                                       .id0 = id0,
                                                       .ld = ldm });
    }
    if (!ldm)
        p->a.mass = NULL;
}

Test(pick, offers_give_the_choice_of_the_whole_row_or_none)
{
    enum { ROWS = 6, VOCAB = 4 * MASS_CHUNK };
    static const int ks[] = { 2, 16, 128, MASS_CHUNK };
    static float z[ROWS * VOCAB];
    int open = 0, made = 0;

    for (size_t i = 0; i < COUNT(samplers); i++)
        for (int ranks = 1; ranks <= 4; ranks *= 2)
            for (size_t k = 0; k < COUNT(ks); k++) {
                int32_t want[ROWS];
                struct poll p;

                for (int c = 0; c < ROWS * VOCAB; c++) {
                    z[c] = 9 * synth_normal(i, (uint64_t)c) * (c / VOCAB % 2 ? 1 : 0.3f);
                    z[c] = c / VOCAB == 4 ? truncf(z[c]) : z[c]; /* ties */
                    z[c] = c % 13 == 3 ? -INFINITY : z[c];
                }
                poll_open(&p, z, ROWS, VOCAB, ranks);
                for (int r = 0; r < ROWS; r++)
                    p.info[r] = (struct row_info){ .slot = r % 3, .pos = 1000 * r + 7 };
                for (int s = 0; s < 3; s++) {
                    p.s[s] = samplers[i];
                    p.s[s].seed += (uint64_t)s << 40;
                }
                cr_assert(eq(int, poll_run(&p), 0));
                memcpy(want, p.choice, sizeof(want));
                poll_offer(&p, ks[k], VOCAB / ranks / MASS_CHUNK);
                p.a.full = NULL;
                cr_assert(eq(int, poll_run(&p), 0));
                for (int r = 0; r < ROWS; r++) {
                    if (p.choice[r] == CHOICE_OPEN)
                        open++;
                    else
                        cr_assert(eq(int, p.choice[r], want[r]),
                                  "sampler %zu, row %d, %d of %d ranks", i, r, ks[k], ranks);
                    made += p.choice[r] != CHOICE_OPEN;
                }
                bed_close(&p.b);
            }
    cr_expect(gt(int, open, 100));
    cr_expect(gt(int, made, 2 * open));
}

Test(pick, what_offers_cannot_decide_is_open)
{
    /* equal steps down; half the mass lies in the first */
    static const float z[8] = { 0, -1, -2, -3, -4, -5, -6, -7 };
    static const struct {
        const char *name;
        struct sampler s;
        int k, masses, open;
    } cases[] = {
        { "top-k within the candidates", { .temperature = 1, .top_k = 3 }, 3, 0, 0 },
        { "top-k beyond the candidates", { .temperature = 1, .top_k = 4 }, 3, 0, 1 },
        { "top-k beyond them all", { .temperature = 1, .top_k = 9 }, 8, 0, 0 },
        { "top-p reached before the last", { .temperature = 1, .top_p = 0.8 }, 3, 1, 0 },
        { "top-p reached by the last", { .temperature = 1, .top_p = 0.9 }, 3, 1, 1 },
        { "top-p without masses", { .temperature = 1, .top_p = 0.8 }, 3, 0, 1 },
        { "min-p above the last", { .temperature = 1, .min_p = 0.2 }, 3, 0, 0 },
        { "min-p below the last", { .temperature = 1, .min_p = 0.1 }, 3, 0, 1 },
        { "a top-p that min-p makes sure",
          { .temperature = 1, .top_p = 0.99, .min_p = 0.2 },
          3,
          1,
          0 },
        { "no filter", { .temperature = 1 }, 1, 0, 0 },
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct poll p;

        poll_open(&p, z, 1, 8, 1);
        p.s[0] = cases[i].s;
        poll_offer(&p, cases[i].k, cases[i].masses);
        p.a.full = NULL;
        cr_assert(eq(int, poll_run(&p), 0));
        cr_expect(eq(int, p.choice[0] == CHOICE_OPEN, cases[i].open), "%s", cases[i].name);
        bed_close(&p.b);
    }
}

Test(pick, sums_next_to_top_p_and_masses_that_lie_are_open)
{
    static const float z[4] = { 0, 0, 0, -INFINITY };
    struct chunk_mass *m;
    struct poll p;

    poll_open(&p, z, 1, 4, 1);
    p.s[0] = (struct sampler){ .temperature = 1, .top_p = 2.0 / 3 + 1e-10 };
    poll_offer(&p, 4, 1);
    p.a.full = NULL;
    cr_assert(eq(int, poll_run(&p), 0));
    cr_expect(eq(int, p.choice[0], CHOICE_OPEN), "within 1e-9");
    p.s[0].top_p = 0.6;
    cr_assert(eq(int, poll_run(&p), 0));
    cr_expect(ge(int, p.choice[0], 0));
    m = (struct chunk_mass *)p.a.mass;
    m->peak = 1;
    cr_assert(eq(int, poll_run(&p), 0));
    cr_expect(eq(int, p.choice[0], CHOICE_OPEN), "the best candidate is not the peak");
    *m = (struct chunk_mass){ .sum = NAN };
    cr_assert(eq(int, poll_run(&p), 0));
    cr_expect(eq(int, p.choice[0], CHOICE_OPEN), "no finite mass");
    bed_close(&p.b);
}

/* Tokens that nobody offers may have the logit of the last that is offered. */
Test(pick, ties_with_the_last_candidate_are_open)
{
    static const struct {
        const char *name;
        float z[8];
        struct sampler s;
        int k;
    } cases[] = {
        { "top-p ends at one of them",
          { 0, -1, -1, -1, -4, -5, -6, -7 },
          { .temperature = 1, .top_p = 0.55 },
          3 },
        { "min-p leaves them", { 0 }, { .temperature = 1, .min_p = 1 }, 2 },
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct poll p;

        poll_open(&p, cases[i].z, 1, 8, 1);
        p.s[0] = cases[i].s;
        poll_offer(&p, cases[i].k, 1);
        p.a.full = NULL;
        cr_assert(eq(int, poll_run(&p), 0));
        cr_expect(eq(int, p.choice[0], CHOICE_OPEN), "%s", cases[i].name);
        bed_close(&p.b);
    }
}

/* F-16: bad logits end the request, whichever way they come. */
Test(pick, F_16_offers_of_a_bad_row_fail_and_name_it)
{
    static const struct sampler by[] = { { .temperature = 0 },
                                         { .temperature = 1 },
                                         { .temperature = 1, .top_k = 2 },
                                         { .temperature = 1, .top_p = 0.5 },
                                         { .temperature = 1, .min_p = 0.5 } };

    for (size_t i = 0; i < COUNT(by); i++)
        for (size_t f = 0; f < COUNT(faults); f++) {
            float z[24];
            struct capture c;
            struct poll p;

            for (int k = 0; k < 24; k++)
                z[k] = k / 8 == 1 && (faults[f].at < 0 || k == faults[f].at) ? faults[f].bad
                                                                             : (float)(k % 8);
            poll_open(&p, z, 3, 8, 2);
            p.info[1].slot = 2;
            p.info[1].pos = 99;
            p.s[2] = by[i];
            poll_offer(&p, 3, 0);
            p.a.full = NULL;
            capture_start(&c);
            cr_expect(eq(int, poll_run(&p), -EBADMSG), "%s, sampler %zu", faults[f].name, i);
            cr_expect(strstr(c.last, "slot 2 row 1 position 99") != NULL, "%s", c.last);
            bed_close(&p.b);
        }
}

Test(pick, more_candidates_than_tokens_are_refused)
{
    static const float z[4] = { 1 };
    struct poll p;

    poll_open(&p, z, 1, 4, 1);
    p.a.k = 100;
    cr_expect(eq(int, poll_run(&p), -EINVAL));
    bed_close(&p.b);
}

/* Rows are weighed for top-p without top-k, or for logprobs; others keep what lies there. */
Test(pick, rows_that_need_no_mass_are_left_alone)
{
    static const struct {
        struct sampler s;
        int top_p, logprobs; /* whether they are weighed */
    } cases[] = {
        { { .temperature = 0, .top_p = 0.5 }, 0, 0 },
        { { .temperature = 1, .top_p = 0.5 }, 1, 0 },
        { { .temperature = 1, .top_p = 0.5, .top_k = 3 }, 0, 0 },
        { { .temperature = 1, .min_p = 0.5 }, 0, 0 },
        { { .temperature = 0, .logprobs = 1 }, 0, 1 },
        { { .temperature = 1, .top_p = 0.5, .logprobs = 3 }, 1, 1 },
    };
    static const float z[8] = { 0, -1, -2, -3, -4, -5, -6, -7 };
    const int32_t pick = 2;
    struct row_info info = { 0 };
    struct bed b;

    bed_open(&b, 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct candidate best[2] = { { 0, 0 }, { -1, 1 } };
        struct logprobs out = { .n = 77 };
        struct chunk_mass m = { .sum = 77 };
        struct mass_args mass = { .logits = z,
                                  .sampler = &cases[i].s,
                                  .info = &info,
                                  .mass = &m,
                                  .rows = 1,
                                  .cols = 8,
                                  .ld = 1 };

        b.op->mass(b.q, &mass);
        cr_expect(eq(int, m.sum != 77, cases[i].top_p), "case %zu", i);
        m.sum = 77;
        mass.pick = &pick;
        b.op->mass(b.q, &mass);
        cr_expect(eq(int, m.sum != 77, cases[i].logprobs), "case %zu", i);
        cr_expect(m.z == -2 || !cases[i].logprobs, "case %zu", i);
        b.op->logprob(b.q, &(struct logprob_args){ .best = best,
                                                   .mass = &m,
                                                   .sampler = &cases[i].s,
                                                   .info = &info,
                                                   .out = &out,
                                                   .width = { 8 },
                                                   .ranks = 1,
                                                   .rows = 1,
                                                   .k = 2,
                                                   .ldm = 1 });
        cr_expect(eq(int, out.n != 77, cases[i].logprobs), "case %zu", i);
    }
    bed_close(&b);
}

/* ---- history ---- */

Test(pick, entries_of_nobody_and_other_shares_are_not_counted)
{
    static const struct row_info info[] = {
        { -1, 0, 11, 0 }, { 0, 0, 11, 0 }, { 0, 1, 11, 0 }, { 0, 2, 9, 0 }, { 0, 2, 14, 0 },
    };
    uint32_t count[2][4] = { { 0 } }, want[2][4] = { { 0 }, { 0, 1 | COUNT_PROMPT, 0, 0 } };
    struct sampler s = { .prompt = 1 };
    struct bed b;

    bed_open(&b, 1);
    b.op->count(b.q, &(struct count_args){ .info = info,
                                           .sampler = &s,
                                           .count = count[1], /* slot 0; in front is nobody's */
                                           .rows = COUNT(info),
                                           .cols = 4,
                                           .id0 = 10 });
    cr_expect(memcmp(count, want, sizeof(want)) == 0);
    bed_close(&b);
}

/* A banned token that has no number still says so: the request ends. */
Test(pick, a_ban_does_not_hide_what_is_no_number)
{
    static const float z[4] = { 1, NAN, INFINITY, 2 };
    static const uint32_t count[4];
    struct sampler s = { .min_tokens = 5, .ends = 3, .end = { 1, 2, 3 } };
    struct row_info info = { .tok = 0 };
    float y[4], bias[4] = { 0 };
    struct bed b;

    bed_open(&b, 1);
    b.op->penalize(b.q, &(struct penalize_args){ .logits = z,
                                                 .y = y,
                                                 .sampler = &s,
                                                 .info = &info,
                                                 .count = count,
                                                 .bias = bias,
                                                 .rows = 1,
                                                 .cols = 4 });
    cr_expect(y[0] == 1 && y[1] != y[1] && y[2] == INFINITY && y[3] == -INFINITY);
    bed_close(&b);
}
