/* unicode.c owns the use of utf8proc: normal forms and character classes. It keeps no state. */
#include "src/model/unicode.h"
#include "src/base/utf8.h"

#include <utf8proc.h>

/* The longest compatibility decomposition, U+FDFA, has 18 characters. */
#define DECOMPOSED_MAX 32

int unicode_next(const char *s, size_t bytes, unsigned *code)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)s, bytes < 4 ? (utf8proc_ssize_t)bytes : 4, &c);

    *code = (unsigned)c;
    return (int)n;
}

int unicode_last(const char *s, size_t bytes, unsigned *code)
{
    size_t at = bytes - 1;

    while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80)
        at--;
    return unicode_next(s + at, bytes - at, code);
}

bool unicode_is_space(unsigned code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return true;
    default:
        return (code >= 9 && code <= 13) || code == 0x85;
    }
}

bool unicode_is_mark(unsigned code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return true;
    default:
        return false;
    }
}

bool unicode_is_word(unsigned code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return unicode_is_mark(code) || code == 0x200c || code == 0x200d; /* joiners */
    }
}

unsigned unicode_lower(unsigned code)
{
    return (unsigned)utf8proc_tolower((utf8proc_int32_t)code);
}

struct codes {
    utf8proc_int32_t *c;
    size_t n, cap;
};

static int codes_room(struct codes *d, size_t more)
{
    size_t cap = d->cap ? d->cap : 256;
    utf8proc_int32_t *c;

    if (more <= d->cap - d->n)
        return 0;
    while (cap - d->n < more)
        cap *= 2;
    c = (utf8proc_int32_t *)realloc(d->c, cap * sizeof(*c));
    if (!c)
        return fail(-ENOMEM, "no memory to normalize %zu characters", cap);
    d->c = c;
    d->cap = cap;
    return 0;
}

static int combining_class(utf8proc_int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Canonical order of one run of marks: stable by class. Short runs, the usual ones, by insertion;
 * long ones by counting, because a text of nothing but marks is one run.
 */
static int order_run(utf8proc_int32_t *c, size_t n)
{
    size_t at[257] = { 0 };
    utf8proc_int32_t *copy;

    if (n <= 16) {
        for (size_t i = 1; i < n; i++)
            for (size_t k = i; k > 0 && combining_class(c[k - 1]) > combining_class(c[k]); k--) {
                utf8proc_int32_t swap = c[k];

                c[k] = c[k - 1];
                c[k - 1] = swap;
            }
        return 0;
    }
    copy = (utf8proc_int32_t *)malloc(n * sizeof(*copy));
    if (!copy)
        return fail(-ENOMEM, "no memory to order %zu marks", n);
    memcpy(copy, c, n * sizeof(*copy));
    for (size_t i = 0; i < n; i++)
        at[combining_class(copy[i]) + 1]++;
    for (int k = 1; k < 256; k++)
        at[k] += at[k - 1];
    for (size_t i = 0; i < n; i++)
        c[at[combining_class(copy[i])]++] = copy[i];
    free(copy);
    return 0;
}

static int decompose(const char *s, size_t bytes, int options, struct codes *d)
{
    size_t run = 0; /* where the marks that follow one another began; n while there are none */
    int r = 0;

    for (size_t i = 0; i < bytes;) {
        int boundclass = 0;
        unsigned code;
        utf8proc_ssize_t n;

        i += (size_t)unicode_next(s + i, bytes - i, &code);
        r = codes_room(d, DECOMPOSED_MAX);
        if (r < 0)
            return r;
        n = utf8proc_decompose_char((utf8proc_int32_t)code, d->c + d->n, DECOMPOSED_MAX, options,
                                    &boundclass);
        if (n < 0 || n > DECOMPOSED_MAX)
            return fail(-EINVAL, "cannot decompose U+%04X: %s", code,
                        n < 0 ? utf8proc_errmsg(n) : "too long");
        for (utf8proc_ssize_t k = 0; k < n; k++, d->n++)
            if (combining_class(d->c[d->n]) == 0) {
                r = order_run(d->c + run, d->n - run);
                if (r < 0)
                    return r;
                run = d->n + 1;
            }
    }
    return run < d->n ? order_run(d->c + run, d->n - run) : 0;
}

static bool is_ascii(const char *s, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)s[i] >= 0x80)
            return false;
    return true;
}

int unicode_normalize(enum unicode_form form, const char *s, size_t bytes, struct text *out)
{
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    struct codes d = { 0 };
    int r;

    if (is_ascii(s, bytes))
        return text_add(out, s, bytes);
    if (form == UNICODE_NFKC || form == UNICODE_NFKD)
        options |= UTF8PROC_COMPAT;
    r = decompose(s, bytes, options, &d);
    if (r < 0)
        goto free_codes;
    if (form == UNICODE_NFC || form == UNICODE_NFKC)
        d.n = (size_t)utf8proc_normalize_utf32(d.c, (utf8proc_ssize_t)d.n,
                                               UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    r = text_room(out, 4 * d.n);
    if (r < 0)
        goto free_codes;
    for (size_t i = 0; i < d.n; i++)
        out->bytes += (size_t)utf8_encode((unsigned)d.c[i], out->s + out->bytes);

free_codes:
    free(d.c);
    return r;
}
