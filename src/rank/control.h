/* control - who the ranks are, that they agree, that they live, and how they end together.
 *
 * A group is all ranks of one decoder. It opens only when every rank proved that it knows the
 * secret and all agreed on version, world and config; packs are compared when they are there. It
 * hands out connected links to every peer; it watches the peers until the end; and it ends on all
 * ranks or on none:
 *
 *   open -> SERVING -> group_stop -> close            planned: a peer that hangs up afterwards is
 *                                                     no fault
 *              \-----> FAILING                        the first cause wins, every link is aborted,
 *                                                     the peers are told, on_fail runs, waits for
 *                                                     sums end; the process leaves with 70
 *
 * Over TCP (control.c) the ranks are processes: rank 0 listens on its own host's address and a
 * thread of each rank does nothing but heartbeats. In a hub (group_loop.c) they are threads of one
 * process.
 */
#ifndef TANDEM_RANK_CONTROL_H
#define TANDEM_RANK_CONTROL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;
struct link;
struct progress;
struct group;
struct comm_hub;
struct group_hub;

/* GROUP_SPARE: TCP for the plan, where its links are rdma and may not come about */
enum group_channel {
    GROUP_WINDOWS = 0,
    GROUP_DRAFT = 1,
    GROUP_PLAN = 2,
    GROUP_SPARE = 3,
    GROUP_CHANNELS
};

enum group_cancel { CANCEL_NOT, CANCEL_ASKED, CANCEL_SILENT }; /* silent: without a line about it */

enum {
    GROUP_REASON_BYTES = 256,
    GROUP_DIGEST_BYTES = 32,
    GROUP_MARK_PARTS = 8,
    GROUP_WORLD_MAX = 8
};

struct group_settings {
    int rank, world;
    const char *link;         /* loop, tcp, shm, rdma */
    int rails;                /* of rdma: 0 for all there are */
    size_t stripe_min;        /* of rdma: shorter sends go over the first rail */
    int plan_form;            /* of rdma: enum plan_form of config.h */
    struct group_hub *hub;    /* loop only */
    const char *const *hosts; /* [world], or NULL: all on 127.0.0.1 */
    int port;                 /* rank 0's; 0 is refused */
    const char *secret;       /* file of at least 32 bytes, mode 0600; loop needs none */
    /* ranks that are threads of one process: no file, loopback addresses only */
    int no_secret;
    int connect_timeout_ms, heartbeat_ms, peer_timeout_ms;
    int stall_ms;                    /* an order of which no rank gets on for so long is a fault */
    const struct progress *progress; /* of this rank, in every heartbeat; NULL: none */
    const char *version;             /* of this build */
    const char *agree; /* sorted `key = value` lines of everything that must be equal */
    int listener;      /* of group_listen, taken by open; 0: open listens itself */
    const atomic_int
        *cancel; /* enum group_cancel, or NULL: open returns -ECANCELED within 100 ms */
    /* or NULL; once, on whichever thread noticed, after the links were aborted; why:
     * group_reason */
    void (*on_fail)(void *arg, const char *why);
    void *on_fail_arg;
};

/* group_open - meet all ranks. Blocks until the world is complete.
 *
 * A stranger never ends rank 0: other magic, silence, or a wrong proof closes that connection after
 * one log line (one a second). Errors and the exit codes that group_exit_code gives them:
 *
 *   -EINVAL      78  the settings; the secret is no file of 32 to 4096 bytes; version, world, rank
 *                    or config differ (both sides say which: at most three keys); this rank is
 *                    taken (the second one to come ends, rank 0 goes on)
 *   -EACCES      77  the secret differs (rank 0 goes on listening); or others may read its file
 *   -ENOENT      66  no secret file
 *   -EADDRINUSE  69  rank 0's port is taken; so -EADDRNOTAVAIL, -EHOSTUNREACH, -ETIMEDOUT
 *                    (connect_timeout_ms)
 *   -ECANCELED  0    cancel: drained
 *   -ENOMEM      71  and -EMFILE
 *   others       70  a peer went away while opening, or spoke nonsense (-ECONNRESET, -EPROTO)
 */
int group_open(const struct group_settings *s, struct group **out);

/* group_listen - rank 0 of processes takes its port; whoever comes before open waits in its queue.
 * *fd
 * is 0 where there is nothing to listen at. errors   as open */
int group_listen(const struct group_settings *s, int *fd);
void group_unlisten(int fd);

/* group_compare - the packs of all ranks: a barrier that carries a mark of each, GROUP_MARK_PARTS
 * words of 4 bytes; what: the part that each word stands for. Never in a round.
 * errors   -EINVAL this rank's differs from one that it sees, which ends the group; as barrier */
int group_compare(struct group *g, const char *const what[GROUP_MARK_PARTS],
                  const uint8_t mark[GROUP_DIGEST_BYTES], int timeout_ms);

/* group_vote - never in a round.
 * result   1 every rank said yes, 0 one of them did not, the same on all
 * errors   as barrier */
int group_vote(struct group *g, bool yes, int timeout_ms);

/* group_exit_code - exit code for an error of group_open: README's table. What ends a group later
 * is 70, whatever its errno. */
int group_exit_code(int r);

/* group_link - the connected link to a peer on a channel, NULL on one that is not open (of those
 * with rank 0 windows and plan are); owned by the group */
struct link *group_link(struct group *g, int peer, enum group_channel channel);

/* group_failed - 0, or the negative errno of the first cause. A load; any thread. */
int group_failed(const struct group *g);

/* group_reason - the first cause in words ("rank 1 is gone: connection closed"), "" if none. Stays
 * valid. */
const char *group_reason(const struct group *g);

/* group_fail - this rank cannot go on. Aborts the links, tells every peer without blocking. The
 * first cause, of whatever rank, wins; later ones are ignored. Logs it. Any thread. */
__attribute__((format(printf, 3, 4))) void group_fail(struct group *g, int r, const char *fmt, ...);

/* group_decline - as group_fail, of a rank that has logged why and leaves by itself: nothing is
 * logged, on_fail is not called */
void group_decline(struct group *g, int r, const char *why);

/* group_sums - the comm whose waits end when the group fails, until another one or NULL is named:
 * whoever closes it names NULL first. The group aborts it at once if it has failed already. */
void group_sums(struct group *g, struct comm *c);

/* group_ask - rank 0 is to end this group. Until it does, this rank needs it as before: its silence
 * is a fault. */
void group_ask(struct group *g);

/* group_stop - this rank leaves as planned; what the peers do afterwards is no fault */
void group_stop(struct group *g);

/* group_stopping - a peer has asked for the end or come to it, or this rank has come to it */
int group_stopping(const struct group *g);

/* group_barrier - until all ranks are here; never in a round.
 * errors   the group's failure, or -ETIMEDOUT */
int group_barrier(struct group *g, int timeout_ms);

/* group_close - stops first if nobody did; closes the links. After every comm and plan box. NULL is
 * fine. */
void group_close(struct group *g);

/* group_hub_open - where the threads of one process meet; closed after all its groups */
int group_hub_open(int world, struct group_hub **out);
void group_hub_close(struct group_hub *h);

/* group_hub_comm - where the same ranks' devices meet; the hub's */
struct comm_hub *group_hub_comm(struct group_hub *h);

#endif
