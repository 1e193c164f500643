#include "tests/rank/town.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/control_meet.h"

const char agree_text[] = "context = 8192\ndepth = 5\nnumerics = bf16\nwindow_max = 16\n";

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

int bound(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        abort();
    return fd;
}

static int port_of(int fd)
{
    struct sockaddr_in a;
    socklen_t n = sizeof(a);

    if (getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        abort();
    return ntohs(a.sin_port);
}

void write_secret(char *path, const char *text, mode_t mode)
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

void town_open(struct town *t, const char *link, int world)
{
    int port;

    memset(t, 0, sizeof(*t));
    t->holder = bound(0);
    port = port_of(t->holder);
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
                                             .on_fail = note_fail,
                                             .on_fail_arg = &t->fails[r] };
    log_sink(keep_lines, t);
}

void open_rank(int rank, void *arg)
{
    struct town *t = arg;
    int64_t start = clock_ns();

    t->result[rank] = group_open(&t->set[rank], &t->group[rank]);
    t->ns[rank] = clock_ns() - start;
}

static void close_rank(int rank, void *arg)
{
    struct town *t = arg;

    group_close(t->group[rank]);
    t->group[rank] = NULL;
}

void town_close(struct town *t)
{
    wires_run(WIRES_MAX, close_rank, t);
    group_hub_close(t->hub);
    log_sink(NULL, NULL);
    close(t->holder);
    unlink(t->secret);
}

int wait_failed(struct group *g, int ms)
{
    int64_t until = clock_ns() + ms * NS_PER_MS;

    while (!group_failed(g) && clock_ns() < until)
        clock_sleep(NS_PER_MS);
    return group_failed(g);
}

int knock(int port)
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

int hung_up(int fd)
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

struct wire *prove(struct town *t, struct control_hello *mine)
{
    struct control_secret secret;
    struct control_hello theirs;
    uint8_t proof[SHA256_BYTES];
    struct wire *w;
    int fd = knock(t->set[0].port);

    if (secret_load(&t->set[1], &secret) < 0 || random_bytes(mine->nonce, sizeof(mine->nonce)) < 0)
        abort();
    if (send(fd, mine, sizeof(*mine), MSG_NOSIGNAL) != (ssize_t)sizeof(*mine) ||
        control_exactly(fd, &theirs, sizeof(theirs), clock_ns() + NS_PER_S * 5, NULL) < 0 ||
        control_proof(&secret, 'k', mine, &theirs, proof) < 0 ||
        send(fd, proof, sizeof(proof), MSG_NOSIGNAL) != (ssize_t)sizeof(proof) ||
        control_exactly(fd, proof, sizeof(proof), clock_ns() + NS_PER_S * 5, NULL) < 0 ||
        wire_open(fd, (int)mine->rank, 0, &secret, theirs.nonce, mine->nonce, &w) < 0)
        abort();
    return w;
}

struct wire *as_far_as_the_table(struct town *t, int rank, bool table)
{
    struct control_hello h = { .magic = CONTROL_MAGIC,
                               .protocol = CONTROL_PROTOCOL,
                               .world = (uint32_t)t->set[0].world,
                               .rank = (uint32_t)rank };
    struct body_agree a = { .version = "1.0", .text = agree_text };
    static struct control_body body;
    struct wire *w = prove(t, &h);
    struct wire_frame f;

    if (sha256_of(a.text, strlen(a.text), a.text_sha256) < 0 || body_agree_pack(&a, &body) < 0)
        abort();
    wire_send(w, CONTROL_AGREE, &body, 0);
    body_listen_pack(9, &body);
    wire_send(w, CONTROL_LISTEN, &body, 0);
    if (wire_expect(w, CONTROL_AGREE, clock_ns() + NS_PER_S * 5, NULL, &f) < 0 ||
        (table && wire_expect(w, CONTROL_TABLE, clock_ns() + NS_PER_S * 5, NULL, &f) < 0))
        abort();
    return w;
}

void put_raw(struct wire *w, uint32_t length, uint32_t kind, uint64_t counter)
{
    uint8_t b[64] = { 0 };
    struct control_frame_head h = { length, kind, counter };

    memcpy(b, &h, sizeof(h));
    if (send(w->fd, b, sizeof(h) + CONTROL_MAC_BYTES, MSG_NOSIGNAL) < 0)
        abort();
}
