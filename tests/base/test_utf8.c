#include "src/base/utf8.h"

#include <string.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#define FFFD "\xef\xbf\xbd"

struct utf8_case {
    const char *name, *in;
    size_t whole;
    enum utf8_rest rest;
    const char *repaired; /* with last */
};

static const struct utf8_case cases[] = {
    { "empty", "", 0, UTF8_NONE, "" },
    { "ascii", "abc\x7f", 4, UTF8_NONE, "abc\x7f" },
    { "two, three, four bytes", "\xc2\x80\xe0\xa0\x80\xf0\x90\x80\x80", 9, UTF8_NONE,
      "\xc2\x80\xe0\xa0\x80\xf0\x90\x80\x80" },
    { "highest of each", "\xdf\xbf\xef\xbf\xbf\xf4\x8f\xbf\xbf", 9, UTF8_NONE,
      "\xdf\xbf\xef\xbf\xbf\xf4\x8f\xbf\xbf" },
    { "half an emoji", "a\xf0\x9f", 1, UTF8_PART, "a" FFFD },
    { "three of four", "\xf0\x9f\x98", 0, UTF8_PART, FFFD },
    { "one of three", "ab\xe4", 2, UTF8_PART, "ab" FFFD },
    { "lone ff", "\xff", 0, UTF8_BAD, FFFD },
    { "lone continuation", "x\x80y", 1, UTF8_BAD, "x" FFFD "y" },
    { "overlong two", "\xc0\xaf", 0, UTF8_BAD, FFFD FFFD },
    { "overlong three", "\xe0\x9f\xbf", 0, UTF8_BAD, FFFD FFFD FFFD },
    { "overlong four", "\xf0\x8f\xbf\xbf", 0, UTF8_BAD, FFFD FFFD FFFD FFFD },
    { "surrogate", "\xed\xa0\x80", 0, UTF8_BAD, FFFD FFFD FFFD },
    { "last before the surrogates", "\xed\x9f\xbf", 3, UTF8_NONE, "\xed\x9f\xbf" },
    { "above the last plane", "\xf4\x90\x80\x80", 0, UTF8_BAD, FFFD FFFD FFFD FFFD },
    { "f5", "\xf5\x80", 0, UTF8_BAD, FFFD FFFD },
    { "cut by ascii", "\xe4\xbdz", 0, UTF8_BAD, FFFD "z" },
    { "cut by a new character", "\xf0\x9f\xe4\xbd\xa0", 0, UTF8_BAD, FFFD "\xe4\xbd\xa0" },
    { "good behind bad", "\xff\xe4\xbd\xa0", 0, UTF8_BAD, FFFD "\xe4\xbd\xa0" },
};

Test(utf8, tells_whole_unfinished_and_hopeless)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t whole;
        enum utf8_rest rest = utf8_scan(cases[i].in, strlen(cases[i].in), &whole);

        cr_expect(eq(int, (int)rest, (int)cases[i].rest), "%s", cases[i].name);
        cr_expect(eq(sz, whole, cases[i].whole), "%s", cases[i].name);
    }
}

/* However the bytes come in, the joined output is that of one call. */
Test(utf8, repair_does_not_depend_on_the_cuts)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n = strlen(cases[i].in);

        for (unsigned cuts = 0; cuts < 1u << (n > 0 ? n - 1 : 0); cuts++) {
            char out[64], held[32];
            size_t put = 0, kept = 0, used, whole;

            for (size_t at = 0; at < n; at++) {
                held[kept++] = cases[i].in[at];
                if (!(cuts >> at & 1) && at + 1 < n)
                    continue;
                put += utf8_repair(held, kept, at + 1 == n, out + put, &used);
                memmove(held, held + used, kept - used);
                kept -= used;
                cr_expect(kept <= 3, "%s", cases[i].name);
            }
            out[put] = 0;
            cr_expect(eq(str, out, (char *)cases[i].repaired), "%s", cases[i].name);
            cr_expect(eq(int, (int)utf8_scan(out, put, &whole), UTF8_NONE), "%s", cases[i].name);
        }
    }
}

Test(utf8, every_character_survives_and_every_prefix_waits)
{
    for (unsigned code = 0; code <= 0x110000; code++) {
        char s[4];
        int n = utf8_encode(code, s);
        size_t whole;

        cr_assert(utf8_scan(s, (size_t)n, &whole) == UTF8_NONE && whole == (size_t)n, "%x", code);
        for (int cut = 1; cut < n; cut++)
            cr_assert(utf8_scan(s, (size_t)cut, &whole) == UTF8_PART && whole == 0, "%x", code);
    }
    cr_expect(eq(int, utf8_encode(0xd800, (char[4]){ 0 }), 3));
}
