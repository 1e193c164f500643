/* convert.c owns the making of a checkpoint folder: which tensors it has, in which file and where,
 * and the order in which they are filled.
 */
#include "src/model/convert.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "src/base/log.h"
#include "src/model/convert_folder.h"
#include "src/model/convert_parts.h"
#include "src/model/pack_file.h"
#include "src/model/source.h"
#include "src/model/stored.h"

#define COPY_BYTES ((size_t)4 << 20)

/* A weight that is encoded, or a tensor that is copied. */
struct job {
    enum dtype dtype; /* of the new weight; plain: copied */
    struct quant q;
    bool rows_of_table;
    struct stored_tensor from;
    uint64_t first; /* bytes of from before it */
    int64_t rows, cols;
    size_t codes, scale, global; /* index of the new tensors; SIZE_MAX: none */
};

struct conversion {
    const struct convert_spec *spec;
    struct source *src;
    struct folder out;
    struct job *job;
    size_t n, cap;
};

int convert_check(const struct scheme *s)
{
    if (s->dtype > DTYPE_COUNT && s->dtype != DTYPE_EXL3)
        return 0;
    return fail(-EINVAL,
                "convert: there is no encoder for %s: fp8, fp8-128, fp8-mxfp4, mxfp4, "
                "nvfp4 and nvfp4-ct have one",
                s->name);
}

static int add_job(struct conversion *c, const struct job *j)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 1024;
        struct job *job = realloc(c->job, cap * sizeof(*job));

        if (!job)
            return fail(-ENOMEM, "convert: no memory for %zu weights", cap);
        c->job = job;
        c->cap = cap;
    }
    c->job[c->n++] = *j;
    return 0;
}

/* ---- plan -------------------------------------------------------------------------------- */

static int add(struct conversion *c, const char *released, const char *tail, const char *type,
               int each, int rank, int64_t a, int64_t b, size_t *index)
{
    char name[WEIGHT_NAME_MAX + 32];
    int64_t shape[2] = { a, b };

    snprintf(name, sizeof(name), "%.*s%s", (int)(strlen(released) - strlen("weight")), released,
             tail);
    return folder_add(&c->out, name, type, each, rank, shape, index);
}

static int plan_fp8(struct conversion *c, const char *name, struct job *j)
{
    int64_t block = j->q.block, tall = j->rows_of_table ? j->rows : (j->rows + block - 1) / block;
    int r = add(c, name, "weight", "F8_E4M3", 1, 2, j->rows, j->cols, &j->codes);

    if (r < 0)
        return r;
    return add(c, name, j->q.e8m0 ? "scale" : "weight_scale_inv", j->q.e8m0 ? "F8_E8M0" : "F32",
               j->q.e8m0 ? 1 : 4, 2, tall, (j->cols + block - 1) / block, &j->scale);
}

static int plan_fp4(struct conversion *c, const char *name, struct job *j)
{
    bool nv = j->dtype == DTYPE_NVFP4, ct = j->q.divides;
    int r = add(c, name, ct ? "weight_packed" : "weight", nv ? "U8" : "I8", 1, 2, j->rows,
                j->cols / 2, &j->codes);

    if (r == 0)
        r = add(c, name, nv ? "weight_scale" : "scale", nv ? "F8_E4M3" : "F8_E8M0", 1, 2, j->rows,
                j->cols / mat_group(j->dtype), &j->scale);
    if (r == 0 && nv)
        r = add(c, name, ct ? "weight_global_scale" : "weight_scale_2", "F32", 4, 1, 1, 0,
                &j->global);
    return r;
}

/* A plain weight that stays as it is, in the shape it has unless it is a slice of a fused
 * tensor. */
static int plan_copy(struct conversion *c, const char *name, const struct stored *w, struct job *j)
{
    const struct tensor *t = &j->from.t;
    int64_t sliced[] = { w->rows, w->cols };
    bool whole = t->elements == (uint64_t)w->rows * (uint64_t)w->cols;

    j->dtype = w->dtype;
    return folder_add(&c->out, name, t->type, t->each, whole ? t->rank : 2,
                      whole ? t->shape : sliced, &j->codes);
}

static int plan_weight(struct conversion *c, const struct pack_toc *t, const struct pack_weight *w)
{
    struct stored stored;
    struct job j = { .rows = w->d.rows,
                     .cols = w->d.cols,
                     .rows_of_table = w->d.kind == WEIGHT_ROWS,
                     .scale = SIZE_MAX,
                     .global = SIZE_MAX };
    bool may = w->d.kind == WEIGHT_MAT || w->d.kind == WEIGHT_ROWS;
    int r = pack_find_stored(c->src, w, &stored);

    if (r == 0)
        r = pack_check_bias(t, w, &stored);
    if (r < 0)
        return r;
    if (stored.dtype > DTYPE_COUNT)
        return fail(-EINVAL, "%s: tensor %s: %s already, only plain weights are converted",
                    stored.slice[0].codes.t.file, stored.slice[0].codes.name,
                    dtype_name(stored.dtype));
    if (strchr(w->d.name, '#')) /* another use of a tensor that is written for the first */
        return 0;
    j.from = stored.slice[0].codes;
    j.first = stored.first_element * dtype_bytes(stored.dtype);
    j.dtype = scheme_format(&c->spec->scheme, w->d.name, w->d.rows, w->d.cols, &j.q);
    if (!may || j.dtype < DTYPE_COUNT)
        r = plan_copy(c, w->d.name, &stored, &j);
    else if (j.dtype == DTYPE_FP8)
        r = plan_fp8(c, w->d.name, &j);
    else
        r = plan_fp4(c, w->d.name, &j);
    return r < 0 ? r : add_job(c, &j);
}

struct unused {
    struct conversion *c;
    int err;
};

static void plan_unused(void *arg, const char *name)
{
    struct unused *u = arg;
    struct job j = { .scale = SIZE_MAX, .global = SIZE_MAX };
    int r;

    if (u->err < 0)
        return;
    if (strlen(name) >= sizeof(j.from.name)) {
        u->err = fail(-EINVAL, "tensor %.64s...: name too long", name);
        return;
    }
    strcpy(j.from.name, name);
    r = u->c->src->ops->find(u->c->src, name, 0, 0, &j.from.t);
    if (r == 0) {
        j.rows = (int64_t)j.from.t.elements;
        j.cols = 1;
        r = folder_add(&u->c->out, name, j.from.t.type, j.from.t.each, j.from.t.rank,
                       j.from.t.shape, &j.codes);
    }
    if (r == 0)
        r = add_job(u->c, &j);
    u->err = r < 0 ? r : 0;
}

/* Every weight of the walk, then what else the checkpoint has. */
static int plan(struct conversion *c)
{
    struct pack_spec spec = {
        .family = "", .parts = c->spec->parts, .n_parts = c->spec->n_parts, .ranks = 1
    };
    struct unused u = { .c = c };
    struct pack_toc t;
    int r = pack_plan(&spec, 1, &t);

    if (r < 0)
        return r;
    for (size_t i = 0; i < t.n && r == 0; i++)
        r = plan_weight(c, &t, &t.weight[i]);
    pack_toc_free(&t);
    if (r < 0)
        return r;
    c->src->ops->unused(c->src, plan_unused, &u);
    return u.err;
}

/* ---- filling ----------------------------------------------------------------------------- */

static int read_from(struct conversion *c, const struct job *j, uint64_t at, void *out,
                     size_t bytes)
{
    if (c->spec->stop && *c->spec->stop)
        return fail(-EINTR, "convert: interrupted, %s is not made", c->spec->folder);
    return c->src->ops->read(c->src, j->from.name, &j->from.t, at, out, bytes);
}

static int read_values(struct conversion *c, const struct job *j, int64_t row, int64_t rows,
                       void *raw, float *out)
{
    enum dtype t = j->from.t.dtype;
    size_t n = (size_t)(rows * j->cols), each = dtype_bytes(t);
    uint64_t at = j->first + (uint64_t)(row * j->cols) * each;
    int r = read_from(c, j, at, raw, n * each);

    if (r < 0)
        return r;
    f32_widen(t, raw, n, out);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return fail(-EINVAL, "%s: tensor %s: element %llu is not finite", j->from.t.file,
                        j->from.name, (unsigned long long)(at / each + i));
    return 0;
}

static int copy(struct conversion *c, const struct job *j)
{
    uint64_t bytes = folder_bytes(&c->out, j->codes);
    void *buf = malloc(COPY_BYTES);
    int r = buf ? 0 : fail(-ENOMEM, "convert: no memory");

    for (uint64_t done = 0; done < bytes && r == 0;) {
        size_t n = bytes - done < COPY_BYTES ? (size_t)(bytes - done) : COPY_BYTES;

        r = read_from(c, j, j->first + done, buf, n);
        if (r == 0)
            r = folder_write(&c->out, j->codes, done, buf, n);
        done += n;
    }
    free(buf);
    return r;
}

/* Memory of a band of rows: as read, as values, as codes and scales. */
struct band {
    void *raw;
    float *v;
    unsigned char *code, *scale;
};

static int band_open(struct band *b, int64_t rows, int64_t cols)
{
    size_t n = (size_t)rows * (size_t)cols;

    b->raw = malloc(n * 4);
    b->v = malloc(n * 4);
    b->code = malloc(n);
    b->scale = malloc(n / 4 + 64);
    if (b->raw && b->v && b->code && b->scale)
        return 0;
    return fail(-ENOMEM, "convert: no memory for %lld rows of %lld values", (long long)rows,
                (long long)cols);
}

static void band_close(struct band *b)
{
    free(b->raw);
    free(b->v);
    free(b->code);
    free(b->scale);
}

/* The scale for the whole matrix needs a pass of its own. */
static int find_global(struct conversion *c, const struct job *j, struct band *b, float *out)
{
    float most = 0;

    for (int64_t i = 0; i < j->rows; i++) {
        int r = read_values(c, j, i, 1, b->raw, b->v);

        if (r < 0)
            return r;
        most = fmaxf(most, encode_largest(b->v, j->cols));
    }
    /* One style stores its inverse, which has to be a number too. */
    *out = most > 0 ? fmaxf(most / (6.0f * 448.0f), 0x1p-126f) : 1;
    return 0;
}

static int encode_band(struct conversion *c, const struct job *j, struct band *b, int64_t row,
                       int64_t rows, float global)
{
    int64_t code_bytes = j->dtype == DTYPE_FP8 ? j->cols : j->cols / 2;
    int64_t scale_rows = rows, scale_bytes;
    int r = read_values(c, j, row, rows, b->raw, b->v);

    if (r < 0)
        return r;
    if (j->dtype == DTYPE_FP8) {
        scale_bytes = (j->cols + j->q.block - 1) / j->q.block * (j->q.e8m0 ? 1 : 4);
        scale_rows = j->rows_of_table ? rows : 1;
        for (int64_t i = 0; i < scale_rows; i++)
            encode_fp8(b->v + i * j->cols, j->rows_of_table ? 1 : rows, j->cols, j->q.block,
                       j->q.e8m0, b->code + i * j->cols, b->scale + i * scale_bytes);
    } else {
        scale_bytes = j->cols / mat_group(j->dtype);
        for (int64_t i = 0; i < rows; i++)
            if (j->dtype == DTYPE_MXFP4)
                encode_mxfp4(b->v + i * j->cols, j->cols, b->code + i * code_bytes,
                             b->scale + i * scale_bytes);
            else
                encode_nvfp4(b->v + i * j->cols, j->cols, global, b->code + i * code_bytes,
                             b->scale + i * scale_bytes);
    }
    r = folder_write(&c->out, j->codes, (uint64_t)(row * code_bytes), b->code,
                     (size_t)(rows * code_bytes));
    if (r < 0)
        return r;
    row = j->dtype == DTYPE_FP8 && !j->rows_of_table ? row / j->q.block : row;
    return folder_write(&c->out, j->scale, (uint64_t)(row * scale_bytes), b->scale,
                        (size_t)(scale_rows * scale_bytes));
}

static int encode(struct conversion *c, const struct job *j)
{
    int64_t tall = j->dtype == DTYPE_FP8 ? j->q.block : 32;
    struct band b = { 0 };
    float global = 1, stored;
    int r = band_open(&b, tall, j->cols);

    if (r == 0 && j->global != SIZE_MAX) {
        r = find_global(c, j, &b, &global);
        stored = j->q.divides ? 1 / global : global;
        if (r == 0)
            r = folder_write(&c->out, j->global, 0, &stored, sizeof(stored));
        global = j->q.divides ? 1 / stored : global;
    }
    for (int64_t i = 0; i < j->rows && r == 0; i += tall)
        r = encode_band(c, j, &b, i, j->rows - i < tall ? j->rows - i : tall, global);
    band_close(&b);
    return r;
}

int convert(const struct convert_spec *spec, struct source *src)
{
    struct conversion c = { .spec = spec, .src = src };
    int r = convert_check(&spec->scheme);

    if (r == 0)
        r = plan(&c);
    if (r == 0)
        r = folder_begin(&c.out, spec->folder, spec->shard_bytes);
    for (size_t i = 0; i < c.n && r == 0; i++)
        r = c.job[i].scale == SIZE_MAX ? copy(&c, &c.job[i]) : encode(&c, &c.job[i]);
    if (r == 0)
        r = folder_end(&c.out);
    if (r == 0)
        r = folder_config(spec->folder, spec->config, &spec->scheme);
    folder_close(&c.out);
    free(c.job);
    return r;
}
