/* group_loop - a group whose ranks are threads of one process.
 *
 * The hub is what TCP is elsewhere: it makes all links, is the meeting point of barriers, and
 * carries a fault to every member. Its lock is held while members are told, so on_fail must not
 * call back into the group.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/rank/control_body.h"
#include "src/rank/group.h"
#include "src/transport/comm.h"
#include "src/transport/link.h"

enum { HUB_MEET_MS = 10000, HUB_LOOK_MS = 50 };

struct group_hub {
    int world;
    struct comm_hub *comm;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    struct group *member[GROUP_WORLD_MAX];
    struct body_agree agree[GROUP_WORLD_MAX]; /* borrowed texts, while the members open */
    int waiting;                              /* members in the meeting that runs */
    uint64_t meeting;                         /* meetings that are over */
    struct group_mark mark[GROUP_WORLD_MAX];  /* of the members in the meeting that runs */
    int differ;                               /* a member found a difference */
    struct link
        *link[GROUP_WORLD_MAX][GROUP_WORLD_MAX][GROUP_CHANNELS]; /* until a member takes them */
};

struct group_loop {
    struct group base;
    struct group_hub *hub;
};

/* All are here, so nobody reads the marks of the meeting before. */
static void show_marks(struct group_hub *h)
{
    for (int m = 0; m < h->world; m++)
        for (int p = 0; p < h->world; p++)
            if (p != m)
                h->member[m]->peer_mark[p] = h->mark[p];
}

/* Wait until every member is here. Under the lock. */
static int meet(struct group_hub *h, const struct group *g, int timeout_ms,
                const atomic_int *cancel)
{
    int64_t until = clock_ns() + timeout_ms * NS_PER_MS;
    uint64_t mine = h->meeting;
    int r = 0;

    if (++h->waiting == h->world) {
        h->waiting = 0;
        h->meeting++;
        show_marks(h);
        pthread_cond_broadcast(&h->turn);
        return 0;
    }
    while (h->meeting == mine && r == 0) {
        int64_t look = clock_ns() + HUB_LOOK_MS * NS_PER_MS;
        struct timespec t = { .tv_sec = look / NS_PER_S, .tv_nsec = look % NS_PER_S };

        pthread_cond_timedwait(&h->turn, &h->lock, &t);
        if (h->meeting != mine)
            return 0;
        r = group_failed(g);
        if (r == 0 && cancel && atomic_load(cancel))
            r = -ECANCELED;
        if (r == 0 && clock_ns() >= until)
            r = fail(-ETIMEDOUT, "group: %d of %d ranks came in %d ms", h->waiting, h->world,
                     timeout_ms);
    }
    if (r < 0)
        h->waiting--;
    return r;
}

static void loop_tell(struct group *g, int r, const char *text)
{
    struct group_hub *h = ((struct group_loop *)g)->hub;
    char line[GROUP_REASON_BYTES];

    snprintf(line, sizeof(line), "rank %d: %.*s", g->rank, GROUP_REASON_BYTES - 16, text);
    pthread_mutex_lock(&h->lock);
    for (int p = 0; p < h->world; p++)
        if (h->member[p] && h->member[p] != g)
            group_fault(h->member[p], group_heard(r), 0, line);
    pthread_cond_broadcast(&h->turn);
    pthread_mutex_unlock(&h->lock);
}

/* Nobody watches threads of this process: to ask for the end is to leave. */
static void loop_stop(struct group *g)
{
    struct group_hub *h = ((struct group_loop *)g)->hub;

    pthread_mutex_lock(&h->lock);
    for (int p = 0; p < h->world; p++)
        if (h->member[p])
            atomic_store_explicit(&h->member[p]->stopping, 1, memory_order_release);
    pthread_mutex_unlock(&h->lock);
}

static int loop_barrier(struct group *g, int timeout_ms, const uint8_t *mark)
{
    struct group_hub *h = ((struct group_loop *)g)->hub;
    int r;

    pthread_mutex_lock(&h->lock);
    h->mark[g->rank] = group_mark_of(mark);
    r = group_failed(g);
    if (r == 0)
        r = meet(h, g, timeout_ms, NULL);
    pthread_mutex_unlock(&h->lock);
    return r;
}

static void loop_close(struct group *g)
{
    struct group_hub *h = ((struct group_loop *)g)->hub;

    loop_stop(g);
    pthread_mutex_lock(&h->lock);
    h->member[g->rank] = NULL;
    pthread_mutex_unlock(&h->lock);
    group_fini(g);
    free(g);
}

static const struct group_ops loop_group_ops = {
    .name = "loop",
    .tell = loop_tell,
    .ask = loop_stop,
    .stop = loop_stop,
    .barrier = loop_barrier,
    .close = loop_close,
};

/* Everybody is here: compare with everybody, then hear whether anybody found a difference. */
static int agree_all(struct group_hub *h, const struct group *g, const struct group_settings *s)
{
    int r = meet(h, g, s->connect_timeout_ms, s->cancel);

    if (r < 0)
        return r;
    for (int p = 0; p < h->world; p++)
        if (p != g->rank && group_agree(&h->agree[g->rank], &h->agree[p], p) < 0)
            h->differ = 1;
    r = meet(h, g, HUB_MEET_MS, NULL);
    return r < 0 ? r : h->differ ? -EINVAL : 0;
}

int group_loop_open(const struct group_settings *s, struct group **out)
{
    struct group_hub *h = s->hub;
    struct group_loop *g;
    struct body_agree *mine;
    int r = group_settings_check(s);

    if (r < 0)
        return r;
    if (!h || h->world != s->world)
        return fail(-EINVAL, "group: link loop joins threads of one process: no hub for %d ranks",
                    s->world);
    g = calloc(1, sizeof(*g));
    if (!g)
        return fail(-ENOMEM, "group: no memory");
    group_init(&g->base, &loop_group_ops, s);
    g->hub = h;
    pthread_mutex_lock(&h->lock);
    mine = &h->agree[s->rank];
    if (h->member[s->rank] || mine->text) {
        r = fail(-EINVAL, "group: rank %d is taken", s->rank);
        goto unlock;
    }
    *mine = (struct body_agree){ .text = s->agree };
    snprintf(mine->version, sizeof(mine->version), "%s", s->version);
    r = sha256_of(s->agree, strlen(s->agree), mine->text_sha256);
    if (r < 0)
        goto unlock;
    h->member[s->rank] = &g->base;
    r = agree_all(h, &g->base, s);
    if (r < 0) {
        h->member[s->rank] = NULL;
        goto unlock;
    }
    memcpy(g->base.link, h->link[s->rank], sizeof(g->base.link));
    memset(h->link[s->rank], 0, sizeof(h->link[s->rank]));
    pthread_mutex_unlock(&h->lock);
    *out = &g->base;
    return 0;

unlock:
    pthread_mutex_unlock(&h->lock);
    group_fini(&g->base);
    free(g);
    return r;
}

int group_hub_open(int world, struct group_hub **out)
{
    const struct group_settings loop = { .link = "loop" };
    struct group_hub *h;
    pthread_condattr_t attr;
    int r;

    if (world < 2 || world > GROUP_WORLD_MAX)
        return fail(-EINVAL, "group: a hub of %d ranks, want 2 to %d", world, GROUP_WORLD_MAX);
    h = calloc(1, sizeof(*h));
    if (!h)
        return fail(-ENOMEM, "group: no memory");
    h->world = world;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->turn, &attr);
    pthread_condattr_destroy(&attr);
    for (int a = 0; a < world; a++) {
        for (int b = a + 1; b < world; b++) {
            for (int c = 0; c < GROUP_CHANNELS; c++) {
                r = 0;
                if (group_channel_open(&loop, c, a, b))
                    r = link_loop_open(a, b, c, HUB_MEET_MS, &h->link[a][b][c], &h->link[b][a][c]);
                if (r < 0) {
                    group_hub_close(h);
                    return r;
                }
            }
        }
    }
    r = comm_hub_open(world, &h->comm);
    if (r < 0) {
        group_hub_close(h);
        return r;
    }
    *out = h;
    return 0;
}

struct comm_hub *group_hub_comm(struct group_hub *h)
{
    return h->comm;
}

void group_hub_close(struct group_hub *h)
{
    if (!h)
        return;
    for (int a = 0; a < h->world; a++)
        for (int b = 0; b < h->world; b++)
            for (int c = 0; c < GROUP_CHANNELS; c++)
                if (h->link[a][b][c])
                    h->link[a][b][c]->ops->close(h->link[a][b][c]);
    comm_hub_close(h->comm);
    pthread_cond_destroy(&h->turn);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
