/* source_index - which files a checkpoint folder is made of, and which tensor lies in which.
 *
 * `model.safetensors.index.json` says so; without one the folder is `model.safetensors` alone.
 * File names are plain names inside the folder; links are followed, as download caches make them.
 */
#ifndef TANDEM_MODEL_SOURCE_INDEX_H
#define TANDEM_MODEL_SOURCE_INDEX_H

#include <stdbool.h>
#include <stddef.h>

#define SOURCE_INDEX_FILE "model.safetensors.index.json"

struct source_listed {
    const char *tensor;
    int shard;
};

struct source_index {
    bool listed;        /* false: no index, every tensor of the one shard counts */
    const char **shard; /* sorted, once each */
    int n_shards;
    struct source_listed *list; /* in the order of the index */
    size_t n_list;
    struct json *json; /* owns the names */
};

/* source_index_read - errors   -ENOENT no folder, or neither index nor model.safetensors; -EINVAL
 * naming the entry of the index */
int source_index_read(const char *folder, struct source_index *out);

/* source_index_parse - the same of the text of an index; name is for messages.
 * errors   -EINVAL */
int source_index_parse(const char *name, const char *text, size_t bytes, struct source_index *out);
void source_index_free(struct source_index *x);

#endif
