#include "src/model/bpe.h"
#include "tests/base/capture.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>

#define LETTERS 4
#define MERGES 40

/* A vocabulary of all bytes and random joins of a few letters. */
struct fixture {
    struct vocab vocab;
    int32_t left[MERGES], right[MERGES], result[MERGES];
    int n;
    struct json *merges;
    struct bpe *bpe;
    uint64_t seed;
};

static uint32_t draw(struct fixture *f, uint32_t below)
{
    f->seed = f->seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(f->seed >> 33) % below;
}

static void put_letters(struct vocab *v)
{
    for (int c = 0; c < 256; c++) {
        char letter[5] = { 0 };

        byte_letter((unsigned char)c, letter);
        cr_assert(eq(int, vocab_put(v, letter, c, 0, "test"), 0));
    }
}

static void spell(const struct vocab *v, int id, char *out)
{
    const struct token *t = vocab_token(v, id);

    memcpy(out, v->arena.s + t->raw, t->n_raw);
    out[t->n_raw] = '\0';
}

/* Join two random tokens of the letters a, b, c, d or earlier joins, unless the join is too long or
 * known. */
static void add_merge(struct fixture *f, struct json_writer *w)
{
    char a[64], b[64], ab[130], pair[140];
    int id[2];

    for (int i = 0; i < 2; i++) {
        uint32_t k = draw(f, LETTERS + (uint32_t)f->n);

        id[i] = k < LETTERS ? 'a' + (int)k : f->result[k - LETTERS];
    }
    spell(&f->vocab, id[0], a);
    spell(&f->vocab, id[1], b);
    snprintf(ab, sizeof(ab), "%s%s", a, b);
    if (strlen(ab) > 12 || vocab_find(&f->vocab, ab, strlen(ab)) >= 0)
        return;
    cr_assert(eq(int, vocab_put(&f->vocab, ab, 256 + f->n, 0, "test"), 0));
    f->left[f->n] = id[0];
    f->right[f->n] = id[1];
    f->result[f->n] = 256 + f->n;
    f->n++;
    snprintf(pair, sizeof(pair), "%s %s", a, b);
    json_put_str(w, NULL, pair);
}

static void fixture_open(struct fixture *f, uint64_t seed)
{
    struct json_writer w;
    const char *text;
    size_t bytes;

    *f = (struct fixture){ .seed = seed };
    put_letters(&f->vocab);
    json_writer_init(&w);
    json_begin_array(&w, NULL);
    for (int i = 0; i < MERGES; i++)
        add_merge(f, &w);
    json_end_array(&w);
    cr_assert(eq(int, json_writer_text(&w, &text, &bytes), 0));
    cr_assert(eq(int, json_parse(text, bytes, "merges", 4, &f->merges), 0));
    cr_assert(eq(int, bpe_open(f->merges, &f->vocab, false, &f->bpe), 0));
    json_writer_free(&w);
}

static void fixture_close(struct fixture *f)
{
    bpe_close(f->bpe);
    json_close(f->merges);
    vocab_free(&f->vocab);
}

/* The definition: look at all neighbours, join the pair of the lowest rank, the leftmost of
 * equals. */
static int merge_slowly(const struct fixture *f, int32_t *id, int n)
{
    for (;;) {
        int best = f->n, at = 0;

        for (int i = 0; i + 1 < n; i++)
            for (int m = 0; m < best; m++)
                if (f->left[m] == id[i] && f->right[m] == id[i + 1]) {
                    best = m;
                    at = i;
                }
        if (best == f->n)
            return n;
        id[at] = f->result[best];
        memmove(id + at + 1, id + at + 2, sizeof(*id) * (size_t)(n - at - 2));
        n--;
    }
}

Test(bpe, joins_the_lowest_rank_first)
{
    struct bpe_scratch scratch = { 0 };
    struct ids got = { 0 };

    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct fixture f;

        fixture_open(&f, seed);
        for (int round = 0; round < 60; round++) {
            char word[200];
            int32_t want[200];
            int n = 1 + (int)draw(&f, 199);

            for (int i = 0; i < n; i++)
                want[i] = word[i] = (char)('a' + draw(&f, LETTERS));
            got.n = 0;
            cr_assert(eq(int, bpe_word(f.bpe, &scratch, word, (size_t)n, &got), 0));
            n = merge_slowly(&f, want, n);
            cr_expect(eq(sz, got.n, (size_t)n), "seed %d", (int)seed);
            cr_expect(memcmp(got.id, want, sizeof(*want) * (size_t)n) == 0, "seed %d", (int)seed);
        }
        fixture_close(&f);
    }
    bpe_scratch_free(&scratch);
    free(got.id);
}

Test(bpe, a_word_that_is_a_token_may_be_taken_whole)
{
    struct vocab v = { 0 };
    struct json *merges = NULL;
    struct bpe_scratch scratch = { 0 };
    struct ids got = { 0 };

    put_letters(&v);
    cr_assert(eq(int, vocab_put(&v, "xyz", 256, 0, "test"), 0));
    cr_assert(eq(int, vocab_put(&v, "Ġx", 257, 0, "test"), 0));
    cr_assert(eq(int, json_parse("[]", 2, "merges", 4, &merges), 0));
    for (int whole = 0; whole < 2; whole++) {
        struct bpe *b = NULL;

        cr_assert(eq(int, bpe_open(merges, &v, whole, &b), 0));
        got.n = 0;
        cr_assert(eq(int, bpe_word(b, &scratch, "xyz", 3, &got), 0));
        cr_expect(eq(sz, got.n, whole ? 1 : 3));
        cr_assert(eq(int, bpe_word(b, &scratch, " x", 2, &got), 0));
        cr_expect(eq(sz, got.n, whole ? 2 : 5));
        cr_assert(eq(int, bpe_word(b, &scratch, "xyzxyz", 6, &got), 0));
        cr_expect(eq(sz, got.n, whole ? 8 : 11));
        bpe_close(b);
    }
    bpe_scratch_free(&scratch);
    free(got.id);
    json_close(merges);
    vocab_free(&v);
}
