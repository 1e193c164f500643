/* control_mesh - data sockets between ranks.
 *
 * The higher rank connects and shows the token of that pair and channel, which only the holders of
 * the secret can make and which rank 0's nonce makes new for every group; the lower rank answers
 * with its own. The kernel completes a connect before anybody accepts, so all ranks may connect
 * first and accept afterwards.
 */
#include "src/rank/control_tcp.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/config.h"
#include "src/base/log.h"
#include "src/rank/control_meet.h"
#include "src/transport/link_rdma.h"

enum { MESH_MS = 10000, MESH_LOOK_MS = 20 };

static int open_link(struct control *c, const struct group_settings *s, int fd, int peer,
                     int channel)
{
    struct link **at = &c->base.link[peer][channel];
    bool spare = channel == GROUP_SPARE, plan = spare || channel == GROUP_PLAN;

    if (strcmp(s->link, "shm") == 0)
        return link_shm_open(fd, s->rank, peer, channel, MESH_MS, at);
    if (strcmp(s->link, "rdma") == 0 && !spare && !(plan && s->plan_form == PLAN_FORM_TCP))
        return link_rdma_open(
            fd, s->rank, peer, channel, MESH_MS,
            &(struct link_rdma_settings){ .host = control_host(s, s->rank),
                                          .rails = s->rails,
                                          .stripe_min = s->stripe_min,
                                          .imm = plan && s->plan_form == PLAN_FORM_IMM },
            at);
    return link_tcp_open(fd, s->rank, peer, plan ? GROUP_PLAN : channel, MESH_MS, at);
}

static int data_hello(const struct group_settings *s, const struct control_secret *secret,
                      const struct body_table *t, int peer, int channel, struct control_hello *out)
{
    *out = (struct control_hello){ .magic = CONTROL_MAGIC,
                                   .protocol = CONTROL_PROTOCOL,
                                   .world = (uint32_t)s->world,
                                   .rank = (uint32_t)s->rank,
                                   .role = CONTROL_ROLE_DATA,
                                   .channel = (uint32_t)channel };
    return control_token(secret, t->nonce, s->rank, peer, channel, 0, out->nonce);
}

/* Connect to the data port of a lower rank and show the token. */
static int call(const struct group_settings *s, const struct control_secret *secret,
                const struct body_table *t, int peer, int channel, int *out)
{
    struct control_hello h;
    struct sockaddr_storage a;
    socklen_t n;
    int fd, r = data_hello(s, secret, t, peer, channel, &h);

    if (r == 0)
        r = door_address(control_host(s, peer), t->port[peer], &a, &n);
    if (r < 0)
        return r;
    r = control_connect(&a, n, MESH_MS, &fd);
    if (r < 0)
        return fail(r, "control: rank %d at %s port %d: %s", peer, control_host(s, peer),
                    t->port[peer], strerror(-r));
    if (send(fd, &h, sizeof(h), MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof(h)) {
        close(fd);
        return fail(-ECONNRESET, "control: rank %d does not take data sockets", peer);
    }
    *out = fd;
    return 0;
}

/* The lower rank's answer, then the link. Takes the socket. */
static int call_answered(struct control *c, const struct group_settings *s,
                         const struct control_secret *secret, const struct body_table *t, int peer,
                         int channel, int fd, int64_t until)
{
    uint8_t answer[SHA256_BYTES], want[SHA256_BYTES];
    int r = control_token(secret, t->nonce, s->rank, peer, channel, 1, want);

    if (r == 0)
        r = control_exactly(fd, answer, sizeof(answer), until);
    if (r == 0 && !bytes_equal(answer, want, sizeof(want)))
        r = -EACCES;
    if (r < 0) {
        close(fd);
        return fail(r, "control: channel %d to rank %d: %s", channel, peer, strerror(-r));
    }
    return open_link(c, s, fd, peer, channel);
}

/* A guest at the data port: one of the ranks above, or nobody. 1: a link more. */
static int answer_call(struct control *c, const struct group_settings *s,
                       const struct control_secret *secret, const struct body_table *t,
                       struct door *door, struct door_guest *g)
{
    uint8_t want[SHA256_BYTES], answer[SHA256_BYTES];
    struct control_hello h;
    int peer, channel, r;

    memcpy(&h, g->buf, sizeof(h));
    if (h.role != CONTROL_ROLE_DATA || h.rank <= (uint32_t)s->rank ||
        h.rank >= (uint32_t)s->world || h.channel >= GROUP_CHANNELS ||
        !group_channel_open(s, h.channel, s->rank, (int)h.rank) ||
        c->base.link[h.rank][h.channel]) {
        door_say(door, g, "no data socket of a rank that is due");
        door_dismiss(g);
        return 0;
    }
    peer = (int)h.rank;
    channel = (int)h.channel;
    r = control_token(secret, t->nonce, peer, s->rank, channel, 0, want);
    if (r == 0)
        r = control_token(secret, t->nonce, peer, s->rank, channel, 1, answer);
    if (r < 0)
        return r;
    if (!bytes_equal(want, h.nonce, sizeof(want))) {
        door_say(door, g, "data socket with a wrong token");
        door_dismiss(g);
        return 0;
    }
    if (send(g->fd, answer, sizeof(answer), MSG_DONTWAIT | MSG_NOSIGNAL) !=
        (ssize_t)sizeof(answer)) {
        door_dismiss(g);
        return 0;
    }
    r = open_link(c, s, door_keep(g), peer, channel);
    return r < 0 ? r : 1;
}

static int accept_calls(struct control *c, const struct group_settings *s,
                        const struct control_secret *secret, struct door *door,
                        const struct body_table *t, int64_t until)
{
    int due = 0;

    for (int p = s->rank + 1; p < s->world; p++)
        for (int k = 0; k < GROUP_CHANNELS; k++)
            due += group_channel_open(s, k, s->rank, p);
    while (due > 0) {
        struct door_guest *g;
        int r = door_wait(door, MESH_LOOK_MS, &g), lost = control_lost(c);

        if (r == 1)
            r = answer_call(c, s, secret, t, door, g);
        if (r < 0)
            return r;
        due -= r;
        if (lost >= 0)
            return fail(-ECONNRESET, "control: rank %d is gone: connection closed", lost);
        if (due > 0 && clock_ns() >= until)
            return fail(-ETIMEDOUT,
                        "control: %d data sockets of higher ranks did not come in %d ms", due,
                        MESH_MS);
    }
    return 0;
}

int control_mesh(struct control *c, const struct group_settings *s,
                 const struct control_secret *secret, struct door *door,
                 const struct body_table *table)
{
    int64_t until = clock_ns() + MESH_MS * NS_PER_MS;
    int fd[GROUP_WORLD_MAX][GROUP_CHANNELS], r = 0;

    memset(fd, -1, sizeof(fd));
    for (int p = 0; p < s->rank && r == 0; p++)
        for (int k = 0; k < GROUP_CHANNELS && r == 0; k++)
            if (group_channel_open(s, k, p, s->rank))
                r = call(s, secret, table, p, k, &fd[p][k]);
    if (r == 0)
        r = accept_calls(c, s, secret, door, table, until);
    for (int p = 0; p < s->rank; p++) {
        for (int k = 0; k < GROUP_CHANNELS; k++) {
            if (fd[p][k] < 0)
                continue;
            if (r == 0)
                r = call_answered(c, s, secret, table, p, k, fd[p][k], until);
            else
                close(fd[p][k]);
        }
    }
    return r;
}
