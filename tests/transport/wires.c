/* wires - ranks as threads over real links. */
#include "tests/transport/wires.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/log.h"
#include "src/transport/link_rdma.h"

enum { MEET_MS = 5000 };

const char *wires_kinds[] = { "loop", "tcp", "shm", NULL, NULL, NULL };

/* Before any test looks: a process per test, and all of them see the same machine. A test runner
 * takes no arguments of ours, so WIRES=KIND in the environment leaves that one kind: an emulated
 * machine is there for rdma alone. */
__attribute__((constructor)) static void find_kinds(void)
{
    struct rdma_seen seen[8];
    const char *only = getenv("WIRES");
    int n = rdma_survey(seen, 8);

    for (int i = 0; i < n; i++)
        if (seen[i].active && seen[i].gid_index >= 0)
            wires_kinds[3] = "rdma", wires_kinds[4] = "rdma imm";
    for (int k = 0; only && wires_kinds[k]; k++)
        if (strcmp(only, wires_kinds[k]) == 0)
            wires_kinds[0] = wires_kinds[k], wires_kinds[1] = NULL;
}

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        abort();
    }
}

void wires_socketpair(int tcp, int fd[2])
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof(a);
    int l;

    if (!tcp) {
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0, "socketpair");
        return;
    }
    l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(l >= 0 && bind(l, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(l, 1) == 0, "listen");
    must(getsockname(l, (struct sockaddr *)&a, &n) == 0, "getsockname");
    fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd[0] >= 0 && connect(fd[0], (struct sockaddr *)&a, n) == 0, "connect");
    fd[1] = accept(l, NULL, NULL);
    must(fd[1] >= 0, "accept");
    close(l);
}

void wires_open(struct wires *w, const char *kind, int world, int channel)
{
    *w = (struct wires){ .world = world };
    for (int a = 0; a < world; a++) {
        for (int b = a + 1; b < world; b++) {
            int fd[2], tcp = strcmp(kind, "tcp") == 0, rdma = strncmp(kind, "rdma", 4) == 0;

            if (strcmp(kind, "loop") == 0) {
                must(link_loop_open(a, b, channel, MEET_MS, &w->link[a][b], &w->link[b][a]) == 0,
                     kind);
                continue;
            }
            wires_socketpair(tcp, fd);
            if (rdma) {
                struct link_rdma_settings s = { .host = "",
                                                .stripe_min = WIRES_STRIPE_MIN,
                                                .imm = strcmp(kind, "rdma imm") == 0 };

                must(link_rdma_open(fd[0], a, b, channel, MEET_MS, &s, &w->link[a][b]) == 0, kind);
                must(link_rdma_open(fd[1], b, a, channel, MEET_MS, &s, &w->link[b][a]) == 0, kind);
            } else if (tcp) {
                must(link_tcp_open(fd[0], a, b, channel, MEET_MS, &w->link[a][b]) == 0, kind);
                must(link_tcp_open(fd[1], b, a, channel, MEET_MS, &w->link[b][a]) == 0, kind);
            } else {
                must(link_shm_open(fd[0], a, b, channel, MEET_MS, &w->link[a][b]) == 0, kind);
                must(link_shm_open(fd[1], b, a, channel, MEET_MS, &w->link[b][a]) == 0, kind);
            }
        }
    }
}

void wires_close(struct wires *w)
{
    for (int a = 0; a < w->world; a++)
        for (int b = 0; b < w->world; b++)
            if (w->link[a][b])
                w->link[a][b]->ops->close(w->link[a][b]);
    *w = (struct wires){ 0 };
}

struct runner {
    int rank;
    void (*fn)(int rank, void *arg);
    void *arg;
};

static void *run(void *p)
{
    struct runner *r = p;

    log_rank(r->rank);
    r->fn(r->rank, r->arg);
    return NULL;
}

void wires_run(int world, void (*fn)(int rank, void *arg), void *arg)
{
    pthread_t t[WIRES_MAX];
    struct runner r[WIRES_MAX];

    for (int i = 0; i < world; i++) {
        r[i] = (struct runner){ i, fn, arg };
        must(pthread_create(&t[i], NULL, run, &r[i]) == 0, "pthread_create");
    }
    for (int i = 0; i < world; i++)
        pthread_join(t[i], NULL);
}

uint64_t wires_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
