#include "tests/draft/draft_rig.h"

#include <string.h>

static struct walk_part open_part(void *arg, const struct json *config, struct model *m,
                                  struct state_list *l)
{
    struct draft_rig *b = arg;
    struct drafter *d;

    MUST(drafter_open(b->name, config, m, &d));
    if (b->prepare)
        b->prepare(d);
    d->ops->states(d, l);
    b->d[m->rank] = d;
    return (struct walk_part){ d->ops->weights, d };
}

static void run(struct rig *g, void *arg)
{
    struct draft_rig *b = arg;
    struct drafter *d = b->d[g->rank];

    MUST(d->ops->ready(d, g->dev, g->pool));
    MUST(comm_barrier(g->comm)); /* see rig.c: allocations are over */
    b->fn(b, g);
    MUST(comm_barrier(g->comm));
    d->ops->close(d);
}

void draft_rigs_run(struct rig_settings s, struct draft_rig *b)
{
    s.part = open_part;
    s.part_arg = b;
    rigs_run(&s, run, b);
}

int draft_slot(struct draft_rig *b, struct rig *g, int want, int first)
{
    struct drafter *d = b->d[g->rank];
    int slot;

    MUST(slot_take(g->pool, g->q, want, &slot));
    d->ops->reset(d, &g->x, g->pool, slot, first);
    return slot;
}

void draft_feed(struct draft_rig *b, struct rig *g, int slot, const int32_t *tok, int n, int chunk)
{
    struct drafter *d = b->d[g->rank];

    for (int at = 0; at < n; at += chunk) {
        int rows = n - at < chunk ? n - at : chunk;

        rig_forward(g, slot, tok + at, rows, false);
        rig_keep(g, slot, rows);
        d->ops->observe(d, &g->x, g->pool, g->w);
    }
    MUST(g->q->ops->wait(g->q));
}

void draft_anchor(struct rig *g, int slot, int32_t tok)
{
    slot_set_next(g->pool, g->q, slot, tok);
}

void draft_ask(struct draft_rig *b, struct rig *g, const int *slots, int n, struct proposal *p)
{
    struct drafter *d = b->d[g->rank];

    memset(p, 0, sizeof(*p));
    p->n = n;
    memcpy(p->slot, slots, sizeof(*slots) * (size_t)n);
    for (int i = 0; i < n; i++) {
        struct slot_head h;

        g->q->ops->get(g->q, &h, &g->pool->head[slots[i]], sizeof(h));
        MUST(g->q->ops->wait(g->q));
        p->anchor[i] = h.next;
    }
    d->ops->propose(d, &g->x, g->pool, p, b->sampler[g->rank]);
    MUST(g->q->ops->wait(g->q));
    MUST(comm_check(g->comm));
    d->ops->collect(d, p);
}
