/* safetensors - one file of named tensors, checked whole before anything is read from it.
 *
 * File: u64 length of the header, a JSON object of tensors, data. Every rule that a reader may
 * rely on is checked when the file is opened: strict JSON, sizes by checked arithmetic, ranges
 * that cover the data area once, without hole, overlap or tail. Some limits are the project's own:
 * names of 1 to 1024 bytes, 8 dimensions, 8 levels of nesting. The file is read by pread and never
 * mapped: one that shrinks is an error, not a signal.
 */
#ifndef TANDEM_MODEL_SAFETENSORS_H
#define TANDEM_MODEL_SAFETENSORS_H

#include "src/model/source.h"

#include <stddef.h>
#include <stdint.h>

#define ST_HEADER_MAX 100000000u /* the format's own limit */
#define ST_NAME_MAX 1024
#define ST_DEPTH_MAX 8

struct st_tensor {
    const char *name;
    const char *type; /* as the file says it: "BF16" */
    enum dtype dtype; /* DTYPE_COUNT: a type of no plain weight */
    int each;         /* bytes of an element */
    int rank;
    int64_t shape[TENSOR_RANK_MAX];
    uint64_t elements;
    uint64_t begin, end; /* bytes of the data area */
};

struct safetensors {
    char *path;
    int fd;        /* -1 for a header without a file */
    uint64_t data; /* where the data area begins in the file */
    size_t n;
    struct st_tensor *tensor; /* in the order of the data */
    size_t *by_name;
    char *names;
};

/* safetensors_open - open a regular file and check all of its header.
 * errors   the errno of open; -EINVAL naming file, tensor and offset; -EIO; -ENOMEM */
int safetensors_open(const char *path, struct safetensors **out);

/* safetensors_parse - the checks alone: a header of a file whose data area has data_bytes. */
int safetensors_parse(const char *path, const char *header, size_t header_bytes,
                      uint64_t data_bytes, struct safetensors **out);

void safetensors_close(struct safetensors *s);

/* safetensors_find - NULL if there is no tensor of this name. */
const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name);

/* safetensors_header - the header's bytes, unchecked but for the bounds, for digests.
 * owns     the caller frees *header and closes *fd */
int safetensors_header(const char *path, int *fd, char **header, size_t *header_bytes,
                       uint64_t *data_bytes);

#endif
