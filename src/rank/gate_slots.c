/* gate_slots.c owns the gates on company: who shares a window, in which slot and on how many ranks,
 * does not show in a reply. */
#include "src/rank/gate.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/model/exec.h"
#include "src/transport/comm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int judge_all(struct gate *g, const struct gate_play *p, int n)
{
    int r = 0;

    for (int i = 0; i < n && r == 0 && !gate_failed(g); i++) {
        const struct gate_play *serial;

        r = gate_serial_of(g, &p[i].ask, &serial);
        if (r == 0)
            gate_judge(g, &p[i], serial);
    }
    return r;
}

/* ---- G4 ------------------------------------------------------------------------------------- */

/* Four streams whose windows have so many rows each, in every slot and every place of a shared
 * window: the serial replies come first, so that the oracle has its records. */
static int shapes(struct gate *g, int turn, bool random)
{
    struct gate_play p[SLOTS_MAX] = { 0 };
    const struct gate_play *serial;
    int slots = lead_round(g->l)->k->bounds.slots, r = 0;

    for (int i = 0; i < slots && r == 0; i++) {
        p[i] =
            (struct gate_play){ .ask = gate_ask(g, i, g->world + i * 3,
                                                g->full ? GATE_TOKENS_FULL : 28),
                                .draft = true,
                                .depth = random ? -1 : (turn + i * WINDOW_MAX / 4) % WINDOW_MAX };
        p[i].ask.ignore_end = true;
        r = gate_serial_of(g, &p[i].ask, &serial);
    }
    if (r == 0)
        r = gate_run(g, p, slots);
    if (r == 0)
        r = judge_all(g, p, slots);
    gate_plays_free(p, slots);
    return r;
}

/* Over the turns every slot has windows of every number of rows. In the quick size every number of
 * rows is there once. */
int gate_windows(struct gate *g)
{
    int turns = g->full ? WINDOW_MAX : WINDOW_MAX / 4, r = 0;

    g->depth = GATE_DEPTH_RANDOM;
    gate_count_begin(g);
    for (int turn = 0; turn < turns && r == 0 && !gate_failed(g); turn++)
        r = shapes(g, turn, false);
    if (r == 0 && !gate_failed(g))
        r = shapes(g, 0, true);
    if (r == 0 && g->drafted == 0)
        gate_fail(g, "no window had more than one row");
    return r;
}

/* ---- G5, G8 --------------------------------------------------------------------------------- */

static int in_company(struct gate *g)
{
    struct gate_play p[GATE_COMPANY];
    int r = gate_company(g, p);

    if (r != 0)
        return r;
    r = gate_run(g, p, GATE_COMPANY);
    if (r == 0)
        r = judge_all(g, p, GATE_COMPANY);
    if (r == 0 && p[3].reply.finish != FINISH_CANCELLED)
        gate_fail(g, "the stream that was to be cancelled ended before");
    gate_plays_free(p, GATE_COMPANY);
    return r;
}

int gate_batched(struct gate *g)
{
    int r;

    g->depth = GATE_DEPTH_FULL;
    r = in_company(g);
    g->depth = GATE_DEPTH_RANDOM;
    if (r == 0 && g->full)
        r = in_company(g);
    return r;
}

/* Followers compare every outcome and the digest over all outcomes with rank 0's, and end the group
 * where they differ: what is left to do here is to run. */
int gate_agree(struct gate *g)
{
    if (lead_round(g->l)->k->cfg.ranks == 1)
        return 0;
    g->depth = GATE_DEPTH_RANDOM;
    return in_company(g);
}

/* ---- G12 ------------------------------------------------------------------------------------ */

#define HOT_MODE 4 /* T 1.0, no filter */

/* One rank's sampler: whole rows, nobody to gather from. */
struct alone {
    struct rank *k;
    struct sampler sampler[SLOTS_MAX];
    void *row, *samplers, *info, *choice, *scratch, *best;
    int err, n;
    int32_t *chosen; /* [n] from position `from` + 1 on */
    int from;
};

static int take(struct alone *a, size_t bytes, void **out)
{
    return a->k->dev->ops->alloc(a->k->dev, bytes, out);
}

static void alone_close(struct alone *a)
{
    void *const p[] = { a->row, a->samplers, a->info, a->choice, a->scratch, a->best };

    for (size_t i = 0; i < sizeof(p) / sizeof(p[0]); i++)
        a->k->dev->ops->free(a->k->dev, p[i]);
}

static int alone_open(struct alone *a)
{
    size_t vocab = (size_t)a->k->bounds.vocab;
    int r = take(a, vocab * sizeof(float), &a->row);

    if (r == 0)
        r = take(a, sizeof(a->sampler), &a->samplers);
    if (r == 0)
        r = take(a, sizeof(struct row_info), &a->info);
    if (r == 0)
        r = take(a, sizeof(int32_t), &a->choice);
    if (r == 0)
        r = take(a, choose_scratch(vocab) * (size_t)a->k->dev->workers, &a->scratch);
    if (r == 0)
        r = take(a, sizeof(struct candidate), &a->best);
    return r;
}

static void choose_alone(void *arg, int pos, const float *logits)
{
    struct alone *a = (struct alone *)arg;
    struct rank *k = a->k;
    struct row_info info = { .pos = pos };
    int at = pos - a->from, vocab = k->bounds.vocab;

    if (a->err < 0 || at < 0 || at >= a->n)
        return;
    k->q->ops->put(k->q, a->row, logits, (size_t)vocab * sizeof(float));
    k->q->ops->put(k->q, a->info, &info, sizeof(info));
    k->q->ops->put(k->q, a->samplers, a->sampler, sizeof(a->sampler));
    k->x.op->best(k->q, &(struct best_args){
                            .logits = a->row, .cand = a->best, .rows = 1, .cols = vocab, .k = 1 });
    k->x.op->choose(k->q, &(struct choose_args){ .best = a->best,
                                                 .full = a->row,
                                                 .sampler = a->samplers,
                                                 .info = a->info,
                                                 .choice = a->choice,
                                                 .scratch = a->scratch,
                                                 .width = { vocab },
                                                 .ranks = 1,
                                                 .rows = 1,
                                                 .ldf = vocab,
                                                 .k = 1 });
    k->q->ops->get(k->q, &a->chosen[at], a->choice, sizeof(int32_t));
    a->err = k->q->ops->wait(k->q);
}

/* The reply's logits once more, as known text, through one rank's sampler. */
static int score_reply(struct gate *g, const struct gate_play *serial, struct alone *a)
{
    struct rounds *r = lead_round(g->l);
    const struct gate_prompt *p = serial->ask.prompt;
    int n = p->n + serial->reply.n, most = r->k->bounds.prefill_chunk, err;
    int32_t *ids = malloc((size_t)n * sizeof(*ids));
    struct plan_admit admit = { .n = n, .budget = 1, .ids = ids };
    struct plan_span s = { 0 };

    if (!ids)
        return fail(-ENOMEM, "gate: no memory for %d tokens", n);
    memcpy(ids, p->ids, (size_t)p->n * sizeof(*ids));
    memcpy(ids + p->n, serial->reply.ids, (size_t)serial->reply.n * sizeof(*ids));
    sampler_default(&admit.sampler);
    err = order_admit(r, &admit);
    for (; err == 0 && s.start < p->n - 1; s.start = s.end) {
        s.end = s.start + most < p->n - 1 ? s.start + most : p->n - 1;
        err = order_fill(r, &s);
    }
    for (; err == 0 && s.start < n - 1; s.start = s.end) {
        s.end = s.start + WINDOW_MAX < n - 1 ? s.start + WINDOW_MAX : n - 1;
        err = order_score(r, &s, choose_alone, a);
    }
    if (err == 0)
        err = order_release(r, 0);
    free(ids);
    return err < 0 ? err : a->err;
}

static int sampled_alone(struct gate *g, const struct gate_ask *ask)
{
    struct alone a = { .k = lead_round(g->l)->k, .from = ask->prompt->n - 1 };
    const struct gate_play *serial;
    int r = gate_serial_of(g, ask, &serial);

    if (r != 0)
        return r;
    a.sampler[0] = g->mode[ask->mode].s;
    a.sampler[0].seed = ask->seed;
    a.sampler[0].prompt = ask->prompt->n;
    a.n = serial->reply.n;
    a.chosen = calloc((size_t)a.n + 1, sizeof(*a.chosen));
    r = a.chosen ? alone_open(&a) : fail(-ENOMEM, "gate: no memory for %d tokens", a.n);
    if (r == 0)
        r = score_reply(g, serial, &a);
    for (int i = 0; i < a.n && r == 0; i++)
        if (a.chosen[i] != serial->reply.ids[i]) {
            gate_fail(g,
                      "%s, %s: position %d is %d, of the same logits one rank's sampler takes %d",
                      ask->prompt->name, g->mode[ask->mode].name, ask->prompt->n + i,
                      serial->reply.ids[i], a.chosen[i]);
            break;
        }
    if (r == 0 && !gate_failed(g)) {
        g->sum[g->now].cases++;
        g->sum[g->now].tokens += a.n;
    }
    alone_close(&a);
    free(a.chosen);
    return r;
}

/* The same request in every slot at once. */
static int every_slot(struct gate *g, const struct gate_ask *ask)
{
    struct gate_play p[SLOTS_MAX];
    int slots = lead_round(g->l)->k->bounds.slots, r;

    for (int i = 0; i < slots; i++)
        p[i] = (struct gate_play){ .ask = *ask, .join = 2 * i, .depth = -1 };
    r = gate_run(g, p, slots);
    if (r == 0)
        r = judge_all(g, p, slots);
    gate_plays_free(p, slots);
    return r;
}

/* Some texts are certain, but not all of them. */
static int other_seed(struct gate *g)
{
    for (int i = 0; i < g->prompts - 1; i++) {
        struct gate_ask ask = gate_ask(g, i, HOT_MODE, 16), changed = ask;
        const struct gate_play *one, *other;
        int r = gate_serial_of(g, &ask, &one);

        changed.seed++;
        if (r == 0)
            r = gate_serial_of(g, &changed, &other);
        if (r != 0)
            return r;
        if (one->reply.n != other->reply.n ||
            memcmp(one->reply.ids, other->reply.ids, (size_t)one->reply.n * sizeof(int32_t)) != 0)
            return 0;
    }
    gate_fail(g, "another seed changes no reply at temperature 1");
    return 0;
}

int gate_seeds(struct gate *g)
{
    int r = 0;

    /* Modes without edits: every second one. */
    for (int m = 0; m < GATE_MODES && r == 0 && !gate_failed(g); m++) {
        struct gate_ask ask = gate_ask(g, m / 2 + g->world, m, g->full ? GATE_TOKENS_FULL : 16);

        if (g->mode[m].edits || ask.prompt == &g->prompt[g->prompts - 1])
            continue;
        r = sampled_alone(g, &ask);
        if (r == 0 && (g->full || m % 8 == 2 + 2 * (g->world & 1)))
            r = every_slot(g, &ask);
    }
    return r == 0 && !gate_failed(g) ? other_seed(g) : r;
}
