/* N-gram rows that come late, or not at all: a window runs on the same bits whenever its rows come,
 * and ends with the row store's error when they do not. */
#include "tests/rig/goldens.h"
#include "tests/rig/rig.h"

#include "src/base/clock.h"
#include "src/base/log.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT 21
#define ROWS 5

/* A store in front of the rig's. */
struct late_store {
    struct row_store base;
    struct row_store *real;
    int64_t delay_ns;
    int asks, takes;
    int fail_at; /* of takes, from 1; 0: none */
};

static int late_ask(struct row_store *s, const struct row_table *t, int ticket,
                    const int32_t *column, const int64_t *row_in_column, int n)
{
    struct late_store *l = (struct late_store *)s;

    l->asks++;
    return l->real->ops->ask(l->real, t, ticket, column, row_in_column, n);
}

static int late_take(struct row_store *s, int ticket, float *out)
{
    struct late_store *l = (struct late_store *)s;
    int r = l->real->ops->take(l->real, ticket, out);

    clock_sleep(l->delay_ns);
    if (++l->takes == l->fail_at)
        return fail(-EIO, "row store: a test has lost the rows of ticket %d", ticket);
    return r;
}

static const struct row_store_ops late_ops = { .name = "late", .ask = late_ask, .take = late_take };

static void describe(struct rig *g, int slot, const int32_t *tok, int rows)
{
    window_clear(g->w);
    cr_assert(eq(int, window_add(g->w, slot, tok, rows, 0), 0));
    g->w->head = true;
}

/* A window through this store; the result is the wait's. */
static int window(struct rig *g, struct late_store *l, int slot, const int32_t *tok, float *logits)
{
    size_t z = (size_t)g->m->vocab_share * ROWS;
    int owed = l->takes, r;

    describe(g, slot, tok, ROWS);
    cr_assert(eq(int, g->m->ops->stage(g->m, g->pool, &l->base, g->w), 0));
    cr_expect(eq(int, l->takes, owed), "staging does not wait for rows");
    cr_assert(eq(int, window_upload(&g->x, g->pool, g->w), 0));
    g->m->ops->forward(g->m, &g->x, g->pool, g->w);
    r = g->q->ops->wait(g->q);
    if (r == 0) {
        g->q->ops->get(g->q, logits, g->w->logits, sizeof(float) * z);
        cr_assert(eq(int, g->q->ops->wait(g->q), 0));
    }
    return r;
}

static void late_rows(struct rig *g, void *arg)
{
    size_t n, z = (size_t)g->m->vocab_share * ROWS;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    float *want = calloc(z, sizeof(float)), *got = calloc(z, sizeof(float));
    struct late_store l = { .base = { &late_ops }, .real = g->rows };
    int slot;

    cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
    rig_forward(g, slot, ids, PROMPT, false);
    rig_keep(g, slot, PROMPT);
    cr_expect(eq(int, window(g, &l, slot, ids + PROMPT, want), 0));
    cr_expect(l.asks == g->m->tables && l.takes == g->m->tables, "%d asks, %d takes", l.asks,
              l.takes);

    l.takes = 0;
    l.delay_ns = 20 * NS_PER_MS;
    memset(got, 0, z * sizeof(float));
    cr_expect(eq(int, window(g, &l, slot, ids + PROMPT, got), 0));
    cr_expect(memcmp(want, got, z * sizeof(float)) == 0, "late rows");
    l.delay_ns = 0;

    for (int t = 1; t <= g->m->tables; t++) {
        l.takes = 0;
        l.fail_at = t;
        cr_expect(eq(int, window(g, &l, slot, ids + PROMPT, got), -EIO), "table %d", t - 1);
        cr_expect(strstr(fail_text(), "a test has lost the rows") != NULL, "%s", fail_text());

        /* what is still owed is no harm to the next window */
        l.takes = l.fail_at = 0;
        describe(g, slot, ids, PROMPT);
        cr_assert(eq(int, g->m->ops->stage(g->m, g->pool, &l.base, g->w), 0));
        window_ask(g->w);
        describe(g, slot, ids, PROMPT);
        cr_assert(eq(int, g->m->ops->stage(g->m, g->pool, &l.base, g->w), 0));
        cr_expect(l.takes >= g->m->tables, "rows of a window that never ran");
        memset(got, 0, z * sizeof(float));
        cr_expect(eq(int, window(g, &l, slot, ids + PROMPT, got), 0));
        cr_expect(memcmp(want, got, z * sizeof(float)) == 0, "the window after a failure");
    }

    /* a window that was launched keeps what it is owed: another that is staged meanwhile is
     * refused */
    describe(g, slot, ids + PROMPT, ROWS);
    cr_assert(eq(int, g->m->ops->stage(g->m, g->pool, &l.base, g->w), 0));
    window_launched(g->w);
    l.takes = 0;
    cr_expect(eq(int, g->m->ops->stage(g->m, g->pool, &l.base, g->w), -EBUSY));
    cr_expect(strstr(fail_text(), "staged while the one before it waits") != NULL, "%s",
              fail_text());
    cr_expect(l.takes == 0 && *g->w->owed[0].flag == 0, "the launched window's rows");
    cr_assert(eq(int, window_upload(&g->x, g->pool, g->w), 0));
    g->m->ops->forward(g->m, &g->x, g->pool, g->w);
    cr_assert(eq(int, g->q->ops->wait(g->q), 0));
    cr_expect(eq(int, l.takes, g->m->tables));
    memset(got, 0, z * sizeof(float));
    cr_expect(eq(int, window(g, &l, slot, ids + PROMPT, got), 0));
    cr_expect(memcmp(want, got, z * sizeof(float)) == 0, "the window after it");

    /* closing: whoever waits for what is owed is told, before anything is freed */
    describe(g, slot, ids + PROMPT, ROWS);
    cr_assert(eq(int, g->m->ops->stage(g->m, g->pool, &l.base, g->w), 0));
    window_launched(g->w);
    window_cancel(g->w);
    for (int t = 0; t < g->m->tables; t++)
        cr_expect(eq(int, (int)*g->w->owed[t].flag, -ECANCELED));
    free(want);
    free(got);
}

Test(rows, that_come_late_change_nothing_and_that_are_lost_end_their_window)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .rows_max = 64 }, late_rows, NULL);
}
