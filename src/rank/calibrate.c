/* calibrate.c owns the text and the schedule of the measurement; what a window is and costs is not
 * its business. */
#include "src/rank/calibrate.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/sort.h"
#include "src/draft/drafter.h"
#include "src/model/tokenizer.h"
#include "src/rank/order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNS_MAX 8
#define PROMPT_MAX 240

/* What is measured, one group after the other; the members of a group take turns, so that a
 * drifting clock reaches all of them alike. */
static const struct group {
    int first, last; /* rows of one slot */
    int warm, runs;
} groups[] = { { 1, 4, 3, 5 }, { 5, 8, 3, 5 }, { 9, 16, 1, 5 }, { 1, 4, 1, 5 } };

/* Windows that slots share. The first tells what a further slot costs. */
static const struct shared {
    int slots, rows; /* of each */
} shared[] = { { 2, 4 }, { 2, 12 }, { 2, 16 }, { 3, 16 }, { 4, 16 } };

#define GROUPS (sizeof(groups) / sizeof(groups[0]))
#define SHARED (sizeof(shared) / sizeof(shared[0]))
#define SHARED_RUNS 3

static const char text[] = "The old lighthouse keeper climbed the stairs every evening, counting "
                           "them aloud so that he would not think of the "
                           "sea. There were one hundred and forty, and the last one was broken. A "
                           "recursive function calls itself on a smaller "
                           "part of its input until nothing is left to do.\n\n"
                           "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n\n"
                           "for i in range(1, 11):\n    print(i, i * i, gcd(i, 12))\n";

struct meter {
    struct rounds *r;
    int rows, slots; /* most of one slot; slots that have a prompt */
    struct cost_table t;
};

static int32_t median_us(int64_t *ns, int n)
{
    int64_t us;

    sort_i64(ns, (size_t)n);
    us = ns[n / 2] / NS_PER_US;
    return (int32_t)(us < INT32_MAX ? us : INT32_MAX);
}

/* One slot's windows of first .. last rows. Measured again, the lower median counts: clocks
 * settle. */
static int measure_group(struct meter *m, const struct group *g)
{
    int64_t ns[WINDOW_MAX + 1][RUNS_MAX], one;
    int last = g->last < m->rows ? g->last : m->rows, err = 0;

    for (int run = -g->warm; run < g->runs && err == 0; run++)
        for (int rows = g->first; rows <= last && err == 0; rows++) {
            err = order_calibrate(m->r, &(struct plan_calibrate){ .slots = 1, .rows = rows }, &one);
            if (run >= 0)
                ns[rows][run] = one;
        }
    for (int rows = g->first; rows <= last && err == 0; rows++) {
        int32_t us = median_us(ns[rows], g->runs);

        if (m->t.window_us[rows] == 0 || us < m->t.window_us[rows])
            m->t.window_us[rows] = us;
    }
    return err;
}

static int measure_one(struct meter *m, struct plan_calibrate p, int32_t *us)
{
    int64_t ns[SHARED_RUNS], one;
    int err = 0;

    for (int run = -1; run < SHARED_RUNS && err == 0; run++) {
        err = order_calibrate(m->r, &p, &one);
        if (run >= 0)
            ns[run] = one;
    }
    if (err == 0)
        *us = median_us(ns, SHARED_RUNS);
    return err;
}

/* Entries behind the last measured one up to `rows`, on the line to it. */
static void draw_line(struct cost_table *t, int rows, int32_t us)
{
    int from = t->rows;
    int64_t begin = t->window_us[from];

    for (int r = from + 1; r <= rows; r++)
        t->window_us[r] = (int32_t)(begin + (us - begin) * (r - from) / (rows - from));
    t->rows = rows;
}

static int measure_shared(struct meter *m)
{
    int32_t further = 0, us;
    int err = 0;

    for (size_t i = 0; i < SHARED && err == 0; i++) {
        const struct shared *s = &shared[i];
        int all = s->slots * s->rows;

        if (s->slots > m->slots || s->rows > m->rows)
            break;
        err = measure_one(m, (struct plan_calibrate){ .slots = s->slots, .rows = s->rows }, &us);
        if (err != 0)
            break;
        if (i == 0)
            further = us > cost_window(&m->t, all) ? us - cost_window(&m->t, all) : 0;
        else
            draw_line(&m->t, all, us - (s->slots - 1) * further);
    }
    return err;
}

static int measure(struct meter *m)
{
    int err = 0;

    m->t.rows = m->rows;
    for (size_t i = 0; i < GROUPS && err == 0; i++)
        err = measure_group(m, &groups[i]);
    if (err == 0)
        err = measure_shared(m);
    for (int s = 1; s <= m->slots && err == 0 && m->r->k->drafter->ops->caps & DRAFTER_DEVICE; s++)
        err = measure_one(m, (struct plan_calibrate){ .slots = s, .flags = CALIBRATE_PASS },
                          &m->t.draft_us[s]);
    cost_settle(&m->t);
    return err;
}

/* A prompt of n tokens, of which all but the last `rows` have run. */
static int fill(struct rounds *r, int slot, const int32_t *ids, int n, int rows)
{
    struct plan_admit a = { .slot = slot, .n = n, .flags = ADMIT_DRAFT, .ids = ids };
    struct plan_span s = { .slot = slot };
    int err = order_admit(r, &a);

    for (; s.start < n - rows && err == 0; s.start = s.end) {
        s.end = s.start + r->k->bounds.prefill_chunk;
        if (s.end > n - rows)
            s.end = n - rows;
        err = order_fill(r, &s);
    }
    return err;
}

static void print(const struct cost_table *t)
{
    char line[256] = "", passes[64] = "";
    size_t at = 0;
    int narrow = t->rows < WINDOW_MAX ? t->rows : WINDOW_MAX;

    for (int i = 1; i <= narrow; i++)
        at += (size_t)snprintf(line + at, sizeof(line) - at, " %.2f", t->window_us[i] / 1000.0);
    if (t->rows > narrow)
        snprintf(line + at, sizeof(line) - at, " .. %.2f", t->window_us[t->rows] / 1000.0);
    at = 0;
    for (int i = 1; i <= SLOTS_MAX; i++)
        at += (size_t)snprintf(passes + at, sizeof(passes) - at, " %.2f", t->draft_us[i] / 1000.0);
    log_info("costs: windows of 1 .. %d rows%s ms, draft passes of 1 .. %d slots%s ms", t->rows,
             line, SLOTS_MAX, passes);
}

/* Every slot has another part of the text, so that their windows are not the same rows. */
static int fill_slots(struct meter *m, const int32_t *ids, int all)
{
    int n = all - SLOTS_MAX, err = 0;

    if (n > PROMPT_MAX)
        n = PROMPT_MAX;
    if (n > m->r->k->bounds.context)
        n = m->r->k->bounds.context;
    if (n <= m->rows)
        return 1;
    for (; m->slots < m->r->k->bounds.slots && err == 0; m->slots++)
        err = fill(m->r, m->slots, ids + m->slots, n, m->rows);
    return err;
}

int calibrate_run(struct rounds *r, struct cost_table *out)
{
    const struct rank *k = r->k;
    struct meter m = { .r = r, .rows = k->copies ? WINDOW_MAX : k->drafter->block + 1 };
    int all, err;
    int32_t *ids;

    if (m.rows > k->bounds.window_max)
        m.rows = k->bounds.window_max;
    err = tokenizer_encode(k->tok, text, strlen(text), 0, &ids, &all);
    if (err < 0)
        return err;
    err = fill_slots(&m, ids, all);
    if (err == 0)
        err = measure(&m);
    for (int slot = 0; slot < m.slots && err == 0; slot++)
        err = order_release(r, slot);
    free(ids);
    if (err != 0)
        return err;
    *out = m.t;
    print(out);
    return 0;
}
