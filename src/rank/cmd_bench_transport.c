/* cmd_bench_transport.c owns `tandem bench --transport`: what every link carries that joins the
 * ranks of a config, without a model. Every rank runs the same calls; rank 0 prints.
 *
 *   exchange   a sum of two ranks and more, by size: from its own call to its end. The transfer is
 *              the 10th percentile of the wait behind a barrier, when nobody is late; what a rank
 *              waits beyond it, it waits for the others. The rank that waits least is the late one
 *   lag        how long after rank 0 another rank enters an exchange, by the clocks' offset
 *   mailbox    a frame of 512 bytes until the follower has it, and until rank 0 knows; long
 *              messages
 *   perftest   what the programs of that name measure on the same port, where they are installed
 */
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/sort.h"
#include "src/rank/bare.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"
#include "src/rank/perftest.h"
#include "src/rank/plan_box.h"
#include "src/transport/comm.h"
#include "src/transport/link_rdma.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    WARM = 10,
    CALLS = 300, /* of each kind and size, or as many as a quarter of a second has room for */
    CALLS_LEAST = 20,
    FRAMES = 300,
    SLOT_BYTES = 1 << 20,
    SITE = 1,
    SITE_TALK = 2,
    OP_FRAME = 1,
    FRAME_WORDS = 40,
    LONG_WORDS = 61 * 64, /* of a long message, 64 frames */
    LONGS = 10,
    LAG_BYTES = 10 << 10 /* the size whose lag is told */
};

static const size_t sizes[] = { 1 << 10, LAG_BYTES, 48 << 10, 160 << 10, 1 << 20 };

struct rig {
    struct config cfg;
    struct group_hub *hub;
    int threads;      /* ranks of this process */
    const char *only; /* link; NULL: all */
    struct bare b;
    float *x;
    int64_t t[CALLS], wait[CALLS], enter[CALLS];
    int code;
    pthread_t thread;
};

/* Sorts t. */
static double part_us(int64_t *t, int n, int percent)
{
    sort_i64(t, (size_t)n);
    return (double)t[(n - 1) * percent / 100] / NS_PER_US;
}

/* ---- exchange -------------------------------------------------------------------------------- */

/* One sum; in *wait_ns what of it was waiting. */
static int64_t one_sum(struct rig *g, size_t n, int64_t *wait_ns)
{
    int64_t t0 = clock_ns();

    comm_stats_take(g->b.comm);
    comm_sum(g->b.comm, NULL, SITE, g->x, n);
    *wait_ns = (int64_t)comm_stats_take(g->b.comm).wait_ns;
    return clock_ns() - t0;
}

/* How many calls of this size a rank makes: the slowest rank says, so it is the same for all. */
static int calls_of(struct rig *g, size_t n)
{
    int64_t took = 0, slowest = 1, all[RANKS_MAX] = { 0 }, wait;

    for (int k = 0; k < WARM; k++)
        took += one_sum(g, n, &wait);
    comm_gather(g->b.comm, NULL, SITE_TALK, &took, all, sizeof(took));
    for (int i = 0; i < g->cfg.ranks; i++)
        slowest = all[i] > slowest ? all[i] : slowest;
    slowest = NS_PER_S / 4 * WARM / slowest;
    return slowest < CALLS_LEAST ? CALLS_LEAST : slowest > CALLS ? CALLS : (int)slowest;
}

/* Entries into the same exchanges, compared on rank 0. */
static int tell_lag(struct rig *g, int calls)
{
    size_t bytes = (size_t)calls * sizeof(int64_t);
    int64_t clock[2] = { g->b.clocks.ahead_ns, g->b.clocks.within_ns }, clocks[2 * RANKS_MAX];
    int64_t *all = malloc((size_t)g->cfg.ranks * bytes);
    int r = all ? 0 : fail(-ENOMEM, "bench: no memory");

    if (r == 0) {
        comm_gather(g->b.comm, NULL, SITE_TALK, clock, clocks, sizeof(clock));
        comm_gather(g->b.comm, NULL, SITE_TALK, g->enter, all, bytes);
        r = comm_check(g->b.comm);
    }
    for (int i = 1; i < g->cfg.ranks && r == 0 && g->cfg.rank == 0; i++) {
        int64_t *lag = all + (size_t)i * (size_t)calls;
        double p10, p50, p90;

        for (int k = 0; k < calls; k++)
            lag[k] -= clocks[2 * i] + all[k];
        p10 = part_us(lag, calls, 10), p50 = part_us(lag, calls, 50), p90 = part_us(lag, calls, 90);
        printf("lag: rank %d enters an exchange of %d bytes p10 %.1f us, p50 %.1f, p90 %.1f after "
               "rank "
               "0; its clock is ahead by %.1f us, known to %.1f\n",
               i, LAG_BYTES, p10, p50, p90, (double)clocks[2 * i] / NS_PER_US,
               (double)clocks[2 * i + 1] / NS_PER_US);
    }
    free(all);
    return r;
}

static int exchanges(struct rig *g, size_t bytes, int *lag_calls)
{
    size_t n = bytes / 2; /* of bf16 */
    double mine[2], all[2 * RANKS_MAX], p10, p50, p99, transfer;
    int r = 0, calls = calls_of(g, n);

    for (int k = 0; k < calls && r == 0; k++) {
        r = comm_barrier(g->b.comm);
        one_sum(g, n, &g->wait[k]);
    }
    if (r < 0)
        return r;
    transfer = part_us(g->wait, calls, 10);
    for (int k = 0; k < calls; k++) {
        g->enter[k] = clock_ns();
        g->t[k] = one_sum(g, n, &g->wait[k]);
    }
    mine[0] = 0;
    for (int k = 0; k < calls; k++) {
        double late = (double)g->wait[k] / NS_PER_US - transfer;

        mine[0] += late > 0 ? late / calls : 0;
    }
    mine[1] = transfer;
    comm_gather(g->b.comm, NULL, SITE_TALK, mine, all, sizeof(mine));
    r = comm_check(g->b.comm);
    *lag_calls = calls;
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

/* ---- mailbox --------------------------------------------------------------------------------- */

static int lead_frames(struct rig *g)
{
    uint64_t word[FRAME_WORDS] = { 0 };
    int r = 0;

    for (int k = 0; k < FRAMES && r == 0; k++) {
        word[0] = (uint64_t)clock_ns();
        r = plan_box_send(g->b.box, OP_FRAME, (uint32_t)k, 0, word, FRAME_WORDS);
        if (r == 0)
            r = plan_box_settle(g->b.box, NULL);
        g->t[k] = clock_ns() - (int64_t)word[0];
    }
    return r;
}

static int follow_frames(struct rig *g)
{
    for (int k = 0; k < FRAMES; k++) {
        struct plan_msg m;
        int r = plan_box_recv(g->b.box, g->cfg.wait_limit_ms, &m);

        if (r != 0)
            return r < 0 ? r : fail(-ETIMEDOUT, "bench: frame %d did not come", k);
        g->t[k] = m.came_ns - g->b.clocks.ahead_ns - (int64_t)m.word[0];
    }
    return 0;
}

/* Messages of many frames: how fast the ring of frames and credits goes round. */
static int long_messages(struct rig *g, double *gbps)
{
    uint64_t *word = calloc(LONG_WORDS, sizeof(*word));
    int64_t begin = clock_ns();
    int r = word ? 0 : fail(-ENOMEM, "bench: no memory");

    for (int k = 0; k < LONGS && r == 0; k++) {
        struct plan_msg m;

        if (g->cfg.rank == 0)
            r = plan_box_send(g->b.box, OP_FRAME, (uint32_t)k, 0, word, LONG_WORDS);
        else
            r = plan_box_recv(g->b.box, g->cfg.wait_limit_ms, &m);
    }
    if (r == 0 && g->cfg.rank == 0)
        r = plan_box_settle(g->b.box, NULL);
    *gbps = (double)LONGS * LONG_WORDS * sizeof(*word) / (double)(clock_ns() - begin);
    free(word);
    return r;
}

static int mailbox(struct rig *g)
{
    int r = g->cfg.rank == 0 ? lead_frames(g) : follow_frames(g);
    double mine[3], all[3 * RANKS_MAX], gbps = 0;

    if (r == 0)
        r = long_messages(g, &gbps);
    if (r < 0)
        return r;
    mine[0] = part_us(g->t, FRAMES, 50);
    mine[1] = part_us(g->t, FRAMES, 99);
    mine[2] = (double)g->b.clocks.within_ns / NS_PER_US;
    comm_gather(g->b.comm, NULL, SITE_TALK, mine, all, sizeof(mine));
    r = comm_check(g->b.comm);
    if (r < 0 || g->cfg.rank != 0)
        return r;
    printf("mailbox: there and back p50 %.1f us, p99 %.1f; messages of %zu bytes at %.3f GB/s\n",
           all[0], all[1], LONG_WORDS * sizeof(uint64_t), gbps);
    for (int i = 1; i < g->cfg.ranks; i++)
        printf("mailbox: seen by rank %d after p50 %.1f us, p99 %.1f, the clocks known to %.1f\n",
               i, all[3 * i], all[3 * i + 1], all[3 * i + 2]);
    return 0;
}

/* ---- perftest -------------------------------------------------------------------------------- */

static const struct {
    const char *text;
    bool bandwidth;
    size_t bytes;
} perftests[] = {
    { "perftest: a write of 8 bytes takes %.1f us one way\n", false, 8 },
    { "perftest: a write of 10240 bytes takes %.1f us one way\n", false, LAG_BYTES },
    { "perftest: writes of 1048576 bytes at %.3f GB/s\n", true, 1 << 20 },
};

static int run_perftests(struct rig *g)
{
    struct rdma_seen port = { 0 };
    struct perftest p = { .rank = g->cfg.rank,
                          .leader = g->b.texts.host[0],
                          .device = port.device };
    double mine, all[RANKS_MAX], there;
    int r;

    there = perftest_there() && rdma_at(g->b.texts.host[g->cfg.rank], &port) == 0;
    comm_gather(g->b.comm, NULL, SITE_TALK, &there, all, sizeof(there));
    r = comm_check(g->b.comm);
    there = all[0] && all[1];
    if (!there && r == 0 && g->cfg.rank == 0)
        printf("perftest: not installed on ranks 0 and 1, nothing to compare with\n");
    if (!there || r < 0)
        return r;
    p.gid_index = port.gid_index;
    for (size_t i = 0; i < sizeof(perftests) / sizeof(perftests[0]) && r == 0; i++) {
        p.bandwidth = perftests[i].bandwidth;
        p.bytes = perftests[i].bytes;
        p.port = g->cfg.port + 1 + (int)i;
        mine = 0;
        if (g->cfg.rank < 2 && perftest_run(&p, &mine) < 0)
            mine = -1;
        comm_gather(g->b.comm, NULL, SITE_TALK, &mine, all, sizeof(mine));
        r = comm_check(g->b.comm);
        if (r < 0 || g->cfg.rank != 0)
            continue;
        if (all[0] < 0 || all[1] < 0)
            printf("perftest: no figure for %zu bytes: the programs did not end well\n", p.bytes);
        else
            printf(perftests[i].text, all[1]);
    }
    return r;
}

/* ---- links ----------------------------------------------------------------------------------- */

static void head(const struct config *c)
{
    printf("%d ranks over %s; us; a wait is transfer + for the others\n", c->ranks, c->link);
    printf("%9s %9s %9s %9s %8s", "bytes", "p10", "p50", "p99", "GB/s");
    for (int i = 0; i < c->ranks; i++)
        printf("  %12s rank %d", "", i);
    printf("\n");
}

/* What one link carries. *rdma: whether all ranks have a port for it. */
static int measure(struct rig *g, int *rdma)
{
    int calls[sizeof(sizes) / sizeof(sizes[0])], r = 0;

    if (g->cfg.rank == 0)
        head(&g->cfg);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && r == 0; i++) {
        r = exchanges(g, sizes[i], &calls[i]);
        if (r == 0 && sizes[i] == LAG_BYTES)
            r = tell_lag(g, calls[i]);
    }
    if (r == 0)
        r = mailbox(g);
    if (r == 0 && strcmp(g->cfg.link, "rdma") == 0)
        r = run_perftests(g);
    if (r == 0) {
        fail_hold(true);
        *rdma = link_rdma_ready() == 0;
        fail_hold(false);
        r = group_vote(g->b.group, *rdma, g->cfg.wait_limit_ms);
        *rdma = r == 1;
    }
    fflush(stdout);
    return r < 0 ? r : 0;
}

static int over_link(struct rig *g, const char *link, int *rdma)
{
    bool hub = strcmp(link, "loop") == 0;
    int r;

    g->cfg.link = link;
    r = bare_open(&g->cfg, hub ? g->hub : NULL, g->threads > 1, SLOT_BYTES, LONG_WORDS, &g->b);
    g->x = r == 0 ? calloc(SLOT_BYTES / 2, sizeof(float)) : NULL;
    if (r == 0 && !g->x)
        r = fail(-ENOMEM, "bench: no memory");
    if (r == 0)
        r = measure(g, rdma);
    free(g->x);
    return bare_close(&g->b, r, "bench");
}

/* Threads of one process are joined by every link, processes of one machine by all but loop.
 *
 * in       rdma: whether every rank is known to have a port for it */
static bool joins(const char *link, const struct config *c, int threads, bool rdma)
{
    if (strcmp(link, c->link) == 0)
        return true;
    if (strcmp(link, "loop") == 0)
        return threads > 1;
    if (strcmp(link, "shm") == 0)
        return config_neighbours(c) == c->ranks;
    return strcmp(link, "rdma") != 0 || rdma;
}

static void *run_rank(void *arg)
{
    static const char *const links[] = { "loop", "shm", "tcp", "rdma" };
    struct rig *g = arg;
    const struct config asked = g->cfg;
    int rdma = 0;

    log_rank(g->cfg.rank);
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]) && g->code == 0; i++) {
        if (g->only && strcmp(links[i], g->only) != 0)
            continue;
        if (joins(links[i], &asked, g->threads, rdma))
            g->code = over_link(g, links[i], &rdma);
        else if (strcmp(links[i], "rdma") == 0 && g->cfg.rank == 0)
            printf("rdma: not measured: not every rank has a port for it\n");
    }
    return NULL;
}

int cmd_bench_transport(struct options *o)
{
    const struct config *c = &o->cfg;
    int threads = strcmp(c->link, "loop") == 0 ? c->ranks : 1, code = CODE_DONE, n = 0;
    struct rig *g = calloc((size_t)threads, sizeof(*g));
    struct group_hub *hub = NULL;
    const struct link_ops *link;

    if (o->only && link_find(o->only, &link) < 0) {
        free(g);
        return CODE_USAGE;
    }
    /* which ranks have a port for rdma is asked over the links before it */
    if (o->only && !joins(o->only, c, threads, false)) {
        free(g);
        return exit_code_of(
            STEP_CONFIG, fail(-EINVAL, "bench: --only %s with link %s, want the setting link = %s",
                              o->only, c->link, o->only));
    }
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
        g[n].threads = threads;
        g[n].only = o->only;
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
