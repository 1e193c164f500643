#include "tests/rig/rig.h"

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/convert.h"
#include "src/model/families.h"
#include "src/model/resident.h"
#include "src/model/scheme.h"
#include "src/model/source.h"
#include "src/model/tokenizer.h"
#include "tests/transport/wires.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct world {
    const struct rig_settings *set;
    struct wires wires;
    struct comm_hub *hub; /* of devices */
    void (*fn)(struct rig *g, void *arg);
    void *arg;
};

static const char *default_backend = "ref";

void rig_backend(const char *name)
{
    default_backend = name;
}

static const char *backend_name(const struct rig_settings *s)
{
    return s->backend ? s->backend : default_backend;
}

static void read_config(struct rig *g, char *folder, size_t cap)
{
    char path[PATH_CAP];

    snprintf(folder, cap, "%s", g->set->model ? g->set->model : POCKET);
    MUST(path_join(path, sizeof(path), folder, "config.json"));
    MUST(json_read(path, 1 << 20, 32, &g->config));
}

/* The rank's share of the checkpoint, as a pack that has no name any more once it is mapped. */
static void open_pack(struct rig *g, const char *folder, const struct walk_part *parts, int n_parts)
{
    char path[PATH_CAP], temp[] = "/tmp/tandem-rig-XXXXXX", *text;
    struct pack_spec spec = { .family = g->m->ops->name,
                              .parts = parts,
                              .n_parts = n_parts,
                              .rank = g->rank,
                              .ranks = g->m->ranks };
    const struct backend_ops *backend;
    struct scheme scheme;
    struct source *src;
    struct tokenizer *t = NULL;
    size_t bytes;

    if (!mkdtemp(temp))
        abort();
    MUST(path_join(path, sizeof(path), folder, "tokenizer.json"));
    if (access(path, R_OK) == 0) {
        MUST(file_read(path, 64 << 20, &text, &bytes));
        MUST(tokenizer_open(text, bytes, "tokenizer.json", &t));
        free(text);
    }
    if (g->m->ops->derive(g->m, t, &spec.blobs[0]) < 0)
        abort();
    MUST(backend_find(backend_name(g->set), &backend));
    spec.layouts = backend->caps & BACKEND_HOST_MEMORY ? PACK_CPU : PACK_DEVICE;
    if (g->set->made_up) {
        MUST(scheme_parse(g->set->made_up, &scheme));
        MUST(source_synth_open_scheme(1, &scheme, &src));
        spec.hollow = spec.layouts == PACK_DEVICE;
    } else {
        MUST(source_hf_open(folder, &src));
    }
    MUST(path_join(path, sizeof(path), temp, "rank.pack"));
    MUST(pack_write(path, &spec, src));
    MUST(pack_open(path, &g->pack));
    pack_prefer(g->pack, spec.layouts == PACK_DEVICE ? LAYOUT_DEVICE : LAYOUT_CPU);
    unlink(path);
    MUST(path_join(path, sizeof(path), temp, "rank.pack.lock"));
    unlink(path);
    rmdir(temp);
    src->ops->close(src);
    tokenizer_close(t);
}

/* ---- a quantised model ----------------------------------------------------------------------- */

static char quantised[64];

static void drop_quantised(void)
{
    static const char *const files[] = { "config.json", "tokenizer.json", "model.safetensors" };
    char path[PATH_CAP];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        if (path_join(path, sizeof(path), quantised, files[i]) == 0)
            unlink(path);
    rmdir(quantised);
}

const char *rig_quantised(void)
{
    struct convert_spec spec = { .folder = quantised, .n_parts = 1, .shard_bytes = 1 << 30 };
    struct walk_part part;
    struct json *config;
    struct model *m;
    struct source *src;
    char path[PATH_CAP], *text;
    size_t bytes;

    if (quantised[0])
        return quantised;
    strcpy(quantised, "/tmp/tandem-quantised-XXXXXX");
    if (!mkdtemp(quantised))
        abort();
    MUST(atexit(drop_quantised));
    MUST(json_read(POCKET "/config.json", 1 << 20, 32, &config));
    MUST(family_deepseek_v41.open(config, true, &m));
    MUST(source_hf_open(POCKET, &src));
    part = (struct walk_part){ m->ops->weights, m };
    spec.parts = &part;
    spec.config = config;
    MUST(scheme_parse("fp8-mxfp4", &spec.scheme));
    MUST(convert(&spec, src));
    MUST(path_join(path, sizeof(path), quantised, "tokenizer.json"));
    MUST(file_read(POCKET "/tokenizer.json", TOKENIZER_JSON_MAX, &text, &bytes));
    MUST(file_write(path, text, bytes, 0644));
    free(text);
    src->ops->close(src);
    m->ops->close(m);
    json_close(config);
    return quantised;
}

static void open_model(struct rig *g)
{
    const struct rig_settings *s = g->set;
    struct walk_part parts[2];
    struct state_list states = { .n = 0 };
    const struct family_ops *family;
    char folder[PATH_CAP];
    int n = 1, rows_max = s->rows_max ? s->rows_max : 512;

    read_config(g, folder, sizeof(folder));
    MUST(family_find(g->config, &family));
    MUST(family->open(g->config, !s->no_quant, &g->m));
    MUST(family->split(g->m, g->rank, s->ranks));
    family->states(g->m, &states);
    parts[0] = (struct walk_part){ family->weights, g->m };
    if (s->part)
        parts[n++] = s->part(s->part_arg, g->config, g->m, &states);
    open_pack(g, folder, parts, n);
    MUST(backend_find(backend_name(s), &g->backend));
    MUST(g->backend->open(0, s->threads ? s->threads : 1, &g->dev));
    MUST(g->backend->queue_open(g->dev, &g->q));
    MUST(pack_bind(g->pack, parts, n));
    MUST(resident_open(g->dev, g->pack, parts, n, &g->resident));
    MUST(family->ready(g->m, g->dev, g->pack));
    MUST(slot_pool_open(g->dev, &states, s->slots ? s->slots : 1, s->context ? s->context : 2048,
                        rows_max, &g->pool));
    MUST(window_open(g->dev, g->m, rows_max, &g->w));
    MUST(row_store_open(
        &(struct row_store_settings){
            .pack = g->pack, .io = "auto", .cache_bytes = 1 << 20, .wait_limit_ms = 60000 },
        &g->rows));
}

static void open_exec(struct rig *g)
{
    struct exec dry;
    struct arena count;
    int32_t tok = 0;

    g->x = (struct exec){ .op = g->backend->op,
                          .q = g->q,
                          .tmp = &g->arena,
                          .comm = g->comm,
                          .workers = g->dev->workers,
                          .side = g->dev->side_bytes > 0 && g->set->ranks == 1,
                          .round = g->set->fp32 ? ROUND_NONE : ROUND_BF16,
                          .in = g->set->released ? CODEC_QW : CODEC_F32 };
    exec_dry(&dry, &count, &g->x);
    window_clear(g->w);
    MUST(window_add(g->w, 0, &tok, 1, 0));
    g->w->head = true;
    g->w->rows = g->w->rows_max;
    g->m->ops->forward(g->m, &dry, g->pool, g->w);
    MUST(arena_open(g->dev, count.peak + (64 << 20), &g->arena));
}

static void close_rig(struct rig *g)
{
    arena_close(g->dev, &g->arena);
    g->rows->ops->close(g->rows);
    window_close(g->w);
    slot_pool_close(g->pool);
    g->m->ops->close(g->m);
    resident_close(g->resident);
    g->backend->queue_close(g->q);
    g->backend->close(g->dev);
    pack_close(g->pack);
    json_close(g->config);
}

static void run_rank(int rank, void *arg)
{
    struct world *world = arg;
    const struct rig_settings *s = world->set;
    struct comm_settings cs = { .partials = s->bf16_wire ? COMM_BF16 : COMM_F32,
                                .slot_bytes = 1 << 20,
                                .spin_us = 20,
                                .wait_limit_ms = 60000 };
    struct rig g = { .set = s, .rank = rank };

    log_rank(rank);
    open_model(&g);
    if (s->ranks == 1)
        MUST(comm_self_open(&cs, &g.comm));
    else if (world->hub)
        MUST(comm_peer_open(world->hub, g.dev, rank, &cs, &g.comm));
    else
        MUST(comm_link_open(world->wires.link[rank], rank, s->ranks, &cs, &g.comm));
    open_exec(&g);
    /* nobody allocates on a device while another rank's exchange waits there */
    MUST(comm_barrier(g.comm));
    world->fn(&g, world->arg);
    MUST(comm_barrier(g.comm));
    comm_close(g.comm);
    close_rig(&g);
}

void rigs_run(const struct rig_settings *s, void (*fn)(struct rig *g, void *arg), void *arg)
{
    struct world world = { .set = s, .fn = fn, .arg = arg };
    const struct backend_ops *b;

    MUST(backend_find(backend_name(s), &b));
    if (s->ranks > 1 && !(b->caps & BACKEND_HOST_MEMORY))
        MUST(comm_hub_open(s->ranks, &world.hub));
    else if (s->ranks > 1)
        wires_open(&world.wires, "loop", s->ranks, 0);
    wires_run(s->ranks, run_rank, &world);
    wires_close(&world.wires);
    comm_hub_close(world.hub);
}

void rig_forward(struct rig *g, int slot, const int32_t *tok, int n, bool head)
{
    window_clear(g->w);
    MUST(window_add(g->w, slot, tok, n, 0));
    g->w->head = head;
    g->w->tapped = g->tapped;
    g->w->tapped_arg = g->tapped_arg;
    MUST(g->m->ops->stage(g->m, g->pool, g->rows, g->w));
    MUST(window_upload(&g->x, g->pool, g->w));
    g->m->ops->forward(g->m, &g->x, g->pool, g->w);
    MUST(g->q->ops->wait(g->q));
    MUST(comm_check(g->comm));
}

void rig_keep(struct rig *g, int slot, int n)
{
    slot_set(g->pool, g->q, slot, g->pool->pos[slot] + n);
    MUST(g->q->ops->wait(g->q));
}

void rig_logits(struct rig *g, float *out)
{
    int width[RANKS_MAX], widest = model_widths(g->m, width), rows = g->w->rows, at = 0;
    size_t block = (size_t)rows * (size_t)widest;
    float *own = calloc(block, sizeof(float));
    float *all = calloc(block * (size_t)g->m->ranks, sizeof(float));
    void *d_own, *d_all;

    MUST(g->dev->ops->alloc(g->dev, block * sizeof(float), &d_own));
    MUST(g->dev->ops->alloc(g->dev, block * sizeof(float) * (size_t)g->m->ranks, &d_all));
    for (int r = 0; r < rows; r++)
        g->q->ops->get(g->q, own + (size_t)r * (size_t)widest,
                       g->w->logits + (size_t)r * (size_t)g->m->vocab_share,
                       sizeof(float) * (size_t)g->m->vocab_share);
    MUST(g->q->ops->wait(g->q));
    MUST(comm_barrier(g->comm));
    g->q->ops->put(g->q, d_own, own, block * sizeof(float));
    comm_gather(g->comm, g->q, COMM_SITES - 1, d_own, d_all, block * sizeof(float));
    g->q->ops->get(g->q, all, d_all, block * sizeof(float) * (size_t)g->m->ranks);
    MUST(g->q->ops->wait(g->q));
    MUST(comm_check(g->comm));
    MUST(comm_barrier(g->comm));
    g->dev->ops->free(g->dev, d_own);
    g->dev->ops->free(g->dev, d_all);
    MUST(comm_barrier(g->comm));
    for (int i = 0; i < g->m->ranks; i++) {
        for (int r = 0; r < rows; r++)
            memcpy(out + (size_t)r * (size_t)g->m->vocab + at,
                   all + (size_t)i * block + (size_t)r * (size_t)widest,
                   sizeof(float) * (size_t)width[i]);
        at += width[i];
    }
    free(own);
    free(all);
}
