/* control_mesh - data sockets between ranks.
 *
 * The higher rank connects and shows the token of that pair and channel, which only the holders of
 * the secret can make and which rank 0's nonce makes new for every group; the lower rank answers
 * with its own. The kernel completes a connect before anybody accepts, so all ranks may connect
 * first and accept afterwards.
 */
#include "src/rank/control_tcp.h"

#include <errno.h>
#include <stdio.h>
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

static int called_off(const struct group_settings *s, int peer)
{
    char who[16];

    snprintf(who, sizeof(who), "%d", peer);
    control_cancelled(s->cancel, who);
    return -ECANCELED;
}

/* Connect to the data port of a lower rank and show the token. */
static int call(const struct group_settings *s, const struct control_secret *secret,
                const struct body_table *t, int peer, int channel, int *out)
{
    struct door_address at[DOOR_ADDRESSES];
    struct control_hello h;
    int n = 0, fd, r = data_hello(s, secret, t, peer, channel, &h);

    if (r == 0)
        r = n = door_addresses(control_host(s, peer), t->port[peer], at);
    if (r < 0)
        return r;
    r = -ETIMEDOUT;
    for (int i = 0; i < n && r < 0 && r != -ECANCELED; i++)
        r = control_connect(&at[i], MESH_MS / n, s->cancel, &fd);
    if (r == -ECANCELED)
        return called_off(s, peer);
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
        r = control_exactly(fd, answer, sizeof(answer), until, s->cancel);
    if (r == 0 && !bytes_equal(answer, want, sizeof(want)))
        r = -EACCES;
    if (r < 0)
        close(fd);
    if (r == -ECANCELED)
        return called_off(s, peer);
    if (r < 0)
        return fail(r, "control: channel %d to rank %d: %s", channel, peer, strerror(-r));
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

/* How many data sockets of the ranks above have not come, and whose: "2, 3" */
static int due_calls(const struct control *c, const struct group_settings *s, char *who, size_t cap)
{
    int due = 0, at = 0;

    who[0] = 0;
    for (int p = s->rank + 1; p < s->world; p++) {
        int n = 0;

        for (int k = 0; k < GROUP_CHANNELS; k++)
            n += group_channel_open(s, k, s->rank, p) && !c->base.link[p][k];
        if (n > 0 && at < (int)cap)
            at += snprintf(who + at, cap - (size_t)at, "%s%d", at ? ", " : "", p);
        due += n;
    }
    return due;
}

static int accept_calls(struct control *c, const struct group_settings *s,
                        const struct control_secret *secret, struct door *door,
                        const struct body_table *t, int64_t until)
{
    char who[64];

    while (due_calls(c, s, who, sizeof(who)) > 0) {
        struct door_guest *g;
        int r = door_wait(door, MESH_LOOK_MS, &g), lost = control_lost(c);

        if (r == 1)
            r = answer_call(c, s, secret, t, door, g);
        if (r < 0)
            return r;
        if (lost >= 0)
            return fail(-ECONNRESET, "control: rank %d is gone: connection closed", lost);
        if (r == 1)
            continue;
        if (control_cancelled(s->cancel, who))
            return -ECANCELED;
        if (clock_ns() >= until)
            return fail(-ETIMEDOUT, "control: the data sockets of rank %s did not come in %d ms",
                        who, MESH_MS);
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
