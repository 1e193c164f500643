/* The contract of comm.h: the same bits on every rank, over every link, and how a comm fails. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "kernels/backend.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/comm.h"
#include "tests/transport/fault.h"
#include "tests/transport/wires.h"

enum { SLOT = 4096, N_MAX = 3 * SLOT, CALLS_MAX = 80 };

static uint32_t bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static float from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

/* Rounding to bf16 by its definition: the nearer of the two neighbours, of equal ones the even. */
static float to_wire(enum comm_wire wire, float x)
{
    uint32_t low = bits(x) & 0xffff0000, high = low + 0x10000;
    double below, above, v = x;

    if (wire == COMM_F32)
        return x;
    if (isnan(x))
        return from_bits(low | 0x400000);
    if (isinf(x))
        return x;
    below = from_bits(low);
    above = (high & 0x7f800000) == 0x7f800000 ? copysign(0x1p128, v) : (double)from_bits(high);
    if (fabs(v - below) != fabs(above - v))
        return from_bits(fabs(v - below) < fabs(above - v) ? low : high);
    return from_bits(low & 0x10000 ? high : low);
}

/* What rank r puts in: all classes of floats, the same whoever asks. */
static float value(int r, int call, size_t i)
{
    static const uint32_t odd[] = { 0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00008000,
                                    0x00018000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001,
                                    0xffc12345, 0x7f7fffff, 0xff7fffff, 0x3f808000, 0x3f818000,
                                    0x3f808001, 0x3f807fff, 0x00800000 };
    uint64_t s = (uint64_t)r << 48 ^ (uint64_t)call << 32 ^ i, z = wires_random(&s);

    if (z % 5 == 0)
        return from_bits(odd[z / 5 % (sizeof(odd) / sizeof(odd[0]))]);
    if (z % 5 == 1)
        return from_bits((uint32_t)(z >> 16));
    return (float)((double)(int64_t)z / 0x1p62);
}

static float sum_of(int world, enum comm_wire wire, int call, size_t i)
{
    float y = to_wire(wire, value(0, call, i));

    for (int r = 1; r < world; r++)
        y = y + to_wire(wire, value(r, call, i));
    return y;
}

static size_t call_size(int call)
{
    static const size_t n[] = { 1, 7, 8, 1000, SLOT / 4, SLOT / 2, SLOT / 2 + 1, N_MAX };

    return n[call % 8];
}

struct world {
    struct wires w;
    const char *kind;
    int ranks, calls;
    struct comm_settings set;
    struct fault_link fault; /* rank 0's link to rank 1, if wanted */
    float *got[WIRES_MAX];   /* [calls][N_MAX] */
    int result[WIRES_MAX], site[WIRES_MAX];
    size_t n[WIRES_MAX];
    struct comm_stats stats[WIRES_MAX];
    char line[WIRES_MAX][256];
    int gather_wrong[WIRES_MAX];
    atomic_int over; /* rank 0 has what it waited for */
};

/* A rank that closes before would be a peer that is gone. */
static void until_over(struct world *t)
{
    while (!atomic_load(&t->over))
        clock_sleep(NS_PER_MS);
}

static struct comm *world_comm(struct world *t, int rank)
{
    struct comm *c;

    if ((t->ranks == 1 ? comm_self_open(&t->set, &c)
                       : comm_link_open(t->w.link[rank], rank, t->ranks, &t->set, &c)) < 0)
        abort();
    return c;
}

static void world_open(struct world *t, const char *kind, int ranks, enum comm_wire wire)
{
    t->kind = kind;
    t->ranks = ranks;
    t->set = (struct comm_settings){ .partials = wire,
                                     .slot_bytes = SLOT,
                                     .spin_us = 20,
                                     .wait_limit_ms = 5000,
                                     .first_seq = t->set.first_seq };
    if (ranks > 1)
        wires_open(&t->w, kind, ranks, 0);
    for (int r = 0; r < ranks; r++)
        t->got[r] = malloc((size_t)(t->calls + 1) * N_MAX * sizeof(float));
}

static void world_close(struct world *t)
{
    if (t->ranks > 1)
        wires_close(&t->w);
    for (int r = 0; r < t->ranks; r++)
        free(t->got[r]);
}

static void sum_all(int rank, void *arg)
{
    struct world *t = arg;
    struct comm *c = world_comm(t, rank);
    size_t unaligned = (size_t)rank; /* the bits may not depend on where the rows lie */

    for (int k = 0; k < t->calls; k++) {
        float *x = t->got[rank] + (size_t)k * N_MAX + unaligned;
        size_t n = call_size(k) < N_MAX - 8 ? call_size(k) : N_MAX - 8;

        for (size_t i = 0; i < n; i++)
            x[i] = value(rank, k, i);
        comm_sum(c, NULL, k % (COMM_SITES - 1) + 1, x, n);
    }
    t->result[rank] = comm_check(c);
    t->stats[rank] = comm_stats_take(c);
    comm_close(c);
}

static void judge_sums(const struct world *t)
{
    for (int k = 0; k < t->calls; k++) {
        size_t n = call_size(k) < N_MAX - 8 ? call_size(k) : N_MAX - 8, differ = 0, wrong = 0;

        for (size_t i = 0; i < n; i++) {
            float want = sum_of(t->ranks, t->set.partials, k, i),
                  a = t->got[0][(size_t)k * N_MAX + i];

            wrong += isnan(want) ? !isnan(a) : bits(a) != bits(want);
            for (int r = 1; r < t->ranks; r++)
                differ += bits(a) != bits(t->got[r][(size_t)k * N_MAX + (size_t)r + i]);
        }
        cr_expect(eq(sz, wrong, 0), "%s, %d ranks, call %d of %zu: off the definition", t->kind,
                  t->ranks, k, n);
        cr_expect(eq(sz, differ, 0), "%s, %d ranks, call %d of %zu: ranks differ", t->kind,
                  t->ranks, k, n);
    }
    for (int r = 0; r < t->ranks; r++)
        cr_expect(eq(int, t->result[r], 0), "%s, rank %d", t->kind, r);
}

Test(comm, all_ranks_form_the_defined_bits, .timeout = 60)
{
    static const int worlds[] = { 1, 2, 4 };

    for (int k = 0; wires_kinds[k]; k++) {
        for (int i = 0; i < 3; i++) {
            for (int wire = 0; wire < 2; wire++) {
                struct world t = { .calls = 16 };

                world_open(&t, wires_kinds[k], worlds[i], wire);
                wires_run(t.ranks, sum_all, &t);
                judge_sums(&t);
                world_close(&t);
            }
        }
    }
}

Test(comm, the_sequence_wraps)
{
    for (int k = 0; wires_kinds[k]; k++) {
        struct world t = { .calls = CALLS_MAX, .set.first_seq = UINT32_C(0xfffffff0) };

        world_open(&t, wires_kinds[k], 2, COMM_BF16);
        fault_wrap(&t.fault, t.w.link[0][1], FAULT_NONE, 0);
        t.w.link[0][1] = &t.fault.base;
        wires_run(2, sum_all, &t);
        judge_sums(&t);
        cr_expect(
            eq(u32, (uint32_t)t.fault.last, t.set.first_seq + (uint32_t)t.stats[0].exchanges));
        world_close(&t);
    }
}

/* Links over sockets that hold less than a slot; far less on the way from `narrow` on. */
static void open_small(struct world *t, int ranks, int narrow)
{
    int bytes = 4096, fd[2];

    t->ranks = t->w.world = ranks;
    t->kind = "tcp";
    t->set = (struct comm_settings){
        .partials = COMM_F32, .slot_bytes = 1 << 20, .spin_us = 20, .wait_limit_ms = 5000
    };
    for (int a = 0; a < ranks; a++) {
        for (int b = a + 1; b < ranks; b++) {
            wires_socketpair(0, fd);
            if (a == narrow)
                setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
            cr_assert(eq(int, link_tcp_open(fd[0], a, b, 0, 5000, &t->w.link[a][b]), 0));
            cr_assert(eq(int, link_tcp_open(fd[1], b, a, 0, 5000, &t->w.link[b][a]), 0));
        }
    }
}

enum { LARGE = (1 << 20) / 4 };

/* One exchange; rank 0 then leaves its links alone until all have theirs. */
static void sum_large(int rank, void *arg)
{
    struct world *t = arg;
    struct comm *c = world_comm(t, rank);
    float *x = malloc(LARGE * sizeof(*x));

    for (int i = 0; i < LARGE; i++)
        x[i] = (float)(rank + 1);
    comm_sum(c, NULL, 1, x, LARGE);
    t->result[rank] = comm_check(c);
    t->n[rank] = x[0] == x[LARGE - 1] ? (size_t)x[0] : 0;
    atomic_fetch_add(&t->over, 1);
    for (int i = 0; i < 6000 && atomic_load(&t->over) < t->ranks; i++)
        clock_sleep(NS_PER_MS);
    comm_close(c);
    free(x);
}

/* In a ring each waits for the next one, whose socket is full until the one after that reads. */
Test(comm, sums_that_fill_the_sockets_of_three_ranks_do_not_block, .timeout = 60)
{
    struct world t = { .calls = 0 };

    open_small(&t, 3, -1);
    wires_run(3, sum_large, &t);
    for (int r = 0; r < 3; r++) {
        cr_expect(eq(int, t.result[r], 0), "rank %d", r);
        cr_expect(eq(sz, t.n[r], 6), "rank %d", r);
    }
    wires_close(&t.w);
}

Test(comm, nothing_of_an_exchange_is_left_to_the_next_one, .timeout = 60)
{
    struct world t = { .calls = 0 };

    /* rank 0 has all that it needs long before its own share has left */
    open_small(&t, 2, 0);
    wires_run(2, sum_large, &t);
    for (int r = 0; r < 2; r++) {
        cr_expect(eq(int, t.result[r], 0), "rank %d", r);
        cr_expect(eq(sz, t.n[r], 3), "rank %d", r);
    }
    wires_close(&t.w);
}

Test(comm, counts_exchanges_bytes_and_time)
{
    struct world t = { .calls = 8 };
    size_t bytes = 0;

    world_open(&t, "loop", 2, COMM_F32);
    wires_run(2, sum_all, &t);
    for (int k = 0; k < 8; k++)
        bytes += ((call_size(k) < N_MAX - 8 ? call_size(k) : N_MAX - 8) * 4 + 15) / 16 * 16;
    for (int r = 0; r < 2; r++) {
        /* 1 each up to a slot of 1024 floats, then 2, 3 and 12 */
        cr_expect(eq(u64, t.stats[r].exchanges, 5 + 2 + 3 + 12));
        cr_expect(eq(u64, t.stats[r].bytes, bytes));
        cr_expect(t.stats[r].wait_ns > 0 && t.stats[r].wait_ns >= t.stats[r].wait_max_ns);
        cr_expect(t.stats[r].move_ns > 0);
    }
    world_close(&t);
}

static void gather_all(int rank, void *arg)
{
    struct world *t = arg;
    struct comm *c = world_comm(t, rank);
    static const size_t sizes[] = { 1, 8, 4000, SLOT, SLOT + 1, 3 * SLOT - 5 };

    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        size_t bytes = sizes[k];
        uint8_t *out = malloc((size_t)t->ranks * bytes), *in = malloc(bytes);

        for (int in_place = 0; in_place < 2; in_place++) {
            uint8_t *from = in_place ? out + (size_t)rank * bytes : in;

            memset(out, 0xee, (size_t)t->ranks * bytes);
            for (size_t i = 0; i < bytes; i++)
                from[i] = (uint8_t)(i * 7 + (size_t)rank * 50 + k);
            comm_gather(c, NULL, 9, from, out, bytes);
            for (int r = 0; r < t->ranks; r++)
                for (size_t i = 0; i < bytes; i++)
                    t->gather_wrong[rank] +=
                        out[(size_t)r * bytes + i] != (uint8_t)(i * 7 + (size_t)r * 50 + k);
        }
        free(out);
        free(in);
        if (comm_barrier(c) < 0)
            t->gather_wrong[rank]++;
    }
    t->result[rank] = comm_check(c);
    comm_close(c);
}

Test(comm, gathers_in_rank_order)
{
    static const int worlds[] = { 1, 2, 3 };

    for (int k = 0; wires_kinds[k]; k++) {
        for (int i = 0; i < 3; i++) {
            struct world t = { .calls = 0 };

            world_open(&t, wires_kinds[k], worlds[i], COMM_BF16);
            wires_run(t.ranks, gather_all, &t);
            for (int r = 0; r < t.ranks; r++) {
                cr_expect(eq(int, t.result[r], 0), "%s rank %d", t.kind, r);
                cr_expect(eq(int, t.gather_wrong[r], 0), "%s, %d ranks, rank %d", t.kind, t.ranks,
                          r);
            }
            world_close(&t);
        }
    }
}

/* Two sums, the second where the case says; then one more that has to be ignored. */
static void diverge(int rank, void *arg)
{
    struct world *t = arg;
    struct comm *c = world_comm(t, rank);
    float x[64] = { 0 }, kept[64];

    comm_sum(c, NULL, 5, x, 64);
    comm_sum(c, NULL, t->site[rank], x, t->n[rank]);
    t->result[rank] = comm_check(c);
    for (int i = 0; i < 64; i++)
        kept[i] = x[i] = (float)i;
    comm_sum(c, NULL, 5, x, 64);
    if (memcmp(x, kept, sizeof(x)) != 0)
        t->result[rank] = 1;
    if (comm_check(c) != t->result[rank])
        t->result[rank] = 2;
    comm_close(c);
}

static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;

/* Keep the first line of each rank. */
static void keep_line(void *arg, enum log_level level, const char *line)
{
    struct world *t = arg;
    int r = line[1] - '0';

    pthread_mutex_lock(&lines_lock);
    if (level == LOG_ERR && line[0] == 'r' && r >= 0 && r < WIRES_MAX && t->line[r][0] == 0)
        snprintf(t->line[r], sizeof(t->line[r]), "%s", line);
    pthread_mutex_unlock(&lines_lock);
}

Test(comm, ranks_that_run_different_programs_say_so)
{
    static const struct {
        const char *name;
        int site[2];
        size_t n[2];
        const char *line[2];
    } cases[] = {
        { "site",
          { 6, 7 },
          { 64, 64 },
          { "exchange 2 site 6 units 8 here, exchange 2 site 7 units 8 on rank 1",
            "exchange 2 site 7 units 8 here, exchange 2 site 6 units 8 on rank 0" } },
        { "size",
          { 6, 6 },
          { 64, 32 },
          { "exchange 2 site 6 units 8 here, exchange 2 site 6 units 4 on rank 1",
            "exchange 2 site 6 units 4 here, exchange 2 site 6 units 8 on rank 0" } },
    };

    for (int k = 0; wires_kinds[k]; k++) {
        for (size_t i = 0; i < 2; i++) {
            struct world t = { .calls = 0 };

            memcpy(t.site, cases[i].site, sizeof(cases[i].site));
            memcpy(t.n, cases[i].n, sizeof(cases[i].n));
            world_open(&t, wires_kinds[k], 2, COMM_BF16);
            log_sink(keep_line, &t);
            wires_run(2, diverge, &t);
            log_sink(NULL, NULL);
            for (int r = 0; r < 2; r++) {
                cr_expect(eq(int, t.result[r], -EPROTO), "%s, %s, rank %d", t.kind, cases[i].name,
                          r);
                cr_expect(strstr(t.line[r], cases[i].line[r]) != NULL, "%s: '%s'", t.kind,
                          t.line[r]);
            }
            world_close(&t);
        }
    }
}

Test(comm, a_rank_alone_takes_its_own_part_for_all)
{
    struct comm_settings set = { .partials = COMM_BF16 };
    struct comm *c;
    float x = 1.0f + 1.0f / 512;
    int32_t out[3] = { 0, 7, 0 };

    cr_assert(eq(int, comm_self_alone(&set, 1, 3, &c), 0));
    comm_sum(c, NULL, 1, &x, 1);
    comm_gather(c, NULL, 2, &out[1], out, sizeof(out[1]));
    cr_expect(eq(flt, x, 1));
    for (int r = 0; r < 3; r++)
        cr_expect(eq(int, out[r], 7));
    cr_expect(eq(int, comm_check(c), 0));
    comm_close(c);
}

Test(comm, sites_out_of_range_are_refused)
{
    static const int sites[] = { -1, COMM_SITES };

    for (int i = 0; i < 2; i++) {
        struct comm *c;
        float x = 1;

        cr_assert(eq(int, comm_self_open(&(struct comm_settings){ .partials = COMM_BF16 }, &c), 0));
        comm_sum(c, NULL, sites[i], &x, 1);
        cr_expect(eq(int, comm_check(c), -EINVAL));
        comm_close(c);
    }
}

static void sum_until_error(int rank, void *arg)
{
    struct world *t = arg;
    struct comm *c = world_comm(t, rank);
    float *x = t->got[rank];

    for (int k = 0; k < t->calls && comm_check(c) == 0; k++) {
        for (size_t i = 0; i < 512; i++)
            x[i] = value(rank, k, i);
        comm_sum(c, NULL, 3, x, 512);
        t->n[rank] = (size_t)k + 1;
    }
    t->result[rank] = comm_check(c);
    comm_close(c);
    /* a process that ends closes its links: the other must not wait for its limit */
    if (t->result[rank] < 0)
        for (int p = 0; p < t->ranks; p++)
            if (t->w.link[rank][p])
                t->w.link[rank][p]->ops->abort(t->w.link[rank][p]);
}

Test(comm, faults_of_a_link_end_all_ranks_or_none, .timeout = 60)
{
    static const struct {
        const char *name;
        enum fault fault;
        int result[2], calls[2];
    } cases[] = {
        { "late sends", FAULT_DELAY, { 0, 0 }, { 100, 100 } },
        { "sends made twice", FAULT_DUPLICATE, { 0, 0 }, { 100, 100 } },
        { "dies after 20 sends", FAULT_DIE, { -ECONNRESET, -ECONNRESET }, { 21, 21 } },
        /* the other's part of that exchange has come, so the sender goes one call further */
        { "a send is lost", FAULT_DROP, { -ETIMEDOUT, -ETIMEDOUT }, { 22, 21 } },
    };

    for (int k = 0; wires_kinds[k]; k++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct world t = { .calls = 100 };

            world_open(&t, wires_kinds[k], 2, COMM_BF16);
            t.set.wait_limit_ms = cases[i].fault == FAULT_DROP ? 100 : 5000;
            fault_wrap(&t.fault, t.w.link[0][1], cases[i].fault, 20);
            t.w.link[0][1] = &t.fault.base;
            wires_run(2, sum_until_error, &t);
            for (int r = 0; r < 2; r++) {
                int lost = t.result[r] == -ECONNRESET && cases[i].fault == FAULT_DROP;

                /* of a lost send either rank may reach its limit first, and ends the other */
                cr_expect(t.result[r] == cases[i].result[r] || lost, "%s, %s, rank %d: %d", t.kind,
                          cases[i].name, r, t.result[r]);
                cr_expect(eq(int, (int)t.n[r], cases[i].calls[r]), "%s, %s, rank %d", t.kind,
                          cases[i].name, r);
            }
            cr_expect(t.result[0] == cases[i].result[0] || t.result[1] == cases[i].result[1]);
            world_close(&t);
        }
    }
}

struct aborter {
    struct comm *c;
    _Atomic int64_t at_ns;
};

static void *abort_soon(void *arg)
{
    struct aborter *a = arg;

    clock_sleep(30 * NS_PER_MS);
    a->at_ns = clock_ns();
    comm_abort(a->c, "test");
    comm_abort(a->c, "again");
    return NULL;
}

static void wait_for_abort(int rank, void *arg)
{
    struct world *t = arg;
    struct comm *c = world_comm(t, rank);
    struct aborter a = { .c = c };
    float x[16] = { 0 };
    pthread_t th;

    if (rank == 0) {
        pthread_create(&th, NULL, abort_soon, &a);
        comm_sum(c, NULL, 1, x, 16); /* rank 1 never comes */
        t->n[0] = (size_t)(clock_ns() - atomic_load(&a.at_ns));
        pthread_join(th, NULL);
        t->result[0] = comm_check(c);
        atomic_store(&t->over, 1);
    } else {
        until_over(t);
    }
    comm_close(c);
}

Test(comm, an_abort_ends_the_wait)
{
    for (int k = 0; wires_kinds[k]; k++) {
        size_t late = SIZE_MAX;

        /* who sleeps through an abort is late every time, a busy machine only now and then */
        for (int tries = 0; tries < 20 && late >= 20 * NS_PER_MS; tries++) {
            struct world t = { .calls = 0 };

            world_open(&t, wires_kinds[k], 2, COMM_BF16);
            wires_run(2, wait_for_abort, &t);
            cr_expect(eq(int, t.result[0], -ECANCELED), "%s", t.kind);
            late = t.n[0];
            world_close(&t);
        }
        cr_expect(late < 20 * NS_PER_MS, "%s: %zu us late", wires_kinds[k], late / 1000);
    }
}

/* Rank 1's queue has failed before its exchange. */
static void sum_with_failed_queue(int rank, void *arg)
{
    struct world *t = arg;
    struct comm *c = world_comm(t, rank);
    struct queue q = { .err = rank == 1 ? -EIO : 0 };
    float x[16] = { 0 };

    comm_sum(c, &q, 1, x, 16);
    t->result[rank] = comm_check(c);
    t->n[rank] = (size_t)-q.err;
    if (rank == 0)
        atomic_store(&t->over, 1);
    until_over(t);
    comm_close(c);
}

Test(comm, a_failed_queue_sends_nothing)
{
    for (int k = 0; wires_kinds[k]; k++) {
        struct world t = { .calls = 0 };

        world_open(&t, wires_kinds[k], 2, COMM_BF16);
        t.set.wait_limit_ms = 100;
        wires_run(2, sum_with_failed_queue, &t);
        cr_expect(eq(int, t.result[0], -ETIMEDOUT), "%s: rank 0 got what rank 1 had", t.kind);
        cr_expect(eq(int, t.result[1], -ECANCELED), "%s", t.kind);
        cr_expect(eq(sz, t.n[1], EIO), "%s: the queue keeps its error", t.kind);
        world_close(&t);
    }
}

Test(comm, settings_are_checked)
{
    static const struct {
        int rank, world;
        size_t slot_bytes;
    } cases[] = { { 0, 1, SLOT }, { 0, 9, SLOT }, { 2, 2, SLOT },   { -1, 2, SLOT },
                  { 0, 2, 0 },    { 0, 2, 4097 }, { 0, 2, 1 << 24 } };
    struct link *none[WIRES_MAX] = { NULL };
    const struct comm_ops *ops;
    struct comm *c;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct comm_settings s = { .slot_bytes = cases[i].slot_bytes };

        cr_expect(eq(int, comm_link_open(none, cases[i].rank, cases[i].world, &s, &c), -EINVAL),
                  "case %zu", i);
    }
    cr_expect(eq(int, comm_find("link", &ops), 0));
    cr_expect(eq(int, comm_find("nccl", &ops), 0));
    cr_expect(strcmp(ops->name, "nccl") == 0);
    cr_expect(eq(int, comm_find("mpi", &ops), -EINVAL));
    comm_close(NULL);
}
