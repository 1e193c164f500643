/* speculation.c owns the rules by which a pass that ran ahead is used or dropped. */
#include "src/draft/speculation.h"

#include "kernels/ops.h"
#include "src/base/hash.h"
#include "src/base/log.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define RATE_KEPT 0.8  /* of the old rate, a settled pass */
#define RATE_LEAST 0.3 /* below it a slot takes part every TRY_EVERY-th time */
#define TRY_EVERY 8

const char *spec_end_name(enum spec_end e)
{
    static const char *const names[SPEC_ENDS] = {
        [SPEC_OFF] = "off",         [SPEC_USED] = "hit",      [SPEC_RESET] = "reset",
        [SPEC_UNUSED] = "unused",   [SPEC_SLOTS] = "slots",   [SPEC_COMMIT] = "commit",
        [SPEC_PENDING] = "pending", [SPEC_INPUTS] = "inputs",
    };

    return names[e];
}

uint64_t spec_inputs(const struct sampler *s)
{
    const double f[] = { s->temperature, s->top_p, s->min_p };
    uint64_t h = fnv1a64(FNV1A64_INIT, f, sizeof(f));

    h = fnv1a64(h, &s->seed, sizeof(s->seed));
    return fnv1a64_u32(h, (uint32_t)s->top_k);
}

/* The slot's part of the pass is over. A request that went away says nothing about the rate. */
static enum spec_end end(struct speculation *s, int slot, enum spec_end e)
{
    struct spec_slot *p = &s->slot[slot];

    p->in = false;
    s->count[e]++;
    if (e != SPEC_RESET)
        p->misses = RATE_KEPT * p->misses + (e == SPEC_USED ? 0 : 1 - RATE_KEPT);
    if (s->state == SPEC_READY) {
        for (int i = 0; i < SLOTS_MAX; i++)
            if (s->slot[i].in)
                return e;
        s->state = SPEC_IDLE;
    }
    return e;
}

void spec_reset(struct speculation *s, int slot)
{
    /* What is still queued is collected with the rest and then belongs to nobody. */
    if (s->slot[slot].in)
        end(s, slot, SPEC_RESET);
    s->slot[slot] = (struct spec_slot){ 0 };
}

unsigned spec_wants(struct speculation *s, unsigned may)
{
    unsigned wants = 0;

    for (int i = 0; i < SLOTS_MAX; i++) {
        struct spec_slot *p = &s->slot[i];

        if (!(may >> i & 1u))
            continue;
        if (1 - p->misses >= RATE_LEAST || ++p->waited >= TRY_EVERY) {
            p->waited = 0;
            wants |= 1u << i;
        }
    }
    return wants;
}

int spec_launch(struct speculation *s, unsigned slots, const int start[SLOTS_MAX],
                const uint64_t inputs[SLOTS_MAX])
{
    if (s->state == SPEC_QUEUED)
        return fail(-EBUSY, "speculation: a pass is still on its way");
    for (int i = 0; i < SLOTS_MAX; i++) {
        struct spec_slot *p = &s->slot[i];

        if (p->in)
            end(s, i, SPEC_UNUSED);
        if (!(slots >> i & 1u))
            continue;
        p->in = true;
        p->known = p->missed = false;
        p->start = start[i];
        p->inputs = inputs[i];
    }
    s->state = slots ? SPEC_QUEUED : SPEC_IDLE;
    return 0;
}

void spec_outcome(struct speculation *s, int slot, int n_ok, int32_t next)
{
    struct spec_slot *p = &s->slot[slot];

    if (!p->in)
        return;
    p->known = true;
    p->missed = n_ok == 0;
    p->n_ok = n_ok;
    p->anchor = next;
    p->pos = p->start + n_ok;
}

void spec_collected(struct speculation *s)
{
    if (s->state != SPEC_QUEUED)
        return;
    s->state = SPEC_IDLE;
    for (int i = 0; i < SLOTS_MAX; i++)
        if (s->slot[i].in)
            s->state = SPEC_READY;
}

bool spec_commit(struct speculation *s, int slot, int landed, int32_t next)
{
    struct spec_slot *p = &s->slot[slot];

    if (!p->in)
        return false;
    assert(p->known);
    if (landed != p->n_ok || next != p->anchor)
        p->missed = true;
    return !p->missed;
}

enum spec_end spec_take(struct speculation *s, int slot, int32_t anchor, int pos, uint64_t inputs)
{
    struct spec_slot *p = &s->slot[slot];

    if (!p->in) {
        s->count[SPEC_SLOTS]++;
        return SPEC_SLOTS;
    }
    assert(s->state == SPEC_READY && p->known);
    if (p->missed)
        return end(s, slot, SPEC_COMMIT);
    if (p->anchor != anchor || p->pos != pos)
        return end(s, slot, SPEC_PENDING);
    if (p->inputs != inputs)
        return end(s, slot, SPEC_INPUTS);
    return end(s, slot, SPEC_USED);
}

void spec_drop(struct speculation *s, int slot)
{
    if (s->slot[slot].in)
        end(s, slot, SPEC_UNUSED);
}
