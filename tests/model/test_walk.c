#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <string.h>

#include "src/model/walk.h"
#include "tests/model/tensors.h"

struct share_case {
    const char *name;
    int64_t blocks;
    int ranks;
    int64_t first[4], count[4];
};

static const struct share_case shares[] = {
    { "one rank has all", 7, 1, { 0 }, { 7 } },
    { "halves", 8, 2, { 0, 4 }, { 4, 4 } },
    { "odd block to the first", 5, 2, { 0, 3 }, { 3, 2 } },
    { "two odd blocks", 8, 3, { 0, 3, 6 }, { 3, 3, 2 } },
    { "an empty share", 1, 2, { 0, 1 }, { 1, 0 } },
    { "three empty shares", 1, 4, { 0, 1, 1, 1 }, { 1, 0, 0, 0 } },
    { "nothing at all", 0, 2, { 0, 0 }, { 0, 0 } },
};

Test(walk, shares_are_whole_and_complete)
{
    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++)
        for (int rank = 0; rank < shares[i].ranks; rank++) {
            int64_t first = -1, count = -1;

            share_of(shares[i].blocks, rank, shares[i].ranks, &first, &count);
            cr_expect(eq(long, first, shares[i].first[rank]), "%s, rank %d", shares[i].name, rank);
            cr_expect(eq(long, count, shares[i].count[rank]), "%s, rank %d", shares[i].name, rank);
        }
}

struct seen {
    struct walk w;
    struct weight d;
    int n;
};

static int see(struct walk *w, const struct weight *d, void *target)
{
    struct seen *s = (struct seen *)w;

    s->d = *d;
    s->n++;
    return 0;
}

struct cut_case {
    const char *name;
    enum shard shard;
    int rows, cols, unit, rank, ranks;
    int err;
    int64_t first, count, rows_here, cols_here;
};

static const struct cut_case cuts[] = {
    { "whole", SHARD_NONE, 6, 4, 99, 1, 2, 0, 0, 6, 6, 4 },
    { "rows by blocks of 2", SHARD_ROWS, 6, 4, 2, 0, 2, 0, 0, 4, 4, 4 },
    { "rows by blocks of 2, rank 1", SHARD_ROWS, 6, 4, 2, 1, 2, 0, 4, 2, 2, 4 },
    { "columns", SHARD_COLS, 6, 9, 3, 1, 3, 0, 3, 3, 6, 3 },
    { "one block for two", SHARD_COLS, 6, 128, 128, 1, 2, 0, 128, 0, 6, 0 },
    { "no whole blocks", SHARD_ROWS, 6, 4, 4, 0, 2, -EINVAL, 0, 0, 0, 0 },
    { "no unit", SHARD_ROWS, 6, 4, 0, 0, 2, -EINVAL, 0, 0, 0, 0 },
    { "no rows", SHARD_NONE, 0, 4, 1, 0, 1, -EINVAL, 0, 0, 0, 0 },
    { "negative columns", SHARD_NONE, 4, -1, 1, 0, 1, -EINVAL, 0, 0, 0, 0 },
};

Test(walk, cuts_whole_units)
{
    struct last_line line = { 0 };

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        const struct cut_case *c = &cuts[i];
        struct seen s = { .w = { .visit = see, .rank = c->rank, .ranks = c->ranks } };
        int64_t rows = 0, cols = 0;

        walk_mat(&s.w, NULL, c->rows, c->cols, c->shard, c->unit, "layers.%d.attn.wo_%c.weight", 3,
                 'b');
        cr_expect(eq(int, s.w.err, c->err), "%s", c->name);
        if (c->err) {
            cr_expect(s.n == 0 && strstr(line.text, "layers.3.attn.wo_b.weight"), "%s: %s", c->name,
                      line.text);
            continue;
        }
        weight_local(&s.d, &rows, &cols);
        cr_expect(eq(str, s.d.name, (char *)"layers.3.attn.wo_b.weight"), "%s", c->name);
        cr_expect(eq(long, s.d.first, c->first), "%s", c->name);
        cr_expect(eq(long, s.d.count, c->count), "%s", c->name);
        cr_expect(eq(long, rows, c->rows_here), "%s", c->name);
        cr_expect(eq(long, cols, c->cols_here), "%s", c->name);
    }
}

Test(walk, row_tables_are_cut_by_whole_hash_columns)
{
    static const int64_t prime[] = { 701, 709, 719 }, none[] = { 701, 0 };
    struct seen s = { .w = { .visit = see, .rank = 1, .ranks = 2 } };
    int64_t rows, cols;

    walk_rows(&s.w, NULL, prime, 3, 32, "layers.%d.engram.embed.weight", 1);
    cr_assert(eq(int, s.w.err, 0));
    weight_local(&s.d, &rows, &cols);
    cr_expect(eq(long, s.d.rows, 701 + 709 + 719));
    cr_expect(eq(long, s.d.first, 2));
    cr_expect(eq(long, s.d.count, 1));
    cr_expect(eq(long, rows, 719));
    cr_expect(eq(long, cols, 32));
    walk_rows(&s.w, NULL, none, 2, 32, "bad");
    cr_expect(eq(int, s.w.err, -EINVAL));
}

static void two_weights(void *object, struct walk *w)
{
    static const float *v;

    walk_vec(w, &v, 8, SHARD_NONE, 1, "%s.norm.weight", (const char *)object);
    walk_table(w, NULL, 4, 2, SHARD_ROWS, "%s.embed.weight", (const char *)object);
}

static int refuse_second(struct walk *w, const struct weight *d, void *target)
{
    struct seen *s = (struct seen *)w;

    return ++s->n == 2 ? -EIO : 0;
}

Test(walk, first_error_ends_a_walk)
{
    struct walk_part parts[] = { { two_weights, (void *)"a" }, { two_weights, (void *)"b" } };
    struct seen s = { .w = { .visit = refuse_second, .ranks = 1 } };
    char name[2 * WEIGHT_NAME_MAX];

    cr_expect(eq(int, walk_parts(&s.w, parts, 2), -EIO));
    cr_expect(eq(int, s.n, 2), "nothing is visited behind the error");
    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = 0;
    s = (struct seen){ .w = { .visit = see, .ranks = 1 } };
    parts[0].object = name;
    cr_expect(eq(int, walk_parts(&s.w, parts, 1), -ENAMETOOLONG));
    cr_expect(eq(int, s.n, 0));
}
