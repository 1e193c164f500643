#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/model/pack.h"
#include "src/model/row_ask.h"
#include "src/model/row_store.h"
#include "src/model/source.h"
#include "tests/model/tensors.h"

#define TABLES 2
#define COLS 5
#define N 40

#define LIMIT_MS 80      /* of a disk that says nothing */
#define PATIENT_MS 20000 /* of one that works, on a machine that may be busy */

/* Every implementer is held to the same cases, with a cache and without. */
static const struct {
    const char *name, *io;
    size_t cache;
    bool answers_late; /* goes on while the disk does not answer */
} stores[] = {
    { "pread", "pread", 1 << 16, false },
    { "pread without a cache", "pread", 0, false },
    { "uring", "uring", 1 << 16, true },
    { "uring without a cache", "uring", 0, true },
    { "uring with room for a few rows", "uring", 300, true },
};

#define N_STORES (sizeof(stores) / sizeof(stores[0]))

/* NULL where the kernel or the build has no such store: said, not passed over. */
static struct row_store *store_within(size_t k, struct pack *p, int limit_ms)
{
    struct row_store_settings set = {
        .pack = p, .io = stores[k].io, .cache_bytes = stores[k].cache, .wait_limit_ms = limit_ms
    };
    struct row_store *s;
    int r = row_store_open(&set, &s);

    if (r == -ENODEV) {
        cr_log_warn("%s: not on this machine", stores[k].name);
        return NULL;
    }
    cr_assert(eq(int, r, 0));
    return s;
}

static struct row_store *store_open(size_t k, struct pack *p)
{
    return store_within(k, p, PATIENT_MS);
}

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

static void same_as_source(struct rig *g, size_t k, enum dtype dtype)
{
    struct row_store *s = store_open(k, g->p);
    int32_t column[TABLES][N];
    int64_t row[TABLES][N];
    float got[N * COLS], want[COLS];
    struct row_store_stats stats;
    int n[TABLES];

    if (!s)
        return;
    for (int t = 0; t < TABLES; t++) { /* both asked before either is taken */
        n[t] = choose(&g->tables.t[t], t, N, column[t], row[t]);
        cr_assert(eq(
            int, s->ops->ask(s, &g->tables.t[t], t ? ROW_TICKETS - 1 : 0, column[t], row[t], n[t]),
            0));
    }
    for (int t = TABLES - 1; t >= 0; t--) {
        cr_assert(eq(int, s->ops->take(s, t ? ROW_TICKETS - 1 : 0, got), 0));
        for (int i = 0; i < n[t]; i++) {
            source_row(g, t, g->tables.t[t].first + column[t][i], row[t][i], want);
            cr_expect(memcmp(got + i * COLS, want, sizeof(want)) == 0, "%s: table %d, row %d",
                      stores[k].name, t, i);
        }
    }
    s->ops->stats(s, &stats);
    cr_expect(eq(ulong, stats.rows, (unsigned long)(n[0] + n[1])));
    cr_expect(eq(ulong, stats.reads + stats.joined + stats.hits, stats.rows));
    cr_expect(eq(ulong, stats.bytes, stats.reads * COLS * dtype_bytes(dtype)));
    cr_expect(eq(int, stats.reads > 0, stats.rows > 0));
    s->ops->close(s);
}

Test(row_store, rows_are_those_of_the_source_in_the_order_asked)
{
    for (enum dtype dtype = DTYPE_F32; dtype < DTYPE_COUNT; dtype++)
        for (int ranks = 1; ranks <= 3; ranks += 2)
            for (int rank = 0; rank < ranks; rank++) {
                struct rig g;

                rig_open(&g, dtype, rank, ranks);
                for (size_t k = 0; k < N_STORES; k++)
                    same_as_source(&g, k, dtype);
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
        struct row_store *s = store_open(k, g.p);
        float got[COLS];

        for (size_t i = 0; s && i < sizeof(asks) / sizeof(asks[0]); i++) {
            const struct ask_case *c = &asks[i];
            int r = s->ops->ask(s, &g.tables.t[0], c->ticket, &c->column, &c->row, c->n);

            cr_expect(eq(int, r, c->result), "%s: %s", stores[k].name, c->name);
            cr_expect(eq(int, s->ops->take(s, c->ticket, got), c->result == 0 ? 0 : -EINVAL),
                      "%s: %s", stores[k].name, c->name);
        }
        if (!s)
            continue;
        cr_expect(eq(int, s->ops->warm(s, &g.tables.t[0], &asks[4].column, &asks[0].row, 1),
                     asks[4].result));
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
        struct row_store *s = store_open(k, g.p);
        struct pack_rows at;

        if (!s)
            continue;
        cr_assert(eq(int, pack_rows_at(g.p, g.tables.t[1].id, 2, &at), 0));
        cr_assert(truncate(g.path, (off_t)at.piece[0].offset + 4) == 0);
        memset(got, 0x7f, sizeof(got));
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[1], 0, column, row, 2), 0));
        line = (struct last_line){ 0 };
        cr_expect(eq(int, s->ops->take(s, 0, got), -EIO), "%s", stores[k].name);
        cr_expect(strstr(line.text, "table 1 column 2 row 126") &&
                      strstr(line.text, "the file ends before it") && line.n == 1,
                  "%s: %s", stores[k].name, line.text);
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

/* Wants that nobody waits for any more are read in their turn, and are nobody else's before. */
Test(row_store, an_ask_that_was_given_up_leaves_its_reads_to_come)
{
    static const int32_t column[3] = { 0, 1, 2 };
    static const int64_t gone[3] = { 3, 4, 5 }, row[3] = { 6, 7, 8 };
    struct row_asks a;
    struct row_want *w, *seen[8];
    float got[3 * COLS], want[COLS];
    struct rig g;
    int n = 0;

    rig_open(&g, DTYPE_BF16, 0, 1);
    cr_assert(eq(int, row_asks_open(&a, &(struct row_store_settings){ .pack = g.p }, NULL), 0));
    cr_assert(eq(int, row_asks_add(&a, &g.tables.t[0], 0, column, gone, 3), 0));
    cr_expect(eq(int, row_asks_take(&a, 0, 9, got), -ETIMEDOUT));
    cr_assert(eq(int, row_asks_add(&a, &g.tables.t[0], 1, column, row, 3), 0));
    cr_expect(eq(int, row_asks_left(&a, 1), 3));
    while ((w = row_asks_next(&a))) {
        struct row_piece p = row_want_rest(w);

        cr_assert(lt(int, n, 6));
        seen[n++] = w;
        cr_expect(eq(i64, w->row, n <= 3 ? gone[n - 1] : row[n - 4]));
        cr_assert(eq(int, full_pread(p.fd, w->buf, p.bytes, p.place, "row"), 0));
    }
    cr_assert(eq(int, n, 6));
    for (int i = 0; i < n; i++)
        row_asks_done(&a, seen[i], 0);
    cr_expect(eq(int, row_asks_take(&a, 1, 9, got), 0));
    for (int i = 0; i < 3; i++) {
        source_row(&g, 0, column[i], row[i], want);
        cr_expect(memcmp(got + i * COLS, want, sizeof(want)) == 0, "row %d", i);
    }
    row_asks_close(&a);
    rig_close(&g);
}

/* Reads of rows asked several times, in one ask and in two that are open at once, and of rows that
 * were asked before. */
Test(row_store, a_row_is_read_once_however_often_it_is_asked)
{
    struct rig g;

    rig_open(&g, DTYPE_F16, 0, 1);
    for (size_t k = 0; k < N_STORES; k++) {
        static const int32_t column[6] = { 0, 1, 0, 2, 1, 0 };
        static const int64_t row[6] = { 7, 7, 7, 9, 7, 8 }; /* four of them different */
        struct row_store *s = store_open(k, g.p);
        struct row_store_stats stats;
        float got[6 * COLS], want[COLS];

        if (!s)
            continue;
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 0, column, row, 6), 0));
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 1, column, row, 6), 0));
        for (int ticket = 1; ticket >= 0; ticket--) {
            cr_assert(eq(int, s->ops->take(s, ticket, got), 0));
            for (int i = 0; i < 6; i++) {
                source_row(&g, 0, column[i], row[i], want);
                cr_expect(memcmp(got + i * COLS, want, sizeof(want)) == 0, "%s: row %d",
                          stores[k].name, i);
            }
        }
        s->ops->stats(s, &stats);
        cr_expect(eq(ulong, stats.reads, 4), "%s", stores[k].name);
        cr_expect(eq(ulong, stats.joined, 8), "%s", stores[k].name);
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 0, column, row, 6), 0));
        cr_assert(eq(int, s->ops->take(s, 0, got), 0));
        s->ops->stats(s, &stats);
        if (stores[k].cache) {
            cr_expect(eq(ulong, stats.hits, 6), "%s", stores[k].name);
            cr_expect(eq(ulong, stats.reads, 4), "%s", stores[k].name);
        } else {
            cr_expect(eq(ulong, stats.reads, 8), "%s", stores[k].name);
        }
        s->ops->close(s);
    }
    rig_close(&g);
}

/* Many asks, warmings and takes in any order, more rows at once than a store reads at once: every
 * row is that of the source. */
Test(row_store, no_order_of_asks_gives_a_wrong_row)
{
    enum { MANY = 700, STEPS = 120, OPEN = 5 };
    struct rig g;

    rig_open(&g, DTYPE_BF16, 0, 1);
    for (size_t k = 0; k < N_STORES; k++) {
        struct row_store *s = store_open(k, g.p);
        static int32_t column[OPEN][MANY];
        static int64_t row[OPEN][MANY];
        static float got[MANY * COLS];
        int n[OPEN] = { 0 }, table[OPEN] = { 0 };
        bool open[OPEN] = { false };

        for (uint32_t step = 0; s && step < STEPS; step++) {
            struct philox p = philox4x32(step, 0, 0, 0, 17);
            int ticket = (int)(p.w[0] % OPEN);

            if (open[ticket]) {
                cr_assert(eq(int, s->ops->take(s, ticket, got), 0));
                for (int i = 0; i < n[ticket]; i++) {
                    float want[COLS];

                    source_row(&g, table[ticket], column[ticket][i], row[ticket][i], want);
                    cr_assert(memcmp(got + i * COLS, want, sizeof(want)) == 0, "%s: step %u row %d",
                              stores[k].name, step, i);
                }
                open[ticket] = false;
                continue;
            }
            table[ticket] = (int)(p.w[1] % TABLES);
            n[ticket] = (int)(p.w[2] % 8 ? p.w[3] % 30 : p.w[3] % MANY);
            for (int i = 0; i < n[ticket]; i++) {
                struct philox q = philox4x32(step, (uint32_t)i, 1, 0, 17);

                column[ticket][i] = (int32_t)(q.w[0] % 3);
                row[ticket][i] = q.w[1] % primes[table[ticket]][column[ticket][i]];
            }
            if (p.w[2] % 3 == 0) {
                cr_assert(eq(int,
                             s->ops->warm(s, &g.tables.t[table[ticket]], column[ticket],
                                          row[ticket], n[ticket]),
                             0));
                continue;
            }
            cr_assert(eq(int,
                         s->ops->ask(s, &g.tables.t[table[ticket]], ticket, column[ticket],
                                     row[ticket], n[ticket]),
                         0));
            open[ticket] = true;
        }
        if (s)
            s->ops->close(s);
    }
    rig_close(&g);
}

/* The descriptor of the pack becomes something else: a disk that does not answer or fails. The real
 * one comes back with the answer. */
static int break_disk(struct rig *g, int with)
{
    struct pack_rows at;
    int fd, saved;

    cr_assert(eq(int, pack_rows_at(g->p, g->tables.t[0].id, 0, &at), 0));
    fd = at.piece[0].fd;
    saved = dup(fd);
    cr_assert(saved >= 0 && dup2(with, fd) == fd);
    return saved;
}

static void mend_disk(struct rig *g, int saved)
{
    struct pack_rows at;

    cr_assert(eq(int, pack_rows_at(g->p, g->tables.t[0].id, 0, &at), 0));
    cr_assert(dup2(saved, at.piece[0].fd) == at.piece[0].fd);
    close(saved);
}

Test(row_store, a_disk_that_fails_is_named_and_the_next_ask_reads_again)
{
    struct last_line line = { 0 };
    struct rig g;

    rig_open(&g, DTYPE_F32, 0, 1);
    log_sink(keep_line, &line);
    for (size_t k = 0; k < N_STORES; k++) {
        struct row_store *s = store_open(k, g.p);
        int32_t column[3] = { 0, 1, 0 };
        int64_t row[3] = { 3, 4, 3 };
        float got[3 * COLS], want[COLS];
        int nobody = open("/proc/self/mem", O_RDONLY | O_CLOEXEC), saved; /* page 0 is not there */

        if (!s)
            continue;
        cr_assert(nobody >= 0);
        saved = break_disk(&g, nobody);
        memset(got, 0x7f, sizeof(got));
        line = (struct last_line){ 0 };
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 2, column, row, 3), 0));
        cr_expect(eq(int, s->ops->take(s, 2, got), -EIO), "%s", stores[k].name);
        cr_expect(strstr(line.text, "table 0 column 0 row 3") &&
                      strstr(line.text, "Input/output error") && strstr(line.text, "x.pack"),
                  "%s: %s", stores[k].name, line.text);
        cr_expect(eq(int, line.n, 1), "%s: one line", stores[k].name);
        cr_expect(f32_bits(got[0]) == 0x7f7f7f7f, "%s: out is not written", stores[k].name);
        mend_disk(&g, saved);
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 2, column, row, 3), 0));
        cr_expect(eq(int, s->ops->take(s, 2, got), 0), "%s: read again", stores[k].name);
        source_row(&g, 0, 0, 3, want);
        cr_expect(memcmp(got, want, sizeof(want)) == 0, "%s", stores[k].name);
        s->ops->close(s);
        close(nobody);
    }
    rig_close(&g);
}

Test(row_store, rows_that_are_here_need_no_disk_and_others_end_in_time)
{
    struct last_line line = { 0 };
    struct rig g;

    rig_open(&g, DTYPE_F32, 0, 1);
    log_sink(keep_line, &line);
    for (size_t k = 0; k < N_STORES; k++) {
        struct row_store *s = store_within(k, g.p, LIMIT_MS);
        int32_t column[2] = { 0, 1 };
        int64_t row[2] = { 3, 4 }, far = 77;
        float got[2 * COLS], want[COLS];
        struct row_store_stats before, after;
        int pipe_fd[2], saved;
        int64_t begin;

        if (!s)
            continue;
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 0, column, row, 2), 0));
        cr_assert(eq(int, s->ops->take(s, 0, got), 0));
        cr_assert(pipe2(pipe_fd, O_CLOEXEC) == 0);
        saved = break_disk(&g, pipe_fd[0]);
        s->ops->stats(s, &before);
        if (stores[k].cache) { /* also while another ask waits for a disk that says nothing */
            if (stores[k].answers_late)
                cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 7, column, &far, 1), 0));
            cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 0, column, row, 2), 0));
            cr_expect(eq(int, s->ops->take(s, 0, got), 0), "%s", stores[k].name);
            s->ops->stats(s, &after);
            cr_expect(eq(ulong, after.waits, before.waits), "%s", stores[k].name);
            source_row(&g, 0, 1, 4, want);
            cr_expect(memcmp(got + COLS, want, sizeof(want)) == 0, "%s", stores[k].name);
        }
        if (stores[k].answers_late) {
            if (!stores[k].cache)
                cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 7, column, &far, 1), 0));
            begin = clock_ns();
            line = (struct last_line){ 0 };
            memset(got, 0x7f, sizeof(got));
            cr_expect(eq(int, s->ops->take(s, 7, got), -ETIMEDOUT), "%s", stores[k].name);
            cr_expect(clock_ns() - begin >= LIMIT_MS * NS_PER_MS &&
                          clock_ns() - begin < PATIENT_MS / 2 * NS_PER_MS,
                      "%s", stores[k].name);
            cr_expect(strstr(line.text, "row 77") && strstr(line.text, "has not answered") &&
                          line.n == 1,
                      "%s: %s", stores[k].name, line.text);
            cr_expect(f32_bits(got[0]) == 0x7f7f7f7f, "%s: out is not written", stores[k].name);
        }
        mend_disk(&g, saved);
        s->ops->close(s); /* takes back the read that nothing answers */
        close(pipe_fd[0]);
        close(pipe_fd[1]);
    }
    rig_close(&g);
}

struct slow_disk {
    int fd, reader; /* the reader's thread */
    atomic_int asked;
    float row[COLS];
};

static bool sleeps(int thread)
{
    char path[64], state = 0;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
    f = fopen(path, "re");
    cr_assert(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
    fclose(f);
    return state == 'S' || state == 'D';
}

/* A row in two parts, both late: behind the moment from which the reader waits. */
static void *answer(void *arg)
{
    struct slow_disk *d = (struct slow_disk *)arg;

    while (!atomic_load(&d->asked) || !sleeps(d->reader))
        clock_sleep(NS_PER_MS);
    clock_sleep(10 * NS_PER_MS);
    if (write(d->fd, d->row, 7) != 7)
        abort();
    clock_sleep(10 * NS_PER_MS);
    if (write(d->fd, (char *)d->row + 7, sizeof(d->row) - 7) != (ssize_t)sizeof(d->row) - 7)
        abort();
    return NULL;
}

Test(row_store, a_slow_disk_is_waited_for_and_counted)
{
    struct rig g;

    rig_open(&g, DTYPE_F32, 0, 1);
    for (size_t k = 0; k < N_STORES; k++) {
        struct row_store *s = stores[k].answers_late ? store_open(k, g.p) : NULL;
        struct slow_disk d = { .row = { 1, 2, 3, 4, 5 }, .reader = gettid() };
        struct row_store_stats stats;
        int32_t column = 0;
        int64_t row = 3;
        float got[COLS];
        int pipe_fd[2], saved;
        pthread_t thread;

        if (!s)
            continue;
        cr_assert(pipe2(pipe_fd, O_CLOEXEC) == 0);
        saved = break_disk(&g, pipe_fd[0]);
        d.fd = pipe_fd[1];
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 0, &column, &row, 1), 0));
        cr_assert(pthread_create(&thread, NULL, answer, &d) == 0);
        atomic_store(&d.asked, 1);
        cr_expect(eq(int, s->ops->take(s, 0, got), 0), "%s", stores[k].name);
        pthread_join(thread, NULL);
        cr_expect(memcmp(got, d.row, sizeof(got)) == 0, "%s", stores[k].name);
        s->ops->stats(s, &stats);
        cr_expect(eq(ulong, stats.waits, 1), "%s", stores[k].name);
        cr_expect(stats.wait_ns > (uint64_t)(10 * NS_PER_MS), "%s", stores[k].name);
        mend_disk(&g, saved);
        s->ops->close(s);
        close(pipe_fd[0]);
        close(pipe_fd[1]);
    }
    rig_close(&g);
}

/* Warmed rows are found, or their reads joined; none is read twice. */
Test(row_store, warmed_rows_are_not_read_again)
{
    struct rig g;

    rig_open(&g, DTYPE_F32, 0, 1);
    for (size_t k = 0; k < N_STORES; k++) {
        struct row_store *s = stores[k].cache >= 1 << 16 ? store_open(k, g.p) : NULL;
        struct row_store_stats stats;
        int32_t column[N];
        int64_t row[N];
        float got[N * COLS], want[COLS];
        int n;

        if (!s)
            continue;
        n = choose(&g.tables.t[0], 0, N, column, row);
        cr_assert(eq(int, s->ops->warm(s, &g.tables.t[0], column, row, n), 0));
        cr_assert(eq(int, s->ops->ask(s, &g.tables.t[0], 0, column, row, n), 0));
        cr_assert(eq(int, s->ops->take(s, 0, got), 0));
        for (int i = 0; i < n; i++) {
            source_row(&g, 0, column[i], row[i], want);
            cr_expect(memcmp(got + i * COLS, want, sizeof(want)) == 0);
        }
        s->ops->stats(s, &stats);
        cr_expect(eq(ulong, stats.reads, stats.warmed), "%s", stores[k].name);
        cr_expect(stats.warmed > 0, "%s", stores[k].name);
        if (stores[k].answers_late)
            cr_expect(eq(ulong, stats.hits + stats.joined, stats.rows), "%s", stores[k].name);
        s->ops->close(s);
    }
    rig_close(&g);
}

Test(row_store, names_choose_the_reader)
{
    struct last_line line = { 0 };
    struct row_store *s;
    struct rig g;

    rig_open(&g, DTYPE_F32, 0, 1);
    log_sink(keep_line, &line);
    cr_assert(
        eq(int, row_store_open(&(struct row_store_settings){ .pack = g.p, .io = "pread" }, &s), 0));
    cr_expect(strcmp(s->ops->name, "pread") == 0);
    s->ops->close(s);
    cr_assert(
        eq(int, row_store_open(&(struct row_store_settings){ .pack = g.p, .io = "auto" }, &s), 0));
    cr_expect(eq(int, line.n, 0), "auto takes what there is: %s", line.text);
    s->ops->close(s);
    rig_close(&g);
}
