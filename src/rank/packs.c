/* packs.c owns how a name in the setting `model` becomes a mapped pack. */
#include "src/rank/packs.h"

#include "kernels/backend.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/model/pack.h"
#include "src/model/tokenizer.h"
#include "src/rank/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_NESTING 64

int packs_path(const char *folder, int rank, char path[PATH_CAP])
{
    char name[32];

    snprintf(name, sizeof(name), "rank%d.pack", rank);
    return path_join(path, PATH_CAP, folder, name);
}

/* ---- blueprint ------------------------------------------------------------------------------- */

int blueprint_open(const char *text, size_t bytes, const char *family, bool cache_quant, int rank,
                   int ranks, int width_unit, enum exit_step *step, struct blueprint *out)
{
    struct blueprint b = { 0 };
    const struct family_ops *ops;
    int r;

    *step = STEP_DATA;
    r = json_parse(text, bytes, "config.json", CONFIG_NESTING, &b.config);
    if (r == 0)
        r = family ? family_named(family, &ops) : family_find(b.config, &ops);
    if (r == 0)
        r = ops->open(b.config, cache_quant, &b.model);
    if (r < 0)
        goto close;
    *step = STEP_CONFIG;
    b.model->width_unit = width_unit;
    r = b.model->ops->split(b.model, rank, ranks);
    if (r < 0)
        goto close;
    *step = STEP_DATA;
    r = drafter_open("auto", b.config, b.model, &b.drafter);
    if (r < 0)
        goto close;
    b.part[0] = (struct walk_part){ b.model->ops->weights, b.model };
    b.part[1] = (struct walk_part){ b.drafter->ops->weights, b.drafter };
    *out = b;
    return 0;

close:
    blueprint_close(&b);
    return r;
}

void blueprint_close(struct blueprint *b)
{
    if (b->drafter)
        b->drafter->ops->close(b->drafter);
    if (b->model)
        b->model->ops->close(b->model);
    json_close(b->config);
    *b = (struct blueprint){ 0 };
}

/* ---- making ------------------------------------------------------------------------------ */

int packs_write(const struct checkpoint_settings *s, const char *path, enum exit_step *step)
{
    struct checkpoint c;
    int r = checkpoint_open(s, step, &c);

    if (r < 0)
        return r;
    r = checkpoint_source(&c);
    if (r == 0)
        r = checkpoint_failure(&c, pack_write(path, &c.spec, c.source), step);
    checkpoint_close(&c);
    return r;
}

int packs_match(const struct checkpoint_settings *s, const struct pack *p, enum exit_step *step)
{
    struct checkpoint c;
    int r = checkpoint_open(s, step, &c);

    if (r < 0)
        return r;
    r = pack_is_of(p, &c.spec);
    checkpoint_close(&c);
    return r;
}

static int layout_of(const struct config *cfg, enum layout *out)
{
    const struct backend_ops *b;
    int r = backend_find(cfg->backend, &b);

    if (r == 0)
        *out = b->caps & BACKEND_HOST_MEMORY ? LAYOUT_CPU : LAYOUT_DEVICE;
    return r;
}

static int from_cache(const struct config *cfg, enum layout layout, bool make, enum exit_step *step,
                      char path[PATH_CAP])
{
    struct checkpoint_settings s = { .model = cfg->model,
                                     .rank = cfg->rank,
                                     .ranks = cfg->ranks,
                                     .layouts = layout == LAYOUT_DEVICE ? PACK_DEVICE : PACK_CPU,
                                     .whole_experts = cfg->experts == EXPERTS_WHOLE };
    struct checkpoint c;
    int r = checkpoint_open(&s, step, &c);

    if (r < 0)
        return r;
    c.spec.hollow = c.synth && layout == LAYOUT_DEVICE && c.scheme.dtype == DTYPE_EXL3;
    r = checkpoint_failure(&c, pack_cached(cfg->cache, &c.spec, NULL, path), step);
    if (r == 1 && make) {
        r = checkpoint_source(&c);
        if (r == 0)
            r = checkpoint_failure(&c, pack_cached(cfg->cache, &c.spec, c.source, path), step);
    }
    checkpoint_close(&c);
    return r;
}

/* ---- packs ----------------------------------------------------------------------------------- */

/* A folder of packs has those of some ranks, on the machine of one rank perhaps its own alone. The
 * one of `rank` if it is there, else the first one; -1 if there is none.
 */
static int pack_in(const char *folder, int rank)
{
    int found = -1;

    for (int r = RANKS_MAX - 1; r >= 0; r--) {
        char path[PATH_CAP];

        if (snprintf(path, sizeof(path), "%s/rank%d.pack", folder, r) < (int)sizeof(path) &&
            access(path, F_OK) == 0 && found != rank)
            found = r;
    }
    return found;
}

static int check_model(const struct config *c, enum exit_step *step)
{
    bool made_up;

    *step = STEP_CONFIG;
    if (!c->model[0])
        return fail(-EINVAL, "config: model is not set; --set model=FOLDER");
    *step = STEP_DATA;
    if (access(checkpoint_folder(c->model, &made_up), F_OK) != 0)
        return fail(-errno, "model %s: %s", c->model, strerror(errno));
    return 0;
}

int packs_tokenizer(const struct config *c, enum exit_step *step, struct tokenizer **out)
{
    const char *folder, *text;
    char path[PATH_CAP], *file;
    struct pack *p;
    bool made_up;
    size_t bytes;
    int rank, r = check_model(c, step);

    if (r < 0)
        return r;
    folder = checkpoint_folder(c->model, &made_up);
    rank = made_up ? -1 : pack_in(folder, c->rank);
    if (rank < 0) {
        r = checkpoint_tokenizer(folder, made_up, &file, &bytes);
        if (r < 0)
            return r;
        log_about(folder);
        r = tokenizer_open(file, bytes, "tokenizer.json", out);
        log_about(NULL);
        free(file);
        return r;
    }
    r = packs_path(folder, rank, path);
    if (r == 0)
        r = pack_open(path, &p);
    if (r < 0)
        return r;
    if (pack_find_blob(p, "tokenizer.json", &text, &bytes) == 0)
        r = tokenizer_open(text, bytes, "tokenizer.json", out);
    else
        r = fail(-EINVAL, "pack %s: no tokenizer.json inside", path);
    pack_close(p);
    return r;
}

static int open_pack(const struct config *c, bool make, enum exit_step *step, struct pack **out)
{
    char path[PATH_CAP];
    enum layout layout = LAYOUT_CPU;
    struct pack *p;
    int r = check_model(c, step);

    if (r < 0)
        return r;
    *step = STEP_DEVICE;
    r = layout_of(c, &layout);
    if (r < 0)
        return r;
    *step = STEP_DATA;
    if (pack_in(c->model, c->rank) >= 0)
        r = packs_path(c->model, c->rank, path);
    else
        r = from_cache(c, layout, make, step, path);
    if (r != 0)
        return r;
    r = pack_open(path, &p);
    if (r < 0)
        return r;
    pack_prefer(p, layout);
    if (pack_rank(p) != c->rank || pack_ranks(p) != c->ranks) {
        *step = STEP_CONFIG;
        r = fail(-EINVAL, "pack %s is rank %d of %d, this is rank %d of %d", path, pack_rank(p),
                 pack_ranks(p), c->rank, c->ranks);
        pack_close(p);
        return r;
    }
    *out = p;
    return 0;
}

int packs_open(const struct config *c, enum exit_step *step, struct pack **out)
{
    return open_pack(c, true, step, out);
}

int packs_find(const struct config *c, enum exit_step *step, struct pack **out)
{
    return open_pack(c, false, step, out);
}
