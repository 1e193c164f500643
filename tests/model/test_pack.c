#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>
#include <unistd.h>

#include "tests/model/pack_rig.h"
#include "tests/model/source_weight.h"
#include "tests/model/watch_source.h"

/* ---- a few weights of the pocket model, every kind and every cut ----------------------------- */

static const int64_t primes[12] = { 701, 709, 719, 727, 733, 739, 743, 751, 757, 761, 769, 773 };

struct some {
    struct table embed;
    struct mat head, wq_b, wo_b, w1, w2, fn;
    const float *norm, *sink, *q_weight;
    struct row_table rows;
};

static void some_weights(void *object, struct walk *w)
{
    struct some *s = object;

    walk_table(w, &s->embed, 4096, 256, SHARD_NONE, "embed.weight");
    walk_vec(w, &s->norm, 256, SHARD_NONE, 1, "layers.%d.attn_norm.weight", 0);
    walk_mat(w, &s->wq_b, 512, 128, SHARD_ROWS, 128, "layers.%d.attn.wq_b.weight", 0);
    walk_vec(w, &s->sink, 4, SHARD_ROWS, 1, "layers.%d.attn.attn_sink", 0);
    walk_mat(w, &s->wo_b, 256, 256, SHARD_COLS, 128, "layers.%d.attn.wo_b.weight", 0);
    walk_mat(w, &s->w1, 128, 256, SHARD_ROWS, 1, "layers.0.ffn.experts.%d.w1.weight", 5);
    walk_mat(w, &s->w2, 256, 128, SHARD_COLS, 1, "layers.0.ffn.experts.%d.w2.weight", 5);
    walk_mat(w, &s->fn, 24, 1024, SHARD_NONE, 1, "layers.0.hc_attn_fn");
    walk_rows(w, &s->rows, primes, 12, 32, "layers.%d.engram.embed.weight", 1);
    walk_vec(w, &s->q_weight, 1024, SHARD_NONE, 1, "layers.%d.engram.q_weight", 1);
    walk_mat(w, &s->head, 4096, 256, SHARD_ROWS, 1, "head.weight");
}

/* ---- comparing a bound pack with its source, value by value ---------------------------------- */

struct compare {
    struct walk w;
    struct source *src;
    struct pack *p;
    int weights;
    size_t values;
};

static float stored(const void *data, enum dtype t, int64_t i)
{
    float v;

    f32_widen(t, (const char *)data + (size_t)i * dtype_bytes(t), 1, &v);
    return v;
}

static float mat_value(const struct mat *m, int64_t n, int64_t k)
{
    return stored(m->data, m->dtype,
                  n / MAT_TILE * MAT_TILE * m->cols + k * MAT_TILE + n % MAT_TILE);
}

static void expect_padding(const struct mat *m, const char *name)
{
    for (int64_t n = m->rows; n % MAT_TILE != 0; n++)
        for (int k = 0; k < m->cols; k++)
            cr_assert(mat_value(m, n, k) == 0, "%s: padding row %ld", name, n);
}

/* One value of this rank's share, as bound. */
static float bound_value(struct pack *p, const struct weight *d, void *target, int64_t row,
                         int64_t col)
{
    const struct row_table *t = target;
    struct pack_rows at;
    char value[8];
    int c = 0;

    switch (d->kind) {
    case WEIGHT_MAT:
        return mat_value(target, row, col);
    case WEIGHT_TABLE:
        return stored(((struct table *)target)->data, ((struct table *)target)->dtype,
                      row * ((struct table *)target)->cols + col);
    case WEIGHT_VEC:
        return (*(const float **)target)[row];
    default:
        for (;; c++) {
            cr_assert(eq(int, pack_rows_at(p, t->id, c, &at), 0));
            if (row < at.rows)
                break;
            row -= at.rows;
        }
        cr_assert(eq(int,
                     full_pread(at.piece[0].fd, value, dtype_bytes(t->dtype),
                                (off_t)at.piece[0].offset +
                                    (off_t)dtype_bytes(t->dtype) * (row * t->cols + col),
                                "row"),
                     0));
        return stored(value, t->dtype, 0);
    }
}

static int compare_visit(struct walk *walk, const struct weight *d, void *target)
{
    struct compare *c = (struct compare *)walk;
    int64_t rows, cols, row0 = d->shard == SHARD_ROWS ? d->first : 0;
    int64_t col0 = d->shard == SHARD_COLS ? d->first : 0;
    char name[256];
    struct tensor t;
    uint64_t first;
    char *raw;
    int bad = 0;

    weight_local(d, &rows, &cols);
    if (d->kind == WEIGHT_ROWS) {
        row0 = 0;
        for (int64_t i = 0; i < d->first; i++)
            row0 += d->prime[i];
    }
    if (d->kind == WEIGHT_MAT) {
        cr_expect(eq(int, ((struct mat *)target)->rows, (int)rows), "%s", d->name);
        cr_expect(eq(int, ((struct mat *)target)->cols, (int)cols), "%s", d->name);
        expect_padding(target, d->name);
    }
    cr_assert(source_weight(c->src, d->name, d->rows, d->cols, &t, name, sizeof(name), &first) ==
              0);
    raw = malloc((size_t)d->cols * 4);
    for (int64_t i = 0; i < rows && cols > 0; i++) {
        uint64_t at = (first + (uint64_t)(row0 + i) * (uint64_t)d->cols) * dtype_bytes(t.dtype);

        cr_assert(c->src->ops->read(c->src, name, &t, at, raw,
                                    (size_t)d->cols * dtype_bytes(t.dtype)) == 0);
        for (int64_t k = 0; k < cols; k++)
            bad += f32_bits(bound_value(c->p, d, target, i, k)) !=
                   f32_bits(stored(raw, t.dtype, col0 + k));
    }
    free(raw);
    cr_expect(eq(int, bad, 0), "rank %d of %d: %s: values differ", c->w.rank, c->w.ranks, d->name);
    c->weights++;
    c->values += (size_t)(rows * cols);
    return 0;
}

/* Pack, open, bind, compare, verify; the values of all ranks together. */
static size_t round_trip(const char *folder, struct source *src, const struct walk_part *part,
                         int ranks, uint8_t set[SHA256_BYTES])
{
    size_t values = 0;

    for (int rank = 0; rank < ranks; rank++) {
        struct pack_spec spec = spec_of(part, rank, ranks);
        struct compare c = { .w = { .visit = compare_visit, .rank = rank, .ranks = ranks },
                             .src = src };
        char path[PATH_CAP];

        pack_path(path, folder, rank);
        cr_assert(eq(int, pack_write(path, &spec, src), 0), "rank %d of %d", rank, ranks);
        cr_assert(eq(int, pack_open(path, &c.p), 0), "rank %d of %d", rank, ranks);
        cr_assert(eq(int, pack_bind(c.p, part, 1), 0), "rank %d of %d", rank, ranks);
        cr_assert(eq(int, walk_parts(&c.w, part, 1), 0));
        cr_expect(eq(int, pack_verify(c.p), 0));
        cr_expect(pack_rank(c.p) == rank && pack_ranks(c.p) == ranks);
        if (rank == 0)
            memcpy(set, pack_set_digest(c.p), SHA256_BYTES);
        cr_expect(memcmp(set, pack_set_digest(c.p), SHA256_BYTES) == 0,
                  "set digest of rank %d of %d", rank, ranks);
        values += c.values;
        pack_close(c.p);
        unlink(path);
    }
    cr_expect(eq(int, folder_count(folder, 0), 0), "nothing but packs is left behind");
    return values;
}

Test(pack, shares_of_the_pocket_model_are_the_source_value_by_value)
{
    static const int ranks[] = { 1, 2, 3, 5 };
    struct some s;
    struct walk_part part = { some_weights, &s };
    uint8_t set[5][SHA256_BYTES];
    char folder[PATH_CAP];
    struct source *src;

    log_open(-1, LOG_WARN);
    temp_folder(folder);
    cr_assert(eq(int, source_hf_open(POCKET, &src), 0));
    for (size_t i = 0; i < 4; i++) {
        size_t values = round_trip(folder, src, &part, ranks[i], set[i]);
        /* split once, replicated on every rank */
        size_t split = 512 * 128 + 4 + 256 * 256 + 2 * 128 * 256 + 8882 * 32 + 4096 * 256;
        size_t whole = 4096 * 256 + 256 + 24 * 1024 + 1024;

        cr_expect(eq(ulong, values, split + whole * (size_t)ranks[i]), "%d ranks", ranks[i]);
    }
    for (int i = 1; i < 4; i++)
        cr_expect(memcmp(set[i], set[0], SHA256_BYTES) != 0, "set digests tell splits apart");
    src->ops->close(src);
    folder_count(folder, 1);
}

/* ---- weights that are larger than a block, in every cut -------------------------------------- */

struct large {
    struct mat tiles, long_rows, long_cut, narrow_cut, one_column;
    struct table row_of_blocks, table_cut;
    const float *vec;
    int tiles_alone;
};

/* Sizes that take more than a block of 4 MiB of f32 on each of two ranks. */
static void large_weights(void *object, struct walk *w)
{
    struct large *l = object;

    walk_mat(w, &l->tiles, 2501, 1000, SHARD_ROWS, 1, "tiles.weight");
    if (l->tiles_alone)
        return;
    walk_mat(w, &l->long_rows, 17, 70001, SHARD_NONE, 1, "long_rows.weight");
    walk_mat(w, &l->long_cut, 18, 140001, SHARD_COLS, 1, "long_cut.weight");
    walk_mat(w, &l->narrow_cut, 9001, 301, SHARD_COLS, 1, "narrow_cut.weight");
    walk_mat(w, &l->one_column, 3000, 7, SHARD_COLS, 7, "one_column.weight");
    walk_table(w, &l->row_of_blocks, 1, 1100001, SHARD_NONE, "row_of_blocks.weight");
    walk_table(w, &l->table_cut, 3000, 1001, SHARD_ROWS, "table_cut.weight");
    walk_vec(w, &l->vec, 1100003, SHARD_NONE, 1, "vec");
}

Test(pack, weights_of_any_size_pass_through_small_blocks)
{
    struct large l;
    struct walk_part part = { large_weights, &l };
    uint8_t set[SHA256_BYTES];
    char folder[PATH_CAP];

    log_open(-1, LOG_WARN);
    temp_folder(folder);
    for (l.tiles_alone = 0; l.tiles_alone < 2; l.tiles_alone++) {
        struct source *src;

        cr_assert(eq(int, source_synth_open(11, l.tiles_alone ? DTYPE_BF16 : DTYPE_F32, &src), 0));
        round_trip(folder, src, &part, l.tiles_alone ? 1 : 2, set);
        src->ops->close(src);
    }
    folder_count(folder, 1);
}

Test(pack, no_read_is_larger_than_a_block)
{
    struct large l = { .tiles_alone = 0 };
    struct walk_part part = { large_weights, &l };
    struct pack_spec spec = spec_of(&part, 1, 2);
    char folder[PATH_CAP], path[PATH_CAP];
    struct watch_source watch;
    struct source *src;

    log_open(-1, LOG_WARN);
    temp_folder(folder);
    pack_path(path, folder, 1);
    cr_assert(eq(int, source_synth_open(11, DTYPE_F32, &src), 0));
    watch_init(&watch, src);
    cr_assert(eq(int, pack_write(path, &spec, &watch.base), 0));
    cr_expect(le(ulong, watch.largest, PACK_BLOCK));
    src->ops->close(src);
    folder_count(folder, 1);
}

/* Made-up weights are one model: the shares of any number of ranks, side by side, are the whole.
 * round_trip compares each with the source, which knows no ranks; here the digests say that source
 * and seed matter.
 */
Test(pack, other_weights_have_another_set_digest)
{
    struct some s;
    struct walk_part part = { some_weights, &s };
    uint8_t set[4][SHA256_BYTES];
    char folder[PATH_CAP];

    log_open(-1, LOG_WARN);
    temp_folder(folder);
    for (int i = 0; i < 4; i++) {
        struct source *src;

        cr_assert(
            eq(int, source_synth_open(i == 1 ? 6 : 5, i == 2 ? DTYPE_F16 : DTYPE_F32, &src), 0));
        round_trip(folder, src, &part, 2, set[i]);
        src->ops->close(src);
    }
    cr_expect(memcmp(set[0], set[1], SHA256_BYTES) != 0, "another seed");
    cr_expect(memcmp(set[0], set[2], SHA256_BYTES) != 0, "another type");
    cr_expect(memcmp(set[0], set[3], SHA256_BYTES) == 0, "the same again");
    folder_count(folder, 1);
}

/* ---- what a pack carries --------------------------------------------------------------------- */

Test(pack, blobs_family_and_list_come_back)
{
    char folder[PATH_CAP], path[PATH_CAP], *text = NULL;
    const char *data;
    size_t bytes, text_bytes;
    struct pack *p;
    FILE *f;

    small_pack(folder, path);
    cr_assert(eq(int, pack_open(path, &p), 0));
    cr_expect(eq(str, (char *)pack_family(p), (char *)"test"));
    cr_assert(eq(int, pack_find_blob(p, "config.json", &data, &bytes), 0));
    cr_expect(bytes == strlen(CONFIG) && strcmp(data, CONFIG) == 0);
    cr_assert(eq(int, pack_find_blob(p, "empty", &data, &bytes), 0));
    cr_expect(bytes == 0 && *data == 0);
    cr_expect(eq(int, pack_find_blob(p, "tokenizer.json", &data, &bytes), 1));
    f = open_memstream(&text, &text_bytes);
    pack_list(p, f);
    fclose(f);
    cr_expect(strstr(text, "a.weight") &&
                  strstr(text, "mat   bf16 16        [40, 24] rows 0+24 1536 "),
              "%s", text);
    cr_expect(strstr(text, "rows  bf16 16        [23, 4] columns 0+2 96 ") != NULL, "%s", text);
    free(text);
    pack_close(p);
    folder_count(folder, 1);
}

Test(pack, same_input_gives_the_same_file)
{
    char folder[2][PATH_CAP], path[2][PATH_CAP], *file[2];
    size_t bytes[2];

    for (int i = 0; i < 2; i++) {
        small_pack(folder[i], path[i]);
        cr_assert(eq(int, file_read(path[i], 1 << 20, &file[i], &bytes[i]), 0));
        folder_count(folder[i], 1);
    }
    cr_expect(bytes[0] == bytes[1] && memcmp(file[0], file[1], bytes[0]) == 0);
    free(file[0]);
    free(file[1]);
}
