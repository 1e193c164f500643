/* stored_parts - a module's tensors while their format is found out; for stored*.c alone. */
#ifndef TANDEM_MODEL_STORED_PARTS_H
#define TANDEM_MODEL_STORED_PARTS_H

#include "src/model/stored.h"

enum tail {
    TAIL_WEIGHT, /* first: all that a name without a module prefix can have */
    TAIL_TRELLIS,
    TAIL_SUH,
    TAIL_SVH,
    TAIL_SU,
    TAIL_SV,
    TAIL_MCG,
    TAIL_MUL1,
    TAIL_BIAS,
    TAIL_HEAD_BIAS,
    TAIL_SLICE,
    TAIL_SHARD,
    TAIL_PACKED,
    TAIL_WEIGHT_SCALE,
    TAIL_WEIGHT_SCALE_2,
    TAIL_GLOBAL_SCALE,
    TAIL_SCALE_INV,
    TAIL_SCALE,
    TAILS
};

#define BIT(tail) (1u << (tail))

struct group {
    struct source *s;
    enum stored_as as;
    const struct name_place *place;
    int64_t rows, cols;              /* of the model's weight */
    char stem[TENSOR_NAME_MAX + 16]; /* "layers.0.attn.wq_a." */
    bool bare;                       /* the stem is the whole name */
    unsigned have;                   /* BIT of what is there */
    struct tensor t[TAILS];
};

/* group_name - the name of a part, into buf, which it returns. */
const char *group_name(const struct group *g, enum tail tail, char *buf, size_t cap);

/* group_find - look a part up; 1 if it is not there. A bias is asked for without a shape: where
 * tensors are made up there is none but what the walk asks for.
 * errors   of the source's find */
int group_find(struct group *g, enum tail tail);

/* group_take - keep a part. */
void group_take(const struct group *g, enum tail tail, struct stored_tensor *out);

/* group_is - a part is a matrix of this type and shape. */
bool group_is(const struct group *g, enum tail tail, const char *type, int64_t rows, int64_t cols);

/* group_refuse - -EINVAL naming file, tensor, what it is and what it should be. */
int group_refuse(const struct group *g, enum tail tail, const char *want);

/* group_read_number - the bits of a part that is one number of this type.
 * errors   -EINVAL, -EIO */
int group_read_number(struct group *g, enum tail tail, const char *type, uint32_t *bits);

int read_plain(struct group *g, struct stored *out);
int read_scaled(struct group *g, struct stored *out);
int read_fp4(struct group *g, struct stored *out);
int read_exl3(struct group *g, struct stored *out);
int read_exl3_slices(struct group *g, struct stored *out);
int read_ngram_shards(struct group *g, struct stored *out);

#endif
