/* sampler.c owns what a request may ask for; the arithmetic of a draw is the op `choose`. */
#include "src/verify/sampler.h"

#include "src/base/log.h"

#include <errno.h>

void sampler_default(struct sampler *s)
{
    *s = (struct sampler){ .temperature = 0, .top_p = 1, .min_p = 0, .seed = 0, .top_k = 0 };
}

/* Written so that a NaN is outside of every range. */
static int in_range(const char *name, double v, double lo, double hi)
{
    if (v >= lo && v <= hi)
        return 0;
    return fail(-EINVAL, "sampling: %s %g, want %g .. %g", name, v, lo, hi);
}

int sampler_check(const struct sampler *s)
{
    int r = in_range("temperature", s->temperature, 0, 100);

    if (r == 0)
        r = in_range("top_p", s->top_p, 0, 1);
    if (r == 0)
        r = in_range("min_p", s->min_p, 0, 1);
    if (r == 0 && s->top_k < 0)
        r = fail(-EINVAL, "sampling: top_k %d, want 0 or more", s->top_k);
    return r;
}
