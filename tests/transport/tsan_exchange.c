/* tsan_exchange - exchanges of three ranks as threads, for ThreadSanitizer: sums, gathers, an abort
 * in between.
 *
 * A plain program: a test runner that forks would hide half of the threads. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/comm.h"
#include "tests/transport/wires.h"

enum { RANKS = 3, CALLS = 400, N = 3000 };

struct state {
    struct wires w;
    int wrong[RANKS];
};

static void rank_main(int rank, void *arg)
{
    struct state *t = arg;
    struct comm_settings s = {
        .partials = COMM_F32, .slot_bytes = 4096, .spin_us = 5, .wait_limit_ms = 20000
    };
    struct comm *c;
    static _Thread_local float x[N];
    int64_t word[RANKS];

    if (comm_link_open(t->w.link[rank], rank, RANKS, &s, &c) < 0)
        abort();
    for (int k = 0; k < CALLS; k++) {
        int64_t mine = k * 10 + rank;

        for (int i = 0; i < N; i++)
            x[i] = (float)(i + rank + k);
        comm_sum(c, NULL, 1, x, N);
        for (int i = 0; i < N; i++)
            t->wrong[rank] |= x[i] != (float)(3 * (i + k) + 3);
        comm_gather(c, NULL, 2, &mine, word, sizeof(mine));
        for (int r = 0; r < RANKS; r++)
            t->wrong[rank] |= word[r] != k * 10 + r;
        if (k % 50 == rank)
            clock_sleep(3 * NS_PER_MS); /* the others fall asleep */
    }
    t->wrong[rank] |= comm_check(c) != 0;
    /* rank 0 aborts while the others wait for it */
    if (rank == 0) {
        clock_sleep(10 * NS_PER_MS);
        comm_abort(c, "test");
    } else {
        comm_sum(c, NULL, 1, x, N);
        t->wrong[rank] |= comm_check(c) != -ECONNRESET;
    }
    comm_close(c);
}

int main(void)
{
    int bad = 0;

    for (int k = 0; wires_kinds[k]; k++) {
        static struct state t;

        memset(&t, 0, sizeof(t));
        wires_open(&t.w, wires_kinds[k], RANKS, 0);
        wires_run(RANKS, rank_main, &t);
        wires_close(&t.w);
        for (int r = 0; r < RANKS; r++) {
            if (t.wrong[r]) {
                printf("%s: rank %d is wrong\n", wires_kinds[k], r);
                bad = 1;
            }
        }
    }
    return bad;
}
