/* Words for formats: which there are, what they say, and that nothing near them is one. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <string.h>

#include "src/model/scheme.h"
#include "tests/base/capture.h"

static const struct {
    const char *word;
    enum dtype dtype, experts;
    int bits2, block;
    enum codebook book;
} words[] = {
    { "f32", DTYPE_F32, DTYPE_F32, 0, 0, 0 },
    { "bf16", DTYPE_BF16, DTYPE_BF16, 0, 0, 0 },
    { "fp8", DTYPE_FP8, DTYPE_FP8, 0, 32, 0 },
    { "fp8-128", DTYPE_FP8, DTYPE_FP8, 0, 128, 0 },
    { "fp8-mxfp4", DTYPE_FP8, DTYPE_MXFP4, 0, 32, 0 },
    { "nvfp4-ct", DTYPE_NVFP4, DTYPE_NVFP4, 0, 0, 0 },
    { "exl3-1", DTYPE_EXL3, DTYPE_EXL3, 2, 0, CODEBOOK_MUL1 },
    { "exl3-3.5", DTYPE_EXL3, DTYPE_EXL3, 7, 0, CODEBOOK_MUL1 },
    { "exl3-8", DTYPE_EXL3, DTYPE_EXL3, 16, 0, CODEBOOK_MUL1 },
    { "exl3-2-mcg", DTYPE_EXL3, DTYPE_EXL3, 4, 0, CODEBOOK_MCG },
    { "exl3-5-3inst", DTYPE_EXL3, DTYPE_EXL3, 10, 0, CODEBOOK_3INST },
};

Test(scheme, a_word_is_a_format)
{
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct scheme s;

        cr_assert(eq(int, scheme_parse(words[i].word, &s), 0), "%s", words[i].word);
        cr_expect(eq(str, (char *)s.name, (char *)words[i].word));
        cr_expect(s.dtype == words[i].dtype && s.experts == words[i].experts, "%s", words[i].word);
        cr_expect(eq(int, s.q.bits2, words[i].bits2), "%s", words[i].word);
        cr_expect(eq(int, s.q.block, words[i].block), "%s", words[i].word);
        if (s.dtype == DTYPE_EXL3)
            cr_expect(eq(int, (int)s.q.codebook, (int)words[i].book), "%s", words[i].word);
    }
}

Test(scheme, what_is_no_word_is_refused)
{
    static const char *const wrong[] = {
        "",         "fp9",      "FP8",      "fp8-",         "fp8-64",         "exl3",
        "exl3-",    "exl3-0",   "exl3-0.5", "exl3-2.25",    "exl3-3.2",       "exl3-4.5",
        "exl3-7.5", "exl3-8.5", "exl3-9",   "exl3-nan",     "exl3--3",        "exl3-3-mul",
        "exl3-3-",  "exl3-3 ",  "exl3-v42", "exl3-2.5-mcg", "exl3-1.5-3inst", "exl3-3-mcg-mcg",
    };
    struct capture lines;
    struct scheme s;

    capture_start(&lines);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        cr_expect(eq(int, scheme_parse(wrong[i], &s), -EINVAL), "%s", wrong[i]);
        cr_expect(strstr(lines.last, wrong[i]) != NULL, "%s", lines.last);
    }
}
