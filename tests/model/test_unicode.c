#include "src/model/unicode.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

static void expect_form(enum unicode_form form, const char *text, const char *want)
{
    struct text out = { 0 };

    cr_assert(eq(int, unicode_normalize(form, text, strlen(text), &out), 0));
    text_add(&out, "", 1);
    cr_expect(eq(str, out.s, (char *)want), "form %d of %s", (int)form, text);
    text_free(&out);
}

/* Lines of Unicode's NormalizationTest.txt, and what tokenizers meet. */
static const struct {
    const char *text, *form[4]; /* NFC, NFD, NFKC, NFKD */
} cases[] = {
    { "plain text 1", { "plain text 1", "plain text 1", "plain text 1", "plain text 1" } },
    { "\u1e0a", { "\u1e0a", "D\u0307", "\u1e0a", "D\u0307" } },
    { "\u1e0a\u0323", { "\u1e0c\u0307", "D\u0323\u0307", "\u1e0c\u0307", "D\u0323\u0307" } },
    { "D\u0307\u0323", { "\u1e0c\u0307", "D\u0323\u0307", "\u1e0c\u0307", "D\u0323\u0307" } },
    { "\u1e9b\u0323", { "\u1e9b\u0323", "\u017f\u0323\u0307", "\u1e69", "s\u0323\u0307" } },
    { "\u212b", { "\u00c5", "A\u030a", "\u00c5", "A\u030a" } },
    { "\uac01", { "\uac01", "\u1100\u1161\u11a8", "\uac01", "\u1100\u1161\u11a8" } },
    { "\ufb01", { "\ufb01", "\ufb01", "fi", "fi" } },
    { "\u2460\u00bd", { "\u2460\u00bd", "\u2460\u00bd", "11\u20442", "11\u20442" } },
    { "a\u0315\u0300\u05ae\u0300b",
      { "\u00e0\u05ae\u0300\u0315b", "a\u05ae\u0300\u0300\u0315b", "\u00e0\u05ae\u0300\u0315b",
        "a\u05ae\u0300\u0300\u0315b" } },
    { "\ufdfa", { "\ufdfa", "\ufdfa", "صلى الله عليه وسلم", "صلى الله عليه وسلم" } },
};

Test(unicode, normal_forms)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int form = 0; form < 4; form++)
            expect_form((enum unicode_form)form, cases[i].text, cases[i].form[form]);
}

/* 300,000 marks behind one letter, of two classes in turn: ordered, and each class in its old
 * order. */
Test(unicode, a_text_of_marks_is_ordered_in_time)
{
    size_t n = 100000;
    struct text in = { 0 }, out = { 0 };

    text_add(&in, "a", 1);
    for (size_t i = 0; i < n; i++)
        text_add(&in, "\u0301\u0327\u0300", 6);
    cr_assert(eq(int, unicode_normalize(UNICODE_NFD, in.s, in.bytes, &out), 0));
    cr_assert(eq(sz, out.bytes, in.bytes));
    for (size_t i = 0; i < n; i++)
        if (memcmp(out.s + 1 + 2 * i, "\u0327", 2) != 0 ||
            memcmp(out.s + 1 + 2 * n + 4 * i, "\u0301\u0300", 4) != 0) {
            cr_expect(false, "mark %zu", i);
            break;
        }
    text_free(&in);
    text_free(&out);
}

static const struct {
    unsigned code;
    bool space, mark, word;
} classes[] = {
    { 'a', .word = true },
    { '_', .word = true },
    { '-' },
    { '\t', .space = true },
    { 0x85, .space = true },
    { 0xb2 },
    { 0x301, .mark = true, .word = true },
    { 0x660, .word = true },
    { 0x903, .mark = true, .word = true },
    { 0x180e },
    { 0x200b },
    { 0x200d, .word = true },
    { 0x20dd, .mark = true, .word = true },
    { 0x2160, .word = true },
    { 0x2028, .space = true },
    { 0x3000, .space = true },
};

Test(unicode, characters)
{
    unsigned code;

    cr_expect(eq(int, unicode_next("中a", 4, &code), 3));
    cr_expect(eq(uint, code, 0x4e2d));
    cr_expect(eq(int, unicode_last("a😀", 5, &code), 4));
    cr_expect(eq(uint, code, 0x1f600));
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        code = classes[i].code;
        cr_expect(eq(int, unicode_is_space(code), classes[i].space), "U+%04X", code);
        cr_expect(eq(int, unicode_is_mark(code), classes[i].mark), "U+%04X", code);
        cr_expect(eq(int, unicode_is_word(code), classes[i].word), "U+%04X", code);
    }
    cr_expect(eq(uint, unicode_lower(0x3a3), 0x3c3));
    cr_expect(eq(uint, unicode_lower('z'), 'z'));
}
