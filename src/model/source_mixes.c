/* source_mixes.c owns the rounding of the weights that mix hyper-connections' streams: a source in
 * front of another one, to which all else is passed on. */
#include "src/model/source.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/numfmt.h"
#include "src/base/log.h"

struct mixes_source {
    struct source base;
    struct source *real;
};

static const char rounded[] =
    "BF16"; /* the type of a tensor that is: read knows it by the address */

/* As both generations of names end. */
static bool is_mix(const char *name)
{
    static const char *const tails[] = { ".hc_attn_fn", ".hc_ffn_fn", ".attn_hc.fn", ".ffn_hc.fn" };
    size_t n = strlen(name);

    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
        if (n > strlen(tails[i]) && strcmp(name + n - strlen(tails[i]), tails[i]) == 0)
            return true;
    return false;
}

static int mixes_find(struct source *base, const char *name, int64_t rows, int64_t cols,
                      struct tensor *out)
{
    struct source *real = ((struct mixes_source *)base)->real;
    int r = real->ops->find(real, name, rows, cols, out);

    if (r == 0 && is_mix(name) && out->dtype == DTYPE_F32) {
        out->dtype = DTYPE_BF16;
        out->type = rounded;
        out->each = 2;
    }
    return r;
}

static int read_real(struct source *base, const char *name, const struct tensor *t, uint64_t at,
                     void *buf, size_t bytes)
{
    struct source *real = ((struct mixes_source *)base)->real;
    int r = real->ops->read(real, name, t, at, buf, bytes);

    if (r < 0)
        atomic_store(&base->failed, true);
    return r;
}

static int mixes_read(struct source *base, const char *name, const struct tensor *t, uint64_t at,
                      void *buf, size_t bytes)
{
    struct tensor stored = *t;
    uint16_t *to = buf;
    float *v;
    int r;

    if (t->type != rounded)
        return read_real(base, name, t, at, buf, bytes);
    if (at > 2 * t->elements || bytes > 2 * t->elements - at)
        return fail(-EINVAL, "%s: tensor %s: %zu bytes at %llu of %llu values", t->file, name,
                    bytes, (unsigned long long)at, (unsigned long long)t->elements);
    assert(at % 2 == 0 && bytes % 2 == 0);
    stored.dtype = DTYPE_F32;
    stored.type = "F32";
    stored.each = 4;
    v = malloc(2 * bytes + 1);
    if (!v)
        return fail(-ENOMEM, "tensor %s: no memory for %zu bytes", name, 2 * bytes);
    r = read_real(base, name, &stored, 2 * at, v, 2 * bytes);
    for (size_t i = 0; i < bytes / 2 && r == 0; i++)
        to[i] = bf16_from_f32(v[i]);
    free(v);
    return r;
}

static void mixes_unused(struct source *base, void (*fn)(void *arg, const char *name), void *arg)
{
    struct source *real = ((struct mixes_source *)base)->real;

    real->ops->unused(real, fn, arg);
}

static void mixes_close(struct source *base)
{
    struct mixes_source *s = (struct mixes_source *)base;

    s->real->ops->close(s->real);
    free(s);
}

static const struct source_ops source_mixes = {
    .name = "mixes",
    .find = mixes_find,
    .read = mixes_read,
    .unused = mixes_unused,
    .close = mixes_close,
};

int source_mixes_open(struct source *real, struct source **out)
{
    struct mixes_source *s = malloc(sizeof(*s));

    if (!s)
        return fail(-ENOMEM, "source: out of memory");
    *s = (struct mixes_source){ .base = { .ops = &source_mixes, .quant = real->quant },
                                .real = real };
    *out = &s->base;
    return 0;
}
