/* detok.c owns the bytes that wait between two ids. */
#include "src/model/detok.h"
#include "src/base/log.h"
#include "src/base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PART_MAX 3 /* bytes of an unfinished character */

struct detok {
    const struct tokenizer *t;
    bool skip_special;
    size_t waits; /* bytes at the front of raw */
    char *raw;    /* what waits, then the token's bytes: PART_MAX + longest */
    char *out;    /* three bytes for each of these, should all be replaced */
};

int detok_open(const struct tokenizer *t, bool skip_special, struct detok **out)
{
    size_t cap = PART_MAX + tokenizer_longest(t);
    struct detok *d = (struct detok *)malloc(sizeof(*d) + 4 * cap);

    if (!d)
        return fail(-ENOMEM, "no memory for a detokenizer");
    *d = (struct detok){ .t = t, .skip_special = skip_special };
    d->raw = (char *)(d + 1);
    d->out = d->raw + cap;
    *out = d;
    return 0;
}

void detok_close(struct detok *d)
{
    free(d);
}

size_t detok_put(struct detok *d, int id, const char **text)
{
    size_t bytes, used, n;
    const char *s = tokenizer_bytes(d->t, id, &bytes);

    *text = d->out;
    if (!s || (d->skip_special && tokenizer_flags(d->t, id) & TOKEN_SPECIAL))
        return 0;
    memcpy(d->raw + d->waits, s, bytes);
    bytes += d->waits;
    n = utf8_repair(d->raw, bytes, false, d->out, &used);
    d->waits = bytes - used;
    memmove(d->raw, d->raw + used, d->waits);
    return n;
}

size_t detok_finish(struct detok *d, const char **text)
{
    size_t used;
    size_t n = utf8_repair(d->raw, d->waits, true, d->out, &used);

    *text = d->out;
    d->waits = 0;
    return n;
}
