/* link - the list of links, and the one place where a thread of the host waits for a flag. */
#include "src/transport/link.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/link_area.h"
#include "src/transport/link_table.h"

enum {
    YIELD_US = 2000, /* after the busy time: others may have the core, yet nobody has to wake us */
    NAP_US = 20000, /* of a waiter that the peer wakes: bounds how late a dead process is noticed */
    DOZE_US = 50,   /* of a waiter that nobody wakes, at first; longer the longer it waits */
    DOZE_MAX_US = 1000,
    DOZE_PART = 64,   /* of the time waited so far */
    SPINS_A_LOOK = 32 /* looks at a flag in memory between two looks at clock and link */
};

static const struct link_ops *const links[] = { &link_loop_ops, &link_tcp_ops, &link_shm_ops,
                                                &link_rdma_ops };

int link_find(const char *name, const struct link_ops **out)
{
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        if (strcmp(name, links[i]->name) == 0) {
            *out = links[i];
            return 0;
        }
    }
    return fail(-EINVAL, "link %s: this build has loop, tcp, shm, rdma", name);
}

int link_no_news(struct link *l)
{
    return 0;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Poll the link that is waited for last and report its error only: another link's end is found when
 * it is waited for itself, and a peer that has all it needs may leave while the slower ones still
 * talk. */
static int poll_set(const struct link_wait *w, struct link *l)
{
    for (int i = 0; i < w->n; i++)
        if (w->links[i] && w->links[i] != l && (w->links[i]->fd >= 0 || w->links[i]->pending))
            w->links[i]->ops->poll(w->links[i]);
    return l->ops->poll(l);
}

static void sleep_on_sockets(const struct link_wait *w, struct link *l, int us)
{
    struct pollfd p[LINK_SLOTS_MAX];
    nfds_t n = 0;

    p[n++] = (struct pollfd){ .fd = l->fd, .events = POLLIN | (l->pending ? POLLOUT : 0) };
    for (int i = 0; i < w->n && n < LINK_SLOTS_MAX; i++) {
        struct link *o = w->links[i];

        /* a link in error is always readable: it must not keep the sleeper awake */
        if (o && o != l && o->fd >= 0 && o->ops->poll(o) == 0)
            p[n++] = (struct pollfd){ .fd = o->fd, .events = POLLIN | (o->pending ? POLLOUT : 0) };
    }
    poll(p, n, us / 1000 + 1);
}

/* How long a waiter has waited decides how it goes on. */
struct patience {
    int64_t start;
    uint32_t heard; /* the bell before the last look at the flag */
};

static int doze_us(int64_t waited_ns)
{
    int64_t us = waited_ns / NS_PER_US / DOZE_PART;

    return us < DOZE_US ? DOZE_US : us > DOZE_MAX_US ? DOZE_MAX_US : (int)us;
}

/* Let time pass, after the caller has looked in vain: busy, yielding, asleep. */
static int wait_a_while(const struct link_wait *w, struct link *l, const struct patience *p)
{
    int64_t waited = clock_ns() - p->start;
    int us = l->fd >= 0 || (l->ops->caps & LINK_WAKES) ? NAP_US : doze_us(waited);

    if (w->limit_ms >= 0 && waited > w->limit_ms * NS_PER_MS)
        return -ETIMEDOUT;
    if (waited <= w->spin_us * NS_PER_US)
        return 0;
    if (waited <= ((int64_t)w->spin_us + YIELD_US) * NS_PER_US) {
        sched_yield();
        return 0;
    }
    if (w->limit_ms >= 0 && us > w->limit_ms * INT64_C(1000)) /* a limit may be a day */
        us = w->limit_ms * 1000 + 1;
    if (l->fd >= 0)
        sleep_on_sockets(w, l, us);
    else
        link_bell_sleep(l->bell, p->heard, us);
    return 0;
}

int link_wait_flag(const struct link_wait *w, struct link *l, const struct link_mem *m, int slot,
                   uint64_t seen, uint64_t *now)
{
    struct patience p = { .start = clock_ns() };
    _Atomic uint64_t *flag = link_flag(m, slot);

    for (;;) {
        int r, looks = l->fd >= 0 ? 1 : SPINS_A_LOOK;

        if (l->bell)
            p.heard = link_bell_heard(l->bell);
        r = poll_set(w, l);
        for (int i = 0; i < looks; i++) {
            uint64_t v = atomic_load_explicit(flag, memory_order_acquire);

            if (v != seen && link_whole(m, slot, v)) { /* what arrived before an end still counts */
                *now = v;
                return 0;
            }
            relax();
        }
        if (r == 0)
            r = wait_a_while(w, l, &p);
        if (r < 0)
            return r;
    }
}

int link_wait_sent(const struct link_wait *w, int *peer)
{
    struct patience p = { .start = clock_ns() };

    for (int i = 0; i < w->n; i++) {
        struct link *l = w->links[i];

        while (l && l->pending) {
            int r = poll_set(w, l);

            if (r == 0 && l->pending)
                r = wait_a_while(w, l, &p);
            if (r < 0) {
                *peer = l->peer;
                return r;
            }
        }
    }
    return 0;
}
