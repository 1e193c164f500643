/* The control port: who gets in beside strangers, and what authentic nonsense does. */
#include "tests/rank/town.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/control_meet.h"
#include "tests/base/capture.h"

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

Test(strangers, strangers_neither_end_nor_delay_a_listening_rank)
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

Test(strangers, a_dripping_hello_has_one_deadline, .timeout = 20)
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

static int64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

Test(strangers, who_cannot_be_let_in_is_named_and_waits)
{
    static const struct door_guest stranger = { .host = "somebody" };
    struct control_hello h = { .magic = CONTROL_MAGIC };
    struct rlimit few = { 64, 64 };
    struct door_guest *g = NULL;
    struct capture log;
    struct door d;
    uint16_t port;
    int64_t cpu;
    int fd, out, one, n = 0, more[64];

    setrlimit(RLIMIT_NOFILE, &few);
    cr_assert(eq(int, door_listen("control", "127.0.0.1", 0, &fd, &port), 0));
    door_init("control", fd, &d);
    while ((one = dup(fd)) >= 0)
        more[n++] = one;
    capture_start(&log);
    cr_expect(eq(int, door_wait(&d, 50, &g), 0));
    cr_expect(eq(int, log.lines, 0), "nobody waits");
    close(more[--n]);
    out = knock(port);
    cr_assert(eq(int, (int)send(out, &h, sizeof(h), MSG_NOSIGNAL), (int)sizeof(h)));
    for (int i = 0; i < 2; i++)
        door_say(&d, &stranger, "not a rank");
    cr_expect(eq(int, log.lines, 1));
    cpu = cpu_ns();
    cr_expect(eq(int, door_wait(&d, 300, &g), 0));
    cpu = cpu_ns() - cpu;
    log_sink(NULL, NULL);
    cr_expect(cpu < 100 * NS_PER_MS, "%lld ms of 300", (long long)(cpu / NS_PER_MS));
    cr_expect(eq(int, log.lines, 2)); /* one of them about a stranger, each said once */
    cr_expect(strstr(log.last, "control: cannot let in who waits: Too many open files") != NULL,
              "%s", log.last);
    while (n > 0)
        close(more[--n]);
    cr_expect(eq(int, door_wait(&d, 1000, &g), 1)); /* as soon as there is room */
    door_close(&d);
    close(out);
}

Test(strangers, a_guest_has_its_time_even_where_all_places_are_taken)
{
    struct door_guest *g = NULL;
    struct capture log;
    struct door d;
    uint16_t port;
    int64_t start;
    int fd, out[DOOR_GUESTS + 1];

    cr_assert(eq(int, door_listen("control", "127.0.0.1", 0, &fd, &port), 0));
    door_init("control", fd, &d);
    capture_start(&log);
    for (int i = 0; i < DOOR_GUESTS; i++)
        out[i] = knock(port);
    cr_assert(eq(int, door_wait(&d, DOOR_YIELD_MS + 50, &g), 0));
    cr_expect(eq(int, log.lines, 0), "nobody waits for a place: %s", log.last);
    door_close(&d);
    for (int i = 0; i < DOOR_GUESTS; i++)
        close(out[i]);
    cr_assert(eq(int, door_listen("control", "127.0.0.1", 0, &fd, &port), 0));
    door_init("control", fd, &d);
    for (int i = 0; i < DOOR_GUESTS + 1; i++)
        out[i] = knock(port);
    start = clock_ns();
    while (log.lines == 0 && clock_ns() - start < 5 * NS_PER_S)
        cr_assert(eq(int, door_wait(&d, 20, &g), 0));
    start = clock_ns() - start;
    log_sink(NULL, NULL);
    cr_expect(strstr(log.last, "its place goes to the next") != NULL, "%s", log.last);
    cr_expect(start >= DOOR_YIELD_MS * NS_PER_MS, "after %lld ms", (long long)(start / NS_PER_MS));
    door_close(&d);
    for (int i = 0; i < DOOR_GUESTS + 1; i++)
        close(out[i]);
}

static void *open_leader(void *arg)
{
    open_rank(0, arg);
    return NULL;
}

/* Whoever is at the port instead of rank 0. */
struct stranger {
    int fd;
    const char *says; /* NULL: what it hears */
};

/* As a socket does that has connected to itself: HELLO and PROOF come back. */
static void echo(int fd)
{
    uint8_t heard[sizeof(struct control_hello) + SHA256_BYTES];
    int64_t until = clock_ns() + 100 * NS_PER_MS;

    if (control_exactly(fd, heard, sizeof(struct control_hello), until, NULL) == 0 &&
        send(fd, heard, sizeof(struct control_hello), MSG_NOSIGNAL) > 0 &&
        control_exactly(fd, heard, SHA256_BYTES, until, NULL) == 0)
        send(fd, heard, SHA256_BYTES, MSG_NOSIGNAL);
}

static void *answer_all(void *arg)
{
    struct stranger *s = arg;
    int64_t until = clock_ns() + 600 * NS_PER_MS;
    int guest[64], n = 0;

    while (clock_ns() < until && n < 64) {
        if (poll(&(struct pollfd){ .fd = s->fd, .events = POLLIN }, 1, 20) <= 0)
            continue;
        guest[n] = accept(s->fd, NULL, NULL);
        if (!s->says)
            echo(guest[n++]);
        else if (send(guest[n++], s->says, strlen(s->says), MSG_NOSIGNAL) < 0)
            break;
    }
    while (n > 0)
        close(guest[--n]);
    return NULL;
}

Test(strangers, the_time_to_connect_holds_for_whoever_answers)
{
    static const struct {
        const char *says, *line;
    } cases[] = { { "", "did not answer in time" },
                  { NULL, "did not answer in time" },
                  { "HTTP/1.1 400", "is not a tandem rank (first bytes 48545450)" } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stranger s = { .says = cases[i].says };
        pthread_t thread;
        struct town t;

        town_open(&t, "tcp", 2);
        s.fd = bound(t.set[0].port);
        cr_assert(listen(s.fd, 1) == 0);
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

/* Rank 0 but for the byte `wrong` of its proof. */
struct impostor {
    struct town *t;
    int fd, wrong;
};

static void *claim_to_lead(void *arg)
{
    struct impostor *i = arg;
    struct control_hello theirs,
        mine = { .magic = CONTROL_MAGIC, .protocol = CONTROL_PROTOCOL, .world = 2 };
    int guest = accept(i->fd, NULL, NULL);
    int64_t until = clock_ns() + 5 * NS_PER_S;
    struct control_secret secret;
    uint8_t proof[SHA256_BYTES];

    if (secret_load(&i->t->set[0], &secret) < 0 ||
        random_bytes(mine.nonce, sizeof(mine.nonce)) < 0 ||
        control_exactly(guest, &theirs, sizeof(theirs), until, NULL) < 0 ||
        send(guest, &mine, sizeof(mine), MSG_NOSIGNAL) != (ssize_t)sizeof(mine) ||
        control_exactly(guest, proof, sizeof(proof), until, NULL) < 0 ||
        control_proof(&secret, '0', &mine, &theirs, proof) < 0)
        abort();
    proof[i->wrong] ^= 1;
    send(guest, proof, sizeof(proof), MSG_NOSIGNAL);
    hung_up(guest);
    close(guest);
    return NULL;
}

Test(strangers, every_byte_of_a_proof_counts_on_both_sides)
{
    for (int wrong = 0; wrong < SHA256_BYTES; wrong += SHA256_BYTES - 1) {
        struct control_hello h = {
            .magic = CONTROL_MAGIC, .protocol = CONTROL_PROTOCOL, .world = 2, .rank = 1
        };
        struct control_hello theirs;
        struct control_secret secret;
        uint8_t proof[SHA256_BYTES];
        struct impostor i;
        pthread_t thread;
        struct town t;
        int fd;

        town_open(&t, "tcp", 2);
        i = (struct impostor){ .t = &t, .fd = bound(t.set[0].port), .wrong = wrong };
        cr_assert(listen(i.fd, 1) == 0);
        cr_assert(pthread_create(&thread, NULL, claim_to_lead, &i) == 0);
        log_rank(1);
        open_rank(1, &t);
        cr_expect(eq(int, t.result[1], -EACCES), "byte %d of rank 0's", wrong);
        pthread_join(thread, NULL);
        close(i.fd);
        town_close(&t);

        town_open(&t, "tcp", 2);
        t.set[0].connect_timeout_ms = 500;
        cr_assert(pthread_create(&thread, NULL, open_leader, &t) == 0);
        fd = knock(t.set[0].port);
        cr_assert(eq(int, secret_load(&t.set[1], &secret), 0));
        cr_assert(eq(int, (int)send(fd, &h, sizeof(h), MSG_NOSIGNAL), (int)sizeof(h)));
        cr_assert(eq(
            int, control_exactly(fd, &theirs, sizeof(theirs), clock_ns() + 5 * NS_PER_S, NULL), 0));
        cr_assert(eq(int, control_proof(&secret, 'k', &h, &theirs, proof), 0));
        proof[wrong] ^= 1;
        cr_assert(eq(int, (int)send(fd, proof, sizeof(proof), MSG_NOSIGNAL), (int)sizeof(proof)));
        cr_assert(
            eq(int, control_exactly(fd, proof, sizeof(proof), clock_ns() + 5 * NS_PER_S, NULL), 0));
        for (int k = 0; k < SHA256_BYTES; k++)
            cr_expect(eq(int, proof[k], 0), "a refused rank learns nothing");
        cr_expect(hung_up(fd));
        close(fd);
        pthread_join(thread, NULL);
        cr_expect(eq(int, t.result[0], -ETIMEDOUT), "byte %d of rank 1's", wrong);
        town_close(&t);
    }
}

Test(strangers, a_rank_comes_in_beside_silent_strangers)
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

/* ---- peers that know the secret and misbehave ---- */

enum mischief {
    BAD_PROTOCOL,
    BAD_RANK,
    BAD_RANK_0,
    BAD_LENGTH,
    BAD_MAC,
    BAD_MAC_END,
    BAD_COUNTER,
    BAD_GAP,
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
    [BAD_MAC_END] = { "last byte of a MAC", -EPROTO, "frame 0 from rank 1 is not authentic" },
    [BAD_COUNTER] = { "replayed counter", -EPROTO, "frame 0 from rank 1 where 1 is due" },
    [BAD_GAP] = { "a frame is missing", -EPROTO, "frame 2 from rank 1 where 0 is due" },
    [BAD_KIND] = { "kind", -EPROTO, "frame of kind 77 from rank 1" },
    [BAD_ORDER] = { "order", -EPROTO, "frame of kind 4 from rank 1, want 1" },
    [BAD_BODY] = { "body", -EPROTO, "3 bytes are no Agree" },
    [LEAVES] = { "leaves", -ETIMEDOUT, "rank 1 did not come in 600 ms" },
};

static int mischief_of; /* the case that runs */

/* A frame that is right but for its last byte. */
static void spoil_end(struct wire *w)
{
    uint8_t frame[64];
    int pair[2], fd = w->fd;
    ssize_t n;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        abort();
    w->fd = pair[0];
    wire_send(w, CONTROL_AGREE, NULL, 0);
    w->fd = fd;
    n = recv(pair[1], frame, sizeof(frame), 0);
    frame[n - 1] ^= 1;
    if (send(fd, frame, (size_t)n, MSG_NOSIGNAL) != n)
        abort();
    close(pair[0]);
    close(pair[1]);
}

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
    if (mischief_of == BAD_MAC_END)
        spoil_end(w);
    if (mischief_of == BAD_KIND)
        wire_send(w, 77, NULL, 0);
    if (mischief_of == BAD_ORDER)
        wire_send(w, CONTROL_READY, NULL, 0);
    if (mischief_of == BAD_BODY)
        wire_send(w, CONTROL_AGREE, &body, 0);
    if (mischief_of == BAD_GAP) {
        w->sent = 2;
        wire_send(w, CONTROL_AGREE, &body, 0);
    }
    if (mischief_of == BAD_COUNTER) {
        struct body_agree a = { .version = "1.0", .text = agree_text };

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

Test(strangers, authentic_nonsense_ends_the_start, .timeout = 60)
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

/* A world of three, whose ranks come by fn; all of them are in it then. */
static void three_meet(struct town *t, void (*fn)(int rank, void *arg))
{
    town_open(t, "tcp", 3);
    wires_run(3, fn, t);
    for (int r = 0; r < 3; r++)
        cr_expect(eq(int, t->result[r], 0), "rank %d: %s", r, t->log[r]);
}

Test(strangers, a_rank_that_is_taken_is_refused_and_the_world_goes_on)
{
    struct town t;

    three_meet(&t, in_turn);
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
            t->fails[7] += control_exactly(fd[k / 2], answer, sizeof(answer), clock_ns() + NS_PER_S,
                                           NULL) < 0 ||
                           !bytes_equal(answer, want, sizeof(want));
        else
            t->fails[7] +=
                control_exactly(fd[k / 2], answer, 1, clock_ns() + NS_PER_S, NULL) != -ECONNRESET;
        if (!right)
            close(fd[k / 2]);
        if (k == 1) { /* the same once more, while its channel is open */
            int again = knock(table.port[0]);

            t->fails[6] +=
                send(again, &h, sizeof(h), MSG_NOSIGNAL) != (ssize_t)sizeof(h) ||
                control_exactly(again, answer, 1, clock_ns() + NS_PER_S, NULL) != -ECONNRESET;
            close(again);
        }
    }
    wire_send(w, CONTROL_READY, NULL, 0);
    t->result[1] = wire_expect(w, CONTROL_READY, clock_ns() + NS_PER_S * 5, NULL, &f);
    clock_sleep(20 * NS_PER_MS);
    wire_close(w);
    close(fd[0]);
    close(fd[1]);
}

Test(strangers, data_sockets_need_the_token_of_their_channel)
{
    struct town t;

    town_open(&t, "tcp", 2);
    wires_run(2, data_port, &t);
    cr_expect(eq(int, t.result[0], 0), "%s", t.log[0]);
    cr_expect(eq(int, t.result[1], 0), "%s", t.log[1]);
    cr_expect(eq(int, t.fails[7], 0));
    cr_expect(eq(int, t.fails[6], 0), "a channel is opened twice");
    cr_expect(strstr(t.log[0], "data 127.0.0.1: data socket with a wrong token") != NULL, "%s",
              t.log[0]);
    cr_expect(eq(int, wait_failed(t.group[0], 1000), -ECONNRESET));
    cr_expect(strcmp(group_reason(t.group[0]), "rank 1 is gone: connection closed") == 0);
    town_close(&t);
}

Test(strangers, a_token_is_of_one_pair_channel_direction_and_group)
{
    static const struct control_secret secret = { .n = 32,
                                                  .bytes = "thirty-two bytes of a secret ..." };
    static const struct {
        int from, to, channel, answer, nonce;
    } tokens[] = { { 1, 0, 0, 0, 1 }, { 2, 0, 0, 0, 1 }, { 1, 2, 0, 0, 1 }, { 0, 1, 0, 0, 1 },
                   { 1, 0, 2, 0, 1 }, { 1, 0, 0, 1, 1 }, { 1, 0, 0, 0, 2 } };
    enum { N = sizeof(tokens) / sizeof(tokens[0]) };
    uint8_t token[N][SHA256_BYTES];

    for (int i = 0; i < N; i++) {
        uint8_t nonce[CONTROL_NONCE_BYTES] = { (uint8_t)tokens[i].nonce };

        cr_assert(eq(int,
                     control_token(&secret, nonce, tokens[i].from, tokens[i].to, tokens[i].channel,
                                   tokens[i].answer, token[i]),
                     0));
        for (int k = 0; k < i; k++)
            cr_expect(bytes_equal(token[i], token[k], SHA256_BYTES) == 0, "%d and %d", k, i);
    }
}

static void come_again(int rank, void *arg)
{
    struct town *t = arg;

    if (rank == 1) {
        struct wire *w = as_far_as_the_table(t, 1, false);

        clock_sleep(100 * NS_PER_MS); /* it has been taken in */
        wire_close(w);
        clock_sleep(100 * NS_PER_MS); /* and has been missed */
        atomic_store(&t->go, 1);
    }
    while (rank == 2 && !atomic_load(&t->go))
        clock_sleep(NS_PER_MS);
    open_rank(rank, t);
}

Test(strangers, a_rank_that_left_before_the_world_was_complete_may_come_again)
{
    struct town t;

    three_meet(&t, come_again);
    cr_expect(strstr(t.log[0], "rank 1 left before the world was complete") != NULL, "%s",
              t.log[0]);
    town_close(&t);
}

static void leave_at_the_table(int rank, void *arg)
{
    struct town *t = arg;

    if (rank == 0)
        open_rank(0, t);
    else
        wire_close(as_far_as_the_table(t, 1, true));
}

Test(strangers, who_leaves_before_its_data_sockets_is_not_waited_for)
{
    struct town t;

    town_open(&t, "tcp", 2);
    wires_run(2, leave_at_the_table, &t);
    cr_expect(eq(int, t.result[0], -ECONNRESET), "%s", t.log[0]);
    cr_expect(strstr(t.log[0], "rank 1 is gone: connection closed") != NULL, "%s", t.log[0]);
    cr_expect(t.ns[0] < 3 * NS_PER_S, "%.1f s", t.ns[0] / 1e9);
    town_close(&t);
}

/* ---- a rank 0 that knows the secret and misbehaves ---- */

enum leader { LEADER_WORLD, LEADER_ECHOES, LEADER_SILENT, LEADERS };

static const struct {
    const char *name;
    int result; /* of rank 1 */
    const char *line;
} leaders[LEADERS] = {
    [LEADER_WORLD] = { "another world", -EPROTO, "table of 3 ranks in a world of 2" },
    [LEADER_ECHOES] = { "the token as its answer", -EACCES, "channel 0 to rank 0" },
    [LEADER_SILENT] = { "no answer, and rank 1 is to leave", -ECANCELED, "" },
};

static int leader_of; /* the case that runs */

/* Whoever comes to a door has said enough within 5 s. */
static struct door_guest *guest_of(struct door *d)
{
    struct door_guest *g;

    if (door_wait(d, 5000, &g) != 1)
        abort();
    return g;
}

static void lead_wrongly(int rank, void *arg)
{
    static struct control_body body;
    struct town *t = arg;
    struct body_agree a = { .version = "1.0", .text = agree_text };
    struct body_table table = { .nonce = { 1 }, .world = 2, .port = { 9, 9, 9 } };
    struct control_secret secret;
    struct control_hello theirs;
    struct door door, data;
    struct wire_frame f;
    struct wire *w;
    int fd;

    if (rank == 1) {
        open_rank(1, t);
        return;
    }
    if (secret_load(&t->set[0], &secret) < 0 || group_listen(&t->set[0], &fd) < 0)
        abort();
    door_init("control", fd, &door);
    while (meet_guest(&t->set[0], &secret, &door, guest_of(&door), &theirs, &w) == 0)
        ;
    if (door_listen("data", "127.0.0.1", 0, &fd, &table.port[0]) < 0 ||
        sha256_of(a.text, strlen(a.text), a.text_sha256) < 0 || body_agree_pack(&a, &body) < 0)
        abort();
    door_init("data", fd, &data);
    wire_send(w, CONTROL_AGREE, &body, 0);
    if (leader_of == LEADER_WORLD)
        table.world = 3;
    if (wire_expect(w, CONTROL_AGREE, clock_ns() + NS_PER_S * 5, NULL, &f) < 0 ||
        wire_expect(w, CONTROL_LISTEN, clock_ns() + NS_PER_S * 5, NULL, &f) < 0 ||
        body_table_pack(&table, &body) < 0)
        abort();
    wire_send(w, CONTROL_TABLE, &body, 0);
    if (leader_of == LEADER_ECHOES) {
        struct door_guest *g = guest_of(&data);
        const struct control_hello *h = (const struct control_hello *)(const void *)g->buf;

        send(g->fd, h->nonce, sizeof(h->nonce), MSG_NOSIGNAL);
    }
    if (leader_of == LEADER_SILENT) {
        guest_of(&data);
        atomic_store(&t->go, 1);
    }
    for (int i = 0; i < 5000 && !wire_lost(w); i++) /* its doors stay open until rank 1 has gone */
        clock_sleep(NS_PER_MS);
    wire_close(w);
    door_close(&data);
    door_close(&door);
}

Test(strangers, a_leader_is_not_believed_either)
{
    for (leader_of = 0; leader_of < LEADERS; leader_of++) {
        struct town t;

        town_open(&t, "tcp", 2);
        t.set[1].cancel = &t.go;
        wires_run(2, lead_wrongly, &t);
        cr_expect(eq(int, t.result[1], leaders[leader_of].result), "%s: %s",
                  leaders[leader_of].name, t.log[1]);
        cr_expect(strstr(t.log[1], leaders[leader_of].line) != NULL, "%s: '%s'",
                  leaders[leader_of].name, t.log[1]);
        town_close(&t);
    }
}
