#include "src/base/clock.h"
#include "src/model/pattern.h"
#include "src/model/text.h"
#include "tests/base/capture.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

struct pattern_case {
    const char *name, *regex, *text;
    bool literal;
    const char *want; /* the matches, each in [] */
};

/* What Oniguruma does where PCRE2 would do otherwise, and searching itself. */
static const struct pattern_case cases[] = {
    { "letters", "\\p{L}+", "ab 1é中", .want = "[ab][é中]" },
    { "white space", "\\s", "a\x0b\xc2\x85\xe2\x80\xa8\xe1\xa0\x8ez",
      .want = "[\x0b][\xc2\x85][\xe2\x80\xa8]" },
    { "no white space", "\\S+", "a \xe1\xa0\x8e b", .want = "[a][\xe1\xa0\x8e][b]" },
    { "white space in a set", "[^\\s\\p{L}]+",
      "a 1\xc2\x85"
      "2",
      .want = "[1][2]" },
    { "words have marks", "\\w+", "e\xcc\x81_1 -", .want = "[e\xcc\x81_1]" },
    { "no words", "\\W+", "a -e\xcc\x81", .want = "[ -]" },
    { "hex digits", "\\h+", "xFf0g", .want = "[Ff0]" },
    { "no hex digits", "\\H+", "xFf0g", .want = "[x][g]" },
    { "code point", "\\u00e9", "eé", .want = "[é]" },
    { "code point in a set", "[\\u4e00-\\u9fa5]+", "a中文b", .want = "[中文]" },
    { "script without extensions", "\\p{Han}+", "字ー。", .want = "[字]" },
    { "not of a script", "\\P{Han}+", "字ー", .want = "[ー]" },
    { "repeated repetition", "\\p{N}{1,3}+", "12345 6", .want = "[12345][6]" },
    { "repeated group", "(?:ab){2}+", "abababab ababab", .want = "[abababab][abab]" },
    { "repeated set", "[0-9]{2}+x", "1234x 123x", .want = "[1234x][23x]" },
    { "possessive plus", "a++b", "aab", .want = "[aab]" },
    { "up to", "xa{,2}", "xaaa x", .want = "[xaa][x]" },
    { "brace", "a{x}", "a{x}", .want = "[a{x}]" },
    { "lines", "^b|a$", "b\nb a\nb", .want = "[b][b][a][b]" },
    { "dot", "a.b", "a\nb axb a\rb", .want = "[axb][a\rb]" },
    { "dot with m", "(?m:a.b)", "a\nb", .want = "[a\nb]" },
    { "case of a group", "(?i:'LL)|x", "'ll'Ll X", .want = "['ll]['Ll]" },
    { "look ahead", "\\s+(?!\\S)|\\s+", "a   b  ", .want = "[  ][ ][  ]" },
    { "empty matches", "x*", "axb", .want = "[][x][]" },
    { "empty matches at characters", "(?=中)|b", "中中b", .want = "[][][b]" },
    { "nothing", "z", "abc", .want = "" },
    { "empty text", "a*", "", .want = "[]" },
    { "literal", ".(", "a.(b.(", true, "[.(][.(]" },
    { "posix class", "[[:punct:]]+", "a,.b", .want = "[,.]" },
    { "escapes in a set", "[\\[\\]\\\\]+", "a[\\]b", .want = "[[\\]]" },
};

static void find_all(const struct pattern_case *c, struct text *out)
{
    struct pattern *p = NULL;
    struct pattern_run run;
    struct pattern_match m = { .text = c->text, .bytes = strlen(c->text) };
    int r;

    cr_assert(eq(int, pattern_open(c->regex, c->literal, "test", &p), 0), "%s", c->name);
    cr_assert(eq(int, pattern_run_open(&run), 0));
    while ((r = pattern_next(p, &run, &m)) == 0) {
        text_add(out, "[", 1);
        text_add(out, c->text + m.start, m.end - m.start);
        text_add(out, "]", 1);
    }
    cr_expect(eq(int, r, 1), "%s", c->name);
    text_add(out, "", 1);
    pattern_run_close(&run);
    pattern_close(p);
}

Test(pattern, finds_what_oniguruma_finds)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct text got = { 0 };

        find_all(&cases[i], &got);
        cr_expect(eq(str, got.s, (char *)cases[i].want), "%s", cases[i].name);
        text_free(&got);
    }
}

Test(pattern, refuses_what_it_cannot_mean)
{
    static const struct {
        const char *regex, *message;
    } bad[] = {
        { "", "error: test: pattern of 0 bytes, want 1 .. 16384" },
        { "a\\", "error: test: pattern offset 1: ends with a backslash" },
        { "[a", "error: test: pattern offset 2: a set without its ]" },
        { "[]a]", "error: test: pattern offset 0: a set may not begin with ]" },
        { "[a[b]]", "error: test: pattern offset 2: a set inside a set" },
        { "[a&&b]", "error: test: pattern offset 2: an intersection of sets" },
        { "(", "error: test: pattern `(`: missing closing parenthesis at offset 1" },
        { "*a",
          "error: test: pattern `*a`: quantifier does not follow a repeatable item at offset 0" },
        { "\\p{Nope}",
          "error: test: pattern `\\p{Nope}`: unknown property after \\P or \\p at offset 8" },
        { "{3}+", "error: test: pattern" },
    };
    struct pattern *p;
    struct capture c;
    char deep[200] = { 0 };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        capture_start(&c);
        cr_expect(eq(int, pattern_open(bad[i].regex, false, "test", &p), -EINVAL), "%s",
                  bad[i].regex);
        cr_expect(eq(int, c.lines, 1));
        cr_expect(strncmp(c.last, bad[i].message, strlen(bad[i].message)) == 0, "%s: %s",
                  bad[i].regex, c.last);
    }
    memset(deep, '(', 100);
    cr_expect(eq(int, pattern_open(deep, false, "test", &p), -EINVAL));
    cr_expect(eq(str, c.last, (char *)"error: test: pattern offset 64: groups nest too deeply"));
    log_sink(NULL, NULL);
}

/* One match that backtracks without end, and many matches that are each only linear. */
Test(pattern, gives_up_on_pathological_text)
{
    static const struct {
        const char *regex, *message;
        int64_t budget_ns;
    } slow[] = {
        { "(?:a|aa|a.)+[bc]", "match limit exceeded", 1000 * NS_PER_S },
        { "a+b|a", "takes too long on this text", NS_PER_S / 20 },
    };
    size_t bytes = 1 << 20;
    char *text = (char *)malloc(bytes);

    memset(text, 'a', bytes);
    for (size_t i = 0; i < sizeof(slow) / sizeof(slow[0]); i++) {
        struct pattern_match m = { .text = text, .bytes = i ? bytes : 4096 };
        struct pattern *p = NULL;
        struct pattern_run run;
        struct capture c;
        int r;

        cr_assert(eq(int, pattern_open(slow[i].regex, false, "test", &p), 0));
        cr_assert(eq(int, pattern_run_open(&run), 0));
        pattern_run_budget(&run, slow[i].budget_ns);
        capture_start(&c);
        do
            r = pattern_next(p, &run, &m);
        while (r == 0);
        log_sink(NULL, NULL);
        cr_expect(eq(int, r, -ETIME), "%s", slow[i].regex);
        cr_expect(ne(ptr, strstr(c.last, slow[i].message), NULL), "%s: %s", slow[i].regex, c.last);
        pattern_run_close(&run);
        pattern_close(p);
    }
    free(text);
}
