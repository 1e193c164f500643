/* The contract of link.h, over every link. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/link.h"
#include "src/transport/link_area.h"
#include "tests/transport/wires.h"

enum { SLOTS = 4, SLOT_BYTES = 1024 };

/* One rank of a pair with its memory. */
struct end {
    struct link *link;
    struct link_mem mem;
    uint8_t *outbox;
    struct link_wait wait;
};

static int end_open(struct end *e, struct link *l, int slots, size_t slot_bytes, int limit_ms)
{
    e->link = l;
    e->outbox = aligned_alloc(64, (size_t)slots * slot_bytes);
    memset(e->outbox, 0, (size_t)slots * slot_bytes);
    e->mem = (struct link_mem){
        .channel = l->channel, .slots = slots, .slot_bytes = slot_bytes, .outbox = e->outbox
    };
    e->wait = (struct link_wait){ .links = &e->link, .n = 1, .spin_us = 20, .limit_ms = limit_ms };
    return l->ops->reg(l, &e->mem);
}

static void end_close(struct end *e)
{
    if (e->mem.inbox)
        e->link->ops->unreg(e->link, &e->mem);
    free(e->outbox);
}

static int end_send(struct end *e, size_t off, size_t len, uint64_t tag)
{
    return e->link->ops->send(e->link, &e->mem, off, len, tag);
}

static int end_wait(struct end *e, int slot, uint64_t seen, uint64_t *now)
{
    return link_wait_flag(&e->wait, e->link, &e->mem, slot, seen, now);
}

/* A pair of ranks in two threads; results are judged afterwards. */
struct pair {
    struct wires w;
    const char *kind;
    int ops, slots[2], result[2], wrong[2];
    atomic_int here;
    size_t slot_bytes;
    int64_t ns;
};

static uint8_t byte_of(int rank, int op, size_t i)
{
    return (uint8_t)(rank * 77 + op * 13 + (int)i);
}

/* On a busy machine every op hands a core over: so many of them, then as many as there is time
 * for. */
#define OPS_LEAST 500
#define STREAM_NS (2 * NS_PER_S)
#define LAST (UINT64_C(1) << 31) /* in rank 0's tag */

/* Both send op k into slot k mod SLOTS and wait for the other's, as an exchange does: so slots may
 * be reused. */
static void stream(int rank, void *arg)
{
    struct pair *p = arg;
    uint64_t dice = (uint64_t)rank + 11, seen[SLOTS] = { 0 }, last = 0;
    int64_t until = clock_ns() + STREAM_NS;
    struct end e;

    p->result[rank] = end_open(&e, p->w.link[rank][!rank], SLOTS, SLOT_BYTES, 10000);
    for (int k = 1; !last && p->result[rank] == 0 && !p->wrong[rank]; k++) {
        int slot = k % SLOTS;
        size_t len = (size_t)(k * 31 % SLOT_BYTES), at = (size_t)slot * SLOT_BYTES;
        uint64_t now;

        for (size_t i = 0; i < len; i++)
            e.outbox[at + i] = byte_of(rank, k, i);
        if (wires_random(&dice) % 256 == 0)
            clock_sleep((int64_t)(wires_random(&dice) % 100) * NS_PER_US);
        if (rank == 0 && (k == p->ops || (k >= OPS_LEAST && clock_ns() > until)))
            last = LAST;
        p->result[rank] = end_send(&e, at, len, (uint64_t)k << 32 | last | (uint64_t)len);
        if (p->result[rank] == 0)
            p->result[rank] = end_wait(&e, slot, seen[slot], &now);
        if (p->result[rank] < 0)
            break;
        seen[slot] = now;
        if (rank == 1)
            last = now & LAST;
        if (now != ((uint64_t)k << 32 | (rank == 1 ? last : 0) | (uint64_t)len))
            p->wrong[rank] = k;
        for (size_t i = 0; i < len; i++)
            if (e.mem.inbox[at + i] != byte_of(!rank, k, i))
                p->wrong[rank] = k;
    }
    end_close(&e);
}

Test(link, payload_is_there_when_the_flag_is)
{
    for (int k = 0; wires_kinds[k]; k++) {
        struct pair p = { .kind = wires_kinds[k],
                          .ops = strcmp(wires_kinds[k], "tcp") == 0        ? 8000
                                 : strncmp(wires_kinds[k], "rdma", 4) == 0 ? 2000
                                                                           : 40000 };

        wires_open(&p.w, p.kind, 2, 0);
        wires_run(2, stream, &p);
        wires_close(&p.w);
        for (int r = 0; r < 2; r++) {
            cr_expect(eq(int, p.result[r], 0), "%s rank %d", p.kind, r);
            cr_expect(eq(int, p.wrong[r], 0), "%s rank %d: wrong at op %d", p.kind, r, p.wrong[r]);
        }
    }
}

static void flood(int rank, void *arg)
{
    struct pair *p = arg;
    struct end e;
    uint64_t now = 0;
    int late, r = end_open(&e, p->w.link[rank][!rank], 2, p->slot_bytes, 10000);

    memset(e.outbox, 'a' + rank, 2 * p->slot_bytes);
    if (r == 0)
        r = end_send(&e, 0, p->slot_bytes, 1);
    if (r == 0)
        r = end_send(&e, p->slot_bytes, p->slot_bytes, 2);
    if (r == 0)
        r = end_wait(&e, 1, 0, &now);
    if (r == 0)
        r = link_wait_sent(&e.wait, &late);
    p->result[rank] = r;
    p->wrong[rank] = r == 0 && (e.mem.inbox[0] != 'a' + !rank || e.link->pending != 0 ||
                                e.mem.inbox[2 * p->slot_bytes - 1] != 'a' + !rank);
    end_close(&e);
}

Test(link, two_large_sends_at_once_do_not_block)
{
    for (int k = 0; wires_kinds[k]; k++) {
        struct pair p = { .kind = wires_kinds[k],
                          .slot_bytes = 12 << 20 }; /* more than sockets hold */

        wires_open(&p.w, p.kind, 2, 0);
        wires_run(2, flood, &p);
        wires_close(&p.w);
        for (int r = 0; r < 2; r++) {
            cr_expect(eq(int, p.result[r], 0), "%s rank %d", p.kind, r);
            cr_expect(eq(int, p.wrong[r], 0), "%s rank %d", p.kind, r);
        }
    }
}

static void register_slots(int rank, void *arg)
{
    struct pair *p = arg;
    struct end e;

    p->result[rank] = end_open(&e, p->w.link[rank][!rank], p->slots[rank], SLOT_BYTES, 1000);
    end_close(&e);
}

Test(link, ends_that_differ_are_refused_on_both_sides)
{
    for (int k = 0; wires_kinds[k]; k++) {
        struct pair p = { .kind = wires_kinds[k], .slots = { 2, 4 } };

        wires_open(&p.w, p.kind, 2, 0);
        wires_run(2, register_slots, &p);
        wires_close(&p.w);
        cr_expect(eq(int, p.result[0], -EINVAL), "%s", p.kind);
        cr_expect(eq(int, p.result[1], -EINVAL), "%s", p.kind);
    }
}

#define PROMPT_NS (25 * NS_PER_MS)

/* Rank 0 waits for what never comes; rank 1 does what the case says. */
enum ending { END_ABORT_OTHER_THREAD, END_PEER_CLOSES, END_PEER_ABORTS, END_LIMIT, ENDINGS };

static const struct {
    const char *name;
    int result, limit_ms;
} endings[ENDINGS] = {
    [END_ABORT_OTHER_THREAD] = { "aborted by another thread", -ECANCELED, 5000 },
    [END_PEER_CLOSES] = { "peer closes", -ECONNRESET, 5000 },
    [END_PEER_ABORTS] = { "peer aborts", -ECONNRESET, 5000 },
    [END_LIMIT] = { "wait limit", -ETIMEDOUT, 60 },
};

struct ended {
    struct wires w;
    enum ending how;
    int result, last_result;
    uint64_t last;
    _Atomic int64_t at_ns; /* when it happened */
    int64_t late_ns;
};

static void ending(int rank, void *arg)
{
    struct ended *p = arg;
    struct link **l = &p->w.link[rank][!rank];
    int64_t begun;
    uint64_t now;
    struct end e;

    if (end_open(&e, *l, 2, SLOT_BYTES, endings[p->how].limit_ms) < 0)
        abort();
    if (rank == 0) {
        /* the tag that came before the end still counts, whenever it is looked for */
        p->result = end_wait(&e, 0, 0, &now);
        begun = clock_ns();
        if (p->result == 0)
            p->result = end_wait(&e, 0, now, &now);
        p->late_ns =
            clock_ns() -
            (p->how == END_LIMIT ? begun + endings[END_LIMIT].limit_ms * NS_PER_MS : p->at_ns);
        p->last_result = end_wait(&e, 1, 0, &p->last);
    } else {
        end_send(&e, 0, 16, 7);
        end_send(&e, SLOT_BYTES, 16, 8);
        clock_sleep(40 * NS_PER_MS); /* asleep by now */
        p->at_ns = clock_ns();
        if (p->how == END_ABORT_OTHER_THREAD)
            p->w.link[0][1]->ops->abort(p->w.link[0][1]);
        if (p->how == END_PEER_ABORTS)
            (*l)->ops->abort(*l);
        if (p->how == END_PEER_CLOSES) {
            e.link->ops->unreg(e.link, &e.mem);
            (*l)->ops->close(*l);
            *l = NULL;
            free(e.outbox);
            return;
        }
    }
    end_close(&e);
}

Test(link, every_wait_ends_for_a_reason)
{
    for (int k = 0; wires_kinds[k]; k++) {
        for (int how = 0; how < ENDINGS; how++) {
            int64_t late = INT64_MAX;

            /* who sleeps through it is late every time, a busy machine only now and then */
            for (int tries = 0; tries < 20 && late >= PROMPT_NS; tries++) {
                struct ended p = { .how = how };

                wires_open(&p.w, wires_kinds[k], 2, 0);
                wires_run(2, ending, &p);
                wires_close(&p.w);
                cr_expect(eq(int, p.result, endings[how].result), "%s, %s", wires_kinds[k],
                          endings[how].name);
                cr_expect(eq(int, p.last_result, 0), "%s, %s", wires_kinds[k], endings[how].name);
                cr_expect(eq(u64, p.last, 8), "%s, %s", wires_kinds[k], endings[how].name);
                late = p.late_ns;
            }
            cr_expect(late < PROMPT_NS, "%s, %s: %lld us late", wires_kinds[k], endings[how].name,
                      (long long)late / 1000);
        }
    }
}

/* A socket on which nothing comes, and whose end only a look at the link tells. */
struct still {
    struct link base;
    int64_t end_ns;
};

static int still_poll(struct link *l)
{
    return clock_ns() < ((struct still *)l)->end_ns ? 0 : -ECONNRESET;
}

static const struct link_ops still_ops = { .name = "still", .poll = still_poll };

Test(link, who_may_wait_for_long_looks_up_as_often, .timeout = 10)
{
    /* of the last ones, microseconds are more than an int holds */
    const int limits[] = { -1, 5000, 3000000, 24 * 60 * 60 * 1000 };

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        _Alignas(64) uint8_t flags[64] = { 0 };
        struct still s = { .base = { .ops = &still_ops, .peer = 1 } };
        struct link_mem m = { .slots = 1, .slot_bytes = 16, .flags = flags };
        struct link *l = &s.base;
        struct link_wait w = { .links = &l, .n = 1, .limit_ms = limits[i] };
        uint64_t now;
        int fd[2];

        wires_socketpair(1, fd);
        s.base.fd = fd[0];
        s.end_ns = clock_ns() + 60 * NS_PER_MS;
        cr_expect(eq(int, link_wait_flag(&w, l, &m, 0, 0, &now), -ECONNRESET), "limit %d",
                  limits[i]);
        close(fd[0]);
        close(fd[1]);
    }
}

/* Lines as a link of two rails has them: of slot 0, then of slot 1, for each rail. */
Test(link, a_striped_send_is_there_when_every_rail_says_so)
{
    static _Alignas(128) uint8_t flags[4 * 128];
    struct link_bell bell = { 0 };
    struct still s = { .base = { .ops = &still_ops, .peer = 1, .fd = -1, .bell = &bell } };
    struct link_mem m = { .slots = 2, .slot_bytes = 16, .flags = flags, .rails = 2 };
    struct link *l = &s.base;
    struct link_wait w = { .links = &l, .n = 1, .limit_ms = 1000 };
    const uint64_t one = 1, two = 2, tag = 7;
    uint64_t now = 0;

    s.end_ns = INT64_MAX;
    memcpy(link_rail_line(&m, 1, 0), &tag, sizeof(tag));
    memcpy(link_rail_line(&m, 1, 0) + LINK_STRIPES_AT, &one, sizeof(one));
    cr_expect(eq(int, link_wait_flag(&w, l, &m, 1, 0, &now), 0), "it came over one rail");
    cr_expect(eq(u64, now, tag));
    memcpy(link_rail_line(&m, 1, 0) + LINK_STRIPES_AT, &two, sizeof(two));
    w.limit_ms = 20;
    cr_expect(eq(int, link_wait_flag(&w, l, &m, 1, 0, &now), -ETIMEDOUT), "half of it is there");
    memcpy(link_rail_line(&m, 0, 1), &tag, sizeof(tag));
    cr_expect(eq(int, link_wait_flag(&w, l, &m, 1, 0, &now), -ETIMEDOUT), "of another slot");
    memcpy(link_rail_line(&m, 1, 1), &tag, sizeof(tag));
    cr_expect(eq(int, link_wait_flag(&w, l, &m, 1, 0, &now), 0), "all of it is there");
}

static void send_one(int rank, void *arg)
{
    struct pair *p = arg;
    struct link *l = p->w.link[rank][!rank];
    struct end e;
    uint64_t now;

    if (end_open(&e, l, SLOTS, SLOT_BYTES, 5000) < 0)
        abort();
    if (rank == 0) {
        uint32_t heard = link_bell_heard(l->bell);

        p->result[0] = end_send(&e, 0, 0, 1);
        /* the other end answers behind the ring that we wait for */
        p->result[1] = end_wait(&e, 0, 0, &now);
        while (link_bell_heard(l->bell) == heard && p->ops++ < 1000)
            clock_sleep(NS_PER_MS);
        p->wrong[0] = link_bell_heard(l->bell) == heard;
    } else if (end_wait(&e, 0, 0, &now) == 0) {
        end_send(&e, 0, 0, 2);
        clock_sleep(20 * NS_PER_MS);
    }
    end_close(&e);
}

Test(link, every_tag_rings_the_bell_of_who_waits)
{
    for (int k = 0; wires_kinds[k]; k++) {
        struct pair p = { .kind = wires_kinds[k] };

        if (strcmp(p.kind, "loop") != 0 && strcmp(p.kind, "shm") != 0)
            continue; /* of the others nothing that arrives rings */
        wires_open(&p.w, p.kind, 2, 0);
        wires_run(2, send_one, &p);
        wires_close(&p.w);
        cr_expect(eq(int, p.result[0], 0), "%s", p.kind);
        cr_expect(eq(int, p.result[1], 0), "%s", p.kind);
        cr_expect(eq(int, p.wrong[0], 0), "%s", p.kind);
    }
}

static void abort_one(int rank, void *arg)
{
    struct pair *p = arg;
    struct link *l = p->w.link[rank][!rank];
    uint32_t heard;
    struct end e;

    if (end_open(&e, l, SLOTS, SLOT_BYTES, 5000) < 0)
        abort();
    heard = link_bell_heard(l->bell);
    atomic_fetch_add(&p->here, 1);
    while (atomic_load(&p->here) < 2)
        clock_sleep(NS_PER_MS);
    if (rank == p->ops)
        l->ops->abort(l);
    for (int ms = 0; link_bell_heard(l->bell) == heard && ms < 1000; ms++)
        clock_sleep(NS_PER_MS);
    p->wrong[rank] = link_bell_heard(l->bell) == heard;
    end_close(&e);
}

/* Who sleeps on the bell hears of an end at once, on both sides. */
Test(link, an_abort_rings_the_bells_of_both_ends)
{
    for (int k = 0; wires_kinds[k]; k++) {
        for (int who = 0; who < 2; who++) {
            struct pair p = { .kind = wires_kinds[k], .ops = who };

            if (strcmp(p.kind, "loop") != 0 && strcmp(p.kind, "shm") != 0)
                continue;
            wires_open(&p.w, p.kind, 2, 0);
            wires_run(2, abort_one, &p);
            wires_close(&p.w);
            cr_expect(eq(int, p.wrong[0], 0), "%s, by rank %d", p.kind, who);
            cr_expect(eq(int, p.wrong[1], 0), "%s, by rank %d", p.kind, who);
        }
    }
}

struct sleeper {
    struct link_bell bell;
    int64_t ns;
};

static void *sleep_on_the_bell(void *arg)
{
    struct sleeper *s = arg;
    int64_t begun = clock_ns();

    link_bell_sleep(&s->bell, 0, 5000000);
    s->ns = clock_ns() - begun;
    return NULL;
}

Test(link, a_bell_wakes_whoever_sleeps_on_it)
{
    for (int n = 1; n <= 2; n++) {
        static struct sleeper s;
        pthread_t thread[2];

        memset(&s, 0, sizeof(s));
        for (int i = 0; i < n; i++)
            cr_assert(eq(int, pthread_create(&thread[i], NULL, sleep_on_the_bell, &s), 0));
        while (atomic_load(&s.bell.sleepers) < (uint32_t)n)
            clock_sleep(NS_PER_MS);
        clock_sleep(20 * NS_PER_MS);
        link_bell_ring(&s.bell);
        for (int i = 0; i < n; i++)
            pthread_join(thread[i], NULL);
        cr_expect(s.ns < 3 * NS_PER_S, "%d asleep: %.1f s", n, (double)s.ns / 1e9);
        cr_expect(eq(int, (int)atomic_load(&s.bell.sleepers), 0));
    }
}

static int open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void open_and_close(int rank, void *arg)
{
    struct pair *p = arg;
    struct end e;

    p->result[rank] = end_open(&e, p->w.link[rank][!rank], SLOTS, p->slot_bytes, 5000);
    end_close(&e);
}

Test(link, nothing_stays_open_behind_it)
{
    for (int k = 0; wires_kinds[k]; k++) {
        int before = open_files();
        struct pair p = { .kind = wires_kinds[k], .slot_bytes = SLOT_BYTES };

        wires_open(&p.w, p.kind, 2, 0);
        wires_run(2, open_and_close, &p);
        wires_close(&p.w);
        cr_expect(eq(int, p.result[0], 0), "%s", p.kind);
        cr_expect(eq(int, p.result[1], 0), "%s", p.kind);
        cr_expect(eq(int, open_files(), before), "%s", p.kind);
    }
}

Test(link, only_a_stream_socket_begins_a_link)
{
    for (int tcp = 0; tcp < 2; tcp++) {
        int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
        struct link *l;

        cr_expect(eq(int, (tcp ? link_tcp_open : link_shm_open)(fd, 0, 1, 0, 50, &l), -EINVAL));
        cr_expect(eq(int, fcntl(fd, F_GETFD), -1), "it is closed, too");
        cr_expect(strstr(fail_text(), "is no stream socket") != NULL, "%s", fail_text());
    }
}

Test(link, a_peer_that_does_not_register_is_a_timeout)
{
    int fd[2];
    struct link *a, *b;
    struct end e;

    cr_assert(eq(int, link_loop_open(0, 1, 0, 50, &a, &b), 0));
    cr_expect(eq(int, end_open(&e, a, 2, SLOT_BYTES, 100), -ETIMEDOUT));
    end_close(&e);
    a->ops->close(a);
    b->ops->close(b);
    cr_assert(eq(int, link_loop_open(0, 1, 0, 20000, &a, &b), 0));
    b->ops->close(b); /* and one that never will is not waited for */
    cr_expect(eq(int, end_open(&e, a, 2, SLOT_BYTES, 100), -ECONNRESET));
    end_close(&e);
    a->ops->close(a);
    for (int tcp = 0; tcp < 2; tcp++) {
        wires_socketpair(tcp, fd);
        cr_assert(eq(int, (tcp ? link_tcp_open : link_shm_open)(fd[0], 0, 1, 0, 50, &a), 0));
        cr_expect(eq(int, end_open(&e, a, 2, SLOT_BYTES, 100), -ETIMEDOUT));
        end_close(&e);
        a->ops->close(a);
        close(fd[1]);
    }
}

/* What a broken or hostile peer may put on a link's socket after a right record. */
struct raw_frame {
    uint64_t tag;
    uint32_t off, len;
};

static const struct {
    const char *name;
    struct raw_frame frame;
} bad_frames[] = {
    { "longer than a slot", { 1, 0, SLOT_BYTES + 1 } },
    { "across two slots", { 1, SLOT_BYTES - 8, 16 } },
    { "behind the last slot", { 1, SLOTS *SLOT_BYTES, 0 } },
    { "far outside", { 1, UINT32_MAX, UINT32_MAX } },
    { "length that wraps", { 1, 16, UINT32_MAX - 8 } },
};

struct record {
    uint32_t magic, channel, slots, slot_bytes;
    char name[48];
};

Test(link, tcp_takes_no_frame_outside_its_inbox)
{
    for (size_t i = 0; i < sizeof(bad_frames) / sizeof(bad_frames[0]); i++) {
        struct record rec = { 0x4b4c4454, 0, SLOTS, SLOT_BYTES, "" };
        struct link *l;
        struct end e;
        uint64_t now;
        int fd[2];

        wires_socketpair(1, fd);
        cr_assert(eq(int, link_tcp_open(fd[0], 0, 1, 0, 500, &l), 0));
        cr_assert(eq(sz, (size_t)write(fd[1], &rec, sizeof(rec)), sizeof(rec)));
        cr_assert(eq(int, end_open(&e, l, SLOTS, SLOT_BYTES, 1000), 0));
        cr_assert(eq(sz, (size_t)write(fd[1], &bad_frames[i].frame, 16), 16));
        cr_expect(eq(int, end_wait(&e, 0, 0, &now), -EPROTO), "%s", bad_frames[i].name);
        cr_expect(eq(int, end_send(&e, 0, 16, 1), -EPROTO), "%s: the error stays",
                  bad_frames[i].name);
        end_close(&e);
        l->ops->close(l);
        close(fd[1]);
    }
}

static const struct {
    const char *name;
    struct record rec;
    size_t bytes;
    int result;
} bad_records[] = {
    { "not a record", { 0x47455420, 0, SLOTS, SLOT_BYTES, "" }, 64, -EPROTO },
    { "another channel", { 0x4b4c4454, 1, SLOTS, SLOT_BYTES, "" }, 64, -EINVAL },
    { "other slots", { 0x4b4c4454, 0, SLOTS + 1, SLOT_BYTES, "" }, 64, -EINVAL },
    { "half a record", { 0x4b4c4454, 0, SLOTS, SLOT_BYTES, "" }, 30, -ECONNRESET },
};

Test(link, registration_checks_the_peers_record)
{
    for (size_t i = 0; i < sizeof(bad_records) / sizeof(bad_records[0]); i++) {
        for (int tcp = 0; tcp < 2; tcp++) {
            struct link *l;
            struct end e;
            int fd[2];

            wires_socketpair(tcp, fd);
            cr_assert(eq(int, (tcp ? link_tcp_open : link_shm_open)(fd[0], 0, 1, 0, 500, &l), 0));
            cr_assert(write(fd[1], &bad_records[i].rec, bad_records[i].bytes) > 0);
            shutdown(fd[1], SHUT_WR);
            cr_expect(eq(int, end_open(&e, l, SLOTS, SLOT_BYTES, 1000), bad_records[i].result),
                      "%s", bad_records[i].name);
            end_close(&e);
            l->ops->close(l);
            close(fd[1]);
        }
    }
}

/* What the lower rank of an shm link may name as the segment. */
enum segment {
    SEGMENT_RIGHT,
    SEGMENT_NO_SEALS,
    SEGMENT_FILE,
    SEGMENT_SHORT,
    SEGMENT_TAIL,
    SEGMENT_NO_NAME,
    SEGMENT_NO_END,
    SEGMENTS
};

static const struct {
    const char *name, *line;
    int result;
} segments[SEGMENTS] = {
    [SEGMENT_RIGHT] = { "as it should be", "", 0 },
    [SEGMENT_NO_SEALS] = { "that can be cut off", "is not the segment", -EPROTO },
    [SEGMENT_FILE] = { "that knows no seals", "is not the segment", -EPROTO },
    [SEGMENT_SHORT] = { "of another size", "is not the segment", -EPROTO },
    [SEGMENT_TAIL] = { "a path that goes on", "named no segment", -EPROTO },
    [SEGMENT_NO_NAME] = { "another path", "named no segment", -EPROTO },
    [SEGMENT_NO_END] = { "a name without end", "sent no link record", -EPROTO },
};

static int plain_file(void)
{
    char path[] = "/tmp/tandem-segment-XXXXXX";
    int fd = mkstemp(path);

    unlink(path);
    return fd;
}

Test(link, shm_maps_nothing_but_a_sealed_segment_of_its_size)
{
    size_t bytes = 4096 + 2 * link_area_bytes(SLOTS, SLOT_BYTES); /* a page of control in front */

    for (int i = 0; i < SEGMENTS; i++) {
        struct record rec = { 0x4b4c4454, 0, SLOTS, SLOT_BYTES, "" };
        int fd[2],
            segment = i == SEGMENT_FILE ? plain_file() : memfd_create("segment", MFD_ALLOW_SEALING);
        struct link *l;
        struct end e;

        wires_socketpair(0, fd);
        cr_assert(eq(int, link_shm_open(fd[0], 1, 0, 0, 500, &l), 0));
        cr_assert(ftruncate(segment, (off_t)(i == SEGMENT_SHORT ? bytes - 4096 : bytes)) == 0);
        if (i != SEGMENT_NO_SEALS && i != SEGMENT_FILE)
            cr_assert(fcntl(segment, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
        cr_assert(eq(sz, (size_t)write(fd[1], &rec, sizeof(rec)), sizeof(rec)));
        snprintf(rec.name, sizeof(rec.name), "/proc/%d/fd/%d%s", (int)getpid(), segment,
                 i == SEGMENT_TAIL ? "/." : "");
        if (i == SEGMENT_NO_NAME)
            snprintf(rec.name, sizeof(rec.name), "/dev/zero");
        if (i == SEGMENT_NO_END)
            memset(rec.name, '0', sizeof(rec.name));
        cr_assert(eq(sz, (size_t)write(fd[1], &rec, sizeof(rec)), sizeof(rec)));
        cr_expect(eq(int, end_open(&e, l, SLOTS, SLOT_BYTES, 1000), segments[i].result), "%s",
                  segments[i].name);
        cr_expect(segments[i].result == 0 || strstr(fail_text(), segments[i].line), "%s: %s",
                  segments[i].name, fail_text());
        if (segments[i].result == 0) { /* then nothing may come through the socket any more */
            uint64_t now;

            cr_assert(eq(int, (int)write(fd[1], "x", 1), 1));
            cr_expect(eq(int, end_wait(&e, 0, 0, &now), -EPROTO));
        }
        end_close(&e);
        l->ops->close(l);
        close(fd[1]);
        close(segment);
    }
}

/* A registered tcp link and the socket of its peer. */
static void beside_raw_peer(int tcp, struct end *e, struct link **l, int fd[2])
{
    struct record rec = { 0x4b4c4454, 0, SLOTS, SLOT_BYTES, "" };

    wires_socketpair(tcp, fd);
    cr_assert(eq(int, link_tcp_open(fd[0], 0, 1, 0, 500, l), 0));
    cr_assert(eq(sz, (size_t)write(fd[1], &rec, sizeof(rec)), sizeof(rec)));
    cr_assert(eq(int, end_open(e, *l, SLOTS, SLOT_BYTES, 1000), 0));
}

Test(link, tcp_sends_to_a_peer_that_does_not_read_have_a_bound)
{
    struct link *l;
    struct end e;
    int fd[2], n = 0, r = 0;

    beside_raw_peer(1, &e, &l, fd);
    for (; r == 0 && n < 100000; n++)
        r = end_send(&e, (size_t)(n % SLOTS) * SLOT_BYTES, SLOT_BYTES, (uint64_t)n + 1);
    cr_expect(eq(int, r, -ENOBUFS), "after %d sends", n);
    cr_expect(n > 64);
    cr_expect(l->pending <= 64, "%d are kept", l->pending);
    cr_expect(eq(int, l->ops->poll(l), -ENOBUFS), "it is kept");
    end_close(&e);
    l->ops->close(l);
    close(fd[1]);
}

Test(link, tcp_reads_what_a_peer_said_before_it_took_no_more)
{
    struct raw_frame frame = { 7, 0, 0 };
    struct link *l;
    struct end e;
    uint64_t now = 0;
    int fd[2];

    beside_raw_peer(0, &e, &l, fd);
    cr_assert(eq(sz, (size_t)write(fd[1], &frame, sizeof(frame)), sizeof(frame)));
    close(fd[1]);
    cr_expect(eq(int, end_send(&e, 0, 16, 1), -ECONNRESET));
    cr_expect(eq(int, end_wait(&e, 0, 0, &now), 0));
    cr_expect(eq(u64, now, 7));
    cr_expect(eq(int, end_wait(&e, 0, now, &now), -ECONNRESET));
    end_close(&e);
    l->ops->close(l);
}

Test(link, memory_out_of_bounds_is_refused)
{
    static const struct {
        int channel, slots;
        size_t slot_bytes;
    } cases[] = { { 1, 2, 1024 }, { 0, 0, 1024 }, { 0, 65, 1024 },
                  { 0, 2, 0 },    { 0, 2, 24 },   { 0, 2, 1 << 24 } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct link_mem m = { .channel = cases[i].channel,
                              .slots = cases[i].slots,
                              .slot_bytes = cases[i].slot_bytes };
        struct wires w;

        wires_open(&w, "loop", 2, 0);
        cr_expect(eq(int, w.link[0][1]->ops->reg(w.link[0][1], &m), -EINVAL), "case %zu", i);
        wires_close(&w);
    }
}

Test(link, is_found_by_name)
{
    const struct link_ops *ops;

    for (int k = 0; wires_kinds[k]; k++) {
        if (strchr(wires_kinds[k], ' ')) /* a form of another one */
            continue;
        cr_assert(eq(int, link_find(wires_kinds[k], &ops), 0));
        cr_expect(eq(str, (char *)ops->name, (char *)wires_kinds[k]));
    }
    cr_expect(eq(int, link_find("pigeon", &ops), -EINVAL));
}
