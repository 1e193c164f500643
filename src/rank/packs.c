/* packs.c owns how a name in the setting `model` becomes a mapped pack. */
#include "src/rank/packs.h"

#include "src/base/hash.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/model/pack.h"
#include "src/model/source.h"
#include "src/model/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_BYTES ((size_t)16 << 20)
#define CONFIG_NESTING 64
#define SYNTH "synth:"
#define SYNTH_SEED 1

/* Texts of a checkpoint that its packs carry, in this order; the first two must be there. */
enum { TEXT_CONFIG, TEXT_TOKENIZER, TEXT_GENERATION, TEXTS };
static const char *const text_names[TEXTS] = { "config.json", "tokenizer.json",
                                               "generation_config.json" };

/* Everything that pack_write reads a checkpoint by. */
struct checkpoint {
    const char *folder;
    bool synth;
    char *text[TEXTS];
    size_t bytes[TEXTS];
    struct blueprint plan;
    struct tokenizer *tok;
    struct source *source;
    struct pack_spec spec;
};

int packs_path(const char *folder, int rank, char path[PATH_CAP])
{
    char name[32];

    snprintf(name, sizeof(name), "rank%d.pack", rank);
    return path_join(path, PATH_CAP, folder, name);
}

/* ---- blueprint
 * --------------------------------------------------------------------------------------- */

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

/* ---- checkpoints
 * ------------------------------------------------------------------------------------- */

static void checkpoint_close(struct checkpoint *c)
{
    if (c->source)
        c->source->ops->close(c->source);
    tokenizer_close(c->tok);
    blueprint_close(&c->plan);
    for (int i = 0; i < TEXTS; i++)
        free(c->text[i]);
}

static int read_texts(struct checkpoint *c)
{
    for (int i = 0; i < TEXTS; i++) {
        size_t most = i == TEXT_TOKENIZER ? TOKENIZER_JSON_MAX : CONFIG_BYTES;
        char path[PATH_CAP];
        int r = path_join(path, sizeof(path), c->folder, text_names[i]);

        if (r < 0)
            return r;
        if (i > TEXT_TOKENIZER && access(path, F_OK) != 0)
            continue;
        r = file_read(path, most, &c->text[i], &c->bytes[i]);
        if (r < 0)
            return r;
        c->spec.blobs[i] = (struct pack_blob){ text_names[i], c->text[i], c->bytes[i] };
    }
    return 0;
}

/* What a model derives from its tokenizer while packing stands behind the texts. */
static int add_derived(struct checkpoint *c)
{
    struct model *m = c->plan.model;
    int i = 0, r;

    r = tokenizer_open(c->text[TEXT_TOKENIZER], c->bytes[TEXT_TOKENIZER], "tokenizer.json",
                       &c->tok);
    if (r < 0)
        return r;
    while (c->spec.blobs[i].name)
        i++;
    r = m->ops->derive(m, c->tok, &c->spec.blobs[i]);
    return r < 0 ? r : 0;
}

/* A made-up checkpoint is its two texts: nothing else can change. */
static int digest_texts(struct checkpoint *c)
{
    struct sha256 *s;
    int r = sha256_open(&s);

    if (r < 0)
        return r;
    sha256_add(s, SYNTH, sizeof(SYNTH));
    for (int i = 0; i < TEXTS; i++)
        if (c->text[i])
            sha256_add(s, c->text[i], c->bytes[i] + 1);
    r = sha256_end(s, c->spec.source_digest);
    sha256_close(s);
    return r;
}

/* Everything but what only writing needs. */
static int checkpoint_open(const char *model, int rank, int ranks, enum exit_step *step,
                           struct checkpoint *c)
{
    size_t prefix = strlen(SYNTH);
    int r;

    *c = (struct checkpoint){ .folder = model };
    c->synth = strncmp(model, SYNTH, prefix) == 0;
    if (c->synth)
        c->folder += prefix;
    *step = STEP_DATA;
    r = read_texts(c);
    if (r == 0)
        r = blueprint_open(c->text[TEXT_CONFIG], c->bytes[TEXT_CONFIG], NULL, true, rank, ranks,
                           1, step, &c->plan);
    if (r == 0)
        r = c->synth ? digest_texts(c) : source_digest(c->folder, c->spec.source_digest);
    if (r < 0) {
        checkpoint_close(c);
        return r;
    }
    c->spec.family = c->plan.model->ops->name;
    c->spec.parts = c->plan.part;
    c->spec.n_parts = BLUEPRINT_PARTS;
    c->spec.rank = rank;
    c->spec.ranks = ranks;
    return 0;
}

static int checkpoint_source(struct checkpoint *c)
{
    int r = add_derived(c);

    if (r < 0)
        return r;
    return c->synth ? source_synth_open(SYNTH_SEED, DTYPE_BF16, &c->source)
                    : source_hf_open(c->folder, &c->source);
}

/* Writing and reading fail in one call; only the errno tells them apart. A missing tensor is no
 * missing file. */
static int sort_out(int r, enum exit_step *step)
{
    if (r == -EACCES || r == -EPERM || r == -ENOTDIR || r == -EEXIST || r == -EISDIR)
        *step = STEP_WRITE;
    return r == -ENOENT ? -EINVAL : r;
}

int packs_write(const char *model, const char *path, int rank, int ranks, enum exit_step *step)
{
    struct checkpoint c;
    int r = checkpoint_open(model, rank, ranks, step, &c);

    if (r < 0)
        return r;
    r = checkpoint_source(&c);
    if (r == 0)
        r = sort_out(pack_write(path, &c.spec, c.source), step);
    checkpoint_close(&c);
    return r;
}

static int from_cache(const struct config *cfg, enum exit_step *step, char path[PATH_CAP])
{
    struct checkpoint c;
    int r = checkpoint_open(cfg->model, cfg->rank, cfg->ranks, step, &c);

    if (r < 0)
        return r;
    r = sort_out(pack_cached(cfg->cache, &c.spec, NULL, path), step);
    if (r == 1) {
        r = checkpoint_source(&c);
        if (r == 0)
            r = sort_out(pack_cached(cfg->cache, &c.spec, c.source, path), step);
    }
    checkpoint_close(&c);
    return r;
}

/* ---- packs
 * ------------------------------------------------------------------------------------------- */

static bool holds(const char *folder, const char *name)
{
    char path[PATH_CAP];

    return snprintf(path, sizeof(path), "%s/%s", folder, name) < (int)sizeof(path) &&
           access(path, F_OK) == 0;
}

static int check_model(const struct config *c, enum exit_step *step)
{
    *step = STEP_CONFIG;
    if (!c->model[0])
        return fail(-EINVAL, "config: model is not set");
    *step = STEP_DATA;
    if (strncmp(c->model, SYNTH, strlen(SYNTH)) != 0 && access(c->model, F_OK) != 0)
        return fail(-errno, "model %s: %s", c->model, strerror(errno));
    return 0;
}

int packs_tokenizer(const struct config *c, enum exit_step *step, struct tokenizer **out)
{
    const char *folder = c->model, *text;
    char path[PATH_CAP], *file;
    struct pack *p;
    size_t bytes;
    int r = check_model(c, step);

    if (r < 0)
        return r;
    if (strncmp(folder, SYNTH, strlen(SYNTH)) == 0)
        folder += strlen(SYNTH);
    if (!holds(folder, "rank0.pack")) {
        r = path_join(path, sizeof(path), folder, text_names[TEXT_TOKENIZER]);
        if (r == 0)
            r = file_read(path, TOKENIZER_JSON_MAX, &file, &bytes);
        if (r < 0)
            return r;
        r = tokenizer_open(file, bytes, path, out);
        free(file);
        return r;
    }
    r = packs_path(folder, 0, path);
    if (r == 0)
        r = pack_open(path, &p);
    if (r < 0)
        return r;
    if (pack_find_blob(p, text_names[TEXT_TOKENIZER], &text, &bytes) == 0)
        r = tokenizer_open(text, bytes, "tokenizer.json", out);
    else
        r = fail(-EINVAL, "pack %s: no tokenizer.json inside", path);
    pack_close(p);
    return r;
}

int packs_open(const struct config *c, enum exit_step *step, struct pack **out)
{
    char path[PATH_CAP];
    struct pack *p;
    int r = check_model(c, step);

    if (r < 0)
        return r;
    if (holds(c->model, "rank0.pack"))
        r = packs_path(c->model, c->rank, path);
    else
        r = from_cache(c, step, path);
    if (r < 0)
        return r;
    r = pack_open(path, &p);
    if (r < 0)
        return r;
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
