/* Two, three and four ranks that share one device: comm_peer, and comm_link's form for devices over
 * every link, against the host's arithmetic, eager and captured, and how they fail. */
#include "tests/device/lab.h"

#include <errno.h>
#include <pthread.h>

#include "kernels/exchange.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/comm.h"
#include "tests/device/parts.h"
#include "tests/transport/wires.h"

#define RANKS 4
#define N 70001 /* in pieces of a slot, no multiple of anything */

static struct lab lab;
static int devices = 1; /* that ranks take in turn */
static bool quick;

#define CHECK(c)                                                                                   \
    do {                                                                                           \
        if (!(c))                                                                                  \
            lab_fail(&lab, "line %d: %s", __LINE__, #c);                                           \
    } while (0)

struct rank {
    pthread_t thread;
    int rank, world;
    struct comm_hub *hub;
    const struct wires *wires; /* NULL: comm_peer */
    enum comm_wire wire;
    uint32_t first_seq;
    void (*fn)(struct rank *r);
    const struct backend_ops *b;
    struct device *d;
    struct queue *q;
    struct comm *c;
};

static float value(int rank, int i)
{
    return synth_uniform((uint64_t)rank + 11, (uint64_t)i) * ldexpf(1, i % 40 - 20);
}

static void *take(struct rank *r, size_t bytes)
{
    void *p = NULL;

    CHECK(r->b->alloc(r->d, bytes, &p) == 0);
    return p;
}

/* What every rank must hold, by the host's functions. */
static void sum_of_all(const struct rank *r, int n, int from, float *want)
{
    enum exchange_wire w = r->wire == COMM_BF16 ? EXCHANGE_BF16 : EXCHANGE_F32;
    const void *part[RANKS];
    float *x = malloc(sizeof(*x) * (size_t)n);

    for (int p = 0; p < r->world; p++) {
        void *slot = malloc(sizeof(float) * (size_t)n);

        for (int i = 0; i < n; i++)
            x[i] = value(p, from + i);
        exchange_stage(w, slot, x, (size_t)n);
        part[p] = slot;
    }
    exchange_add(w, part, r->world, want, (size_t)n);
    for (int p = 0; p < r->world; p++)
        free((void *)(uintptr_t)part[p]);
    free(x);
}

static void sums(struct rank *r)
{
    static const int sizes[] = { 1, 7, 8, 4096, 10240, 40000, N };
    float *x = take(r, sizeof(float) * N), *in = malloc(sizeof(float) * N);
    float *out = malloc(sizeof(float) * N), *want = malloc(sizeof(float) * N);

    CHECK(comm_barrier(r->c) == 0);
    for (int round = 0; round < (quick ? 1 : 3); round++)
        for (int s = 0; s < COUNT(sizes); s++) {
            int n = sizes[s], from = round * 100000 + s;

            for (int i = 0; i < n; i++)
                in[i] = value(r->rank, from + i);
            r->b->put(r->q, x, in, sizeof(float) * (size_t)n);
            comm_sum(r->c, r->q, s, x, (size_t)n);
            /* a copy that waits for an exchange must not stand before another rank's copies to the
             * device */
            r->b->get(r->q, out, x, sizeof(float) * (size_t)n);
            CHECK(r->b->wait(r->q) == 0);
            CHECK(comm_check(r->c) == 0);
            sum_of_all(r, n, from, want);
            CHECK(memcmp(out, want, sizeof(float) * (size_t)n) == 0);
        }
    CHECK(comm_barrier(r->c) == 0);
    r->b->free(r->d, x);
    free(in), free(out), free(want);
}

static void gathers(struct rank *r)
{
    static const int sizes[] = { 1, 8, 13, 4000, 65536, 200003 };
    size_t most = 200003;
    unsigned char *own = take(r, most), *all = take(r, most * RANKS), *in = malloc(most);
    unsigned char *out = malloc(most * RANKS);

    CHECK(comm_barrier(r->c) == 0);
    for (int s = 0; s < COUNT(sizes); s++)
        for (int placed = 0; placed < 2; placed++) {
            size_t n = (size_t)sizes[s];
            unsigned char *at = placed ? all + (size_t)r->rank * n : own;
            int wrong = 0;

            for (size_t i = 0; i < n; i++)
                in[i] = (unsigned char)(i * 31 + (size_t)(r->rank * 7 + s));
            r->b->put(r->q, at, in, n);
            comm_gather(r->c, r->q, 40 + s, at, all, n);
            r->b->get(r->q, out, all, n * (size_t)r->world);
            CHECK(r->b->wait(r->q) == 0);
            for (int p = 0; p < r->world; p++)
                for (size_t i = 0; i < n; i++)
                    wrong +=
                        out[(size_t)p * n + i] != (unsigned char)(i * 31 + (size_t)(p * 7 + s));
            CHECK(wrong == 0);
        }
    CHECK(comm_check(r->c) == 0);
    CHECK(comm_barrier(r->c) == 0);
    r->b->free(r->d, own), r->b->free(r->d, all);
    free(in), free(out);
}

/* A window's worth of exchanges in one graph, launched many times, against the same calls eagerly.
 */
static void captured(struct rank *r)
{
    enum { EXCHANGES = 20, VALUES = 5120, LAUNCHES = 50 };
    float *x = take(r, sizeof(float) * VALUES), *in = malloc(sizeof(float) * VALUES);
    float eager[VALUES], replayed[VALUES];
    struct graph *g = NULL;
    int64_t start;

    for (int i = 0; i < VALUES; i++)
        in[i] = value(r->rank, i) * 1e-3f;
    CHECK(r->b->graph_begin(r->q) == 0);
    for (int e = 0; e < EXCHANGES; e++)
        comm_sum(r->c, r->q, e, x, VALUES);
    CHECK(r->b->graph_end(r->q, &g) == 0);
    r->b->put(r->q, x, in, sizeof(float) * VALUES);
    CHECK(r->b->wait(r->q) == 0);
    CHECK(comm_barrier(r->c) == 0);
    for (int e = 0; e < EXCHANGES; e++)
        comm_sum(r->c, r->q, e, x, VALUES);
    r->b->get(r->q, eager, x, sizeof(eager));
    CHECK(r->b->wait(r->q) == 0);
    start = clock_ns();
    for (int k = 0; k < LAUNCHES; k++) {
        r->b->put(r->q, x, in, sizeof(float) * VALUES);
        r->b->graph_launch(r->q, g);
    }
    r->b->get(r->q, replayed, x, sizeof(replayed));
    CHECK(r->b->wait(r->q) == 0);
    CHECK(comm_check(r->c) == 0);
    CHECK(memcmp(eager, replayed, sizeof(eager)) == 0);
    if (r->rank == 0)
        printf("%d ranks on %d devices, %s, %s: %.2f us an exchange of %d values, captured\n",
               r->world, devices < r->world ? devices : r->world,
               r->wires ? r->wires->link[0][1]->ops->name : "peer",
               r->wire == COMM_BF16 ? "bf16" : "f32",
               (double)(clock_ns() - start) / NS_PER_US / LAUNCHES / EXCHANGES, VALUES);
    CHECK(comm_barrier(r->c) == 0);
    r->b->graph_close(g);
    r->b->free(r->d, x);
    free(in);
}

/* Ranks that run different programs: the first exchange that differs says so, and all later ones
 * end their queues. */
static void differs(struct rank *r)
{
    float *x = take(r, sizeof(float) * 4096);
    int64_t start;

    CHECK(comm_barrier(r->c) == 0);
    comm_sum(r->c, r->q, 5, x, 4096);
    comm_sum(r->c, r->q, r->rank ? 6 : 7, x, 4096);
    CHECK(r->b->wait(r->q) == 0);
    CHECK(comm_check(r->c) == -EPROTO);
    start = clock_ns();
    comm_sum(r->c, r->q, 8, x, 4096);
    CHECK(r->b->wait(r->q) == -EPROTO);
    CHECK(clock_ns() - start < NS_PER_S);
    CHECK(comm_check(r->c) == -EPROTO);
    r->b->free(r->d, x);
}

/* Rank 1 stays away; rank 0 is aborted by another thread, the others run into their limit. */
static void *abort_soon(void *arg)
{
    clock_sleep(100 * NS_PER_MS);
    comm_abort(arg, "the test says so");
    return NULL;
}

static void late(struct rank *r)
{
    float *x = take(r, sizeof(float) * 64);
    pthread_t t;
    int64_t start = clock_ns();

    CHECK(comm_barrier(r->c) == 0);
    if (r->rank != 1) {
        if (r->rank == 0)
            CHECK(pthread_create(&t, NULL, abort_soon, r->c) == 0);
        comm_sum(r->c, r->q, 3, x, 64);
        CHECK(r->b->wait(r->q) == 0);
        if (r->rank == 0)
            CHECK(comm_check(r->c) == -ECANCELED);
        else /* over a link the others see that rank 0 has gone */
            CHECK(comm_check(r->c) == (r->wires ? -ECONNRESET : -ETIMEDOUT));
        CHECK(clock_ns() - start < 5 * NS_PER_S);
        if (r->rank == 0)
            pthread_join(t, NULL);
    } else {
        clock_sleep(1500 * NS_PER_MS);
    }
    r->b->free(r->d, x);
}

/* A rank that has closed is still written to by one that does not know: a late exchange runs into
 * its limit, not into memory that is gone. */
static void closed(struct rank *r)
{
    float *x = take(r, sizeof(float) * N);

    CHECK(comm_barrier(r->c) == 0);
    comm_sum(r->c, r->q, 3, x, N);
    CHECK(r->b->wait(r->q) == 0);
    CHECK(comm_check(r->c) == 0);
    if (r->rank == 1) {
        clock_sleep(300 * NS_PER_MS);
        comm_sum(r->c, r->q, 4, x, N);
        CHECK(r->b->wait(r->q) == 0);
        CHECK(comm_check(r->c) == -ETIMEDOUT);
    }
    r->b->free(r->d, x);
}

/* A kernel of rank 1 has found a fault: what it would send is garbage, so nobody gets it. */
static void faulty(struct rank *r)
{
    float *x = take(r, sizeof(float) * 64);
    struct row_info *info = take(r, sizeof(*info));
    const float none[64] = { NAN };

    CHECK(comm_barrier(r->c) == 0);
    if (r->rank == 1) {
        r->b->put(r->q, x, none, sizeof(none));
        r->b->op->inspect(r->q, &(struct inspect_args){
                                    .x = x, .info = info, .rows = 1, .cols = 64, .layer = 7 });
    }
    comm_sum(r->c, r->q, 3, x, 64);
    comm_sum(r->c, r->q, 4, x, 64);
    CHECK(r->b->wait(r->q) == (r->rank == 1 ? -EBADMSG : 0));
    CHECK(comm_check(r->c) == (r->rank == 1 ? -ECANCELED : -ETIMEDOUT));
    if (r->rank == 1)
        clock_sleep(1200 * NS_PER_MS);
    r->b->free(r->d, x);
    r->b->free(r->d, info);
}

static void *run(void *arg)
{
    struct rank *r = arg;
    struct comm_settings s = { .partials = r->wire,
                               /* a thread has one piece of what is short, and several */
                               .slot_bytes = 131072,
                               .spin_us = 20,
                               .wait_limit_ms = r->fn == late || r->fn == closed || r->fn == faulty
                                                    ? 800
                                                    : 30000,
                               .first_seq = r->first_seq };

    log_rank(r->rank);
    CHECK(r->b->open(r->rank % devices, 1, &r->d) == 0);
    CHECK(r->b->queue_open(r->d, &r->q) == 0);
    if (r->wires)
        CHECK(comm_relay_open((struct link *const *)r->wires->link[r->rank], r->d, r->rank,
                              r->world, &s, &r->c) == 0);
    else
        CHECK(comm_peer_open(r->hub, r->d, r->rank, &s, &r->c) == 0);
    r->fn(r);
    comm_close(r->c);
    r->b->queue_close(r->q);
    r->b->close(r->d);
    return NULL;
}

/* kind: of the links; NULL: comm_peer */
static void world_of(const char *kind, int n, enum comm_wire wire, uint32_t first_seq,
                     void (*fn)(struct rank *r))
{
    struct rank r[RANKS];
    struct comm_hub *hub;
    struct wires w;

    if (kind)
        wires_open(&w, kind, n, 1);
    CHECK(comm_hub_open(n, &hub) == 0);
    for (int i = 0; i < n; i++) {
        r[i] = (struct rank){ .rank = i,
                              .world = n,
                              .hub = hub,
                              .wires = kind ? &w : NULL,
                              .wire = wire,
                              .first_seq = first_seq,
                              .fn = fn,
                              .b = lab.dev->ops };
        CHECK(pthread_create(&r[i].thread, NULL, run, &r[i]) == 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(r[i].thread, NULL);
    comm_hub_close(hub);
    if (kind)
        wires_close(&w);
}

static void world(int n, enum comm_wire wire, uint32_t first_seq, void (*fn)(struct rank *r))
{
    world_of(NULL, n, wire, first_seq, fn);
}

static void over_links(void)
{
    static const char *const kinds[] = { "loop", "shm", "tcp" };

    for (int k = 0; k < COUNT(kinds); k++) {
        for (int n = 2; n <= RANKS; n += 2) {
            world_of(kinds[k], n, COMM_BF16, 0, sums);
            world_of(kinds[k], n, COMM_F32, 0xfffffff0u, sums); /* the sequence wraps */
            world_of(kinds[k], n, COMM_BF16, 0, captured);
        }
        world_of(kinds[k], 2, COMM_F32, 0, gathers);
        world_of(kinds[k], 3, COMM_BF16, 0xfffffffau, gathers);
        world_of(kinds[k], 2, COMM_BF16, 0, differs);
        world_of(kinds[k], 3, COMM_BF16, 0, late);
        world_of(kinds[k], 2, COMM_BF16, 0, faulty);
    }
}

/* For tools that run one kernel at a time: a rank that waits for nobody. There is no link to
 * nobody. */
static void rank_alone(void)
{
    world(1, COMM_BF16, 0, sums);
    world(1, COMM_F32, 0xfffffff0u, sums);
    world(1, COMM_F32, 0, gathers);
}

/* exchange [-d | -q]    -d: ranks on as many devices as there are, at least two; -q: one rank, for
 * tools */
int exchange_main(int argc, char **argv)
{
    int r = lab_open(&lab);
    char why[160];

    if (r != 0)
        return r;
    if (argc > 1 && strcmp(argv[1], "-d") == 0) {
        while (lab.dev->ops->probe(devices, why, sizeof(why)) == 0)
            devices++;
        if (devices == 1) {
            printf("skipped: ranks on devices of their own: %s\n", why);
            lab_close(&lab);
            return 77;
        }
        printf("ranks on %d devices\n", devices);
    }
    quick = argc > 1 && strcmp(argv[1], "-q") == 0;
    lab_begin(&lab, "exchange");
    if (quick) {
        rank_alone();
        r = lab.failures != 0;
        printf("exchange: %d failures\n", lab.failures);
        lab_close(&lab);
        return r;
    }
    for (int n = 2; n <= RANKS; n++)
        for (int wire = COMM_BF16; wire <= COMM_F32; wire++) {
            world(n, wire, 0, sums);
            world(n, wire, 0xfffffff0u, sums); /* the sequence wraps */
            world(n, wire, 0, captured);
        }
    world(2, COMM_F32, 0, gathers);
    world(3, COMM_BF16, 0xfffffffau, gathers);
    world(2, COMM_BF16, 0, differs);
    world(3, COMM_BF16, 0, late);
    world(2, COMM_BF16, 0, closed);
    world(2, COMM_BF16, 0, faulty);
    over_links();
    printf("exchange: %d failures\n", lab.failures);
    r = lab.failures != 0;
    lab_close(&lab);
    return r;
}
