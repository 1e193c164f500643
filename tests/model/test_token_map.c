#include "src/base/json.h"
#include "src/model/token_map.h"
#include "tests/base/capture.h"
#include "tests/model/tokenizer_rig.h"
#include "tests/rig/goldens.h"

#include <errno.h>
#include <stdio.h>

#define VOCAB 4096
#define CLASSES 3260

Test(token_map, equals_the_reference_map)
{
    struct tokenizer *t = pocket_tokenizer();
    int32_t *map = NULL;
    size_t n;
    const int32_t *want = golden_i32(&n, "engram.token_map");

    cr_assert(eq(sz, n, VOCAB));
    cr_assert(eq(int, token_map_build(t, VOCAB, CLASSES, &map), 0));
    for (size_t i = 0; i < n; i++)
        cr_expect(eq(int, map[i], want[i]), "id %zu", i);
    free(map);
    tokenizer_close(t);
}

Test(token_map, another_count_or_too_few_rows_is_refused)
{
    struct tokenizer *t = pocket_tokenizer();
    int32_t *map = NULL;
    struct capture c;

    capture_start(&c);
    cr_expect(eq(int, token_map_build(t, VOCAB, CLASSES + 1, &map), -EINVAL));
    cr_expect(
        eq(str, c.last,
           (char *)"error: token map: 3260 distinct compressed ids, the model was made with 3261"));
    cr_expect(eq(int, token_map_build(t, VOCAB - 1, CLASSES, &map), -EINVAL));
    cr_expect(
        eq(str, c.last,
           (char *)"error: token map: the tokenizer has ids up to 4095, the model 4095 rows"));
    log_sink(NULL, NULL);
    cr_assert(eq(int, token_map_build(t, VOCAB + 2, CLASSES, &map), 0));
    cr_expect(eq(int, map[VOCAB], 0));
    cr_expect(eq(int, map[VOCAB + 1], 0));
    free(map);
    tokenizer_close(t);
}

/* Added tokens of one class, or not: what the pocket vocabulary has no example of. */
static const struct {
    const char *name, *a, *b;
    bool same;
} pairs[] = {
    { "case", "QuX", "qux", true },
    { "accents", "q\u00fc\u00ff", "quy", true },
    { "compatibility", "\ufb01q\u2460", "fiq1", true },
    { "spacing marks", "qx\u0903", "qx", true },
    { "enclosing marks", "qx\u20dd", "qx", true },
    { "runs of spaces", "q \t\r\n z", "q z", true },
    { "ends", " \u00a0qz\u2028", "qz", true },
    { "one space", " ", "\u00a0", true },
    { "spaces", "   ", "\t\n", true },
    { "a space is no empty text", " ", "\u200b", false },
    { "marks alone stay themselves", "\u0301", "\u0327", false },
    { "form feed stays itself", "\x0c", "\x0b", false },
    { "final sigma", "q\u03c2", "q\u03c3", false },
    { "capital sigma", "q\u03a3", "q\u03c3", true },
    { "dotted capital", "q\u0130", "qi", true },
    { "inner spaces", "q z", "qz", false },
    { "what stands for one space", "\ue000", " ", true },
    { "what stands for one space, inside", "q\ue000z", "q z", true },
    { "what stands for one space, at an end", "qz\ue000", "qz", false },
};

static int class_of(const struct tokenizer *t, const int32_t *map, const char *text)
{
    int id = tokenizer_id(t, text);

    cr_assert(ge(int, id, 0), "%s", text);
    return map[id];
}

static void put_token(struct json_writer *w, const char *text, int *id)
{
    json_begin_object(w, NULL);
    json_put_int(w, "id", (*id)++);
    json_put_str(w, "content", text);
    json_put_bool(w, "normalized", false);
    json_end_object(w);
}

Test(token_map, folds_what_reads_alike)
{
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        char *json = pocket_json(), part[4096];
        struct tokenizer *t = NULL;
        struct json_writer w;
        int32_t *map = NULL;
        struct capture c;
        const char *text;
        size_t bytes;
        int id = VOCAB;

        json_writer_init(&w);
        json_begin_array(&w, NULL);
        put_token(&w, pairs[i].a, &id);
        put_token(&w, pairs[i].b, &id);
        json_end_array(&w);
        cr_assert(eq(int, json_writer_text(&w, &text, &bytes), 0));
        snprintf(part, sizeof(part), "%s,", text);
        json_writer_free(&w);
        json = spliced(json, "\"added_tokens\":", "\"normalizer\":", part);
        cr_assert(eq(int, tokenizer_open(json, strlen(json), pairs[i].name, &t), 0));
        capture_start(&c); /* the count is not known here: try what it can be */
        for (int n = CLASSES; n <= CLASSES + 2; n++)
            if (token_map_build(t, VOCAB + 2, n, &map) == 0)
                break;
        log_sink(NULL, NULL);
        cr_assert(ne(ptr, map, NULL));
        cr_expect(
            eq(int, class_of(t, map, pairs[i].a) == class_of(t, map, pairs[i].b), pairs[i].same),
            "%s", pairs[i].name);
        free(map);
        tokenizer_close(t);
        free(json);
    }
}
