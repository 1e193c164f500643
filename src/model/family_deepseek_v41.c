/* family_deepseek_v41.c is the V4.1 backbone: embedding, layers with Engram injections, norm and
 * head. The layers themselves are in deepseek_v41_*.c, n-gram hashes in engram_hash.c. */
#include "src/model/deepseek_v41.h"

#include "kernels/backend.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/engram_hash.h"
#include "src/model/exec.h"
#include "src/model/families.h"
#include "src/model/family.h"
#include "src/model/row_store.h"
#include "src/model/token_map.h"
#include "src/transport/comm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_MAP_BLOB "engram.map"

/* One Engram layer: its share of the n-gram table, and the projection of gathered rows. */
struct v41_engram {
    int layer;
    struct row_table table;
    struct mat wkv;
    const float *qw, *kw;
};

/* Rows of a table, as stores are asked for them. */
struct row_list {
    int32_t *column;
    int64_t *row;
    int max;
};

struct v41_model {
    struct model base;
    struct v41_arch a;
    struct v41_layer *layer;
    struct v41_engram engram[WINDOW_TABLES];
    struct table embed;
    struct mat head;
    const float *norm;
    const float *freq[2]; /* plain, compressed */
    struct device *dev;
    /* n-gram rows */
    struct engram_hash *hash;
    int32_t *map;                               /* [vocab] token to class */
    int columns;                                /* hash columns of a table */
    struct row_list owed[WINDOW_TABLES], ahead; /* of the staged window; of a warming */
};

static struct v41_model *v41(struct model *m)
{
    return (struct v41_model *)m;
}

const struct v41_arch *v41_model_arch(const struct model *m)
{
    return m->ops == &family_deepseek_v41 ? &((const struct v41_model *)m)->a : NULL;
}

static void row_list_free(struct row_list *l)
{
    free(l->column);
    free(l->row);
}

static void v41_close(struct model *base)
{
    struct v41_model *m = v41(base);

    if (!base)
        return;
    for (int i = 0; i < m->a.layers && m->layer; i++)
        v41_layer_free(&m->layer[i], m->dev);
    for (int i = 0; i < 2 && m->dev; i++)
        m->dev->ops->free(m->dev, (void *)(uintptr_t)m->freq[i]);
    engram_hash_close(m->hash);
    free(m->map);
    for (int t = 0; t < WINDOW_TABLES; t++)
        row_list_free(&m->owed[t]);
    row_list_free(&m->ahead);
    free(m->layer);
    free(m);
}

/* The rows that the primes add up to are those the checkpoint's tables must have. */
static int check_engram_rows(const struct json *config, const struct v41_model *m)
{
    const struct json *o =
        json_has(config, "text_config") ? json_get(config, "text_config") : config;
    const struct json *rows = NULL;
    int r = json_opt_array(o, "engram_num_embeddings", &rows);

    if (r < 0 || !rows)
        return r;
    if (json_count(rows) != (size_t)m->a.engrams)
        return fail(-EINVAL, "config: engram_num_embeddings has %zu entries for %d layers",
                    json_count(rows), m->a.engrams);
    for (int t = 0; t < m->a.engrams; t++) {
        const int64_t *prime = engram_hash_primes(m->hash, t);
        int64_t sum = 0, want;

        r = json_as_i64(json_at(rows, (size_t)t), 0, INT64_MAX, &want);
        if (r < 0)
            return r;
        for (int c = 0; c < m->columns; c++)
            sum += prime[c];
        if (sum != want)
            return fail(-EINVAL, "config: engram table %d has %lld rows, its primes make %lld", t,
                        (long long)want, (long long)sum);
    }
    return 0;
}

static int open_engram(const struct json *config, struct v41_model *m)
{
    const struct v41_arch *a = &m->a;
    struct engram_spec spec = { .layers = a->engrams,
                                .orders = a->engram_orders,
                                .heads = a->engram_heads,
                                .vocab = a->engram_bound,
                                .classes = a->engram_classes };
    int r;

    m->columns = (a->engram_orders - 1) * a->engram_heads;
    memcpy(spec.layer, a->engram_layer, sizeof(a->engram_layer));
    r = engram_hash_open(&spec, &m->hash);
    return r < 0 ? r : check_engram_rows(config, m);
}

static int v41_open(const struct json *config, bool cache_quant, struct model **out)
{
    struct v41_model *m = calloc(1, sizeof(*m));
    struct v41_arch *a;
    int r;

    if (!m)
        return fail(-ENOMEM, "deepseek_v41: out of memory");
    a = &m->a;
    m->base.ops = &family_deepseek_v41;
    m->base.cache_quant = cache_quant;
    m->base.bf16_sums = true;
    r = v41_arch_read(config, a);
    if (r == 0 && a->engrams)
        r = open_engram(config, m);
    if (r < 0)
        goto failed;
    m->layer = calloc((size_t)a->layers, sizeof(*m->layer));
    if (!m->layer) {
        r = fail(-ENOMEM, "deepseek_v41: out of memory");
        goto failed;
    }
    m->base.vocab = a->vocab;
    m->base.dim = a->dim;
    m->base.layers = a->layers;
    m->base.context_max = a->context_max;
    m->base.tap_cols = a->taps * a->dim;
    m->base.tables = a->engrams;
    m->base.bos = a->bos;
    m->base.n_eos = a->n_eos;
    memcpy(m->base.eos, a->eos, sizeof(a->eos));
    m->base.embed = &m->embed;
    m->base.head = &m->head;
    r = family_deepseek_v41.split(&m->base, 0, 1);
    if (r < 0)
        goto failed;
    *out = &m->base;
    return 0;

failed:
    v41_close(&m->base);
    return r;
}

/* Site 0 is the barrier's; a layer has two, an Engram two behind the layers'. */
static int layer_site(int layer)
{
    return 1 + 2 * layer;
}

static int engram_site(const struct v41_arch *a, int t)
{
    return layer_site(a->layers) + 2 * t;
}

static int v41_split(struct model *base, int rank, int ranks)
{
    struct v41_model *m = v41(base);
    const struct v41_arch *a = &m->a;
    int64_t first, count;

    if (a->heads % ranks || a->o_groups % ranks)
        return fail(-EINVAL, "deepseek_v41: %d heads in %d o_groups cannot be split over %d ranks",
                    a->heads, a->o_groups, ranks);
    if (a->engrams && (a->hc + 1) * a->dim % ranks)
        return fail(-EINVAL, "deepseek_v41: engram outputs %d cannot be split over %d ranks",
                    (a->hc + 1) * a->dim, ranks);
    base->rank = rank;
    base->ranks = ranks;
    share_width(a->vocab, base->width_unit, rank, ranks, &first, &count);
    base->vocab_first = (int)first;
    base->vocab_share = (int)count;
    base->sites = engram_site(a, a->engrams);
    for (int t = 0; t < a->engrams; t++) {
        m->engram[t].layer = a->engram_layer[t];
        base->engram_ld[t] = (m->columns + ranks - 1) / ranks * a->engram_dim;
    }
    for (int i = 0; i < a->layers; i++)
        v41_layer_init(&m->layer[i], a, i, a->ratio[i], a->experts, a->top_k, ranks, layer_site(i));
    return 0;
}

/* As many classes as the config says, for weights that nobody has trained. */
static int made_up_map(int vocab, int classes, int32_t **out)
{
    int32_t *map = malloc(sizeof(*map) * (size_t)vocab);

    if (!map)
        return fail(-ENOMEM, "deepseek_v41: out of memory");
    for (int i = 0; i < vocab; i++)
        map[i] = i % classes;
    *out = map;
    return 0;
}

static int v41_derive(struct model *base, const struct tokenizer *t, struct pack_blob *out)
{
    struct v41_model *m = v41(base);
    int r;

    if (!m->a.engrams)
        return 1;
    if (!m->map) {
        r = t ? token_map_build(t, m->a.vocab, m->a.engram_classes, &m->map)
              : made_up_map(m->a.vocab, m->a.engram_classes, &m->map);
        if (r < 0)
            return r;
    }
    *out = (struct pack_blob){ TOKEN_MAP_BLOB, m->map, sizeof(int32_t) * (size_t)m->a.vocab };
    return 0;
}

static void v41_states(struct model *base, struct state_list *l)
{
    struct v41_model *m = v41(base);

    for (int i = 0; i < m->a.layers; i++)
        v41_layer_states(&m->layer[i], &m->a, m->a.window, base->cache_quant, l);
}

static void v41_weights(void *object, struct walk *w)
{
    struct v41_model *m = object;
    const struct v41_arch *a = &m->a;
    char prefix[32];

    walk_table(w, &m->embed, a->vocab, a->dim, SHARD_NONE, "embed.weight");
    walk_vec(w, &m->norm, a->dim, SHARD_NONE, 1, "norm.weight");
    walk_mat(w, &m->head, a->vocab, a->dim, SHARD_ROWS, 1, "head.weight");
    for (int i = 0; i < a->layers; i++) {
        snprintf(prefix, sizeof(prefix), "layers.%d", i);
        v41_layer_weights(&m->layer[i], a, w, prefix);
    }
    for (int t = 0; t < a->engrams; t++) {
        struct v41_engram *e = &m->engram[t];

        walk_rows(w, &e->table, engram_hash_primes(m->hash, t), m->columns, a->engram_dim,
                  "layers.%d.engram.embed.weight", e->layer);
        /* Equal shares: ranks gather each other's. */
        walk_mat(w, &e->wkv, (a->hc + 1) * a->dim, m->columns * a->engram_dim, SHARD_ROWS,
                 (a->hc + 1) * a->dim / w->ranks, "layers.%d.engram.wkv.weight", e->layer);
        walk_vec(w, &e->qw, a->hc * a->dim, SHARD_NONE, 1, "layers.%d.engram.q_weight", e->layer);
        walk_vec(w, &e->kw, a->hc * a->dim, SHARD_NONE, 1, "layers.%d.engram.k_weight", e->layer);
    }
}

static int read_map(struct v41_model *m, const struct pack *p)
{
    const char *data;
    size_t bytes, want = sizeof(int32_t) * (size_t)m->a.vocab;
    int r = pack_find_blob(p, TOKEN_MAP_BLOB, &data, &bytes);

    if (r < 0)
        return r;
    if (r > 0 || bytes != want)
        return fail(-EINVAL, "pack: %s has %zu bytes, want %zu", TOKEN_MAP_BLOB, r > 0 ? 0 : bytes,
                    want);
    m->map = malloc(want);
    if (!m->map)
        return fail(-ENOMEM, "deepseek_v41: out of memory");
    memcpy(m->map, data, want);
    for (int i = 0; i < m->a.vocab; i++)
        if (m->map[i] < -1 || m->map[i] >= m->a.engram_classes)
            return fail(-EINVAL, "pack: %s maps token %d to class %d of %d", TOKEN_MAP_BLOB, i,
                        m->map[i], m->a.engram_classes);
    return 0;
}

static int v41_ready(struct model *base, struct device *d, const struct pack *p)
{
    struct v41_model *m = v41(base);
    int r = model_check_head(base);

    m->dev = d;
    if (r == 0 && m->a.engrams && !m->map)
        r = read_map(m, p);
    for (int i = 0; i < 2 && r == 0; i++)
        r = v41_freqs(&m->a, d, i, &m->freq[i]);
    for (int i = 0; i < m->a.layers && r == 0; i++) {
        m->layer[i].freq = m->freq[m->layer[i].ratio != 0];
        r = v41_layer_ready(&m->layer[i], d);
    }
    return r;
}

/* Class of the token s places before row i of segment g, -1 before the text begins. */
static int32_t class_before(const struct v41_model *m, const struct slot_pool *p,
                            const struct window *w, const struct segment *g, int i, int s)
{
    int pos = p->pos[g->slot] + i - s;

    if (pos < 0)
        return -1;
    return m->map[i >= s ? w->tok[g->first + i - s] : p->ids[g->slot][pos]];
}

static int row_list_reserve(struct row_list *l, int n)
{
    int32_t *column;
    int64_t *row;

    if (n <= l->max)
        return 0;
    column = realloc(l->column, sizeof(*column) * (size_t)n);
    if (column)
        l->column = column;
    row = realloc(l->row, sizeof(*row) * (size_t)n);
    if (row)
        l->row = row;
    if (!column || !row)
        return fail(-ENOMEM, "engram: no memory for %d rows", n);
    l->max = n;
    return 0;
}

/* Rows of table t for the window's rows from `from` on, this rank's columns only; how many. */
static int list_rows(const struct v41_model *m, const struct slot_pool *p, const struct window *w,
                     int t, int from, struct row_list *l)
{
    const struct v41_arch *a = &m->a;
    const struct row_table *table = &m->engram[t].table;
    const int64_t *offset = engram_hash_offsets(m->hash, t);
    int32_t class[ENGRAM_ORDERS_MAX];
    int64_t row[ENGRAM_COLUMNS_MAX];
    int n = 0;

    for (int g = 0; g < w->segs; g++)
        for (int i = from; i < w->seg[g].len; i++) {
            for (int j = 0; j < a->engram_orders; j++)
                class[j] = class_before(m, p, w, &w->seg[g], i, j);
            engram_hash_rows(m->hash, t, class, m->map[a->engram_pad], row);
            for (int c = 0; c < table->count; c++, n++) {
                l->column[n] = c;
                l->row[n] = row[table->first + c] - offset[table->first + c];
            }
        }
    return n;
}

static int check_tokens(const struct v41_model *m, const int32_t *tok, int n)
{
    for (int i = 0; i < n; i++)
        if (tok[i] < 0 || tok[i] >= m->a.vocab)
            return fail(-EINVAL, "window: row %d has token %d of %d", i, tok[i], m->a.vocab);
    return 0;
}

static int v41_warm(struct model *base, const struct slot_pool *p, struct row_store *s, int slot,
                    const int32_t *tok, int from, int n)
{
    struct v41_model *m = v41(base);
    struct window w = {
        .seg = { { .slot = slot, .len = n } }, .segs = 1, .rows = n, .tok = (int32_t *)tok
    };
    int r = m->a.engrams ? row_list_reserve(&m->ahead, n * m->columns) : 0;

    if (r == 0)
        r = check_tokens(m, tok, n);
    for (int t = 0; t < m->a.engrams && r == 0; t++) {
        int rows = list_rows(m, p, &w, t, from, &m->ahead);

        r = s->ops->warm(s, &m->engram[t].table, m->ahead.column, m->ahead.row, rows);
    }
    return r;
}

static int v41_stage(struct model *base, const struct slot_pool *p, struct row_store *s,
                     struct window *w)
{
    struct v41_model *m = v41(base);
    int r = check_tokens(m, w->tok, w->rows);

    for (int t = 0; t < m->a.engrams && r == 0; t++) {
        struct row_list *l = &m->owed[t];

        r = window_forget(w, t);
        if (r == 0)
            r = row_list_reserve(l, w->rows * m->columns);
        if (r == 0)
            window_owe(w, t, s, &m->engram[t].table, l->column, l->row,
                       list_rows(m, p, w, t, 0, l));
    }
    return r;
}

/* The whole rows of x [rows][own share], gathered: pieces of width[i] values lie ld apart. */
static float *gather_rows(struct v41_model *m, struct exec *x, int site, const float *own, int rows,
                          int ld, const int *width)
{
    int ranks = m->base.ranks, total = 0;
    float *all = arena_f32(x->tmp, (size_t)ranks * (size_t)rows * (size_t)ld), *y;
    struct unshard_args u = { .x = all, .ranks = ranks, .rows = rows, .ldx = ld };

    for (int i = 0; i < ranks; i++) {
        u.width[i] = width[i];
        total += width[i];
    }
    y = arena_f32(x->tmp, (size_t)rows * (size_t)total);
    u.y = y;
    comm_gather(x->comm, x->q, site, own, all, sizeof(float) * (size_t)rows * (size_t)ld);
    x->op->unshard(x->q, &u);
    return y;
}

/* Where a pass has come to with its n-gram layers. */
struct ngrams {
    int begun;   /* tables whose product has been queued */
    float *own;  /* what the newest gave: this rank's share of keys and values */
    size_t mark; /* of the arena before it */
};

/* The keys and values of the rows of the next table, if its layer is `layer`: they need nothing of
 * the streams. */
static void engram_begin(struct v41_model *m, struct exec *x, struct window *w, int layer,
                         const struct v41_pass *s, struct ngrams *g)
{
    const struct v41_arch *a = &m->a;
    int ranks = m->base.ranks, t = g->begun, width[RANKS_MAX];
    const struct mat *wkv;
    float *rows;

    if (t == a->engrams || a->engram_layer[t] != layer)
        return;
    wkv = &m->engram[t].wkv;
    for (int i = 0; i < ranks; i++) {
        int64_t first, count;

        share_of(m->columns, i, ranks, &first, &count);
        width[i] = (int)count * a->engram_dim;
    }
    g->mark = arena_mark(x->tmp);
    window_bring(x, w, t);
    rows = gather_rows(m, x, engram_site(a, t), w->engram[t], w->rows, w->engram_ld[t], width);
    g->own = arena_f32(x->tmp, (size_t)w->rows * (size_t)wkv->rows);
    v41_side(x, s, SIDE_BEGIN, V41_LANE_LONG);
    x->op->matmul(
        x->q,
        &(struct matmul_args){
            .w = wkv, .x = rows, .y = g->own, .rows = w->rows, .in = x->in, .round = x->round });
    v41_side(x, s, SIDE_END, V41_LANE_LONG);
    g->begun++;
}

/* What those of the newest table put into the streams. */
static void engram_end(struct v41_model *m, struct exec *x, struct window *w, struct v41_pass *s,
                       struct ngrams *g, float *X)
{
    const struct v41_arch *a = &m->a;
    int t = g->begun - 1, width[RANKS_MAX];
    const struct v41_engram *e = &m->engram[t];
    float *kv;

    v41_settle(a, x, w->rows, s, X);
    for (int i = 0; i < m->base.ranks; i++)
        width[i] = e->wkv.rows;
    v41_side(x, s, SIDE_JOIN, V41_LANE_LONG);
    kv = gather_rows(m, x, engram_site(a, t) + 1, g->own, w->rows, e->wkv.rows, width);
    x->op->engram_gate(x->q, &(struct engram_gate_args){ .kv = kv,
                                                         .qw = e->qw,
                                                         .kw = e->kw,
                                                         .x = X,
                                                         .rows = w->rows,
                                                         .hc = a->hc,
                                                         .dim = a->dim,
                                                         .eps = a->eps,
                                                         .round = x->round });
    arena_reset(x->tmp, g->mark);
    g->own = NULL;
}

static void head(struct v41_model *m, struct exec *x, struct window *w, struct v41_pass *s,
                 float *X)
{
    const struct v41_arch *a = &m->a;
    float *n = arena_f32(x->tmp, (size_t)w->rows * (size_t)a->dim);

    v41_site(a, NULL, x, w->rows, s, X, s->pre, NULL, m->norm, NULL, n);
    x->op->matmul(x->q,
                  &(struct matmul_args){ .w = &m->head, .x = n, .y = w->logits, .rows = w->rows });
}

static void v41_forward(struct model *base, struct exec *x, const struct slot_pool *p,
                        struct window *w)
{
    struct v41_model *m = v41(base);
    const struct v41_arch *a = &m->a;
    struct v41_rows rows = { .info = w->info, .rows = w->rows, .mode = ATTEND_CAUSAL };
    size_t mark = arena_mark(x->tmp);
    float *X = arena_f32(x->tmp, (size_t)w->rows * (size_t)(a->hc * a->dim));
    struct ngrams ngrams = { 0 };
    struct v41_pass pass;

    v41_pass_init(&pass, a, x, w->rows, true);
    x->op->embed(
        x->q, &(struct embed_args){
                  .table = &m->embed, .info = w->info, .y = X, .rows = w->rows, .copies = a->hc });
    engram_begin(m, x, w, 0, &pass, &ngrams);
    for (int i = 0; i < a->layers; i++) {
        const struct v41_layer *l = &m->layer[i];

        pass.next = i + 1 < a->layers ? l + 1 : NULL;
        if (ngrams.own)
            engram_end(m, x, w, &pass, &ngrams, X);
        for (int t = 0; t < a->taps; t++)
            if (a->tap_layer[t] == i) {
                v41_settle(a, x, w->rows, &pass, X);
                x->op->hc_mean(x->q, &(struct hc_mean_args){ .x = X,
                                                             .y = w->taps + t * a->dim,
                                                             .rows = w->rows,
                                                             .hc = a->hc,
                                                             .dim = a->dim,
                                                             .ldy = base->tap_cols,
                                                             .round = x->round });
            }
        if (w->tapped && a->taps && a->tap_layer[a->taps - 1] == i) {
            v41_side(x, &pass, SIDE_BEGIN, V41_LANE_LONG);
            window_tapped(x, w);
            v41_side(x, &pass, SIDE_END, V41_LANE_LONG);
        }
        v41_attention(a, l, l->ratio ? &m->layer[a->kv_source[i]] : NULL, x, p, &rows, &pass, X);
        engram_begin(m, x, w, i + 1, &pass, &ngrams);
        v41_experts(a, l, x, w->rows, &pass, X);
        if (x->trace)
            v41_settle(a, x, w->rows, &pass, X);
        exec_layer(x, X, w->info, w->rows, a->hc * a->dim, i);
    }
    v41_side(x, &pass, SIDE_JOIN, V41_LANE_LAYER);
    if (w->head)
        head(m, x, w, &pass, X);
    v41_side(x, &pass, SIDE_JOIN, V41_LANE_LONG);
    arena_reset(x->tmp, mark);
}

const struct family_ops family_deepseek_v41 = {
    .name = "deepseek_v41",
    .open = v41_open,
    .split = v41_split,
    .derive = v41_derive,
    .states = v41_states,
    .weights = v41_weights,
    .ready = v41_ready,
    .stage = v41_stage,
    .warm = v41_warm,
    .forward = v41_forward,
    .close = v41_close,
};
