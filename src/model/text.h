/* text - bytes that grow, for text on its way through the tokenizer. Starts as { 0 }. */
#ifndef TANDEM_MODEL_TEXT_H
#define TANDEM_MODEL_TEXT_H

#include "src/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct text {
    char *s; /* not NUL-terminated; NULL while nothing was ever added */
    size_t bytes, cap;
};

/* text_room - make room for more bytes behind what is there; -ENOMEM. */
static inline int text_room(struct text *t, size_t more)
{
    size_t cap = t->cap ? t->cap : 64;
    char *s;

    if (more <= t->cap - t->bytes)
        return 0;
    while (cap - t->bytes < more)
        cap *= 2;
    s = (char *)realloc(t->s, cap);
    if (!s)
        return fail(-ENOMEM, "no memory for %zu bytes of text", cap);
    t->s = s;
    t->cap = cap;
    return 0;
}

/* text_add - append; s may not point into t. */
static inline int text_add(struct text *t, const char *s, size_t bytes)
{
    int r = text_room(t, bytes);

    if (r < 0)
        return r;
    if (bytes > 0)
        memcpy(t->s + t->bytes, s, bytes);
    t->bytes += bytes;
    return 0;
}

static inline void text_free(struct text *t)
{
    free(t->s);
    *t = (struct text){ 0 };
}

#endif
