#include "src/base/clock.h"
#include "src/base/json.h"
#include "src/base/utf8.h"
#include "src/model/tokenizer.h"
#include "tests/base/capture.h"
#include "tests/model/tokenizer_rig.h"
#include "tests/rig/goldens.h"

#include <errno.h>
#include <stdio.h>

static struct json *read_vectors(const char *name)
{
    struct json *root = NULL;
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", VECTORS, name);
    cr_assert(eq(int, json_read(path, 1 << 24, 32, &root), 0));
    return root;
}

static const char *string(const struct json *o, const char *key)
{
    const char *s = NULL;

    cr_assert(eq(int, json_str(o, key, &s), 0));
    return s;
}

static void expect_ids(const struct tokenizer *t, const char *text, unsigned flags,
                       const struct json *want, const char *name)
{
    int32_t *ids = NULL;
    int n = 0, id;

    cr_assert(eq(int, tokenizer_encode(t, text, strlen(text), flags, &ids, &n), 0), "%s", name);
    cr_expect(eq(sz, (size_t)n, json_count(want)), "%s: `%s`", name, text);
    for (size_t i = 0; i < (size_t)n && i < json_count(want); i++) {
        cr_assert(eq(int, json_as_int(json_at(want, i), 0, VOCAB_MAX, &id), 0));
        if (ids[i] != id) {
            cr_expect(eq(int, ids[i], id), "%s: `%s`, id %zu", name, text, i);
            break;
        }
    }
    free(ids);
}

static void expect_round_trip(const struct tokenizer *t, const char *text, size_t bytes,
                              unsigned flags)
{
    int32_t *ids = NULL;
    char *back;
    size_t got;
    int n;

    cr_assert(eq(int, tokenizer_encode(t, text, bytes, flags, &ids, &n), 0));
    cr_assert(eq(int, tokenizer_decode(t, ids, n, false, &back, &got), 0));
    cr_expect(eq(sz, got, bytes), "`%.*s`", (int)bytes, text);
    cr_expect(got == bytes && memcmp(back, text, bytes) == 0, "`%.*s`", (int)bytes, text);
    free(back);
    free(ids);
}

Test(tokenizer, encodes_the_reference_cases)
{
    struct json *root = read_vectors("tokenizer_cases.json");
    const struct json *cases = json_get(root, "cases");
    struct tokenizer *t = pocket_tokenizer();

    cr_assert(gt(sz, json_count(cases), 20));
    for (size_t i = 0; i < json_count(cases); i++) {
        const struct json *c = json_at(cases, i);
        const char *text = string(c, "text");
        bool plain = false;

        cr_assert(eq(int, json_opt_bool(c, "special_tokens_as_text", &plain), 0));
        if (json_has(c, "ids"))
            expect_ids(t, text, plain ? 0 : ENCODE_MARKERS, json_get(c, "ids"), "ids");
        if (json_has(c, "ids_with_bos"))
            expect_ids(t, text, ENCODE_BOS | (plain ? 0 : ENCODE_MARKERS),
                       json_get(c, "ids_with_bos"), "ids_with_bos");
        expect_round_trip(t, text, strlen(text), 0);
        expect_round_trip(t, text, strlen(text), ENCODE_MARKERS);
    }
    tokenizer_close(t);
    json_close(root);
}

Test(tokenizer, encodes_the_golden_prompts_and_decodes_what_followed)
{
    struct json *root = read_vectors("tokenizer_cases.json");
    const struct json *prompts = json_get(root, "golden_prompts");
    struct tokenizer *t = pocket_tokenizer();

    for (int i = 0; i < 6; i++) {
        const struct json *p = json_get(prompts, golden_prompts[i]);
        const char *text = string(p, "text"), *greedy = string(p, "greedy_text");
        size_t want_n, greedy_n, bytes;
        const int32_t *want = golden_i32(&want_n, "%s.ids", golden_prompts[i]);
        const int32_t *tail = golden_i32(&greedy_n, "%s.greedy_ids", golden_prompts[i]);
        int32_t *ids;
        char *back;
        int n;

        cr_assert(eq(int,
                     tokenizer_encode(t, text, strlen(text), ENCODE_BOS | ENCODE_MARKERS, &ids, &n),
                     0));
        cr_expect(eq(sz, (size_t)n, want_n), "%s", golden_prompts[i]);
        cr_expect(want_n == (size_t)n && memcmp(ids, want, sizeof(*ids) * want_n) == 0, "%s",
                  golden_prompts[i]);
        cr_assert(eq(int, tokenizer_decode(t, tail, (int)greedy_n, false, &back, &bytes), 0));
        cr_expect(eq(str, back, (char *)greedy), "%s", golden_prompts[i]);
        free(back);
        free(ids);
    }
    tokenizer_close(t);
    json_close(root);
}

static void encode_variant(const struct json *root, const struct json *c)
{
    const struct json *texts = json_get(root, "texts"), *ids = json_get(c, "ids");
    const char *added = string(c, "added_tokens"), *name = string(c, "name");
    char *json = pocket_json(), part[4096];
    struct tokenizer *t = NULL;
    bool whole_words = false;

    cr_assert(eq(int, json_bool(c, "ignore_merges", &whole_words), 0));
    if (*added) {
        snprintf(part, sizeof(part), "%s,", added);
        json = spliced(json, "\"added_tokens\":", "\"normalizer\":", part);
    }
    snprintf(part, sizeof(part), "%s,", string(c, "normalizer"));
    json = spliced(json, "\"normalizer\":", "\"pre_tokenizer\":", part);
    snprintf(part, sizeof(part), "%s,", string(c, "pre_tokenizer"));
    json = spliced(json, "\"pre_tokenizer\":", "\"post_processor\":", part);
    if (whole_words)
        json = replaced(json, "\"ignore_merges\": false", "\"ignore_merges\": true");
    cr_assert(eq(int, tokenizer_open(json, strlen(json), name, &t), 0), "%s", name);
    for (size_t i = 0; i < json_count(texts); i++) {
        const char *text = NULL;

        cr_assert(eq(int, json_as_str(json_at(texts, i), &text), 0));
        expect_ids(t, text, ENCODE_MARKERS, json_at(ids, i), name);
    }
    tokenizer_close(t);
    free(json);
}

Test(tokenizer, splits_normalizes_and_finds_added_tokens_as_the_reference_does)
{
    struct json *root = read_vectors("tokenizer_variants.json");
    const struct json *cases = json_get(root, "cases");

    cr_assert(gt(sz, json_count(cases), 40));
    for (size_t i = 0; i < json_count(cases); i++)
        encode_variant(root, json_at(cases, i));
    json_close(root);
}

/* The merges of the pocket model, the last part of its file, as "a b" instead of ["a", "b"]. */
static char *with_string_merges(char *text)
{
    struct json *root = NULL;
    const struct json *merges;
    struct json_writer w;
    const char *list;
    char *copy;
    size_t bytes;

    cr_assert(eq(int, json_parse(text, strlen(text), "pocket", 32, &root), 0));
    cr_assert(eq(int, json_get_array(json_get(root, "model"), "merges", &merges), 0));
    json_writer_init(&w);
    json_begin_array(&w, NULL);
    for (size_t i = 0; i < json_count(merges); i++) {
        const char *a, *b;
        char pair[512];

        cr_assert(eq(int, json_as_str(json_at(json_at(merges, i), 0), &a), 0));
        cr_assert(eq(int, json_as_str(json_at(json_at(merges, i), 1), &b), 0));
        snprintf(pair, sizeof(pair), "%s %s", a, b);
        json_put_str(&w, NULL, pair);
    }
    json_end_array(&w);
    cr_assert(eq(int, json_writer_text(&w, &list, &bytes), 0));
    *strstr(text, "\"merges\":") = '\0';
    copy = (char *)malloc(strlen(text) + bytes + 32);
    sprintf(copy, "%s\"merges\": %s}}", text, list);
    json_writer_free(&w);
    json_close(root);
    free(text);
    return copy;
}

Test(tokenizer, merges_may_be_strings)
{
    static const char text[] =
        "The quick brown fox jumps over 12345 lazy dogs, don't they?\n\n  def f(x):";
    struct tokenizer *pairs = pocket_tokenizer(), *strings = NULL;
    char *json = with_string_merges(pocket_json());
    int32_t *a, *b;
    int n, m;

    cr_assert(eq(int, tokenizer_open(json, strlen(json), "strings", &strings), 0));
    cr_assert(eq(int, tokenizer_encode(pairs, text, strlen(text), 0, &a, &n), 0));
    cr_assert(eq(int, tokenizer_encode(strings, text, strlen(text), 0, &b, &m), 0));
    cr_expect(eq(int, n, m));
    cr_expect(memcmp(a, b, sizeof(*a) * (size_t)n) == 0);
    free(a);
    free(b);
    free(json);
    tokenizer_close(pairs);
    tokenizer_close(strings);
}

Test(tokenizer, round_trips_any_text)
{
    struct tokenizer *t = pocket_tokenizer();
    uint64_t seed = 20240611;

    printf("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 3000; round++) {
        char text[4 * 64];
        size_t bytes = 0;

        for (unsigned n = (unsigned)round % 64; n > 0; n--) {
            unsigned code, wide;

            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            wide = (unsigned)(seed >> 60);
            code = (unsigned)(seed >> 32) & (wide < 8    ? 0x7f
                                             : wide < 11 ? 0x7ff
                                             : wide < 14 ? 0xffff
                                                         : 0x1fffff);
            bytes += (size_t)utf8_encode(code, text + bytes);
        }
        expect_round_trip(t, text, bytes, round % 2 ? ENCODE_MARKERS : 0);
    }
    tokenizer_close(t);
}

/* A match that may not stand where it is takes its place all the same: nothing inside it is
 * looked at. */
Test(tokenizer, a_word_that_does_not_stand_alone_hides_what_is_in_it)
{
    static const char extra[] = "[{\"id\":4096,\"content\":\"qxyz\",\"single_word\":true},"
                                "{\"id\":4097,\"content\":\"xyz\"}],";
    static const struct {
        const char *text;
        int whole, part; /* how many of 4096 and 4097 */
    } cases[] = {
        { "a qxyz b", 1, 0 }, { "a qxyzb", 0, 0 },    { "aqxyz b", 0, 0 },
        { "axyzb", 0, 1 },    { "qxyzb qxyz", 1, 0 }, { "qxyzxyz", 0, 1 },
    };
    char *json = spliced(pocket_json(), "\"added_tokens\":", "\"normalizer\":", extra);
    struct tokenizer *t = NULL;

    json = spliced(json, "\"post_processor\":", "\"decoder\":", "null,");
    cr_assert(eq(int, tokenizer_open(json, strlen(json), "words", &t), 0));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *text = cases[i].text;
        int n, count[2] = { 0 };
        int32_t *ids;

        cr_assert(eq(int, tokenizer_encode(t, text, strlen(text), 0, &ids, &n), 0));
        for (int k = 0; k < n; k++) {
            count[0] += ids[k] == 4096;
            count[1] += ids[k] == 4097;
        }
        free(ids);
        cr_expect(eq(int, count[0], cases[i].whole), "%s", cases[i].text);
        cr_expect(eq(int, count[1], cases[i].part), "%s", cases[i].text);
        expect_round_trip(t, cases[i].text, strlen(cases[i].text), 0);
    }
    tokenizer_close(t);
    free(json);
}

Test(tokenizer, a_marker_in_text_is_text_unless_asked_for)
{
    /* The second added token is no special one, yet it opens a turn; the third is a run of
     * spaces. */
    static const char extra[] =
        "[{\"id\":3,\"content\":\"<｜User｜>\",\"special\":true},"
        "{\"id\":4096,\"content\":\"<think>\",\"special\":false,\"normalized\":false},"
        "{\"id\":4097,\"content\":\"\\t\\t\\t\",\"special\":false,\"normalized\":false}],";
    static const char text[] = "a<｜User｜>b<think>\t\t\t<｜User";
    char *json = spliced(pocket_json(), "\"added_tokens\":", "\"normalizer\":", extra);
    struct tokenizer *t = NULL;
    int32_t *ids;
    int n, count[2][3] = { 0 };

    json = spliced(json, "\"post_processor\":", "\"decoder\":", "null,");
    cr_assert(eq(int, tokenizer_open(json, strlen(json), "markers", &t), 0));
    for (unsigned flags = 0; flags <= ENCODE_MARKERS; flags += ENCODE_MARKERS) {
        cr_assert(eq(int, tokenizer_encode(t, text, strlen(text), flags, &ids, &n), 0));
        for (int i = 0; i < n; i++) {
            count[flags != 0][0] += ids[i] == 3;
            count[flags != 0][1] += ids[i] == 4096;
            count[flags != 0][2] += ids[i] == 4097;
        }
        free(ids);
        expect_round_trip(t, text, strlen(text), flags);
    }
    cr_expect(eq(int, count[0][0], 0));
    cr_expect(eq(int, count[0][1], 0));
    cr_expect(eq(int, count[0][2], 1));
    cr_expect(eq(int, count[1][0], 1));
    cr_expect(eq(int, count[1][1], 1));
    cr_expect(eq(int, count[1][2], 1));
    cr_expect(
        eq(uint, tokenizer_flags(t, 3), TOKEN_KNOWN | TOKEN_ADDED | TOKEN_SPECIAL | TOKEN_MARKER));
    cr_expect(eq(uint, tokenizer_flags(t, 4096), TOKEN_KNOWN | TOKEN_ADDED | TOKEN_MARKER));
    cr_expect(eq(uint, tokenizer_flags(t, 4097), TOKEN_KNOWN | TOKEN_ADDED));
    tokenizer_close(t);
    free(json);
}

/* Merges that spell a marker, in one word: still no marker. */
Test(tokenizer, no_merge_makes_a_marker)
{
    char *json = pocket_json();
    struct tokenizer *t = NULL;
    int32_t *ids;
    int n;

    json = spliced(json, "\"pre_tokenizer\":", "\"post_processor\":",
                   "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},");
    json = replaced(json, "\"ignore_merges\": false", "\"ignore_merges\": true");
    json = replaced(json, "\"content\": \"<｜end▁of▁sentence｜>\"", "\"content\": \"<i>\"");
    json = replaced(json, "\"<｜end▁of▁sentence｜>\": 1", "\"<i>\": 1, \"<i\": 4100");
    json = replaced(json, "\"merges\": [", "\"merges\": [[\"<\",\"i\"],[\"<i\",\">\"],");
    cr_assert(eq(int, tokenizer_open(json, strlen(json), "markers", &t), 0));
    cr_assert(eq(int, tokenizer_encode(t, "<i>", 3, 0, &ids, &n), 0));
    cr_assert(eq(int, n, 2));
    cr_expect(eq(int, ids[0], 4100));
    free(ids);
    cr_assert(eq(int, tokenizer_encode(t, "<i>", 3, ENCODE_MARKERS, &ids, &n), 0));
    cr_assert(eq(int, n, 1));
    cr_expect(eq(int, ids[0], 1));
    free(ids);
    tokenizer_close(t);
    free(json);
}

Test(tokenizer, says_which_prompt_byte_is_not_utf8)
{
    static const struct {
        const char *text;
        size_t bytes;
        const char *message;
    } cases[] = {
        { "\xff", 1, "error: prompt byte 0 is not UTF-8" },
        { "abc\x80", 4, "error: prompt byte 3 is not UTF-8" },
        { "\xe4\xb8\xad\xe4\xb8", 5, "error: prompt byte 3 is not UTF-8" },
        { "a\xed\xa0\x80", 4, "error: prompt byte 1 is not UTF-8" },
        { "ok\xc0\xaf", 4, "error: prompt byte 2 is not UTF-8" },
    };
    struct tokenizer *t = pocket_tokenizer();
    struct capture c;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int32_t *ids;
        int n;

        capture_start(&c);
        cr_expect(
            eq(int, tokenizer_encode(t, cases[i].text, cases[i].bytes, 0, &ids, &n), -EILSEQ));
        cr_expect(eq(int, c.lines, 1));
        cr_expect(eq(str, c.last, (char *)cases[i].message));
    }
    log_sink(NULL, NULL);
    expect_round_trip(t, "nul\0inside", 10, 0);
    tokenizer_close(t);
}

Test(tokenizer, long_words_take_no_longer_than_their_length)
{
    static const char *const pieces[] = { "a",  " ",  "\n", "ab",
                                          "=",  "中", "1 ", "\xcc\x81\xcc\xa7",
                                          "the" };
    struct tokenizer *t = pocket_tokenizer();
    size_t bytes = 1 << 20;
    char *text = (char *)malloc(bytes);

    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        size_t n = strlen(pieces[i]), whole = bytes / n * n;
        int64_t start = clock_ns();

        for (size_t at = 0; at < whole; at += n)
            memcpy(text + at, pieces[i], n);
        expect_round_trip(t, text, whole, 0);
        printf("1 MiB of `%s`: %.2f s\n", pieces[i], (double)(clock_ns() - start) / 1e9);
    }
    free(text);
    tokenizer_close(t);
}

Test(tokenizer, knows_its_tokens)
{
    struct tokenizer *t = pocket_tokenizer();
    size_t bytes;

    cr_expect(eq(int, tokenizer_vocab(t), 4096));
    cr_expect(eq(int, tokenizer_id(t, "<｜Assistant｜>"), 4));
    cr_expect(eq(int, tokenizer_id(t, "no such token"), -1));
    cr_expect(eq(int, tokenizer_id(t, ""), -1));
    cr_expect(eq(uint, tokenizer_flags(t, 4096), 0));
    cr_expect(eq(uint, tokenizer_flags(t, -1), 0));
    cr_expect(eq(ptr, (void *)tokenizer_bytes(t, 4096, &bytes), NULL));
    for (int id = 0; id < 4096; id++) {
        const char *s = tokenizer_spelling(t, id, &bytes);
        char *copy = strndup(s, bytes);

        cr_expect(eq(int, tokenizer_id(t, copy), id), "%s", copy);
        cr_expect(eq(int, (tokenizer_flags(t, id) & TOKEN_SPECIAL) != 0, id < 7));
        s = tokenizer_bytes(t, id, &bytes);
        cr_expect(s && bytes > 0 && bytes <= tokenizer_longest(t));
        free(copy);
    }
    tokenizer_close(t);
}

/* What a broken file says, and where it is broken. The text between from and to becomes put. */
struct broken {
    const char *name, *from, *to, *put, *message;
};

#define SPLIT(pattern, behavior)                                                                   \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"" behavior "\"},"
#define PRE "\"pre_tokenizer\":", "\"post_processor\":"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"

static const struct broken broken[] = {
    { "no JSON", "", "\"version\"", "", "t.json: line 1 column 10: end of file expected" },
    { "no model", "\"model\": {", "", NULL, "t.json: model: missing" },
    { "other model", "\"model\": {", "\"dropout\"", "\"type\": \"Unigram\",",
      "t.json: model: unknown model `Unigram`" },
    { "dropout", "\"dropout\":", "\"unk_token\"", "0.1,", "t.json: model: dropout 0.1" },
    { "affix", "\"end_of_word_suffix\":", "\"fuse_unk\"", "\"</w>\",",
      "t.json: model: end_of_word_suffix `</w>` is not byte-level BPE" },
    { "no vocabulary", "\"vocab\":", "\"merges\"", "null,", "t.json: model.vocab: missing" },
    { "empty vocabulary", "\"vocab\":", "\"merges\"", "{},",
      "t.json: model.merges: the vocabulary has no token `Ā` for byte 0x00: not byte-level BPE, "
      "which alone is supported" },
    { "id taken", "\"!\":", "\"#\"", " 9, \"\\\"\": 9,",
      "t.json: model.vocab: id 9 of token `\"` belongs to `!`" },
    { "id negative", "\"!\":", "\"\\\"\"", " -1, ",
      "t.json: model.vocab: token `!` has id -1, want 0 .. 1048575" },
    { "id too large", "\"!\":", "\"\\\"\"", " 99999999999, ",
      "t.json: model.vocab: token `!` has id 99999999999, want 0 .. 1048575" },
    { "id no number", "\"!\":", "\"\\\"\"", " \"7\", ", "t.json: model.vocab.!: want an integer" },
    { "token twice", "\"!\":", "\"\\\"\"", " 7, \"!\": 4100, ", "t.json: line" },
    { "byte without token", "\"!\":", "\"\\\"\"", " 7, \"?\": 8, ", "t.json: line" },
    { "merge of three", "\"merges\":", "\"Ġ\"", " [[\"a\",\"b\",\"c\"],[",
      "t.json: model.merges[0]: want 2 tokens, got 3" },
    { "merge without space", "\"merges\":", "\"Ġ\"", " [\"ab\",[",
      "t.json: model.merges[0]: want 2 tokens and a space, got `ab`" },
    { "merge of unknown tokens", "\"merges\":", "\"Ġ\"", " [[\"a\",\"nosuchtoken\"],[",
      "t.json: model.merges[0]: `nosuchtoken` is no token of the vocabulary" },
    { "merge into unknown token", "\"merges\":", "\"Ġ\"", " [\"Q Q\",[",
      "t.json: model.merges[0]: `QQ` is no token of the vocabulary" },
    { "merges missing", "\"merges\":", "", NULL, "t.json: line" },
    { "added token with another id",
      "\"added_tokens\":", "\"normalizer\":", "[{\"id\":4096,\"content\":\"the\"}],",
      "t.json: added_tokens[0]: token `the` twice, with ids" },
    { "added token on a taken id",
      "\"added_tokens\":", "\"normalizer\":", "[{\"id\":7,\"content\":\"<new>\"}],",
      "t.json: added_tokens[0]: id 7 of token `<new>` belongs to `!`" },
    { "added token twice", "\"added_tokens\":", "\"normalizer\":",
      "[{\"id\":3,\"content\":\"<｜User｜>\"},{\"id\":3,\"content\":\"<｜User｜>\"}],",
      "t.json: added_tokens[1]: token `<｜User｜>` twice, with ids 3 and 3" },
    { "added token empty", "\"added_tokens\":", "\"normalizer\":",
      "[{\"id\":4096,\"content\":\"\"}],", "t.json: added_tokens[0]: token 4096 has 0 bytes" },
    { "added token without id", "\"added_tokens\":", "\"normalizer\":", "[{\"content\":\"x\"}],",
      "t.json: added_tokens[0].id: missing" },
    { "unknown normalizer", "\"normalizer\":", "\"pre_tokenizer\":", "{\"type\":\"Lowercase\"},",
      "t.json: normalizer: unknown normalizer `Lowercase`" },
    { "normalizer in a sequence", "\"normalizer\":", "\"pre_tokenizer\":",
      "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Nmt\"}]},",
      "t.json: normalizer.normalizers[1]: unknown normalizer `Nmt`" },
    { "no pre-tokenizer", PRE, "null,", "t.json: pre_tokenizer: missing" },
    { "unknown pre-tokenizer", PRE, "{\"type\":\"Metaspace\"},",
      "t.json: pre_tokenizer: unknown pre-tokenizer `Metaspace`" },
    { "unknown pre-tokenizer in a sequence", PRE,
      "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"}]},",
      "t.json: pre_tokenizer.pretokenizers[0]: unknown pre-tokenizer `Whitespace`" },
    { "no type", PRE, "{},", "t.json: pre_tokenizer.type: missing" },
    { "not byte-level", PRE, SPLIT("a", "Isolated"), "t.json: pre_tokenizer: no ByteLevel" },
    { "split behind ByteLevel", PRE,
      "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL ",{\"type\":\"Digits\"}]},",
      "t.json: pre_tokenizer.pretokenizers[1]: a pre-tokenizer behind ByteLevel" },
    { "two of ByteLevel", PRE,
      "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "," BYTE_LEVEL "]},",
      "t.json: pre_tokenizer.pretokenizers[1]: a pre-tokenizer behind ByteLevel" },
    { "unknown behavior", PRE, SPLIT("a", "Sometimes"),
      "t.json: pre_tokenizer: unknown behavior `Sometimes`" },
    { "bad expression", PRE, SPLIT("(a", "Isolated"),
      "t.json: pre_tokenizer: pattern `(a`: missing closing parenthesis at offset 2" },
    { "unknown property", PRE, SPLIT("\\\\p{Foo}", "Isolated"),
      "t.json: pre_tokenizer: pattern `\\p{Foo}`: unknown property" },
    { "set in a set", PRE, SPLIT("[a[bc]]", "Isolated"),
      "t.json: pre_tokenizer: pattern offset 2: a set inside a set" },
    { "empty expression", PRE, SPLIT("", "Isolated"), "t.json: pre_tokenizer: pattern of 0 bytes" },
    { "no pattern", PRE, "{\"type\":\"Split\",\"behavior\":\"Isolated\"},",
      "t.json: pre_tokenizer.pattern: missing" },
    { "unknown post-processor",
      "\"post_processor\":", "\"decoder\":", "{\"type\":\"BertProcessing\"},",
      "t.json: post_processor: unknown post-processor `BertProcessing`" },
    { "template with a token that is not there", "\"post_processor\":", "\"decoder\":",
      "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
      "\"special_tokens\":{\"x\":{\"ids\":[9999]}}},",
      "t.json: post_processor.special_tokens.x.ids: no token has id 9999" },
    { "template without text", "\"post_processor\":", "\"decoder\":",
      "{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}},",
      "t.json: post_processor.single: no Sequence in the template" },
    { "unknown decoder", "\"decoder\":", "\"model\":", "{\"type\":\"WordPiece\"},",
      "t.json: decoder: unknown decoder `WordPiece`" },
    { "no decoder", "\"decoder\":", "\"model\":", "null,", "t.json: decoder: missing" },
};

Test(tokenizer, a_broken_file_gives_one_clear_error)
{
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        const struct broken *b = &broken[i];
        struct tokenizer *t = NULL;
        struct capture c;
        char *json = pocket_json(), want[256];

        if (b->put)
            json = spliced(json, b->from, b->to, b->put);
        else
            strcpy(strstr(json, b->from), "\"x\": 1}");
        capture_start(&c);
        cr_expect(eq(int, tokenizer_open(json, strlen(json), "t.json", &t), -EINVAL), "%s",
                  b->name);
        log_sink(NULL, NULL);
        cr_expect(eq(int, c.lines, 1), "%s: %s", b->name, c.last);
        snprintf(want, sizeof(want), "error: %s", b->message);
        cr_expect(strncmp(c.last, want, strlen(want)) == 0, "%s: got `%s`, want `%s`", b->name,
                  c.last, want);
        free(json);
    }
}
