/* parts.c owns which calls make a part of a round, and what tells two of them apart. */
#include "src/rank/parts.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/model/slot.h"
#include "src/model/window.h"
#include "src/transport/comm.h"
#include "src/verify/accept.h"

#include <stdlib.h>

enum part { PART_WINDOW, PART_DRAFT, PARTS };

/* Beside those of accept_class. */
#define CLASS_DROPPED (1u << 30)
#define CLASS_INGEST (1u << 29)

struct parts {
    struct rank *k;
    const struct sampler *sampler;
    struct captures *graphs;
    struct parts_order order; /* being run or captured */
    struct parts_ran ran;
};

/* Setting graph_pieces. */
static void cut(void *arg, int layer)
{
    const struct parts *p = (const struct parts *)arg;

    if (capture_piece_ends(layer, p->k->model->layers, p->k->cfg.graph_pieces))
        captures_cut(p->graphs);
}

int parts_open(struct rank *k, const struct sampler *sampler, struct parts **out)
{
    struct parts *p = calloc(1, sizeof(*p));
    bool wanted = k->cfg.graphs != GRAPHS_OFF && rank_captures(k);
    int r;

    if (!p)
        return fail(-ENOMEM, "round: out of memory");
    p->k = k;
    p->sampler = sampler;
    k->x.passed = cut;
    k->x.passed_arg = p;
    r = captures_open(k->q, wanted ? k->cfg.graph_max : 0, &p->graphs);
    if (r < 0) {
        free(p);
        return r;
    }
    *out = p;
    return 0;
}

void parts_close(struct parts *p)
{
    struct capture_counts n;

    if (!p)
        return;
    n = captures_counts(p->graphs);
    if (captures_on(p->graphs))
        log_info("graphs: %llu made, %llu dropped, %d kept; %llu parts replayed, %llu eager",
                 (unsigned long long)n.made, (unsigned long long)n.dropped, n.held,
                 (unsigned long long)n.replayed, (unsigned long long)n.eager);
    p->k->x.passed = NULL;
    captures_close(p->graphs);
    free(p);
}

struct capture_counts parts_counts(const struct parts *p)
{
    return captures_counts(p->graphs);
}

int parts_bucket(const struct parts *p, int rows, int last_len)
{
    const struct rank *k = p->k;
    int bucket = captures_bucket(rows);

    if (!captures_on(p->graphs) || bucket > k->win->rows_max ||
        last_len + bucket - rows > k->pool->rows_max)
        return 0;
    return bucket;
}

/* ---- the parts ------------------------------------------------------------------------------- */

void parts_ingest(void *rank, struct exec *x)
{
    struct rank *k = (struct rank *)rank;

    k->drafter->ops->observe(k->drafter, x, k->pool, k->win);
}

static void queue_window(void *arg)
{
    struct parts *p = (struct parts *)arg;
    struct rank *k = p->k;
    uint64_t before = k->comm->stats.wait_ns, forward;

    progress_phase(&k->progress, PHASE_WINDOW);
    k->arena.used = 0;
    window_stamp(&k->x, k->win, STAMP_BEGIN);
    window_send(&k->x, k->pool, k->win);
    k->win->tapped = p->order.ingest ? parts_ingest : NULL;
    k->win->tapped_arg = k;
    k->model->ops->forward(k->model, &k->x, k->pool, k->win);
    window_stamp(&k->x, k->win, STAMP_FORWARD);
    forward = k->comm->stats.wait_ns;
    progress_phase(&k->progress, PHASE_CHOOSE);
    accept_window(k->acc, &k->x, k->win);
    if (!p->order.dropped)
        slot_commit(&k->x, k->pool, k->win);
    window_stamp(&k->x, k->win, STAMP_CHOSEN);
    window_fetch(&k->x, k->win);
    p->ran.window_wait_ns = forward - before;
    p->ran.choose_wait_ns = k->comm->stats.wait_ns - forward;
}

static void queue_draft(void *arg)
{
    const struct parts *p = (const struct parts *)arg;
    struct rank *k = p->k;

    if (p->order.observe) {
        progress_phase(&k->progress, PHASE_OBSERVE);
        k->arena.used = 0;
        k->drafter->ops->observe(k->drafter, &k->x, k->pool, k->win);
    }
    window_stamp(&k->x, k->win, STAMP_INGESTED);
    if (p->order.pass) {
        progress_phase(&k->progress, PHASE_DRAFT);
        k->arena.used = 0;
        k->drafter->ops->propose(k->drafter, &k->x, k->pool, p->order.pass, p->sampler);
        window_stamp(&k->x, k->win, STAMP_DRAFTED);
    }
    window_fetch_stamps(&k->x, k->win);
}

static void (*const queue_part[PARTS])(void *arg) = {
    [PART_WINDOW] = queue_window, [PART_DRAFT] = queue_draft
};

static bool has(const struct parts_order *o, enum part part)
{
    return part == PART_WINDOW ? o->window : o->observe || o->pass;
}

static struct capture_key key_of(const struct parts *p, enum part part)
{
    const struct window *w = p->k->win;
    struct capture_key key = { .part = part, .rows = w->rows, .segs = w->segs };

    if (part == PART_WINDOW)
        key.class = accept_class(p->k->acc) | (p->order.dropped ? CLASS_DROPPED : 0) |
                    (p->order.ingest ? CLASS_INGEST : 0);
    else if (!p->order.observe)
        key.rows = key.segs = 0;
    if (part == PART_DRAFT && p->order.pass)
        key.class = (unsigned)p->order.pass->n | (unsigned)p->order.pass->most << 8;
    return key;
}

/* All graphs of the round before the first of them runs. */
static int take_graphs(struct parts *p, const struct captured *graph[PARTS], enum round_mode *mode)
{
    bool made = false, eager = false;

    captures_next(p->graphs);
    for (int i = 0; i < PARTS; i++) {
        struct capture_key key;
        int r;

        graph[i] = NULL;
        if (!has(&p->order, i))
            continue;
        if (captures_on(p->graphs)) {
            key = key_of(p, i);
            r = captures_take(p->graphs, &key, queue_part[i], p, &graph[i]);
            if (r < 0)
                return r;
            made |= r == 1;
        }
        eager |= !graph[i];
    }
    *mode = made ? MODE_CAPTURE : eager ? MODE_EAGER : MODE_REPLAY;
    return made ? comm_barrier(p->k->comm) : 0;
}

int parts_run(struct parts *p, const struct parts_order *o, struct parts_ran *ran)
{
    struct rank *k = p->k;
    const struct captured *graph[PARTS];
    int r;

    p->order = *o;
    p->ran = (struct parts_ran){ 0 };
    r = take_graphs(p, graph, &p->ran.mode);
    if (r < 0)
        return r;
    if (graph[PART_DRAFT] && o->pass)
        k->drafter->ops->stage(k->drafter, o->pass, p->sampler);
    for (int i = 0; i < PARTS; i++)
        if (graph[i]) {
            captured_launch(k->q, graph[i]);
            if (i == PART_WINDOW)
                window_launched(k->win);
        } else if (has(o, i)) {
            queue_part[i](p);
        }
    *ran = p->ran;
    return 0;
}

/* ---- before the first order ------------------------------------------------------------------ */

/* What the graphs that are kept may come to: no plan of the memory knows. */
static void tell_room(const struct parts *p, size_t before)
{
    const struct rank *k = p->k;
    size_t left = k->dev->ops->room(k->dev), took = before > left ? before - left : 0;

    log_info("graphs: %d made ahead in %.1f MiB of the device's memory, up to %d are kept",
             captures_counts(p->graphs).held, (double)took / (1 << 20), k->cfg.graph_max);
}

int parts_warm(struct parts *p)
{
    static const struct sampler greedy[SLOTS_MAX];
    struct rank *k = p->k;
    bool drafts = k->drafter->ops->caps & DRAFTER_DEVICE;
    int most =
        k->drafter->block + 1 < k->bounds.window_max ? k->drafter->block + 1 : k->bounds.window_max;
    struct proposal pass = { .n = 1 };
    const struct captured *graph[PARTS];
    enum round_mode mode;
    int32_t tok[WINDOW_MAX] = { 0 };
    size_t room;
    int r = 0;

    if (!captures_on(p->graphs))
        return 0;
    room = k->dev->ops->room(k->dev);
    for (int rows = 1; rows <= most && r == 0; rows++) {
        window_clear(k->win);
        k->win->head = true;
        r = window_add(k->win, 0, tok, rows, 0);
        if (r < 0)
            break;
        window_pad(k->win, parts_bucket(p, rows, rows));
        accept_stage(k->acc, &k->x, k->pool, k->win, greedy);
        p->order = (struct parts_order){ .window = true,
                                         .observe = drafts && !k->cfg.early_ingest,
                                         .ingest = drafts && k->cfg.early_ingest,
                                         .pass = drafts ? &pass : NULL };
        r = take_graphs(p, graph, &mode);
    }
    if (r == 0)
        r = k->q->ops->wait(k->q);
    if (r == 0)
        tell_room(p, room);
    return r;
}
