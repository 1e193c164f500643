/* cmd_bench_transport.c owns `tandem bench --transport`: what the link of a config carries, without a
 * model. Every rank runs the same calls; rank 0 prints.
 *
 *   exchange   a sum of two ranks and more, by size: from its own call to its end. The transfer is the
 *              10th percentile of the wait behind a barrier, when nobody is late; what a rank waits
 *              beyond it, it waits for the others. The rank that waits least is the late one
 *   mailbox    a frame of 512 bytes until the follower has it, by the clocks' offset, and until rank 0
 *              knows
 */
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/clocks.h"
#include "src/rank/commands.h"
#include "src/rank/control.h"
#include "src/rank/exit_code.h"
#include "src/rank/group_config.h"
#include "src/rank/mailbox.h"
#include "src/rank/plan_box.h"
#include "src/transport/comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    WARM = 10,
    CALLS = 300, /* of each kind and size, or as many as a second has room for */
    CALLS_LEAST = 20,
    FRAMES = 300,
    SLOT_BYTES = 1 << 20,
    SITE = 1,
    SITE_TALK = 2,
    OP_FRAME = 1,
    FRAME_WORDS = 40
};

static const size_t sizes[] = { 1 << 10, 10 << 10, 48 << 10, 160 << 10, 1 << 20 };

struct rig {
    struct config cfg;
    struct group_hub *hub;
    struct group *group;
    struct comm *comm;
    struct plan_box *box;
    struct clocks clocks;
    struct group_texts texts;
    float *x;
    int64_t t[CALLS], wait[CALLS];
    int code;
    pthread_t thread;
};

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Sorts t. */
static double part_us(int64_t *t, int n, int percent)
{
    qsort(t, (size_t)n, sizeof(t[0]), by_value);
    return (double)t[(n - 1) * percent / 100] / NS_PER_US;
}

/* ---- exchange --------------------------------------------------------------------------------- */

/* One sum; in *wait_ns what of it was waiting. */
static int64_t one_sum(struct rig *g, size_t n, int64_t *wait_ns)
{
    int64_t t0 = clock_ns();

    comm_stats_take(g->comm);
    comm_sum(g->comm, NULL, SITE, g->x, n);
    *wait_ns = (int64_t)comm_stats_take(g->comm).wait_ns;
    return clock_ns() - t0;
}

/* How many calls of this size a rank makes: the slowest rank says, so it is the same for all. */
static int calls_of(struct rig *g, size_t n)
{
    int64_t took = 0, slowest = 1, all[RANKS_MAX] = { 0 }, wait;

    for (int k = 0; k < WARM; k++)
        took += one_sum(g, n, &wait);
    comm_gather(g->comm, NULL, SITE_TALK, &took, all, sizeof(took));
    for (int i = 0; i < g->cfg.ranks; i++)
        slowest = all[i] > slowest ? all[i] : slowest;
    slowest = NS_PER_S * WARM / slowest;
    return slowest < CALLS_LEAST ? CALLS_LEAST : slowest > CALLS ? CALLS : (int)slowest;
}

static int exchanges(struct rig *g, size_t bytes)
{
    size_t n = bytes / 2; /* of bf16 */
    double mine[2], all[2 * RANKS_MAX], p10, p50, p99, transfer;
    int r = 0, calls = calls_of(g, n);

    for (int k = 0; k < calls && r == 0; k++) {
        r = comm_barrier(g->comm);
        one_sum(g, n, &g->wait[k]);
    }
    if (r < 0)
        return r;
    transfer = part_us(g->wait, calls, 10);
    for (int k = 0; k < calls; k++)
        g->t[k] = one_sum(g, n, &g->wait[k]);
    mine[0] = 0;
    for (int k = 0; k < calls; k++) {
        double late = (double)g->wait[k] / NS_PER_US - transfer;

        mine[0] += late > 0 ? late / calls : 0;
    }
    mine[1] = transfer;
    comm_gather(g->comm, NULL, SITE_TALK, mine, all, sizeof(mine));
    r = comm_check(g->comm);
    if (r < 0 || g->cfg.rank != 0)
        return r;
    p10 = part_us(g->t, calls, 10);
    p50 = part_us(g->t, calls, 50);
    p99 = part_us(g->t, calls, 99);
    printf("%9zu %9.1f %9.1f %9.1f %8.3f", bytes, p10, p50, p99, (double)bytes / p50 / 1e3);
    for (int i = 0; i < g->cfg.ranks; i++)
        printf("  %8.1f + %7.1f", all[2 * i + 1], all[2 * i]);
    printf("\n");
    return 0;
}

/* ---- mailbox ---------------------------------------------------------------------------------- */

static int lead_frames(struct rig *g)
{
    uint64_t word[FRAME_WORDS] = { 0 };
    int r = 0;

    for (int k = 0; k < FRAMES && r == 0; k++) {
        word[0] = (uint64_t)clock_ns();
        r = plan_box_send(g->box, OP_FRAME, (uint32_t)k, 0, word, FRAME_WORDS);
        if (r == 0)
            r = plan_box_settle(g->box, NULL);
        g->t[k] = clock_ns() - (int64_t)word[0];
    }
    return r;
}

static int follow_frames(struct rig *g)
{
    for (int k = 0; k < FRAMES; k++) {
        struct plan_msg m;
        int r = plan_box_recv(g->box, g->cfg.wait_limit_ms, &m);

        if (r != 0)
            return r < 0 ? r : fail(-ETIMEDOUT, "bench: frame %d did not come", k);
        g->t[k] = m.came_ns - g->clocks.ahead_ns - (int64_t)m.word[0];
    }
    return 0;
}

static int mailbox(struct rig *g)
{
    int r = g->cfg.rank == 0 ? lead_frames(g) : follow_frames(g);
    double mine[3], all[3 * RANKS_MAX];

    if (r < 0)
        return r;
    mine[0] = part_us(g->t, FRAMES, 50);
    mine[1] = part_us(g->t, FRAMES, 99);
    mine[2] = (double)g->clocks.within_ns / NS_PER_US;
    comm_gather(g->comm, NULL, SITE_TALK, mine, all, sizeof(mine));
    r = comm_check(g->comm);
    if (r < 0 || g->cfg.rank != 0)
        return r;
    printf("mailbox: there and back p50 %.1f us, p99 %.1f\n", all[0], all[1]);
    for (int i = 1; i < g->cfg.ranks; i++)
        printf("mailbox: seen by rank %d after p50 %.1f us, p99 %.1f, the clocks known to %.1f\n",
               i, all[3 * i], all[3 * i + 1], all[3 * i + 2]);
    return 0;
}

/* ---- ranks ------------------------------------------------------------------------------------ */

static int open_rig(struct rig *g)
{
    const struct config *c = &g->cfg;
    struct link *windows[RANKS_MAX] = { 0 };
    struct comm_settings s = { .partials = COMM_BF16,
                               .slot_bytes = SLOT_BYTES,
                               .spin_us = c->spin_us,
                               .wait_limit_ms = c->wait_limit_ms };
    struct plan_box_settings b = { .spin_us = c->spin_us,
                                   .wait_limit_ms = c->wait_limit_ms,
                                   .max_words = FRAME_WORDS };
    struct group_settings gs;
    int r = group_of_config(c, &g->texts, &gs);

    gs.hub = g->hub;
    if (r == 0)
        r = group_open(&gs, &g->group);
    if (r < 0) {
        g->code = group_exit_code(r);
        return r;
    }
    for (int i = 0; i < c->ranks; i++)
        if (i != c->rank)
            windows[i] = group_link(g->group, i, GROUP_WINDOWS);
    r = comm_link_open(windows, c->rank, c->ranks, &s, &g->comm);
    if (r == 0)
        r = mailbox_open(g->group, &b, c->wait_limit_ms, &g->box);
    if (r == 0)
        r = clocks_meet(g->box, c->rank, c->ranks, c->wait_limit_ms, &g->clocks);
    g->x = r == 0 ? calloc(SLOT_BYTES / 2, sizeof(float)) : NULL;
    if (r == 0 && !g->x)
        r = fail(-ENOMEM, "bench: no memory");
    return r;
}

static void head(const struct config *c)
{
    printf("%d ranks over %s; us; a wait is transfer + for the others\n", c->ranks, c->link);
    printf("%9s %9s %9s %9s %8s", "bytes", "p10", "p50", "p99", "GB/s");
    for (int i = 0; i < c->ranks; i++)
        printf("  %12s rank %d", "", i);
    printf("\n");
}

static void *run_rank(void *arg)
{
    struct rig *g = arg;
    int r;

    log_rank(g->cfg.rank);
    r = open_rig(g);
    if (r == 0 && g->cfg.rank == 0)
        head(&g->cfg);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && r == 0; i++)
        r = exchanges(g, sizes[i]);
    if (r == 0)
        r = mailbox(g);
    if (r == 0)
        r = group_barrier(g->group, g->cfg.wait_limit_ms);
    if (r < 0 && g->group)
        group_fail(g->group, r, "rank %d: bench: %s", g->cfg.rank, fail_text());
    if (r < 0 && g->code == 0)
        g->code = exit_code_of(STEP_ROUND, r);
    if (g->group && r == 0)
        group_stop(g->group);
    plan_box_close(g->box);
    comm_close(g->comm);
    group_close(g->group);
    free(g->x);
    group_texts_free(&g->texts);
    return NULL;
}

int cmd_bench_transport(struct options *o)
{
    const struct config *c = &o->cfg;
    int threads = strcmp(c->link, "loop") == 0 ? c->ranks : 1, code = CODE_DONE, n = 0;
    struct rig *g = calloc((size_t)threads, sizeof(*g));
    struct group_hub *hub = NULL;

    if (!g || c->ranks < 2) {
        code = g ? exit_code_of(STEP_CONFIG, fail(-EINVAL, "bench: --transport wants ranks = 2"))
                 : CODE_RESOURCE;
        free(g);
        return code;
    }
    if (threads > 1 && group_hub_open(c->ranks, &hub) < 0)
        code = CODE_RESOURCE;
    for (; n < threads && code == CODE_DONE; n++) {
        g[n].cfg = *c; /* its strings stay the options' */
        g[n].cfg.rank = threads > 1 ? n : c->rank;
        g[n].hub = hub;
        if (pthread_create(&g[n].thread, NULL, run_rank, &g[n]) != 0) {
            /* those that have started wait for it no longer than they may */
            code = exit_code_of(STEP_DEVICE, fail(-EAGAIN, "bench: no thread"));
            break;
        }
    }
    for (int i = 0; i < n; i++) {
        pthread_join(g[i].thread, NULL);
        code = code ? code : g[i].code;
    }
    group_hub_close(hub);
    free(g);
    return code;
}
