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

Test(sampler, replies_of_one_request_have_seeds_of_their_own)
{
    cr_expect(eq(u64, sampler_seed_derive(42, 0), 42));
    cr_expect(eq(u64, sampler_seed_derive(42, 1), UINT64_C(0x9E3779B97F4A7C15) + 42));
    cr_expect(eq(u64, sampler_seed_derive(42, 2), UINT64_C(0x3C6EF372FE94F82A) + 42));
}
