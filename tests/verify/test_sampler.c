/* sampler - what a request may ask for. */
#include "src/verify/sampler.h"

#include "src/base/log.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

static char last[256];

static void keep(void *arg, enum log_level level, const char *line)
{
    strncpy(last, line, sizeof(last) - 1);
}

struct check_case {
    const char *name;
    struct sampler s;
    const char *says; /* NULL: fine */
};

static const struct check_case cases[] = {
    { "greedy", { .top_p = 1 }, NULL },
    { "all at once", { .temperature = .8, .top_p = .95, .min_p = .05, .top_k = 20 }, NULL },
    { "ends of the ranges",
      { .temperature = 100, .top_p = 0, .min_p = 1, .top_k = INT32_MAX },
      NULL },
    { "a negative temperature",
      { .temperature = -1, .top_p = 1 },
      "temperature -1, want 0 .. 100" },
    { "a hot temperature", { .temperature = 100.5, .top_p = 1 }, "temperature 100.5" },
    { "a temperature that is none", { .temperature = NAN, .top_p = 1 }, "temperature nan" },
    { "an endless temperature", { .temperature = INFINITY, .top_p = 1 }, "temperature inf" },
    { "top_p above 1", { .top_p = 1.01 }, "top_p 1.01, want 0 .. 1" },
    { "top_p that is none", { .top_p = NAN }, "top_p" },
    { "min_p below 0", { .top_p = 1, .min_p = -.1 }, "min_p -0.1, want 0 .. 1" },
    { "min_p that is none", { .top_p = 1, .min_p = NAN }, "min_p" },
    { "top_k below 0", { .top_p = 1, .top_k = -1 }, "top_k -1, want 0 or more" },
    { "ends of the other ranges",
      { .repetition = 100,
        .frequency = -100,
        .presence = 100,
        .logprobs = LOGPROBS_MAX + 1,
        .ends = SAMPLER_ENDS,
        .biases = LOGIT_BIASES_MAX },
      NULL },
    { "repetition of 0.001", { .repetition = .001 }, "repetition_penalty 0.001, want 0.01 .. 100" },
    { "repetition of 101", { .repetition = 101 }, "repetition_penalty 101" },
    { "repetition that is none", { .repetition = NAN }, "repetition_penalty" },
    { "frequency of 101", { .frequency = 101 }, "frequency_penalty 101, want -100 .. 100" },
    { "frequency that is none", { .frequency = NAN }, "frequency_penalty" },
    { "presence of -101", { .presence = -101 }, "presence_penalty -101, want -100 .. 100" },
    { "min_tokens below 0", { .min_tokens = -1 }, "min_tokens -1, want 0 or more" },
    { "more logprobs than there are", { .logprobs = LOGPROBS_MAX + 2 }, "top logprobs 21" },
    { "logprobs below 0", { .logprobs = -1 }, "top logprobs -1" },
    { "more ends than fit", { .ends = SAMPLER_ENDS + 1 }, "end tokens" },
    { "more biases than fit", { .biases = LOGIT_BIASES_MAX + 1 }, "biases 1025" },
};

Test(sampler, refuses_what_has_no_meaning)
{
    log_sink(keep, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        last[0] = '\0';
        cr_expect(eq(int, sampler_check(&cases[i].s), cases[i].says ? -EINVAL : 0), "%s",
                  cases[i].name);
        cr_expect(cases[i].says ? strstr(last, cases[i].says) != NULL : last[0] == '\0',
                  "%s says %s", cases[i].name, last);
    }
}

static const struct {
    const char *name;
    struct logit_bias b[2];
    const char *says; /* NULL: fine */
} pairs[] = {
    { "ends of the ranges", { { 0, -1000 }, { 37, 1000 } }, NULL },
    { "a ban", { { 0, -INFINITY }, { 37, 1 } }, NULL },
    { "a token below 0", { { 0, 1 }, { -1, 1 } }, "biased token -1, want 0 .. 37" },
    { "a token behind the last", { { 38, 1 }, { 0, 1 } }, "biased token 38" },
    { "too much", { { 0, 1 }, { 1, 1000.5f } }, "logit_bias 1000.5, want -1000 .. 1000" },
    { "no end of it", { { 0, INFINITY }, { 1, 1 } }, "logit_bias inf" },
    { "none", { { 0, 1 }, { 1, NAN } }, "logit_bias nan" },
    { "twice", { { 5, 1 }, { 5, 2 } }, "token 5 has two biases" },
};

Test(sampler, refuses_biases_by_token)
{
    log_sink(keep, NULL);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        last[0] = '\0';
        cr_expect(eq(int, sampler_check_biases(pairs[i].b, 2, 38), pairs[i].says ? -EINVAL : 0),
                  "%s", pairs[i].name);
        cr_expect(pairs[i].says ? strstr(last, pairs[i].says) != NULL : last[0] == '\0',
                  "%s says %s", pairs[i].name, last);
    }
}

Test(sampler, default_is_greedy_and_fine)
{
    struct sampler s;

    memset(&s, 0xff, sizeof(s));
    sampler_default(&s);
    cr_expect(sampler_greedy(&s));
    cr_expect(eq(int, sampler_check(&s), 0));
    s.temperature = .7;
    cr_expect(not(sampler_greedy(&s)));
}
