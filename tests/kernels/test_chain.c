
#include "tests/base/capture.h"
#include "tests/kernels/choices.h"

struct chain {
    struct markov_args a;
    struct table embed, head;
    float *d_embed, *d_head;
    struct sampler s[SLOTS_MAX];
    struct row_info info[10];
    int32_t draft[10];
    float conf[10];
};

#define CHAIN_BLOCK 5
#define CHAIN_RANKS 2
#define CHAIN_K 9
#define CHAIN_VOCAB 50
#define CHAIN_RANK 12
#define CHAIN_DIM 20

static void chain_make(struct bed *b, struct chain *m, enum dtype t)
{
    struct candidate *cand = bed_take(b, CHAIN_RANKS * 10 * CHAIN_K * sizeof(*cand));

    memset(m, 0, sizeof(*m));
    m->embed = bed_table(b, CHAIN_VOCAB, CHAIN_RANK, t, 1, &m->d_embed);
    m->head = bed_table(b, CHAIN_VOCAB, CHAIN_RANK, t, 1, &m->d_head);
    for (int i = 0; i < CHAIN_RANKS; i++)
        for (int r = 0; r < 10; r++)
            for (int c = 0; c < CHAIN_K; c++)
                cand[(i * 10 + r) * CHAIN_K + c] =
                    c == CHAIN_K - 1 && r % 3 == 0
                        ? (struct candidate){ -INFINITY, -1 }
                        : (struct candidate){ (float)(5 - c) / 4, 25 * i + (c * 7 + r) % 25 };
    m->a = (struct markov_args){ .cand = cand,
                                 .embed = &m->embed,
                                 .head = &m->head,
                                 .h = bed_f32(b, 10 * CHAIN_DIM, 1),
                                 .proj = bed_f32(b, CHAIN_DIM + CHAIN_RANK, 1),
                                 .sampler = m->s,
                                 .info = m->info,
                                 .draft = m->draft,
                                 .conf = m->conf,
                                 .z = bed_take(b, 10 * CHAIN_RANKS * CHAIN_K * sizeof(*m->a.z)),
                                 .rows = 10,
                                 .block = CHAIN_BLOCK,
                                 .ranks = CHAIN_RANKS,
                                 .k = CHAIN_K,
                                 .dim = CHAIN_DIM };
    bed_rows(m->info, 0, 1, 70, CHAIN_BLOCK);
    bed_rows(m->info, CHAIN_BLOCK, 3, 500, CHAIN_BLOCK);
    m->info[0].tok = 17;
    m->info[CHAIN_BLOCK].tok = 49;
}

/* Draft i of a block as the definition has it, given the token before. */
static void expect_draft(const struct chain *m, int r, int pos, int prev)
{
    const struct sampler *s = &m->s[m->info[r].slot];
    float z[CHAIN_VOCAB];
    double conf = 0;
    struct candidate top;
    int n, at = r * CHAIN_RANKS * CHAIN_K;

    for (int id = 0; id < CHAIN_VOCAB; id++)
        z[id] = -INFINITY;
    for (int i = 0; i < CHAIN_RANKS; i++)
        for (int c = 0; c < CHAIN_K; c++, at++) {
            struct candidate k = m->a.cand[(i * 10 + r) * CHAIN_K + c];
            volatile float dot = 0, p;

            cr_expect(eq(int, m->a.z[at].id, k.id));
            if (k.id < 0)
                continue;
            for (int e = 0; e < CHAIN_RANK; e++) {
                p = m->d_head[k.id * CHAIN_RANK + e] * m->d_embed[prev * CHAIN_RANK + e];
                dot = dot + p;
            }
            z[k.id] = k.z + dot;
            cr_expect(eq(flt, m->a.z[at].z, z[k.id]), "row %d candidate %d", r, at);
        }
    naive_best(z, CHAIN_VOCAB, 1, 0, &top);
    cr_expect(eq(int, m->draft[r],
                 s->temperature > 0 ? naive_choice(s, z, CHAIN_VOCAB, (uint64_t)pos, &n) : top.id),
              "row %d", r);
    for (int c = 0; c < CHAIN_DIM; c++)
        conf += (double)m->a.proj[c] * (double)m->a.h[r * CHAIN_DIM + c];
    for (int e = 0; e < CHAIN_RANK; e++)
        conf += (double)m->a.proj[CHAIN_DIM + e] * (double)m->d_embed[prev * CHAIN_RANK + e];
    cr_expect(le(dbl, bed_error(&m->conf[r], &conf, 1), 1e-5), "row %d", r);
}

Test(chain, the_chain_follows_its_own_drafts)
{
    for (size_t i = 0; i < COUNT(samplers); i++) {
        struct chain m;
        struct bed b;

        bed_open(&b, 1);
        chain_make(&b, &m, i % 2 ? DTYPE_BF16 : DTYPE_F32);
        m.s[1] = samplers[i];
        m.s[3] = samplers[COUNT(samplers) - 1 - i];
        b.op->markov(b.q, &m.a);
        cr_assert(eq(int, bed_wait(&b), 0));
        for (int r = 0; r < 10; r++) {
            int first = r / CHAIN_BLOCK * CHAIN_BLOCK;

            expect_draft(&m, r, m.info[first].pos + 1 + r - first,
                         r == first ? m.info[r].tok : m.draft[r - 1]);
        }
        bed_close(&b);
    }
}

Test(chain, a_chain_without_tables_is_a_pick_from_each_row)
{
    for (size_t i = 0; i < COUNT(samplers); i++) {
        struct chain m;
        struct bed b;

        bed_open(&b, 1);
        chain_make(&b, &m, DTYPE_F32);
        m.a.embed = m.a.head = NULL;
        m.a.proj = m.a.h = NULL;
        m.a.dim = 0;
        m.a.block = 1;
        m.s[1] = m.s[3] = samplers[i];
        b.op->markov(b.q, &m.a);
        cr_assert(eq(int, bed_wait(&b), 0));
        for (int r = 0; r < 10; r++) {
            float z[CHAIN_VOCAB];
            struct candidate top;
            int n;

            for (int id = 0; id < CHAIN_VOCAB; id++)
                z[id] = -INFINITY;
            for (int c = 0; c < CHAIN_RANKS * CHAIN_K; c++) {
                struct candidate k = m.a.cand[(c / CHAIN_K * 10 + r) * CHAIN_K + c % CHAIN_K];

                if (k.id >= 0)
                    z[k.id] = k.z;
            }
            naive_best(z, CHAIN_VOCAB, 1, 0, &top);
            cr_expect(eq(int, m.draft[r],
                         samplers[i].temperature > 0 ? naive_choice(&samplers[i], z, CHAIN_VOCAB,
                                                                    (uint64_t)m.info[r].pos + 1, &n)
                                                     : top.id),
                      "sampler %zu, row %d", i, r);
            cr_expect(eq(flt, m.conf[r], 0));
        }
        bed_close(&b);
    }
}

Test(chain, chain_ties_go_to_the_lower_id)
{
    struct chain m;
    struct bed b;

    bed_open(&b, 1);
    chain_make(&b, &m, DTYPE_F32);
    m.head = bed_table(&b, CHAIN_VOCAB, CHAIN_RANK, DTYPE_F32, 0, NULL);
    for (int i = 0; i < CHAIN_RANKS * 10 * CHAIN_K; i++)
        ((struct candidate *)m.a.cand)[i].z = i % CHAIN_K == 4 || i % CHAIN_K == 2 ? 3 : 1;
    b.op->markov(b.q, &m.a);
    for (int r = 0; r < 10; r++) {
        int x = (2 * 7 + r) % 25, y = (4 * 7 + r) % 25;

        cr_expect(eq(int, m.draft[r], x < y ? x : y), "row %d", r);
    }
    bed_close(&b);
}

Test(chain, chain_filters_cut_ties_at_the_lower_id)
{
    static const struct sampler cut[] = { { .temperature = 1, .top_k = 5 },
                                          { .temperature = 1, .top_k = 9, .top_p = 0.7 },
                                          { .temperature = 1, .top_p = 0.4 } };

    for (size_t i = 0; i < COUNT(cut); i++)
        for (int seed = 0; seed < 40; seed++) {
            struct chain m;
            struct bed b;

            bed_open(&b, 1);
            chain_make(&b, &m, DTYPE_F32);
            m.head = bed_table(&b, CHAIN_VOCAB, CHAIN_RANK, DTYPE_F32, 0, &m.d_head);
            for (int c = 0; c < CHAIN_RANKS * 10 * CHAIN_K; c++)
                ((struct candidate *)m.a.cand)[c].z = c % CHAIN_K < 2 ? 2 : 1;
            m.s[1] = m.s[3] = cut[i];
            m.s[1].seed = m.s[3].seed = (uint64_t)seed;
            b.op->markov(b.q, &m.a);
            for (int r = 0; r < 10; r++) {
                int first = r / CHAIN_BLOCK * CHAIN_BLOCK;

                expect_draft(&m, r, m.info[first].pos + 1 + r - first,
                             r == first ? m.info[r].tok : m.draft[r - 1]);
            }
            bed_close(&b);
        }
}

Test(chain, a_chain_ends_at_a_row_that_is_not_finite)
{
    for (int kind = 0; kind < 3; kind++) {
        struct candidate *row;
        struct chain m;
        struct bed b;

        bed_open(&b, 1);
        chain_make(&b, &m, DTYPE_F32);
        row = (struct candidate *)m.a.cand +
              (10 + 6) * CHAIN_K; /* rank 1, the second slot's draft 1 */
        if (kind == 0)
            row[0] = (struct candidate){ NAN, -1 };
        else if (kind == 1)
            row[3].z = INFINITY;
        for (int c = 0; kind == 2 && c < CHAIN_K; c++)
            row[c].id = row[c - 10 * CHAIN_K].id = -1;
        b.op->markov(b.q, &m.a);
        cr_expect(eq(int, bed_wait(&b), 0));
        for (int r = 0; r < 10; r++) {
            int broken = r >= 6;

            cr_expect(eq(int, m.draft[r] < 0, broken), "kind %d row %d", kind, r);
            cr_expect(eq(int, isnan(m.conf[r]) != 0, broken), "kind %d row %d", kind, r);
            for (int c = 0; broken && c < CHAIN_RANKS * CHAIN_K; c++)
                cr_expect(eq(int, m.a.z[r * CHAIN_RANKS * CHAIN_K + c].id, -1));
        }
        bed_close(&b);
    }
}
