/* sampler.c owns what a request may ask for; the arithmetic is in kernels/sampling.h and pick.c. */
#include "src/verify/sampler.h"

#include "src/base/log.h"

#include <errno.h>
#include <math.h>

void sampler_default(struct sampler *s)
{
    *s = (struct sampler){ .top_p = 1, .repetition = 1 };
}

/* Written so that a NaN is outside of every range. */
static int in_range(const char *name, double v, double lo, double hi)
{
    if (v >= lo && v <= hi)
        return 0;
    return fail(-EINVAL, "sampling: %s %g, want %g .. %g", name, v, lo, hi);
}

static int in_count(const char *name, int v, int most)
{
    if (v >= 0 && v <= most)
        return 0;
    return fail(-EINVAL, "sampling: %s %d, want 0 .. %d", name, v, most);
}

int sampler_check(const struct sampler *s)
{
    int r = in_range("temperature", s->temperature, 0, 100);

    if (r == 0)
        r = in_range("top_p", s->top_p, 0, 1);
    if (r == 0)
        r = in_range("min_p", s->min_p, 0, 1);
    if (r == 0 && s->repetition != 0)
        r = in_range("repetition_penalty", s->repetition, 0.01, 100);
    if (r == 0)
        r = in_range("frequency_penalty", s->frequency, -100, 100);
    if (r == 0)
        r = in_range("presence_penalty", s->presence, -100, 100);
    if (r == 0 && s->top_k < 0)
        r = fail(-EINVAL, "sampling: top_k %d, want 0 or more", s->top_k);
    if (r == 0 && s->min_tokens < 0)
        r = fail(-EINVAL, "sampling: min_tokens %d, want 0 or more", s->min_tokens);
    if (r == 0)
        r = in_count("top logprobs", s->logprobs > 0 ? s->logprobs - 1 : s->logprobs, LOGPROBS_MAX);
    if (r == 0)
        r = in_count("end tokens", s->ends, SAMPLER_ENDS);
    if (r == 0)
        r = in_count("biases", s->biases, LOGIT_BIASES_MAX);
    return r;
}

int sampler_check_biases(const struct logit_bias *b, int n, int vocab)
{
    int r = in_count("biases", n, LOGIT_BIASES_MAX);

    for (int i = 0; i < n && r == 0; i++) {
        r = in_count("biased token", b[i].id, vocab - 1);
        if (r == 0 && b[i].add != -INFINITY)
            r = in_range("logit_bias", (double)b[i].add, -1000, 1000);
        for (int j = 0; j < i && r == 0; j++)
            if (b[j].id == b[i].id)
                r = fail(-EINVAL, "sampling: token %d has two biases", b[i].id);
    }
    return r;
}
