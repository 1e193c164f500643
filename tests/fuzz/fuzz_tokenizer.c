/* fuzz_tokenizer - any text and any tokenizer.json: one clear refusal, or text that comes back.
 *
 * Input: a byte that chooses, then a text for the pocket model's tokenizer (0, 1: markers too), a whole tokenizer.json
 * (2), or the pre-tokenizer of a small one (3). Built with clang:
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I. -DPOCKET='"models/pocket-dsv41"'
 *     tests/fuzz/fuzz_tokenizer.c src/model/{tokenizer,tokenizer_read,detok,bpe,vocab,added,pattern,unicode}.c
 *     src/base/{json,json_writer,file,utf8,log,hash}.c -ljansson -lpcre2-8 -lutf8proc -lcrypto -lxxhash
 */
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/utf8.h"
#include "src/model/detok.h"
#include "src/model/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
