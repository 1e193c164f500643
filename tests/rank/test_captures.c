/* Which graphs are kept: a queue that counts stands for a device, so nothing here needs one. */
#include "src/rank/captures.h"

#include "kernels/backend.h"
#include "src/base/log.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

struct graph {
    int id;
};

static struct {
    int begun, ended, closed, launched, room, error;
    struct graph graph[4096];
} fake;

static int fake_begin(struct queue *q)
{
    fake.begun++;
    return 0;
}

static int fake_end(struct queue *q, struct graph **out)
{
    if (fake.error)
        return fail(fake.error, "a queue that counts fails");
    if (fake.ended - fake.closed >= fake.room)
        return fail(-ENOMEM, "a queue that counts is full");
    *out = &fake.graph[fake.ended];
    (*out)->id = fake.ended++;
    return 0;
}

static void fake_close(struct graph *g)
{
    fake.closed += g != NULL;
}

/* In the order in which they were made. */
static void fake_launch(struct queue *q, struct graph *g)
{
    cr_expect(g == &fake.graph[fake.launched]);
    fake.launched++;
}

static const struct backend_ops fake_ops = { .graph_begin = fake_begin,
                                             .graph_end = fake_end,
                                             .graph_launch = fake_launch,
                                             .graph_close = fake_close };
static struct queue queue = { .ops = &fake_ops };

static void queue_nothing(void *arg)
{
    ++*(int *)arg;
}

static int lines[LOG_TRACE + 1];

static void count_line(void *arg, enum log_level level, const char *line)
{
    lines[level]++;
}

static struct captures *begin(int max, int room)
{
    struct captures *c;

    fake.begun = fake.ended = fake.closed = fake.error = 0;
    fake.room = room;
    cr_assert(eq(int, captures_open(&queue, max, &c), 0));
    return c;
}

static int take(struct captures *c, int part, int rows, const struct captured **g)
{
    int n = 0;

    return captures_take(c, &(struct capture_key){ .part = part, .rows = rows, .segs = 1 },
                         queue_nothing, &n, g);
}

Test(captures, the_one_unused_for_longest_goes)
{
    struct captures *c = begin(3, 100);
    const struct captured *g, *first;

    for (int rows = 1; rows <= 3; rows++) {
        captures_next(c);
        cr_expect(eq(int, take(c, 0, rows, &g), 1));
        if (rows == 1)
            first = g;
    }
    captures_next(c);
    cr_expect(eq(int, take(c, 0, 1, &g), 0));
    cr_expect(g == first);
    captures_next(c);
    cr_expect(eq(int, take(c, 0, 4, &g), 1)); /* rows 2 goes */
    captures_next(c);
    cr_expect(eq(int, take(c, 0, 1, &g), 0));
    cr_expect(eq(int, take(c, 0, 3, &g), 0));
    cr_expect(eq(int, captures_counts(c).held, 3));
    captures_next(c);
    cr_expect(eq(int, take(c, 0, 2, &g), 1));
    captures_close(c);
    cr_expect(eq(int, fake.ended, fake.closed));
}

/* Of one round none may push out another: what is taken is launched later. */
Test(captures, a_round_keeps_what_it_has_taken)
{
    struct captures *c = begin(2, 100);
    const struct captured *g[3];

    captures_next(c);
    cr_expect(eq(int, take(c, 0, 1, &g[0]), 1));
    cr_expect(eq(int, take(c, 1, 1, &g[1]), 1));
    cr_expect(eq(int, take(c, 2, 1, &g[2]), 0));
    cr_expect(g[0] && g[1] && !g[2]);
    cr_expect(eq(int, fake.closed, 0));
    cr_expect(eq(u64, captures_counts(c).eager, 1));
    captures_close(c);
}

/* Ranks take the same keys: one that is short of memory still meets the others in the same
 * rounds. */
Test(captures, short_of_memory_it_goes_on_eagerly_and_in_step)
{
    struct captures *rich = begin(8, 100), *poor;
    const struct captured *g, *h;
    int met[40];

    for (int i = 0; i < 40; i++) {
        captures_next(rich);
        met[i] = take(rich, 0, 1 + i * 7 % 11, &g);
    }
    captures_close(rich);
    poor = begin(8, 3);
    log_sink(count_line, NULL);
    for (int i = 0; i < 40; i++) {
        captures_next(poor);
        cr_expect(eq(int, take(poor, 0, 1 + i * 7 % 11, &h), met[i]), "round %d", i);
    }
    log_sink(NULL, NULL);
    cr_expect(eq(int, lines[LOG_WARN], 1));
    cr_expect(eq(int, lines[LOG_ERR], 0));
    cr_expect(eq(int, fake.begun, 4)); /* the fourth was tried, and none after it */
    cr_expect(le(int, captures_counts(poor).held, 3));
    captures_close(poor);
    cr_expect(eq(int, fake.ended, fake.closed));
}

Test(captures, what_is_wrong_with_an_op_is_no_lack_of_memory)
{
    struct captures *c = begin(4, 100);
    const struct captured *g;

    fake.error = -EINVAL;
    captures_next(c);
    log_sink(count_line, NULL);
    cr_expect(eq(int, take(c, 0, 1, &g), -EINVAL));
    log_sink(NULL, NULL);
    cr_expect(eq(int, lines[LOG_ERR], 1));
    cr_expect(eq(int, lines[LOG_WARN], 0));
    fake.error = 0;
    captures_next(c);
    cr_expect(eq(int, take(c, 0, 1, &g), 1));
    captures_close(c);
}

/* Thousands of requests of every depth: the number of graphs is bounded, and all are closed. */
Test(captures, the_bound_is_global)
{
    struct captures *c = begin(48, 1000);
    const struct captured *g;
    uint32_t x = 1;

    for (int i = 0; i < 4000 && fake.ended < 4000; i++) {
        captures_next(c);
        for (int part = 0; part < 3; part++) {
            x = x * 1664525u + 1013904223u;
            cr_assert(ge(int, take(c, part, captures_bucket(1 + (int)(x >> 16) % 64), &g), 0));
        }
        cr_assert(le(int, captures_counts(c).held, 48));
        cr_assert(eq(int, fake.ended - fake.closed, captures_counts(c).held));
    }
    captures_close(c);
    cr_expect(eq(int, fake.ended, fake.closed));
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Cuts so often; how many ops would have run after an error is in `queued`. */
struct cutter {
    struct captures *c;
    int cuts, queued;
};

static void queue_pieces(void *arg)
{
    struct cutter *q = arg;

    for (int i = 0; i <= q->cuts; i++) {
        q->queued += queue.err == 0;
        if (i < q->cuts)
            captures_cut(q->c);
    }
}

Test(captures, a_window_is_launched_piece_by_piece)
{
    static const struct {
        int cuts, room, error;
        int r, n, queued, launched; /* of the take, and of what it gave */
    } cases[] = { { 0, 100, 0, 1, 1, 1, 1 },
                  { 2, 100, 0, 1, 3, 3, 3 },
                  { 20, 100, 0, 1, GRAPH_PIECES_MAX, 21, GRAPH_PIECES_MAX },
                  { 4, 2, 0, 1, 0, 3, 0 },
                  { 4, 100, -EINVAL, -EINVAL, 0, 1, 0 } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct captures *c = begin(4, cases[i].room);
        struct cutter q = { .c = c, .cuts = cases[i].cuts };
        const struct captured *g = NULL;

        log_sink(count_line, NULL);
        fake.error = cases[i].error;
        fake.launched = 0;
        captures_cut(c); /* nothing is being made */
        captures_next(c);
        cr_expect(eq(int,
                     captures_take(c, &(struct capture_key){ .rows = 1 }, queue_pieces, &q, &g),
                     cases[i].r),
                  "case %zu", i);
        log_sink(NULL, NULL);
        cr_expect(eq(int, g ? g->n : 0, cases[i].n), "case %zu", i);
        cr_expect(eq(int, q.queued, cases[i].queued), "case %zu", i);
        cr_expect(eq(int, queue.err, 0), "case %zu", i);
        if (g)
            captured_launch(&queue, g);
        cr_expect(eq(int, fake.launched, cases[i].launched), "case %zu", i);
        cr_expect(eq(int, fake.ended - fake.closed, cases[i].n), "case %zu: what failed is closed",
                  i);
        captures_close(c);
        cr_expect(eq(int, fake.ended, fake.closed), "case %zu", i);
    }
}

Test(captures, layers_are_shared_out_evenly)
{
    for (int layers = 1; layers <= 40; layers++)
        for (int pieces = 1; pieces <= GRAPH_PIECES_MAX; pieces++) {
            int n = 1, least = layers, most = 0, len = 0;

            for (int i = 0; i < layers; i++) {
                bool ends = capture_piece_ends(i, layers, pieces);

                len++;
                n += ends;
                if (!ends && i + 1 < layers)
                    continue;
                least = len < least ? len : least;
                most = len > most ? len : most;
                len = 0;
            }
            cr_expect(eq(int, n, pieces < layers ? pieces : layers), "%d in %d", layers, pieces);
            cr_expect(le(int, most - least, 1), "%d in %d", layers, pieces);
        }
}

Test(captures, buckets_hold_the_rows)
{
    static const int at[] = { 1, 8, 9, 12, 13, 16, 17, 24, 25, 32, 33, 48, 49, 64 };
    static const int want[] = { 1, 8, 12, 12, 16, 16, 24, 24, 32, 32, 48, 48, 64, 64 };

    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++)
        cr_expect(eq(int, captures_bucket(at[i]), want[i]), "%d rows", at[i]);
}
