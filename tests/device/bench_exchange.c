/* What a sum over two ranks takes inside a captured graph, cold, by size and by who carries it.
 *
 *   exchanges [-d] [file]     -d: a device for each rank; the table as JSON lines too
 *
 * A launch evicts the cache, meets the other rank in a sum of its own, and then adds CHAIN sums of
 * values that nothing has touched since, between two looks at the device's clock; a sample is a
 * CHAIN-th of the time between.
 */
#include "tests/device/lab.h"

#include <pthread.h>

#include "kernels/exchange.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/sort.h"
#include "src/transport/comm.h"
#include "tests/device/parts.h"
#include "tests/transport/wires.h"

#define RANKS 2
#define CHAIN 8
#define TURNS 4 /* in a graph */
#define LAUNCHES 25
#define SAMPLES (TURNS * LAUNCHES)
#define ROW 5120
#define ROWS_MAX 16
#define EVICT ((size_t)128 << 20) /* more than any cache */
#define SITE 3

enum way { WAY_PEER, WAY_PROXY, WAY_NCCL_GATHER, WAY_NCCL_REDUCE, WAYS };

static const char *const names[WAYS] = {
    [WAY_PEER] = "comm_peer",
    [WAY_PROXY] = "comm_link (proxy, shm)",
    [WAY_NCCL_GATHER] = "comm_nccl (gather, add)",
    [WAY_NCCL_REDUCE] = "NCCL's own sum",
};
static const int rows_of[] = { 1, 2, 4, 8, 16 };

#define SIZES COUNT(rows_of)

struct result {
    bool known[SIZES];
    double p50[SIZES], p99[SIZES];
};

struct bench {
    pthread_t thread;
    int rank, devices;
    enum way way;
    const struct backend_ops *b;
    struct comm_hub *hub;
    const struct wires *wires;
    struct device *d;
    struct queue *q;
    struct comm *c;
    char *x, *junk;
    int64_t *at;
    struct result *out; /* of rank 0 */
    int err;
};

static void add(struct bench *r, char *x, size_t n)
{
    if (r->way == WAY_NCCL_REDUCE)
        comm_nccl_reduce(r->c, r->q, x, n);
    else
        comm_sum(r->c, r->q, SITE, (float *)(void *)x, n);
}

static void queue_turns(struct bench *r, size_t n)
{
    const struct op_table *op = r->b->op;

    for (int t = 0; t < TURNS; t++) {
        exchange_copy(r->q, r->junk, r->junk + EVICT, EVICT);
        add(r, r->x, 8);
        op->stamp(r->q, &(struct stamp_args){ .at = r->at + 2 * t, .name = "begin" });
        for (int i = 0; i < CHAIN; i++)
            add(r, r->x + sizeof(float) * ROW * ROWS_MAX * (size_t)(1 + t * CHAIN + i), n);
        op->stamp(r->q, &(struct stamp_args){ .at = r->at + 2 * t + 1, .name = "end" });
    }
}

static int measure(struct bench *r, int size)
{
    size_t n = (size_t)rows_of[size] * ROW;
    double us[SAMPLES];
    int64_t at[2 * TURNS];
    struct graph *g = NULL;
    int err = r->b->graph_begin(r->q);

    if (err < 0)
        return err;
    queue_turns(r, n);
    err = r->b->graph_end(r->q, &g);
    for (int k = -2; k < LAUNCHES && err == 0; k++) {
        err = comm_barrier(r->c);
        if (err < 0)
            break;
        r->b->graph_launch(r->q, g);
        r->b->get(r->q, at, r->at, sizeof(at));
        err = r->b->wait(r->q);
        for (int t = 0; t < TURNS && k >= 0; t++)
            us[k * TURNS + t] = (double)(at[2 * t + 1] - at[2 * t]) / NS_PER_US / CHAIN;
    }
    if (err == 0)
        err = comm_check(r->c);
    r->b->graph_close(g);
    if (err < 0)
        return err;
    sort_f64(us, SAMPLES);
    if (r->rank == 0) {
        r->out->known[size] = true;
        r->out->p50[size] = us[SAMPLES / 2];
        r->out->p99[size] = us[SAMPLES * 99 / 100];
    }
    return 0;
}

static int open_comm(struct bench *r)
{
    struct comm_settings s = {
        .partials = COMM_BF16, .slot_bytes = 256 << 10, .spin_us = 20, .wait_limit_ms = 20000
    };
    struct link *const *links = r->wires ? (struct link *const *)r->wires->link[r->rank] : NULL;
    struct comm *host;
    int err;

    if (r->way == WAY_PEER)
        return comm_peer_open(r->hub, r->d, r->rank, &s, &r->c);
    if (r->way == WAY_PROXY)
        return comm_relay_open(links, r->d, r->rank, RANKS, &s, &r->c);
    err = comm_link_open(links, r->rank, RANKS, &s, &host);
    if (err < 0)
        return err;
    err = comm_nccl_open(host, r->q, &s, &r->c);
    if (err < 0)
        comm_close(host);
    return err;
}

static void *run(void *arg)
{
    struct bench *r = arg;
    void *x = NULL, *junk = NULL, *at = NULL;

    log_rank(r->rank);
    r->err = r->b->open(r->devices > 1 ? r->rank : 0, 1, &r->d);
    if (r->err < 0)
        return NULL;
    r->err = r->b->queue_open(r->d, &r->q);
    if (r->err == 0)
        r->err = r->b->alloc(r->d, sizeof(float) * ROW * ROWS_MAX * (1 + TURNS * CHAIN), &x);
    if (r->err == 0)
        r->err = r->b->alloc(r->d, 2 * EVICT, &junk);
    if (r->err == 0)
        r->err = r->b->alloc(r->d, sizeof(int64_t) * 2 * TURNS, &at);
    r->x = x, r->junk = junk, r->at = at;
    if (r->err == 0)
        r->err = open_comm(r);
    for (int i = 0; i < SIZES && r->err == 0; i++)
        r->err = measure(r, i);
    comm_close(r->c);
    r->b->free(r->d, x);
    r->b->free(r->d, junk);
    r->b->free(r->d, at);
    if (r->q)
        r->b->queue_close(r->q);
    r->b->close(r->d);
    return NULL;
}

static int bench_way(const struct backend_ops *b, enum way way, int devices, struct result *out)
{
    struct bench r[RANKS];
    struct comm_hub *hub;
    struct wires w;
    int err = 0;

    if (comm_hub_open(RANKS, &hub) < 0)
        return -1;
    if (way != WAY_PEER)
        wires_open(&w, "shm", RANKS, 1);
    for (int i = 0; i < RANKS; i++) {
        r[i] = (struct bench){ .rank = i,
                               .devices = devices,
                               .way = way,
                               .b = b,
                               .hub = hub,
                               .wires = way != WAY_PEER ? &w : NULL,
                               .out = out };
        if (pthread_create(&r[i].thread, NULL, run, &r[i]) != 0)
            exit(1);
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(r[i].thread, NULL);
        err = err ? err : r[i].err;
    }
    if (way != WAY_PEER)
        wires_close(&w);
    comm_hub_close(hub);
    return err;
}

static void say(const struct result *r, enum way way, int devices, FILE *json)
{
    printf("  %-24s", names[way]);
    for (int i = 0; i < SIZES; i++) {
        printf("  %7.2f %7.2f", r->p50[i], r->p99[i]);
        if (json)
            fprintf(json,
                    "{\"exchange\": \"%s\", \"devices\": %d, \"rows\": %d, \"bytes\": %d, "
                    "\"p50_us\": %.2f, \"p99_us\": %.2f}\n",
                    names[way], devices, rows_of[i], rows_of[i] * ROW * 2, r->p50[i], r->p99[i]);
    }
    printf("\n");
    fflush(stdout);
}

int exchanges_main(int argc, char **argv)
{
    const struct backend_ops *b;
    FILE *json = NULL;
    char why[160];
    int devices = 1, failed = 0;

    if (backend_find("cuda", &b) < 0)
        return 1;
    if (argc > 1 && strcmp(argv[1], "-d") == 0)
        devices = RANKS, argc--, argv++;
    if (b->probe(devices - 1, why, sizeof(why)) < 0) {
        printf("skipped: cuda: %s\n", why);
        return 77;
    }
    if (argc > 1 && !(json = fopen(argv[1], "w")))
        return 1;
    printf("  sum of %d ranks on %d devices, us, %-6s", RANKS, devices, "rows:");
    for (int i = 0; i < SIZES; i++)
        printf("  %5d p50     p99", rows_of[i]);
    printf("\n");
    for (enum way w = 0; w < WAYS; w++) {
        struct result r = { 0 };

        if (devices == 1 && w >= WAY_NCCL_GATHER) {
            printf("  %-24s  skipped: NCCL wants a device for each rank\n", names[w]);
            continue;
        }
        if (bench_way(b, w, devices, &r) == 0)
            say(&r, w, devices, json);
        else
            failed += printf("  %-24s  FAILED\n", names[w]) > 0;
    }
    if (json)
        fclose(json);
    return failed != 0;
}
