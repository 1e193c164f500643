/* control - from nothing to a complete world, over TCP.
 *
 *   rank 0                                   rank k
 *   listen                                   listen for data, connect (again and again)
 *   HELLO, PROOF  <------------------------> HELLO, PROOF
 *   AGREE         <------------------------> AGREE           both compare, both refuse
 *   (one after the other until all are here)
 *   stop listening             <------------ LISTEN          where its data port is
 *   TABLE         ------------------------->                 everybody's ports
 *   data sockets  <------------------------> data sockets    every pair, see control_mesh.c
 *                              <------------ READY
 *   READY         ------------------------->                 from here on it is control_life.c's
 */
#include "src/rank/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/control_meet.h"
#include "src/rank/control_tcp.h"
#include "src/transport/link_rdma.h"

enum { JOIN_MS = 5000, READY_MS = 15000, DOOR_LOOK_MS = 50 };

/* One open in progress. */
struct boot {
    const struct group_settings *s;
    struct control *c;
    struct control_secret secret;
    struct control_body body; /* scratch: too large for the stack of every function */
    struct door data;         /* where data sockets of higher ranks come in */
    uint16_t data_port;
    struct body_table table;
    int listener; /* of the settings, until the door has it */
};

int control_lost(const struct control *c)
{
    for (int p = 0; p < c->base.world; p++)
        if (c->peer[p].wire && wire_lost(c->peer[p].wire))
            return p;
    return -1;
}

static int boot_send(struct boot *b, struct wire *w, enum control_kind kind)
{
    int r = wire_send(w, kind, &b->body, JOIN_MS);

    return r < 0 ? fail(r, "control: rank %d does not take our frames", w->peer) : 0;
}

static void refuse(struct boot *b, struct wire *w, const char *why)
{
    struct body_reason reason = { .rank = b->s->rank };

    snprintf(reason.text, sizeof(reason.text), "%s", why);
    if (body_reason_pack(&reason, &b->body) == 0)
        wire_send(w, CONTROL_REFUSE, &b->body, 0);
}

/* Exchange what must agree. Both sides send first, so that both can name the difference. */
static int agree(struct boot *b, struct wire *w)
{
    const struct group_settings *s = b->s;
    int64_t until = clock_ns() + JOIN_MS * NS_PER_MS;
    struct body_agree mine = { .text = s->agree }, theirs;
    struct wire_frame f;
    int r;

    snprintf(mine.version, sizeof(mine.version), "%s", s->version);
    r = sha256_of(s->agree, strlen(s->agree), mine.text_sha256);
    if (r == 0)
        r = body_agree_pack(&mine, &b->body);
    if (r == 0)
        r = boot_send(b, w, CONTROL_AGREE);
    if (r == 0)
        r = wire_expect(w, CONTROL_AGREE, until, s->cancel, &f);
    if (r == 0)
        r = body_agree_unpack(f.body, f.n, &theirs);
    if (r < 0)
        return r;
    r = group_agree(&mine, &theirs, w->peer);
    free((char *)theirs.text);
    return r;
}

/* A rank has proved the secret: compare its numbers, agree, learn its data port. -EINVAL ends the
 * group for both; a rank that comes a second time, or leaves while it joins, is only turned away:
 * positive. */
static int admit(struct boot *b, struct wire *w, const struct control_hello *h)
{
    char why[GROUP_REASON_BYTES];
    struct wire_frame f;
    int r = meet_compare(b->s, h, why, sizeof(why));

    if (r < 0) {
        refuse(b, w, why);
        return r;
    }
    if (b->c->peer[h->rank].wire) {
        snprintf(why, sizeof(why), "rank %u is taken", h->rank);
        log_warn("control: %s: the second one is refused", why);
        refuse(b, w, why);
        return 1;
    }
    r = agree(b, w);
    if (r == 0)
        r = wire_expect(w, CONTROL_LISTEN, clock_ns() + JOIN_MS * NS_PER_MS, b->s->cancel, &f);
    if (r == 0)
        r = body_listen_unpack(f.body, f.n, &b->table.port[h->rank]);
    return r == -ECONNRESET || r == -ETIMEDOUT ? 1 : r;
}

/* A rank that left before the world was complete may come again. */
static int drop_lost(struct control *c)
{
    int p, n = 0;

    while ((p = control_lost(c)) >= 0) {
        log_warn("control: rank %d left before the world was complete", p);
        wire_close(c->peer[p].wire);
        c->peer[p].wire = NULL;
        n++;
    }
    return n;
}

static int missing(const struct boot *b, char *text, size_t cap)
{
    int n = 0, at = 0;

    text[0] = 0;
    for (int p = 1; p < b->s->world; p++)
        if (!b->c->peer[p].wire && at < (int)cap)
            at += snprintf(text + at, cap - (size_t)at, "%s%d", n++ ? ", " : "", p);
    return n;
}

static int gather_world(struct boot *b, struct door *door)
{
    int64_t until = clock_ns() + b->s->connect_timeout_ms * NS_PER_MS;
    int left = b->s->world - 1;

    while (left > 0) {
        struct door_guest *g;
        struct control_hello h;
        struct wire *w;
        char who[64];
        int r = door_wait(door, DOOR_LOOK_MS, &g);

        if (r == 1)
            r = meet_guest(b->s, &b->secret, door, g, &h, &w);
        if (r < 0)
            return r;
        if (r == 1) {
            r = admit(b, w, &h);
            if (r != 0)
                wire_close(w);
            if (r < 0)
                return r;
            if (r == 0) {
                b->c->peer[h.rank].wire = w;
                left--;
            }
        }
        left += drop_lost(b->c);
        missing(b, who, sizeof(who));
        if (left > 0 && control_cancelled(b->s->cancel, who))
            return -ECANCELED;
        if (left > 0 && clock_ns() >= until) {
            return fail(-ETIMEDOUT, "control: rank %s did not come in %d ms", who,
                        b->s->connect_timeout_ms);
        }
    }
    return 0;
}

/* Send a frame to every follower. */
static int tell_all(struct boot *b, enum control_kind kind)
{
    for (int p = 1; p < b->s->world; p++) {
        int r = boot_send(b, b->c->peer[p].wire, kind);

        if (r < 0)
            return r;
    }
    return 0;
}

static int complete_world(struct boot *b)
{
    int64_t until = clock_ns() + READY_MS * NS_PER_MS;
    struct wire_frame f;
    int r = random_bytes(b->table.nonce, sizeof(b->table.nonce));

    b->table.world = b->s->world;
    b->table.port[0] = b->data_port;
    if (r == 0)
        r = body_table_pack(&b->table, &b->body);
    if (r == 0)
        r = tell_all(b, CONTROL_TABLE);
    if (r == 0)
        r = control_mesh(b->c, b->s, &b->secret, &b->data, &b->table);
    for (int p = 1; p < b->s->world && r == 0; p++)
        r = wire_expect(b->c->peer[p].wire, CONTROL_READY, until, b->s->cancel, &f);
    b->body.n = 0;
    return r < 0 ? r : tell_all(b, CONTROL_READY);
}

static int boot_leader(struct boot *b)
{
    struct door door;
    int fd = b->s->listener, r = fd > 0 ? 0 : group_tcp_listen(b->s, &fd);

    if (r < 0)
        return r;
    b->listener = 0;
    door_init("control", fd, &door);
    r = gather_world(b, &door);
    door_close(&door); /* a complete world takes nobody in, and a broken one neither */
    if (r == 0)
        r = complete_world(b);
    if (r == -EINVAL)
        for (int p = 1; p < b->s->world; p++)
            if (b->c->peer[p].wire)
                refuse(b, b->c->peer[p].wire, "another rank was refused; see the log of rank 0");
    return r;
}

static int boot_follower(struct boot *b)
{
    int64_t until = clock_ns() + b->s->connect_timeout_ms * NS_PER_MS;
    struct control_hello leader;
    char why[GROUP_REASON_BYTES];
    struct wire_frame f;
    struct wire *w;
    int r = meet_leader(b->s, &b->secret, &leader, &w);

    if (r < 0)
        return r;
    b->c->peer[0].wire = w;
    r = meet_compare(b->s, &leader, why, sizeof(why));
    if (r == 0)
        r = agree(b, w);
    if (r == 0)
        r = body_listen_pack(b->data_port, &b->body);
    if (r == 0)
        r = boot_send(b, w, CONTROL_LISTEN);
    if (r == 0)
        r = wire_expect(w, CONTROL_TABLE, until + JOIN_MS * NS_PER_MS, b->s->cancel, &f);
    if (r == 0)
        r = body_table_unpack(f.body, f.n, &b->table);
    if (r == 0 && b->table.world != b->s->world)
        r = fail(-EPROTO, "control: table of %d ranks in a world of %d", b->table.world,
                 b->s->world);
    if (r == 0)
        r = control_mesh(b->c, b->s, &b->secret, &b->data, &b->table);
    b->body.n = 0;
    if (r == 0)
        r = boot_send(b, w, CONTROL_READY);
    if (r == 0)
        r = wire_expect(w, CONTROL_READY, clock_ns() + READY_MS * NS_PER_MS, b->s->cancel, &f);
    return r;
}

static int settings_check(const struct group_settings *s)
{
    const struct link_ops *l;
    int r = group_settings_check(s);

    if (r < 0)
        return r;
    if (s->port < 1 || s->port > UINT16_MAX)
        return fail(-EINVAL, "control: port %d", s->port);
    if (s->heartbeat_ms < 1 || s->peer_timeout_ms < 2 * s->heartbeat_ms)
        return fail(-EINVAL,
                    "control: heartbeat_ms %d, peer_timeout_ms %d: want at least two heartbeats",
                    s->heartbeat_ms, s->peer_timeout_ms);
    if (strlen(s->version) >= CONTROL_VERSION_BYTES)
        return fail(-EINVAL, "control: version %s is too long", s->version);
    return strcmp(s->link, "rdma") == 0 ? link_rdma_ready() : link_find(s->link, &l);
}

int group_tcp_listen(const struct group_settings *s, int *fd)
{
    uint16_t port;
    int r = settings_check(s);

    return r < 0 ? r : door_listen("control", control_host(s, 0), s->port, fd, &port);
}

int group_tcp_open(const struct group_settings *s, struct group **out)
{
    struct boot *b;
    int fd, r = settings_check(s);

    if (r < 0)
        goto unlisten;
    b = calloc(1, sizeof(*b));
    if (!b) {
        r = fail(-ENOMEM, "control: no memory");
        goto unlisten;
    }
    b->s = s;
    b->listener = s->listener;
    b->c = calloc(1, sizeof(*b->c));
    if (!b->c) {
        r = fail(-ENOMEM, "control: no memory");
        goto free_boot;
    }
    group_init(&b->c->base, &control_group_ops, s);
    b->c->heartbeat_ms = s->heartbeat_ms;
    b->c->peer_timeout_ms = s->peer_timeout_ms;
    b->c->stall_ms = s->stall_ms;
    b->c->wake = -1;
    r = secret_load(s, &b->secret);
    if (r < 0)
        goto free_control;
    r = door_listen("data", control_host(s, s->rank), 0, &fd, &b->data_port);
    if (r < 0)
        goto free_control;
    door_init("data", fd, &b->data);
    r = s->rank == 0 ? boot_leader(b) : boot_follower(b);
    door_close(&b->data);
    if (r == 0)
        r = control_start(b->c);
    if (r == 0) {
        log_info("control: world of %d is complete over %s", s->world, s->link);
        *out = &b->c->base;
        goto free_boot;
    }

free_control:
    control_free(b->c);
free_boot:
    group_unlisten(b->listener);
    explicit_bzero(&b->secret, sizeof(b->secret));
    free(b);
    return r;

unlisten:
    group_unlisten(s->listener);
    return r;
}
