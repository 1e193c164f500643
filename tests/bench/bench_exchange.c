/* bench_exchange - time of one sum over two ranks, by link and size on the wire.
 *
 * Back to back, and with 300 us of work before each call whose length differs by up to 100 us
 * between the ranks: there the time is what the later rank still waits. The ceiling of the first is
 * one memory copy each way; there is none to state for the second.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/sort.h"
#include "src/transport/comm.h"
#include "tests/transport/wires.h"

enum { WORLD = 2, ROUNDS_MAX = 4000 };

struct bench {
    struct wires w;
    size_t n; /* elements */
    int rounds, work;
    int64_t in[WORLD][ROUNDS_MAX], out[WORLD][ROUNDS_MAX]; /* moments of call and return */
    int wrong[WORLD];
};

static void work(int64_t ns)
{
    int64_t until = clock_ns() + ns;

    while (clock_ns() < until)
        ;
}

static void rank_main(int rank, void *arg)
{
    struct bench *b = arg;
    struct comm_settings s = {
        .partials = COMM_BF16, .slot_bytes = 256 << 10, .spin_us = 20, .wait_limit_ms = 10000
    };
    struct comm *c;
    float *x = malloc(b->n * sizeof(float));
    uint64_t dice = (uint64_t)rank + 1;

    if (!x || comm_link_open(b->w.link[rank], rank, WORLD, &s, &c) < 0)
        abort();
    for (int k = -50; k < b->rounds; k++) {
        for (size_t i = 0; i < b->n; i++)
            x[i] = (float)((int)i % 64 + rank + (k & 7));
        if (b->work)
            work(300 * NS_PER_US + (int64_t)(wires_random(&dice) % 100) * NS_PER_US);
        if (k >= 0)
            b->in[rank][k] = clock_ns();
        comm_sum(c, NULL, 1, x, b->n);
        if (k >= 0)
            b->out[rank][k] = clock_ns();
        for (size_t i = 0; i < b->n; i += 97)
            if (x[i] != (float)(2 * ((int)i % 64) + 1 + 2 * (k & 7)))
                b->wrong[rank] = 1;
    }
    if (comm_check(c) < 0)
        b->wrong[rank] = 1;
    comm_close(c);
    free(x);
}

/* From the moment the later rank called until both have the sum. */
static int bench_case(struct bench *b, const char *kind, size_t bytes, int with_work)
{
    static int64_t t[ROUNDS_MAX];
    double p50;

    memset(b->wrong, 0, sizeof(b->wrong));
    b->n = bytes / 2;
    b->work = with_work;
    b->rounds = with_work ? 500 : bytes > 65536 ? 1000 : ROUNDS_MAX;
    wires_open(&b->w, kind, WORLD, 0);
    wires_run(WORLD, rank_main, b);
    wires_close(&b->w);
    if (b->wrong[0] || b->wrong[1]) {
        printf("%-5s %7zu bytes: wrong sum\n", kind, bytes);
        return 1;
    }
    for (int k = 0; k < b->rounds; k++) {
        int64_t in = b->in[0][k] > b->in[1][k] ? b->in[0][k] : b->in[1][k];
        int64_t out = b->out[0][k] > b->out[1][k] ? b->out[0][k] : b->out[1][k];

        t[k] = out - in;
    }
    sort_i64(t, (size_t)b->rounds);
    p50 = (double)t[b->rounds / 2] / 1e3;
    printf("%-5s %7zu bytes %-12s p10 %7.1f us, p50 %7.1f, p99 %7.1f, %6.2f GB/s each way\n", kind,
           bytes, with_work ? "after work" : "back to back", (double)t[b->rounds / 10] / 1e3, p50,
           (double)t[b->rounds * 99 / 100] / 1e3, (double)bytes / p50 / 1e3);
    return 0;
}

int main(void)
{
    static const size_t sizes[] = { 1 << 10, 4 << 10, 10 << 10, 160 << 10 };
    static struct bench b;
    int bad = 0;

    for (int k = 0; wires_kinds[k]; k++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            for (int with_work = 0; with_work < 2; with_work++)
                bad |= bench_case(&b, wires_kinds[k], sizes[i], with_work);
    return bad;
}
