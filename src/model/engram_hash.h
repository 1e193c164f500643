/* engram_hash - which rows of an Engram table belong to the last tokens.
 *
 *   roll = 0
 *   for s = 0 .. orders - 1:  roll ^= v[s] * mult[t][s]               v[0] the newest token's class
 *       s >= 1, each head h:  row[c] = roll mod prime[t][c] + offset[t][c], c = (s - 1) * heads + h
 *
 * A class is a compressed token id (src/model/token_map.h). The multipliers are NumPy's:
 * default_rng(10007 * layer).integers(0, bound, orders), times 2 plus 1, with
 * bound = ((2^63 - 1) / classes) / 2, so that no product reaches 2^63. The primes are consecutive,
 * from vocab upward, and no two columns of any tables share one. Column c of a table begins at row
 * offset[c].
 */
#ifndef TANDEM_MODEL_ENGRAM_HASH_H
#define TANDEM_MODEL_ENGRAM_HASH_H

#include <stdint.h>

#define ENGRAM_TABLES_MAX 4
#define ENGRAM_ORDERS_MAX 8
#define ENGRAM_HEADS_MAX 64
#define ENGRAM_COLUMNS_MAX ((ENGRAM_ORDERS_MAX - 1) * ENGRAM_HEADS_MAX)

struct engram_spec {
    int layer[ENGRAM_TABLES_MAX]; /* the layer of each table, ascending */
    int layers;                   /* tables */
    int orders;                   /* tokens of the longest n-gram, at least 2 */
    int heads;                    /* columns for each n-gram length 2 .. orders */
    int vocab;                    /* engram_vocab_size: lower bound of the primes */
    int classes;                  /* engram_compressed_vocab_size */
};

struct engram_hash;

/* engram_hash_open - errors -EINVAL: a value out of range, or a table of 2^31 rows; -ENOMEM. */
int engram_hash_open(const struct engram_spec *spec, struct engram_hash **out);
void engram_hash_close(struct engram_hash *h);

/* The constants of table t: [(orders - 1) * heads] primes and offsets, [orders] multipliers. */
const int64_t *engram_hash_primes(const struct engram_hash *h, int t);
const int64_t *engram_hash_offsets(const struct engram_hash *h, int t);
const int64_t *engram_hash_multipliers(const struct engram_hash *h, int t);

/* engram_hash_rows - the rows of one token in table t.
 *
 * in, out  class [orders]: newest first, each below the spec's classes. A negative one is dead
 *          (before the first token, or no text): it and all older ones count as pad, the class of
 *          the pad token row [(orders - 1) * heads]: offsets included, below 2^31
 */
void engram_hash_rows(const struct engram_hash *h, int t, const int32_t *class, int32_t pad,
                      int64_t *row);

#endif
