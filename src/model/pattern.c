/* pattern.c owns compiled expressions, their translation from Oniguruma syntax, and matching
 * limits. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/model/pattern.h"
#include "src/base/clock.h"
#include "src/model/text.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#define PATTERN_BYTES_MAX 16384
#define GROUPS_MAX 64       /* how deep groups may nest */
#define STEPS_BASE 1000000u /* steps of one match, and more per byte of the text */
#define STEPS_PER_BYTE 32u
#define HEAP_KIB 65536u /* of the interpreter, where the JIT is missing */
#define JIT_STACK_MAX (16u << 20)
#define CLOCK_EVERY 16u /* matches between two looks at the clock */

/* White_Space and Alphabetic words, usable inside a set and as one. */
#define SPACE_SET "\\t-\\r\\x{85}\\p{Z}"
#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define HEX_SET "0-9a-fA-F"

struct pattern {
    pcre2_code *code;
    char name[160];
};

struct pattern_scratch {
    pcre2_match_context *limits;
    pcre2_match_data *data;
    pcre2_jit_stack *stack;
};

/* The reader of one expression and the translation so far. */
struct rewrite {
    const char *at, *end, *name;
    const char *begin;
    struct text out;
    size_t atom;              /* where the last repeatable piece begins in out */
    size_t group[GROUPS_MAX]; /* where the open groups begin in out */
    int depth;
};

static int refuse(const struct rewrite *w, const char *what)
{
    return fail(-EINVAL, "%s: pattern offset %td: %s", w->name, w->at - w->begin, what);
}

static int put(struct rewrite *w, const char *s)
{
    return text_add(&w->out, s, strlen(s));
}

/* A two-character escape that PCRE2 reads differently; NULL if there is none. */
static const char *escape_set(char c, bool in_set, bool *negated)
{
    *negated = c == 'S' || c == 'W' || c == 'H';
    if (*negated && in_set)
        /* no set can be spelled that way; PCRE2's own differs in a handful of characters */
        return NULL;
    switch (c) {
    case 's':
    case 'S':
        return SPACE_SET;
    case 'w':
    case 'W':
        return WORD_SET;
    case 'h':
    case 'H':
        return HEX_SET;
    default:
        return NULL;
    }
}

/* \p{Name}: since scripts mean their extensions to PCRE2, ask for the script alone where it is
 * one. */
static int rewrite_property(struct rewrite *w)
{
    const char *close = (const char *)memchr(w->at, '}', (size_t)(w->end - w->at));
    const char *name = w->at + 3;
    char probe[64];
    bool negated;
    int error;
    PCRE2_SIZE where;
    pcre2_code *script;
    int r;

    if (w->end - w->at < 5 || w->at[2] != '{' || !close || close - name > 40) {
        r = text_add(&w->out, w->at, 2);
        w->at += 2;
        return r;
    }
    negated = *name == '^';
    name += negated;
    snprintf(probe, sizeof(probe), "\\%c{%ssc:%.*s}", w->at[1], negated ? "^" : "",
             (int)(close - name), name);
    script = close - name > 2 ? pcre2_compile((PCRE2_SPTR)probe, PCRE2_ZERO_TERMINATED,
                                              PCRE2_UTF | PCRE2_UCP, &error, &where, NULL)
                              : NULL;
    if (script)
        r = put(w, probe);
    else
        r = text_add(&w->out, w->at, (size_t)(close + 1 - w->at));
    pcre2_code_free(script);
    w->at = close + 1;
    return r;
}

static bool is_hex4(const char *s)
{
    for (int i = 0; i < 4; i++)
        if (!strchr("0123456789abcdefABCDEF", s[i]) || s[i] == '\0')
            return false;
    return true;
}

static int rewrite_escape(struct rewrite *w, bool in_set)
{
    const char *set;
    bool negated;
    char code[16];
    int r;

    if (w->end - w->at < 2)
        return refuse(w, "ends with a backslash");
    if (w->at[1] == 'p' || w->at[1] == 'P')
        return rewrite_property(w);
    if (w->at[1] == 'u' && w->end - w->at >= 6 && is_hex4(w->at + 2)) {
        snprintf(code, sizeof(code), "\\x{%.4s}", w->at + 2);
        w->at += 6;
        return put(w, code);
    }
    set = escape_set(w->at[1], in_set, &negated);
    if (!set) {
        r = text_add(&w->out, w->at, 2);
    } else if (in_set) {
        r = put(w, set);
    } else {
        r = put(w, negated ? "[^" : "[");
        r = r < 0 ? r : put(w, set);
        r = r < 0 ? r : put(w, "]");
    }
    w->at += 2;
    return r;
}

static int rewrite_set(struct rewrite *w)
{
    size_t first = 1;
    int r;

    if (w->end - w->at > 1 && w->at[1] == '^')
        first = 2;
    if ((size_t)(w->end - w->at) > first && w->at[first] == ']')
        return refuse(w, "a set may not begin with ]");
    r = text_add(&w->out, w->at, first);
    w->at += first;
    while (r >= 0 && w->at < w->end && *w->at != ']') {
        bool posix = w->end - w->at > 1 && w->at[0] == '[' && w->at[1] == ':';
        const char *close =
            posix ? (const char *)memmem(w->at, (size_t)(w->end - w->at), ":]", 2) : NULL;

        if (*w->at == '[' && !close)
            return refuse(w, "a set inside a set");
        if (w->end - w->at > 1 && w->at[0] == '&' && w->at[1] == '&')
            return refuse(w, "an intersection of sets");
        if (*w->at == '\\') {
            r = rewrite_escape(w, true);
            continue;
        }
        r = text_add(&w->out, w->at, close ? (size_t)(close + 2 - w->at) : 1);
        w->at = close ? close + 2 : w->at + 1;
    }
    if (r < 0)
        return r;
    if (w->at == w->end)
        return refuse(w, "a set without its ]");
    w->at++;
    return put(w, "]");
}

/* {n}, {n,}, {n,m} or {,m}; the bytes of it, 0 if the brace is only a brace. */
static size_t counted_bytes(const char *s, const char *end)
{
    const char *p = s + 1;
    bool digits = false;

    for (; p < end && ((*p >= '0' && *p <= '9') || *p == ','); p++)
        digits = digits || *p != ',';
    return p < end && *p == '}' && digits ? (size_t)(p + 1 - s) : 0;
}

static int rewrite_counted(struct rewrite *w, size_t bytes)
{
    bool again = (size_t)(w->end - w->at) > bytes && w->at[bytes] == '+';
    size_t tail = w->out.bytes - w->atom;
    int r = text_room(&w->out, bytes + 8);

    if (r < 0)
        return r;
    if (again) {
        memmove(w->out.s + w->atom + 3, w->out.s + w->atom, tail);
        memcpy(w->out.s + w->atom, "(?:", 3);
        w->out.bytes += 3;
    }
    r = put(w, w->at[1] == ',' ? "{0" : "{");
    r = r < 0 ? r : text_add(&w->out, w->at + 1, bytes - 1);
    if (r >= 0 && again)
        r = put(w, ")+");
    w->at += bytes + again;
    return r;
}

static int rewrite_open(struct rewrite *w)
{
    int r;

    if (w->depth == GROUPS_MAX)
        return refuse(w, "groups nest too deeply");
    w->group[w->depth++] = w->out.bytes;
    r = put(w, "(");
    w->at++;
    if (r < 0 || w->at == w->end || *w->at != '?')
        return r;
    do {
        r = text_add(&w->out, *w->at == 'm' ? "s" : w->at, 1);
        w->at++;
    } while (r >= 0 && w->at < w->end && strchr("imx-", *w->at) && *w->at);
    return r;
}

static int rewrite_piece(struct rewrite *w)
{
    size_t here = w->out.bytes;
    size_t counted;
    int r;

    switch (*w->at) {
    case '\\':
        w->atom = here;
        return rewrite_escape(w, false);
    case '[':
        w->atom = here;
        return rewrite_set(w);
    case '(':
        return rewrite_open(w);
    case ')':
        if (w->depth > 0)
            w->atom = w->group[--w->depth];
        break;
    case '{':
        counted = counted_bytes(w->at, w->end);
        if (counted > 0)
            return rewrite_counted(w, counted);
        w->atom = here;
        break;
    case '*':
    case '+':
    case '?':
        break;
    default:
        if (((unsigned char)*w->at & 0xc0) != 0x80)
            w->atom = here;
    }
    r = text_add(&w->out, w->at, 1);
    w->at++;
    return r;
}

static int translate(const char *regex, size_t bytes, const char *name, struct text *out)
{
    struct rewrite w = { .at = regex, .end = regex + bytes, .begin = regex, .name = name };
    int r = 0;

    while (r >= 0 && w.at < w.end)
        r = rewrite_piece(&w);
    if (r < 0)
        text_free(&w.out);
    *out = w.out;
    return r;
}

static int compile(struct pattern *p, const struct text *regex, uint32_t options)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    PCRE2_UCHAR why[160];
    PCRE2_SIZE where = 0;
    int error = 0;

    if (!context)
        return fail(-ENOMEM, "%s: no memory for a pattern", p->name);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
    p->code = pcre2_compile((PCRE2_SPTR)regex->s, regex->bytes, options | PCRE2_UTF, &error, &where,
                            context);
    pcre2_compile_context_free(context);
    if (!p->code) {
        pcre2_get_error_message(error, why, sizeof(why));
        return fail(-EINVAL, "%s: pattern `%.*s`: %s at offset %zu", p->name,
                    regex->bytes > 200 ? 200 : (int)regex->bytes, regex->s, (char *)why,
                    (size_t)where);
    }
    /* Without a JIT (or for an expression that it cannot take) the interpreter does the same
     * work. */
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    return 0;
}

int pattern_open(const char *regex, bool literal, const char *name, struct pattern **out)
{
    size_t bytes = strlen(regex);
    struct text translated = { 0 };
    struct pattern *p;
    int r;

    if (bytes == 0 || bytes > PATTERN_BYTES_MAX)
        return fail(-EINVAL, "%s: pattern of %zu bytes, want 1 .. %d", name, bytes,
                    PATTERN_BYTES_MAX);
    p = (struct pattern *)calloc(1, sizeof(*p));
    if (!p)
        return fail(-ENOMEM, "%s: no memory for a pattern", name);
    snprintf(p->name, sizeof(p->name), "%s", name);
    r = literal ? text_add(&translated, regex, bytes) : translate(regex, bytes, name, &translated);
    if (r < 0)
        goto free_pattern;
    r = compile(p, &translated, literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
    text_free(&translated);
    if (r < 0)
        goto free_pattern;
    *out = p;
    return 0;

free_pattern:
    free(p);
    return r;
}

void pattern_close(struct pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    free(p);
}

static int64_t cpu_ns(void)
{
    struct timespec t;

    /* Processor time, not the clock: a busy machine or a stopped process is no fault of the
     * text. */
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

int pattern_run_open(struct pattern_run *run)
{
    struct pattern_scratch *s = (struct pattern_scratch *)calloc(1, sizeof(*s));

    if (!s)
        return fail(-ENOMEM, "no memory to match patterns");
    s->limits = pcre2_match_context_create(NULL);
    s->data = pcre2_match_data_create(1, NULL);
    if (!s->limits || !s->data) {
        pcre2_match_data_free(s->data);
        pcre2_match_context_free(s->limits);
        free(s);
        return fail(-ENOMEM, "no memory to match patterns");
    }
    s->stack = pcre2_jit_stack_create(32768, JIT_STACK_MAX, NULL);
    if (s->stack)
        pcre2_jit_stack_assign(s->limits, NULL, s->stack);
    pcre2_set_heap_limit(s->limits, HEAP_KIB);
    *run = (struct pattern_run){ .scratch = s, .deadline_ns = INT64_MAX };
    return 0;
}

void pattern_run_close(struct pattern_run *run)
{
    if (!run->scratch)
        return;
    pcre2_jit_stack_free(run->scratch->stack);
    pcre2_match_data_free(run->scratch->data);
    pcre2_match_context_free(run->scratch->limits);
    free(run->scratch);
    run->scratch = NULL;
}

void pattern_run_budget(struct pattern_run *run, int64_t budget_ns)
{
    run->deadline_ns = cpu_ns() + budget_ns;
}

static int give_up(const struct pattern *p, const struct pattern_match *m, int code)
{
    PCRE2_UCHAR why[160];

    if (code == PCRE2_ERROR_NOMEMORY)
        return fail(-ENOMEM, "%s: no memory to match a pattern", p->name);
    pcre2_get_error_message(code, why, sizeof(why));
    return fail(-ETIME, "%s: the pattern gives up on this text at byte %zu of %zu: %s", p->name,
                m->next, m->bytes, (char *)why);
}

int pattern_next(const struct pattern *p, struct pattern_run *run, struct pattern_match *m)
{
    struct pattern_scratch *s = run->scratch;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->data);
    size_t limit = STEPS_BASE + STEPS_PER_BYTE * m->bytes;

    pcre2_set_match_limit(s->limits, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    while (m->next <= m->bytes) {
        int r;

        if (run->matches++ % CLOCK_EVERY == 0 && cpu_ns() > run->deadline_ns)
            return fail(-ETIME, "%s: the pattern takes too long on this text at byte %zu of %zu",
                        p->name, m->next, m->bytes);
        r = pcre2_match(p->code, (PCRE2_SPTR)m->text, m->bytes, m->next, PCRE2_NO_UTF_CHECK,
                        s->data, s->limits);
        if (r == PCRE2_ERROR_NOMATCH)
            return 1;
        if (r < 0)
            return give_up(p, m, r);
        if (at[0] != at[1] || !m->any || at[1] != m->end) {
            m->start = at[0];
            m->end = m->next = at[1];
            m->any = true;
            return 0;
        }
        /* Step over one character, or no search would ever leave this place. */
        do
            m->next++;
        while (m->next < m->bytes && ((unsigned char)m->text[m->next] & 0xc0) == 0x80);
    }
    return 1;
}
