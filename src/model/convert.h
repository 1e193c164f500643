/* convert - a checkpoint in other formats: safetensors shards with released names, as the release
 * of V4.1 has them, and a quantization_config that says so.
 */
#ifndef TANDEM_MODEL_CONVERT_H
#define TANDEM_MODEL_CONVERT_H

#include "src/model/scheme.h"
#include "src/model/walk.h"

#include <signal.h>
#include <stdint.h>

struct json;
struct source;

#define CONVERT_SHARD_BYTES ((uint64_t)4 << 30)

struct convert_spec {
    const char *folder; /* of the new checkpoint; there is one file of weights or an index */
    struct scheme scheme;
    const struct walk_part *parts; /* what is to be encoded; of one rank */
    int n_parts;
    const struct json *config;         /* of the old checkpoint */
    uint64_t shard_bytes;              /* a file ends behind the tensor that reaches this */
    const volatile sig_atomic_t *stop; /* once it is not 0, nothing is made; NULL: never */
};

/* convert_check - whether there is an encoder for the formats of a scheme.   errors   -EINVAL */
int convert_check(const struct scheme *s);

/* convert - write the weights and then config.json; weights that nobody walks over are copied.
 *
 *   FP8    scale of a block 2^ceil(log2(amax / 448)), with f32 scales amax / 448; codes are the
 *          nearest of w / scale, ties to even
 *   MXFP4  scale of a group 2^ceil(log2(amax / 6))
 *   NVFP4  global amax / 2688 of the matrix, scale of a group the nearest e4m3 of amax / 6 / global
 *
 * errors   -EINVAL a weight that is quantised already, missing or not finite, by name; -ENOSPC;
 *          -EINTR stopped; those of the files. What can be known before the first byte is written
 *          is told then; a file that is not whole never has its name */
int convert(const struct convert_spec *spec, struct source *src);

#endif
