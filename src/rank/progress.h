/* progress - what a rank is doing: written by its round's thread, read by those that watch it.
 *
 *   begin(order) -> phases of it -> end    between two orders a rank is idle, perhaps for ever
 *
 * Every number only says how far this rank is; a reader sees each of them whole, and together as
 * they were at about the same time.
 */
#ifndef TANDEM_RANK_PROGRESS_H
#define TANDEM_RANK_PROGRESS_H

#include "src/transport/comm.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum phase {
    PHASE_IDLE,
    PHASE_PLAN,    /* rank 0 sends an order */
    PHASE_CHECK,   /* what came with the order, before anything runs */
    PHASE_STAGE,   /* host work for a window: which n-gram rows, samplers */
    PHASE_WINDOW,  /* the forward pass */
    PHASE_CHOOSE,  /* candidates, choices, commit */
    PHASE_OBSERVE, /* the drafter's context rows */
    PHASE_DRAFT,   /* a draft pass */
    PHASE_WAIT,    /* the queue's end; on devices n-gram rows that it waits for */
    PHASES
};

struct progress {
    atomic_uint phase, order, round; /* order: enum plan_op */
    _Atomic uint64_t begun, ended;   /* orders */
    _Atomic int64_t since_ns;        /* when the order that runs began; 0 between orders */
    struct comm_steps steps;         /* exchanges */
};

/* What a reader saw. */
struct progress_view {
    unsigned phase, order, round;
    uint64_t begun, ended, posted, done;
    int64_t since_ns;
};

static inline void progress_begin(struct progress *p, unsigned order, uint32_t round, int64_t now)
{
    atomic_store_explicit(&p->order, order, memory_order_relaxed);
    atomic_store_explicit(&p->round, round, memory_order_relaxed);
    atomic_store_explicit(&p->phase, PHASE_PLAN, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->begun, 1, memory_order_relaxed);
    atomic_store_explicit(&p->since_ns, now, memory_order_release);
}

static inline void progress_phase(struct progress *p, enum phase phase)
{
    atomic_store_explicit(&p->phase, phase, memory_order_relaxed);
}

static inline void progress_end(struct progress *p)
{
    atomic_store_explicit(&p->since_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&p->phase, PHASE_IDLE, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->ended, 1, memory_order_release);
}

/* progress_read - from any thread */
void progress_read(const struct progress *p, struct progress_view *out);

/* progress_same - nothing has moved between two views of one rank. */
bool progress_same(const struct progress_view *a, const struct progress_view *b);

/* progress_waits - the rank waits for another one: in an exchange whose own part has left. */
bool progress_waits(const struct progress_view *v);

/* progress_text - "round 812, order ROUND, phase window, exchange 77 waits for a peer" */
void progress_text(const struct progress_view *v, char *out, size_t cap);

#endif
