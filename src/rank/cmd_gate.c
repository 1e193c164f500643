/* cmd_gate.c owns the list of gates, the worlds and jobs they run in, and what is said about them.
 */
#include "src/rank/gate.h"

#include "kernels/backend.h"
#include "src/base/clock.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/rank/commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH "depth=15"    /* the most that a window holds: nobody has to measure */
#define GROUP_GRACE_MS 5000 /* the report is written before a failed group ends the process */
#define DOCUMENT_ROOM 1024  /* of a context, for replies */
#define WORLDS_MAX 6
#define ALL_WORLDS (~0u)

static const struct {
    const char *name, *what;
    gate_fn *run;
    unsigned worlds; /* of the quick size: two that differ in numerics and in ranks will do */
} gates[GATES] = {
    [GATE_G1] = { "G1", "drafted == serial", gate_drafted, ALL_WORLDS },
    [GATE_G2] = { "G2", "oracle drafts == serial", gate_oracle, 0x9 },
    [GATE_G3] = { "G3", "random drafts == serial", gate_random, 0x6 },
    [GATE_G4] = { "G4", "windows of any shape == single rows", gate_windows, 0x6 },
    [GATE_G5] = { "G5", "batched == alone", gate_batched, ALL_WORLDS },
    [GATE_G6] = { "G6", "graphs == eager", gate_graphs, ALL_WORLDS },
    [GATE_G7] = { "G7", "passes behind windows on == off", gate_spec, 0x9 },
    [GATE_G8] = { "G8", "ranks agree", gate_agree, ALL_WORLDS },
    [GATE_G9] = { "G9", "levers on == off", gate_levers, 0x7 },
    [GATE_G10] = { "G10", "prompt seams", gate_seams, ALL_WORLDS },
    [GATE_G11] = { "G11", "stops", gate_stops, 0x9 },
    [GATE_G12] = { "G12", "seeds", gate_seeds, 0x6 },
    [GATE_G13] = { "G13", "any depth == serial", gate_policy, 0x9 },
    [GATE_SOAK] = { "soak", "streams at random == serial, memory flat", gate_soak, 0x7 },
};

#define IN(g) (1u << GATE_##g)

/* In this order: the first one of a world keeps what others are compared with. */
static const struct gate_job jobs[] = {
    { "no drafts", { "draft=none", DEPTH }, IN(G9) | IN(G10) | IN(G12), ALL_WORLDS },
    { "auto", { "draft=auto", "depth=auto" }, IN(G1) | IN(G5) | IN(G6) | IN(G8), ALL_WORLDS },
    { "own drafter", { DEPTH }, IN(G1) | IN(G7) | IN(G13), ALL_WORLDS, .own = true },
    { "no pass behind windows", { DEPTH, "spec_draft=off" }, IN(G7), ALL_WORLDS, .own = true },
    { "ngram", { "draft=ngram", DEPTH }, IN(G1) | IN(G13), 0x6 },
    { "oracle", { "draft=oracle", DEPTH }, IN(G2) | IN(G4) | IN(G11) | IN(G13), ALL_WORLDS },
    { "random", { "draft=random", DEPTH }, IN(G3) | IN(G13), ALL_WORLDS },
    { "chunks of 17", { "draft=auto", DEPTH, "prefill_chunk=17" }, IN(G10) | IN(G5), 0x9 },
    { "chunks of 64", { "draft=auto", DEPTH, "prefill_chunk=64" }, IN(G10), 0x6 },
    { "chunks of 255", { "draft=auto", DEPTH, "prefill_chunk=255" }, IN(G10), 0 },
    { "one thread", { "draft=auto", DEPTH, "threads=1" }, IN(G9), 0x1, .host = true },
    { "three threads", { "draft=auto", DEPTH, "threads=3" }, IN(G9), 0x4, .host = true },
    { "reference ops", { "draft=auto", DEPTH, "backend=ref" }, IN(G9), 0x1, .host = true },
    { "rows by pread", { "draft=auto", DEPTH, "engram_io=pread" }, IN(G9), 0x2 },
    { "few rows kept", { "draft=auto", DEPTH, "engram_cache=1MiB" }, IN(G9), 0x4 },
    { "early ingest", { "draft=auto", DEPTH, "early_ingest=on" }, IN(G6) | IN(G9), 0x6 },
    { "weights ahead", { "draft=auto", DEPTH, "prefetch=64KiB" }, IN(G6), 0x6, .graphs = true },
    { "graphs in pieces", { "draft=auto", DEPTH, "graph_pieces=8" }, IN(G6), 0x6, .graphs = true },
    { "no graphs", { "draft=auto", DEPTH, "graphs=off" }, IN(G6), ALL_WORLDS, .graphs = true },
    { "soak", { "draft=auto", "depth=auto" }, IN(SOAK), ALL_WORLDS },
};

#define JOBS ((int)(sizeof(jobs) / sizeof(jobs[0])))

/* What this process knows of the checkpoint before any job, the same on every rank. */
struct about {
    bool own; /* it has a drafter */
    char draft[32];
    unsigned caps; /* of the backend */
    bool host;     /* `ref` has the bits of the backend in use */
};

/* ---- which gates ---------------------------------------------------------------------------- */

static int read_only(struct gate *g, const char *only)
{
    char list[256], *at = list, *name;

    if (!only) {
        g->wanted = (1u << GATE_SOAK) - 1;
        return 0;
    }
    if ((size_t)snprintf(list, sizeof(list), "%s", only) >= sizeof(list)) {
        fail(-EINVAL, "--only: too long");
        return CODE_USAGE;
    }
    while ((name = strsep(&at, ","))) {
        int i = 0;

        while (i < GATES && strcmp(gates[i].name, name) != 0)
            i++;
        if (i == GATES) {
            fail(-EINVAL, "--only: want G1 .. G13 or soak, separated by commas, got \"%s\"", name);
            return CODE_USAGE;
        }
        g->wanted |= 1u << i;
    }
    return 0;
}

/* ---- a job ---------------------------------------------------------------------------------- */

static int prepare(struct job *j, struct rank *k)
{
    return 0;
}

/* Prices that no clock has measured, so that a run can be repeated. */
static void fixed_costs(struct lead *l)
{
    struct cost_table t = { .rows = WINDOW_MAX };

    for (int i = 1; i <= WINDOW_MAX; i++)
        t.window_us[i] = 800 + 200 * i;
    for (int s = 1; s <= SLOTS_MAX; s++)
        t.draft_us[s] = 200 + 100 * s;
    lead_costs(l, &t);
}

/* Gates that run in a job of this world. */
static unsigned due(const struct gate *g, const struct gate_job *kind)
{
    unsigned all = g->wanted & kind->gates, here = 0;

    for (int i = 0; i < GATES; i++)
        if (((g->full || g->o->as_set) && i != GATE_SOAK) ||
            (gates[i].worlds & kind->worlds & 1u << g->world))
            here |= 1u << i;
    return all & here;
}

static int lead_job(struct job *j, struct lead *l)
{
    struct gate *g = (struct gate *)j;
    uint32_t first = lead_round(l)->number;
    int err = 0;

    g->l = l;
    fixed_costs(l);
    lead_turns(l);
    for (int i = 0; i < GATES && err == 0; i++) {
        struct gate_sum *s = &g->sum[i];
        uint32_t rounds = lead_round(l)->number;
        int64_t begin = clock_ns();

        if (!(due(g, g->kind) & 1u << i) || s->failed)
            continue;
        g->now = (enum gate_id)i;
        err = gates[i].run(g);
        if (err < 0)
            gate_fail(g, "%s", rank_cause(lead_round(l)->k));
        s->ns += clock_ns() - begin;
        s->rounds += lead_round(l)->number - rounds;
    }
    g->left |= err == GATE_LEFT;
    if (lead_round(l)->k->cfg.ranks > 1)
        g->agreed += lead_round(l)->number - first;
    return err < 0 ? job_code(l, err) : CODE_DONE;
}

static bool runs(const struct gate *g, const struct gate_job *kind, const struct about *a)
{
    return due(g, kind) && !(kind->own && !a->own) && !(kind->host && !a->host) &&
           !(kind->graphs && !(a->caps & BACKEND_GRAPHS));
}

static int run_job(struct gate *g, const struct config *world, const struct gate_job *kind,
                   const struct about *a)
{
    struct config cfg = *world;
    char own[64];
    int r = 0;

    if (!runs(g, kind, a))
        return 0;
    if (kind->own) {
        snprintf(own, sizeof(own), "draft=%s", a->draft);
        r = config_set(&cfg, own);
    }
    for (int i = 0; i < 4 && kind->settings[i] && r == 0; i++)
        r = config_set(&cfg, kind->settings[i]);
    if (r < 0)
        return exit_code_of(STEP_CONFIG, r);
    g->kind = kind;
    r = job_run(&g->job, &cfg);
    meter_add(&g->meter, 1);
    return r;
}

/* ---- worlds --------------------------------------------------------------------------------- */

struct world {
    int numerics, ranks;
};

/* Released numerics only if they are asked for: they go with some weights. Threads can be one rank
 * or several; processes are as many as they are. */
static int list_worlds(const struct config *c, bool as_set, struct world w[WORLDS_MAX])
{
    static const int levels[] = { NUMERICS_BF16, NUMERICS_FP32, NUMERICS_RELEASED };
    bool threads = strcmp(c->link, "loop") == 0;
    int n = 0;

    if (as_set) {
        w[0] = (struct world){ c->numerics, c->ranks };
        return 1;
    }
    for (int i = 0; i < 3; i++) {
        if (levels[i] == NUMERICS_RELEASED && c->numerics != NUMERICS_RELEASED)
            continue;
        if (threads)
            w[n++] = (struct world){ levels[i], 1 };
        if (c->ranks > 1 || threads)
            w[n++] = (struct world){ levels[i], c->ranks > 1 ? c->ranks : 2 };
    }
    return n;
}

static int run_world(struct gate *g, const struct config *cfg, const struct about *a)
{
    char numerics[16] = "";
    int code = 0;

    config_get(cfg, "numerics", numerics, sizeof(numerics));
    snprintf(g->world_name, sizeof(g->world_name), "%s, %d rank%s", numerics, cfg->ranks,
             cfg->ranks == 1 ? "" : "s");
    memset(g->last, 0, sizeof(g->last));
    memset(g->tail, 0, sizeof(g->tail));
    for (int i = 0; i < JOBS && code == 0 && !g->left; i++)
        code = run_job(g, cfg, &jobs[i], a);
    gate_serials_free(g);
    g->kind = NULL;
    return code;
}

/* Nobody here has work left. Ranks that are processes cannot know that of each other. */
static bool all_failed(const struct gate *g)
{
    for (int i = 0; i < GATES; i++)
        if ((g->wanted >> i & 1u) && !g->sum[i].failed)
            return false;
    return true;
}

static int run_worlds(struct gate *g, const struct config *base, const struct about *a)
{
    struct world w[WORLDS_MAX];
    bool threads = strcmp(base->link, "loop") == 0;
    int n = list_worlds(base, g->o->as_set, w), code = 0;
    uint64_t total = 0;

    for (g->world = 0; g->world < n; g->world++)
        for (int i = 0; i < JOBS; i++)
            total += runs(g, &jobs[i], a);
    meter_begin(&g->meter, "gate", METER_ITEMS, total);
    for (g->world = 0; g->world < n && code == 0 && !g->left; g->world++) {
        struct config cfg = *base;

        if (threads && all_failed(g))
            break;
        cfg.numerics = w[g->world].numerics;
        cfg.ranks = w[g->world].ranks;
        code = run_world(g, &cfg, a);
    }
    meter_end(&g->meter);
    return code;
}

/* ---- before the first job ------------------------------------------------------------------- */

/* The soak has rounds to do. */
static bool full_document(const struct gate *g)
{
    return g->full && (g->wanted & ~IN(SOAK));
}

/* Texts, and what the checkpoint has, from a rank that meets nobody: it is loaded, not opened. */
static int look_around(struct gate *g, const struct config *base, struct about *a)
{
    struct rank k = { .cfg = *base, .drain = g->job.drain };
    int tokens = full_document(g) ? GATE_DOCUMENT_FULL : GATE_DOCUMENT_QUICK, room, code;

    if (strcmp(k.cfg.link, "loop") == 0)
        k.cfg.ranks = 1;
    k.cfg.draft = "auto";
    k.cfg.numerics = NUMERICS_BF16;
    code = rank_load(&k);
    if (code == 0) {
        a->own = k.drafter->block > 0;
        snprintf(a->draft, sizeof(a->draft), "%s", k.drafter->ops->name);
        room = k.bounds.context - DOCUMENT_ROOM;
        if (room < 1) {
            fail(-EINVAL, "gate: context is %d, want more than %d", k.bounds.context,
                 DOCUMENT_ROOM);
            code = CODE_CONFIG;
        }
    }
    if (code == 0)
        code = gate_texts(g, g->o->prompts, k.tok, tokens < room ? tokens : room);
    if (code == 0) {
        a->caps = k.backend->caps;
        a->host = a->caps & BACKEND_HOST_MEMORY;
    }
    rank_close(&k);
    return code;
}

static struct config base_config(const struct options *o, bool document)
{
    struct config cfg = o->cfg;

    if (document && cfg.context < GATE_DOCUMENT_FULL + DOCUMENT_ROOM)
        cfg.context = GATE_DOCUMENT_FULL + DOCUMENT_ROOM;
    if (cfg.grace_ms < GROUP_GRACE_MS)
        cfg.grace_ms = GROUP_GRACE_MS;
    /* What drafters of gates do would be worth a warning elsewhere. */
    if (cfg.log_level == LOG_INFO)
        cfg.log_level = LOG_ERR;
    return cfg;
}

/* ---- what is said --------------------------------------------------------------------------- */

/* 1234567 as "1,234,567". */
static const char *number(int64_t n, char out[32])
{
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%lld", (long long)n), at = 0;

    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

static const char *why_skipped(const struct gate *g, int i, const struct about *a)
{
    if (g->sum[i].skipped[0])
        return g->sum[i].skipped;
    if (i == GATE_G6 && !(a->caps & BACKEND_GRAPHS))
        return "this backend has no graphs";
    if (i == GATE_G7 && !a->own)
        return "the checkpoint has no drafter";
    if (i == GATE_G8 && g->agreed == 0)
        return "one rank has nobody to differ from";
    return "nothing ran";
}

static void say(const struct gate *g, int i, const struct about *a)
{
    const struct gate_sum *s = &g->sum[i];
    char tokens[32], rounds[32];

    printf("%s %s: ", gates[i].name, gates[i].what);
    if (s->failed)
        printf("FAILED: %s\n", s->why);
    else if (s->cases == 0)
        printf("skipped: %s\n", why_skipped(g, i, a));
    else
        printf("%d cases, %s tokens equal in %s rounds, %.1f s%s%s\n", s->cases,
               number(s->tokens, tokens), number(s->rounds, rounds), (double)s->ns / 1e9,
               s->note[0] ? "; " : "", s->note);
}

static void say_json(const struct gate *g, const struct about *a)
{
    struct json_writer w;

    json_writer_init(&w);
    json_begin_object(&w, NULL);
    json_begin_array(&w, "gates");
    for (int i = 0; i < GATES; i++) {
        const struct gate_sum *s = &g->sum[i];

        if (!(g->wanted >> i & 1u))
            continue;
        json_begin_object(&w, NULL);
        json_put_str(&w, "gate", gates[i].name);
        json_put_str(&w, "what", gates[i].what);
        json_put_str(&w, "result", s->failed ? "differs" : s->cases ? "equal" : "skipped");
        json_put_int(&w, "cases", s->cases);
        json_put_int(&w, "tokens", s->tokens);
        json_put_int(&w, "rounds", s->rounds);
        json_put_f64(&w, "seconds", (double)s->ns / 1e9);
        json_put_str(&w, "note", s->failed ? s->why : s->cases ? s->note : why_skipped(g, i, a));
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    json_write_line(&w, stdout);
    json_writer_free(&w);
}

static int report(struct gate *g, const struct about *a)
{
    struct gate_sum *agree = &g->sum[GATE_G8];
    char rounds[32];
    int failed = 0;

    snprintf(agree->note, sizeof(agree->note),
             "ranks compared the outcomes of %s rounds, all gates", number(g->agreed, rounds));
    if (g->o->json)
        say_json(g, a);
    for (int i = 0; i < GATES; i++) {
        if (!(g->wanted >> i & 1u))
            continue;
        if (!g->o->json)
            say(g, i, a);
        failed += g->sum[i].failed;
    }
    fflush(stdout);
    if (g->left)
        fail(-EINTR, "gate: interrupted, not all was compared");
    return failed || g->left ? CODE_NO : CODE_DONE;
}

int cmd_gate(struct options *o)
{
    struct gate *g = calloc(1, sizeof(*g));
    struct about a = { 0 };
    struct config cfg = o->cfg;
    int code, said;

    if (!g) {
        fail(-ENOMEM, "gate: out of memory");
        return CODE_RESOURCE;
    }
    g->job = (struct job){ .prepare = prepare, .lead = lead_job };
    g->o = o;
    g->full = o->full;
    if (o->as_set)
        g->job.keep = &g->keep;
    gate_modes(g);
    log_open(-1, (enum log_level)cfg.log_level);
    code = read_only(g, o->only);
    cfg = base_config(o, full_document(g));
    if (code == 0 && drain_open(&g->job.drain) < 0)
        code = CODE_RESOURCE;
    if (code == 0)
        code = look_around(g, &cfg, &a);
    if (g->prompts > 0 && code == 0) {
        code = run_worlds(g, &cfg, &a);
        if (cfg.rank == 0) {
            said = report(g, &a);
            code = code == 0 ? said : code;
        }
    }
    rank_keep_close(&g->keep);
    free(g->trace);
    gate_texts_free(g);
    free(g);
    return code;
}
