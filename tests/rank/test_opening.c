/* How a group opens: hosts of several addresses, ports that are not to be had, who is called off
 * meanwhile, and who asks for the end too soon. */
#include "tests/rank/town.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/control_meet.h"

/* Instead of the library's: a name is its addresses, "127.0.0.9,127.0.0.1". */
int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hint, struct addrinfo **restrict out)
{
    struct addrinfo **end = out;
    char text[128], *rest = text, *host;

    *out = NULL;
    snprintf(text, sizeof(text), "%s", name);
    while ((host = strsep(&rest, ",")) != NULL) {
        struct addrinfo *i = calloc(1, sizeof(*i) + sizeof(struct sockaddr_storage));
        struct sockaddr_in *a = (struct sockaddr_in *)(i + 1);
        struct sockaddr_in6 *a6 = (struct sockaddr_in6 *)(i + 1);

        i->ai_addr = (struct sockaddr *)(i + 1);
        if (inet_pton(AF_INET, host, &a->sin_addr) == 1) {
            a->sin_family = AF_INET;
            a->sin_port = htons((uint16_t)atoi(service));
            i->ai_addrlen = sizeof(*a);
        } else if (inet_pton(AF_INET6, host, &a6->sin6_addr) == 1) {
            a6->sin6_family = AF_INET6;
            a6->sin6_port = htons((uint16_t)atoi(service));
            i->ai_addrlen = sizeof(*a6);
        }
        *end = i;
        end = &i->ai_next;
    }
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    while (list) {
        struct addrinfo *next = list->ai_next;

        free(list);
        list = next;
    }
}

/* ---- hosts of several addresses ---- */

static const struct {
    const char *name;
    const char *host[2]; /* rank 0's, as rank 0 and as rank 1 know it */
    int no_secret, result;
} hosts[] = {
    { "one address", { "127.0.0.1", "127.0.0.1" }, 0, 0 },
    { "it listens at the second one", { "127.0.0.1", "127.0.0.9,127.0.0.1" }, 0, 0 },
    { "the first one is not this machine's", { "192.0.2.9,127.0.0.1", "127.0.0.1" }, 0, 0 },
    { "one of another kind", { "2001:db8::9,127.0.0.1", "127.0.0.9,127.0.0.1" }, 0, 0 },
    { "none is this machine's", { "192.0.2.9,192.0.2.8", "127.0.0.1" }, 0, -EADDRNOTAVAIL },
    { "loopback without a secret", { "127.0.0.1,127.0.0.9", "127.0.0.1" }, 1, 0 },
    { "not only loopback", { "127.0.0.1,192.0.2.9", "127.0.0.1" }, 1, -EINVAL },
};

Test(opening, a_host_is_found_at_any_of_its_addresses, .timeout = 60)
{
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        const char *as[2][2] = { { hosts[i].host[0], "127.0.0.1" },
                                 { hosts[i].host[1], "127.0.0.1" } };
        struct town t;

        town_open(&t, "tcp", 2);
        for (int r = 0; r < 2; r++) {
            t.set[r].hosts = as[r];
            t.set[r].no_secret = hosts[i].no_secret;
            t.set[r].connect_timeout_ms = hosts[i].result < 0 ? 200 : 5000;
        }
        wires_run(2, open_rank, &t);
        cr_expect(eq(int, t.result[0], hosts[i].result), "%s: %s", hosts[i].name, t.log[0]);
        cr_expect(eq(int, t.result[1], hosts[i].result < 0 ? -ETIMEDOUT : 0), "%s: %s",
                  hosts[i].name, t.log[1]);
        town_close(&t);
    }
}

Test(opening, a_port_in_use_at_one_address_is_not_dodged_at_another)
{
    const char *const as[] = { "127.0.0.1,127.0.0.9", "127.0.0.1" };
    struct town t;
    int fd, listener;

    town_open(&t, "tcp", 2);
    t.set[0].hosts = as;
    fd = bound(t.set[0].port);
    cr_assert(listen(fd, 1) == 0);
    cr_expect(eq(int, group_listen(&t.set[0], &listener), -EADDRINUSE));
    close(fd);
    town_close(&t);
}

/* ---- a port that only some may take ---- */

Test(opening, a_port_without_the_right_to_it_is_no_matter_of_secrets)
{
    FILE *f = fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "r");
    int first = 0, fd;
    struct town t;

    if (f && fscanf(f, "%d", &first) != 1)
        first = 0;
    if (f)
        fclose(f);
    if (first < 2)
        cr_skip_test("every port is everybody's here");
    town_open(&t, "tcp", 2);
    cr_assert(geteuid() != 0 || seteuid(65534) == 0);
    t.set[0].port = first - 1;
    cr_expect(eq(int, group_listen(&t.set[0], &fd), -EADDRNOTAVAIL));
    cr_expect(strstr(fail_text(), "Permission denied") != NULL, "%s", fail_text());
    cr_expect(getuid() != 0 || seteuid(0) == 0);
    town_close(&t);
}

/* ---- who is called off, or not told ---- */

/* Nobody is let in at the port: the kernel answers no further connection. */
static void full_port(int rank, void *arg)
{
    struct town *t = arg;
    int fd, in[2];

    if (rank == 1) {
        while (!atomic_load(&t->fails[7]))
            clock_sleep(NS_PER_MS);
        open_rank(1, t);
        return;
    }
    fd = bound(t->set[0].port);
    if (listen(fd, 0) < 0)
        abort();
    in[0] = knock(t->set[0].port);
    atomic_store(&t->fails[7], 1);
    clock_sleep(100 * NS_PER_MS);
    atomic_store(&t->go, 1);
    while (t->ns[1] == 0)
        clock_sleep(NS_PER_MS);
    in[1] = fd;
    close(in[0]);
    close(in[1]);
}

/* Rank 2 does not come. */
static void two_of_three(int rank, void *arg)
{
    struct town *t = arg;

    if (rank < 2) {
        open_rank(rank, t);
        return;
    }
    clock_sleep(200 * NS_PER_MS); /* rank 1 waits for the table by then */
    atomic_store(&t->go, 1);
}

/* A rank that takes the table and makes no data sockets. */
static void no_data_sockets(int rank, void *arg)
{
    struct town *t = arg;
    struct wire *w;

    if (rank == 0) {
        open_rank(0, t);
        return;
    }
    w = as_far_as_the_table(t, 1, true);
    atomic_store(&t->go, 1);
    while (t->ns[0] == 0)
        clock_sleep(NS_PER_MS);
    wire_close(w);
}

Test(opening, whatever_a_rank_waits_for_it_can_be_called_off, .timeout = 60)
{
    static const struct {
        const char *name;
        void (*play)(int rank, void *town);
        int rank, world;
    } cases[] = { { "a connection that does not come about", full_port, 1, 2 },
                  { "data sockets that do not come", no_data_sockets, 0, 2 },
                  { "a world that is not complete", two_of_three, 1, 3 },
                  { "a rank that does not come", two_of_three, 0, 3 } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int r = cases[i].rank;
        struct town t;

        town_open(&t, "tcp", cases[i].world);
        t.set[r].cancel = &t.go;
        t.set[!r].connect_timeout_ms = 1000; /* for whoever is left */
        wires_run(cases[i].world, cases[i].play, &t);
        cr_expect(eq(int, t.result[r], -ECANCELED), "%s: %s", cases[i].name, t.log[r]);
        cr_expect(t.ns[r] < 700 * NS_PER_MS, "%s: %.1f s", cases[i].name, (double)t.ns[r] / 1e9);
        town_close(&t);
    }
}

/* A rank that has proved itself and says nothing more: it has been stopped, say. */
static void silent_behind_its_proof(int rank, void *arg)
{
    struct town *t = arg;
    struct control_hello h = {
        .magic = CONTROL_MAGIC, .protocol = CONTROL_PROTOCOL, .world = 2, .rank = 1
    };
    struct wire *w;

    if (rank == 0) {
        open_rank(0, t);
        return;
    }
    w = prove(t, &h);
    open_rank(1, t);
    wire_close(w);
}

Test(opening, who_is_silent_behind_its_proof_does_not_end_the_start, .timeout = 60)
{
    struct town t;

    town_open(&t, "tcp", 2);
    t.set[0].connect_timeout_ms = t.set[1].connect_timeout_ms = 30000;
    wires_run(2, silent_behind_its_proof, &t);
    cr_expect(eq(int, t.result[0], 0), "%s", t.log[0]);
    cr_expect(eq(int, t.result[1], 0), "%s", t.log[1]);
    cr_expect(strstr(t.log[0], "rank 1 has not said in time what its settings are") != NULL, "%s",
              t.log[0]);
    town_close(&t);
}

static void none_of_its_data_sockets(int rank, void *arg)
{
    struct town *t = arg;
    struct wire *w;

    if (rank == 0) {
        open_rank(0, t);
        return;
    }
    w = as_far_as_the_table(t, 1, true);
    while (!wire_lost(w))
        clock_sleep(10 * NS_PER_MS);
    wire_close(w);
}

Test(opening, data_sockets_are_waited_for_no_longer_than_that, .timeout = 40)
{
    struct town t;

    town_open(&t, "tcp", 2);
    wires_run(2, none_of_its_data_sockets, &t);
    cr_expect(eq(int, t.result[0], -ETIMEDOUT), "%s", t.log[0]);
    cr_expect(strstr(t.log[0], "the data sockets of rank 1 did not come in 10000 ms") != NULL, "%s",
              t.log[0]);
    town_close(&t);
}

/* Rank 2 comes last, and has other settings. */
static void differ_last(int rank, void *arg)
{
    struct town *t = arg;

    if (rank == 2)
        clock_sleep(300 * NS_PER_MS);
    open_rank(rank, t);
}

Test(opening, who_waits_beside_a_refused_rank_is_told)
{
    struct town t;

    town_open(&t, "tcp", 3);
    t.set[2].agree = "context = 4096\n";
    wires_run(3, differ_last, &t);
    for (int r = 0; r < 3; r++)
        cr_expect(eq(int, t.result[r], -EINVAL), "rank %d: %s", r, t.log[r]);
    cr_expect(strstr(t.log[1], "refused by rank 0: another rank was refused") != NULL, "%s",
              t.log[1]);
    town_close(&t);
}

static void wait_for_the_third(int rank, void *arg)
{
    struct town *t = arg;
    struct wire_frame f;
    struct wire *w;

    if (rank == 0) {
        open_rank(0, t);
        return;
    }
    log_rank(1);
    w = as_far_as_the_table(t, 1, false);
    t->result[1] = wire_expect(w, CONTROL_TABLE, clock_ns() + 50 * NS_PER_MS, NULL, &f);
    atomic_store(&t->go, 1);
    wire_close(w);
}

Test(opening, a_rank_that_waits_for_others_does_not_call_rank_0_silent)
{
    struct town t;

    town_open(&t, "tcp", 3);
    t.set[0].cancel = &t.go;
    wires_run(2, wait_for_the_third, &t);
    cr_expect(eq(int, t.result[1], -ETIMEDOUT));
    cr_expect(strstr(t.log[1], "rank 0 has not said in time that all ranks are there") != NULL,
              "%s", t.log[1]);
    cr_expect(eq(int, t.result[0], -ECANCELED), "%s", t.log[0]);
    town_close(&t);
}

/* ---- a rank that asks for the end, and then is silent ---- */

/* A rank 1 made of parts, as far as a complete world; its data sockets. */
static struct wire *complete(struct town *t, int fd[2])
{
    static const int channel[] = { GROUP_WINDOWS, GROUP_PLAN };
    struct wire *w = as_far_as_the_table(t, 1, false);
    int64_t until = clock_ns() + 5 * NS_PER_S;
    struct control_secret secret;
    struct body_table table;
    struct wire_frame f;

    if (wire_expect(w, CONTROL_TABLE, until, NULL, &f) < 0 ||
        body_table_unpack(f.body, f.n, &table) < 0 || secret_load(&t->set[1], &secret) < 0)
        abort();
    for (int k = 0; k < 2; k++) {
        struct control_hello h = { .magic = CONTROL_MAGIC,
                                   .protocol = CONTROL_PROTOCOL,
                                   .world = 2,
                                   .rank = 1,
                                   .role = CONTROL_ROLE_DATA,
                                   .channel = (uint32_t)channel[k] };
        uint8_t answer[SHA256_BYTES];

        control_token(&secret, table.nonce, 1, 0, channel[k], 0, h.nonce);
        fd[k] = knock(table.port[0]);
        if (send(fd[k], &h, sizeof(h), MSG_NOSIGNAL) != (ssize_t)sizeof(h) ||
            control_exactly(fd[k], answer, sizeof(answer), until, NULL) < 0)
            abort();
    }
    wire_send(w, CONTROL_READY, NULL, 0);
    if (wire_expect(w, CONTROL_READY, until, NULL, &f) < 0)
        abort();
    return w;
}

static void ask_and_hang(int rank, void *arg)
{
    struct town *t = arg;
    struct wire *w;
    int fd[2];

    if (rank == 0) {
        open_rank(0, t);
        for (int ms = 0; t->result[0] == 0 && !group_stopping(t->group[0]) && ms < 2000; ms++)
            clock_sleep(NS_PER_MS);
        if (t->go)
            group_stop(t->group[0]);
        t->result[1] = wait_failed(t->group[0], 1000);
        t->go = 2;
        return;
    }
    w = complete(t, fd);
    wire_send(w, CONTROL_STOP, NULL, 0);
    while (t->go < 2)
        clock_sleep(NS_PER_MS);
    wire_close(w);
    close(fd[0]);
    close(fd[1]);
}

Test(opening, a_rank_that_asked_for_the_end_is_watched_until_it_comes)
{
    for (int stopped = 0; stopped < 2; stopped++) {
        struct town t;
        int said;

        town_open(&t, "tcp", 2);
        t.set[0].peer_timeout_ms = 200;
        t.go = stopped;
        wires_run(2, ask_and_hang, &t);
        cr_expect(eq(int, t.result[0], 0), "%s", t.log[0]);
        cr_expect(eq(int, t.result[1], stopped ? 0 : -ETIMEDOUT), "stopped %d: %s", stopped,
                  t.log[0]);
        said = strstr(t.log[0], "rank 1 is gone: no heartbeat") != NULL;
        cr_expect(eq(int, said, !stopped), "%s", t.log[0]);
        town_close(&t);
    }
}

/* Rank 0 has said one heartbeat, its first; rank 1 asks it for the end, or has come to its own. */
static void ask_one_that_hangs(int rank, void *arg)
{
    struct town *t = arg;
    int stopped = t->go;

    open_rank(rank, t);
    if (rank == 1 && t->group[1]) {
        if (stopped)
            group_stop(t->group[1]);
        else
            group_ask(t->group[1]);
        t->result[2] = wait_failed(t->group[1], 1000);
    }
}

Test(opening, a_rank_that_asked_for_the_end_watches_whom_it_asked)
{
    for (int stopped = 0; stopped < 2; stopped++) {
        struct town t;

        town_open(&t, "tcp", 2);
        t.set[0].heartbeat_ms = 60000;
        t.set[0].peer_timeout_ms = 120000;
        t.set[1].peer_timeout_ms = 200;
        t.go = stopped;
        wires_run(2, ask_one_that_hangs, &t);
        cr_expect(eq(int, t.result[1], 0), "%s", t.log[1]);
        cr_expect(eq(int, t.result[2], stopped ? 0 : -ETIMEDOUT), "stopped %d: %s", stopped,
                  t.log[1]);
        town_close(&t);
    }
}

static void ask_rank_0(int rank, void *arg)
{
    struct town *t = arg;

    open_rank(rank, t);
    if (rank == 1)
        group_ask(t->group[1]);
    for (int ms = 0; rank == 0 && !group_stopping(t->group[0]) && ms < 2000; ms++)
        clock_sleep(NS_PER_MS);
}

Test(opening, whoever_is_asked_for_the_end_hears_it)
{
    static const char *const link[] = { "tcp", "loop" };

    for (int i = 0; i < 2; i++) {
        struct town t;

        town_open(&t, link[i], 2);
        wires_run(2, ask_rank_0, &t);
        cr_expect(group_stopping(t.group[0]), "link %s", link[i]);
        cr_expect(eq(int, group_failed(t.group[0]), 0), "%s", t.log[0]);
        town_close(&t);
    }
}

/* ---- the key of a control connection ---- */

static void key_of(const struct control_secret *s, uint8_t nonce_0, uint8_t nonce_k, uint8_t *key)
{
    uint8_t zero[CONTROL_NONCE_BYTES] = { [CONTROL_NONCE_BYTES - 1] = nonce_0 };
    uint8_t k[CONTROL_NONCE_BYTES] = { [CONTROL_NONCE_BYTES - 1] = nonce_k };
    struct wire *w;

    cr_assert(eq(int, wire_open(-1, 0, 1, s, zero, k, &w), 0));
    memcpy(key, w->key, sizeof(w->key));
    wire_close(w);
}

Test(opening, a_key_is_of_the_secret_and_of_both_nonces)
{
    struct control_secret s = { .n = 32 }, other = { .n = 32, .bytes = { [31] = 1 } };
    uint8_t key[5][SHA256_BYTES];

    key_of(&s, 1, 2, key[0]);
    key_of(&s, 3, 2, key[1]);
    key_of(&s, 1, 3, key[2]);
    key_of(&s, 2, 1, key[3]);
    key_of(&other, 1, 2, key[4]);
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < a; b++)
            cr_expect(memcmp(key[a], key[b], SHA256_BYTES) != 0, "%d and %d", a, b);
    key_of(&s, 1, 2, key[1]);
    cr_expect(eq(int, memcmp(key[0], key[1], SHA256_BYTES), 0));
}
