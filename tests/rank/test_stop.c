/* test_stop.c - stop strings in text that comes in pieces; what is let through when. */
#include "src/rank/stop.h"

#include "src/base/log.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#define PIECES 8

struct stop_case {
    const char *name;
    const char *stop[4];
    const char *piece[PIECES];
    const char *after[PIECES]; /* all text let through behind each piece; NULL: not checked */
    const char *text;          /* all text at the end */
    int at;                    /* piece that completes a stop, -1: none */
};

static const struct stop_case cases[] = {
    { .name = "no stops: everything at once",
      .piece = { "ab", "cd" },
      .after = { "ab", "abcd" },
      .text = "abcd",
      .at = -1 },
    { .name = "stop over three tokens",
      .stop = { "STOP" },
      .piece = { "ab", "c S", "TO", "P x", "yz" },
      .after = { "ab", "abc ", "abc ", "abc " },
      .text = "abc ",
      .at = 3 },
    { .name = "stop ends at a token's edge",
      .stop = { "STOP" },
      .piece = { "abST", "OP", "yz" },
      .after = { "ab", "ab" },
      .text = "ab",
      .at = 1 },
    { .name = "stop inside one token",
      .stop = { "TO" },
      .piece = { "aSTOPb" },
      .text = "aS",
      .at = 0 },
    { .name = "a beginning that does not go on",
      .stop = { "STOP" },
      .piece = { "aST", "xOP", "STO" },
      .after = { "a", "aSTxOP", "aSTxOP" },
      .text = "aSTxOPSTO",
      .at = -1 },
    { .name = "a stop that begins inside a failed one",
      .stop = { "aab" },
      .piece = { "a", "a", "a", "b", "c" },
      .after = { "", "", "a", "a" },
      .text = "a",
      .at = 3 },
    { .name = "two stops in one piece: the first complete one",
      .stop = { "World", "lo" },
      .piece = { "Hello World" },
      .text = "Hel",
      .at = 0 },
    { .name = "two stops end at the same byte: the longest",
      .stop = { "OP", "STOP" },
      .piece = { "aST", "OP" },
      .text = "a",
      .at = 1 },
    { .name = "the short stop inside the long one is complete first",
      .stop = { "STOP", "TO" },
      .piece = { "aS", "T", "O", "P" },
      .text = "aS",
      .at = 2 },
    { .name = "character over two tokens",
      .piece = { "\xf0\x9f", "\x98\x80!" },
      .after = { "", "\xf0\x9f\x98\x80!" },
      .text = "\xf0\x9f\x98\x80!",
      .at = -1 },
    { .name = "three bytes as one and two, and as two and one",
      .piece = { "\xe4", "\xbd\xa0\xe5\xa5", "\xbd" },
      .after = { "", "\xe4\xbd\xa0", "\xe4\xbd\xa0\xe5\xa5\xbd" },
      .text = "\xe4\xbd\xa0\xe5\xa5\xbd",
      .at = -1 },
    { .name = "half a character at the end",
      .piece = { "a\xf0\x9f" },
      .after = { "a" },
      .text = "a\xef\xbf\xbd",
      .at = -1 },
    { .name = "a stop behind a split character",
      .stop = { "END" },
      .piece = { "\xf0\x9f", "\x98\x80", "E", "ND" },
      .after = { "", "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80" },
      .text = "\xf0\x9f\x98\x80",
      .at = 3 },
    { .name = "a stop behind half a character",
      .stop = { "END" },
      .piece = { "a\xf0\x9f", "END" },
      .text = "a\xef\xbf\xbd",
      .at = 1 },
    { .name = "a stop that is a split character",
      .stop = { "\xe5\xa5\xbd" },
      .piece = { "\xe4\xbd\xa0\xe5", "\xa5", "\xbd" },
      .after = { "\xe4\xbd\xa0", "\xe4\xbd\xa0" },
      .text = "\xe4\xbd\xa0",
      .at = 2 },
    { .name = "a byte that is never text",
      .stop = { "x" },
      .piece = { "\xff", "a" },
      .after = { "\xef\xbf\xbd", "\xef\xbf\xbd\x61" },
      .text = "\xef\xbf\xbd\x61",
      .at = -1 },
    { .name = "tokens without text",
      .stop = { "ab" },
      .piece = { "", "a", "", "b" },
      .text = "",
      .at = 3 },
};

#define CASES (sizeof(cases) / sizeof(cases[0]))

static bool text_is(const struct text *t, const char *want)
{
    return t->bytes == strlen(want) && (t->bytes == 0 || memcmp(t->s, want, t->bytes) == 0);
}

static int stops_of(const struct stop_case *c)
{
    int n = 0;

    while (n < 4 && c->stop[n])
        n++;
    return n;
}

Test(stop, cuts_and_holds_back)
{
    for (size_t i = 0; i < CASES; i++) {
        const struct stop_case *c = &cases[i];
        struct text out = { 0 };
        struct stop_scan s;
        int at = -1;

        stop_init(&s, c->stop, stops_of(c));
        for (int j = 0; j < PIECES && c->piece[j] && at < 0; j++) {
            int r = stop_add(&s, c->piece[j], strlen(c->piece[j]), &out);

            cr_assert(ge(int, r, 0));
            if (r == 1)
                at = j;
            if (c->after[j])
                cr_expect(text_is(&out, c->after[j]), "%s: after piece %d: \"%.*s\"", c->name, j,
                          (int)out.bytes, out.s);
        }
        cr_expect(eq(int, at, c->at), "%s", c->name);
        if (at >= 0)
            cr_expect(eq(int, stop_add(&s, "later", 5, &out), 1), "%s: it takes no more", c->name);
        cr_assert(eq(int, stop_end(&s, &out), 0));
        cr_expect(text_is(&out, c->text), "%s: \"%.*s\"", c->name, (int)out.bytes, out.s);
        stop_free(&s);
        text_free(&out);
    }
}

/* The same bytes in any pieces give the same text: what a block of tokens must not change. */
Test(stop, text_does_not_depend_on_the_pieces)
{
    for (size_t i = 0; i < CASES; i++) {
        const struct stop_case *c = &cases[i];
        char all[64] = "";
        size_t bytes;

        for (int j = 0; j < PIECES && c->piece[j]; j++)
            strcat(all, c->piece[j]);
        bytes = strlen(all);
        for (size_t step = 1; step <= bytes; step++) {
            struct text out = { 0 };
            struct stop_scan s;
            int r = 0;

            stop_init(&s, c->stop, stops_of(c));
            for (size_t at = 0; at < bytes && r == 0; at += step)
                r = stop_add(&s, all + at, bytes - at < step ? bytes - at : step, &out);
            cr_expect(eq(int, r, c->at >= 0), "%s in pieces of %zu", c->name, step);
            cr_assert(eq(int, stop_end(&s, &out), 0));
            cr_expect(text_is(&out, c->text), "%s in pieces of %zu: \"%.*s\"", c->name, step,
                      (int)out.bytes, out.s);
            stop_free(&s);
            text_free(&out);
        }
    }
}

static void quiet(void *arg, enum log_level level, const char *line)
{
}

Test(stop, refuses_what_cannot_be_a_stop)
{
    char longest[STOP_BYTES_MAX + 2];

    log_sink(quiet, NULL);
    memset(longest, 'a', sizeof(longest));
    longest[STOP_BYTES_MAX + 1] = 0;
    cr_expect(eq(int, stop_check(""), -EINVAL));
    cr_expect(eq(int, stop_check("a\xff"), -EINVAL));
    cr_expect(eq(int, stop_check("\xe5\xa5"), -EINVAL));
    cr_expect(eq(int, stop_check(longest), -EINVAL));
    longest[STOP_BYTES_MAX] = 0;
    cr_expect(eq(int, stop_check(longest), 0));
}
