/* Groups: how they come together, refuse each other in words, and end together. */
#include "tests/rank/town.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/control_tcp.h"
#include "src/rank/plan_box.h"
#include "src/transport/comm.h"

/* ---- a world that comes together ---- */

static void work(int rank, void *arg)
{
    struct town *t = arg;
    struct group *g = t->group[rank];
    int world = t->set[0].world;
    struct link *windows[WIRES_MAX] = { NULL }, *plan[WIRES_MAX] = { NULL };
    struct comm_settings cs = {
        .partials = COMM_F32, .slot_bytes = 4096, .spin_us = 5, .wait_limit_ms = 5000
    };
    struct plan_box_settings ps = { .spin_us = 5, .wait_limit_ms = 5000, .max_words = 64 };
    struct comm *c = NULL;
    struct plan_box *b = NULL;
    struct plan_msg m;
    uint64_t word = 42;
    float x = (float)(1 << rank);
    int r;

    for (int p = 0; p < world; p++) {
        if (p == rank)
            continue;
        windows[p] = group_link(g, p, GROUP_WINDOWS);
        plan[p] = group_link(g, p, GROUP_PLAN);
    }
    r = comm_link_open(windows, rank, world, &cs, &c);
    if (r == 0)
        r = plan_box_open(plan, rank, world, &ps, &b);
    if (r == 0)
        r = group_barrier(g, 5000);
    if (r == 0) {
        comm_sum(c, NULL, 1, &x, 1);
        r = comm_check(c);
    }
    if (r == 0 && x != (float)((1 << world) - 1))
        r = 1;
    if (r == 0 && rank == 0)
        r = plan_box_send(b, 3, 1, 0, &word, 1);
    else if (r == 0)
        r = plan_box_recv(b, 5000, &m);
    if (r == 0 && rank != 0 && (m.op != 3 || m.word[0] != 42))
        r = 2;
    /* two more, so that a rank that runs ahead would be seen */
    for (int i = 0; i < 2 && r == 0; i++)
        r = group_barrier(g, 5000);
    plan_box_close(b);
    comm_close(c);
    t->result[rank] = r;
}

Test(control, a_world_comes_together_works_and_leaves)
{
    static const struct {
        const char *link;
        int world;
    } cases[] = { { "loop", 2 }, { "loop", 4 }, { "tcp", 2 },
                  { "tcp", 4 },  { "shm", 2 },  { "shm", 3 } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct town t;

        town_open(&t, cases[i].link, cases[i].world);
        wires_run(cases[i].world, open_rank, &t);
        for (int r = 0; r < cases[i].world; r++)
            cr_assert(eq(int, t.result[r], 0), "%s rank %d: %s", cases[i].link, r, t.log[r]);
        wires_run(cases[i].world, work, &t);
        for (int r = 0; r < cases[i].world; r++)
            cr_expect(eq(int, t.result[r], 0), "%s rank %d: %s", cases[i].link, r, t.log[r]);
        /* one stops; the others see it, and their hang-up is no fault */
        group_stop(t.group[0]);
        for (int r = 1; r < cases[i].world; r++) {
            for (int k = 0; k < 1000 && !group_stopping(t.group[r]); k++)
                clock_sleep(NS_PER_MS);
            cr_expect(group_stopping(t.group[r]), "%s rank %d", cases[i].link, r);
        }
        group_close(t.group[0]);
        t.group[0] = NULL;
        clock_sleep(20 * NS_PER_MS);
        for (int r = 1; r < cases[i].world; r++) {
            cr_expect(eq(int, group_failed(t.group[r]), 0), "%s rank %d: %s", cases[i].link, r,
                      t.log[r]);
            cr_expect(eq(int, t.fails[r], 0));
        }
        town_close(&t);
    }
}

/* ---- refusals ---- */

struct refusal {
    const char *name, *link;
    int world; /* of rank 1 */
    const char *version, *agree, *secret;
    int result[2];
    const char *line[2];
};

static const struct refusal refusals[] = {
    { .name = "config",
      .link = "tcp",
      .agree = "context = 8192\ndepth = 3\nnumerics = bf16\nwindow_max = 16\n",
      .result = { -EINVAL, -EINVAL },
      .line = { "config differs: depth is 5 here, 3 on rank 1",
                "config differs: depth is 3 here, 5 on rank 0" } },
    { .name = "many keys",
      .link = "tcp",
      .agree = "context = 1\ndepth = 2\nnumerics = fp32\nseed = 9\nwindow_max = 8\n",
      .result = { -EINVAL, -EINVAL },
      .line = { "config differs: context is 8192 here, 1 on rank 1; depth is 5 here, 2 on rank 1; "
                "numerics is bf16 "
                "here, fp32 on rank 1; and 2 more",
                "numerics is fp32 here, bf16 on rank 0; and 2 more" } },
    { .name = "a value that the other one begins with",
      .link = "loop",
      .agree = "context = 8192\ndepth = 55\nnumerics = bf16\nwindow_max = 1\n",
      .result = { -EINVAL, -EINVAL },
      .line = { "config differs: depth is 5 here, 55 on rank 1; window_max is 16 here, 1 on rank 1",
                "config differs: depth is 55 here, 5 on rank 0; "
                "window_max is 1 here, 16 on rank 0" } },
    { .name = "a key that one side does not know",
      .link = "tcp",
      .agree = "context = 8192\ndepth = 5\nnumerics = bf16\n",
      .result = { -EINVAL, -EINVAL },
      .line = { "config differs: window_max is 16 here, not known on rank 1",
                "config differs: window_max is not known here, 16 on rank 0" } },
    { .name = "version",
      .link = "tcp",
      .version = "1.1",
      .result = { -EINVAL, -EINVAL },
      .line = { "rank 1 runs version 1.1, this is 1.0", "rank 0 runs version 1.0, this is 1.1" } },
    { .name = "world",
      .link = "tcp",
      .world = 4,
      .result = { -EINVAL, -EINVAL },
      .line = { "rank 1 of 4 wants to join a world of 2",
                "rank 1 of 4 wants to join a world of 2" } },
    { .name = "secret",
      .link = "tcp",
      .secret = "another secret of thirty-two bytes",
      .result = { -ETIMEDOUT, -EACCES }, /* rank 0 goes on listening until its limit */
      .line = { "control 127.0.0.1: proof does not match the secret",
                "do not know the same secret" } },
    { .name = "config of threads",
      .link = "loop",
      .agree = "context = 8192\ndepth = 3\nnumerics = bf16\nwindow_max = 16\n",
      .result = { -EINVAL, -EINVAL },
      .line = { "config differs: depth is 5 here, 3 on rank 1",
                "config differs: depth is 3 here, 5 on rank 0" } },
};

Test(control, both_sides_name_what_differs, .timeout = 60)
{
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const struct refusal *c = &refusals[i];
        char other[64] = "";
        struct town t;

        town_open(&t, c->link, 2);
        if (c->world)
            t.set[1].world = c->world;
        if (c->version)
            t.set[1].version = c->version;
        if (c->agree)
            t.set[1].agree = c->agree;
        if (c->secret) {
            write_secret(other, c->secret, 0600);
            t.set[1].secret = other;
            t.set[0].connect_timeout_ms = 400;
        }
        wires_run(2, open_rank, &t);
        for (int r = 0; r < 2; r++) {
            cr_expect(eq(int, t.result[r], c->result[r]), "%s rank %d: %s", c->name, r, t.log[r]);
            cr_expect(strstr(t.log[r], c->line[r]) != NULL, "%s rank %d: '%s'", c->name, r,
                      t.log[r]);
        }
        town_close(&t);
        if (other[0])
            unlink(other);
    }
}

/* ---- packs, which are there later than the group ---- */

static const char *const parts[GROUP_MARK_PARTS] = { "set", "set", "set",     "set",
                                                     "set", "set", "weights", "set" };
static const uint8_t *digest_of[WIRES_MAX]; /* NULL: this rank has no pack and never will */

static void load(int rank, void *arg)
{
    struct town *t = arg;

    if (rank == 1)
        clock_sleep(20 * NS_PER_MS); /* it packs */
    if (digest_of[rank])
        t->result[rank] = group_compare(t->group[rank], parts, digest_of[rank], 5000);
    else
        group_decline(t->group[rank], -ENOMEM, "cannot start: no memory");
}

Test(control, packs_are_compared_when_they_are_there)
{
    static const uint8_t a[GROUP_DIGEST_BYTES] = { 0xaa, 1, 2, 3 };
    static const uint8_t b[GROUP_DIGEST_BYTES] = { 0xbb, 1, 2, 3 };
    static const uint8_t c[GROUP_DIGEST_BYTES] = { 0xaa, 1, 2, 3, [27] = 0xcc };
    static const struct {
        const char *link;
        int world;
        const uint8_t *of[3];
        int result[3];
        const char *line[3];
    } cases[] = {
        { "tcp", 2, { a, a }, { 0, 0 }, { "", "" } },
        { "loop", 3, { a, a, a }, { 0, 0, 0 }, { "", "", "" } },
        { "tcp",
          2,
          { a, b },
          { -EINVAL, -EINVAL },
          { "packs differ: set ", "packs differ: set " } },
        { "shm",
          3,
          { a, a, b },
          { -EINVAL, -EREMOTEIO, -EINVAL },
          { "packs differ: set ", "packs differ: set ", "packs differ: set " } },
        { "loop", 2, { a, b }, { -EINVAL, -EINVAL }, { "", "" } },
        { "tcp",
          2,
          { a, c },
          { -EINVAL, -EINVAL },
          { "packs differ: weights 000000", "packs differ: weights 000000" } },
        { "tcp",
          3,
          { a, NULL, a },
          { -ENOMEM, 0, -ENOMEM },
          { "group: rank 1: cannot start: no memory", "",
            "group: rank 1: cannot start: no memory" } },
        { "tcp", 2, { NULL, a }, { 0, -ENOMEM }, { "", "group: rank 0: cannot start: no memory" } },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct town t;

        town_open(&t, cases[i].link, cases[i].world);
        memcpy(digest_of, cases[i].of, sizeof(cases[i].of));
        wires_run(cases[i].world, open_rank, &t);
        wires_run(cases[i].world, load, &t);
        for (int r = 0; r < cases[i].world; r++) {
            bool told = cases[i].world == 3 && r == 1 && cases[i].result[r] == -EREMOTEIO;

            /* rank 1 of 3 has passed when rank 0 sees what rank 2 has */
            if (told)
                wait_failed(t.group[r], 2000);
            cr_expect(eq(int, told ? group_failed(t.group[r]) : t.result[r], cases[i].result[r]),
                      "case %zu rank %d: %s", i, r, t.log[r]);
            cr_expect(strstr(t.log[r], cases[i].line[r]) != NULL, "case %zu rank %d: '%s'", i, r,
                      t.log[r]);
        }
        town_close(&t);
    }
}

/* ---- the end ---- */

enum end {
    END_GONE,
    END_SILENT,
    END_FAIL,
    END_FAIL_OF_0,
    END_GARBAGE,
    END_REPLAY,
    END_STRANGE_KIND,
    ENDS
};

static const struct {
    const char *name;
    int result[3];
    const char *reason[3];
} ends[ENDS] = {
    [END_GONE] = { "connection lost",
                   { -ECONNRESET, -ECONNRESET, -EREMOTEIO },
                   { "rank 1 is gone: connection closed", "rank 0 is gone: connection closed",
                     "rank 0: rank 1 is gone: connection closed" } },
    [END_SILENT] = { "no heartbeat",
                     { -ETIMEDOUT, -EREMOTEIO, -EREMOTEIO },
                     { "rank 1 is gone: no heartbeat for ",
                       "rank 0: rank 1 is gone: no heartbeat for ",
                       "rank 0: rank 1 is gone: no heartbeat for " } },
    [END_FAIL] = { "rank 1 fails",
                   { -EREMOTEIO, -EIO, -EREMOTEIO },
                   { "rank 1: device fault 7", "device fault 7", "rank 1: device fault 7" } },
    [END_FAIL_OF_0] = { "rank 0 fails",
                        { -EIO, -EREMOTEIO, -EREMOTEIO },
                        { "device fault 7", "rank 0: device fault 7", "rank 0: device fault 7" } },
    [END_GARBAGE] = { "garbage on the wire",
                      { -EPROTO, -EREMOTEIO, -EREMOTEIO },
                      { "rank 1 is gone: control channel broken",
                        "rank 0: rank 1 is gone: control channel broken",
                        "rank 0: rank 1 is gone: control channel broken" } },
    [END_REPLAY] = { "replayed frame",
                     { -EPROTO, -EREMOTEIO, -EREMOTEIO },
                     { "rank 1 is gone: control channel broken", "rank 0: rank 1 is gone",
                       "rank 0: rank 1 is gone" } },
    [END_STRANGE_KIND] = { "kind out of place",
                           { -EPROTO, -EREMOTEIO, -EREMOTEIO },
                           { "rank 1 is gone: control channel broken", "rank 0: rank 1 is gone",
                             "rank 0: rank 1 is gone" } },
};

/* Every rank waits in an exchange for rank 1, which never comes. */
static void wait_in_exchange(int rank, void *arg)
{
    struct town *t = arg;
    struct comm_settings cs = { .slot_bytes = 4096, .spin_us = 5, .wait_limit_ms = 20000 };
    struct link *windows[WIRES_MAX] = { NULL };
    struct comm *c;
    float x = 1;

    for (int p = 0; p < 3; p++)
        if (p != rank)
            windows[p] = group_link(t->group[rank], p, GROUP_WINDOWS);
    if (comm_link_open(windows, rank, 3, &cs, &c) < 0)
        abort();
    if (rank == 1) {
        struct control *k = (struct control *)t->group[1];
        struct wire *w = k->peer[0].wire;
        int how = atomic_load(&t->go);

        clock_sleep(100 * NS_PER_MS);
        t->ns[1] = clock_ns();
        if (how == END_GONE)
            shutdown(w->fd, SHUT_RDWR);
        if (how == END_FAIL)
            group_fail(t->group[1], -EIO, "device fault %d", 7);
        if (how == END_FAIL_OF_0)
            group_fail(t->group[0], -EIO, "device fault %d", 7);
        if (how == END_GARBAGE)
            put_raw(w, 0x20202020, 1, 1);
        if (how == END_STRANGE_KIND)
            wire_send(w, CONTROL_TABLE, NULL, 0);
        if (how == END_REPLAY) {
            pthread_mutex_lock(&w->lock);
            w->sent--;
            pthread_mutex_unlock(&w->lock);
        }
        wait_failed(t->group[1], 3000);
    } else {
        comm_sum(c, NULL, 1, &x, 1);
        t->ns[rank] = clock_ns();
        t->result[rank] = comm_check(c);
    }
    wait_failed(t->group[rank], 3000);
    comm_close(c);
}

Test(control, one_end_ends_all_with_one_reason, .timeout = 60)
{
    for (int how = 0; how < ENDS; how++) {
        struct town t;

        town_open(&t, "tcp", 3);
        if (how == END_SILENT) {
            t.set[1].heartbeat_ms = 60000;
            t.set[1].peer_timeout_ms = 120000;
            t.set[0].peer_timeout_ms = 400;
        }
        wires_run(3, open_rank, &t);
        for (int r = 0; r < 3; r++)
            cr_assert(eq(int, t.result[r], 0), "%s rank %d: %s", ends[how].name, r, t.log[r]);
        t.go = how;
        wires_run(3, wait_in_exchange, &t);
        for (int r = 0; r < 3; r++) {
            const char *want = ends[how].reason[r];

            cr_expect(eq(int, group_failed(t.group[r]), ends[how].result[r]), "%s rank %d",
                      ends[how].name, r);
            cr_expect(strncmp(group_reason(t.group[r]), want, strlen(want)) == 0,
                      "%s rank %d: '%s'", ends[how].name, r, group_reason(t.group[r]));
            /* on_fail runs behind the reason */
            for (int k = 0; k < 1000 && !t.fails[r]; k++)
                clock_sleep(NS_PER_MS);
            cr_expect(eq(int, t.fails[r], 1), "%s rank %d: on_fail once", ends[how].name, r);
            if (r != 1) {
                cr_expect(t.result[r] == -ECANCELED || t.result[r] == -ECONNRESET, "%s rank %d: %d",
                          ends[how].name, r, t.result[r]);
                cr_expect(t.ns[r] - t.ns[1] < 1500 * NS_PER_MS, "%s rank %d waits on",
                          ends[how].name, r);
            }
            /* what comes later changes nothing */
            group_fail(t.group[r], -ENOMEM, "later");
            cr_expect(eq(int, group_failed(t.group[r]), ends[how].result[r]));
        }
        town_close(&t);
    }
}

Test(control, a_fault_of_a_thread_reaches_the_others)
{
    struct town t;

    town_open(&t, "loop", 3);
    wires_run(3, open_rank, &t);
    group_fail(t.group[2], -EIO, "bad luck");
    cr_expect(eq(int, group_failed(t.group[0]), -EREMOTEIO));
    cr_expect(strcmp(group_reason(t.group[0]), "rank 2: bad luck") == 0);
    cr_expect(strcmp(group_reason(t.group[1]), "rank 2: bad luck") == 0);
    cr_expect(strcmp(group_reason(t.group[2]), "bad luck") == 0);
    cr_expect(eq(int, group_barrier(t.group[0], 1000), -EREMOTEIO));
    cr_expect(eq(int, t.fails[0] + t.fails[1] + t.fails[2], 3));
    town_close(&t);
}

/* A comm that counts its aborts, and no links below it that the group would abort. */
struct counted_comm {
    struct comm base;
    struct comm_ops ops;
    atomic_int aborts;
};

static void count_abort(struct comm *c, const char *why)
{
    atomic_fetch_add(&((struct counted_comm *)c)->aborts, 1);
}

Test(control, a_failed_group_ends_the_waits_of_its_sums)
{
    static const struct {
        const char *name;
        bool named, again, left, fails;
    } cases[] = {
        { "named before", .named = true, .fails = true },
        { "named in a group that has failed", .fails = true, .again = true },
        { "no longer named", .named = true, .left = true, .fails = true },
        { "no failure", .named = true },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct counted_comm c[2] = { { .ops = { .abort = count_abort } },
                                     { .ops = { .abort = count_abort } } };
        struct town t;

        town_open(&t, "loop", 2);
        wires_run(2, open_rank, &t);
        for (int r = 0; r < 2; r++) {
            c[r].base.ops = &c[r].ops;
            if (cases[i].named)
                group_sums(t.group[r], &c[r].base);
            if (cases[i].left)
                group_sums(t.group[r], NULL);
        }
        if (cases[i].fails)
            group_fail(t.group[1], -EIO, "bad luck");
        for (int r = 0; r < 2; r++) {
            if (cases[i].again)
                group_sums(t.group[r], &c[r].base);
            cr_expect(eq(int, atomic_load(&c[r].aborts), cases[i].fails && !cases[i].left),
                      "%s, rank %d", cases[i].name, r);
        }
        town_close(&t);
    }
}

static void barrier_late(int rank, void *arg)
{
    struct town *t = arg;

    if (rank == 1)
        clock_sleep(80 * NS_PER_MS);
    t->ns[rank] = clock_ns(); /* the last one comes */
    t->result[rank] = group_barrier(t->group[rank], 3000);
    if (rank != 1)
        t->ns[rank] = clock_ns(); /* the others leave */
    if (rank == 0)
        t->result[3] = group_barrier(t->group[0], 50); /* nobody comes to this one */
}

Test(control, nobody_passes_a_barrier_early)
{
    static const char *const links[] = { "loop", "tcp" };

    for (int i = 0; i < 2; i++) {
        struct town t;

        town_open(&t, links[i], 3);
        wires_run(3, open_rank, &t);
        wires_run(3, barrier_late, &t);
        for (int r = 0; r < 3; r++)
            cr_expect(eq(int, t.result[r], 0), "%s rank %d", links[i], r);
        cr_expect(t.ns[0] >= t.ns[1] && t.ns[2] >= t.ns[1], "%s", links[i]);
        cr_expect(eq(int, t.result[3], -ETIMEDOUT), "%s", links[i]);
        town_close(&t);
    }
}

/* ---- settings ---- */

Test(control, settings_and_secrets_are_checked)
{
    static const struct {
        const char *name, *text;
        mode_t mode;
        int result, code;
    } secrets[] = {
        { "readable by others", "0123456789abcdef0123456789abcdef", 0644, -EACCES, 77 },
        { "readable by a group", "0123456789abcdef0123456789abcdef", 0640, -EACCES, 77 },
        { "short", "0123456789", 0600, -EINVAL, 78 },
    };
    static const char *far_hosts[] = { "192.0.2.1", "192.0.2.2" };
    struct group *g;
    struct town t;

    for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++) {
        char path[64];

        town_open(&t, "tcp", 2);
        write_secret(path, secrets[i].text, secrets[i].mode);
        t.set[0].secret = path;
        cr_expect(eq(int, group_open(&t.set[0], &g), secrets[i].result), "%s", secrets[i].name);
        cr_expect(eq(int, group_exit_code(secrets[i].result), secrets[i].code));
        unlink(path);
        town_close(&t);
    }
    town_open(&t, "tcp", 2);
    t.set[0].secret = "/nonexistent/secret";
    cr_expect(eq(int, group_open(&t.set[0], &g), -ENOENT));
    cr_expect(eq(int, group_exit_code(-ENOENT), 66));
    t.set[0].secret = "";
    cr_expect(eq(int, group_open(&t.set[0], &g), -EINVAL));
    t.set[0].secret = t.secret;
    t.set[0].port = 0;
    cr_expect(eq(int, group_open(&t.set[0], &g), -EINVAL));
    t.set[0].port = t.set[1].port;
    t.set[0].peer_timeout_ms = 30;
    cr_expect(eq(int, group_open(&t.set[0], &g), -EINVAL));
    t.set[0].peer_timeout_ms = 1000;
    t.set[0].link = "pigeon";
    cr_expect(eq(int, group_open(&t.set[0], &g), -EINVAL));
    t.set[0].link = "tcp";
    t.set[0].no_secret = 1;
    t.set[0].hosts = far_hosts;
    cr_expect(eq(int, group_open(&t.set[0], &g), -EINVAL)); /* no secret is for loopback only */
    t.set[0].no_secret = 0;
    cr_expect(eq(int, group_open(&t.set[0], &g), -EADDRNOTAVAIL));
    t.set[0].hosts = NULL;
    t.set[0].world = 1;
    cr_expect(eq(int, group_open(&t.set[0], &g), -EINVAL));
    town_close(&t);
}

Test(control, a_port_in_use_and_a_leader_that_never_comes)
{
    struct group *g;
    struct town t;
    int fd;

    town_open(&t, "tcp", 2);
    fd = bound(t.set[0].port);
    cr_assert(listen(fd, 1) == 0);
    cr_expect(eq(int, group_open(&t.set[0], &g), -EADDRINUSE));
    cr_expect(eq(int, group_exit_code(-EADDRINUSE), 69));
    close(fd);
    t.set[1].connect_timeout_ms = 200;
    cr_expect(eq(int, group_open(&t.set[1], &g), -ETIMEDOUT));
    cr_expect(eq(int, group_exit_code(-ETIMEDOUT), 69));
    t.set[1].connect_timeout_ms = 20000;
    t.set[1].cancel = &t.go;
    t.go = 1;
    cr_expect(eq(int, group_open(&t.set[1], &g), -ECANCELED));
    town_close(&t);
}

Test(control, without_a_secret_on_loopback)
{
    struct town t;

    town_open(&t, "tcp", 2);
    for (int r = 0; r < 2; r++) {
        t.set[r].secret = NULL;
        t.set[r].no_secret = 1;
    }
    wires_run(2, open_rank, &t);
    cr_expect(eq(int, t.result[0], 0), "%s", t.log[0]);
    cr_expect(eq(int, t.result[1], 0), "%s", t.log[1]);
    town_close(&t);
}
