/* pack_plan.c owns what a pack will hold before its first byte is written: the weights of a walk,
 * their formats in a source, shares that respect both, and the place of each.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/model/pack_file.h"
#include "src/model/source.h"

/* ---- plan ----------------------------------------------------------------------------- */

struct plan {
    struct walk w;
    struct pack_toc *toc;
    size_t cap;
    struct sha256 *digest;
};

/* What is equal on all ranks: not the share, but all that the shares follow from. */
static void digest_weight(struct sha256 *s, const struct weight *d)
{
    sha256_add_u64(s, strlen(d->name));
    sha256_add(s, d->name, strlen(d->name));
    sha256_add_u64(s, d->kind);
    sha256_add_u64(s, d->rows);
    sha256_add_u64(s, d->cols);
    sha256_add_u64(s, d->shard);
    sha256_add_u64(s, d->unit);
    sha256_add_u64(s, d->columns);
    for (int i = 0; i < d->columns; i++)
        sha256_add_u64(s, d->prime[i]);
}

static int plan_visit(struct walk *walk, const struct weight *d, void *target)
{
    struct plan *p = (struct plan *)walk;
    struct pack_toc *t = p->toc;
    struct pack_weight *w;

    if (t->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 1024;

        w = realloc(t->weight, cap * sizeof(*w));
        if (!w)
            return fail(-ENOMEM, "%s: no memory for %zu weights", d->name, cap);
        t->weight = w;
        p->cap = cap;
    }
    w = &t->weight[t->n++];
    *w = (struct pack_weight){ .d = *d };
    digest_weight(p->digest, d);
    if (d->kind != WEIGHT_ROWS)
        return 0;
    w->column_rows = calloc((size_t)d->count + 1, sizeof(*w->column_rows));
    if (!w->column_rows)
        return fail(-ENOMEM, "%s: no memory for %lld columns", d->name, (long long)d->count);
    for (int64_t i = 0; i < d->count; i++)
        w->column_rows[i] = d->prime[d->first + i];
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct pack_toc *t)
{
    const char **name = calloc(t->n + 1, sizeof(*name));
    int r = 0;

    if (!name)
        return fail(-ENOMEM, "pack: no memory for %zu names", t->n);
    for (size_t i = 0; i < t->n; i++)
        name[i] = t->weight[i].d.name;
    qsort(name, t->n, sizeof(*name), by_name);
    for (size_t i = 1; i < t->n && r == 0; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            r = fail(-EINVAL, "%s: the walk names two weights so", name[i]);
    free(name);
    return r;
}

static int copy_blobs(const struct pack_spec *spec, struct pack_toc *t)
{
    for (int i = 0; i < PACK_BLOBS_MAX; i++) {
        const struct pack_blob *b = &spec->blobs[i];
        char *data, *name;

        if (!b->name)
            continue;
        for (int j = 0; j < t->n_blobs; j++)
            if (strcmp(t->blob[j].name, b->name) == 0)
                return fail(-EINVAL, "pack: two blobs named %s", b->name);
        data = malloc(b->bytes + 1);
        name = strdup(b->name);
        t->blob[t->n_blobs++] = (struct pack_blob){ name, data, b->bytes };
        if (!data || !name)
            return fail(-ENOMEM, "pack: no memory for %s, %zu bytes", b->name, b->bytes);
        if (b->bytes > 0)
            memcpy(data, b->data, b->bytes);
        data[b->bytes] = 0;
    }
    return 0;
}

int pack_plan(const struct pack_spec *spec, int width_unit, struct pack_toc *out)
{
    struct pack_toc t = { .rank = spec->rank,
                          .ranks = spec->ranks,
                          .width_unit = width_unit,
                          .layouts = spec->layouts ? spec->layouts : PACK_CPU,
                          .whole_experts = spec->whole_experts };
    struct plan p = { .w = { .visit = plan_visit,
                             .rank = spec->rank,
                             .ranks = spec->ranks,
                             .width_unit = width_unit,
                             .whole_experts = spec->whole_experts },
                      .toc = &t };
    int r;

    if (spec->ranks < 1 || spec->ranks > RANKS_MAX || spec->rank < 0 || spec->rank >= spec->ranks)
        return fail(-EINVAL, "pack: rank %d of %d", spec->rank, spec->ranks);
    memcpy(t.source_digest, spec->source_digest, SHA256_BYTES);
    r = sha256_open(&p.digest);
    if (r < 0)
        return r;
    sha256_add_u64(p.digest, spec->whole_experts);
    t.family = strdup(spec->family);
    r = t.family ? copy_blobs(spec, &t) : fail(-ENOMEM, "pack: no memory");
    if (r == 0)
        r = walk_parts(&p.w, spec->parts, spec->n_parts);
    if (r == 0)
        r = check_names(&t);
    if (r == 0)
        r = sha256_end(p.digest, t.walk_digest);
    sha256_close(p.digest);
    if (r < 0) {
        pack_toc_free(&t);
        return r;
    }
    *out = t;
    return 0;
}

/* ---- formats ----------------------------------------------------------------------------- */

int pack_find_stored(struct source *src, const struct pack_weight *w, struct stored *out)
{
    static const enum stored_as as[] = { [WEIGHT_MAT] = STORED_MAT,
                                         [WEIGHT_TABLE] = STORED_PLAIN,
                                         [WEIGHT_VEC] = STORED_PLAIN,
                                         [WEIGHT_ROWS] = STORED_ROWS };
    int r = source_stored(src, w->d.name, as[w->d.kind], w->d.rows, w->d.cols, out);

    if (r == 1)
        return fail(-ENOENT, "%s: not in the checkpoint under any known name%s", w->d.name,
                    w->d.kind == WEIGHT_ROWS ? "; pack --extra FILE takes it from another" : "");
    if (r == 0 && w->d.kind == WEIGHT_ROWS && out->dtype == DTYPE_EXL3 &&
        out->slice[0].bias.t.shape[0] != w->d.columns)
        return fail(-EINVAL, "%s: tensor %s: biases of %lld heads, want %d",
                    out->slice[0].bias.t.file, out->slice[0].bias.name,
                    (long long)out->slice[0].bias.t.shape[0], w->d.columns);
    return r;
}

/* The hashes of codes that a device can make, of all slices. */
static int find_made(struct source *src, const struct stored *stored, struct pack_weight *w)
{
    int n = stored->slices > 1 ? stored->slices : 1;
    uint64_t *made;

    if (w->d.kind != WEIGHT_MAT || w->dtype != DTYPE_EXL3)
        return 0;
    made = calloc((size_t)n, sizeof(*made));
    if (!made)
        return fail(-ENOMEM, "%s: no memory", w->d.name);
    w->made = made;
    w->made_cols = stored->n / EXL3_BLOCK * (EXL3_BLOCK / MAT_TILE);
    for (w->n_made = 0; w->n_made < n; w->n_made++)
        if (source_synth_hash(src, stored->slice[w->n_made].codes.name, &made[w->n_made]) != 0)
            return fail(-EINVAL, "%s: only made-up weights can be left out", w->d.name);
    return 0;
}

static bool walks(const struct pack_toc *t, const char *module, size_t bytes, const char *tail)
{
    for (size_t i = 0; i < t->n; i++)
        if (strncmp(t->weight[i].d.name, module, bytes) == 0 &&
            strcmp(t->weight[i].d.name + bytes, tail) == 0)
            return true;
    return false;
}

int pack_check_bias(const struct pack_toc *t, const struct pack_weight *w,
                    const struct stored *stored)
{
    const struct stored_tensor *extra = NULL;
    bool has = stored->beside.name[0], walked = false;

    if (has || stored->q.has_bias)
        walked = walks(t, w->d.name, strlen(w->d.name) - strlen("weight"), "bias");
    if (has && !walked)
        extra = &stored->beside;
    else if (stored->q.has_bias && walked)
        extra = &stored->slice[0].bias;
    return !extra ? 0
                  : fail(-EINVAL, "%s: tensor %s: a bias that this model does not add",
                         extra->t.file, extra->name);
}

/* Type and quant of every weight, as the checkpoint has it; the width unit that they ask for. */
static int find_formats(const struct pack_spec *spec, struct source *src, struct pack_toc *t,
                        int *width_unit)
{
    int64_t unit = 1;

    for (size_t i = 0; i < t->n; i++) {
        struct pack_weight *w = &t->weight[i];
        struct stored stored;
        int r = pack_find_stored(src, w, &stored), one;

        if (r == 0)
            r = pack_check_bias(t, w, &stored);
        if (r < 0)
            return r;
        w->dtype = w->d.kind == WEIGHT_VEC ? DTYPE_F32 : stored.dtype;
        w->q = stored.q;
        r = spec->hollow ? find_made(src, &stored, w) : 0;
        if (r < 0)
            return r;
        if (w->d.kind != WEIGHT_MAT || w->d.shard == SHARD_NONE || w->d.unit != 1)
            continue;
        one = format_unit(w->dtype, &w->q, w->d.rows, w->d.cols, false);
        for (int64_t step = unit; unit % one != 0 && unit <= WIDTH_UNIT_MAX;)
            unit += step;
        if (unit > WIDTH_UNIT_MAX)
            return fail(-EINVAL, "%s: blocks of %d do not go with those of other weights",
                        w->d.name, one);
    }
    *width_unit = (int)unit;
    return 0;
}

/* The same weights with shares that respect the formats. */
static int plan_again(const struct pack_spec *spec, int width_unit, struct pack_toc *t)
{
    struct pack_toc again;
    int r = pack_plan(spec, width_unit, &again);

    if (r < 0)
        return r;
    for (size_t i = 0; i < t->n; i++) {
        again.weight[i].dtype = t->weight[i].dtype;
        again.weight[i].q = t->weight[i].q;
        again.weight[i].made = t->weight[i].made;
        again.weight[i].n_made = t->weight[i].n_made;
        again.weight[i].made_cols = t->weight[i].made_cols;
        t->weight[i].made = NULL;
    }
    pack_toc_free(t);
    *t = again;
    return 0;
}

/* What the share makes of a weight's quant; the model's own units may cut a block. */
static int fit_share(struct pack_weight *w)
{
    struct weight *d = &w->d;
    int64_t whole = d->shard == SHARD_ROWS ? d->rows : d->cols;
    int unit = format_unit(w->dtype, &w->q, d->rows, d->cols, d->shard == SHARD_ROWS);

    if (d->kind != WEIGHT_MAT || w->dtype < DTYPE_COUNT)
        return 0;
    if (d->shard != SHARD_NONE && d->count > 0 &&
        (d->first % unit != 0 || (d->count % unit != 0 && d->first + d->count != whole)))
        return fail(-EINVAL,
                    "%s: the share of %s from %lld, %lld of %lld cuts a block of %d, %s cannot",
                    d->name, d->shard == SHARD_ROWS ? "rows" : "columns", (long long)d->first,
                    (long long)d->count, (long long)whole, unit, dtype_name(w->dtype));
    if (w->n_made == 1 && d->shard == SHARD_ROWS)
        w->made_col = d->first / MAT_TILE;
    if (w->q.slices > 1 && d->shard == SHARD_ROWS) {
        int64_t slice = d->rows / w->q.slices;

        w->q.slices = (int)(d->count / slice);
        if (w->n_made > 0) {
            w->n_made = w->q.slices;
            memmove(w->made, w->made + d->first / slice, (size_t)w->n_made * sizeof(*w->made));
        }
        w->q.slices = w->q.slices > 1 ? w->q.slices : 0;
    }
    if (d->count == 0 || (d->shard == SHARD_COLS && d->first > 0))
        w->q.has_bias = 0;
    if (d->count == 0)
        w->n_made = 0;
    return 0;
}

/* Quantised matrices for the layouts that are wanted; one that is wanted in both stands twice. */
static int set_layouts(struct pack_toc *t)
{
    struct pack_weight *all;
    size_t n = 0;

    if (t->layouts != PACK_BOTH) {
        for (size_t i = 0; i < t->n; i++)
            if (t->weight[i].d.kind == WEIGHT_MAT && t->weight[i].dtype > DTYPE_COUNT)
                t->weight[i].q.layout = t->layouts == PACK_DEVICE ? LAYOUT_DEVICE : LAYOUT_CPU;
        return 0;
    }
    all = calloc(2 * t->n + 1, sizeof(*all));
    if (!all)
        return fail(-ENOMEM, "pack: no memory for %zu weights", 2 * t->n);
    for (size_t i = 0; i < t->n; i++) {
        all[n++] = t->weight[i];
        if (t->weight[i].d.kind != WEIGHT_MAT || t->weight[i].dtype < DTYPE_COUNT)
            continue;
        all[n] = t->weight[i];
        all[n++].q.layout = LAYOUT_DEVICE;
    }
    free(t->weight);
    t->weight = all;
    t->n = n;
    return 0;
}

/* Where the rows lie that stay in the source's files. */
static int set_links(struct source *src, struct pack_toc *t)
{
    int r = 0;

    for (size_t i = 0; i < t->n && r == 0; i++) {
        struct stored stored;

        if (t->weight[i].d.kind != WEIGHT_ROWS)
            continue;
        r = pack_find_stored(src, &t->weight[i], &stored);
        if (r == 0)
            r = pack_link_make(&t->weight[i], &stored);
    }
    return r;
}

int pack_lay_out(const struct pack_spec *spec, struct source *src, struct pack_toc *t,
                 uint64_t *end, uint64_t *total)
{
    uint64_t at = sizeof(struct pack_header), sum = 0;
    int unit, r = find_formats(spec, src, t, &unit);

    if (r == 0 && unit != t->width_unit)
        r = plan_again(spec, unit, t);
    for (size_t i = 0; r == 0 && i < t->n; i++)
        r = fit_share(&t->weight[i]);
    if (r == 0)
        r = set_layouts(t);
    if (r == 0 && spec->link_rows)
        r = set_links(src, t);
    if (r < 0)
        return r;
    for (size_t i = 0; i < t->n; i++) {
        struct pack_weight *w = &t->weight[i];

        w->offset = pack_align(at);
        if (pack_share_bytes(w, &w->bytes) < 0 || w->bytes > INT64_MAX / 2 - w->offset)
            return fail(-EINVAL, "%s: more than 2^62 bytes", w->d.name);
        at = w->offset + w->bytes;
        sum += w->bytes;
    }
    *end = pack_align(at);
    *total = sum;
    return 0;
}
