/* Captured windows of the pocket model: a graph is made once for a number of rows and then serves
 * every position, token and sampler, with the bits of the same calls made one by one.
 *
 *   graph [-q] [tokens [ranks]]      how many tokens each reply gets, and the most ranks (2); -q,
 *                                    for tools that make a program slow: a window and a reply alone
 */
#include "src/base/clock.h"
#include "src/verify/accept.h"
#include "tests/device/parts.h"
#include "tests/draft/draft_rig.h"
#include "tests/rig/goldens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT 70 /* windows of 64 have wrapped */
#define REPLY_MAX 256

static int failures, reply = 48;
static bool quick;

#define CHECK(c, ...)                                                                              \
    do {                                                                                           \
        if (!(c) && __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED) < 20) {                     \
            printf("FAILED line %d: %s: ", __LINE__, #c);                                          \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

/* ---- windows alone --------------------------------------------------------------------------- */

struct rows_out {
    float *logits, *taps;
    uint64_t states;
};

static void keep(struct rig *g, int slot, int rows, struct rows_out *o)
{
    size_t z = (size_t)g->m->vocab_share, t = (size_t)g->m->tap_cols;

    g->q->ops->get(g->q, o->logits, g->w->logits, sizeof(float) * z * (size_t)rows);
    g->q->ops->get(g->q, o->taps, g->w->taps, sizeof(float) * t * (size_t)rows);
    CHECK(g->q->ops->wait(g->q) == 0, "rows %d", rows);
    rig_keep(g, slot, rows);
    CHECK(slot_digest(g->pool, g->q, slot, g->pool->states.n, &o->states) == 0, "rows %d", rows);
}

/* The window's ids to the device; what follows is eager or a graph. */
static void upload(struct rig *g, int slot, const int32_t *tok, int rows)
{
    window_clear(g->w);
    CHECK(window_add(g->w, slot, tok, rows, 0) == 0, "rows %d", rows);
    g->w->head = true;
    CHECK(g->m->ops->stage(g->m, g->pool, g->rows, g->w) == 0, "rows %d", rows);
    CHECK(window_upload(&g->x, g->pool, g->w) == 0, "rows %d", rows);
}

static struct graph *capture_forward(struct rig *g, bool side, size_t ahead)
{
    struct graph *graph = NULL;

    g->x.side = side;
    g->x.prefetch = ahead;
    g->x.prefetch_rate = 200;
    CHECK(g->q->ops->graph_begin(g->q) == 0, "rows %d", g->w->rows);
    g->m->ops->forward(g->m, &g->x, g->pool, g->w);
    CHECK(g->q->ops->graph_end(g->q, &graph) == 0, "rows %d", g->w->rows);
    /* making a graph allocates, and that waits for an exchange of a rank that is further on */
    CHECK(comm_barrier(g->comm) == 0, "rows %d", g->w->rows);
    g->x.side = false;
    g->x.prefetch = 0;
    return graph;
}

static int fresh(struct rig *g, const int32_t *ids)
{
    int slot;

    CHECK(slot_take(g->pool, g->q, -1, &slot) == 0, "slots");
    rig_forward(g, slot, ids, PROMPT, false);
    rig_keep(g, slot, PROMPT);
    return slot;
}

static void same(const struct rig *g, const struct rows_out *want, const struct rows_out *got,
                 int rows, int at, const char *how)
{
    CHECK(memcmp(want->logits, got->logits,
                 sizeof(float) * (size_t)g->m->vocab_share * (size_t)rows) == 0,
          "logits of %d rows at %d, %s", rows, at, how);
    CHECK(memcmp(want->taps, got->taps, sizeof(float) * (size_t)g->m->tap_cols * (size_t)rows) == 0,
          "taps of %d rows at %d, %s", rows, at, how);
    CHECK(want->states == got->states, "states after %d rows at %d, %s", rows, at, how);
}

/* Windows of R rows at four positions and in slots of their own: eager, by one graph, and by one
 * whose ops run side by side where ranks do not share the device, every second one with weights
 * asked for ahead. */
static void windows(struct rig *g, void *arg)
{
    static const int sizes[] = { 2, 1, 3, 4, 6, 8, 16 };
    size_t n, z = (size_t)g->m->vocab_share * 16, t = (size_t)g->m->tap_cols * 16;
    bool side = g->x.side;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    struct rows_out want = { calloc(z, sizeof(float)), calloc(t, sizeof(float)), 0 };
    struct rows_out got = { calloc(z, sizeof(float)), calloc(t, sizeof(float)), 0 };

    for (size_t i = 0; i < (quick ? 1 : sizeof(sizes) / sizeof(sizes[0])); i++) {
        int rows = sizes[i], positions = quick ? 1 : 4, slot[3], ways = side ? 3 : 2;
        struct graph *graph[3] = { NULL };

        g->x.side = false;
        for (int s = 0; s < ways; s++)
            slot[s] = fresh(g, ids);
        upload(g, slot[0], ids + PROMPT, rows);
        for (int s = 1; s < ways; s++)
            graph[s] = capture_forward(g, s == 2, s == 2 && i % 2 == 0 ? 100 << 10 : 0);
        for (int at = PROMPT; graph[ways - 1] && at < PROMPT + positions * rows; at += rows) {
            upload(g, slot[0], ids + at, rows);
            g->m->ops->forward(g->m, &g->x, g->pool, g->w);
            keep(g, slot[0], rows, &want);
            for (int s = 1; s < ways; s++) {
                upload(g, slot[s], ids + at, rows);
                g->q->ops->graph_launch(g->q, graph[s]);
                keep(g, slot[s], rows, &got);
                same(g, &want, &got, rows, at, s == 1 ? "in a row" : "side by side");
            }
        }
        CHECK(comm_check(g->comm) == 0, "rows %d", rows);
        CHECK(comm_barrier(g->comm) == 0, "rows %d", rows);
        for (int s = 0; s < ways; s++) {
            g->q->ops->graph_close(graph[s]);
            slot_drop(g->pool, slot[s]);
        }
    }
    g->x.side = side;
    free(want.logits), free(want.taps), free(got.logits), free(got.taps);
}

/* ---- whole rounds ---------------------------------------------------------------------------- */

/* A captured round: the window with its choices, then what the drafter does behind it. Graphs are
 * kept by rows of the window; all windows have the same slots, each with as many rows. */
struct round_graphs {
    struct graph *window[WINDOW_MAX + 1], *draft[WINDOW_MAX + 1];
};

struct decode {
    int slots, drafts; /* drafts 0: serial */
    bool captured;
    struct sampler sampler[SLOTS_MAX];
    int32_t (*text)[REPLY_MAX + WINDOW_MAX]; /* [slots] of rank 0 */
    int rounds;
    double us; /* a round */
};

static void window_ops(struct rig *g, struct accept *acc)
{
    g->m->ops->forward(g->m, &g->x, g->pool, g->w);
    accept_window(acc, &g->x, g->w);
    slot_commit(&g->x, g->pool, g->w);
    window_fetch(&g->x, g->w);
}

static void draft_ops(struct rig *g, struct drafter *dr, const struct decode *d, struct proposal *p)
{
    dr->ops->observe(dr, &g->x, g->pool, g->w);
    dr->ops->propose(dr, &g->x, g->pool, p, d->sampler);
}

/* A window of `rows` rows a slot, the first of them pending, the others what a drafter proposed. A
 * short proposal is filled up with what nobody would say. */
static void describe(struct rig *g, const struct decode *d, const struct proposal *p, int rows,
                     const int32_t *pending)
{
    window_clear(g->w);
    for (int s = 0; s < d->slots; s++) {
        int32_t tok[WINDOW_MAX] = { pending[s] };

        for (int i = 0; i < rows - 1; i++)
            tok[1 + i] = i < p->len[s] ? p->draft[s][i] : 1;
        CHECK(window_add(g->w, p->slot[s], tok, rows, 0) == 0, "%d rows", rows);
    }
    g->w->head = true;
}

/* All graphs of the reply, before the first of them runs: ranks must not allocate later. */
static void capture_round(struct rig *g, struct accept *acc, struct drafter *dr,
                          const struct decode *d, struct proposal *p, struct round_graphs *r)
{
    const struct backend_ops *b = g->q->ops;
    int32_t pending[SLOTS_MAX] = { 0 };

    for (int rows = 1; rows <= 1 + d->drafts; rows += d->drafts ? d->drafts : 1) {
        describe(g, d, p, rows, pending);
        accept_stage(acc, &g->x, g->pool, g->w, d->sampler);
        CHECK(b->graph_begin(g->q) == 0, "window");
        window_ops(g, acc);
        CHECK(b->graph_end(g->q, &r->window[rows]) == 0, "window");
        if (!d->drafts)
            continue;
        CHECK(b->graph_begin(g->q) == 0, "draft");
        draft_ops(g, dr, d, p);
        CHECK(b->graph_end(g->q, &r->draft[rows]) == 0, "draft");
    }
}

/* One round, up to its wait. */
static void run_round(struct rig *g, struct accept *acc, struct drafter *dr, const struct decode *d,
                      struct proposal *p, const struct round_graphs *r)
{
    int rows = g->w->seg[0].len;

    CHECK(g->m->ops->stage(g->m, g->pool, g->rows, g->w) == 0, "%d rows", rows);
    CHECK(window_upload(&g->x, g->pool, g->w) == 0, "%d rows", rows);
    accept_stage(acc, &g->x, g->pool, g->w, d->sampler);
    if (d->captured)
        g->q->ops->graph_launch(g->q, r->window[rows]);
    else
        window_ops(g, acc);
    if (d->drafts && d->captured)
        g->q->ops->graph_launch(g->q, r->draft[rows]);
    else if (d->drafts)
        draft_ops(g, dr, d, p);
    CHECK(g->q->ops->wait(g->q) == 0, "%d rows", rows);
    CHECK(comm_check(g->comm) == 0, "%d rows", rows);
    if (accept_undecided(g->w) == 0)
        return;
    accept_resolve(acc, &g->x, g->pool, g->w);
    window_fetch(&g->x, g->w);
    if (d->drafts)
        draft_ops(g, dr, d, p); /* the pass behind the window saw the slot as it was */
    CHECK(g->q->ops->wait(g->q) == 0, "%d rows", rows);
}

static void note_text(struct rig *g, struct decode *d, int *len, int32_t *pending)
{
    for (int s = 0; s < d->slots; s++) {
        int n = g->w->n_ok[s];

        for (int i = 0; i < n && len[s] < REPLY_MAX; i++, len[s]++)
            if (g->rank == 0)
                d->text[s][len[s]] =
                    i == n - 1 ? g->w->next[s] : g->w->tok[g->w->seg[s].first + i + 1];
        pending[s] = g->w->next[s];
    }
}

static void decode(struct draft_rig *b, struct rig *g)
{
    struct decode *d = b->arg;
    struct drafter *dr = b->d[g->rank];
    struct round_graphs graphs = { 0 };
    struct proposal p = { .n = d->slots };
    int32_t pending[SLOTS_MAX];
    int len[SLOTS_MAX] = { 0 }, rounds = 0;
    struct accept *acc;
    int64_t start;
    size_t n;

    CHECK(accept_open(g->dev, g->m, g->m->sites + dr->sites, &acc) == 0, "accept");
    for (int s = 0; s < d->slots; s++) {
        p.slot[s] = draft_slot(b, g, s, 0);
        accept_admit(acc, &g->x, p.slot[s], &d->sampler[s], NULL);
    }
    if (d->captured)
        capture_round(g, acc, dr, d, &p, &graphs);
    CHECK(comm_barrier(g->comm) == 0, "captured");
    for (int s = 0; s < d->slots; s++) {
        const int32_t *ids = golden_i32(&n, "prose_long.ids") + 37 * s;

        draft_feed(b, g, p.slot[s], ids, PROMPT, 64);
        pending[s] = ids[PROMPT];
    }
    start = clock_ns();
    for (int least = 0; least < reply; rounds++) {
        describe(g, d, &p, rounds == 0 ? 1 : 1 + d->drafts, pending);
        run_round(g, acc, dr, d, &p, &graphs);
        if (d->drafts)
            dr->ops->collect(dr, &p);
        slot_sync(g->pool, g->w);
        note_text(g, d, len, pending);
        least = len[0];
        for (int s = 1; s < d->slots; s++)
            least = len[s] < least ? len[s] : least;
    }
    if (g->rank == 0) {
        d->rounds = rounds;
        d->us = (double)(clock_ns() - start) / NS_PER_US / rounds;
    }
    CHECK(comm_barrier(g->comm) == 0, "end");
    for (int i = 0; i <= WINDOW_MAX; i++) {
        g->q->ops->graph_close(graphs.window[i]);
        g->q->ops->graph_close(graphs.draft[i]);
    }
    accept_close(acc);
}

static void replies(int ranks, int slots, double temperature)
{
    static int32_t text[4][SLOTS_MAX][REPLY_MAX + WINDOW_MAX];
    static const struct {
        const char *name;
        int drafts;
        bool captured;
    } ways[4] = { { "serial", 0, false },
                  { "serial captured", 0, true },
                  { "drafted", 5, false },
                  { "drafted captured", 5, true } };

    memset(text, 0xff, sizeof(text));
    for (int i = quick ? 3 : 0; i < 4; i++) {
        struct decode d = {
            .slots = slots, .drafts = ways[i].drafts, .captured = ways[i].captured, .text = text[i]
        };
        struct draft_rig b = { .name = "dspark", .fn = decode, .arg = &d };

        for (int s = 0; s < SLOTS_MAX; s++)
            d.sampler[s] = (struct sampler){ .temperature = s % 2 ? 0 : temperature,
                                             .top_p = 0.95,
                                             .seed = 5 + (uint64_t)s };
        draft_rigs_run(
            (struct rig_settings){
                .ranks = ranks, .slots = slots, .bf16_wire = true, .context = 512, .rows_max = 80 },
            &b);
        printf("%d ranks, %d slots, temperature %g, %s: %d rounds, %.2f tokens a round, %.0f us a "
               "round\n",
               ranks, slots, temperature, ways[i].name, d.rounds, (double)reply / d.rounds, d.us);
        fflush(stdout);
        for (int s = 0; s < slots && !quick; s++)
            CHECK(memcmp(text[0][s], text[i][s], sizeof(int32_t) * (size_t)reply) == 0,
                  "%s says something else in slot %d", ways[i].name, s);
    }
}

int graph_main(int argc, char **argv)
{
    const struct backend_ops *b;
    char why[160];
    int most = 2;

    if (backend_find("cuda", &b) < 0)
        return 1;
    if (b->probe(0, why, sizeof(why)) < 0) {
        printf("skipped: cuda: %s\n", why);
        return 77;
    }
    if (argc > 1 && strcmp(argv[1], "-q") == 0) {
        quick = true;
        argc--;
        argv++;
    }
    reply = argc > 1 ? atoi(argv[1]) : reply;
    most = argc > 2 ? atoi(argv[2]) : most;
    rig_backend("cuda");
    for (int ranks = 1; ranks <= most; ranks++)
        for (int fp32 = 0; fp32 < (quick ? 1 : 2); fp32++)
            rigs_run(
                &(struct rig_settings){
                    .ranks = ranks, .fp32 = fp32, .slots = 3, .context = 512, .rows_max = 80 },
                windows, NULL);
    for (int ranks = 1; ranks <= most; ranks++)
        for (int slots = 1; slots <= (quick ? 1 : 3); slots += 2) {
            if (!quick)
                replies(ranks, slots, 0);
            replies(ranks, slots, 0.8);
        }
    printf("graph: %d failures\n", failures);
    return failures != 0;
}
