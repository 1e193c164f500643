/* convert_folder - a checkpoint folder in the making: shards of safetensors, index, config.json.
 *
 *   add ... -> begin (files under temporary names) -> write ... -> end (all get their names) ->
 *   close
 */
#ifndef TANDEM_MODEL_CONVERT_FOLDER_H
#define TANDEM_MODEL_CONVERT_FOLDER_H

#include "src/base/file.h"
#include "src/base/meter.h"

#include <stddef.h>
#include <stdint.h>

struct json;
struct scheme;

struct folder_tensor {
    char *name;
    const char *type; /* borrowed for ever */
    int rank, shard;
    int64_t shape[8];
    uint64_t bytes, at; /* at: in the shard's data */
};

struct folder_shard {
    struct new_file file;
    uint64_t data, bytes; /* where the data begin in the file; how many */
};

struct folder {
    const char *path;
    struct folder_tensor *tensor;
    size_t n, cap;
    struct folder_shard *shard;
    int n_shards;
    struct meter meter; /* from begin to end */
};

/* folder_add - one more tensor; *index is its number.   errors   -ENOMEM */
int folder_add(struct folder *f, const char *name, const char *type, int each, int rank,
               const int64_t *shape, size_t *index);

/* folder_bytes - of a tensor. */
uint64_t folder_bytes(const struct folder *f, size_t index);

/* folder_begin - make the folder if need be, place the tensors, write the headers. */
int folder_begin(struct folder *f, const char *path, uint64_t shard_bytes);

/* folder_write - bytes of a tensor, `at` from its begin.   errors   of the file */
int folder_write(struct folder *f, size_t index, uint64_t at, const void *data, size_t bytes);

/* folder_end - all files appear, with an index if there are several. */
int folder_end(struct folder *f);

/* folder_close - what has no name yet goes. */
void folder_close(struct folder *f);

/* folder_config - config.json, with a quantization_config for the scheme. */
int folder_config(const char *path, const struct json *config, const struct scheme *scheme);

#endif
