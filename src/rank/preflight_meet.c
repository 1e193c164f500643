/* preflight_meet - the link between the ranks, tried before anything is loaded: every rank runs
 * this at the same time. */
#include "src/rank/preflight.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/bare.h"
#include "src/rank/rank.h"
#include "src/transport/comm.h"

enum { TIMES = 10, SITE = 1, PLAN_WORDS_MOST = 64, WALL_APART_MS = 5000 };

static uint8_t byte_of(int rank, int turn, size_t i)
{
    return (uint8_t)(rank * 101 + turn * 7 + (int)(i % 251));
}

/* The largest message, each way and more than once: slots come in turn. *gbps of one direction. */
static int exchange_slots(struct bare *b, uint8_t *mine, uint8_t *all, double *gbps)
{
    int64_t took = 0;

    for (int k = 0; k < TIMES; k++) {
        int64_t begin;

        for (size_t i = 0; i < RANK_SLOT_BYTES; i++)
            mine[i] = byte_of(b->cfg.rank, k, i);
        begin = clock_ns();
        comm_gather(b->comm, NULL, SITE, mine, all, RANK_SLOT_BYTES);
        took += clock_ns() - begin;
        if (comm_check(b->comm) < 0)
            return comm_check(b->comm);
        for (int r = 0; r < b->cfg.ranks; r++)
            for (size_t i = 0; i < RANK_SLOT_BYTES; i++)
                if (all[(size_t)r * RANK_SLOT_BYTES + i] != byte_of(r, k, i))
                    return fail(-EPROTO, "byte %zu of %d that rank %d sent is wrong", i,
                                RANK_SLOT_BYTES, r);
    }
    *gbps = (double)TIMES * RANK_SLOT_BYTES / (double)took;
    return 0;
}

/* How far the time of day here is ahead of rank 0's, by the offset of the clocks that do not
 * jump. */
static int compare_walls(struct bare *b, double *ahead_ms)
{
    int64_t mine, all[RANKS_MAX];
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    mine = (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec - clock_ns();
    comm_gather(b->comm, NULL, SITE, &mine, all, sizeof(mine));
    *ahead_ms = (double)(mine - all[0] + b->clocks.ahead_ns) / NS_PER_MS;
    return comm_check(b->comm);
}

void facts_meet(const struct config *c, struct facts *f)
{
    uint8_t *mine = malloc(RANK_SLOT_BYTES), *all = malloc((size_t)c->ranks * RANK_SLOT_BYTES);
    double gbps = 0, ahead_ms = 0;
    struct bare b = { 0 };
    char why[FACT_VALUE_BYTES];
    int r = mine && all ? 0 : fail(-ENOMEM, "no memory");

    if (r == 0) {
        r = bare_open(c, NULL, 0, RANK_SLOT_BYTES, PLAN_WORDS_MOST, &b);
        if (r == 0)
            r = exchange_slots(&b, mine, all, &gbps);
        if (r == 0)
            r = compare_walls(&b, &ahead_ms);
        snprintf(why, sizeof(why), "%s",
                 b.group && group_failed(b.group) ? group_reason(b.group) : fail_text());
        if (bare_close(&b, r, "preflight") != 0 && r == 0)
            r = -ECONNRESET;
    }
    if (r < 0) {
        facts_put(f, "meet", "bad: %s", why);
    } else {
        facts_put(f, "meet", "%d bytes each way over %s, %.3f GB/s", RANK_SLOT_BYTES, c->link,
                  gbps);
        if (c->rank == 0)
            facts_put(f, "wall", "0 ms");
        else
            facts_put(f, "wall", "%s%.1f ms ahead of rank 0's",
                      ahead_ms > WALL_APART_MS || ahead_ms < -WALL_APART_MS ? "warn: " : "",
                      ahead_ms);
    }
    free(mine);
    free(all);
}
