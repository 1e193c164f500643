/* source - where weights come from: named tensors of a checkpoint, read piece by piece.
 *
 * Implementers: source_hf.c (a folder with config.json and safetensors shards, with or without an
 * index), source_synth.c (weights from a hash of tensor name and element index, any size,
 * nothing on disk but a config.json), and source_mixes.c in front of one of these. Which tensors
 * make up a weight is stored.h's business.
 */
#ifndef TANDEM_MODEL_SOURCE_H
#define TANDEM_MODEL_SOURCE_H

#include "kernels/mat.h"
#include "src/model/quant_config.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TENSOR_RANK_MAX 8
/* a read costs least where its buffer and its offset in the file agree modulo this */
#define READ_ALIGN 4096

struct scheme;
struct source;

struct tensor {
    enum dtype dtype; /* DTYPE_COUNT: a stored type of no plain weight, only named */
    const char *type; /* as the checkpoint says it: "F8_E4M3"; lives as long as the source */
    const char *file; /* for messages; lives as long as the source */
    int each;         /* bytes of an element */
    int rank;
    int64_t shape[TENSOR_RANK_MAX];
    uint64_t elements;
    int shard;       /* the implementer's file number */
    uint64_t offset; /* byte offset inside that file */
};

struct source_ops {
    const char *name;
    /* find - positive 1 if there is no tensor of this name. rows and cols: the shape of the weight
     * that it is all or part of, 0 if unknown; only a source that makes its tensors up reads them,
     * and has none of unknown shape */
    int (*find)(struct source *s, const char *name, int64_t rows, int64_t cols, struct tensor *out);
    /* read - `bytes` bytes from byte `at` of the tensor; -EIO names file, tensor and offset.
     * Several threads may read at once, and one of them find */
    int (*read)(struct source *s, const char *name, const struct tensor *t, uint64_t at, void *buf,
                size_t bytes);
    /* unused - calls fn for every tensor that find was never asked for, in file order */
    void (*unused)(struct source *s, void (*fn)(void *arg, const char *name), void *arg);
    void (*close)(struct source *s);
};

struct source {
    const struct source_ops *ops;
    atomic_bool failed; /* a read has: whoever reads and writes in one call tells which it was */
    struct quant_config quant; /* what the checkpoint's config says about formats */
};

/* source_hf_open - a checkpoint folder, and files beside its index (Engram shards of another
 * checkpoint), which add the modules that the folder lacks.
 * errors   -ENOENT missing folder, index or shard; -EINVAL a broken header, index, tensor or
 *          quantization_config, named with file, tensor and offset, or a name in two of the files
 *          beside it; -EIO */
int source_hf_open(const char *folder, struct source **out);
int source_hf_open_with(const char *folder, const char *const *extra, int n_extra,
                        struct source **out);

/* source_synth_open - values of dtype for every tensor asked for, in the shape asked for: a value
 * depends on seed, tensor name and element index alone. Matrices are near normal with deviation 1
 * / sqrt(cols), norms near 1, other vectors near 0, so that a network of them stays finite. */
int source_synth_open(uint64_t seed, enum dtype dtype, struct source **out);

/* source_synth_open_scheme - the same in the formats of a scheme: codes are random, scales make the
 * deviation come out. */
int source_synth_open_scheme(uint64_t seed, const struct scheme *scheme, struct source **out);

/* source_synth_hash - of a made-up tensor of random bytes: they are synth_word's of this hash.
 * errors   1 if the source does not make its tensors up */
int source_synth_hash(const struct source *s, const char *name, uint64_t *hash);

/* source_mixes_open - what `real` has, with the f32 weights that mix hyper-connections' streams
 * rounded to bf16. Lossy.
 * owns     real
 * errors   -ENOMEM */
int source_mixes_open(struct source *real, struct source **out);

#endif
