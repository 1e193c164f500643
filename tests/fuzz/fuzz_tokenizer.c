/* fuzz_tokenizer - any text and any tokenizer.json: one clear refusal, or text that comes back.
 *
 * Input: a byte that chooses, then a text for the pocket model's tokenizer (0, 1: markers too), a
 * whole tokenizer.json (2), or the pre-tokenizer of a small one (3).
 */
#include "tests/fuzz/fuzz.h"

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/utf8.h"
#include "src/model/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tokenizer *pocket;
static char *small_head; /* a tokenizer.json up to its pre-tokenizer, which ends it */

static void ignore(void *arg, enum log_level level, const char *line)
{
}

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

/* A vocabulary of the 256 bytes, two joins, a marker and a run of spaces. */
static void build_small(void)
{
    struct json_writer w;
    const char *text;
    size_t bytes;

    json_writer_init(&w);
    json_begin_object(&w, NULL);
    for (int c = 0; c < 256; c++) {
        char letter[5] = { 0 };

        byte_letter((unsigned char)c, letter);
        json_put_int(&w, letter, c);
    }
    json_put_int(&w, "ab", 256);
    json_put_int(&w, "abab", 257);
    json_end_object(&w);
    must(json_writer_text(&w, &text, &bytes) == 0, "vocabulary");
    small_head = (char *)malloc(bytes + 512);
    must(small_head != NULL, "memory");
    sprintf(small_head,
            "{\"added_tokens\":[{\"id\":258,\"content\":\"<m>\",\"special\":true},{\"id\":259,"
            "\"content\":"
            "\"  \",\"rstrip\":true,\"normalized\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":%s,"
            "\"merges\":[\"a b\",[\"ab\",\"ab\"]]},\"decoder\":{\"type\":\"ByteLevel\"},"
            "\"pre_tokenizer\":",
            text);
    json_writer_free(&w);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    size_t bytes;
    char *json;

    log_sink(ignore, NULL);
    must(file_read(POCKET "/tokenizer.json", TOKENIZER_JSON_MAX, &json, &bytes) == 0, "pocket");
    must(tokenizer_open(json, bytes, "pocket", &pocket) == 0, "pocket");
    free(json);
    build_small();
    return 0;
}

static void try_text(const struct tokenizer *t, const char *text, size_t bytes, unsigned flags,
                     bool exact)
{
    size_t whole, got;
    bool valid = utf8_scan(text, bytes, &whole) == UTF8_NONE;
    int32_t *ids;
    char *back;
    int n, r = tokenizer_encode(t, text, bytes, flags, &ids, &n);

    must(valid || r == -EILSEQ, "bytes that are not UTF-8 were accepted");
    must(!exact || !valid || r == 0, "a text was refused");
    if (r < 0)
        return;
    for (int i = 0; i < n; i++)
        must(tokenizer_flags(t, ids[i]) & TOKEN_KNOWN, "an id without a token");
    must(tokenizer_decode(t, ids, n, false, &back, &got) == 0, "decode");
    must(utf8_scan(back, got, &whole) == UTF8_NONE, "the decoded text is not UTF-8");
    must(!exact || (got == bytes && memcmp(back, text, got) == 0), "the text did not come back");
    free(back);
    free(ids);
}

static void try_json(const char *json, size_t bytes)
{
    static const char *const texts[] = {
        "", "ab abab  <m> 12,\n\nIt's caf\xc3\xa9 \xe4\xb8\xad\xf0\x9f\x98\x80"
    };
    struct tokenizer *t;

    if (tokenizer_open(json, bytes, "fuzz", &t) < 0)
        return;
    for (int i = 0; i < 2; i++) {
        try_text(t, texts[i], strlen(texts[i]), 0, false);
        try_text(t, texts[i], strlen(texts[i]), ENCODE_BOS | ENCODE_MARKERS, false);
    }
    tokenizer_close(t);
}

static void try_pre_tokenizer(const char *part, size_t bytes)
{
    size_t head = strlen(small_head);
    char *json = (char *)malloc(head + bytes + 2);

    must(json != NULL, "memory");
    memcpy(json, small_head, head);
    memcpy(json + head, part, bytes);
    memcpy(json + head + bytes, "}", 2);
    try_json(json, head + bytes + 1);
    free(json);
}

static const char *const texts[] = {
    "Hello, World! It's the DON'T we'LL 1234567 3.14e-10\r\n",
    "  two  spaces\t\ttab\n\n\nlines \xc2\xa0nbsp\xe3\x80\x80wide",
    "Cafe\xcc\x81 \xe4\xb8\xad\xe6\x96\x87 \xed\x95\x9c \xf0\x9f\x98\x80\xe2\x80\x8d \xef\xbb\xbf",
    "<\xef\xbd\x9c"
    "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>hi<\xef\xbd\x9cUser\xef\xbd\x9c>",
    "def f(x):\n    return x**2  # ok\n{\"k\": [1,2,3]}//---\n\n",
};
static const char *const parts[] = {
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}",
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{"
    "N}{1,3}\"},\"behavior\":"
    "\"Isolated\",\"invert\":false},{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\\\r\\\\n\\\\p{"
    "L}]?[\\\\p{L}\\\\p{M}]+|"
    "\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
    "\"use_regex\":false}]}",
    "{\"type\":\"Split\",\"pattern\":{\"String\":\" "
    "\"},\"behavior\":\"MergedWithNext\",\"invert\":false}",
};

size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX])
{
    const int n_texts = sizeof(texts) / sizeof(texts[0]),
              n_parts = sizeof(parts) / sizeof(parts[0]);
    size_t n;

    if (i < 2 * n_texts) {
        n = strlen(texts[i / 2]);
        out[0] = (uint8_t)(i % 2);
        memcpy(out + 1, texts[i / 2], n);
        return 1 + n;
    }
    i -= 2 * n_texts;
    if (i < n_parts) {
        n = strlen(parts[i]);
        out[0] = 3;
        memcpy(out + 1, parts[i], n);
        return 1 + n;
    }
    if (i > n_parts)
        return 0;
    out[0] = 2; /* a whole file */
    n = (size_t)snprintf((char *)out + 1, FUZZ_INPUT_MAX - 1, "%s%s}", small_head, parts[0]);
    return 1 + n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *rest = (const char *)data + 1;

    if (size == 0)
        return 0;
    switch (data[0] % 4) {
    case 0:
        try_text(pocket, rest, size - 1, 0, true);
        break;
    case 1:
        try_text(pocket, rest, size - 1, ENCODE_MARKERS, true);
        break;
    case 2:
        try_json(rest, size - 1);
        break;
    default:
        try_pre_tokenizer(rest, size - 1);
    }
    return 0;
}
