/* source_synth.c owns nothing but a seed: a value is a function of seed, tensor name and element
 * index. */
#include "src/model/source.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/rng.h"

struct source_synth {
    struct source base;
    uint64_t seed;
    enum dtype dtype;
};

/* What a tensor's values look like: mean + deviation * near normal. */
struct synth_form {
    uint64_t name_hash;
    float mean, deviation;
};

static const char *const dtype_names[DTYPE_COUNT] = {
    [DTYPE_F32] = "F32",
    [DTYPE_F16] = "F16",
    [DTYPE_BF16] = "BF16",
};

static struct synth_form form_of(const struct source_synth *y, const char *name,
                                 const struct tensor *t)
{
    struct synth_form f = { .mean = 0, .deviation = 0.1f };
    uint64_t h = fnv1a64_u32(FNV1A64_INIT, (uint32_t)y->seed);

    f.name_hash = fnv1a64(fnv1a64_u32(h, (uint32_t)(y->seed >> 32)), name, strlen(name));
    if (t->rank == 2)
        f.deviation = 1.0f / sqrtf((float)t->shape[1]);
    else if (strstr(name, "norm") || strstr(name, "q_weight") || strstr(name, "k_weight"))
        f.mean = 1;
    return f;
}

static int synth_find(struct source *s, const char *name, int64_t rows, int64_t cols,
                      struct tensor *out)
{
    const struct source_synth *y = (const struct source_synth *)s;
    uint64_t elements;

    if (rows < 1 || cols < 1)
        return 1;
    if (__builtin_mul_overflow((uint64_t)rows, (uint64_t)cols, &elements) ||
        elements > UINT64_MAX / sizeof(float))
        return fail(-EINVAL, "synth: tensor %s: shape [%lld, %lld] is too large", name,
                    (long long)rows, (long long)cols);
    *out = (struct tensor){ .dtype = y->dtype,
                            .type = dtype_names[y->dtype],
                            .rank = cols == 1 ? 1 : 2,
                            .shape = { rows, cols },
                            .elements = elements };
    return 0;
}

static int synth_read(struct source *s, const char *name, const struct tensor *t, uint64_t at,
                      void *buf, size_t bytes)
{
    const struct source_synth *y = (const struct source_synth *)s;
    struct synth_form f = form_of(y, name, t);
    size_t each = dtype_bytes(t->dtype), n = bytes / each;
    uint64_t first = at / each;

    if (at % each != 0 || bytes % each != 0 || first > t->elements || n > t->elements - first)
        return fail(-EINVAL, "synth: tensor %s: %zu bytes from offset %llu are not inside it", name,
                    bytes, (unsigned long long)at);
    for (size_t i = 0; i < n; i++) {
        float v = f.mean + f.deviation * synth_normal(f.name_hash, first + i);

        uint16_t half = t->dtype == DTYPE_BF16 ? bf16_from_f32(v) : f16_from_f32(v);

        memcpy((char *)buf + i * each, t->dtype == DTYPE_F32 ? (void *)&v : (void *)&half, each);
    }
    return 0;
}

/* Nothing exists before it is asked for. */
static void synth_unused(struct source *s, void (*fn)(void *arg, const char *name), void *arg)
{
}

static void synth_close(struct source *s)
{
    free(s);
}

static const struct source_ops synth_ops = {
    .name = "synth",
    .find = synth_find,
    .read = synth_read,
    .unused = synth_unused,
    .close = synth_close,
};

int source_synth_open(uint64_t seed, enum dtype dtype, struct source **out)
{
    struct source_synth *y;

    if ((int)dtype < 0 || dtype >= DTYPE_COUNT)
        return fail(-EINVAL, "synth: no type %d", (int)dtype);
    y = calloc(1, sizeof(*y));
    if (!y)
        return fail(-ENOMEM, "synth: no memory");
    y->base.ops = &synth_ops;
    y->seed = seed;
    y->dtype = dtype;
    *out = &y->base;
    return 0;
}
