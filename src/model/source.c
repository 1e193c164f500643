/* source.c owns the way from a weight's released name to the bytes that hold it, and the words
 * with which anything else is refused.
 */
#include "src/model/source.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "src/base/log.h"
#include "src/model/names.h"

/* Tensors that stand where a weight `P.weight` is stored in another format, or beside it as its
 * scale. */
static const struct {
    const char *tail, *format;
} companions[] = {
    { "trellis", "EXL3" },
    { "suh", "EXL3" },
    { "svh", "EXL3" },
    { "su", "EXL3" },
    { "sv", "EXL3" },
    { "weight_packed", "NVFP4 or MXFP4 (compressed-tensors)" },
    { "weight_scale_2", "NVFP4 (ModelOpt)" },
    { "weight_global_scale", "NVFP4 (compressed-tensors)" },
    { "weight_scale_inv", "FP8 blocks" },
    { "weight_scale", "FP8 or FP4 with scales" },
    { "scale", "FP8 blocks or MXFP4" },
};

/* The companion of a weight that the source has: its index, or -1. companion becomes its name. */
static int companion_of(struct source *s, const char *weight, char *companion, size_t cap)
{
    size_t stem = strlen(weight);
    struct tensor t;

    if (stem < 8 || strcmp(weight + stem - 7, ".weight") != 0)
        return -1;
    stem -= 6;
    for (size_t i = 0; i < sizeof(companions) / sizeof(companions[0]); i++) {
        int n = snprintf(companion, cap, "%.*s%s", (int)stem, weight, companions[i].tail);

        if (n < (int)cap && s->ops->find(s, companion, 0, 0, &t) == 0)
            return (int)i;
    }
    return -1;
}

static const char *shape_text(const struct tensor *t, char *buf, size_t cap)
{
    size_t at = (size_t)snprintf(buf, cap, "[");

    for (int i = 0; i < t->rank && at < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, i ? ", %lld" : "%lld", (long long)t->shape[i]);
    if (at < cap)
        snprintf(buf + at, cap - at, "]");
    return buf;
}

/* The shape that the place must have, as text and as a verdict. */
static int fits(const struct name_place *p, const struct tensor *t, int64_t rows, int64_t cols,
                char *want, size_t cap)
{
    if (p->fused) {
        snprintf(want, cap, "[more than %d, %lld, %lld]", p->expert, (long long)(p->parts * rows),
                 (long long)cols);
        return t->rank == 3 && t->shape[0] > p->expert && t->shape[1] == p->parts * rows &&
               t->shape[2] == cols;
    }
    if (cols == 1) {
        snprintf(want, cap, "%lld values", (long long)rows);
        return t->elements == (uint64_t)rows;
    }
    snprintf(want, cap, "[%lld, %lld]", (long long)rows, (long long)cols);
    return t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

/* A place was found: may it be used? 1 if it is another one of several numbered tensors. */
static int check_place(struct source *s, const struct name_place *p, const struct tensor *t,
                       int64_t rows, int64_t cols)
{
    char companion[TENSOR_NAME_MAX + 32], have[256], want[96];
    int i = companion_of(s, p->name, companion, sizeof(companion));

    if (i >= 0 && t->dtype < DTYPE_COUNT)
        return fail(-EINVAL, "tensor %s: %s beside a plain weight of type %s", p->name, companion,
                    t->type);
    if (i >= 0)
        return fail(-EINVAL, "tensor %s: type %s with %s beside it is %s, which is not supported",
                    p->name, t->type, companion, companions[i].format);
    if (t->dtype >= DTYPE_COUNT)
        return fail(-EINVAL, "tensor %s: type %s is not supported; F32, F16 and BF16 are", p->name,
                    t->type);
    if (fits(p, t, rows, cols, want, sizeof(want)))
        return 0;
    if (p->by_shape)
        return 1;
    return fail(-EINVAL, "tensor %s: shape %s, want %s", p->name, shape_text(t, have, sizeof(have)),
                want);
}

/* No place holds the weight: say so if another format does. */
static int check_formats(struct source *s, const struct name_place *places, int n)
{
    char companion[TENSOR_NAME_MAX + 32];

    for (int i = 0; i < n; i++) {
        int c = companion_of(s, places[i].name, companion, sizeof(companion));

        if (c >= 0)
            return fail(-EINVAL, "tensor %s: %s says that it is %s, which is not supported",
                        places[i].name, companion, companions[c].format);
    }
    return 1;
}

int source_weight(struct source *s, const char *released, int64_t rows, int64_t cols,
                  struct tensor *t, char *name, size_t name_bytes, uint64_t *first_element)
{
    struct name_place places[PLACES_MAX];
    struct tensor found, other;
    int n = name_places(released, places), at = -1, r;

    for (int i = 0; i < n; i++) {
        if (at >= 0) { /* a source that makes tensors up knows none of unknown shape */
            r = s->ops->find(s, places[i].name, 0, 0, &other);
            if (r == 0 && !places[i].by_shape)
                return fail(-EINVAL, "tensor %s: %s is there too, one name of a weight is enough",
                            places[at].name, places[i].name);
        } else {
            r = s->ops->find(s, places[i].name, rows, cols, &found);
            if (r == 0)
                r = check_place(s, &places[i], &found, rows, cols);
            if (r == 0)
                at = i;
        }
        if (r < 0)
            return r;
    }
    if (at < 0)
        return check_formats(s, places, n);
    if (strlen(places[at].name) >= name_bytes)
        return fail(-ENAMETOOLONG, "tensor %s: name of more than %zu bytes", places[at].name,
                    name_bytes - 1);
    strcpy(name, places[at].name);
    *t = found;
    *first_element = 0;
    if (places[at].fused)
        *first_element =
            (uint64_t)((int64_t)places[at].expert * places[at].parts + places[at].part) *
            (uint64_t)(rows * cols);
    return 0;
}
