/* group - what every group has, whatever joins its ranks: links, the first cause, and how a fault
 * spreads. */
#ifndef TANDEM_RANK_GROUP_H
#define TANDEM_RANK_GROUP_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "src/rank/control.h"

struct group_ops {
    const char *name;
    /* tell - every peer learns the error r and its text, which happened on this rank; never blocks,
     * any thread */
    void (*tell)(struct group *g, int r, const char *text);
    void (*ask)(struct group *g);
    void (*stop)(struct group *g);
    /* barrier - whoever passes has in g->peer_mark what the peers brought to this very one: a peer
     * that has passed may be at the next already */
    int (*barrier)(struct group *g, int timeout_ms, const uint8_t *mark);
    /* close - everything but the links; frees g */
    void (*close)(struct group *g);
};

/* What a rank brings to a barrier. A follower over TCP sees that of rank 0 alone. */
struct group_mark {
    bool there;
    uint8_t bytes[GROUP_DIGEST_BYTES];
};

/* group_mark_of - of a barrier's mark, or NULL */
static inline struct group_mark group_mark_of(const uint8_t *mark)
{
    struct group_mark m = { .there = mark != NULL };

    if (mark)
        memcpy(m.bytes, mark, sizeof(m.bytes));
    return m;
}

struct group {
    const struct group_ops *ops;
    int rank, world;
    struct link *link[GROUP_WORLD_MAX][GROUP_CHANNELS];
    void (*on_fail)(void *arg, const char *why);
    void *on_fail_arg;
    const struct progress *progress; /* or NULL */
    atomic_int claimed;              /* somebody writes the reason */
    atomic_int failed;               /* its errno, once the reason is written */
    atomic_int stopping;
    pthread_mutex_t sums_lock;
    struct comm *sums; /* under sums_lock; or NULL */
    char reason[GROUP_REASON_BYTES];
    /* at the last barrier that this rank has passed; read by whoever waited there */
    struct group_mark peer_mark[GROUP_WORLD_MAX];
};

/* group_init - the fields of a group that has no links yet */
void group_init(struct group *g, const struct group_ops *ops, const struct group_settings *s);

/* group_settings_check - world, rank, and that there is something to agree on. errors   -EINVAL */
int group_settings_check(const struct group_settings *s);

/* group_fault - the first cause claims the group: abort the links, tell the peers unless they told
 * us, on_fail, abort the comm. Later ones are ignored. Logs text. */
void group_fault(struct group *g, int r, int tell, const char *text);

/* group_heard - what an error r of a peer is here: a shortage of memory is one of the group,
 * anything else is a peer that failed */
static inline int group_heard(int r)
{
    return r == -ENOMEM ? r : -EREMOTEIO;
}

/* group_fini - close what links there are; nothing else uses g any more */
void group_fini(struct group *g);

/* group_channel_open - whether links are made for a channel: draft passes run in the order of the
 * windows, so GROUP_DRAFT has none; the plan goes between rank 0 and each follower */
int group_channel_open(const struct group_settings *s, enum group_channel c, int a, int b);

/* group_agree - compare what must be equal, as seen from this rank.
 * errors   -EINVAL with one line that names version, at most three keys, or the digests */
struct body_agree;
int group_agree(const struct body_agree *mine, const struct body_agree *theirs, int peer);

/* group_differ - the sentence about two packs, by their marks */
void group_differ(const char *const *what, const uint8_t *mine, const uint8_t *theirs, int peer,
                  char *out, size_t cap);

/* the implementers of group_open */
int group_loop_open(const struct group_settings *s, struct group **out);
int group_tcp_open(const struct group_settings *s, struct group **out);
int group_tcp_listen(const struct group_settings *s, int *fd);

#endif
