/* pack_rig - a small pack with one weight of every kind, for tests of what can be wrong with
 * packs. */
#ifndef TANDEM_TESTS_MODEL_PACK_RIG_H
#define TANDEM_TESTS_MODEL_PACK_RIG_H

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "src/model/pack_file.h"
#include "src/model/source.h"
#include "tests/model/tensors.h"

#define CONFIG "{\"model_type\": \"test\"}"

static inline struct pack_spec spec_of(const struct walk_part *part, int rank, int ranks)
{
    return (struct pack_spec){ .family = "test",
                               .blobs = { { "config.json", CONFIG, sizeof(CONFIG) - 1 },
                                          { "empty", NULL, 0 } },
                               .parts = part,
                               .n_parts = 1,
                               .rank = rank,
                               .ranks = ranks,
                               .source_digest = { 1, 2, 3 } };
}

static inline void pack_path(char path[PATH_CAP], const char *folder, int rank)
{
    char name[32];

    snprintf(name, sizeof(name), "rank%d.pack", rank);
    path_join(path, PATH_CAP, folder, name);
}

struct asked {
    struct mat m;
    struct table t;
    const float *v;
    struct row_table r;
    /* what to ask for */
    int rows, cols, unit, table_rows, vec, columns;
    enum shard shard;
    const char *name;
    const int64_t *prime;
    int skip_vec, extra, twice, mat_as_table;
};

static const int64_t small_primes[] = { 5, 7, 11 };

static const struct asked as_packed = { .rows = 40,
                                        .cols = 24,
                                        .unit = 8,
                                        .table_rows = 9,
                                        .vec = 6,
                                        .columns = 3,
                                        .shard = SHARD_ROWS,
                                        .name = "a.weight",
                                        .prime = small_primes };

static inline void asked_weights(void *object, struct walk *w)
{
    struct asked *a = object;

    if (a->mat_as_table)
        walk_table(w, &a->t, a->rows, a->cols, a->shard, "%s", a->name);
    else
        walk_mat(w, &a->m, a->rows, a->cols, a->shard, a->unit, "%s", a->name);
    walk_table(w, &a->t, a->table_rows, 3, SHARD_NONE, "t.weight");
    if (!a->skip_vec)
        walk_vec(w, &a->v, a->vec, SHARD_NONE, 1, "v");
    walk_rows(w, &a->r, a->prime, a->columns, 4, "r.weight");
    if (a->extra)
        walk_vec(w, &a->v, 6, SHARD_NONE, 1, "more");
    if (a->twice)
        walk_vec(w, &a->v, a->vec, SHARD_NONE, 1, "v");
}

/* The pack as_packed of rank 0 of 2, made-up values. */
static inline void small_pack(char folder[PATH_CAP], char path[PATH_CAP])
{
    struct asked a = as_packed;
    struct walk_part part = { asked_weights, &a };
    struct pack_spec spec = spec_of(&part, 0, 2);
    struct source *src;

    log_open(-1, LOG_WARN);
    temp_folder(folder);
    pack_path(path, folder, 0);
    cr_assert(eq(int, source_synth_open(1, DTYPE_BF16, &src), 0));
    cr_assert(eq(int, pack_write(path, &spec, src), 0));
    src->ops->close(src);
}

#endif
