/* Time of a window of R rows on the pocket model, one thread a rank: verified against single rows
 * first, then the median of many runs that are dropped, so that every run sees the same state. */
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/sort.h"
#include "tests/rig/goldens.h"
#include "tests/rig/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNS 60
#define START 200

static const int row_counts[] = { 1, 2, 3, 4, 5, 6, 8, 16 };

/* The last row of a window of R rows has the bits of the one-row step there. */
static void verify(struct rig *g, int slot, const int32_t *ids, int rows)
{
    size_t z = sizeof(float) * (size_t)g->m->vocab_share;
    float *want = malloc(z), *got = malloc(z);

    for (int i = 0; i < rows; i++) {
        rig_forward(g, slot, ids + START + i, 1, true);
        rig_keep(g, slot, 1);
    }
    g->q->ops->get(g->q, want, g->w->logits, z);
    rig_keep(g, slot, -rows);
    rig_forward(g, slot, ids + START, rows, true);
    g->q->ops->get(g->q, got, g->w->logits + (size_t)(rows - 1) * (size_t)g->m->vocab_share, z);
    if (g->q->ops->wait(g->q) != 0 || memcmp(want, got, z) != 0) {
        fprintf(stderr, "row %d of a window differs from the single row\n", rows);
        abort();
    }
    free(want);
    free(got);
}

static void measure(struct rig *g, void *arg)
{
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    int64_t t[RUNS], one = 0;
    int slot;

    if (slot_take(g->pool, g->q, -1, &slot) != 0)
        abort();
    rig_forward(g, slot, ids, START, false);
    rig_keep(g, slot, START);
    for (size_t i = 0; i < sizeof(row_counts) / sizeof(row_counts[0]); i++) {
        int rows = row_counts[i];
        struct comm_stats s;

        verify(g, slot, ids, rows);
        comm_stats_take(g->comm);
        for (int k = 0; k < RUNS; k++) {
            t[k] = clock_ns();
            rig_forward(g, slot, ids + START, rows, true);
            t[k] = clock_ns() - t[k];
        }
        s = comm_stats_take(g->comm);
        sort_i64(t, RUNS);
        one = i ? one : t[RUNS / 2];
        if (g->rank == 0)
            printf("%d rank%s, %2d rows: %8.1f us, %.2f of one row; %llu exchanges, waited %.1f "
                   "us, moved "
                   "%.1f us\n",
                   g->m->ranks, g->m->ranks > 1 ? "s" : "", rows, (double)t[RUNS / 2] / 1e3,
                   (double)t[RUNS / 2] / (double)one, (unsigned long long)s.exchanges / RUNS,
                   (double)s.wait_ns / 1e3 / RUNS, (double)s.move_ns / 1e3 / RUNS);
    }
}

int main(void)
{
    log_open(-1, LOG_WARN);
    rigs_run(&(struct rig_settings){ .ranks = 1, .fp32 = false }, measure, NULL);
    rigs_run(&(struct rig_settings){ .ranks = 2, .bf16_wire = true }, measure, NULL);
    return 0;
}
