/* control_meet - HELLO and PROOF. Nothing is allocated and nothing is believed before the proof. */
#include "src/rank/control_meet.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/rank/control.h"

enum {
    SECRET_MIN = 32,
    STAGE_PROOF = 1,
    RETRY_MS = 50,
    CONNECT_MS = 1000,
    LOOK_MS = 20,
    WHY_BYTES = 96
};

#define NO_RANK "is not a tandem rank"

const char *control_host(const struct group_settings *s, int rank)
{
    return s->hosts ? s->hosts[rank] : "127.0.0.1";
}

static int loopback_only(const struct group_settings *s)
{
    for (int r = 0; r < s->world; r++) {
        struct door_address at[DOOR_ADDRESSES];
        int n = door_addresses(control_host(s, r), 1, at);

        if (n < 0)
            return n;
        for (int i = 0; i < n; i++)
            if (!door_loopback(&at[i].a))
                return fail(-EINVAL, "control: host %s needs a secret", control_host(s, r));
    }
    return 0;
}

int secret_load(const struct group_settings *s, struct control_secret *out)
{
    struct stat st;
    char *text;
    size_t n;
    int r;

    out->n = 0;
    if (s->no_secret)
        return loopback_only(s);
    if (!s->secret || !s->secret[0])
        return fail(-EINVAL,
                    "control: link %s needs a secret: a file of at least %d bytes, mode 0600",
                    s->link, SECRET_MIN);
    r = file_read(s->secret, CONTROL_SECRET_MAX, &text, &n);
    if (r < 0) /* what is there and can be no secret is a wrong setting, whatever it is */
        return r == -ENOENT || r == -EACCES || r == -ENOMEM || r == -EMFILE ? r : -EINVAL;
    if (stat(s->secret, &st) == 0 && (st.st_mode & 077) != 0)
        r = fail(-EACCES, "control: secret %s has mode %04o, want 0600", s->secret,
                 st.st_mode & 07777);
    else if (n < SECRET_MIN)
        r = fail(-EINVAL, "control: secret %s has %zu bytes, want at least %d", s->secret, n,
                 SECRET_MIN);
    else
        memcpy(out->bytes, text, out->n = n);
    explicit_bzero(text, n);
    free(text);
    return r;
}

static int hello_make(const struct group_settings *s, struct control_hello *out)
{
    *out = (struct control_hello){ .magic = CONTROL_MAGIC,
                                   .protocol = CONTROL_PROTOCOL,
                                   .world = (uint32_t)s->world,
                                   .rank = (uint32_t)s->rank,
                                   .role = CONTROL_ROLE_RANK };
    return random_bytes(out->nonce, sizeof(out->nonce));
}

int meet_compare(const struct group_settings *s, const struct control_hello *theirs, char *why,
                 size_t cap)
{
    if (theirs->protocol != CONTROL_PROTOCOL)
        snprintf(why, cap,
                 "rank %u speaks protocol %u, this build %d; install the same build on both",
                 theirs->rank, theirs->protocol, CONTROL_PROTOCOL);
    else if (theirs->world != (uint32_t)s->world && s->rank == 0)
        snprintf(why, cap, "rank %u of %u wants to join a world of %d", theirs->rank, theirs->world,
                 s->world);
    else if (theirs->world != (uint32_t)s->world)
        snprintf(why, cap, "rank %d of %d wants to join a world of %u", s->rank, s->world,
                 theirs->world);
    else if (s->rank == 0 && (theirs->rank == 0 || theirs->rank >= theirs->world))
        snprintf(why, cap, "rank %u of %u wants to join rank 0", theirs->rank, theirs->world);
    else if (s->rank != 0 && theirs->rank != 0)
        snprintf(why, cap, "rank %u answers in the place of rank 0", theirs->rank);
    else
        return 0;
    return fail(-EINVAL, "control: %s", why);
}

/* Answer a HELLO with ours. */
static int answer_hello(const struct group_settings *s, struct door *d, struct door_guest *g)
{
    int r;

    memcpy(&g->theirs, g->buf, sizeof(g->theirs));
    if (g->theirs.role != CONTROL_ROLE_RANK) {
        door_say(d, g, "a data socket at the control port");
        door_dismiss(g);
        return 0;
    }
    r = hello_make(s, &g->mine);
    if (r < 0)
        return r;
    /* the first bytes on this socket: they fit its buffer */
    if (send(g->fd, &g->mine, sizeof(g->mine), MSG_DONTWAIT | MSG_NOSIGNAL) !=
        (ssize_t)sizeof(g->mine))
        door_dismiss(g);
    else
        door_more(g, STAGE_PROOF, SHA256_BYTES);
    return 0;
}

int meet_guest(const struct group_settings *s, const struct control_secret *secret, struct door *d,
               struct door_guest *g, struct control_hello *theirs, struct wire **out)
{
    uint8_t want[SHA256_BYTES], proof[SHA256_BYTES] = { 0 };
    int right, r, fd;

    if (g->stage != STAGE_PROOF)
        return answer_hello(s, d, g);
    r = control_proof(secret, 'k', &g->theirs, &g->mine, want);
    if (r < 0)
        return r;
    right = bytes_equal(want, g->buf, sizeof(want));
    if (!right)
        door_say(d, g, "proof does not match the secret");
    else
        r = control_proof(secret, '0', &g->mine, &g->theirs, proof);
    if (r < 0)
        return r;
    /* zeros tell the peer that it is refused, and nothing else */
    if (send(g->fd, proof, sizeof(proof), MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof(proof) ||
        !right) {
        door_dismiss(g);
        return 0;
    }
    *theirs = g->theirs;
    fd = door_keep(g);
    r = wire_open(fd, 0, (int)theirs->rank, secret, g->mine.nonce, theirs->nonce, out);
    if (r < 0) {
        close(fd);
        return r;
    }
    return 1;
}

static bool called_off(const atomic_int *cancel)
{
    return cancel && atomic_load(cancel) != CANCEL_NOT;
}

/* Until a connection that was begun has come about, or not. */
static int connected(int fd, int wait_ms, const atomic_int *cancel)
{
    int64_t until = clock_ns() + wait_ms * NS_PER_MS;
    socklen_t size = sizeof(int);
    int err = 0;

    while (poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1,
                wait_ms < LOOK_MS ? wait_ms : LOOK_MS) <= 0) {
        if (called_off(cancel))
            return -ECANCELED;
        if (clock_ns() >= until)
            return -ETIMEDOUT;
    }
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size);
    return -err;
}

int control_connect(const struct door_address *to, int wait_ms, const atomic_int *cancel, int *out)
{
    int fd = socket(to->a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, r = 0;

    if (fd < 0)
        return -errno;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(fd, (const struct sockaddr *)&to->a, to->n) < 0)
        r = errno == EINPROGRESS ? connected(fd, wait_ms, cancel) : -errno;
    if (r < 0) {
        close(fd);
        return r;
    }
    *out = fd;
    return 0;
}

int control_exactly(int fd, void *out, size_t n, int64_t until_ns, const atomic_int *cancel)
{
    size_t have = 0;

    while (have < n) {
        ssize_t k = recv(fd, (uint8_t *)out + have, n - have, MSG_DONTWAIT);

        if (k > 0) {
            have += (size_t)k;
            continue;
        }
        if (k == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return -ECONNRESET;
        if (called_off(cancel))
            return -ECANCELED;
        if (clock_ns() >= until_ns)
            return -ETIMEDOUT;
        poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, LOOK_MS);
    }
    return 0;
}

static int no_answer(int r, char why[WHY_BYTES])
{
    /* of a stranger that an earlier try has met, the last one with its little time knows less */
    if (r != -ETIMEDOUT)
        snprintf(why, WHY_BYTES, "closed the connection");
    else if (strncmp(why, NO_RANK, strlen(NO_RANK)) != 0)
        snprintf(why, WHY_BYTES, "did not answer in time");
    return -EAGAIN;
}

static int no_rank(const uint8_t *first, char why[WHY_BYTES])
{
    snprintf(why, WHY_BYTES, NO_RANK " (first bytes %02x%02x%02x%02x)", first[0], first[1],
             first[2], first[3]);
    return -EAGAIN;
}

/* HELLO and PROOF over a fresh connection until `until`. -EAGAIN: whoever answered is no rank 0 of
 * ours, why says what it is. */
static int try_leader(const struct group_settings *s, const struct control_secret *secret, int fd,
                      int64_t until, struct control_hello *theirs, struct wire **out,
                      char why[WHY_BYTES])
{
    uint8_t proof[SHA256_BYTES], want[SHA256_BYTES];
    struct control_hello mine;
    int r = hello_make(s, &mine);

    if (r < 0)
        return r;
    if (send(fd, &mine, sizeof(mine), MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof(mine))
        return no_answer(-ECONNRESET, why);
    /* a stranger's first bytes tell; it may never send as many as a rank */
    r = control_exactly(fd, theirs, sizeof(theirs->magic), until, s->cancel);
    if (r == 0 && theirs->magic != CONTROL_MAGIC)
        return no_rank((const uint8_t *)theirs, why);
    if (r == 0)
        r = control_exactly(fd, (uint8_t *)theirs + sizeof(theirs->magic),
                            sizeof(*theirs) - sizeof(theirs->magic), until, s->cancel);
    if (r < 0)
        return no_answer(r, why);
    if (theirs->role != CONTROL_ROLE_RANK)
        return no_rank((const uint8_t *)theirs, why);
    /* connecting to a free local port again and again can end at the own socket */
    if (memcmp(theirs->nonce, mine.nonce, sizeof(mine.nonce)) == 0)
        return -EAGAIN;
    r = control_proof(secret, 'k', &mine, theirs, proof);
    if (r == 0)
        r = control_proof(secret, '0', theirs, &mine, want);
    if (r < 0)
        return r;
    if (send(fd, proof, sizeof(proof), MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof(proof))
        return no_answer(-ECONNRESET, why);
    r = control_exactly(fd, proof, sizeof(proof), until, s->cancel);
    if (r < 0)
        return no_answer(r, why);
    if (!bytes_equal(proof, want, sizeof(want)))
        return fail(-EACCES, "control: rank 0 at %s and this rank do not know the same secret",
                    control_host(s, 0));
    return wire_open(fd, s->rank, 0, secret, theirs->nonce, mine.nonce, out);
}

int meet_leader(const struct group_settings *s, const struct control_secret *secret,
                struct control_hello *theirs, struct wire **out)
{
    int64_t start = clock_ns(), until = start + s->connect_timeout_ms * NS_PER_MS, said = start;
    char why[WHY_BYTES] = "did not answer in time";
    struct door_address at[DOOR_ADDRESSES];
    int n = door_addresses(control_host(s, 0), s->port, at), fd, r;

    if (n < 0)
        return n;
    for (int i = 0;; i = (i + 1) % n) {
        int64_t now = clock_ns(), left = until - now > 0 ? until - now : 0;
        int64_t heard = DOOR_DEADLINE_MS * NS_PER_MS;

        r = control_connect(&at[i],
                            left < CONNECT_MS * NS_PER_MS ? (int)(left / NS_PER_MS) : CONNECT_MS,
                            s->cancel, &fd);
        if (r == 0) {
            r = try_leader(s, secret, fd, now + (left < heard ? left : heard), theirs, out, why);
            if (r == 0)
                return 0;
            close(fd);
            if (r != -EAGAIN)
                return r;
        } else if (r == -EMFILE || r == -ENFILE || r == -ENOMEM) {
            return fail(r, "control: socket: %s", strerror(-r));
        } else {
            snprintf(why, sizeof(why), "%s",
                     r == -ETIMEDOUT ? "did not answer in time" : strerror(-r));
        }
        if (control_cancelled(s->cancel, "0"))
            return -ECANCELED;
        if (clock_ns() >= until)
            return fail(-ETIMEDOUT, "control: no rank 0 in %d ms: %s port %d: %s",
                        s->connect_timeout_ms, control_host(s, 0), s->port, why);
        if (clock_ns() - said > 5 * NS_PER_S) {
            said = clock_ns();
            log_info("control: waiting for rank 0 at %s port %d: %s", control_host(s, 0), s->port,
                     why);
        }
        clock_sleep(RETRY_MS * NS_PER_MS);
    }
}
