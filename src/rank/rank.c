/* rank.c owns the order in which a rank's parts are opened; what they do together is in round.c. */
#include "src/rank/rank.h"

#include "kernels/backend.h"
#include "src/base/clock.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/model/pack.h"
#include "src/model/resident.h"
#include "src/model/row_store.h"
#include "src/model/tokenizer.h"
#include "src/rank/costs.h"
#include "src/rank/largest.h"
#include "src/rank/mailbox.h"
#include "src/rank/meeting.h"
#include "src/transport/comm.h"
#include "src/verify/accept.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOST_SLOT_BYTES ((size_t)4 << 10)
#define CAUSE_WAIT_MS 100 /* a dead peer's control connection ends about when its links do */

/* ---- open ------------------------------------------------------------------------------------ */

/* The failure of a group must end this process even while its round's thread computes for seconds.
 * Of ranks that are threads the first one speaks for all. */
static void on_fail(void *arg, const char *why)
{
    const struct rank *k = (const struct rank *)arg;

    if (k->cfg.rank == 0 || strcmp(k->cfg.link, "loop") != 0)
        watch_end(k->watch, CODE_GROUP, why);
}

static void on_expired(void *arg, const char *what)
{
    struct rank *k = (struct rank *)arg;
    struct group *g = atomic_load(&k->watched);

    if (g)
        group_fail(g, -ETIMEDOUT, "rank %d: %s", k->cfg.rank, what);
    else
        watch_end(k->watch, CODE_GROUP, what);
}

/* A pack that was cut off while it is in use: no thread that reads it comes back. */
static void on_lost(void *arg, const char *what)
{
    struct rank *k = (struct rank *)arg;
    struct group *g = atomic_load(&k->watched);

    if (g) {
        group_fail(g, -EIO, "rank %d: %s", k->cfg.rank, what);
        return;
    }
    fail(-EIO, "%s", what);
    watch_end(k->watch, k->joined ? CODE_GROUP : CODE_DATA, what);
}

static void on_no_group(void *arg, int r)
{
    watch_end(((const struct rank *)arg)->watch, group_exit_code(r), "the ranks do not meet");
}

/* The settings live as long as the rank: a group may open while it loads. */
static int group_of(struct rank *k, struct group_settings *out)
{
    int r = group_of_config(&k->cfg, &k->texts, out);

    out->hub = k->hub;
    out->progress = &k->progress;
    out->cancel = &k->drain->asked;
    out->on_fail = on_fail;
    out->on_fail_arg = k;
    return r;
}

/* What `auto` means here, and must mean to the other ranks: devices' memory where all ranks are
 * threads, or processes of this machine with a device each. */
static const char *comm_of(const struct config *c, bool threads)
{
    const struct backend_ops *b;
    char why[160];

    if (strcmp(c->comm, "auto") != 0)
        return c->comm;
    if (c->ranks == 1 || strcmp(c->link, "rdma") == 0 || backend_find(c->backend, &b) < 0 ||
        b->caps & BACKEND_HOST_MEMORY)
        return "link";
    if (threads)
        return "peer";
    return c->device == CONFIG_AUTO && config_neighbours(c) == c->ranks &&
                   b->probe(c->ranks - 1, why, sizeof(why)) == 0
               ? "peer"
               : "link";
}

/* A device's libraries start here, whatever they do to the environment, which the group's thread
 * reads. What is wrong with the device is said when the rank loads: then the others hear it. */
static void start_device(const struct config *c)
{
    const struct backend_ops *b;
    char why[160];

    fail_hold(true);
    if (backend_find(c->backend, &b) == 0 && !(b->caps & BACKEND_HOST_MEMORY))
        b->probe(config_device(c), why, sizeof(why));
    fail_hold(false);
}

int rank_open(const struct config *cfg, struct drain *drain, struct group_hub *hub, bool alone,
              struct rank *k)
{
    struct group_settings s;
    int r;

    *k = (struct rank){ .cfg = *cfg,
                        .drain = drain,
                        .hub = hub,
                        .alone = alone,
                        .placing = { .round = -1, .proxy = -1 } };
    k->cfg.comm = comm_of(&k->cfg, hub != NULL);
    r = watch_open(&(struct watch_settings){ .progress = &k->progress,
                                             .rank = k->cfg.rank,
                                             .limit_ms = k->cfg.round_limit_ms,
                                             .grace_ms = k->cfg.grace_ms,
                                             .expired = on_expired,
                                             .lost = on_lost,
                                             .arg = k },
                   &k->watch);
    if (r < 0)
        return exit_code_of(STEP_DEVICE, r);
    if (hub || k->cfg.ranks == 1 || alone)
        return 0;
    start_device(&k->cfg);
    r = group_of(k, &s);
    if (r == 0)
        r = meeting_open(&s, on_no_group, k, &k->meeting);
    return group_exit_code(r);
}

static int open_group(struct rank *k)
{
    struct group_settings s;
    int r;

    if (k->meeting)
        return meeting_wait(k->meeting, &k->drain->asked, &k->group);
    r = group_of(k, &s);
    return r < 0 ? r : group_open(&s, &k->group);
}

/* ---- load ------------------------------------------------------------------------------------ */

static int add_ends(struct rank *k, const int *tok, int n)
{
    for (int i = 0; i < n; i++) {
        int at = 0;

        while (at < k->ends && k->end[at] != tok[i])
            at++;
        if (at == RANK_ENDS_MAX)
            return fail(-EINVAL, "config.json and generation_config.json: more than %d end tokens",
                        RANK_ENDS_MAX);
        k->end[at] = tok[i];
        k->ends += at == k->ends;
    }
    return 0;
}

/* Those of config.json, then what only generation_config.json names. */
static int read_ends(struct rank *k)
{
    int more[RANK_ENDS_MAX], n, r = add_ends(k, k->model->eos, k->model->n_eos);
    struct json *root;
    const char *text;
    size_t bytes;

    if (r < 0)
        return r;
    if (pack_find_blob(k->pack, "generation_config.json", &text, &bytes) != 0)
        return 0;
    r = json_parse(text, bytes, "generation_config.json", 64, &root);
    if (r < 0)
        return r;
    r = config_ends(root, k->model->vocab, RANK_ENDS_MAX, more, &n);
    if (r == 0)
        r = add_ends(k, more, n);
    json_close(root);
    return r;
}

static int load_texts(struct rank *k, enum exit_step *step)
{
    const char *text;
    size_t bytes;
    int r;

    *step = STEP_DATA;
    if (pack_find_blob(k->pack, "config.json", &text, &bytes) != 0)
        return fail(-EINVAL, "pack: no config.json inside");
    r = blueprint_open(text, bytes, pack_family(k->pack), k->cfg.cache_quant, k->cfg.rank,
                       k->cfg.ranks, pack_width_unit(k->pack), step, &k->plan);
    if (r < 0)
        return r;
    k->model = k->plan.model;
    r = pack_bind(k->pack, k->plan.part, BLUEPRINT_PARTS);
    if (r < 0)
        return r;
    if (pack_find_blob(k->pack, "tokenizer.json", &text, &bytes) != 0)
        return fail(-EINVAL, "pack: no tokenizer.json inside");
    r = tokenizer_open(text, bytes, "tokenizer.json", &k->tok);
    if (r < 0)
        return r;
    if (tokenizer_vocab(k->tok) > k->model->vocab)
        return fail(-EINVAL, "tokenizer.json has ids up to %d, the model's vocabulary is %d",
                    tokenizer_vocab(k->tok) - 1, k->model->vocab);
    return read_ends(k);
}

/* The checkpoint's own drafter, and copies beside it, unless the setting names another. */
static int load_drafter(struct rank *k)
{
    const char *name = k->cfg.draft;
    bool both = strcmp(name, "auto") == 0;
    int r = 0;

    k->drafter = k->plan.drafter;
    if (!both && strcmp(name, k->drafter->ops->name) != 0)
        r = drafter_open(name, k->plan.config, k->model, &k->drafter);
    if (r < 0)
        k->drafter = NULL;
    else if (both)
        r = drafter_open("ngram", k->plan.config, k->model, &k->copies);
    else if (strcmp(name, "ngram") == 0)
        k->copies = k->drafter;
    return r;
}

/* The quantiser of inputs has blocks of 32, which are those of the released weights; others'
 * products were trained with other blocks, or with none. */
static int check_released(const struct pack *p)
{
    struct pack_item w;
    int n = 0;

    for (size_t i = 0; pack_item(p, i, &w) == 0; i++) {
        if (w.kind != WEIGHT_MAT || w.again || (w.dtype != DTYPE_FP8 && w.dtype != DTYPE_MXFP4))
            continue;
        n++;
        if (w.dtype == DTYPE_FP8 && w.q.block != 32)
            return fail(-EINVAL,
                        "config: numerics released goes with FP8 in blocks of 32, those of %s are "
                        "of %d, want bf16",
                        w.name, w.q.block);
        if (w.cols % 32 != 0)
            return fail(-EINVAL,
                        "config: numerics released quantises blocks of 32 inputs, %s has %lld, "
                        "want bf16",
                        w.name, (long long)w.cols);
    }
    if (n == 0)
        log_warn("numerics released: %s has no weight in FP8 or MXFP4, the same as bf16",
                 pack_name(p));
    else
        log_info("numerics released: the inputs of %d FP8 and MXFP4 weights are quantised", n);
    return 0;
}

/* Lossy, so it is said wherever it is on. */
static int check_top_p(const struct pack *p, int percent)
{
    struct pack_item w;

    for (size_t i = 0; pack_item(p, i, &w) == 0; i++)
        if (strstr(w.name, ".experts.")) {
            log_warn("expert_top_p %d: lossy, a row's smallest experts are left out", percent);
            return 0;
        }
    return fail(-EINVAL, "config: expert_top_p %d: %s has no experts, want 100", percent,
                pack_name(p));
}

/* What a model, this build and the settings do not do together. */
static int check_settings(struct rank *k)
{
    const struct config *c = &k->cfg;
    int r = 0;

    if (c->numerics == NUMERICS_RELEASED)
        r = check_released(k->pack);
    if (r == 0 && c->expert_top_p < 100)
        r = check_top_p(k->pack, c->expert_top_p);
    if (r < 0)
        return r;
    k->bounds = (struct plan_bounds){ .slots = c->slots,
                                      .vocab = k->model->vocab,
                                      .context = c->context,
                                      .window_max = c->window_max,
                                      .prefill_chunk = c->prefill_chunk };
    if (c->context > k->model->context_max) {
        log_warn("context %d is more than the model's %d, which is used", c->context,
                 k->model->context_max);
        k->bounds.context = k->model->context_max;
    }
    return 0;
}

/* Before anything is loaded: every rank finds it, and none has to hear it from another. */
static int check_comm(const struct rank *k)
{
    const char *comm = k->cfg.comm;

    if (k->backend->caps & BACKEND_HOST_MEMORY &&
        (strcmp(comm, "peer") == 0 || strcmp(comm, "nccl") == 0))
        return fail(-ENODEV, "config: comm %s with backend %s, want backend cuda", comm,
                    k->backend->name);
    return 0;
}

/* Before anything is loaded: what `pin` says may be wrong. */
static int place_threads(struct rank *k)
{
    bool host = k->backend->caps & BACKEND_HOST_MEMORY;

    return placing_of(&k->cfg, host ? config_threads(&k->cfg) - 1 : 0, !host && k->cfg.ranks > 1,
                      &k->placing);
}

/* Of memory that is the host's: what a device has, its own allocations tell. */
static int check_memory(const struct rank *k, const struct memory_plan *p)
{
    if (!(k->backend->caps & BACKEND_HOST_MEMORY))
        return 0;
    return memory_check(p, config_neighbours(&k->cfg), memory_available());
}

/* Weights and states, before any of them is loaded. */
static int plan_memory(struct rank *k)
{
    struct state_list *l = calloc(1, sizeof(*l));

    if (!l)
        return fail(-ENOMEM, "states: out of memory");
    k->model->ops->states(k->model, l);
    k->drafter->ops->states(k->drafter, l);
    k->memory.weights = memory_weights(k->pack);
    k->memory.states =
        slot_pool_bytes(l, k->bounds.slots, k->bounds.context, k->bounds.prefill_chunk);
    free(l);
    return check_memory(k, &k->memory);
}

/* Before a pack is made for it. */
static int look_for_device(const struct rank *k)
{
    char why[160];
    int r;

    if (k->backend->caps & BACKEND_HOST_MEMORY || (k->keep && k->keep->dev))
        return 0;
    r = k->backend->probe(config_device(&k->cfg), why, sizeof(why));
    return r < 0 ? fail(r, "%s: %s", k->backend->name, why) : 0;
}

int rank_load(struct rank *k)
{
    enum exit_step step = STEP_CONFIG;
    int r = backend_find(k->cfg.backend, &k->backend);

    if (r == 0)
        r = check_comm(k);
    if (r == 0)
        r = look_for_device(k);
    if (r < 0)
        return exit_code_of(STEP_DEVICE, r);
    r = place_threads(k);
    if (r == 0 && k->keep && k->keep->pack) {
        k->pack = k->keep->pack;
        k->keep->pack = NULL;
    } else if (r == 0) {
        r = packs_open(&k->cfg, &step, &k->pack);
    }

    if (r == 0)
        r = load_texts(k, &step);
    if (r == 0) {
        step = STEP_CONFIG;
        r = check_settings(k);
    }
    if (r == 0)
        r = load_drafter(k);
    if (r == 0 && k->cfg.rank == 0 && strcmp(k->cfg.costs, "auto") != 0)
        r = costs_read(k->cfg.costs, &k->costs);
    if (r == 0) {
        step = STEP_DEVICE;
        r = plan_memory(k);
    }
    return exit_code_of(step, r);
}

/* ---- join ------------------------------------------------------------------------------------ */

static enum comm_wire wire_of(const struct rank *k)
{
    const struct config *c = &k->cfg;

    if (c->partials != PARTIALS_AUTO)
        return c->partials == PARTIALS_BF16 ? COMM_BF16 : COMM_F32;
    return c->numerics != NUMERICS_FP32 && k->model->bf16_sums ? COMM_BF16 : COMM_F32;
}

static int open_device(struct rank *k)
{
    const struct config *c = &k->cfg;
    int r;

    if (k->keep && k->keep->dev) {
        k->dev = k->keep->dev;
        k->resident = k->keep->resident;
        *k->keep = (struct rank_keep){ 0 };
        k->dev->overlap = c->overlap;
        r = k->dev->ops->queue_open(k->dev, &k->q);
        return r < 0 ? r : resident_bind(k->resident, k->pack, k->plan.part, BLUEPRINT_PARTS);
    }
    placing_workers(&k->placing); /* which the backend starts */
    r = k->backend->open(config_device(c), config_threads(c), &k->dev);
    if (r == 0)
        r = k->backend->queue_open(k->dev, &k->q);
    if (r == 0) {
        k->dev->overlap = c->overlap;
        r = memory_check(&k->memory, 1, k->dev->ops->room(k->dev));
    }
    if (r == 0)
        r = resident_open(k->dev, k->pack, k->plan.part, BLUEPRINT_PARTS, &k->resident);
    return r;
}

/* What ranks whose sums do not go over the links tell each other on the way. */
static int open_host_comm(struct rank *k, struct link *const *windows,
                          const struct comm_settings *s, struct comm **out)
{
    struct comm_settings host = { .slot_bytes = HOST_SLOT_BYTES,
                                  .spin_us = s->spin_us,
                                  .wait_limit_ms = s->wait_limit_ms };

    return comm_link_open(windows, k->cfg.rank, k->cfg.ranks, &host, out);
}

/* Sums over ranks go over the links, staged by the host or by the device, or stay in the devices'
 * memory. */
static int open_sums(struct rank *k, const struct comm_settings *s)
{
    const struct config *c = &k->cfg;
    bool host = k->dev->ops->caps & BACKEND_HOST_MEMORY;
    bool peer = strcmp(c->comm, "peer") == 0, nccl = strcmp(c->comm, "nccl") == 0;
    struct link *windows[RANKS_MAX] = { 0 };
    struct comm *meet;
    int r;

    if (c->ranks == 1 || k->alone)
        return comm_self_alone(s, c->rank, c->ranks, &k->comm);
    if (peer && k->hub)
        return comm_peer_open(group_hub_comm(k->hub), k->dev, c->rank, s, &k->comm);
    for (int i = 0; i < c->ranks; i++)
        if (i != c->rank)
            windows[i] = group_link(k->group, i, GROUP_WINDOWS);
    if (peer || nccl) {
        r = open_host_comm(k, windows, s, &meet);
        if (r < 0)
            return r;
        r = peer ? comm_peer_open_apart(meet, k->dev, s, &k->comm)
                 : comm_nccl_open(meet, k->q, s, &k->comm);
        if (r < 0)
            comm_close(meet);
        return r;
    }
    return host ? comm_link_open(windows, c->rank, c->ranks, s, &k->comm)
                : comm_relay_open(windows, k->dev, c->rank, c->ranks, s, &k->comm);
}

bool rank_captures(const struct rank *k)
{
    return k->dev->ops->caps & BACKEND_GRAPHS && k->comm->ops->caps & COMM_CAPTURE;
}

static int check_graphs(const struct rank *k)
{
    if (k->cfg.graphs != GRAPHS_ON || rank_captures(k))
        return 0;
    return fail(-ENODEV, "config: graphs on: backend %s with comm %s captures no windows",
                k->dev->ops->name, k->comm->ops->name);
}

static int open_comm(struct rank *k)
{
    const struct config *c = &k->cfg;
    struct comm_settings s = { .partials = wire_of(k),
                               .slot_bytes = RANK_SLOT_BYTES,
                               .spin_us = c->spin_us,
                               .wait_limit_ms = c->wait_limit_ms,
                               .proxy_core = k->placing.proxy < 0 ? NULL : &k->placing.proxy,
                               .steps = &k->progress.steps };
    struct plan_box_settings b = { .spin_us = c->spin_us,
                                   .wait_limit_ms = c->wait_limit_ms,
                                   .max_words = plan_words(&k->bounds) };
    int r = open_sums(k, &s);

    if (r == 0 && k->group)
        group_sums(k->group, k->comm);
    if (r == 0)
        r = check_graphs(k);
    if (r < 0)
        return r;
    k->x = (struct exec){ .op = k->dev->ops->op,
                          .q = k->q,
                          .tmp = &k->arena,
                          .comm = k->comm,
                          .workers = k->dev->workers,
                          .round = c->numerics == NUMERICS_FP32 ? ROUND_NONE : ROUND_BF16,
                          .in = c->numerics == NUMERICS_RELEASED ? CODEC_QW : CODEC_F32,
                          .top_p = c->expert_top_p < 100 ? (float)c->expert_top_p / 100 : 0,
                          /* ranks that are threads may wait for each other on one device */
                          .side = c->side && k->dev->side_bytes > 0 && !k->hub,
                          .prefetch = c->prefetch,
                          .prefetch_rate = c->prefetch_rate,
                          .trace = c->trace_numerics };
    if (c->prefetch > 0 && !k->x.side)
        log_warn("prefetch: nothing runs beside an exchange here, so nothing is asked for ahead");
    return !k->group ? 0 : mailbox_open(k->group, &b, c->connect_timeout_ms, &k->box);
}

static int rows_max(const struct rank *k)
{
    int shared = k->bounds.slots * k->bounds.window_max;

    return k->bounds.prefill_chunk > shared ? k->bounds.prefill_chunk : shared;
}

static int open_state(struct rank *k)
{
    struct state_list *l = calloc(1, sizeof(*l));
    int sites = k->model->sites + k->drafter->sites, r;

    if (!l)
        return fail(-ENOMEM, "states: out of memory");
    k->model->ops->states(k->model, l);
    k->model_states = l->n;
    k->drafter->ops->states(k->drafter, l);
    r = slot_pool_open(k->dev, l, k->bounds.slots, k->bounds.context, k->bounds.prefill_chunk,
                       &k->pool);
    free(l);
    if (r == 0)
        r = k->model->ops->ready(k->model, k->dev, k->pack);
    if (r == 0)
        r = k->drafter->ops->ready(k->drafter, k->dev, k->pool);
    if (r == 0 && k->copies && k->copies != k->drafter)
        r = k->copies->ops->ready(k->copies, k->dev, k->pool);
    if (r == 0)
        r = row_store_open(&(struct row_store_settings){ .pack = k->pack,
                                                         .io = k->cfg.engram_io,
                                                         .cache_bytes = k->cfg.engram_cache,
                                                         .wait_limit_ms = k->cfg.wait_limit_ms },
                           &k->rows);
    if (r == 0)
        r = window_open(k->dev, k->model, rows_max(k), &k->win);
    if (r == 0) /* the store, which names file and row, gives up first */
        k->win->bring_limit_ms = 2 * k->cfg.wait_limit_ms;
    if (r == 0)
        r = accept_open(k->dev, k->model, sites, &k->acc);
    return r;
}

/* Scratch for the largest prompt chunk, the largest shared window, and the largest chunk with
 * logits. */
static int open_arena(struct rank *k)
{
    struct memory_plan left = k->memory;
    struct arena measured;
    struct exec dry;
    int r;

    exec_dry(&dry, &measured, &k->x);
    largest_queue(k, &dry);
    left.states = 0; /* they are taken already */
    left.scratch = k->memory.scratch = measured.peak + (k->x.side ? k->dev->side_bytes : 0);
    r = check_memory(k, &left);
    if (r == 0)
        r = arena_open(k->dev, measured.peak, &k->arena);
    return r < 0 ? r : largest_check(k);
}

static int open_parts(struct rank *k)
{
    int r = open_device(k);

    if (r == 0)
        r = open_comm(k);
    if (r == 0)
        r = open_state(k);
    if (r == 0)
        r = open_arena(k);
    if (r == 0 && k->group)
        r = group_barrier(k->group, k->cfg.connect_timeout_ms);
    placing_round(&k->placing);
    if (r == 0 && k->box)
        r = clocks_meet(k->box, k->cfg.rank, k->cfg.ranks, k->cfg.wait_limit_ms, &k->clocks);
    return r;
}

/* Whether the group finds a cause of its own within a moment: what this rank saw may only follow
 * from it. */
static bool cause_comes(const struct rank *k)
{
    for (int ms = 0; ms < CAUSE_WAIT_MS && !group_failed(k->group); ms += 5)
        clock_sleep(5 * NS_PER_MS);
    return group_failed(k->group);
}

/* For the others: what this thread has logged last. */
static void why_not(char out[GROUP_REASON_BYTES])
{
    snprintf(out, GROUP_REASON_BYTES, "cannot start: %s", fail_text());
}

void rank_refuse(struct rank *k)
{
    char why[GROUP_REASON_BYTES];

    if (!k->meeting)
        return;
    why_not(why);
    meeting_refuse(k->meeting, -ECANCELED, why, &k->group);
}

/* The packs' parts, so that the message says which one differs, and as much of the set's digest as
 * there is room for. */
static int compare_packs(const struct rank *k)
{
    const char *what[GROUP_MARK_PARTS];
    uint8_t mark[GROUP_DIGEST_BYTES], digest[SET_DIGEST_BYTES];
    int i = 0, r;

    while ((r = pack_set_part(k->pack, i, &what[i], digest)) == 0)
        memcpy(mark + 4 * i++, digest, 4);
    if (r < 0)
        return r;
    for (int left = i; left < GROUP_MARK_PARTS; left++)
        what[left] = "set";
    memcpy(mark + 4 * i, pack_set_digest(k->pack), sizeof(mark) - 4 * (size_t)i);
    return group_compare(k->group, what, mark, INT_MAX);
}

int rank_join(struct rank *k)
{
    char why[GROUP_REASON_BYTES];
    int r = 0;

    if (k->cfg.ranks > 1 && !k->alone) {
        atomic_store(&k->drain->stage, DRAIN_MEETING);
        r = open_group(k);
        atomic_store(&k->drain->stage, DRAIN_LOADING);
        atomic_store(&k->watched, k->group);
        if (r == -ECANCELED && k->hub && k->cfg.rank == 0 &&
            atomic_load(&k->drain->asked) == DRAIN_SIGNAL)
            log_info("interrupted while waiting for the other ranks");
        if (r == 0) /* for as long as the others load, which their heartbeats tell */
            r = compare_packs(k);
        if (r == -EINVAL || !k->group)
            return group_exit_code(r);
    }
    if (r == 0)
        r = open_parts(k);
    if (r == 0) {
        atomic_store(&k->drain->stage, DRAIN_SERVING);
        k->joined = true;
        return 0;
    }
    if (!k->group)
        return exit_code_of(STEP_DEVICE, r);
    if (r == -ECONNRESET ? cause_comes(k) : group_failed(k->group))
        return rank_failure(k, r);
    why_not(why);
    group_decline(k->group, r, why);
    return exit_code_of(STEP_DEVICE, r);
}

/* ---- end ------------------------------------------------------------------------------------- */

int rank_broken(struct rank *k, int r, const char *fmt, ...)
{
    char what[GROUP_REASON_BYTES];
    size_t n;
    va_list ap;

    if (k->group && cause_comes(k))
        return r;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    n = strlen(what);
    if (r != -EPROTO)
        snprintf(what + n, sizeof(what) - n, ": %s", fail_text()[0] ? fail_text() : strerror(-r));
    if (k->group)
        group_fail(k->group, r, "%s", what);
    else
        memcpy(k->cause, what, sizeof(k->cause));
    return r;
}

const char *rank_cause(const struct rank *k)
{
    return k->group && group_failed(k->group) ? group_reason(k->group) : k->cause;
}

int rank_failure(const struct rank *k, int r)
{
    int cause = k->group ? group_failed(k->group) : 0;

    return exit_code_of(STEP_ROUND, cause ? cause : r);
}

void rank_keep_close(struct rank_keep *keep)
{
    resident_close(keep->resident);
    if (keep->dev)
        keep->dev->ops->close(keep->dev);
    pack_close(keep->pack);
    *keep = (struct rank_keep){ 0 };
}

static bool keeps(const struct rank *k)
{
    return k->keep && k->joined && !(k->dev->ops->caps & BACKEND_HOST_MEMORY);
}

void rank_close(struct rank *k)
{
    bool keep = keeps(k);

    window_cancel(k->win); /* memory is freed behind the device */
    if (k->dev && k->arena.base)
        arena_close(k->dev, &k->arena);
    accept_close(k->acc);
    window_close(k->win);
    if (k->rows)
        k->rows->ops->close(k->rows);
    slot_pool_close(k->pool);
    if (k->copies && k->copies != k->drafter)
        k->copies->ops->close(k->copies);
    if (k->drafter && k->drafter != k->plan.drafter)
        k->drafter->ops->close(k->drafter);
    blueprint_close(&k->plan);
    plan_box_close(k->box);
    if (k->group)
        group_sums(k->group, NULL);
    comm_close(k->comm);
    if (keep)
        *k->keep = (struct rank_keep){ k->pack, k->dev, k->resident };
    else
        resident_close(k->resident);
    if (k->q)
        k->dev->ops->queue_close(k->q);
    if (k->dev && !keep)
        k->dev->ops->close(k->dev);
    watch_quiet(k->watch);
    group_close(k->group);
    placing_leave();
    meeting_close(k->meeting);
    watch_close(k->watch);
    group_texts_free(&k->texts);
    tokenizer_close(k->tok);
    if (!keep)
        pack_close(k->pack);
}
