/* Ten thousand wrong or replayed openings, and as many frames: nobody gets in, nothing grows, none
 * costs more than a moment, and a rank still joins. */
#include "tests/rank/town.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/rank/control_meet.h"

enum {
    OPENINGS = 10000,
    FRAMES = 10000,
    CPU_MOST_US = 2000
}; /* CPU: of both sides, for one of them */

/* Resident bytes. AddressSanitizer keeps freed memory for a while. */
#ifdef __SANITIZE_ADDRESS__
enum { GROWTH_MOST = 512 << 20 };
#else
enum { GROWTH_MOST = 16 << 20 };
#endif

static long resident(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long all = 0, pages = 0;

    if (!f || fscanf(f, "%ld %ld", &all, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Time that all threads of this process have computed. */
static int64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static int descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Gone at once, so that ten thousand connections do not use up the ports. */
static void cut(int fd)
{
    struct linger now = { .l_onoff = 1 };

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
}

/* ---- openings -------------------------------------------------------------------------------- */

struct opening {
    struct control_hello hello;
    uint8_t proof[SHA256_BYTES];
};
static_assert(sizeof(struct opening) == 128 + SHA256_BYTES, "as it is on the wire");

/* What a rank that knows the secret has once sent. */
static void record(struct town *t, struct opening *out)
{
    struct control_secret secret;
    struct control_hello theirs;
    int fd = knock(t->set[0].port);

    out->hello = (struct control_hello){
        .magic = CONTROL_MAGIC, .protocol = CONTROL_PROTOCOL, .world = 2, .rank = 1
    };
    if (secret_load(&t->set[1], &secret) < 0 ||
        random_bytes(out->hello.nonce, sizeof(out->hello.nonce)) < 0 ||
        send(fd, &out->hello, sizeof(out->hello), MSG_NOSIGNAL) != sizeof(out->hello) ||
        control_exactly(fd, &theirs, sizeof(theirs), clock_ns() + 5 * NS_PER_S, NULL) < 0 ||
        control_proof(&secret, 'k', &out->hello, &theirs, out->proof) < 0)
        abort();
    cut(fd);
}

static void flood(int rank, void *arg)
{
    struct town *t = arg;
    struct opening good, bad;
    uint64_t dice = 5;
    int64_t cpu;
    long before;
    int fds;

    if (rank == 0) {
        open_rank(0, t);
        return;
    }
    record(t, &good);
    before = resident();
    fds = descriptors();
    cpu = cpu_ns();
    for (int i = 0; i < OPENINGS; i++) {
        int fd = knock(t->set[0].port), kind = i % 4;
        size_t n = sizeof(bad), part;

        bad = good;    /* 0: replayed as it was, to another nonce of rank 0 */
        if (kind == 1) /* a bit of it is another */
            ((uint8_t *)&bad)[wires_random(&dice) % sizeof(bad)] ^=
                (uint8_t)(1 << wires_random(&dice) % 8);
        if (kind == 2) /* no rank at all */
            for (size_t k = 0; k < sizeof(bad); k++)
                ((uint8_t *)&bad)[k] = (uint8_t)wires_random(&dice);
        if (kind == 3) /* it stops in the middle */
            n = wires_random(&dice) % sizeof(bad);
        part = wires_random(&dice) % (n + 1);
        send(fd, &bad, part, MSG_NOSIGNAL);
        send(fd, (uint8_t *)&bad + part, n - part, MSG_NOSIGNAL);
        if (kind != 3) {
            uint8_t answer[sizeof(struct control_hello) + SHA256_BYTES];
            static const uint8_t refused[SHA256_BYTES];
            int r = control_exactly(fd, answer, sizeof(answer), clock_ns() + 10 * NS_PER_S, NULL);

            /* hung up at once, or a HELLO and then, in the place of a proof, zeros */
            t->fails[7] +=
                r == -ETIMEDOUT || (r == 0 && memcmp(answer + sizeof(struct control_hello), refused,
                                                     sizeof(refused)) != 0);
        }
        cut(fd);
    }
    t->fails[6] = resident() - before > GROWTH_MOST;
    t->fails[5] = descriptors() - fds;
    t->fails[4] = (int)((cpu_ns() - cpu) / OPENINGS / NS_PER_US);
    open_rank(1, t);
}

Test(flood, wrong_openings_let_nobody_in_and_a_rank_still_joins, .timeout = 100)
{
    static struct town t;

    town_open(&t, "tcp", 2);
    t.set[0].connect_timeout_ms = 90000;
    wires_run(2, flood, &t);
    cr_expect(eq(int, t.result[0], 0), "%s", t.log[0]);
    cr_expect(eq(int, t.result[1], 0), "%s", t.log[1]);
    cr_expect(eq(int, t.fails[7], 0), "openings that were not refused");
    cr_expect(eq(int, t.fails[6], 0), "memory has grown");
    cr_expect(t.fails[5] <= DOOR_GUESTS, "%d descriptors more", t.fails[5]);
    cr_expect(t.fails[4] <= CPU_MOST_US, "%d us of computing an opening", t.fails[4]);
    town_close(&t);
}

/* ---- frames ---------------------------------------------------------------------------------- */

static const uint8_t nonce_0[CONTROL_NONCE_BYTES] = { 1 }, nonce_k[CONTROL_NONCE_BYTES] = { 2 };
static const struct control_secret secret = { .n = 32,
                                              .bytes = "thirty-two bytes of a secret ..." };

static void pair(struct wire **w, int *raw, int me, int peer)
{
    int fd[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) < 0 ||
        wire_open(fd[0], me, peer, &secret, nonce_0, nonce_k, w) < 0)
        abort();
    *raw = fd[1];
}

/* The bytes of a frame that rank 1 sends to rank 0. */
static size_t frame_of(uint64_t counter, uint8_t *out, size_t cap)
{
    static struct control_body body;
    struct wire *w;
    ssize_t n;
    int raw;

    body.n = 40;
    memset(body.bytes, 7, 40);
    pair(&w, &raw, 1, 0);
    w->sent = counter;
    if (wire_send(w, CONTROL_BEAT, &body, 1000) < 0)
        abort();
    n = read(raw, out, cap);
    wire_close(w);
    close(raw);
    return (size_t)n;
}

Test(flood, wrong_frames_are_never_taken, .timeout = 60)
{
    uint8_t good[256], bad[256];
    size_t n = frame_of(0, good, sizeof(good));
    long before = resident();
    uint64_t dice = 9;
    int64_t cpu = cpu_ns();
    struct wire_frame f;
    struct wire *w;
    int raw;

    for (int i = 0; i < FRAMES; i++) {
        int kind = i % 3, r;
        size_t send_n = n;

        memcpy(bad, good, n);
        pair(&w, &raw, 0, 1);
        if (kind == 0) /* a bit is another */
            bad[wires_random(&dice) % n] ^= (uint8_t)(1 << wires_random(&dice) % 8);
        if (kind == 1) /* it comes again */
            cr_assert(write(raw, good, n) == (ssize_t)n && wire_take(w, &f) == 1);
        if (kind == 2) /* it stops in the middle */
            send_n = wires_random(&dice) % n;
        cr_assert(eq(int, (int)write(raw, bad, send_n), (int)send_n));
        close(raw);
        r = wire_take(w, &f);
        /* a length that has grown waits for more, which does not come */
        cr_expect(kind == 1   ? r == -EPROTO
                  : kind == 2 ? r == -ECONNRESET
                              : r == -EPROTO || r == -ECONNRESET || r == 0,
                  "frame %d of kind %d: %d", i, kind, r);
        wire_close(w);
    }
    cr_expect(resident() - before < GROWTH_MOST, "memory has grown");
    cpu = (cpu_ns() - cpu) / FRAMES / NS_PER_US;
    cr_expect(cpu <= CPU_MOST_US, "%d us of computing a frame", (int)cpu);
    /* and a frame of the other direction is none */
    pair(&w, &raw, 1, 0);
    cr_assert(eq(int, (int)write(raw, good, n), (int)n));
    cr_expect(eq(int, wire_take(w, &f), -EPROTO));
    wire_close(w);
    close(raw);
}
