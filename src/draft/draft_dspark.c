/* draft_dspark.c owns the DSpark drafter's weights, rings and pass. Layers are those of
 * deepseek_v41.h; what is its own is where their rows come from and what follows them.
 */
#include "src/draft/draft_dspark.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/draft/draft_table.h"
#include "src/model/buffers.h"
#include "src/model/deepseek_v41.h"
#include "src/model/exec.h"
#include "src/model/family.h"
#include "src/model/window.h"
#include "src/transport/comm.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANDIDATES                                                                                 \
    128 /* 64 lose a tenth of the accepted drafts on code, more than 128 gain nothing */
#define BLOCK_ROWS (SLOTS_MAX * WINDOW_MAX)

struct dspark {
    struct drafter base;
    struct device *dev; /* NULL until ready */
    const struct model *m;
    const struct v41_arch *a;
    struct v41_layer *stage; /* [a->stages] */
    struct mat main_proj;
    const float *main_norm, *norm, *conf_proj;
    struct table markov_embed, markov_head;
    const float *freq;
    int candidates; /* of a row and rank */
    bool keep_refined;

    /* device. The tokens of blocks never change, so a pass uploads segments and samplers alone. */
    struct segment *seg; /* [SLOTS_MAX] */
    int32_t *tok;        /* [SLOTS_MAX * block] */
    struct row_info *info;
    struct sampler *sampler;
    int32_t *draft;
    float *conf;
    struct candidate *refined; /* NULL unless kept */

    /* host, of the last pass; where they are, so that a captured pass finds them */
    unsigned slots; /* set of its slots */
    struct segment h_seg[SLOTS_MAX];
    struct sampler h_sampler[SLOTS_MAX];
    int32_t h_draft[BLOCK_ROWS];
    float h_conf[BLOCK_ROWS];
    struct candidate *h_refined;
};

/* ---- opening --------------------------------------------------------------------------------- */

/* A drafter that has lost a tensor, or has a stage or a kind of chain that is not known here, costs
 * half of the speed and shows nowhere else. Biases of image tokens and copies of the model's tables
 * are left out on purpose. */
static bool dspark_needs(const char *name)
{
    static const char *const tails[] = { ".bias_vl", ".emb.tok_emb.weight" };
    size_t bytes = strlen(name);

    if (strncmp(name, "mtp.", 4) != 0)
        return false;
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
        if (bytes > strlen(tails[i]) && strcmp(name + bytes - strlen(tails[i]), tails[i]) == 0)
            return false;
    name += strspn(name + 4, "0123456789") + 4;
    return strcmp(name, ".head.weight") != 0;
}

static int dspark_open(const struct json *config, struct model *m, struct drafter **out)
{
    const struct v41_arch *a = v41_model_arch(m);
    struct dspark *d;

    if (!a || a->stages == 0)
        return 1;
    if (a->taps == 0 || m->tap_cols != a->taps * a->dim)
        return fail(-EINVAL, "draft dspark: %d taps of %d values, the model keeps %d", a->taps,
                    a->dim, m->tap_cols);
    d = calloc(1, sizeof(*d));
    if (!d)
        goto no_memory;
    d->stage = calloc((size_t)a->stages, sizeof(*d->stage));
    if (!d->stage) {
        free(d);
        goto no_memory;
    }
    d->base.ops = &draft_dspark;
    d->base.block = a->block;
    d->base.needs = dspark_needs;
    d->base.sites = 2 * a->stages + 1; /* two sums a stage, then the candidates */
    d->m = m;
    d->a = a;
    d->candidates = CANDIDATES;
    for (int i = 0; i < a->stages; i++)
        v41_layer_init(&d->stage[i], a, a->layers + i, 0, a->draft_experts, a->draft_top_k,
                       m->ranks, m->sites + 2 * i);
    *out = &d->base;
    return 0;

no_memory:
    return fail(-ENOMEM, "draft dspark: out of memory");
}

/* The ring keeps the block besides the window. A pass at P writes P .. P + block - 1 and reads from
 * P - window; if fewer tokens are landed than it assumed, the next pass may begin as many rows
 * earlier as a window has, and the pool adds those to every ring. */
static int ring_span(const struct v41_arch *a)
{
    return a->window + a->block;
}

static void dspark_states(struct drafter *base, struct state_list *l)
{
    struct dspark *d = (struct dspark *)base;

    for (int i = 0; i < d->a->stages; i++)
        v41_layer_states(&d->stage[i], d->a, ring_span(d->a), d->m->cache_quant, l);
}

static void dspark_weights(void *object, struct walk *w)
{
    struct dspark *d = object;
    const struct v41_arch *a = d->a;
    int last = a->stages - 1;

    walk_mat(w, &d->main_proj, a->dim, a->taps * a->dim, SHARD_NONE, 1, "mtp.0.main_proj.weight");
    walk_vec(w, &d->main_norm, a->dim, SHARD_NONE, 1, "mtp.0.main_norm.weight");
    for (int i = 0; i < a->stages; i++) {
        char prefix[16];

        snprintf(prefix, sizeof(prefix), "mtp.%d", i);
        v41_layer_weights(&d->stage[i], a, w, prefix);
    }
    walk_vec(w, &d->norm, a->dim, SHARD_NONE, 1, "mtp.%d.norm.weight", last);
    walk_table(w, &d->markov_embed, a->vocab, a->markov_rank, SHARD_NONE,
               "mtp.%d.markov_head.embed.weight", last);
    walk_table(w, &d->markov_head, a->vocab, a->markov_rank, SHARD_NONE,
               "mtp.%d.markov_head.head.weight", last);
    walk_vec(w, &d->conf_proj, a->dim + a->markov_rank, SHARD_NONE, 1,
             "mtp.%d.confidence_head.proj.weight", last);
}

struct count_walk {
    struct walk base;
    int weights;
    size_t bytes;
};

static int count_weight(struct walk *w, const struct weight *d, void *target)
{
    struct count_walk *c = (struct count_walk *)w;
    const struct table *t = (const struct table *)target;
    struct mat_parts parts;
    int64_t rows, cols;

    c->weights++;
    if (d->kind == WEIGHT_MAT) {
        mat_parts((const struct mat *)target, &parts);
        c->bytes += parts.total;
    } else if (d->kind == WEIGHT_TABLE) {
        c->bytes += (size_t)t->rows * (size_t)t->cols * dtype_bytes(t->dtype);
    } else {
        weight_local(d, &rows, &cols);
        c->bytes += (size_t)rows * sizeof(float);
    }
    return 0;
}

/* ---- device ---------------------------------------------------------------------------------- */

static size_t refined_bytes(const struct dspark *d)
{
    size_t n =
        d->keep_refined ? (size_t)(SLOTS_MAX * d->a->block * d->m->ranks * d->candidates) : 0;

    return sizeof(struct candidate) * n;
}

static int buffers(struct dspark *d, buffers_fn *fn)
{
    size_t rows = (size_t)(SLOTS_MAX * d->a->block);
    const struct buffer b[] = {
        { &d->seg, sizeof(struct segment) * SLOTS_MAX },
        { &d->tok, sizeof(int32_t) * rows },
        { &d->info, sizeof(struct row_info) * rows },
        { &d->sampler, sizeof(struct sampler) * SLOTS_MAX },
        { &d->draft, sizeof(int32_t) * rows },
        { &d->conf, sizeof(float) * rows },
        { &d->refined, refined_bytes(d) },
    };

    return fn(d->dev, b, sizeof(b) / sizeof(b[0]));
}

static int alloc_refined(struct dspark *d)
{
    size_t bytes = refined_bytes(d);

    if (bytes == 0)
        return 0;
    d->h_refined = malloc(bytes);
    return d->h_refined ? 0 : fail(-ENOMEM, "draft dspark: no memory for candidates");
}

static int upload_blocks(struct dspark *d)
{
    int32_t tok[BLOCK_ROWS];
    int block = d->a->block, n = SLOTS_MAX * block;

    for (int i = 0; i < n; i++)
        tok[i] = i % block == 0 ? -1 : d->a->noise;
    return buffer_put(d->dev, d->tok, tok, sizeof(int32_t) * (size_t)n);
}

static int dspark_ready(struct drafter *base, struct device *dev, const struct slot_pool *p)
{
    struct dspark *d = (struct dspark *)base;
    struct count_walk count = {
        .base = { .visit = count_weight, .rank = d->m->rank, .ranks = d->m->ranks }
    };
    int r;

    d->dev = dev;
    r = buffers(d, buffers_alloc);
    if (r == 0)
        r = alloc_refined(d);
    if (r == 0)
        r = upload_blocks(d);
    if (r == 0)
        r = v41_freqs(d->a, dev, false, &d->freq);
    for (int i = 0; i < d->a->stages && r == 0; i++) {
        assert(p->view[d->stage[i].win].cap >= ring_span(d->a));
        d->stage[i].freq = d->freq;
        r = v41_layer_ready(&d->stage[i], dev);
    }
    if (r < 0)
        return r;
    dspark_weights(d, &count.base);
    log_info("draft dspark: %d stages, block %d, %d tensors, %.1f MB of this rank", d->a->stages,
             d->a->block, count.weights, (double)count.bytes / 1e6);
    return 0;
}

static void dspark_close(struct drafter *base)
{
    struct dspark *d = (struct dspark *)base;

    if (!d)
        return;
    for (int i = 0; i < d->a->stages; i++)
        v41_layer_free(&d->stage[i], d->dev);
    if (d->dev) {
        buffers(d, buffers_free);
        d->dev->ops->free(d->dev, (void *)d->freq);
    }
    free(d->h_refined);
    free(d->stage);
    free(d);
}

/* ---- observe --------------------------------------------------------------------------------- */

static void dspark_reset(struct drafter *base, struct exec *x, struct slot_pool *p, int slot,
                         int first)
{
    slot_set_floor(p, x->q, slot, first);
}

/* Context rows of the window's rows from .. from + n - 1. Every stage's come from the same
 * projection. */
static void ingest(struct dspark *d, struct exec *x, const struct slot_pool *p,
                   const struct window *w, int from, int n)
{
    const struct v41_arch *a = d->a;
    size_t mark = arena_mark(x->tmp);
    float *y = arena_f32(x->tmp, (size_t)n * (size_t)a->dim);
    struct v41_rows rows = { .info = w->info + from, .rows = n, .mode = ATTEND_CAUSAL };

    x->op->matmul(x->q, &(struct matmul_args){ .w = &d->main_proj,
                                               .x = w->taps + (size_t)from * (size_t)d->m->tap_cols,
                                               .y = y,
                                               .rows = n,
                                               .in = x->in,
                                               .round = x->round });
    x->op->rmsnorm(x->q, &(struct rmsnorm_args){ .x = y,
                                                 .w = d->main_norm,
                                                 .y = y,
                                                 .rows = n,
                                                 .cols = a->dim,
                                                 .eps = a->eps,
                                                 .round = x->round });
    for (int first = 0; first < a->stages; first += MATMULS_MAX) {
        struct matmuls_args list = { .n = 0 };
        float *kv[MATMULS_MAX];

        for (int i = 0; i < MATMULS_MAX && first + i < a->stages; i++)
            kv[i] = v41_window_product(&d->stage[first + i], x, &list, y, n);
        x->op->matmuls(x->q, &list);
        for (int i = 0; i < list.n; i++)
            v41_window_rows(a, &d->stage[first + i], x, p, &rows, kv[i]);
    }
    arena_reset(x->tmp, mark);
}

/* Rows that are rejected are ingested too: how many were kept is known on the device only, and the
 * next window rewrites them before a pass can read them. Of a long chunk only what its ring keeps
 * is worth the products. */
static void dspark_observe(struct drafter *base, struct exec *x, const struct slot_pool *p,
                           struct window *w)
{
    struct dspark *d = (struct dspark *)base;
    int from = 0, to = 0;

    for (int i = 0; i < w->segs; i++) {
        const struct segment *s = &w->seg[i];
        int end = s->first + s->len;
        int first = s->len > ring_span(d->a) ? end - ring_span(d->a) : s->first;

        if (first != to) {
            if (to > from)
                ingest(d, x, p, w, from, to - from);
            from = first;
        }
        to = end;
    }
    to += w->pad;
    if (to > from)
        ingest(d, x, p, w, from, to - from);
}

/* ---- propose --------------------------------------------------------------------------------- */

static int block_of(unsigned set, int slot)
{
    return __builtin_popcount(set & ((1u << slot) - 1));
}

/* The base logits' best candidates of every rank, then the chain over them. h is the collapse
 * before the norm y: what the confidences are made of. */
static void refine(struct dspark *d, struct exec *x, const float *h, const float *y, int rows)
{
    const struct v41_arch *a = d->a;
    const struct model *m = d->m;
    size_t n = (size_t)rows, k = (size_t)d->candidates;
    float *logits = arena_f32(x->tmp, n * (size_t)m->vocab_share);
    struct candidate *mine = arena_take(x->tmp, sizeof(*mine) * n * k);
    struct candidate *all = arena_take(x->tmp, sizeof(*all) * n * k * (size_t)m->ranks);

    x->op->matmul(x->q, &(struct matmul_args){ .w = m->head, .x = y, .y = logits, .rows = rows });
    x->op->best(x->q, &(struct best_args){ .logits = logits,
                                           .cand = mine,
                                           .rows = rows,
                                           .cols = m->vocab_share,
                                           .k = d->candidates,
                                           .id0 = m->vocab_first });
    comm_gather(x->comm, x->q, m->sites + 2 * a->stages, mine, all, sizeof(*mine) * n * k);
    x->op->markov(x->q, &(struct markov_args){ .cand = all,
                                               .embed = &d->markov_embed,
                                               .head = &d->markov_head,
                                               .h = h,
                                               .proj = d->conf_proj,
                                               .sampler = d->sampler,
                                               .info = d->info,
                                               .draft = d->draft,
                                               .conf = d->conf,
                                               .z = d->refined,
                                               .rows = rows,
                                               .block = a->block,
                                               .ranks = m->ranks,
                                               .k = d->candidates,
                                               .dim = a->dim });
}

/* Blocks lie in the order of their slots. */
static void dspark_stage(struct drafter *base, const struct proposal *p,
                         const struct sampler *sampler)
{
    struct dspark *d = (struct dspark *)base;
    int block = d->a->block, n = 0;

    d->slots = 0;
    for (int i = 0; i < p->n; i++)
        d->slots |= 1u << p->slot[i];
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        if (d->slots >> slot & 1u) {
            d->h_seg[n] = (struct segment){ .slot = slot, .first = n * block, .len = block };
            n++;
        }
    memcpy(d->h_sampler, sampler, sizeof(d->h_sampler));
}

static void dspark_propose(struct drafter *base, struct exec *x, const struct slot_pool *pool,
                           struct proposal *p, const struct sampler *sampler)
{
    struct dspark *d = (struct dspark *)base;
    const struct v41_arch *a = d->a;
    int rows = p->n * a->block;
    size_t mark = arena_mark(x->tmp), n = (size_t)rows;
    float *X = arena_f32(x->tmp, n * (size_t)(a->hc * a->dim));
    float *h = arena_f32(x->tmp, n * (size_t)a->dim), *y = arena_f32(x->tmp, n * (size_t)a->dim);
    struct v41_rows r = {
        .info = d->info, .rows = rows, .mode = ATTEND_BLOCK, .block = a->block, .head = pool->head
    };
    struct v41_pass pass;

    dspark_stage(base, p, sampler);
    x->q->ops->put(x->q, d->sampler, d->h_sampler, sizeof(d->h_sampler));
    x->q->ops->put(x->q, d->seg, d->h_seg, sizeof(d->h_seg));
    x->op->stage(
        x->q,
        &(struct stage_args){
            .seg = d->seg, .head = pool->head, .tok = d->tok, .info = d->info, .segs = p->n });
    x->op->embed(
        x->q, &(struct embed_args){
                  .table = d->m->embed, .info = d->info, .y = X, .rows = rows, .copies = a->hc });
    v41_pass_init(&pass, a, x, rows, false);
    for (int i = 0; i < a->stages; i++) {
        pass.next = i + 1 < a->stages ? &d->stage[i + 1] : NULL;
        v41_layer_forward(a, &d->stage[i], NULL, x, pool, &r, &pass, X);
    }
    v41_site(a, NULL, x, rows, &pass, X, pass.pre, NULL, d->norm, h, y);
    refine(d, x, h, y, rows);
    x->q->ops->get(x->q, d->h_draft, d->draft, sizeof(int32_t) * n);
    x->q->ops->get(x->q, d->h_conf, d->conf, sizeof(float) * n);
    if (d->refined)
        x->q->ops->get(x->q, d->h_refined, d->refined,
                       sizeof(struct candidate) * n * (size_t)(d->m->ranks * d->candidates));
    arena_reset(x->tmp, mark);
}

/* A pass that went wrong numerically proposes what comes before the first bad row: it costs speed,
 * never text. */
static void dspark_collect(struct drafter *base, struct proposal *p)
{
    struct dspark *d = (struct dspark *)base;
    int block = d->a->block;

    for (int i = 0; i < p->n; i++) {
        int first = block_of(d->slots, p->slot[i]) * block, len = 0;

        while (len < block && d->h_draft[first + len] >= 0 && isfinite(d->h_conf[first + len])) {
            p->draft[i][len] = d->h_draft[first + len];
            p->conf[i][len] = 1.0f / (1.0f + expf(-d->h_conf[first + len]));
            len++;
        }
        if (len < block)
            log_warn("draft dspark: slot %d draft %d is not finite, %d of %d proposed", p->slot[i],
                     len + 1, len, block);
        p->len[i] = len;
        p->bad[i] = len < block;
    }
}

/* ---- what tests see -------------------------------------------------------------------------- */

void dspark_candidates(struct drafter *base, int k)
{
    assert(base->ops == &draft_dspark && k >= 1 && k <= TOPK_MAX);
    ((struct dspark *)base)->candidates = k;
}

void dspark_keep_refined(struct drafter *base)
{
    assert(base->ops == &draft_dspark);
    ((struct dspark *)base)->keep_refined = true;
}

int dspark_refined(const struct drafter *base, int slot, int row, const struct candidate **z,
                   float *conf_logit)
{
    const struct dspark *d = (const struct dspark *)base;
    int at = block_of(d->slots, slot) * d->a->block + row;
    int n = d->m->ranks * d->candidates;

    *z = d->h_refined ? d->h_refined + (size_t)at * (size_t)n : NULL;
    *conf_logit = d->h_conf[at];
    return d->h_refined ? n : 0;
}

const struct drafter_ops draft_dspark = {
    .name = "dspark",
    .caps = DRAFTER_DEVICE | DRAFTER_CONFIDENCES,
    .open = dspark_open,
    .states = dspark_states,
    .weights = dspark_weights,
    .ready = dspark_ready,
    .reset = dspark_reset,
    .observe = dspark_observe,
    .stage = dspark_stage,
    .propose = dspark_propose,
    .collect = dspark_collect,
    .close = dspark_close,
};
