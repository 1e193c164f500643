/* walk - one description of a model's weights for sizing, packing, digests and binding.
 *
 * A family (and a drafter) names its weights in one function that calls walk_mat, walk_table,
 * walk_vec and walk_rows in a fixed order. What happens at each call depends on the walk: count
 * bytes, read from a source and write this rank's share into a pack, compare with a pack's table
 * of contents, or bind pointers into a mapped pack. Sharding is an argument here and nowhere else.
 *
 * Shares: a sharded dimension of `n` values in units of `unit` has n / unit blocks; of B blocks
 * the first B % ranks ranks get one more than the others; a share may be empty. A unit above 1 is
 * the model's (heads, groups) and shares are cut there; a width, of unit 1, is cut at whole blocks
 * of the formats that the checkpoint's matrices have, the same for all widths, so that the outputs
 * of one matrix are the inputs of the next.
 */
#ifndef TANDEM_MODEL_WALK_H
#define TANDEM_MODEL_WALK_H

#include "kernels/mat.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shard { SHARD_NONE, SHARD_ROWS, SHARD_COLS };

enum weight_kind {
    WEIGHT_MAT,   /* tiles, kept in the source's type */
    WEIGHT_TABLE, /* row-major, kept in the source's type */
    WEIGHT_VEC,   /* f32 vector; cols is 1 */
    WEIGHT_ROWS   /* rows of a row store: never resident, read one by one */
};

#define WEIGHT_NAME_MAX 160

struct weight {
    char name[WEIGHT_NAME_MAX]; /* the released name, e.g. layers.3.attn.wq_a.weight */
    enum weight_kind kind;
    int64_t rows, cols; /* of the whole weight */
    enum shard shard;
    int unit;             /* of a share, 1 if SHARD_NONE */
    int64_t first, count; /* this rank's share of the sharded dimension; all rows if SHARD_NONE */

    /* WEIGHT_ROWS: hash column i has prime[i] rows; first and count are columns. Else 0 and
     * NULL. */
    int columns;
    const int64_t *prime;
};

/* weight_local - rows and cols of this rank's share; for WEIGHT_ROWS the rows of all its
 * columns. */
void weight_local(const struct weight *d, int64_t *rows, int64_t *cols);

/* This rank's part of an n-gram table: `count` hash columns from column `first`, each a run of
 * rows. */
struct row_table {
    int id; /* number of the table inside the pack, in walk order */
    int first, count;
    int cols;         /* values in a row */
    enum dtype dtype; /* plain; FP8: codes, then an e8m0 scale for 32 of them; EXL3: n-gram rows */
    int bits;         /* EXL3: of a value */
    int row_bytes;
    const uint16_t *bias; /* EXL3: f16 [count][cols] */
};

struct walk {
    /* visit - called once a weight; target is a struct mat *, struct table *, const float ** or
     * struct row_table * by kind. A negative result ends the walk: it is kept in err and later
     * calls do nothing. */
    int (*visit)(struct walk *w, const struct weight *d, void *target);
    int rank, ranks;
    int width_unit;     /* widths of matrices are cut at multiples of this; 0 is 1 */
    bool whole_experts; /* an expert lies on one rank, all of it */
    int err;
};

/* A walk's description: what packs, sizes and binds call. */
struct walk_part {
    void (*weights)(void *object, struct walk *w);
    void *object;
};

/* walk_parts - walk every part; the first error, as kept in w->err. */
int walk_parts(struct walk *w, const struct walk_part *parts, int n_parts);

/* share_of - the blocks of `blocks` that belong to rank: writes first and count. */
void share_of(int64_t blocks, int rank, int ranks, int64_t *first, int64_t *count);

/* share_width - the part of a width of n values, cut at multiples of unit (0 is 1), the last block
 * short if n is no multiple. */
void share_width(int64_t n, int unit, int rank, int ranks, int64_t *first, int64_t *count);

/* walk_mat - a matrix [rows][cols] for y = W x, sharded in units of `unit` along the sharded
 * dimension. The printf arguments make the released name.
 * errors   of all five, kept in the walk: -EINVAL a size below 1, a dimension that is no whole
 *          number of units; -ENAMETOOLONG */
__attribute__((format(printf, 7, 8))) void walk_mat(struct walk *w, struct mat *m, int rows,
                                                    int cols, enum shard shard, int unit,
                                                    const char *fmt, ...);
/* walk_expert - a matrix of expert `expert` of `experts`: walk_mat in units of 1, or all of it on
 * the one rank whose share of the experts it is in. */
__attribute__((format(printf, 8, 9))) void walk_expert(struct walk *w, struct mat *m, int rows,
                                                       int cols, enum shard shard, int expert,
                                                       int experts, const char *fmt, ...);
__attribute__((format(printf, 6, 7))) void walk_table(struct walk *w, struct table *t, int rows,
                                                      int cols, enum shard shard, const char *fmt,
                                                      ...);
/* walk_vec - n values, widened to f32; any source shape with n elements. */
__attribute__((format(printf, 6, 7))) void
walk_vec(struct walk *w, const float **v, int n, enum shard shard, int unit, const char *fmt, ...);
/* walk_rows - an n-gram table whose hash columns are `columns` runs of rows, split by whole
 * columns; column i has prime[i] rows of cols values. */
__attribute__((format(printf, 6, 7))) void walk_rows(struct walk *w, struct row_table *t,
                                                     const int64_t *prime, int columns, int cols,
                                                     const char *fmt, ...);

#endif
