/* source_index.c owns the strict reading of an index; whether its files agree is source_hf.c's
 * business. */
#include "src/model/source_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"

#define INDEX_MAX_BYTES ((size_t)256 << 20)
#define INDEX_DEPTH_MAX 8

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int shard_of(const struct source_index *x, const char *name)
{
    const char **at = bsearch(&name, x->shard, (size_t)x->n_shards, sizeof(*x->shard), by_text);

    return (int)(at - x->shard);
}

static int read_map(const char *path, const struct json *map, struct source_index *x)
{
    size_t n = json_count(map), kept = 0;
    int r;

    if (n > 1 << 24)
        return fail(-EINVAL, "%s: %zu tensors", path, n);
    x->shard = calloc(n + 1, sizeof(*x->shard));
    x->list = calloc(n + 1, sizeof(*x->list));
    if (!x->shard || !x->list)
        return fail(-ENOMEM, "%s: no memory for %zu tensors", path, n);
    for (size_t i = 0; i < n; i++) {
        r = json_as_str(json_at(map, i), &x->shard[i]);
        if (r < 0)
            return r;
        if (!is_plain_name(x->shard[i], strlen(x->shard[i])))
            return fail(-EINVAL, "%s: tensor %s: file \"%s\" is not a plain name in this folder",
                        path, json_key(json_at(map, i)), x->shard[i]);
    }
    qsort(x->shard, n, sizeof(*x->shard), by_text);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || strcmp(x->shard[kept - 1], x->shard[i]) != 0)
            x->shard[kept++] = x->shard[i];
    x->n_shards = (int)kept;
    x->n_list = n;
    for (size_t i = 0; i < n; i++) {
        const struct json *v = json_at(map, i);
        const char *file;

        r = json_as_str(v, &file);
        if (r < 0)
            return r;
        x->list[i] = (struct source_listed){ .tensor = json_key(v), .shard = shard_of(x, file) };
    }
    return 0;
}

static int single_file(const char *folder, struct source_index *x)
{
    char path[PATH_CAP];
    struct stat st;
    int r = path_join(path, sizeof(path), folder, "model.safetensors");

    if (r < 0)
        return r;
    if (stat(path, &st) < 0)
        return fail(-errno, "%s: neither %s nor model.safetensors is there: %s", folder,
                    SOURCE_INDEX_FILE, strerror(errno));
    x->shard = calloc(1, sizeof(*x->shard));
    if (!x->shard)
        return fail(-ENOMEM, "%s: no memory", folder);
    x->shard[0] = "model.safetensors";
    x->n_shards = 1;
    return 0;
}

/* The index that x->json is. */
static int read_index(const char *path, struct source_index *x)
{
    const struct json *map;
    int r = json_get_object(x->json, "weight_map", &map);

    x->listed = true;
    return r < 0 ? r : read_map(path, map, x);
}

int source_index_parse(const char *name, const char *text, size_t bytes, struct source_index *out)
{
    struct source_index x = { 0 };
    int r = json_parse(text, bytes, name, INDEX_DEPTH_MAX, &x.json);

    if (r == 0)
        r = read_index(name, &x);
    if (r < 0) {
        source_index_free(&x);
        return r;
    }
    *out = x;
    return 0;
}

int source_index_read(const char *folder, struct source_index *out)
{
    struct source_index x = { 0 };
    char path[PATH_CAP];
    struct stat st;
    int r;

    if (stat(folder, &st) < 0)
        return fail(-errno, "%s: %s", folder, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return fail(-ENOTDIR, "%s: not a folder", folder);
    r = path_join(path, sizeof(path), folder, SOURCE_INDEX_FILE);
    if (r < 0)
        return r;
    if (lstat(path, &st) < 0 && errno == ENOENT) {
        r = single_file(folder, &x);
    } else {
        r = json_read(path, INDEX_MAX_BYTES, INDEX_DEPTH_MAX, &x.json);
        if (r == 0)
            r = read_index(path, &x);
    }
    if (r < 0) {
        source_index_free(&x);
        return r;
    }
    *out = x;
    return 0;
}

void source_index_free(struct source_index *x)
{
    free(x->shard);
    free(x->list);
    json_close(x->json);
    *x = (struct source_index){ 0 };
}
