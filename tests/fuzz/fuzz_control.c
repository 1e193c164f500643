/* fuzz_control - what comes through a control connection, of any bytes: HELLO, a stream of frames,
 * and the body of a frame whose sender knows the secret. Refused, or a message that packs to one
 * that reads the same.
 *
 * Input: a byte that chooses, then the bytes.
 */
#include "tests/fuzz/fuzz.h"

#include "src/base/log.h"
#include "src/rank/control_body.h"
#include "src/rank/control_meet.h"
#include "src/rank/control_wire.h"
#include "src/rank/group.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { IN_HELLO, IN_STREAM, IN_AGREE, IN_LISTEN, IN_TABLE, IN_BEAT, IN_REASON, IN_BARRIER, INS };

static struct control_body body, body2;
static const struct control_secret secret = { .n = 32,
                                              .bytes = "a secret that everybody knows..." };

static void ignore(void *arg, enum log_level level, const char *line)
{
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_sink(ignore, NULL);
    return 0;
}

static void must(int holds)
{
    if (!holds)
        abort();
}

/* ---- seeds ----------------------------------------------------------------------------------- */

/* The stream that rank 1 sends to rank 0: two heartbeats and a stop. */
static size_t stream_of(uint8_t *out)
{
    static const uint8_t nonce[CONTROL_NONCE_BYTES] = { 7 };
    struct body_beat beat = { .state = 1, .uptime_ms = 12345, .free_bytes = 1ULL << 40 };
    struct wire *w;
    int fd[2];
    ssize_t n;

    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
    must(wire_open(fd[0], 1, 0, &secret, nonce, nonce, &w) == 0);
    must(body_beat_pack(&beat, &body) == 0);
    must(wire_send(w, CONTROL_BEAT, &body, 0) == 0 && wire_send(w, CONTROL_BEAT, &body, 0) == 0 &&
         wire_send(w, CONTROL_STOP, NULL, 0) == 0);
    n = read(fd[1], out, 4096);
    must(n > 0);
    close(fd[1]);
    wire_close(w);
    return (size_t)n;
}

size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX])
{
    struct control_hello h = {
        .magic = CONTROL_MAGIC, .protocol = CONTROL_PROTOCOL, .world = 2, .rank = 1
    };
    struct body_agree agree = { .version = "0.1.0", .text = "context = 8192\nslots = 4\n" };
    struct body_table table = { .world = 3, .port = { 18515, 40001, 40002 } };
    struct body_beat beat = {
        .at = { .phase = 4, .order = 4, .round = 812, .begun = 9, .ended = 8, .posted = 70 }
    };
    struct body_reason reason = { .rank = 1, .error = -12, .text = "cannot start" };
    struct body_barrier mark = { .number = 5, .marked = true, .mark = { 1, 2, 3 } };

    body.n = 0;
    out[0] = (uint8_t)i;
    switch (i) {
    case IN_HELLO:
        memcpy(out + 1, &h, sizeof(h));
        return 1 + sizeof(h);
    case IN_STREAM:
        return 1 + stream_of(out + 1);
    case IN_AGREE:
        must(body_agree_pack(&agree, &body) == 0);
        break;
    case IN_LISTEN:
        must(body_listen_pack(40000, &body) == 0);
        break;
    case IN_TABLE:
        must(body_table_pack(&table, &body) == 0);
        break;
    case IN_BEAT:
        must(body_beat_pack(&beat, &body) == 0);
        break;
    case IN_REASON:
        must(body_reason_pack(&reason, &body) == 0);
        break;
    case IN_BARRIER:
        must(body_barrier_pack(&mark, &body) == 0);
        break;
    default:
        return 0;
    }
    memcpy(out + 1, body.bytes, body.n);
    return 1 + body.n;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void hello(const uint8_t *data, size_t n)
{
    struct group_settings s = { .world = 2 };
    struct control_hello h;
    char why[GROUP_REASON_BYTES];

    if (n < sizeof(h))
        return;
    memcpy(&h, data, sizeof(h));
    for (s.rank = 0; s.rank < 2; s.rank++)
        if (meet_compare(&s, &h, why, sizeof(why)) == 0)
            must(h.world == 2 && h.rank == (s.rank == 0));
}

/* Only what was sent with the key is a frame: a change of any byte ends the stream there. */
static void stream(const uint8_t *data, size_t n)
{
    static const uint8_t nonce[CONTROL_NONCE_BYTES] = { 7 };
    struct wire_frame f;
    struct wire *w;
    int fd[2], r;

    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
    must(wire_open(fd[0], 0, 1, &secret, nonce, nonce, &w) == 0);
    if (send(fd[1], data, n, MSG_DONTWAIT) < 0)
        n = 0;
    shutdown(fd[1], SHUT_WR);
    while ((r = wire_take(w, &f)) == 1)
        must(f.n <= CONTROL_BODY_MAX && f.kind > 0 && f.kind < CONTROL_KINDS && f.n <= n);
    must(r == -ECONNRESET || r == -EPROTO);
    close(fd[1]);
    wire_close(w);
}

static int same_body(void)
{
    return body.n == body2.n && memcmp(body.bytes, body2.bytes, body.n) == 0;
}

static void agree(const uint8_t *data, size_t n)
{
    struct body_agree a, b;

    if (body_agree_unpack(data, n, &a) < 0)
        return;
    must(body_agree_pack(&a, &body) == 0 && body_agree_unpack(body.bytes, body.n, &b) == 0 &&
         body_agree_pack(&b, &body2) == 0 && same_body());
    must(group_agree(&a, &b, 1) == 0);
    b.version[0] = b.version[0] == 'x' ? 'y' : 'x';
    must(group_agree(&a, &b, 1) < 0);
    free((char *)a.text);
    free((char *)b.text);
}

static void others(int what, const uint8_t *data, size_t n)
{
    struct body_table t, t2;
    struct body_beat b, b2;
    struct body_reason r, r2;
    struct body_barrier v, v2;
    uint16_t port, port2;

    if (what == IN_LISTEN && body_listen_unpack(data, n, &port) == 0)
        must(body_listen_pack(port, &body) == 0 &&
             body_listen_unpack(body.bytes, body.n, &port2) == 0 && port == port2 && port > 0);
    if (what == IN_TABLE && body_table_unpack(data, n, &t) == 0)
        must(t.world >= 0 && t.world <= GROUP_WORLD_MAX && body_table_pack(&t, &body) == 0 &&
             body_table_unpack(body.bytes, body.n, &t2) == 0 && t2.world == t.world &&
             memcmp(t.nonce, t2.nonce, sizeof(t.nonce)) == 0);
    if (what == IN_BEAT && body_beat_unpack(data, n, &b) == 0)
        must(body_beat_pack(&b, &body) == 0 && body_beat_unpack(body.bytes, body.n, &b2) == 0 &&
             body_beat_pack(&b2, &body2) == 0 && same_body());
    if (what == IN_REASON && body_reason_unpack(data, n, &r) == 0)
        must(r.rank >= 0 && r.rank < GROUP_WORLD_MAX && r.error < 0 &&
             body_reason_pack(&r, &body) == 0 && body_reason_unpack(body.bytes, body.n, &r2) == 0 &&
             strcmp(r.text, r2.text) == 0);
    if (what == IN_BARRIER && body_barrier_unpack(data, n, &v) == 0)
        must(body_barrier_pack(&v, &body) == 0 &&
             body_barrier_unpack(body.bytes, body.n, &v2) == 0 && v.number == v2.number &&
             v.marked == v2.marked && memcmp(v.mark, v2.mark, sizeof(v.mark)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int what;

    if (size < 1)
        return 0;
    what = data[0] % INS;
    data++;
    size--;
    if (what == IN_HELLO)
        hello(data, size);
    else if (what == IN_STREAM)
        stream(data, size);
    else if (what == IN_AGREE)
        agree(data, size);
    else
        others(what, data, size);
    return 0;
}
