/* prompt.c owns files of text and ids from outside; nothing in them is trusted. */
#include "src/rank/prompt.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/tokenizer.h"
#include "src/rank/exit_code.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_BYTES ((size_t)256 << 20)
#define NAMED_BYTES ((size_t)1 << 20)
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

const char *prompt_name(const struct options *o, const struct given *g, char buf[PROMPT_NAME_CAP])
{
    if (g->as != GIVEN_TEXT)
        return g->what;
    if (o->givens == 1)
        return NULL;
    snprintf(buf, PROMPT_NAME_CAP, "prompt %d", (int)(g - o->given) + 1);
    return buf;
}

/* A text whose bytes are wrong, by its name. */
static int encode_named(const struct tokenizer *t, const char *name, const char *text, size_t bytes,
                        unsigned flags, struct prompt *out)
{
    int code;

    log_about(name);
    code = prompt_encode(t, text, bytes, flags, out);
    log_about(NULL);
    return code;
}

int prompt_read(const struct options *o, const struct given *g, const struct tokenizer *t,
                int vocab, struct prompt *out)
{
    unsigned flags = (o->no_bos ? 0 : ENCODE_BOS) | (o->markers ? ENCODE_MARKERS : 0);
    char *text, buf[PROMPT_NAME_CAP];
    const char *name = prompt_name(o, g, buf);
    size_t bytes;
    int r;

    if (g->as == GIVEN_TEXT)
        return encode_named(t, name, g->what, strlen(g->what), flags, out);
    r = file_read_stream(g->what, PROMPT_BYTES, &text, &bytes);
    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    r = g->as == GIVEN_IDS_FILE ? parse_ids(text, bytes, g->what, vocab, out)
                                : encode_named(t, name, text, bytes, flags, out);
    free(text);
    return r;
}

/* ---- folders --------------------------------------------------------------------------------- */

static int is_text(const struct dirent *e)
{
    const char *dot = strrchr(e->d_name, '.');

    return dot && dot != e->d_name && strcmp(dot, ".txt") == 0;
}

static int read_named(struct named_prompt *p, const char *folder, const char *name,
                      const struct tokenizer *t)
{
    char path[PATH_CAP];
    size_t bytes;
    int r = path_join(path, sizeof(path), folder, name);

    *p = (struct named_prompt){ 0 };
    if (r == 0)
        r = file_read(path, NAMED_BYTES, &p->text, &bytes);
    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    if (bytes > 0 && p->text[bytes - 1] == '\n')
        p->text[--bytes] = 0;
    snprintf(p->name, sizeof(p->name), "%.*s", (int)(strlen(name) - strlen(".txt")), name);
    return encode_named(t, path, p->text, bytes, ENCODE_BOS | ENCODE_MARKERS, &p->prompt);
}

int prompt_folder(const char *folder, const struct tokenizer *t, struct named_prompt *out, int *n)
{
    struct dirent **entry;
    int found = scandir(folder, &entry, is_text, alphasort), code = 0;

    *n = 0;
    if (found < 0)
        return exit_code_of(STEP_DATA, fail(-errno, "prompts %s: %s", folder, strerror(errno)));
    if (found == 0 || found > PROMPTS_MAX) {
        fail(-EINVAL, "prompts %s: %d files *.txt, want 1 .. %d", folder, found, PROMPTS_MAX);
        code = CODE_DATA;
    }
    for (int i = 0; i < found; i++) {
        if (code == 0)
            code = read_named(&out[(*n)++], folder, entry[i]->d_name, t);
        free(entry[i]);
    }
    free(entry);
    return code;
}

void prompts_free(struct named_prompt *p, int n)
{
    for (int i = 0; i < n; i++) {
        free(p[i].prompt.ids);
        free(p[i].text);
    }
}

int prompt_fits(const struct prompt *p, int context, const char *name)
{
    const char *colon = name ? ": " : "";

    name = name ? name : "";
    if (p->n > 0 && p->n <= context)
        return 0;
    if (p->n == 0)
        fail(-EINVAL, "%s%sprompt is empty: no token to begin with", name, colon);
    else
        fail(-EINVAL, "%s%sprompt has %d tokens, the context holds %d; set context", name, colon,
             p->n, context);
    return CODE_DATA;
}
