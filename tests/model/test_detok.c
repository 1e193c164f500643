#include "src/base/utf8.h"
#include "src/model/detok.h"
#include "tests/model/tokenizer_rig.h"

#include <stdio.h>

#define DELTAS_MAX 24

/* Ids of single bytes, which every byte-level vocabulary has. */
static int byte_id(const struct tokenizer *t, unsigned char byte)
{
    char letter[5] = { 0 };

    byte_letter(byte, letter);
    return tokenizer_id(t, letter);
}

static bool is_whole(const char *s, size_t bytes)
{
    size_t whole;

    return utf8_scan(s, bytes, &whole) == UTF8_NONE;
}

struct detok_case {
    const char *name, *bytes;
    const char *delta[DELTAS_MAX]; /* one for each byte; "" by default */
    const char *rest;              /* at finish */
};

#define BAD "\xef\xbf\xbd"

static const struct detok_case cases[] = {
    { .name = "letters", .bytes = "ab", .delta = { "a", "b" }, .rest = "" },
    { .name = "character of four",
      .bytes = "\xf0\x9f\x98\x80",
      .delta = { [3] = "😀" },
      .rest = "" },
    { .name = "character of three",
      .bytes = "\xe4\xb8\xad!",
      .delta = { [2] = "中", "!" },
      .rest = "" },
    { .name = "cut at the limit", .bytes = "a\xf0\x9f", .delta = { "a" }, .rest = BAD },
    { .name = "lone byte", .bytes = "\xff", .delta = { BAD }, .rest = "" },
    { .name = "lone continuation",
      .bytes = "\x80"
               "a",
      .delta = { BAD, "a" },
      .rest = "" },
    { .name = "broken off by a letter",
      .bytes = "\xe4\xb8x",
      .delta = { [2] = BAD "x" },
      .rest = "" },
    { .name = "broken off by a lead",
      .bytes = "\xf0\x9f\xe4\xb8\xad",
      .delta = { [2] = BAD, "", "中" },
      .rest = "" },
    { .name = "surrogate", .bytes = "\xed\xa0\x80", .delta = { [1] = BAD BAD, BAD }, .rest = "" },
    { .name = "overlong", .bytes = "\xc0\xaf", .delta = { BAD, BAD }, .rest = "" },
    { .name = "too large", .bytes = "\xf4\x90", .delta = { [1] = BAD BAD }, .rest = "" },
};

Test(detok, gives_characters_when_they_are_whole)
{
    struct tokenizer *t = pocket_tokenizer();
    struct detok *d;

    cr_assert(eq(int, detok_open(t, false, &d), 0));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct detok_case *c = &cases[i];
        const char *text;
        size_t n;

        for (size_t k = 0; c->bytes[k]; k++) {
            const char *want = c->delta[k] ? c->delta[k] : "";

            n = detok_put(d, byte_id(t, (unsigned char)c->bytes[k]), &text);
            cr_expect(n == strlen(want) && memcmp(text, want, n) == 0, "%s: byte %zu gave `%.*s`",
                      c->name, k, (int)n, text);
        }
        n = detok_finish(d, &text);
        cr_expect(n == strlen(c->rest) && memcmp(text, c->rest, n) == 0, "%s: rest", c->name);
    }
    detok_close(d);
    tokenizer_close(t);
}

Test(detok, special_tokens_are_text_or_left_out)
{
    static const struct {
        bool skip;
        const char *want;
    } runs[] = { { false, "a<｜User｜>" BAD "<｜end▁of▁sentence｜>" BAD BAD "b" },
                 { true, "a😀b" } };
    struct tokenizer *t = pocket_tokenizer();
    int32_t ids[8] = { byte_id(t, 'a'),
                       3,
                       byte_id(t, 0xf0),
                       byte_id(t, 0x9f),
                       1,
                       byte_id(t, 0x98),
                       byte_id(t, 0x80),
                       byte_id(t, 'b') };
    size_t bytes;
    char *text;

    for (int i = 0; i < 2; i++) {
        cr_assert(eq(int, tokenizer_decode(t, ids, 8, runs[i].skip, &text, &bytes), 0));
        cr_expect(eq(str, text, (char *)runs[i].want));
        free(text);
    }
    tokenizer_close(t);
}

Test(detok, an_id_without_a_token_adds_nothing)
{
    struct tokenizer *t = pocket_tokenizer();
    struct detok *d;
    const char *text;

    cr_assert(eq(int, detok_open(t, false, &d), 0));
    cr_expect(eq(sz, detok_put(d, byte_id(t, 0xe4), &text), 0));
    cr_expect(eq(sz, detok_put(d, -1, &text), 0));
    cr_expect(eq(sz, detok_put(d, 4096, &text), 0));
    cr_expect(eq(sz, detok_put(d, byte_id(t, 0xb8), &text), 0));
    cr_expect(eq(sz, detok_put(d, byte_id(t, 0xad), &text), 3));
    detok_close(d);
    tokenizer_close(t);
}

/* The text of ids by another way: their bytes joined first, then repaired once. */
static size_t one_shot(const struct tokenizer *t, const int32_t *ids, int n, bool skip, char *out)
{
    struct text all = { 0 };
    size_t bytes, used, got;

    for (int i = 0; i < n; i++) {
        const char *s = tokenizer_bytes(t, ids[i], &bytes);

        if (!skip || !(tokenizer_flags(t, ids[i]) & TOKEN_SPECIAL))
            cr_assert(eq(int, text_add(&all, s, bytes), 0));
    }
    got = utf8_repair(all.s, all.bytes, true, out, &used);
    text_free(&all);
    return got;
}

static void expect_deltas(const struct tokenizer *t, struct detok *d, const int32_t *ids, int n,
                          bool skip)
{
    static char want[1 << 16], got[1 << 16];
    size_t bytes = one_shot(t, ids, n, skip, want), at = 0, k;
    const char *text;

    for (int i = 0; i < n; i++) {
        k = detok_put(d, ids[i], &text);
        cr_expect(is_whole(text, k), "id %d", ids[i]);
        memcpy(got + at, text, k);
        at += k;
    }
    k = detok_finish(d, &text);
    cr_expect(is_whole(text, k));
    memcpy(got + at, text, k);
    at += k;
    cr_expect(at == bytes && memcmp(got, want, at) == 0, "ids from %d on", ids[0]);
}

Test(detok, deltas_join_to_the_one_shot_text)
{
    struct tokenizer *t = pocket_tokenizer();
    uint64_t seed = 7;
    struct detok *d[2];

    printf("seed %llu\n", (unsigned long long)seed);
    for (int skip = 0; skip < 2; skip++)
        cr_assert(eq(int, detok_open(t, skip, &d[skip]), 0));
    for (int32_t id = 0; id < tokenizer_vocab(t); id++)
        for (int skip = 0; skip < 2; skip++)
            expect_deltas(t, d[skip], &id, 1, skip);
    for (int round = 0; round < 4000; round++) {
        int32_t ids[40];

        for (int i = 0; i < 40; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            /* mostly single bytes, so that whole, partial and broken characters meet */
            ids[i] =
                seed >> 62 ? (int32_t)(7 + (seed >> 33) % 256) : (int32_t)((seed >> 33) % 4096);
        }
        for (int skip = 0; skip < 2; skip++)
            expect_deltas(t, d[skip], ids, 40, skip);
    }
    detok_close(d[0]);
    detok_close(d[1]);
    tokenizer_close(t);
}
