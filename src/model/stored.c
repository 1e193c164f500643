/* stored.c owns the way from a weight's released name to the tensors that hold it, and the words
 * with which anything else is refused. The tensors of EXL3 are stored_exl3.c's.
 */
#include "src/model/stored_parts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/log.h"

static const char *const tails[TAILS] = {
    [TAIL_WEIGHT] = "weight",
    [TAIL_TRELLIS] = "trellis",
    [TAIL_SUH] = "suh",
    [TAIL_SVH] = "svh",
    [TAIL_SU] = "su",
    [TAIL_SV] = "sv",
    [TAIL_MCG] = "mcg",
    [TAIL_MUL1] = "mul1",
    [TAIL_BIAS] = "bias",
    [TAIL_HEAD_BIAS] = "head_bias",
    [TAIL_SLICE] = "slice.0.trellis",
    [TAIL_SHARD] = "shard_0.trellis",
    [TAIL_PACKED] = "weight_packed",
    [TAIL_WEIGHT_SCALE] = "weight_scale",
    [TAIL_WEIGHT_SCALE_2] = "weight_scale_2",
    [TAIL_GLOBAL_SCALE] = "weight_global_scale",
    [TAIL_SCALE_INV] = "weight_scale_inv",
    [TAIL_SCALE] = "scale",
};

/* A format has all of need, none but need and may. No two rows match the same tensors. */
static const struct {
    unsigned need, may;
    int (*read)(struct group *g, struct stored *out);
} formats[] = {
    { BIT(TAIL_WEIGHT), 0, read_plain },
    { BIT(TAIL_TRELLIS),
      BIT(TAIL_SUH) | BIT(TAIL_SVH) | BIT(TAIL_SU) | BIT(TAIL_SV) | BIT(TAIL_MCG) | BIT(TAIL_MUL1) |
          BIT(TAIL_HEAD_BIAS),
      read_exl3 },
    { BIT(TAIL_SLICE), 0, read_exl3_slices },
    { BIT(TAIL_SHARD) | BIT(TAIL_HEAD_BIAS), 0, read_ngram_shards },
    { BIT(TAIL_PACKED) | BIT(TAIL_WEIGHT_SCALE) | BIT(TAIL_GLOBAL_SCALE), 0, read_fp4 },
    { BIT(TAIL_PACKED) | BIT(TAIL_WEIGHT_SCALE), 0, read_fp4 },
    { BIT(TAIL_WEIGHT) | BIT(TAIL_WEIGHT_SCALE) | BIT(TAIL_WEIGHT_SCALE_2), 0, read_fp4 },
    { BIT(TAIL_WEIGHT) | BIT(TAIL_SCALE), 0, read_scaled },
    { BIT(TAIL_WEIGHT) | BIT(TAIL_SCALE_INV), 0, read_scaled },
    { BIT(TAIL_WEIGHT) | BIT(TAIL_WEIGHT_SCALE), 0, read_scaled },
};

const char *dtype_name(enum dtype t)
{
    static const char *const names[DTYPE_END] = {
        [DTYPE_F32] = "f32",     [DTYPE_F16] = "f16",   [DTYPE_BF16] = "bf16",
        [DTYPE_COUNT] = "?",     [DTYPE_FP8] = "fp8",   [DTYPE_MXFP4] = "mxfp4",
        [DTYPE_NVFP4] = "nvfp4", [DTYPE_EXL3] = "exl3",
    };

    return names[t];
}

int format_unit(enum dtype dtype, const struct quant *q, int64_t rows, int64_t cols, bool of_rows)
{
    switch (dtype) {
    case DTYPE_EXL3:
        return of_rows && q->slices > 1 ? (int)(rows / q->slices) : EXL3_BLOCK;
    case DTYPE_FP8: /* one scale for all is every share's */
        return q->block >= rows && q->block >= cols ? 1 : q->block;
    case DTYPE_MXFP4:
    case DTYPE_NVFP4:
        return mat_group(dtype);
    default:
        return 1;
    }
}

/* ---- what the readers of formats share --------------------------------------------------- */

const char *group_name(const struct group *g, enum tail tail, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s%s", g->stem, g->bare ? "" : tails[tail]);
    return buf;
}

int group_find(struct group *g, enum tail tail)
{
    bool shaped = tail != TAIL_BIAS;
    char name[TENSOR_NAME_MAX + 32];
    int r = g->s->ops->find(g->s, group_name(g, tail, name, sizeof(name)), shaped ? g->rows : 0,
                            shaped ? g->cols : 0, &g->t[tail]);

    if (r == 0)
        g->have |= BIT(tail);
    return r;
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

void group_take(const struct group *g, enum tail tail, struct stored_tensor *out)
{
    out->t = g->t[tail];
    group_name(g, tail, out->name, sizeof(out->name));
}

int group_refuse(const struct group *g, enum tail tail, const char *want)
{
    char name[TENSOR_NAME_MAX + 32], shape[256];

    return fail(-EINVAL, "%s: tensor %s: type %s, shape %s, want %s", g->t[tail].file,
                group_name(g, tail, name, sizeof(name)), g->t[tail].type,
                shape_text(&g->t[tail], shape, sizeof(shape)), want);
}

bool group_is(const struct group *g, enum tail tail, const char *type, int64_t rows, int64_t cols)
{
    const struct tensor *t = &g->t[tail];

    return strcmp(t->type, type) == 0 && t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

int group_read_number(struct group *g, enum tail tail, const char *type, uint32_t *bits)
{
    char name[TENSOR_NAME_MAX + 32], want[32];

    if (strcmp(g->t[tail].type, type) != 0 || g->t[tail].elements != 1 || g->t[tail].rank > 1) {
        snprintf(want, sizeof(want), "one %s", type);
        return group_refuse(g, tail, want);
    }
    return g->s->ops->read(g->s, group_name(g, tail, name, sizeof(name)), &g->t[tail], 0, bits,
                           sizeof(*bits));
}

/* ---- plain ------------------------------------------------------------------------------- */

static int read_fused(struct group *g, struct stored *out)
{
    const struct name_place *p = g->place;
    const struct tensor *t = &g->t[TAIL_WEIGHT];
    char want[96];

    snprintf(want, sizeof(want), "[more than %d, %lld, %lld]", p->expert,
             (long long)(p->parts * g->rows), (long long)g->cols);
    if (t->rank != 3 || t->shape[0] <= p->expert || t->shape[1] != p->parts * g->rows ||
        t->shape[2] != g->cols)
        return group_refuse(g, TAIL_WEIGHT, want);
    out->first_element =
        (uint64_t)((int64_t)p->expert * p->parts + p->part) * (uint64_t)(g->rows * g->cols);
    return 0;
}

int read_plain(struct group *g, struct stored *out)
{
    const struct tensor *t = &g->t[TAIL_WEIGHT];
    char want[96], name[TENSOR_NAME_MAX + 32];

    if (t->dtype >= DTYPE_COUNT)
        return fail(-EINVAL,
                    "%s: tensor %s: type %s is not supported without a scale; F32, F16 "
                    "and BF16 are",
                    t->file, group_name(g, TAIL_WEIGHT, name, sizeof(name)), t->type);
    out->dtype = t->dtype;
    group_take(g, TAIL_WEIGHT, &out->slice[0].codes);
    if (g->place->fused)
        return read_fused(g, out);
    if (g->cols == 1) {
        snprintf(want, sizeof(want), "%lld values", (long long)g->rows);
        return t->elements == (uint64_t)g->rows ? 0 : group_refuse(g, TAIL_WEIGHT, want);
    }
    snprintf(want, sizeof(want), "[%lld, %lld]", (long long)g->rows, (long long)g->cols);
    if (t->rank != 2 || t->shape[0] != g->rows || t->shape[1] != g->cols)
        return group_refuse(g, TAIL_WEIGHT, want);
    return 0;
}

/* ---- FP8, FP4 ---------------------------------------------------------------------------- */

static bool is_grid(const struct tensor *t, int64_t rows, int64_t cols, int64_t block)
{
    return t->shape[0] == (rows + block - 1) / block && t->shape[1] == (cols + block - 1) / block;
}

/* The block whose grid the scales are: the config's, else the one of the common sizes that fits. */
static int read_block(struct group *g, enum tail scale, int *block)
{
    static const int common[] = { 32, 128 };
    const struct tensor *t = &g->t[scale];
    char want[128];
    int found = 0;

    if (t->elements == 1 && t->rank <= 2) {
        *block = (int)mat_round_up((size_t)(g->rows > g->cols ? g->rows : g->cols), MAT_TILE);
        return 0;
    }
    if (g->s->quant.block) {
        snprintf(want, sizeof(want), "a scale for blocks of %d of [%lld, %lld]", g->s->quant.block,
                 (long long)g->rows, (long long)g->cols);
        *block = g->s->quant.block;
        return t->rank == 2 && is_grid(t, g->rows, g->cols, *block) ? 0
                                                                    : group_refuse(g, scale, want);
    }
    for (int i = 0; t->rank == 2 && i < 2; i++)
        if (is_grid(t, g->rows, g->cols, common[i])) {
            *block = common[i];
            found++;
        }
    if (found == 1)
        return 0;
    snprintf(want, sizeof(want),
             "a scale for blocks of 32 or 128 of [%lld, %lld], or weight_block_size in the config",
             (long long)g->rows, (long long)g->cols);
    return group_refuse(g, scale, want);
}

/* Rows of a lookup table: a scale for 32 values of a row. */
static int read_rows(struct group *g, enum tail scale, struct stored *out)
{
    char want[96];

    snprintf(want, sizeof(want), "F8_E8M0 [%lld, %lld]", (long long)g->rows,
             (long long)(g->cols / 32));
    if (g->cols % 32 != 0 || !group_is(g, scale, "F8_E8M0", g->rows, g->cols / 32))
        return group_refuse(g, scale, want);
    out->q.e8m0 = 1;
    out->q.block = 32;
    return 0;
}

static int read_fp8(struct group *g, enum tail scale, struct stored *out)
{
    const struct tensor *t = &g->t[scale];
    char want[96];

    snprintf(want, sizeof(want), "F8_E4M3 [%lld, %lld]", (long long)g->rows, (long long)g->cols);
    if (!group_is(g, TAIL_WEIGHT, "F8_E4M3", g->rows, g->cols))
        return group_refuse(g, TAIL_WEIGHT, want);
    out->dtype = DTYPE_FP8;
    group_take(g, TAIL_WEIGHT, &out->slice[0].codes);
    group_take(g, scale, &out->scale);
    if (g->as == STORED_ROWS)
        return read_rows(g, scale, out);
    out->q.e8m0 = strcmp(t->type, "F8_E8M0") == 0;
    if (!out->q.e8m0 && t->dtype >= DTYPE_COUNT)
        return group_refuse(g, scale, "scales of type F32, BF16, F16 or F8_E8M0");
    return read_block(g, scale, &out->q.block);
}

int read_scaled(struct group *g, struct stored *out)
{
    enum tail scale = g->have & BIT(TAIL_SCALE)       ? TAIL_SCALE
                      : g->have & BIT(TAIL_SCALE_INV) ? TAIL_SCALE_INV
                                                      : TAIL_WEIGHT_SCALE;
    const char *type = g->t[TAIL_WEIGHT].type;
    char name[TENSOR_NAME_MAX + 32];

    if (scale == TAIL_SCALE && (strcmp(type, "I8") == 0 || strcmp(type, "U8") == 0))
        return read_fp4(g, out);
    if (g->t[TAIL_WEIGHT].dtype < DTYPE_COUNT)
        return fail(-EINVAL, "%s: tensor %s beside a plain weight of type %s", g->t[scale].file,
                    group_name(g, scale, name, sizeof(name)), type);
    return read_fp8(g, scale, out);
}

static int read_global(struct group *g, enum tail tail, struct stored *out)
{
    char name[TENSOR_NAME_MAX + 32];
    uint32_t bits;
    float v;
    int r = group_read_number(g, tail, "F32", &bits);

    if (r < 0)
        return r;
    memcpy(&v, &bits, sizeof(v));
    group_name(g, tail, name, sizeof(name));
    if (!isfinite(v) || v <= 0)
        return fail(-EINVAL, "%s: tensor %s: global scale %g, want a number above 0",
                    g->t[tail].file, name, (double)v);
    /* One style stores the inverse of the other: about amax / 2688, or 2688 / amax. */
    if (tail == TAIL_GLOBAL_SCALE ? v < 1 : v > 1)
        log_warn("%s: tensor %s: global scale %g looks like that of the other naming style",
                 g->t[tail].file, name, (double)v);
    out->q.divides = tail == TAIL_GLOBAL_SCALE;
    out->q.global = v;
    return 0;
}

int read_fp4(struct group *g, struct stored *out)
{
    enum tail codes = g->have & BIT(TAIL_PACKED) ? TAIL_PACKED : TAIL_WEIGHT;
    enum tail scale = g->have & BIT(TAIL_SCALE) ? TAIL_SCALE : TAIL_WEIGHT_SCALE;
    unsigned globals = g->have & (BIT(TAIL_GLOBAL_SCALE) | BIT(TAIL_WEIGHT_SCALE_2));
    int64_t group = globals ? 16 : 32;
    bool is_fp4 =
        g->cols % group == 0 &&
        (group_is(g, codes, "U8", g->rows, g->cols / 2) ||
         (codes == TAIL_WEIGHT && !globals && group_is(g, codes, "I8", g->rows, g->cols / 2)));
    char want[128];

    snprintf(want, sizeof(want), "U8 [%lld, %lld] with %lld values of a scale", (long long)g->rows,
             (long long)(g->cols / 2), (long long)group);
    if (!is_fp4)
        return group_refuse(g, codes, want);
    out->dtype = globals ? DTYPE_NVFP4 : DTYPE_MXFP4;
    group_take(g, codes, &out->slice[0].codes);
    group_take(g, scale, &out->scale);
    snprintf(want, sizeof(want), "%s [%lld, %lld]", globals ? "F8_E4M3" : "F8_E8M0",
             (long long)g->rows, (long long)(g->cols / group));
    if (!group_is(g, scale, globals ? "F8_E4M3" : "F8_E8M0", g->rows, g->cols / group) &&
        (codes != TAIL_PACKED || globals || !group_is(g, scale, "U8", g->rows, g->cols / group)))
        return group_refuse(g, scale, want);
    if (!globals)
        return 0;
    return read_global(
        g, globals & BIT(TAIL_GLOBAL_SCALE) ? TAIL_GLOBAL_SCALE : TAIL_WEIGHT_SCALE_2, out);
}

/* ---- places ------------------------------------------------------------------------------ */

/* Look up everything that may belong to a place's module. */
static int gather(struct group *g)
{
    size_t len = strlen(g->place->name);

    g->have = 0;
    g->bare = len < 8 || strcmp(g->place->name + len - 7, ".weight") != 0;
    snprintf(g->stem, sizeof(g->stem), "%.*s", (int)(g->bare ? len : len - 6), g->place->name);
    for (enum tail i = 0; i < (g->bare ? 1 : TAILS); i++) {
        int r = group_find(g, i);

        if (r < 0)
            return r;
    }
    return 0;
}

/* A bias may be a weight of its own: it says nothing about the format. */
static unsigned parts_of(const struct group *g)
{
    return g->have & ~BIT(TAIL_BIAS);
}

static int refuse_set(const struct group *g)
{
    char list[256] = "";
    const char *file = NULL;

    for (enum tail i = 0; i < TAILS; i++)
        if (parts_of(g) & BIT(i)) {
            size_t at = strlen(list);

            snprintf(list + at, sizeof(list) - at, "%s%s", at ? ", " : "", tails[i]);
            file = g->t[i].file;
        }
    return fail(-EINVAL,
                "%s: tensors %s{%s} are no format: parts of more than one, or some without the "
                "rest",
                file, g->stem, list);
}

static int allowed(const struct group *g, const struct stored *w)
{
    if (w->dtype < DTYPE_COUNT || g->as == STORED_MAT)
        return 0;
    if (g->as == STORED_ROWS && (w->dtype == DTYPE_FP8 || w->dtype == DTYPE_EXL3))
        return 0;
    return fail(-EINVAL, "%s: tensor %s: %s, which is not supported for a %s",
                w->slice[0].codes.t.file, w->slice[0].codes.name, dtype_name(w->dtype),
                g->as == STORED_ROWS ? "lookup table" : "table or a vector");
}

/* 1 if the place holds nothing. */
static int read_place(struct group *g, struct stored *out)
{
    const struct group whole = *g; /* readers may go on to groups inside it */
    unsigned parts = parts_of(g);
    int r;

    if (parts == 0)
        return 1;
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if ((parts & formats[i].need) != formats[i].need ||
            (parts & ~(formats[i].need | formats[i].may)) != 0)
            continue;
        *out = (struct stored){
            .rows = g->rows, .cols = g->cols, .n = g->rows, .k = g->cols, .slices = 1
        };
        r = formats[i].read(g, out);
        if (r == 0 && whole.have & BIT(TAIL_BIAS) &&
            !(out->q.has_bias && parts & BIT(TAIL_TRELLIS)))
            group_take(&whole, TAIL_BIAS, &out->beside);
        return r < 0 ? r : allowed(g, out);
    }
    return refuse_set(g);
}

/* One of several numbered tables, told apart by their shapes, or a plain tensor where only a
 * quantised one counts. */
static bool is_other(const struct group *g)
{
    const struct tensor *t = &g->t[TAIL_WEIGHT];

    if (g->place->quantised)
        return parts_of(g) == BIT(TAIL_WEIGHT);
    return g->place->by_shape && g->have & BIT(TAIL_WEIGHT) &&
           (t->rank != 2 || t->shape[0] != g->rows || t->shape[1] != g->cols);
}

/* A second name of a weight that is found already. Sources that make tensors up have none: they
 * know no tensor of unknown shape. */
static int check_second(struct group *g, const struct name_place *found)
{
    int64_t rows = g->rows, cols = g->cols;
    int r;

    if (g->place->by_shape)
        return 0;
    g->rows = g->cols = 0;
    r = gather(g);
    g->rows = rows;
    g->cols = cols;
    if (r < 0 || parts_of(g) == 0)
        return r;
    return fail(-EINVAL, "tensor %s: %s is there too, one name of a weight is enough", found->name,
                g->place->name);
}

int source_stored(struct source *s, const char *released, enum stored_as as, int64_t rows,
                  int64_t cols, struct stored *out)
{
    struct name_place places[PLACES_MAX], *found = NULL;
    struct group g = { .s = s, .as = as, .rows = rows, .cols = cols };
    int n = name_places(released, places), r;

    for (int i = 0; i < n && !(found && found->quantised); i++) {
        g.place = &places[i];
        if (found) {
            r = check_second(&g, found);
        } else {
            r = gather(&g);
            if (r == 0)
                r = is_other(&g) ? 1 : read_place(&g, out);
            if (r == 0)
                found = &places[i];
        }
        if (r < 0)
            return r;
    }
    return found ? 0 : 1;
}
