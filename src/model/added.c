/* added.c owns sets of added tokens: arrays ordered by text, narrowed byte by byte. */
#include "src/model/added.h"
#include "src/model/unicode.h"

int added_put(struct added_set *a, struct added_token token, const char *text, size_t bytes,
              const char *name)
{
    int r;

    if (bytes == 0 || bytes > ADDED_BYTES_MAX)
        return fail(-EINVAL, "%s: an added token of %zu bytes, want 1 .. %d", name, bytes,
                    ADDED_BYTES_MAX);
    if (a->n == a->cap) {
        int cap = a->cap ? 2 * a->cap : 64;
        struct added_token *p = (struct added_token *)realloc(a->tokens, (size_t)cap * sizeof(*p));

        if (!p)
            return fail(-ENOMEM, "no memory for %d added tokens", cap);
        a->tokens = p;
        a->cap = cap;
    }
    token.text = a->arena.bytes;
    token.bytes = bytes;
    r = text_add(&a->arena, text, bytes);
    if (r < 0)
        return r;
    a->tokens[a->n++] = token;
    return 0;
}

static int by_text(const void *x, const void *y, void *arena)
{
    const struct added_token *p = (const struct added_token *)x, *q = (const struct added_token *)y;
    const char *s = (const char *)arena;
    size_t n = p->bytes < q->bytes ? p->bytes : q->bytes;
    int order = memcmp(s + p->text, s + q->text, n);

    if (order == 0)
        order = (p->bytes > q->bytes) - (p->bytes < q->bytes);
    return order ? order : (p->id > q->id) - (p->id < q->id);
}

void added_sort(struct added_set *a)
{
    if (a->n > 0)
        qsort_r(a->tokens, (size_t)a->n, sizeof(*a->tokens), by_text, a->arena.s);
    for (int i = 0, b = 0; b <= 256; b++) {
        while (i < a->n && (unsigned char)a->arena.s[a->tokens[i].text] < b)
            i++;
        a->first[b] = i;
    }
}

void added_free(struct added_set *a)
{
    free(a->tokens);
    text_free(&a->arena);
    *a = (struct added_set){ 0 };
}

/* The first token of lo .. hi - 1, equal up to byte `at`, whose byte there is at least c; one that
 * ends there comes before all others.
 */
static int lower(const struct added_set *a, int lo, int hi, size_t at, int c)
{
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const struct added_token *t = &a->tokens[mid];

        if (t->bytes <= at || (unsigned char)a->arena.s[t->text + at] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static const struct added_token *longest_at(const struct added_set *a, const char *s, size_t bytes,
                                            bool markers)
{
    const struct added_token *found = NULL;
    int lo = a->first[(unsigned char)s[0]], hi = a->first[(unsigned char)s[0] + 1];

    for (size_t at = 1; lo < hi; at++) {
        for (int i = lo; i < hi && a->tokens[i].bytes == at; i++)
            if (markers || !a->tokens[i].marker) {
                found = &a->tokens[i];
                break;
            }
        if (at == bytes)
            break;
        lo = lower(a, lo, hi, at, (unsigned char)s[at]);
        hi = lower(a, lo, hi, at, (unsigned char)s[at] + 1);
    }
    return found;
}

static bool stands_alone(const char *s, size_t bytes, size_t start, size_t end)
{
    unsigned code;

    if (start > 0) {
        unicode_last(s, start, &code);
        if (unicode_is_word(code))
            return false;
    }
    if (end < bytes) {
        unicode_next(s + end, bytes - end, &code);
        if (unicode_is_word(code))
            return false;
    }
    return true;
}

/* Take the spaces around a match; never those that the match before has taken. */
static void take_spaces(const struct added_token *t, const char *s, size_t bytes, size_t taken,
                        struct added_match *m)
{
    unsigned code;
    int n;

    while (t->lstrip && m->start > taken) {
        n = unicode_last(s, m->start, &code);
        if (!unicode_is_space(code))
            break;
        m->start -= (size_t)n;
    }
    while (t->rstrip && m->end < bytes) {
        n = unicode_next(s + m->end, bytes - m->end, &code);
        if (!unicode_is_space(code))
            break;
        m->end += (size_t)n;
    }
}

bool added_next(const struct added_set *a, const char *s, size_t bytes, bool markers,
                struct added_match *m)
{
    size_t taken = m->next;

    for (size_t at = m->next; a->n > 0 && at < bytes; at++) {
        const struct added_token *t;

        if (a->first[(unsigned char)s[at]] == a->first[(unsigned char)s[at] + 1])
            continue;
        t = longest_at(a, s + at, bytes - at, markers);
        if (!t)
            continue;
        if (t->single_word && !stands_alone(s, bytes, at, at + t->bytes)) {
            at += t->bytes - 1;
            continue;
        }
        *m = (struct added_match){ .id = t->id, .start = at, .end = at + t->bytes };
        take_spaces(t, s, bytes, taken, m);
        m->next = m->end;
        return true;
    }
    return false;
}
