/* convert_folder.c owns the files of a new checkpoint. */
#include "src/model/convert_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/scheme.h"
#include "src/model/source_index.h"

#define COPY_DEPTH_MAX 60

int folder_add(struct folder *f, const char *name, const char *type, int each, int rank,
               const int64_t *shape, size_t *index)
{
    struct folder_tensor *t;

    if (f->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 1024;

        t = realloc(f->tensor, cap * sizeof(*t));
        if (!t)
            return fail(-ENOMEM, "convert: no memory for %zu tensors", cap);
        f->tensor = t;
        f->cap = cap;
    }
    t = &f->tensor[f->n];
    *t = (struct folder_tensor){ .name = strdup(name), .type = type, .rank = rank };
    if (!t->name)
        return fail(-ENOMEM, "convert: no memory");
    t->bytes = (uint64_t)each;
    for (int i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        t->bytes *= (uint64_t)shape[i];
    }
    *index = f->n++;
    return 0;
}

uint64_t folder_bytes(const struct folder *f, size_t index)
{
    return f->tensor[index].bytes;
}

/* ---- begin ------------------------------------------------------------------------------- */

static void shard_name(const struct folder *f, int shard, char *buf, size_t cap)
{
    if (f->n_shards == 1)
        snprintf(buf, cap, "model.safetensors");
    else
        snprintf(buf, cap, "model-%05d-of-%05d.safetensors", shard + 1, f->n_shards);
}

static int header_text(const struct folder *f, int shard, struct json_writer *w)
{
    json_begin_object(w, NULL);
    json_begin_object(w, "__metadata__");
    json_put_str(w, "format", "pt");
    json_end_object(w);
    for (size_t i = 0; i < f->n; i++) {
        const struct folder_tensor *t = &f->tensor[i];

        if (t->shard != shard)
            continue;
        json_begin_object(w, t->name);
        json_put_str(w, "dtype", t->type);
        json_begin_array(w, "shape");
        for (int k = 0; k < t->rank; k++)
            json_put_int(w, NULL, t->shape[k]);
        json_end_array(w);
        json_begin_array(w, "data_offsets");
        json_put_u64(w, NULL, t->at);
        json_put_u64(w, NULL, t->at + t->bytes);
        json_end_array(w);
        json_end_object(w);
    }
    json_end_object(w);
    return w->err;
}

/* Length, text, and spaces up to a whole number of 8 bytes. */
static int write_header(struct folder *f, int shard, const char *text, size_t bytes)
{
    static const char spaces[8] = "        ";
    struct folder_shard *s = &f->shard[shard];
    size_t pad = (8 - bytes % 8) % 8;
    uint64_t len = bytes + pad;
    int r = full_pwrite(s->file.fd, &len, sizeof(len), 0, s->file.path);

    if (r == 0)
        r = full_pwrite(s->file.fd, text, bytes, 8, s->file.path);
    if (r == 0)
        r = full_pwrite(s->file.fd, spaces, pad, (off_t)(8 + bytes), s->file.path);
    s->data = 8 + len;
    if (r == 0 && ftruncate(s->file.fd, (off_t)(s->data + s->bytes)) < 0)
        r = fail(-errno, "%s: %s", s->file.path, strerror(errno));
    return r;
}

static int begin_shard(struct folder *f, int shard)
{
    char name[64], path[PATH_CAP];
    struct json_writer w;
    const char *text;
    size_t bytes;
    int r;

    shard_name(f, shard, name, sizeof(name));
    r = path_join(path, sizeof(path), f->path, name);
    if (r == 0)
        r = new_file_open(&f->shard[shard].file, path, 0644);
    if (r < 0)
        return r;
    json_writer_init(&w);
    r = header_text(f, shard, &w);
    if (r == 0)
        r = json_writer_text(&w, &text, &bytes);
    if (r < 0)
        fail(r, "%s: no memory for a header", path);
    else
        r = write_header(f, shard, text, bytes);
    json_writer_free(&w);
    return r;
}

int folder_begin(struct folder *f, const char *path, uint64_t shard_bytes)
{
    uint64_t at = 0, total = 0;
    int shard = 0, r = make_dirs(path, 0777);

    if (r < 0)
        return r;
    f->path = path;
    for (size_t i = 0; i < f->n; i++) {
        struct folder_tensor *t = &f->tensor[i];

        if (at >= shard_bytes) {
            shard++;
            at = 0;
        }
        t->shard = shard;
        t->at = at;
        at += t->bytes;
        total += t->bytes;
    }
    f->shard = calloc((size_t)shard + 1, sizeof(*f->shard));
    if (!f->shard)
        return fail(-ENOMEM, "%s: no memory for %d shards", path, shard + 1);
    f->n_shards = shard + 1;
    for (size_t i = 0; i < f->n; i++)
        f->shard[f->tensor[i].shard].bytes += f->tensor[i].bytes;
    for (int i = 0; i < f->n_shards; i++)
        f->shard[i].file.fd = -1;
    r = file_room(path, total);
    for (int i = 0; i < f->n_shards && r == 0; i++)
        r = begin_shard(f, i);
    meter_begin(&f->meter, path, METER_BYTES, total);
    return r;
}

int folder_write(struct folder *f, size_t index, uint64_t at, const void *data, size_t bytes)
{
    const struct folder_tensor *t = &f->tensor[index];
    struct folder_shard *s = &f->shard[t->shard];

    meter_add(&f->meter, bytes);
    return full_pwrite(s->file.fd, data, bytes, (off_t)(s->data + t->at + at), s->file.path);
}

/* ---- end --------------------------------------------------------------------------------- */

static int write_text(const char *folder, const char *name, struct json_writer *w)
{
    char path[PATH_CAP];
    const char *text;
    size_t bytes;
    int r = path_join(path, sizeof(path), folder, name);

    if (r < 0)
        return r;
    r = json_writer_text(w, &text, &bytes);
    return r < 0 ? fail(r, "%s: no memory", path) : file_write(path, text, bytes, 0644);
}

static int write_index(const struct folder *f)
{
    struct json_writer w;
    uint64_t total = 0;
    char name[64];
    int r;

    for (size_t i = 0; i < f->n; i++)
        total += f->tensor[i].bytes;
    json_writer_init(&w);
    json_begin_object(&w, NULL);
    json_begin_object(&w, "metadata");
    json_put_u64(&w, "total_size", total);
    json_end_object(&w);
    json_begin_object(&w, "weight_map");
    for (size_t i = 0; i < f->n; i++) {
        shard_name(f, f->tensor[i].shard, name, sizeof(name));
        json_put_str(&w, f->tensor[i].name, name);
    }
    json_end_object(&w);
    json_end_object(&w);
    r = write_text(f->path, SOURCE_INDEX_FILE, &w);
    json_writer_free(&w);
    return r;
}

/* One file needs no index, and one that an earlier run has left would lead past it. */
static int drop_index(const struct folder *f)
{
    char path[PATH_CAP];
    int r = path_join(path, sizeof(path), f->path, SOURCE_INDEX_FILE);

    return r < 0 || unlink(path) == 0 || errno == ENOENT
               ? r
               : fail(-errno, "%s: %s", path, strerror(errno));
}

int folder_end(struct folder *f)
{
    int r = 0;

    meter_end(&f->meter);
    for (int i = 0; i < f->n_shards && r == 0; i++) {
        r = new_file_commit(&f->shard[i].file);
        f->shard[i].file.fd = -1;
    }
    if (r < 0)
        return r;
    return f->n_shards > 1 ? write_index(f) : drop_index(f);
}

void folder_close(struct folder *f)
{
    meter_end(&f->meter);
    for (int i = 0; i < f->n_shards; i++)
        if (f->shard[i].file.fd >= 0)
            new_file_drop(&f->shard[i].file);
    for (size_t i = 0; i < f->n; i++)
        free(f->tensor[i].name);
    free(f->tensor);
    free(f->shard);
    *f = (struct folder){ 0 };
}

/* ---- config.json ------------------------------------------------------------------------- */

static void put_quantization(struct json_writer *w, const struct scheme *s)
{
    static const char key[] = "quantization_config";

    json_begin_object(w, key);
    if (s->dtype == DTYPE_FP8) {
        json_put_str(w, "quant_method", "fp8");
        json_put_str(w, "activation_scheme", "dynamic");
        json_begin_array(w, "weight_block_size");
        json_put_int(w, NULL, s->q.block);
        json_put_int(w, NULL, s->q.block);
        json_end_array(w);
        if (s->q.e8m0)
            json_put_str(w, "scale_fmt", "ue8m0");
        if (s->experts == DTYPE_MXFP4)
            json_put_str(w, "expert_dtype", "fp4");
    } else if (s->dtype == DTYPE_MXFP4) {
        json_put_str(w, "quant_method", "mxfp4");
    } else if (s->q.divides) {
        json_put_str(w, "quant_method", "compressed-tensors");
        json_put_str(w, "format", "nvfp4-pack-quantized");
    } else {
        json_put_str(w, "quant_method", "modelopt");
        json_put_str(w, "quant_algo", "NVFP4");
    }
    json_end_object(w);
}

static void put_scalar(struct json_writer *w, const char *key, const struct json *v)
{
    const char *s = "";
    int64_t i = 0;
    double d = 0;
    bool b = false;

    switch (json_type_of(v)) {
    case JSON_IS_BOOL:
        (void)json_as_bool(v, &b);
        json_put_bool(w, key, b);
        break;
    case JSON_IS_INT:
        (void)json_as_i64(v, INT64_MIN, INT64_MAX, &i);
        json_put_int(w, key, i);
        break;
    case JSON_IS_REAL:
        (void)json_as_f64(v, &d);
        json_put_f64(w, key, d);
        break;
    case JSON_IS_STRING:
        (void)json_as_str(v, &s);
        json_put_str(w, key, s);
        break;
    default:
        json_put_null(w, key);
    }
}

/* A value as it is; what an older quantization said of it is left out. */
static void put_value(struct json_writer *w, const char *key, const struct json *v, int depth)
{
    bool object = json_is(v, JSON_IS_OBJECT);

    if (!object && !json_is(v, JSON_IS_ARRAY)) {
        put_scalar(w, key, v);
        return;
    }
    if (object)
        json_begin_object(w, key);
    else
        json_begin_array(w, key);
    for (size_t i = 0; i < json_count(v) && depth < COPY_DEPTH_MAX; i++) {
        const struct json *m = json_at(v, i);

        if (!object || strcmp(json_key(m), "quantization_config") != 0)
            put_value(w, object ? json_key(m) : NULL, m, depth + 1);
    }
    if (object)
        json_end_object(w);
    else
        json_end_array(w);
}

int folder_config(const char *path, const struct json *config, const struct scheme *scheme)
{
    struct json_writer w;
    int r;

    json_writer_init(&w);
    json_begin_object(&w, NULL);
    for (size_t i = 0; i < json_count(config); i++) {
        const struct json *m = json_at(config, i);

        if (strcmp(json_key(m), "quantization_config") != 0)
            put_value(&w, json_key(m), m, 1);
    }
    if (scheme->dtype > DTYPE_COUNT)
        put_quantization(&w, scheme);
    json_end_object(&w);
    r = write_text(path, "config.json", &w);
    json_writer_free(&w);
    return r;
}
