/* family_dense.c is the plain pre-norm transformer with grouped queries: Llama and Qwen3
 * checkpoints, and those with one more such layer as a next-token head
 * (`num_nextn_predict_layers`). */
#include "src/model/family.h"

#include "kernels/backend.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/buffers.h"
#include "src/model/exec.h"
#include "src/model/families.h"
#include "src/transport/comm.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DENSE_LAYERS_MAX (STATES_MAX / 2 - 2) /* two states each, and three of a next-token head */
#define DENSE_HEAD_MAX 1024                   /* what op rope turns */

struct dense_layer {
    struct mat q, k, v, o, gate, up, down;
    const float *attn_norm, *mlp_norm, *q_norm, *k_norm;
    int k_state, v_state;
};

struct dense_model {
    struct model base;
    int heads, kv_heads, head_dim, hidden; /* of the whole model */
    float eps;
    double theta;
    bool tied, head_norms;
    int nextn; /* layers of a next-token head */
    struct table embed;
    struct mat head;
    const float *norm, *freq;
    struct dense_layer *layer; /* [layers], then the next-token head's */
    struct device *dev;
};

static const struct mtp_ops dense_mtp;

static struct dense_model *dense(struct model *m)
{
    return (struct dense_model *)m;
}

static void dense_close(struct model *base)
{
    struct dense_model *m = dense(base);

    if (!base)
        return;
    if (m->dev)
        m->dev->ops->free(m->dev, (void *)(uintptr_t)m->freq);
    free(m->layer);
    free(m);
}

static int read_shape(const struct json *c, struct dense_model *m)
{
    struct model *b = &m->base;
    int r = json_int(c, "vocab_size", 1, 1 << 24, &b->vocab);

    if (r == 0)
        r = json_int(c, "hidden_size", 1, 1 << 16, &b->dim);
    if (r == 0)
        r = json_int(c, "num_hidden_layers", 1, DENSE_LAYERS_MAX, &b->layers);
    if (r == 0)
        r = json_int(c, "num_attention_heads", 1, 1024, &m->heads);
    if (r == 0)
        r = json_int(c, "intermediate_size", 1, 1 << 20, &m->hidden);
    if (r == 0)
        r = json_int(c, "max_position_embeddings", 1, INT_MAX, &b->context_max);
    if (r < 0)
        return r;
    m->kv_heads = m->heads;
    m->head_dim = b->dim / m->heads;
    r = json_opt_int(c, "num_nextn_predict_layers", 0, 64, &m->nextn);
    if (r == 0 && m->nextn > 1)
        r = fail(-EINVAL, "config: num_nextn_predict_layers %d is not supported, only 0 and 1",
                 m->nextn);
    if (r == 0)
        r = json_opt_int(c, "num_key_value_heads", 1, m->heads, &m->kv_heads);
    if (r == 0)
        r = json_opt_int(c, "head_dim", 2, DENSE_HEAD_MAX, &m->head_dim);
    if (r == 0 && (m->heads % m->kv_heads || m->head_dim % 2 || m->head_dim < 2 ||
                   m->head_dim > DENSE_HEAD_MAX))
        r = fail(-EINVAL, "config: %d heads of %d over %d key heads do not fit", m->heads,
                 m->head_dim, m->kv_heads);
    return r;
}

/* Heads that are rotated in part would be rotated whole. */
static int check_partial(const struct json *o)
{
    double part = 1;
    int r = json_opt_f64(o, "partial_rotary_factor", &part);

    if (r == 0 && part != 1)
        r = fail(-EINVAL, "config: partial_rotary_factor %g is not supported, only 1", part);
    return r;
}

static int check_layers(const struct json *c)
{
    const struct json *types = NULL;
    const char *type;
    int r = json_opt_array(c, "layer_types", &types);

    for (size_t i = 0; r == 0 && types && i < json_count(types); i++) {
        r = json_as_str(json_at(types, i), &type);
        if (r == 0 && strcmp(type, "full_attention") != 0)
            r = fail(-EINVAL,
                     "config: layer_types[%zu] \"%s\" is not supported, only "
                     "\"full_attention\"",
                     i, type);
    }
    return r;
}

/* Keys whose other values would change the arithmetic. */
static int check_ways(const struct json *c, double *theta)
{
    static const char *const off[] = { "attention_bias", "mlp_bias", "use_sliding_window" };
    const struct json *scaling = json_get(c, "rope_scaling"),
                      *rope = json_get(c, "rope_parameters");
    const char *act = "silu", *type = "default";
    int r = json_opt_str(c, "hidden_act", &act);

    for (int i = 0; i < 3 && r == 0; i++) {
        bool on = false;

        r = json_opt_bool(c, off[i], &on);
        if (r == 0 && on)
            r = fail(-EINVAL, "config: %s is not supported", off[i]);
    }
    if (r == 0 && strcmp(act, "silu") != 0)
        r = fail(-EINVAL, "config: hidden_act \"%s\" is not supported, only \"silu\"", act);
    if (r == 0 && json_is(scaling, JSON_IS_OBJECT))
        r = json_opt_str(scaling, json_has(scaling, "rope_type") ? "rope_type" : "type", &type);
    if (r == 0 && json_is(rope, JSON_IS_OBJECT))
        r = json_opt_str(rope, "rope_type", &type);
    if (r == 0 && strcmp(type, "default") != 0)
        r = fail(-EINVAL, "config: rope_type \"%s\" is not supported, only \"default\"", type);
    if (r == 0)
        r = check_partial(c);
    if (r == 0 && json_is(rope, JSON_IS_OBJECT))
        r = check_partial(rope);
    if (r == 0)
        r = check_layers(c);
    if (r == 0)
        r = json_f64(json_has(c, "rope_theta") || !rope ? c : rope, "rope_theta", theta);
    if (r == 0 && !(*theta > 1))
        r = fail(-EINVAL, "config: rope_theta %g, want more than 1", *theta);
    return r;
}

static int dense_open(const struct json *config, bool cache_quant, struct model **out)
{
    struct dense_model *m = calloc(1, sizeof(*m));
    const char *type;
    int r;

    if (!m)
        return fail(-ENOMEM, "dense: out of memory");
    m->base.ops = &family_dense;
    m->base.cache_quant = cache_quant;
    r = json_str(config, "model_type", &type);
    if (r == 0)
        r = read_shape(config, m);
    if (r == 0)
        r = check_ways(config, &m->theta);
    if (r == 0)
        r = config_above_0(config, "rms_norm_eps", &m->eps);
    if (r == 0)
        r = json_opt_bool(config, "tie_word_embeddings", &m->tied);
    m->base.bos = -1;
    if (r == 0)
        r = json_opt_int(config, "bos_token_id", 0, m->base.vocab - 1, &m->base.bos);
    if (r == 0)
        r = config_ends(config, m->base.vocab, FAMILY_ENDS_MAX, m->base.eos, &m->base.n_eos);
    if (r < 0)
        goto failed;
    m->head_norms = strcmp(type, "qwen3") == 0;
    m->layer = calloc((size_t)(m->base.layers + m->nextn), sizeof(*m->layer));
    if (!m->layer) {
        r = fail(-ENOMEM, "dense: out of memory");
        goto failed;
    }
    m->base.embed = &m->embed;
    m->base.head = &m->head;
    m->base.eps = m->eps;
    if (m->nextn) {
        m->base.mtp = &dense_mtp;
        m->base.tap_cols = m->base.dim;
    }
    r = family_dense.split(&m->base, 0, 1);
    if (r < 0)
        goto failed;
    *out = &m->base;
    return 0;

failed:
    dense_close(&m->base);
    return r;
}

static int dense_split(struct model *base, int rank, int ranks)
{
    struct dense_model *m = dense(base);
    int64_t first, count;

    if (m->kv_heads % ranks)
        return fail(-EINVAL, "dense: %d key heads cannot be split over %d ranks", m->kv_heads,
                    ranks);
    base->rank = rank;
    base->ranks = ranks;
    share_width(base->vocab, base->width_unit, rank, ranks, &first, &count);
    base->vocab_first = (int)first;
    base->vocab_share = (int)count;
    base->sites = 1 + 2 * base->layers; /* site 0 is the barrier's */
    return 0;
}

static int dense_derive(struct model *base, const struct tokenizer *t, struct pack_blob *out)
{
    (void)base, (void)t, (void)out;
    return 1;
}

static void layer_states(const struct dense_model *m, struct dense_layer *l, struct state_list *s)
{
    int cols = m->kv_heads / m->base.ranks * m->head_dim;

    l->k_state = state_add(s, STATE_ROWS, 1, CODEC_F32, cols);
    l->v_state = state_add(s, STATE_ROWS, 1, CODEC_F32, cols);
}

static void dense_states(struct model *base, struct state_list *l)
{
    struct dense_model *m = dense(base);

    for (int i = 0; i < base->layers; i++)
        layer_states(m, &m->layer[i], l);
}

static void layer_weights(const struct dense_model *m, struct dense_layer *l, struct walk *w, int i)
{
    int dim = m->base.dim, hd = m->head_dim;
    int group = m->heads / m->kv_heads * hd; /* query rows that share a key head: never cut */
    int kv = m->kv_heads * hd, q = m->heads * hd;

#define ATTN "model.layers.%d.self_attn."
#define MLP "model.layers.%d.mlp."
    walk_vec(w, &l->attn_norm, dim, SHARD_NONE, 1, "model.layers.%d.input_layernorm.weight", i);
    walk_vec(w, &l->mlp_norm, dim, SHARD_NONE, 1, "model.layers.%d.post_attention_layernorm.weight",
             i);
    walk_mat(w, &l->q, q, dim, SHARD_ROWS, group, ATTN "q_proj.weight", i);
    walk_mat(w, &l->k, kv, dim, SHARD_ROWS, hd, ATTN "k_proj.weight", i);
    walk_mat(w, &l->v, kv, dim, SHARD_ROWS, hd, ATTN "v_proj.weight", i);
    walk_mat(w, &l->o, dim, q, SHARD_COLS, group, ATTN "o_proj.weight", i);
    if (m->head_norms) {
        walk_vec(w, &l->q_norm, hd, SHARD_NONE, 1, ATTN "q_norm.weight", i);
        walk_vec(w, &l->k_norm, hd, SHARD_NONE, 1, ATTN "k_norm.weight", i);
    }
    walk_mat(w, &l->gate, m->hidden, dim, SHARD_ROWS, 1, MLP "gate_proj.weight", i);
    walk_mat(w, &l->up, m->hidden, dim, SHARD_ROWS, 1, MLP "up_proj.weight", i);
    walk_mat(w, &l->down, dim, m->hidden, SHARD_COLS, 1, MLP "down_proj.weight", i);
#undef ATTN
#undef MLP
}

static void dense_weights(void *object, struct walk *w)
{
    struct dense_model *m = object;
    int dim = m->base.dim;

    walk_table(w, &m->embed, m->base.vocab, dim, SHARD_NONE, "model.embed_tokens.weight");
    walk_vec(w, &m->norm, dim, SHARD_NONE, 1, "model.norm.weight");
    walk_mat(w, &m->head, m->base.vocab, dim, SHARD_ROWS, 1, "%s",
             m->tied ? "model.embed_tokens.weight#head" : "lm_head.weight");
    for (int i = 0; i < m->base.layers; i++)
        layer_weights(m, &m->layer[i], w, i);
}

static int dense_ready(struct model *base, struct device *d, const struct pack *p)
{
    struct dense_model *m = dense(base);
    int half = m->head_dim / 2, r;
    float f[2048];
    void *table;

    (void)p;
    r = model_check_head(base);
    if (r == 0)
        r = d->ops->alloc(d, (size_t)half * sizeof(float), &table);
    if (r < 0)
        return r;
    m->dev = d;
    m->freq = table;
    for (int i = 0; i < half; i++)
        f[i] = 1.0f / (float)pow(m->theta, (double)((float)(2 * i) / (float)m->head_dim));
    return buffer_put(d, table, f, (size_t)half * sizeof(float));
}

static int dense_stage(struct model *base, const struct slot_pool *p, struct row_store *s,
                       struct window *w)
{
    (void)p, (void)s;
    for (int i = 0; i < w->rows; i++)
        if (w->tok[i] < 0 || w->tok[i] >= base->vocab)
            return fail(-EINVAL, "window: row %d has token %d of %d", i, w->tok[i], base->vocab);
    return 0;
}

static int dense_warm(struct model *base, const struct slot_pool *p, struct row_store *s, int slot,
                      const int32_t *tok, int from, int n)
{
    return 0;
}

static float *linear(struct exec *x, struct matmuls_args *l, const struct mat *w, const float *in,
                     int rows)
{
    return exec_product(x, l, w, in, rows, x->in, x->round);
}

static void norm(const struct dense_model *m, struct exec *x, const float *in, const float *w,
                 float *y, int rows, int cols)
{
    x->op->rmsnorm(x->q, &(struct rmsnorm_args){ .x = in,
                                                 .w = w,
                                                 .y = y,
                                                 .rows = rows,
                                                 .cols = cols,
                                                 .eps = m->eps,
                                                 .round = x->round });
}

/* The rows that a layer runs on. */
struct dense_rows {
    const struct row_info *info;
    int n;
    const struct slot_head *head; /* with floors, or NULL */
};

/* Norms each head if the model has such norms, then rotates it by its row's position. */
static void heads(const struct dense_model *m, struct exec *x, const struct dense_rows *r,
                  const float *weight, float *y, int n)
{
    if (weight)
        norm(m, x, y, weight, y, r->n * n, m->head_dim);
    x->op->rope(x->q, &(struct rope_args){ .x = y,
                                           .freq = m->freq,
                                           .info = r->info,
                                           .rows = r->n,
                                           .heads = n,
                                           .cols = m->head_dim,
                                           .dims = m->head_dim,
                                           .pairs = ROPE_HALVES,
                                           .round = x->round });
}

static void put(struct exec *x, const struct slot_pool *p, const struct dense_rows *r, int state,
                const float *y)
{
    x->op->row_put(x->q, &(struct row_put_args){
                             .x = y, .view = p->view[state], .info = r->info, .rows = r->n });
}

/* Keys and values of some rows. */
struct dense_keys {
    float *k, *v;
};

/* From normed rows n, two of the products of `list`. */
static struct dense_keys keys(const struct dense_layer *l, struct exec *x,
                              struct matmuls_args *list, const float *n, int rows)
{
    struct dense_keys y;

    y.k = linear(x, list, &l->k, n, rows);
    y.v = linear(x, list, &l->v, n, rows);
    return y;
}

static void keep(const struct dense_model *m, const struct dense_layer *l, struct exec *x,
                 const struct slot_pool *p, const struct dense_rows *r, struct dense_keys y)
{
    heads(m, x, r, l->k_norm, y.k, m->kv_heads / m->base.ranks);
    put(x, p, r, l->k_state, y.k);
    put(x, p, r, l->v_state, y.v);
}

static void attention(const struct dense_model *m, const struct dense_layer *l, struct exec *x,
                      const struct slot_pool *p, const struct dense_rows *r, int site, float *h)
{
    int dim = m->base.dim, rows = r->n;
    int kv_heads = m->kv_heads / m->base.ranks, q_heads = m->heads / m->base.ranks;
    float *n = arena_f32(x->tmp, (size_t)rows * (size_t)dim);
    struct matmuls_args list = { .n = 0 };
    struct dense_keys made;
    float *q, *o, *scratch;

    norm(m, x, h, l->attn_norm, n, rows, dim);
    q = linear(x, &list, &l->q, n, rows);
    made = keys(l, x, &list, n, rows);
    x->op->matmuls(x->q, &list);
    heads(m, x, r, l->q_norm, q, q_heads);
    keep(m, l, x, p, r, made);
    o = arena_f32(x->tmp, (size_t)rows * (size_t)l->q.rows);
    scratch = arena_f32(x->tmp, (size_t)x->workers * (size_t)p->view[l->k_state].cap);
    x->op->attend_gqa(x->q, &(struct attend_gqa_args){ .q = q,
                                                       .k = p->view[l->k_state],
                                                       .v = p->view[l->v_state],
                                                       .head = r->head,
                                                       .info = r->info,
                                                       .o = o,
                                                       .scratch = scratch,
                                                       .rows = rows,
                                                       .heads = q_heads,
                                                       .kv_heads = kv_heads,
                                                       .dim = m->head_dim,
                                                       .scale = 1.0f / sqrtf((float)m->head_dim),
                                                       .round = x->round });
    x->op->matmul(x->q,
                  &(struct matmul_args){ .w = &l->o, .x = o, .y = n, .rows = rows, .in = x->in });
    comm_sum(x->comm, x->q, site, n, (size_t)rows * (size_t)dim);
    x->op->add(x->q,
               &(struct add_args){ .x = n, .y = h, .rows = rows, .cols = dim, .round = x->round });
}

static void mlp(const struct dense_model *m, const struct dense_layer *l, struct exec *x, int rows,
                int site, float *h)
{
    int dim = m->base.dim;
    float *n = arena_f32(x->tmp, (size_t)rows * (size_t)dim);
    struct matmuls_args list = { .n = 0 };
    float *g, *u;

    norm(m, x, h, l->mlp_norm, n, rows, dim);
    g = linear(x, &list, &l->gate, n, rows);
    u = linear(x, &list, &l->up, n, rows);
    x->op->matmuls(x->q, &list);
    x->op->swiglu(
        x->q,
        &(struct swiglu_args){
            .gate = g, .up = u, .y = g, .rows = rows, .cols = l->gate.rows, .round = x->round });
    x->op->matmul(
        x->q, &(struct matmul_args){ .w = &l->down, .x = g, .y = n, .rows = rows, .in = x->in });
    comm_sum(x->comm, x->q, site, n, (size_t)rows * (size_t)dim);
    x->op->add(x->q,
               &(struct add_args){ .x = n, .y = h, .rows = rows, .cols = dim, .round = x->round });
}

static void layer_forward(const struct dense_model *m, const struct dense_layer *l, struct exec *x,
                          const struct slot_pool *p, const struct dense_rows *r, int site, float *h)
{
    size_t mark = arena_mark(x->tmp);

    attention(m, l, x, p, r, site, h);
    mlp(m, l, x, r->n, site + 1, h);
    arena_reset(x->tmp, mark);
}

static void dense_forward(struct model *base, struct exec *x, const struct slot_pool *p,
                          struct window *w)
{
    struct dense_model *m = dense(base);
    size_t mark = arena_mark(x->tmp);
    float *h = arena_f32(x->tmp, (size_t)w->rows * (size_t)base->dim);
    struct dense_rows r = { .info = w->info, .n = w->rows };

    x->op->embed(x->q,
                 &(struct embed_args){
                     .table = &m->embed, .info = w->info, .y = h, .rows = w->rows, .copies = 1 });
    for (int i = 0; i < base->layers; i++) {
        layer_forward(m, &m->layer[i], x, p, &r, 1 + 2 * i, h);
        exec_layer(x, h, w->info, w->rows, base->dim, i);
    }
    if (base->tap_cols)
        x->op->hc_mean(x->q, &(struct hc_mean_args){ .x = h,
                                                     .y = w->taps,
                                                     .rows = w->rows,
                                                     .hc = 1,
                                                     .dim = base->dim,
                                                     .ldy = base->dim,
                                                     .round = ROUND_NONE });
    window_tapped(x, w);
    if (w->head) {
        norm(m, x, h, m->norm, h, w->rows, base->dim);
        x->op->matmul(
            x->q, &(struct matmul_args){ .w = &m->head, .x = h, .y = w->logits, .rows = w->rows });
    }
    arena_reset(x->tmp, mark);
}

/* ---- next-token head ------------------------------------------------------------------------- */

static struct dense_layer *head_layer(struct model *base)
{
    return &dense(base)->layer[base->layers];
}

static void mtp_states(struct model *base, struct state_list *l)
{
    layer_states(dense(base), head_layer(base), l);
}

static void mtp_weights(struct model *base, struct walk *w)
{
    layer_weights(dense(base), head_layer(base), w, base->layers);
}

static void mtp_prefix(const struct model *base, char *out, size_t cap)
{
    snprintf(out, cap, "model.layers.%d.", base->layers);
}

static void mtp_keys(struct model *base, struct exec *x, const struct slot_pool *p,
                     const struct row_info *info, int rows, const float *h)
{
    const struct dense_model *m = dense(base);
    const struct dense_layer *l = head_layer(base);
    size_t mark = arena_mark(x->tmp);
    float *n = arena_f32(x->tmp, (size_t)rows * (size_t)base->dim);
    struct matmuls_args list = { .n = 0 };
    struct dense_keys made;

    norm(m, x, h, l->attn_norm, n, rows, base->dim);
    made = keys(l, x, &list, n, rows);
    x->op->matmuls(x->q, &list);
    keep(m, l, x, p, &(struct dense_rows){ .info = info, .n = rows }, made);
    arena_reset(x->tmp, mark);
}

static void mtp_layer(struct model *base, struct exec *x, const struct slot_pool *p,
                      const struct row_info *info, int rows, int site, float *h)
{
    struct dense_rows r = { .info = info, .n = rows, .head = p->head };

    layer_forward(dense(base), head_layer(base), x, p, &r, site, h);
}

static const struct mtp_ops dense_mtp = {
    .sites = 2,
    .states = mtp_states,
    .weights = mtp_weights,
    .prefix = mtp_prefix,
    .keys = mtp_keys,
    .layer = mtp_layer,
};

const struct family_ops family_dense = {
    .name = "dense",
    .open = dense_open,
    .split = dense_split,
    .derive = dense_derive,
    .states = dense_states,
    .weights = dense_weights,
    .ready = dense_ready,
    .stage = dense_stage,
    .warm = dense_warm,
    .forward = dense_forward,
    .close = dense_close,
};
