/* Groups: who gets in, who is refused and in which words, how all end together. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/control.h"
#include "src/rank/control_meet.h"
#include "src/rank/control_tcp.h"
#include "src/rank/plan_box.h"
#include "src/transport/comm.h"
#include "tests/transport/wires.h"

static const uint8_t digest_a[GROUP_DIGEST_BYTES] = { 0xaa, 1, 2, 3 };
static const uint8_t digest_b[GROUP_DIGEST_BYTES] = { 0xbb, 1, 2, 3 };
static const char agree_text[] = "context = 8192\ndepth = 5\nnumerics = bf16\nwindow_max = 16\n";

/* Everything that the ranks of a test share. */
struct town {
    struct group_settings set[WIRES_MAX];
    struct group_hub *hub;
    char secret[64];
    struct group *group[WIRES_MAX];
    int result[WIRES_MAX];
    int64_t ns[WIRES_MAX];
    char log[WIRES_MAX][4096]; /* lines of a rank */
    atomic_int fails[WIRES_MAX];
    atomic_int go;
};

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_lines(void *arg, enum log_level level, const char *line)
{
    struct town *t = arg;
    int r = line[0] == 'r' ? line[1] - '0' : -1;

    if (r < 0 || r >= WIRES_MAX || level > LOG_WARN)
        return;
    pthread_mutex_lock(&log_lock);
    strncat(t->log[r], line, sizeof(t->log[r]) - strlen(t->log[r]) - 2);
    strcat(t->log[r], "\n");
    pthread_mutex_unlock(&log_lock);
}

static int free_port(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        abort();
    close(fd);
    return ntohs(a.sin_port);
}

static void write_secret(char *path, const char *text, mode_t mode)
{
    int fd;

    strcpy(path, "/tmp/tandem-secret-XXXXXX");
    fd = mkstemp(path);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || fchmod(fd, mode) < 0)
        abort();
    close(fd);
}

static void note_fail(void *arg, const char *why)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void town_open(struct town *t, const char *link, int world)
{
    int port = free_port();

    memset(t, 0, sizeof(*t));
    write_secret(t->secret, "0123456789abcdef0123456789abcdef", 0600);
    if (strcmp(link, "loop") == 0 && group_hub_open(world, &t->hub) < 0)
        abort();
    for (int r = 0; r < WIRES_MAX; r++)
        t->set[r] = (struct group_settings){ .rank = r,
                                             .world = world,
                                             .link = link,
                                             .hub = t->hub,
                                             .port = port,
                                             .secret = t->secret,
                                             .connect_timeout_ms = 5000,
                                             .heartbeat_ms = 20,
                                             .peer_timeout_ms = 2000,
                                             .version = "1.0",
                                             .agree = agree_text,
                                             .set_digest = digest_a,
                                             .on_fail = note_fail,
                                             .on_fail_arg = &t->fails[r] };
    log_sink(keep_lines, t);
}

static void open_rank(int rank, void *arg)
{
    struct town *t = arg;
    int64_t start = clock_ns();

    t->result[rank] = group_open(&t->set[rank], &t->group[rank]);
    t->ns[rank] = clock_ns() - start;
}

static void *open_leader(void *arg)
{
    open_rank(0, arg);
    return NULL;
}

static void close_rank(int rank, void *arg)
{
    struct town *t = arg;

    group_close(t->group[rank]);
    t->group[rank] = NULL;
}

static void town_close(struct town *t)
{
    wires_run(WIRES_MAX, close_rank, t);
    group_hub_close(t->hub);
    log_sink(NULL, NULL);
    unlink(t->secret);
}

static int wait_failed(struct group *g, int ms)
{
    int64_t until = clock_ns() + ms * NS_PER_MS;

    while (!group_failed(g) && clock_ns() < until)
        clock_sleep(NS_PER_MS);
    return group_failed(g);
}

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
    const uint8_t *digest;
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
    { .name = "a key that one side does not know",
      .link = "tcp",
      .agree = "context = 8192\ndepth = 5\nnumerics = bf16\n",
      .result = { -EINVAL, -EINVAL },
      .line = { "config differs: window_max is 16 here, not known on rank 1",
                "config differs: window_max is not known here, 16 on rank 0" } },
    { .name = "packs",
      .link = "tcp",
      .digest = digest_b,
      .result = { -EINVAL, -EINVAL },
      .line = { "packs differ: set aa010203... here, bb010203... on rank 1",
                "packs differ: set bb010203... here, aa010203... on rank 0" } },
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
    { .name = "packs of threads",
      .link = "loop",
      .digest = digest_b,
      .result = { -EINVAL, -EINVAL },
      .line = { "packs differ: set aa", "packs differ: set bb" } },
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
        if (c->digest)
            t.set[1].set_digest = c->digest;
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

/* ---- strangers ---- */

static int knock(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port) };
    int fd;

    for (int k = 0; k < 2000; k++) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
            return fd;
        close(fd);
        clock_sleep(NS_PER_MS);
    }
    abort();
}

/* The other end closes, sooner or later. */
static int hung_up(int fd)
{
    uint8_t b[512];
    struct timeval tv = { .tv_sec = 8 };
    ssize_t n;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
    do {
        n = recv(fd, b, sizeof(b), 0);
    } while (n > 0);
    return n == 0 || errno == ECONNRESET;
}

static void strangers(int rank, void *arg)
{
    struct town *t = arg;
    struct control_hello h = {
        .magic = CONTROL_MAGIC, .protocol = CONTROL_PROTOCOL, .world = 2, .rank = 1
    };
    int fd[DOOR_GUESTS - 4], drip;
    uint8_t zeros[32] = { 0 };

    if (rank == 0) {
        open_rank(0, t);
        return;
    }
    /* a browser, a scanner that closes, one that says half of it, one that is silent, one with a
     * wrong proof */
    fd[0] = knock(t->set[0].port);
    t->fails[7] += send(fd[0], "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) != 18 || !hung_up(fd[0]);
    fd[1] = knock(t->set[0].port);
    close(fd[1]);
    fd[1] = knock(t->set[0].port);
    t->fails[7] += send(fd[1], &h, 60, MSG_NOSIGNAL) != 60;
    close(fd[1]);
    fd[1] = knock(t->set[0].port);
    t->fails[7] += send(fd[1], &h, sizeof(h), MSG_NOSIGNAL) != sizeof(h);
    t->fails[7] +=
        send(fd[1], zeros, sizeof(zeros), MSG_NOSIGNAL) != sizeof(zeros) || !hung_up(fd[1]);
    close(fd[1]);
    h.role = CONTROL_ROLE_DATA;
    fd[1] = knock(t->set[0].port);
    t->fails[7] += send(fd[1], &h, sizeof(h), MSG_NOSIGNAL) != sizeof(h) || !hung_up(fd[1]);
    close(fd[1]);
    for (int i = 1; i < DOOR_GUESTS - 4; i++)
        fd[i] = knock(t->set[0].port); /* silent, and there to stay */
    drip = knock(t->set[0].port);
    h.role = CONTROL_ROLE_RANK;
    for (int i = 0; i < 20; i++) {
        send(drip, (uint8_t *)&h + i, 1, MSG_NOSIGNAL);
        clock_sleep(5 * NS_PER_MS);
    }
    open_rank(1, t); /* and still a rank gets in at once */
    for (int i = 0; i < DOOR_GUESTS - 4; i++)
        close(fd[i]);
    close(drip);
}

Test(control, strangers_neither_end_nor_delay_a_listening_rank)
{
    struct town t;

    town_open(&t, "tcp", 2);
    wires_run(2, strangers, &t);
    cr_expect(eq(int, t.result[0], 0), "%s", t.log[0]);
    cr_expect(eq(int, t.result[1], 0), "%s", t.log[1]);
    cr_expect(eq(int, t.fails[7], 0));
    cr_expect(t.ns[1] < 2 * NS_PER_S, "joined after %lld ms", (long long)(t.ns[1] / NS_PER_MS));
    cr_expect(strstr(t.log[0], "control 127.0.0.1: not a rank (first bytes 47455420)") != NULL,
              "%s", t.log[0]);
    /* the complete world does not listen any more */
    if (t.result[0] == 0) {
        struct sockaddr_in a = { .sin_family = AF_INET,
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                 .sin_port = htons((uint16_t)t.set[0].port) };
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        cr_expect(connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 && errno == ECONNREFUSED);
        close(fd);
    }
    town_close(&t);
}

static void too_slow(int rank, void *arg)
{
    struct town *t = arg;
    struct control_hello h = {
        .magic = CONTROL_MAGIC, .protocol = CONTROL_PROTOCOL, .world = 2, .rank = 1
    };
    int64_t start = clock_ns();
    int fd, i = 0;

    if (rank == 0) {
        open_rank(0, t);
        return;
    }
    fd = knock(t->set[0].port);
    while (i < 128 && send(fd, (uint8_t *)&h + i++, 1, MSG_NOSIGNAL) == 1 &&
           clock_ns() - start < 9 * NS_PER_S)
        clock_sleep(60 * NS_PER_MS);
    t->result[1] = hung_up(fd);
    t->ns[1] = clock_ns() - start;
    close(fd);
    atomic_store(&t->go, 1);
}

Test(control, a_dripping_hello_has_one_deadline, .timeout = 20)
{
    struct town t;

    town_open(&t, "tcp", 2);
    t.set[0].cancel = &t.go;
    t.set[0].connect_timeout_ms = 20000;
    wires_run(2, too_slow, &t);
    cr_expect(eq(int, t.result[0], -ECANCELED), "%s", t.log[0]);
    cr_expect(eq(int, t.result[1], 1));
    cr_expect(t.ns[1] > 4 * NS_PER_S && t.ns[1] < 7 * NS_PER_S, "%lld ms",
              (long long)(t.ns[1] / NS_PER_MS));
    town_close(&t);
}

/* ---- peers that know the secret and misbehave ---- */

enum mischief {
    BAD_PROTOCOL,
    BAD_RANK,
    BAD_RANK_0,
    BAD_LENGTH,
    BAD_MAC,
    BAD_COUNTER,
    BAD_KIND,
    BAD_ORDER,
    BAD_BODY,
    LEAVES,
    MISCHIEFS
};

static const struct {
    const char *name;
    int result; /* of rank 0 */
    const char *line;
} mischiefs[MISCHIEFS] = {
    [BAD_PROTOCOL] = { "protocol", -EINVAL, "rank 1 speaks protocol 99, this build 1" },
    [BAD_RANK] = { "rank out of range", -EINVAL, "rank 7 of 2 wants to join rank 0" },
    [BAD_RANK_0] = { "a second rank 0", -EINVAL, "rank 0 of 2 wants to join rank 0" },
    [BAD_LENGTH] = { "length", -EPROTO, "frame of 65537 bytes from rank 1" },
    [BAD_MAC] = { "MAC", -EPROTO, "frame 0 from rank 1 is not authentic" },
    [BAD_COUNTER] = { "replayed counter", -EPROTO, "frame 0 from rank 1 where 1 is due" },
    [BAD_KIND] = { "kind", -EPROTO, "frame of kind 77 from rank 1" },
    [BAD_ORDER] = { "order", -EPROTO, "frame of kind 4 from rank 1, want 1" },
    [BAD_BODY] = { "body", -EPROTO, "3 bytes are no Agree" },
    [LEAVES] = { "leaves", -ETIMEDOUT, "rank 1 did not come in 600 ms" },
};

/* Prove the secret with a HELLO of one's own. */
static struct wire *prove(struct town *t, struct control_hello *mine)
{
    struct control_secret secret;
    struct control_hello theirs;
    uint8_t proof[SHA256_BYTES];
    struct wire *w;
    int fd = knock(t->set[0].port);

    if (secret_load(&t->set[1], &secret) < 0 || random_bytes(mine->nonce, sizeof(mine->nonce)) < 0)
        abort();
    if (send(fd, mine, sizeof(*mine), MSG_NOSIGNAL) != (ssize_t)sizeof(*mine) ||
        control_exactly(fd, &theirs, sizeof(theirs), clock_ns() + NS_PER_S * 5) < 0 ||
        control_proof(&secret, 'k', mine, &theirs, proof) < 0 ||
        send(fd, proof, sizeof(proof), MSG_NOSIGNAL) != (ssize_t)sizeof(proof) ||
        control_exactly(fd, proof, sizeof(proof), clock_ns() + NS_PER_S * 5) < 0 ||
        wire_open(fd, (int)mine->rank, 0, &secret, theirs.nonce, mine->nonce, &w) < 0)
        abort();
    return w;
}

static void put_raw(struct wire *w, uint32_t length, uint32_t kind, uint64_t counter)
{
    uint8_t b[64] = { 0 };
    struct control_frame_head h = { length, kind, counter };

    memcpy(b, &h, sizeof(h));
    if (send(w->fd, b, sizeof(h) + CONTROL_MAC_BYTES, MSG_NOSIGNAL) < 0)
        abort();
}

static int mischief_of; /* the case that runs */

static void misbehave(int rank, void *arg)
{
    struct town *t = arg;
    struct control_hello h = {
        .magic = CONTROL_MAGIC, .protocol = CONTROL_PROTOCOL, .world = 2, .rank = 1
    };
    static struct control_body body;
    struct wire *w;

    if (rank == 0) {
        open_rank(0, t);
        return;
    }
    if (mischief_of == BAD_PROTOCOL)
        h.protocol = 99;
    if (mischief_of == BAD_RANK)
        h.rank = 7;
    if (mischief_of == BAD_RANK_0)
        h.rank = 0;
    w = prove(t, &h);
    body.n = 3;
    memset(body.bytes, 0xff, 3);
    if (mischief_of == BAD_LENGTH)
        put_raw(w, CONTROL_BODY_MAX + 1, CONTROL_AGREE, 0);
    if (mischief_of == BAD_MAC)
        put_raw(w, 0, CONTROL_AGREE, 0);
    if (mischief_of == BAD_KIND)
        wire_send(w, 77, NULL, 0);
    if (mischief_of == BAD_ORDER)
        wire_send(w, CONTROL_READY, NULL, 0);
    if (mischief_of == BAD_BODY)
        wire_send(w, CONTROL_AGREE, &body, 0);
    if (mischief_of == BAD_COUNTER) {
        struct body_agree a = { .version = "1.0", .text = agree_text };

        memcpy(a.set_digest, digest_a, sizeof(digest_a));
        if (sha256_of(a.text, strlen(a.text), a.text_sha256) < 0 || body_agree_pack(&a, &body) < 0)
            abort();
        wire_send(w, CONTROL_AGREE, &body, 0);
        w->sent--;
        wire_send(w, CONTROL_AGREE, &body, 0);
    }
    if (mischief_of != LEAVES)
        t->result[1] = hung_up(w->fd);
    wire_close(w);
}

Test(control, authentic_nonsense_ends_the_start, .timeout = 60)
{
    for (mischief_of = 0; mischief_of < MISCHIEFS; mischief_of++) {
        struct town t;

        town_open(&t, "tcp", 2);
        if (mischief_of == LEAVES)
            t.set[0].connect_timeout_ms = 600;
        wires_run(2, misbehave, &t);
        cr_expect(eq(int, t.result[0], mischiefs[mischief_of].result), "%s: %s",
                  mischiefs[mischief_of].name, t.log[0]);
        cr_expect(strstr(t.log[0], mischiefs[mischief_of].line) != NULL, "%s: '%s'",
                  mischiefs[mischief_of].name, t.log[0]);
        town_close(&t);
    }
}

/* Rank 1, then somebody else as rank 1, then rank 2. */
static void in_turn(int rank, void *arg)
{
    struct town *t = arg;

    if (rank == 2) {
        clock_sleep(100 * NS_PER_MS);
        t->set[3] = t->set[1];
        t->result[3] = group_open(&t->set[3], &t->group[3]);
    }
    open_rank(rank, t);
}

Test(control, a_rank_that_is_taken_is_refused_and_the_world_goes_on)
{
    struct town t;

    town_open(&t, "tcp", 3);
    wires_run(3, in_turn, &t);
    for (int r = 0; r < 3; r++)
        cr_expect(eq(int, t.result[r], 0), "rank %d: %s", r, t.log[r]);
    cr_expect(eq(int, t.result[3], -EINVAL));
    cr_expect(strstr(t.log[2], "refused by rank 0: rank 1 is taken") != NULL, "%s", t.log[2]);
    town_close(&t);
}

/* A follower made of parts, with a stranger at rank 0's data port in front of it. */
static void data_port(int rank, void *arg)
{
    struct town *t = arg;
    struct control_hello h = {
        .magic = CONTROL_MAGIC, .protocol = CONTROL_PROTOCOL, .world = 2, .rank = 1
    };
    struct body_agree a = { .version = "1.0", .text = agree_text };
    static struct control_body body;
    struct control_secret secret;
    struct body_table table;
    struct wire_frame f;
    struct wire *w;
    int fd[2];

    if (rank == 0) {
        open_rank(0, t);
        return;
    }
    w = prove(t, &h);
    memcpy(a.set_digest, digest_a, sizeof(digest_a));
    if (sha256_of(a.text, strlen(a.text), a.text_sha256) < 0 || body_agree_pack(&a, &body) < 0)
        abort();
    wire_send(w, CONTROL_AGREE, &body, 0);
    body_listen_pack(9, &body);
    wire_send(w, CONTROL_LISTEN, &body, 0);
    if (wire_expect(w, CONTROL_AGREE, clock_ns() + NS_PER_S * 5, NULL, &f) < 0 ||
        wire_expect(w, CONTROL_TABLE, clock_ns() + NS_PER_S * 5, NULL, &f) < 0 ||
        body_table_unpack(f.body, f.n, &table) < 0 || secret_load(&t->set[1], &secret) < 0)
        abort();
    h.role = CONTROL_ROLE_DATA;
    for (int k = 0; k < 4; k++) {
        uint8_t answer[SHA256_BYTES], want[SHA256_BYTES];
        int channel = k < 2 ? GROUP_WINDOWS : GROUP_PLAN, right = k & 1;

        h.channel = (uint32_t)channel;
        /* the token of the other channel, then the right one */
        control_token(&secret, table.nonce, 1, 0, right ? channel : 2 - channel, 0, h.nonce);
        control_token(&secret, table.nonce, 1, 0, channel, 1, want);
        fd[k / 2] = knock(table.port[0]);
        if (send(fd[k / 2], &h, sizeof(h), MSG_NOSIGNAL) != (ssize_t)sizeof(h))
            abort();
        if (right)
            t->fails[7] +=
                control_exactly(fd[k / 2], answer, sizeof(answer), clock_ns() + NS_PER_S) < 0 ||
                !bytes_equal(answer, want, sizeof(want));
        else
            t->fails[7] +=
                control_exactly(fd[k / 2], answer, 1, clock_ns() + NS_PER_S) != -ECONNRESET;
        if (!right)
            close(fd[k / 2]);
    }
    wire_send(w, CONTROL_READY, NULL, 0);
    t->result[1] = wire_expect(w, CONTROL_READY, clock_ns() + NS_PER_S * 5, NULL, &f);
    clock_sleep(20 * NS_PER_MS);
    wire_close(w);
    close(fd[0]);
    close(fd[1]);
}

Test(control, data_sockets_need_the_token_of_their_channel)
{
    struct town t;

    town_open(&t, "tcp", 2);
    wires_run(2, data_port, &t);
    cr_expect(eq(int, t.result[0], 0), "%s", t.log[0]);
    cr_expect(eq(int, t.result[1], 0), "%s", t.log[1]);
    cr_expect(eq(int, t.fails[7], 0));
    cr_expect(strstr(t.log[0], "data 127.0.0.1: data socket with a wrong token") != NULL, "%s",
              t.log[0]);
    cr_expect(eq(int, wait_failed(t.group[0], 1000), -ECONNRESET));
    cr_expect(eq(str, (char *)group_reason(t.group[0]), "rank 1 is gone: connection closed"));
    town_close(&t);
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
    cr_expect(eq(str, (char *)group_reason(t.group[0]), "rank 2: bad luck"));
    cr_expect(eq(str, (char *)group_reason(t.group[1]), "rank 2: bad luck"));
    cr_expect(eq(str, (char *)group_reason(t.group[2]), "bad luck"));
    cr_expect(eq(int, group_barrier(t.group[0], 1000), -EREMOTEIO));
    cr_expect(eq(int, t.fails[0] + t.fails[1] + t.fails[2], 3));
    town_close(&t);
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
        { "short", "0123456789", 0600, -EINVAL, 78 },
    };
    static const char *far_hosts[] = { "192.0.2.1", "192.0.2.2" };
    struct group *g;
    struct town t;

    for (size_t i = 0; i < 2; i++) {
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
    t.set[0].link = "rdma";
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
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct group *g;
    struct town t;

    town_open(&t, "tcp", 2);
    a.sin_port = htons((uint16_t)t.set[0].port);
    cr_assert(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 1) == 0);
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

/* Whoever is at the port instead of rank 0. */
struct stranger {
    int fd;
    const char *says;
};

static void *answer_all(void *arg)
{
    struct stranger *s = arg;
    int64_t until = clock_ns() + 600 * NS_PER_MS;
    int guest[64], n = 0;

    while (clock_ns() < until && n < 64) {
        if (poll(&(struct pollfd){ .fd = s->fd, .events = POLLIN }, 1, 20) <= 0)
            continue;
        guest[n] = accept(s->fd, NULL, NULL);
        if (send(guest[n++], s->says, strlen(s->says), MSG_NOSIGNAL) < 0)
            break;
    }
    while (n > 0)
        close(guest[--n]);
    return NULL;
}

Test(control, the_time_to_connect_holds_for_whoever_answers)
{
    static const struct {
        const char *says, *line;
    } cases[] = { { "", "did not answer in time" },
                  { "HTTP/1.1 400", "is not a tandem rank (first bytes 48545450)" } };

    for (size_t i = 0; i < 2; i++) {
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        struct stranger s = { socket(AF_INET, SOCK_STREAM, 0), cases[i].says };
        pthread_t thread;
        struct town t;

        town_open(&t, "tcp", 2);
        a.sin_port = htons((uint16_t)t.set[0].port);
        cr_assert(bind(s.fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(s.fd, 1) == 0);
        cr_assert(pthread_create(&thread, NULL, answer_all, &s) == 0);
        t.set[1].connect_timeout_ms = 300;
        log_rank(1);
        open_rank(1, &t);
        cr_expect(eq(int, t.result[1], -ETIMEDOUT));
        cr_expect(t.ns[1] < NS_PER_S, "%s: %.1f s", cases[i].line, t.ns[1] / 1e9);
        cr_expect(strstr(fail_text(), cases[i].line) != NULL, "%s", fail_text());
        pthread_join(thread, NULL);
        close(s.fd);
        town_close(&t);
    }
}

Test(control, a_rank_comes_in_beside_silent_strangers)
{
    enum { STRANGERS = DOOR_GUESTS + 40 };
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd[STRANGERS];
    pthread_t leader;
    struct town t;

    town_open(&t, "tcp", 2);
    cr_assert(pthread_create(&leader, NULL, open_leader, &t) == 0);
    a.sin_port = htons((uint16_t)t.set[0].port);
    for (int i = 0; i < STRANGERS; i++) {
        fd[i] = socket(AF_INET, SOCK_STREAM, 0);
        while (connect(fd[i], (struct sockaddr *)&a, sizeof(a)) != 0)
            clock_sleep(NS_PER_MS);
    }
    open_rank(1, &t);
    pthread_join(leader, NULL);
    cr_expect(eq(int, t.result[0], 0), "%s", t.log[0]);
    cr_expect(eq(int, t.result[1], 0), "%s", t.log[1]);
    cr_expect(t.ns[1] < 2 * NS_PER_S, "%.1f s", t.ns[1] / 1e9);
    for (int i = 0; i < STRANGERS; i++)
        close(fd[i]);
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
    clock_sleep(60 * NS_PER_MS);
    cr_expect(group_beat_age_max(t.group[0]) > 0);
    town_close(&t);
}
