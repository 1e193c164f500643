/* gate_soak.c owns the long run: requests come and go at random, every reply is a serial one, and
 * memory stays what it was. */
#include "src/rank/gate.h"

#include "src/base/log.h"
#include "src/base/rng.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS_FULL 40000 /* 100,000 over two worlds of one rank and one of several, */
#define ROUNDS_QUICK 160
#define SEVERAL 2 /* which has half as many: its rounds cost most */
#define KINDS_FULL 240
#define KINDS_QUICK 12
#define LOOKS 20     /* at memory */
#define WARM_LOOKS 4 /* the first ones see caches grow */
#define HEAP_MAY_GROW (64 << 10)
#define RSS_MAY_GROW (8 << 20)

/* What is taken from the heap, and what the process has in memory, in bytes. */
struct memory {
    int64_t heap, rss;
};

struct soak {
    struct gate *g;
    struct gate_ask *kind;
    int kinds;
    uint32_t draws, until; /* draws made; the round from which nobody joins */
    int64_t replies, cancelled;
};

static uint32_t draw(struct soak *s, uint32_t below)
{
    return philox4x32(s->draws++, 0, 0, 0, 77).w[0] % below;
}

static struct memory memory_now(void)
{
    struct mallinfo2 m = mallinfo2();
    struct memory now = { .heap = (int64_t)(m.uordblks + m.hblkhd) };
    FILE *f = fopen("/proc/self/statm", "r");
    long long pages = 0;

    if (f && fscanf(f, "%*s %lld", &pages) == 1)
        now.rss = pages * sysconf(_SC_PAGESIZE);
    if (f)
        fclose(f);
    return now;
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Kinds of requests, with their serial replies: each is asked for many times. */
static int make_kinds(struct soak *s)
{
    struct gate *g = s->g;
    const struct gate_play *serial;
    int r = 0;

    for (int i = 0; i < s->kinds && r == 0; i++) {
        struct gate_ask *a = &s->kind[i];
        int prompt = (int)draw(s, (uint32_t)g->prompts);

        /* Long prompts cost more than rounds: few kinds have them. */
        if (g->prompt[prompt].n > 64 && (draw(s, 6) || g->prompt[prompt].n > 1000))
            prompt = 0;
        *a = gate_ask(g, prompt, (int)draw(s, GATE_MODES), 1 + (int)draw(s, 96));
        a->seed += draw(s, 1000);
        a->ignore_end = draw(s, 2);
        r = gate_serial_of(g, a, &serial);
        if (r == 0 && draw(s, 3) == 0) {
            gate_stop_in(a, serial);
            r = gate_serial_of(g, a, &serial);
        }
    }
    return r;
}

/* Most windows are narrow, as they are in use; some are as wide as they can be. */
static int some_depth(struct soak *s)
{
    switch (draw(s, 8)) {
    case 0:
        return -1;
    case 1:
        return (int)draw(s, WINDOW_MAX);
    default:
        return (int)draw(s, 4);
    }
}

static void renew(struct soak *s, struct gate_play *p)
{
    struct gate *g = s->g;

    *p = (struct gate_play){ .ask = s->kind[draw(s, (uint32_t)s->kinds)],
                             .draft = draw(s, 8) != 0,
                             .join = g->step + (int)(draw(s, 2) ? draw(s, 3) : draw(s, 60)),
                             .depth = some_depth(s) };
    if (draw(s, 6) == 0)
        p->cancel = 1 + (int)draw(s, (uint32_t)p->ask.max_tokens);
    g->salt = draw(s, UINT32_MAX);
}

static int settle(struct gate *g, struct gate_play *p)
{
    struct soak *s = (struct soak *)g->arg;
    const struct gate_play *serial;
    int r = gate_serial_of(g, &p->ask, &serial); /* it is there */

    if (r != 0)
        return r;
    s->replies++;
    s->cancelled += p->reply.finish == FINISH_CANCELLED;
    gate_judge(g, p, serial);
    gate_plays_free(p, 1);
    p->added = false;
    if (lead_round(g->l)->number < s->until && !gate_failed(g))
        renew(s, p);
    return 0;
}

/* ---- the run -------------------------------------------------------------------------------- */

/* Rounds until everybody has left again: what is left of memory then belongs to nobody's request.
 */
static int spell_of_rounds(struct soak *s, uint32_t rounds)
{
    struct gate *g = s->g;
    struct gate_play p[SLOTS_MAX];
    int slots = lead_round(g->l)->k->bounds.slots, r;

    s->until = lead_round(g->l)->number + rounds;
    g->step = 0;
    for (int i = 0; i < slots; i++)
        renew(s, &p[i]);
    g->over = settle;
    g->arg = s;
    r = gate_run(g, p, slots);
    g->over = NULL;
    gate_plays_free(p, slots);
    return r;
}

static void judge_memory(struct gate *g, const struct memory *warm, const struct memory *end)
{
    if (end->heap - warm->heap > HEAP_MAY_GROW)
        gate_fail(g, "the heap has grown by %lld bytes, from %lld",
                  (long long)(end->heap - warm->heap), (long long)warm->heap);
    if (end->rss - warm->rss > RSS_MAY_GROW)
        gate_fail(g, "the process has grown by %lld bytes, from %lld",
                  (long long)(end->rss - warm->rss), (long long)warm->rss);
}

int gate_soak(struct gate *g)
{
    int kinds = g->full ? KINDS_FULL : KINDS_QUICK, rounds = g->full ? ROUNDS_FULL : ROUNDS_QUICK;
    int share = lead_round(g->l)->k->cfg.ranks > 1 ? SEVERAL : 1;
    struct soak s = { .g = g, .kinds = kinds, .kind = calloc((size_t)kinds, sizeof(*s.kind)) };
    struct gate_sum *sum = &g->sum[g->now];
    struct memory warm = { 0 }, end = { 0 };
    size_t used = strlen(sum->note);
    int r = s.kind ? make_kinds(&s) : fail(-ENOMEM, "soak: no memory for %d kinds", kinds);

    g->depth = GATE_DEPTH_RANDOM;
    for (int look = 0; look < LOOKS && r == 0 && !gate_failed(g); look++) {
        r = spell_of_rounds(&s, (uint32_t)(rounds / share / LOOKS));
        end = memory_now();
        if (look == WARM_LOOKS)
            warm = end;
        log_info("soak: %s, %d of %d, %lld replies, heap %lld KiB, resident %lld KiB",
                 g->world_name, look + 1, LOOKS, (long long)s.replies, (long long)end.heap >> 10,
                 (long long)end.rss >> 10);
    }
    if (r == 0 && !gate_failed(g))
        judge_memory(g, &warm, &end);
    snprintf(sum->note + used, sizeof(sum->note) - used,
             "%s%lld replies, %lld cancelled, resident %.1f to %.1f MB, heap %.2f to %.2f",
             used ? "; " : "", (long long)s.replies, (long long)s.cancelled, (double)warm.rss / 1e6,
             (double)end.rss / 1e6, (double)warm.heap / 1e6, (double)end.heap / 1e6);
    g->salt = 0;
    free(s.kind);
    return r;
}
