/* tokenizer_rig - tokenizers for tests: the pocket model's, and variants of it. */
#ifndef TANDEM_TESTS_MODEL_TOKENIZER_RIG_H
#define TANDEM_TESTS_MODEL_TOKENIZER_RIG_H

#include "src/base/file.h"
#include "src/model/tokenizer.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

/* The text of the pocket model's tokenizer.json; the caller frees it. */
__attribute__((noinline, unused)) static char *pocket_json(void)
{
    char *text = NULL;
    size_t bytes;
    int r = file_read(POCKET "/tokenizer.json", TOKENIZER_JSON_MAX, &text, &bytes);

    cr_assert(eq(int, r, 0));
    return text;
}

static inline struct tokenizer *pocket_tokenizer(void)
{
    char *text = pocket_json();
    struct tokenizer *t = NULL;

    cr_assert(eq(int, tokenizer_open(text, strlen(text), "tokenizer.json", &t), 0));
    free(text);
    return t;
}

/* A copy of text with the first `find` replaced by `put`; text is freed. */
static inline char *replaced(char *text, const char *find, const char *put)
{
    char *at = strstr(text, find), *copy;
    size_t head, size = strlen(text) + strlen(put) + 1;

    cr_assert(ne(ptr, at, NULL), "no %s", find);
    head = (size_t)(at - text);
    copy = (char *)malloc(size);
    memcpy(copy, text, head);
    strcpy(copy + head, put);
    strcat(copy + head, at + strlen(find));
    free(text);
    return copy;
}

/* The same for what lies between `from` and `to`, which both stay. */
static inline char *spliced(char *text, const char *from, const char *to, const char *put)
{
    char *start = strstr(text, from), *end = start ? strstr(start, to) : NULL, *copy;
    size_t head, size = strlen(text) + strlen(put) + 1;

    cr_assert(ne(ptr, end, NULL), "no %s .. %s", from, to);
    head = (size_t)(start - text) + strlen(from);
    copy = (char *)malloc(size);
    memcpy(copy, text, head);
    strcpy(copy + head, put);
    strcat(copy + head, end);
    free(text);
    return copy;
}

#endif
