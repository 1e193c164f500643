/* prompt.c owns files of text and ids from outside; nothing in them is trusted. */
#include "src/rank/prompt.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/tokenizer.h"
#include "src/rank/exit_code.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_BYTES ((size_t)256 << 20)
#define NUMBER_SHOWN 40
#define BLANKS " \t\r\n\v\f"

int prompt_encode(const struct tokenizer *t, const char *text, size_t bytes, unsigned flags,
                  struct prompt *out)
{
    struct prompt p;
    int r = tokenizer_encode(t, text, bytes, flags, &p.ids, &p.n);

    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    *out = p;
    return 0;
}

/* The next number of an ids file; -1 at its end, -2 for anything else. */
static int64_t next_id(const char **at, const char *end)
{
    int64_t v = 0;

    *at += strspn(*at, BLANKS);
    if (*at == end)
        return -1;
    if (**at < '0' || **at > '9')
        return -2;
    for (; **at >= '0' && **at <= '9'; (*at)++)
        v = v < INT32_MAX ? v * 10 + (**at - '0') : v;
    return *at == end || strchr(BLANKS, **at) ? v : -2;
}

static int parse_ids(const char *text, size_t bytes, const char *name, int vocab,
                     struct prompt *out)
{
    const char *at = text, *end = text + bytes;
    /* An id is at least a digit and a blank. */
    struct prompt p = { .ids = malloc((bytes / 2 + 1) * sizeof(int32_t)) };
    int64_t v;

    if (!p.ids) {
        fail(-ENOMEM, "no memory for the ids of %s", name);
        return CODE_RESOURCE;
    }
    while ((v = next_id(&at, end)) >= 0) {
        if (v >= vocab) {
            const char *from = at;

            while (from > text && from[-1] >= '0' && from[-1] <= '9')
                from--;
            fail(-EINVAL, "ids %s: number %d is %.*s%s, the vocabulary has %d", name, p.n + 1,
                 at - from < NUMBER_SHOWN ? (int)(at - from) : NUMBER_SHOWN, from,
                 at - from > NUMBER_SHOWN ? "..." : "", vocab);
            goto refuse;
        }
        p.ids[p.n++] = (int32_t)v;
    }
    if (v == -2) {
        fail(-EINVAL, "ids %s: byte %td is part of no token id", name, at - text);
        goto refuse;
    }
    if (p.n == 0) {
        fail(-EINVAL, "ids %s: no ids", name);
        goto refuse;
    }
    *out = p;
    return 0;

refuse:
    free(p.ids);
    return CODE_DATA;
}

int prompt_read(const struct options *o, const struct given *g, const struct tokenizer *t,
                int vocab, struct prompt *out)
{
    unsigned flags = (o->no_bos ? 0 : ENCODE_BOS) | (o->markers ? ENCODE_MARKERS : 0);
    char *text;
    size_t bytes;
    int r;

    if (g->as == GIVEN_TEXT)
        return prompt_encode(t, g->what, strlen(g->what), flags, out);
    r = file_read_stream(g->what, PROMPT_BYTES, &text, &bytes);
    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    r = g->as == GIVEN_IDS_FILE ? parse_ids(text, bytes, g->what, vocab, out)
                                : prompt_encode(t, text, bytes, flags, out);
    free(text);
    return r;
}

int prompt_fits(const struct prompt *p, int context)
{
    if (p->n == 0) {
        fail(-EINVAL, "prompt is empty: no token to begin with");
        return CODE_DATA;
    }
    if (p->n <= context)
        return 0;
    fail(-EINVAL, "prompt has %d tokens, the context holds %d", p->n, context);
    return CODE_DATA;
}
