/* gate_draft.c owns the gates on drafts: whoever proposes, and however deep, the serial reply comes
 * out. */
#include "src/rank/gate.h"

#include "src/draft/drafter.h"
#include "src/draft/speculation.h"
#include "src/model/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORACLE_DEPTH 5    /* the schedule spoils one of five drafts */
#define ORACLE_TOKENS 112 /* in which it spoils each of them */

/* What a gate on drafts that verified none has tried is nothing. */
static void want_drafts(struct gate *g)
{
    if (g->drafted == 0)
        gate_fail(g, "no draft was verified");
}

static int try_cases(struct gate *g, enum gate_depth depth)
{
    struct gate_ask ask[GATE_CASES_MAX];
    int n = gate_cases(g, ask), r = 0;

    g->depth = depth;
    gate_count_begin(g);
    for (int i = 0; i < n && r == 0 && !gate_failed(g); i++)
        r = gate_try(g, &ask[i], -1);
    if (r == 0)
        want_drafts(g);
    return r;
}

/* ---- G1, G3 --------------------------------------------------------------------------------- */

int gate_drafted(struct gate *g)
{
    return try_cases(g, GATE_DEPTH_FULL);
}

int gate_random(struct gate *g)
{
    return try_cases(g, GATE_DEPTH_RANDOM);
}

/* ---- G2 ------------------------------------------------------------------------------------- */

/* Every kind of accept has to have been met. */
static void want_kinds(struct gate *g)
{
    struct gate_sum *s = &g->sum[g->now];
    int64_t part = 0;

    for (int a = 1; a < ORACLE_DEPTH; a++) {
        part += g->part[a];
        if (g->part[a] == 0)
            gate_fail(g, "no window kept %d of its drafts", a);
    }
    if (g->whole == 0 || g->none == 0)
        gate_fail(g, "%lld windows kept all of their drafts, %lld none", (long long)g->whole,
                  (long long)g->none);
    snprintf(s->note, sizeof(s->note), "windows that kept all, some, none: %lld, %lld, %lld",
             (long long)g->whole, (long long)part, (long long)g->none);
}

int gate_oracle(struct gate *g)
{
    struct gate_ask ask[GATE_CASES_MAX];
    int n = 0, r = 0;

    gate_count_begin(g);
    if (g->full)
        n = gate_cases(g, ask);
    for (int m = 0; m < 2 && !g->full; m++)
        for (int p = 0; p < 2; p++)
            ask[n++] = gate_ask(g, p + 2 * m, g->world + m * 6, ORACLE_TOKENS);
    for (int i = 0; i < n && r == 0 && !gate_failed(g); i++) {
        ask[i].ignore_end = true;
        r = gate_try(g, &ask[i], ORACLE_DEPTH);
    }
    if (r == 0)
        want_kinds(g);
    return r;
}

/* ---- G13 ------------------------------------------------------------------------------------ */

/* Depths of a job: all that its drafter can fill, in the quick size few of those that cost most. */
static bool try_depth(const struct gate *g, int depth)
{
    const struct rank *k = lead_round(g->l)->k;
    const char *name = k->drafter->ops->name;

    if (depth > k->drafter->block)
        return false;
    if (g->full || strcmp(name, "oracle") == 0 || k->drafter->block < 8)
        return true;
    return depth % 5 == (strcmp(name, "random") == 0 ? 4 : 3);
}

int gate_policy(struct gate *g)
{
    struct gate_ask ask[GATE_CASES_MAX];
    int n = gate_cases(g, ask), most = lead_round(g->l)->k->bounds.window_max - 1, r = 0;
    int step = g->full ? 12 : n;

    gate_count_begin(g);
    for (int depth = 0; depth <= most; depth++)
        for (int i = 0; i < n && r == 0 && !gate_failed(g) && try_depth(g, depth); i += step)
            r = gate_try(g, &ask[(i + depth) % n], depth);
    g->depth = GATE_DEPTH_RANDOM;
    for (int i = 0; i < n && r == 0 && !gate_failed(g); i += g->full ? 12 : 3)
        r = gate_try(g, &ask[i], -1);
    if (r == 0)
        want_drafts(g);
    return r;
}

/* ---- G7 ------------------------------------------------------------------------------------- */

static int place(const struct gate *g, int slot)
{
    return (int)(g->in_slot[slot] - g->play);
}

static const int32_t *tokens(const struct gate *g, int slot)
{
    const struct window *w = lead_round(g->l)->k->win;

    for (int i = 0; i < w->segs; i++)
        if (w->seg[i].slot == slot)
            return w->tok + w->seg[i].first;
    return NULL;
}

static void write_trace(struct gate *g, const struct round_record *rec)
{
    for (int i = 0; i < rec->windows; i++) {
        const struct round_slot *s = &rec->slot[i];
        struct gate_window w = { .play = place(g, s->slot), .pos = s->pos, .k = s->k };

        if (g->written == g->trace_room) {
            int room = g->trace_room ? 2 * g->trace_room : 256;
            struct gate_window *more = realloc(g->trace, (size_t)room * sizeof(*more));

            if (!more) {
                gate_fail(g, "no memory for a trace of %d windows", room);
                return;
            }
            g->trace = more;
            g->trace_room = room;
        }
        memcpy(w.tok, tokens(g, s->slot), (size_t)(s->k + 1) * sizeof(*w.tok));
        g->trace[g->written++] = w;
    }
}

static void compare_window(struct gate *g, const struct gate_window *want,
                           const struct round_slot *s)
{
    const struct gate_play *p = g->in_slot[s->slot];
    const int32_t *tok = tokens(g, s->slot);

    if (want->play != place(g, s->slot) || want->pos != s->pos || want->k != s->k) {
        gate_fail(g,
                  "%s, window at %d with %d drafts; with passes behind windows it was at %d "
                  "with %d",
                  p->ask.prompt->name, s->pos, s->k, want->pos, want->k);
        return;
    }
    for (int i = 0; i <= s->k; i++)
        if (want->tok[i] != tok[i])
            gate_fail(g, "%s, window at %d: draft %d is %d, with passes behind windows it was %d",
                      p->ask.prompt->name, s->pos, i, tok[i], want->tok[i]);
}

static void read_trace(struct gate *g, const struct round_record *rec)
{
    for (int i = 0; i < rec->windows; i++)
        if (g->read < g->written)
            compare_window(g, &g->trace[g->read++], &rec->slot[i]);
        else
            gate_fail(g, "more windows than with passes behind windows");
}

/* The job with passes behind windows writes down what it verified, the job without compares. */
int gate_spec(struct gate *g)
{
    struct gate_play p[GATE_COMPANY] = { 0 };
    const struct tally *t = &lead_round(g->l)->tally;
    uint64_t used = t->spec[SPEC_USED];
    bool on = lead_round(g->l)->k->cfg.spec_draft;
    int r = gate_company(g, p);

    g->depth = GATE_DEPTH_RANDOM;
    g->seen = on ? write_trace : read_trace;
    if (on)
        g->written = 0;
    g->read = 0;
    if (r == 0)
        r = gate_run(g, p, GATE_COMPANY);
    g->seen = NULL;
    for (int i = 0; i < GATE_COMPANY && r == 0; i++) {
        const struct gate_play *serial;

        r = gate_serial_of(g, &p[i].ask, &serial);
        if (r == 0)
            gate_judge(g, &p[i], serial);
    }
    gate_plays_free(p, GATE_COMPANY);
    used = t->spec[SPEC_USED] - used;
    if (r == 0 && (used > 0) != on)
        gate_fail(g, "%llu passes behind windows were used", (unsigned long long)used);
    if (r == 0 && on)
        snprintf(g->sum[g->now].note, sizeof(g->sum[g->now].note),
                 "%llu passes behind windows were used", (unsigned long long)used);
    if (r == 0 && !on && g->read != g->written)
        gate_fail(g, "%d windows, with passes behind windows %d", g->read, g->written);
    return r;
}
