/* tsan_group - groups of three ranks as threads, for ThreadSanitizer: they meet over TCP and in a
 * hub, compare packs, vote, pass barriers, work on their links while heartbeats run, are watched,
 * and end as planned or by a fault.
 *
 * A plain program: a test runner that forks would hide half of the threads. */
#include "tests/rank/town.h"

#include <stdio.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/meeting.h"
#include "src/rank/plan.h"
#include "src/rank/plan_box.h"
#include "src/rank/progress.h"
#include "src/rank/ring.h"
#include "src/rank/watch.h"
#include "src/transport/comm.h"

enum { RANKS = 3, ORDERS = 40, VOTES = 40 };

static struct progress progress[RANKS];
static const uint8_t digest[GROUP_DIGEST_BYTES] = { 1, 2, 3 };
static const char *const parts[GROUP_MARK_PARTS] = { "a", "b", "c", "d", "e", "f", "g", "h" };
static atomic_int wrong;

static void ignore(void *arg, enum log_level level, const char *line)
{
}

static void expect(int holds, const char *what)
{
    if (holds)
        return;
    if (atomic_fetch_add(&wrong, 1) < 8)
        fprintf(stderr, "wrong: %s\n", what);
}

static void none(void *arg, const char *what)
{
}

static void no_group(void *arg, int r)
{
    expect(0, "a group does not open");
}

/* What a rank's other thread counts. */
static void count(void *arg, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        *(int *)arg += ((const int *)data)[i];
}

static void orders(struct town *t, int rank, struct comm *c, struct plan_box *b)
{
    struct ring *ring;
    struct plan_msg m;
    uint64_t word = 7;
    int sum = 0;

    expect(ring_open(sizeof(int), 8, count, &sum, &ring) == 0, "ring");
    for (int i = 0; i < ORDERS; i++) {
        float x = (float)rank;

        progress_begin(&progress[rank], PLAN_ROUND, (uint32_t)i, clock_ns());
        if (rank == 0)
            expect(plan_box_send(b, PLAN_ROUND, (uint32_t)i, 0, &word, 1) == 0, "order");
        else
            expect(plan_box_recv(b, 5000, &m) == 0 && m.word[0] == 7, "order comes");
        comm_sum(c, NULL, 1, &x, 1);
        expect(comm_check(c) == 0 && x == 3, "sum");
        progress_end(&progress[rank]);
        ring_put(ring, &i, 1);
        if (i % 10 == 0)
            expect(group_barrier(t->group[rank], 5000) == 0, "barrier");
    }
    ring_close(ring);
    expect(sum == ORDERS * (ORDERS - 1) / 2, "records");
}

/* One right behind the other: whoever is through with one is at the next while others still
 * count. */
static void votes(struct group *g, int rank)
{
    for (int i = 0; i < VOTES; i++)
        expect(group_vote(g, i % (RANKS + 1) != rank, 5000) == (i % (RANKS + 1) == RANKS), "vote");
}

static void life(int rank, void *arg)
{
    struct town *t = arg;
    struct comm_settings cs = { .slot_bytes = 4096, .spin_us = 5, .wait_limit_ms = 5000 };
    struct plan_box_settings ps = { .spin_us = 5, .wait_limit_ms = 5000, .max_words = 64 };
    struct watch_settings ws = {
        .progress = &progress[rank], .rank = rank, .limit_ms = 60000, .expired = none, .lost = none
    };
    struct link *windows[WIRES_MAX] = { NULL }, *plan[WIRES_MAX] = { NULL };
    struct meeting *meeting = NULL;
    struct plan_box *b;
    struct watch *w;
    struct comm *c;
    atomic_int asked = 0;

    log_rank(rank);
    t->set[rank].progress = &progress[rank];
    t->set[rank].stall_ms = 60000;
    expect(watch_open(&ws, &w) == 0, "watch");
    if (t->hub)
        expect(group_open(&t->set[rank], &t->group[rank]) == 0, "hub");
    else
        expect(meeting_open(&t->set[rank], no_group, NULL, &meeting) == 0 &&
                   meeting_wait(meeting, &asked, &t->group[rank]) == 0,
               "meeting");
    expect(group_compare(t->group[rank], parts, digest, 5000) == 0, "packs");
    votes(t->group[rank], rank);
    for (int p = 0; p < RANKS; p++) {
        if (p == rank)
            continue;
        windows[p] = group_link(t->group[rank], p, GROUP_WINDOWS);
        plan[p] = group_link(t->group[rank], p, GROUP_PLAN);
    }
    expect(comm_link_open(windows, rank, RANKS, &cs, &c) == 0 &&
               plan_box_open(plan, rank, RANKS, &ps, &b) == 0,
           "links");
    orders(t, rank, c, b);
    /* everybody has the last sum; the fault may be faster than the word that lets a rank pass */
    expect(group_barrier(t->group[rank], 5000) == 0 || atomic_load(&t->go), "last barrier");
    if (atomic_load(&t->go) && rank == 1) {
        group_fail(t->group[1], -EIO, "bad luck");
    } else if (atomic_load(&t->go)) {
        float x = 0;

        comm_sum(c, NULL, 1, &x, 1); /* waits for rank 1 */
        expect(comm_check(c) < 0 && wait_failed(t->group[rank], 5000) < 0, "the fault comes");
    } else {
        group_stop(t->group[rank]);
    }
    plan_box_close(b);
    comm_close(c);
    group_close(t->group[rank]);
    meeting_close(meeting);
    watch_close(w);
}

int main(void)
{
    static const char *const links[] = { "tcp", "shm", "loop" };

    for (int i = 0; i < 6; i++) {
        struct town t;

        town_open(&t, links[i / 2], RANKS);
        log_sink(ignore, NULL);
        t.go = i % 2;
        memset(progress, 0, sizeof(progress));
        wires_run(RANKS, life, &t);
        memset(t.group, 0, sizeof(t.group));
        town_close(&t);
    }
    printf("%d wrong\n", atomic_load(&wrong));
    return atomic_load(&wrong) != 0;
}
