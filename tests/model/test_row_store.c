#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "src/model/pack.h"
#include "src/model/row_store.h"
#include "src/model/source.h"
#include "tests/model/tensors.h"

#define TABLES 2
#define COLS 5
#define N 40

/* Every implementer is held to the same cases. */
static const struct {
    const char *name;
    int (*open)(struct pack *p, struct row_store **out);
} stores[] = {
    { "pread", row_store_pread_open },
};

#define N_STORES (sizeof(stores) / sizeof(stores[0]))

static const int64_t primes[TABLES][3] = { { 101, 103, 107 }, { 109, 113, 127 } };

struct tables {
    struct row_table t[TABLES];
    const float *v;
};

static void table_weights(void *object, struct walk *w)
{
    struct tables *t = object;

    walk_rows(w, &t->t[0], primes[0], 3, COLS, "layers.%d.engram.embed.weight", 1);
    walk_vec(w, &t->v, 3, SHARD_NONE, 1, "v"); /* tables do not follow each other */
    walk_rows(w, &t->t[1], primes[1], 3, COLS, "layers.%d.engram.embed.weight", 4);
}

struct rig {
    char folder[PATH_CAP], path[PATH_CAP];
    struct source *src;
    struct tables tables;
    struct pack *p;
};

static void rig_open(struct rig *g, enum dtype dtype, int rank, int ranks)
{
    struct walk_part part = { table_weights, &g->tables };
    struct pack_spec spec = {
        .family = "test", .parts = &part, .n_parts = 1, .rank = rank, .ranks = ranks
    };

    log_open(-1, LOG_WARN);
    temp_folder(g->folder);
    path_join(g->path, sizeof(g->path), g->folder, "x.pack");
    cr_assert(eq(int, source_synth_open(4, dtype, &g->src), 0));
    cr_assert(eq(int, pack_write(g->path, &spec, g->src), 0));
    cr_assert(eq(int, pack_open(g->path, &g->p), 0));
    cr_assert(eq(int, pack_bind(g->p, &part, 1), 0));
}

static void rig_close(struct rig *g)
{
    pack_close(g->p);
    g->src->ops->close(g->src);
    folder_count(g->folder, 1);
}

/* Row `row` of global hash column `column`, straight from the source. */
static void source_row(struct rig *g, int table, int column, int64_t row, float out[COLS])
{
    int64_t rows = 0, at = row;
    char name[64], raw[COLS * 4];
    struct tensor t;
    size_t bytes;

    for (int c = 0; c < 3; c++) {
        rows += primes[table][c];
        at += c < column ? primes[table][c] : 0;
    }
    snprintf(name, sizeof(name), "layers.%d.engram.embed.weight", table == 0 ? 1 : 4);
    cr_assert(eq(int, g->src->ops->find(g->src, name, rows, COLS, &t), 0));
    bytes = COLS * dtype_bytes(t.dtype);
    cr_assert(eq(int, g->src->ops->read(g->src, name, &t, (uint64_t)at * bytes, raw, bytes), 0));
    f32_widen(t.dtype, raw, COLS, out);
}

/* n rows of a table of this rank, all over its columns, first and last rows among them. */
static int choose(const struct row_table *t, int table, int n, int32_t *column, int64_t *row)
{
    if (t->count == 0)
        return 0;
    for (int i = 0; i < n; i++) {
        int64_t rows;

        column[i] = (i * 7 + table) % t->count;
        rows = primes[table][t->first + column[i]];
        row[i] = i == 0 ? 0 : i == 1 ? rows - 1 : (i * 31 + table) % rows;
    }
    return n;
}

Test(row_store, rows_are_those_of_the_source_in_the_order_asked)
{
    for (size_t k = 0; k < N_STORES; k++)
        for (enum dtype dtype = DTYPE_F32; dtype < DTYPE_COUNT; dtype++)
            for (int ranks = 1; ranks <= 4; ranks++)
                for (int rank = 0; rank < ranks; rank++) {
                    int32_t column[TABLES][N];
                    int64_t row[TABLES][N];
                    float got[N * COLS], want[COLS];
                    struct row_store_stats stats;
                    struct row_store *s;
                    struct rig g;
                    int n[TABLES];

                    rig_open(&g, dtype, rank, ranks);
                    cr_assert(eq(int, stores[k].open(g.p, &s), 0));
                    for (int t = 0; t < TABLES; t++) { /* both asked before either is taken */
                        n[t] = choose(&g.tables.t[t], t, N, column[t], row[t]);
                        cr_assert(eq(int,
                                     s->ops->ask(s, &g.tables.t[t], t ? ROW_TICKETS - 1 : 0,
                                                 column[t], row[t], n[t]),
                                     0));
                    }
                    for (int t = TABLES - 1; t >= 0; t--) {
                        cr_assert(eq(int, s->ops->take(s, t ? ROW_TICKETS - 1 : 0, got), 0));
                        for (int i = 0; i < n[t]; i++) {
                            source_row(&g, t, g.tables.t[t].first + column[t][i], row[t][i], want);
                            cr_expect(memcmp(got + i * COLS, want, sizeof(want)) == 0,
                                      "%s: rank %d of %d, table %d, row %d", stores[k].name, rank,
                                      ranks, t, i);
                        }
                    }
                    s->ops->stats(s, &stats);
                    cr_expect(eq(ulong, stats.rows, (unsigned long)(n[0] + n[1])));
                    cr_expect(eq(ulong, stats.bytes, stats.rows * COLS * dtype_bytes(dtype)));
                    cr_expect(eq(int, stats.reads > 0, stats.rows > 0));
                    s->ops->close(s);
                    rig_close(&g);
                }
}

struct ask_case {
    const char *name;
    int ticket, n;
    int32_t column;
    int64_t row;
    int result;
};

static const struct ask_case asks[] = {
    { "as it should be", 0, 1, 2, 106, 0 },
    { "nothing", 0, 0, 0, 0, 0 },
    { "negative column", 0, 1, -1, 0, -EINVAL },
    { "column behind the last", 0, 1, 3, 0, -EINVAL },
    { "negative row", 0, 1, 0, -1, -EINVAL },
    { "row behind the last of its column", 0, 1, 0, 101, -EINVAL },
    { "row near 2^63", 0, 1, 0, INT64_MAX, -EINVAL },
    { "negative ticket", -1, 1, 0, 0, -EINVAL },
    { "ticket behind the last", ROW_TICKETS, 1, 0, 0, -EINVAL },
    { "negative count", 0, -1, 0, 0, -EINVAL },
};

Test(row_store, asks_out_of_range_are_refused_and_leave_the_ticket_free)
{
    struct last_line line = { 0 };
    struct rig g;

    rig_open(&g, DTYPE_BF16, 0, 1);
    log_sink(keep_line, &line);
    for (size_t k = 0; k < N_STORES; k++) {
        struct row_store *s;
        float got[COLS];

        cr_assert(eq(int, stores[k].open(g.p, &s), 0));
        for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
            const struct ask_case *c = &asks[i];
            int r = s->ops->ask(s, &g.tables.t[0], c->ticket, &c->column, &c->row, c->n);

            cr_expect(eq(int, r, c->result), "%s: %s", stores[k].name, c->name);
            cr_expect(eq(int, s->ops->take(s, c->ticket, got), c->result == 0 ? 0 : -EINVAL),
                      "%s: %s", stores[k].name, c->name);
        }
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 5, &asks[0].column, &asks[0].row, 1), 0));
        cr_expect(
            eq(int, s->ops->ask(s, &g.tables.t[1], 5, &asks[0].column, &asks[0].row, 1), -EINVAL),
            "a ticket has one ask");
        cr_expect(eq(int, s->ops->take(s, 5, got), 0));
        cr_expect(eq(int, s->ops->take(s, 5, got), -EINVAL), "taken once");
        s->ops->close(s);
    }
    rig_close(&g);
}

/* The pack shrinks under the store: an error that names the table, nothing in out, and the store
 * goes on. */
Test(row_store, a_truncated_file_is_an_error)
{
    struct last_line line = { 0 };
    struct rig g;

    rig_open(&g, DTYPE_BF16, 0, 1);
    log_sink(keep_line, &line);
    for (size_t k = 0; k < N_STORES; k++) {
        int32_t column[2] = { 0, 2 };
        int64_t row[2] = { 0, 126 };
        float got[2 * COLS], want[COLS];
        struct row_store *s;
        uint64_t offset;
        int64_t rows;
        int fd;

        cr_assert(eq(int, pack_rows_fd(g.p, g.tables.t[1].id, 2, &fd, &offset, &rows), 0));
        cr_assert(eq(int, stores[k].open(g.p, &s), 0));
        cr_assert(truncate(g.path, (off_t)offset + 4) == 0);
        memset(got, 0x7f, sizeof(got));
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[1], 0, column, row, 2), 0));
        line = (struct last_line){ 0 };
        cr_expect(eq(int, s->ops->take(s, 0, got), -EIO), "%s", stores[k].name);
        cr_expect(strstr(line.text, "table 1") && line.n == 1, "%s: %s", stores[k].name, line.text);
        for (int i = 0; i < 2 * COLS; i++)
            cr_expect(f32_bits(got[i]) == 0x7f7f7f7f, "%s: out is not written", stores[k].name);
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[1], 0, column, row, 1), 0));
        cr_expect(eq(int, s->ops->take(s, 0, got), 0), "%s: rows that are there", stores[k].name);
        source_row(&g, 1, 0, 0, want);
        cr_expect(memcmp(got, want, sizeof(want)) == 0);
        s->ops->close(s);
    }
    rig_close(&g);
}
