/* link_loop - two threads of one process.
 *
 * The pair owns the areas of both ends and lives until both are closed, so that a late send of one
 * end never touches memory that the other gave back.
 */
#include "src/transport/link.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/link_area.h"
#include "src/transport/link_table.h"

struct loop_end {
    uint8_t *area; /* what this end receives into; NULL until it registers */
    int slots;
    size_t slot_bytes;
    atomic_int gone; /* aborted or closed */
};

struct loop_pair {
    pthread_mutex_t lock; /* areas while they are being registered, and users */
    pthread_cond_t met;
    int users;
    struct loop_end end[2];
    struct link_bell bell[2]; /* of the waiter at each end */
};

struct loop_link {
    struct link base;
    struct loop_pair *pair;
    int me; /* index of this end */
    int meet_ms;
};

static int loop_poll(struct link *l)
{
    struct loop_link *k = (struct loop_link *)l;

    if (atomic_load_explicit(&k->pair->end[k->me].gone, memory_order_acquire))
        return -ECANCELED;
    if (atomic_load_explicit(&k->pair->end[!k->me].gone, memory_order_acquire))
        return -ECONNRESET;
    return 0;
}

/* Wait under the lock until the peer has registered. */
static int meet(struct loop_link *k)
{
    struct loop_pair *p = k->pair;
    struct timespec until;
    int r = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += k->meet_ms / 1000;
    until.tv_nsec += (long)(k->meet_ms % 1000) * NS_PER_MS;
    if (until.tv_nsec >= NS_PER_S) {
        until.tv_sec++;
        until.tv_nsec -= NS_PER_S;
    }
    while (!p->end[!k->me].area) {
        int gone = loop_poll(&k->base);

        if (gone < 0)
            return gone;
        if (r == ETIMEDOUT)
            return fail(-ETIMEDOUT, "link loop channel %d: rank %d did not come in %d ms",
                        k->base.channel, k->base.peer, k->meet_ms);
        r = pthread_cond_timedwait(&p->met, &p->lock, &until);
    }
    return 0;
}

static int loop_reg(struct link *l, struct link_mem *m)
{
    struct loop_link *k = (struct loop_link *)l;
    struct loop_end *mine = &k->pair->end[k->me], *theirs = &k->pair->end[!k->me];
    uint8_t *area;
    int r = link_mem_check(l, m);

    if (r < 0)
        return r;
    assert(!mine->area);
    area = link_area_map(link_area_bytes(m->slots, m->slot_bytes));
    if (!area)
        return -ENOMEM;
    pthread_mutex_lock(&k->pair->lock);
    mine->slots = m->slots;
    mine->slot_bytes = m->slot_bytes;
    mine->area = area;
    pthread_cond_broadcast(&k->pair->met);
    r = meet(k);
    if (r == 0 && (theirs->slots != m->slots || theirs->slot_bytes != m->slot_bytes))
        r = fail(-EINVAL, "link loop channel %d: %d slots of %zu bytes here, %d of %zu on rank %d",
                 l->channel, m->slots, m->slot_bytes, theirs->slots, theirs->slot_bytes, l->peer);
    pthread_mutex_unlock(&k->pair->lock);
    if (r == 0)
        link_area_bind(m, area);
    return r; /* the pair owns the area, also after an error */
}

static void loop_unreg(struct link *l, struct link_mem *m)
{
    m->inbox = NULL;
    m->flags = NULL;
}

static int loop_send(struct link *l, const struct link_mem *m, size_t off, size_t len, uint64_t tag)
{
    struct loop_link *k = (struct loop_link *)l;
    int r = loop_poll(l);

    if (r < 0)
        return r;
    assert(off / m->slot_bytes < (size_t)m->slots && off % m->slot_bytes + len <= m->slot_bytes);
    link_area_put(k->pair->end[!k->me].area, &k->pair->bell[!k->me], m, off, len, tag);
    return 0;
}

static void loop_abort(struct link *l)
{
    struct loop_link *k = (struct loop_link *)l;

    pthread_mutex_lock(&k->pair->lock);
    atomic_store_explicit(&k->pair->end[k->me].gone, 1, memory_order_release);
    pthread_cond_broadcast(&k->pair->met);
    pthread_mutex_unlock(&k->pair->lock);
    link_bell_ring(&k->pair->bell[0]);
    link_bell_ring(&k->pair->bell[1]);
}

static void loop_close(struct link *l)
{
    struct loop_link *k = (struct loop_link *)l;
    struct loop_pair *p = k->pair;
    int left;

    loop_abort(l);
    pthread_mutex_lock(&p->lock);
    left = --p->users;
    pthread_mutex_unlock(&p->lock);
    if (left == 0) {
        for (int i = 0; i < 2; i++)
            if (p->end[i].area)
                munmap(p->end[i].area, link_area_bytes(p->end[i].slots, p->end[i].slot_bytes));
        pthread_cond_destroy(&p->met);
        pthread_mutex_destroy(&p->lock);
        free(p);
    }
    free(k);
}

const struct link_ops link_loop_ops = {
    .name = "loop",
    .caps = LINK_DIRECT | LINK_WAKES,
    .reg = loop_reg,
    .unreg = loop_unreg,
    .send = loop_send,
    .poll = loop_poll,
    .news = link_no_news,
    .abort = loop_abort,
    .close = loop_close,
};

int link_loop_open(int rank_a, int rank_b, int channel, int meet_ms, struct link **a,
                   struct link **b)
{
    struct loop_pair *p = aligned_alloc(LINK_FLAG_STRIDE, sizeof(*p));
    struct loop_link *k[2] = { calloc(1, sizeof(*k[0])), calloc(1, sizeof(*k[1])) };
    pthread_condattr_t attr;

    if (!p || !k[0] || !k[1]) {
        free(k[1]);
        free(k[0]);
        free(p);
        return fail(-ENOMEM, "link loop channel %d: no memory", channel);
    }
    memset(p, 0, sizeof(*p));
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->met, &attr);
    pthread_condattr_destroy(&attr);
    p->users = 2;
    for (int i = 0; i < 2; i++) {
        k[i]->base = (struct link){ .ops = &link_loop_ops,
                                    .rank = i ? rank_b : rank_a,
                                    .peer = i ? rank_a : rank_b,
                                    .channel = channel,
                                    .fd = -1,
                                    .bell = &p->bell[i] };
        k[i]->pair = p;
        k[i]->me = i;
        k[i]->meet_ms = meet_ms;
    }
    *a = &k[0]->base;
    *b = &k[1]->base;
    return 0;
}
