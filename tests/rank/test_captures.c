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
    int begun, ended, closed, room, error;
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

static const struct backend_ops fake_ops = { .graph_begin = fake_begin,
                                             .graph_end = fake_end,
                                             .graph_close = fake_close };
static struct queue queue = { .ops = &fake_ops };

static void queue_nothing(void *arg)
{
    ++*(int *)arg;
}

static int lines[LOG_LEVELS];

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

static int take(struct captures *c, int part, int rows, struct graph **g)
{
    int n = 0;

    return captures_take(c, &(struct capture_key){ .part = part, .rows = rows, .segs = 1 },
                         queue_nothing, &n, g);
}

Test(captures, the_one_unused_for_longest_goes)
{
    struct captures *c = begin(3, 100);
    struct graph *g, *first;

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
    struct graph *g[3];

    captures_next(c);
    cr_expect(eq(int, take(c, 0, 1, &g[0]), 1));
    cr_expect(eq(int, take(c, 1, 1, &g[1]), 1));
    cr_expect(eq(int, take(c, 2, 1, &g[2]), 0));
    cr_expect(g[0] && g[1] && !g[2]);
    cr_expect(eq(int, fake.closed, 0));
    cr_expect(eq(u64, captures_counts(c).eager, 1));
    captures_close(c);
}

/* Ranks take the same keys: one that is short of memory still meets the others in the same rounds. */
Test(captures, short_of_memory_it_goes_on_eagerly_and_in_step)
{
    struct captures *rich = begin(8, 100), *poor;
    struct graph *g, *h;
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
    struct graph *g;

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
    struct graph *g;
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

Test(captures, buckets_hold_the_rows)
{
    static const int at[] = { 1, 8, 9, 12, 13, 16, 17, 24, 25, 32, 33, 48, 49, 64 };
    static const int want[] = { 1, 8, 12, 12, 16, 16, 24, 24, 32, 32, 48, 48, 64, 64 };

    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++)
        cr_expect(eq(int, captures_bucket(at[i]), want[i]), "%d rows", at[i]);
}
