/* control_tcp - a group whose ranks are processes joined by TCP: what its three files share.
 *
 *   control.c       from nothing to a complete world
 *   control_mesh.c  data sockets between every pair, and the links on them
 *   control_life.c  the thread that watches, and everything after open
 *
 * The control connections are a star: rank 0 has one to every follower, a follower one to rank 0.
 */
#ifndef TANDEM_RANK_CONTROL_TCP_H
#define TANDEM_RANK_CONTROL_TCP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "src/rank/control_door.h"
#include "src/rank/control_wire.h"
#include "src/rank/group.h"
#include "src/rank/stall.h"

struct control_peer {
    struct wire *wire;   /* NULL: no control connection with that rank */
    int64_t heard_ns;    /* last whole frame; the thread's */
    int over;            /* its end has been dealt with; the thread's */
    uint64_t at_barrier; /* under lock, as its mark */
    struct group_mark mark;
};

struct control {
    struct group base;
    int heartbeat_ms, peer_timeout_ms, stall_ms;
    struct stall stall; /* the thread's, and so is the machine's memory */
    uint64_t available;
    int64_t weighed_ns;
    struct control_peer peer[GROUP_WORLD_MAX];
    pthread_t thread;
    int running;
    int wake; /* eventfd: leave the thread's sleep */
    atomic_int leave;
    atomic_int stop_sent;
    int64_t start_ns;
    pthread_mutex_t lock; /* barriers; never in a round */
    pthread_cond_t turn;
    uint64_t arrived, released; /* own barriers; those that rank 0 has let pass */
};

/* control_mesh - the data sockets of this rank and the links on them: connect to lower ranks,
 * accept from higher.
 *
 * in       door: where this rank listens for them; table: everybody's port and the nonce of the
 *          tokens
 * errors   -ETIMEDOUT, -ECANCELED, -ECONNRESET a rank left, -EACCES a rank below does not know the
 *          token, those of link open
 */
int control_mesh(struct control *c, const struct group_settings *s,
                 const struct control_secret *secret, struct door *door,
                 const struct body_table *table);

/* control_lost - the first peer whose control connection has ended, -1 if none; before the thread
 * runs */
int control_lost(const struct control *c);

/* control_start - run the thread. errors: -EAGAIN, -EMFILE */
int control_start(struct control *c);

/* control_free - stop the thread, close wires and links; c may be half open */
void control_free(struct control *c);

extern const struct group_ops control_group_ops;

#endif
