/* family.c lists the families and finds the one that a config or a pack names. */
#include "src/model/family.h"

#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/families.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const struct family_ops *const families[] = { &family_deepseek_v41, &family_dense };

/* What configs call the families that serve them. */
static const struct {
    const char *model_type;
    const struct family_ops *family;
} types[] = {
    { "deepseek_v41", &family_deepseek_v41 },
    { "deepseek_v41_text", &family_deepseek_v41 },
    { "llama", &family_dense },
    { "qwen3", &family_dense },
};

int config_above_0(const struct json *o, const char *key, float *out)
{
    char path[160];
    double v;
    int r = json_f64(o, key, &v);

    if (r < 0)
        return r;
    if (!((float)v > 0) || !isfinite((float)v))
        return fail(-EINVAL, "%s: want a number above 0, got %g",
                    json_path(json_get(o, key), path, sizeof(path)), v);
    *out = (float)v;
    return 0;
}

int config_ends(const struct json *o, int vocab, int max, int *end, int *n)
{
    const struct json *v = json_get(o, "eos_token_id");
    bool list = v && json_is(v, JSON_IS_ARRAY);
    char path[160];
    int r = 0;

    *n = 0;
    if (!json_has(o, "eos_token_id"))
        return 0;
    if (list && json_count(v) > (size_t)max)
        return fail(-EINVAL, "%s: %zu entries, at most %d are supported",
                    json_path(v, path, sizeof(path)), json_count(v), max);
    for (size_t i = 0; i < (list ? json_count(v) : 1) && r == 0; i++)
        r = json_as_int(list ? json_at(v, i) : v, 0, vocab - 1, &end[(*n)++]);
    return r;
}

int family_find(const struct json *config, const struct family_ops **out)
{
    const char *type;
    int r = json_str(config, "model_type", &type);

    if (r < 0)
        return r;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i].model_type, type) == 0) {
            *out = types[i].family;
            return 0;
        }
    return fail(-EINVAL, "model_type \"%s\" is not supported: deepseek_v41, llama and qwen3 are",
                type);
}

int family_named(const char *name, const struct family_ops **out)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strcmp(families[i]->name, name) == 0) {
            *out = families[i];
            return 0;
        }
    return fail(-EINVAL, "this build has no family \"%s\"", name);
}

int model_check_head(const struct model *m)
{
    if (m->head->rows == m->vocab_share && m->head->cols == m->dim)
        return 0;
    return fail(-EINVAL, "pack: a head of [%d, %d] lies here, the model counts with [%d, %d]",
                m->head->rows, m->head->cols, m->vocab_share, m->dim);
}

int model_widths(const struct model *m, int width[RANKS_MAX])
{
    int widest = 0;

    for (int i = 0; i < m->ranks; i++) {
        int64_t first, count;

        share_width(m->vocab, m->width_unit, i, m->ranks, &first, &count);
        width[i] = (int)count;
        widest = width[i] > widest ? width[i] : widest;
    }
    return widest;
}
