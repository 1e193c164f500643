/* deepseek_v41_forward.c runs one V4.1 layer: attention with compressed rows, experts,
 * hyper-connections. */
#include "src/model/deepseek_v41.h"

#include "src/model/exec.h"
#include "src/model/window.h"
#include "src/transport/comm.h"

#include <assert.h>
#include <math.h>

/* What the released code multiplies in FP8 or FP4: its inputs are codes too, where the run says
 * so. */
static float *linear(struct exec *x, struct matmuls_args *l, const struct mat *w, const float *in,
                     int rows)
{
    return exec_product(x, l, w, in, rows, x->in, x->round);
}

/* What it never does: compressor, index keys and weights, router. */
static float *plain(struct exec *x, struct matmuls_args *l, const struct mat *w, const float *in,
                    int rows, enum round round)
{
    return exec_product(x, l, w, in, rows, CODEC_F32, round);
}

static void norm(struct exec *x, const struct v41_arch *a, const float *w, float *y, int rows,
                 int cols)
{
    x->op->rmsnorm(
        x->q,
        &(struct rmsnorm_args){
            .x = y, .w = w, .y = y, .rows = rows, .cols = cols, .eps = a->eps, .round = x->round });
}

static void rotate(struct exec *x, const struct v41_arch *a, const struct v41_layer *l,
                   const struct v41_rows *r, float *y, int heads, int cols)
{
    x->op->rope(x->q, &(struct rope_args){ .x = y,
                                           .freq = l->freq,
                                           .info = r->info,
                                           .rows = r->rows,
                                           .heads = heads,
                                           .cols = cols,
                                           .dims = a->rope_dims,
                                           .round = x->round });
}

/* Rows y on their way into a state: normed by w, or as they are, turned and stored. */
static void keep(const struct exec *x, struct row_keeps_args *list, const struct v41_arch *a,
                 const struct v41_layer *l, const struct slot_pool *p, const struct v41_rows *r,
                 int state, int ratio, const float *w, float *y)
{
    assert(list->n < ROW_KEEPS_MAX);
    list->of[list->n++] = (struct row_keep){ .x = y,
                                             .w = w,
                                             .freq = l->freq,
                                             .view = p->view[state],
                                             .info = r->info,
                                             .rows = r->rows,
                                             .dims = a->rope_dims,
                                             .ratio = ratio,
                                             .eps = a->eps,
                                             .round = x->round };
}

/* Rows y that are normed beside such. */
static void norm_beside(const struct exec *x, struct row_keeps_args *list, const struct v41_arch *a,
                        const float *w, float *y, int rows, int cols)
{
    assert(list->n < ROW_KEEPS_MAX);
    list->of[list->n++] = (struct row_keep){
        .x = y, .w = w, .view.cols = cols, .rows = rows, .eps = a->eps, .round = x->round
    };
}

static void put(struct exec *x, const struct slot_pool *p, const struct v41_rows *r, int state,
                int ratio, const float *y, int col0, int width)
{
    x->op->row_put(x->q, &(struct row_put_args){ .x = y,
                                                 .view = p->view[state],
                                                 .info = r->info,
                                                 .rows = r->rows,
                                                 .ratio = ratio,
                                                 .ldx = width,
                                                 .col0 = col0,
                                                 .width = width });
}

float *v41_window_product(const struct v41_layer *l, struct exec *x, struct matmuls_args *list,
                          const float *n, int rows)
{
    return linear(x, list, &l->wkv, n, rows);
}

void v41_window_rows(const struct v41_arch *a, const struct v41_layer *l, struct exec *x,
                     const struct slot_pool *p, const struct v41_rows *r, float *kv)
{
    struct row_keeps_args list = { .n = 0 };

    keep(x, &list, a, l, p, r, l->win, 1, l->kv_norm, kv);
    x->op->row_keeps(x->q, &list);
}

void v41_side(struct exec *x, const struct v41_pass *s, enum side_at at, enum v41_lane lane)
{
    if (s->side)
        x->op->side(x->q, &(struct side_args){ .at = at, .lane = (int)lane });
}

/* What a layer's attention makes of its normed rows, and then of qr. */
struct v41_made {
    float *qr, *kv, *lat, *gate, *wt, *q, *iq;
};

static void products_of_rows(const struct v41_layer *l, struct exec *x, const float *n, int rows,
                             struct v41_made *m)
{
    struct matmuls_args list = { .n = 0 };

    m->qr = linear(x, &list, &l->wq_a, n, rows);
    m->kv = v41_window_product(l, x, &list, n, rows);
    x->op->matmuls(x->q, &list);
}

/* The products that sources make of them besides. */
static void products_of_sources(const struct v41_layer *l, struct exec *x, const float *n, int rows,
                                struct v41_made *m)
{
    struct matmuls_args list = { .n = 0 };

    if (l->kv_owner) {
        m->lat = plain(x, &list, &l->c_wkv, n, rows, l->ratio == 1 ? x->round : ROUND_NONE);
        if (l->ratio > 1)
            m->gate = plain(x, &list, &l->c_wgate, n, rows, ROUND_NONE);
    }
    if (l->index_owner)
        m->wt = plain(x, &list, &l->i_weights, n, rows, x->round);
    x->op->matmuls(x->q, &list);
}

/* Compressed rows and index keys of the groups that end in these rows. Both come from the latent
 * before it is rotated. */
static void compress(const struct v41_arch *a, const struct v41_layer *l, struct exec *x,
                     const struct slot_pool *p, const struct v41_rows *r, const struct v41_made *m)
{
    struct matmuls_args list = { .n = 0 };
    struct row_keeps_args kept = { .n = 0 };
    float *lat = m->lat, *key;

    if (l->ratio > 1) {
        put(x, p, r, l->raw, 1, m->lat, 0, a->head_dim);
        put(x, p, r, l->raw, 1, m->gate, a->head_dim, a->head_dim);
        lat = arena_f32(x->tmp, (size_t)r->rows * (size_t)a->head_dim);
        x->op->pool(x->q, &(struct pool_args){ .raw = p->view[l->raw],
                                               .info = r->info,
                                               .y = lat,
                                               .rows = r->rows,
                                               .cols = a->head_dim,
                                               .ratio = l->ratio,
                                               .round = x->round });
    }
    norm(x, a, l->c_norm, lat, r->rows, a->head_dim);
    key = plain(x, &list, &l->i_wk, lat, r->rows, x->round);
    x->op->matmuls(x->q, &list);
    keep(x, &kept, a, l, p, r, l->keys, l->ratio, l->i_k_norm, key);
    keep(x, &kept, a, l, p, r, l->comp, l->ratio, NULL, lat);
    x->op->row_keeps(x->q, &kept);
}

/* The entries that this layer and the Reuse layers behind it attend to. */
static void select_rows(const struct v41_arch *a, const struct v41_layer *l,
                        const struct v41_layer *kv_source, struct exec *x,
                        const struct slot_pool *p, const struct v41_rows *r, struct v41_pass *s,
                        struct v41_made *m)
{
    const struct state_view *keys = &p->view[kv_source->keys];
    float *scratch = arena_f32(x->tmp, (size_t)x->workers * (size_t)keys->cap);
    struct matmuls_args list = { .n = 0 };

    m->iq = linear(x, &list, &l->i_wq_b, m->qr, r->rows);
    x->op->matmuls(x->q, &list);
    rotate(x, a, l, r, m->iq, a->index_heads, a->index_dim);
    x->op->requant(x->q, &(struct requant_args){ .x = m->iq,
                                                 .rows = r->rows * a->index_heads,
                                                 .cols = a->index_dim,
                                                 .codec = keys->codec });
    x->op->select(x->q, &(struct select_args){ .q = m->iq,
                                               .wt = m->wt,
                                               .keys = *keys,
                                               .info = r->info,
                                               .cand_in = l->cand_user ? s->cand : NULL,
                                               .cand_out = l->cand_owner ? s->cand : NULL,
                                               .sel = s->sel,
                                               .scratch = scratch,
                                               .rows = r->rows,
                                               .heads = a->index_heads,
                                               .dim = a->index_dim,
                                               .ratio = l->ratio,
                                               .topk = a->index_topk,
                                               .blocks = a->cand_blocks,
                                               .block = a->cand_block,
                                               .in = keys->codec,
                                               .scale = 1.0f / (sqrtf((float)a->index_dim) *
                                                                sqrtf((float)a->index_heads)) });
}

/* The mixes of the newest site, which the next one is the first to read. */
static void mixes(const struct v41_arch *a, struct exec *x, int rows, struct v41_pass *s, float *X)
{
    if (!s->late)
        return;
    v41_side(x, s, SIDE_BEGIN, V41_LANE_LAYER);
    x->op->hc_mix(x->q, &(struct hc_mix_args){ .x = X,
                                               .fn = &s->late->fn,
                                               .base = s->late->base,
                                               .scale = s->late->scale,
                                               .pre = s->late_pre,
                                               .post = s->post,
                                               .comb = s->comb,
                                               .rows = rows,
                                               .hc = a->hc,
                                               .dim = a->dim,
                                               .iters = a->hc_iters,
                                               .eps = a->eps,
                                               .hc_eps = a->hc_eps });
    v41_side(x, s, SIDE_END, V41_LANE_LAYER);
    s->late = NULL;
}

/* Weights of the next products come into the device's cache beside the exchange that is queued
 * next, as many as the setting allows. Nobody waits for them: the lane is met where something else
 * of it is needed. */
static void ahead(struct exec *x, const struct v41_pass *s, int n, const struct mat *const *w)
{
    struct prefetch_args list = { .rate = x->prefetch_rate };
    size_t left = x->prefetch;
    struct mat_parts p;

    if (!s->side || left == 0)
        return;
    for (int i = 0; i < n && left > 0; i++) {
        mat_parts(w[i], &p);
        if (p.total == 0)
            continue;
        assert(list.n < PREFETCH_MAX);
        list.of[list.n].at = w[i]->data;
        list.of[list.n].bytes = p.total < left ? p.total : left;
        left -= list.of[list.n++].bytes;
    }
    v41_side(x, s, SIDE_BEGIN, V41_LANE_LONG);
    x->op->prefetch(x->q, &list);
    v41_side(x, s, SIDE_END, V41_LANE_LONG);
}

/* Those of a layer's attention, in the order in which they are read. */
static void ahead_of_attention(struct exec *x, const struct v41_pass *s, const struct v41_layer *l)
{
    if (l)
        ahead(x, s, 9,
              (const struct mat *const[]){ &l->c_wkv, &l->c_wgate, &l->i_weights, &l->wq_a, &l->wkv,
                                           &l->i_wq_b, &l->wq_b, &l->wo_a, &l->wo_b });
}

/* Those of its experts that every row reads. */
static void ahead_of_experts(struct exec *x, const struct v41_pass *s, const struct v41_experts *e)
{
    ahead(x, s, 4, (const struct mat *const[]){ &e->gate, &e->s1, &e->s3, &e->s2 });
}

/* y becomes the sum over ranks of the attention's output, not rounded. */
static void attention(const struct v41_arch *a, const struct v41_layer *l,
                      const struct v41_layer *kv_source, struct exec *x, const struct slot_pool *p,
                      const struct v41_rows *r, struct v41_pass *s, const float *n, float *y,
                      float *X)
{
    int topk = l->ratio ? a->index_topk : 0;
    struct row_keeps_args kept = { .n = 0 };
    struct matmuls_args list = { .n = 0 };
    struct v41_made m = { 0 };
    float *o, *z, *scratch;
    bool source = l->kv_owner || l->index_owner;

    if (source) {
        v41_side(x, s, SIDE_BEGIN, V41_LANE_LAYER);
        products_of_sources(l, x, n, r->rows, &m);
        if (l->kv_owner)
            compress(a, l, x, p, r, &m);
        v41_side(x, s, SIDE_END, V41_LANE_LAYER);
    }
    products_of_rows(l, x, n, r->rows, &m);
    norm_beside(x, &kept, a, l->q_norm, m.qr, r->rows, a->q_rank);
    keep(x, &kept, a, l, p, r, l->win, 1, l->kv_norm, m.kv);
    x->op->row_keeps(x->q, &kept);
    if (l->index_owner) {
        v41_side(x, s, SIDE_BEGIN, V41_LANE_LAYER);
        select_rows(a, l, kv_source, x, p, r, s, &m);
        v41_side(x, s, SIDE_END, V41_LANE_LAYER);
    }
    m.q = linear(x, &list, &l->wq_b, m.qr, r->rows);
    x->op->matmuls(x->q, &list);
    if (source)
        v41_side(x, s, SIDE_JOIN, V41_LANE_LAYER);
    mixes(a, x, r->rows, s, X);
    o = arena_f32(x->tmp, (size_t)r->rows * (size_t)(l->heads * a->head_dim));
    scratch = arena_f32(x->tmp, (size_t)x->workers *
                                    attend_scratch(a->head_dim, a->window, r->block, topk));
    x->op->attend(x->q, &(struct attend_args){ .q = m.q,
                                               .sink = l->sink,
                                               .freq = l->freq,
                                               .win = p->view[l->win],
                                               .more = topk ? p->view[kv_source->comp]
                                                            : (struct state_view){ 0 },
                                               .head = r->head,
                                               .info = r->info,
                                               .sel = s->sel,
                                               .o = o,
                                               .scratch = scratch,
                                               .rows = r->rows,
                                               .heads = l->heads,
                                               .dim = a->head_dim,
                                               .span = a->window,
                                               .topk = topk,
                                               .block = r->block,
                                               .dims = a->rope_dims,
                                               .mode = r->mode,
                                               .scale = 1.0f / sqrtf((float)a->head_dim),
                                               .round = x->round });
    z = arena_f32(x->tmp, (size_t)r->rows * (size_t)l->wo_a.rows);
    /* wo_a is FP8 in the released files and bf16 in what runs: its inputs stay as they are. */
    x->op->matmul(x->q, &(struct matmul_args){ .w = &l->wo_a,
                                               .x = o,
                                               .y = z,
                                               .rows = r->rows,
                                               .groups = l->groups,
                                               .round = x->round });
    x->op->matmul(
        x->q, &(struct matmul_args){ .w = &l->wo_b, .x = z, .y = y, .rows = r->rows, .in = x->in });
    ahead_of_experts(x, s, &l->moe);
    comm_sum(x->comm, x->q, l->site, y, (size_t)r->rows * (size_t)a->dim);
}

/* y becomes the sum over ranks of routed and shared experts, not rounded. */
static void experts(const struct v41_arch *a, const struct v41_layer *l, struct exec *x, int rows,
                    const struct v41_pass *s, const float *n, float *y)
{
    const struct v41_experts *e = &l->moe;
    float *logit = arena_f32(x->tmp, (size_t)rows * (size_t)e->n);
    float *weight = arena_f32(x->tmp, (size_t)rows * (size_t)e->k);
    int32_t *id = arena_i32(x->tmp, (size_t)rows * (size_t)e->k);
    float *scratch = arena_f32(x->tmp, (size_t)rows * (size_t)(e->k + 1) * 2 * (size_t)e->inter);

    x->op->route(x->q, &(struct route_args){ .gate = &e->gate,
                                             .x = n,
                                             .logit = logit,
                                             .bias = e->bias,
                                             .id = id,
                                             .weight = weight,
                                             .rows = rows,
                                             .experts = e->n,
                                             .k = e->k,
                                             .norm = a->norm_topk,
                                             .scale = a->routed_scale,
                                             .temp = 1.0f,
                                             .top_p = x->top_p });
    x->op->moe(x->q, &(struct moe_args){ .w1 = e->d_w1,
                                         .w3 = e->d_w3,
                                         .w2 = e->d_w2,
                                         .s1 = e->d_s1,
                                         .s3 = e->d_s3,
                                         .s2 = e->d_s2,
                                         .x = n,
                                         .weight = weight,
                                         .id = id,
                                         .y = y,
                                         .scratch = scratch,
                                         .rows = rows,
                                         .experts = e->n,
                                         .k = e->k,
                                         .dim = a->dim,
                                         .inter = e->inter,
                                         .kinds = e->kinds,
                                         .mixed = e->mixed,
                                         .limit = a->limit,
                                         .in = x->in,
                                         .round = x->round });
    ahead_of_attention(x, s, s->next);
    comm_sum(x->comm, x->q, l->site + 1, y, (size_t)rows * (size_t)a->dim);
}

void v41_settle(const struct v41_arch *a, struct exec *x, int rows, struct v41_pass *s, float *X)
{
    v41_side(x, s, SIDE_JOIN, V41_LANE_LAYER);
    if (s->due)
        x->op->hc_expand(x->q, &(struct hc_expand_args){ .y = s->sum,
                                                         .post = s->post,
                                                         .comb = s->comb,
                                                         .x = X,
                                                         .rows = rows,
                                                         .hc = a->hc,
                                                         .dim = a->dim,
                                                         .round = x->round });
    s->due = false;
}

void v41_site(const struct v41_arch *a, const struct v41_site *site, struct exec *x, int rows,
              struct v41_pass *s, float *X, const float *pre, float *to_pre, const float *w,
              float *h, float *n)
{
    bool late = site && s->side;
    const struct v41_site *mixed = late ? NULL : site;

    v41_side(x, s, SIDE_JOIN, V41_LANE_LAYER);
    x->op->hc_site(x->q, &(struct hc_site_args){ .y = s->due ? s->sum : NULL,
                                                 .post = s->post,
                                                 .comb = s->comb,
                                                 .x = X,
                                                 .fn = mixed ? &mixed->fn : NULL,
                                                 .base = mixed ? mixed->base : NULL,
                                                 .scale = mixed ? mixed->scale : NULL,
                                                 .to_pre = to_pre,
                                                 .to_post = s->post,
                                                 .to_comb = s->comb,
                                                 .pre = pre,
                                                 .w = w,
                                                 .h = h,
                                                 .n = n,
                                                 .rows = rows,
                                                 .hc = a->hc,
                                                 .dim = a->dim,
                                                 .iters = a->hc_iters,
                                                 .eps = a->eps,
                                                 .hc_eps = a->hc_eps,
                                                 .round = x->round });
    s->due = false;
    s->late = late ? site : NULL;
    s->late_pre = to_pre;
}

void v41_pass_init(struct v41_pass *s, const struct v41_arch *a, struct exec *x, int rows,
                   bool sources)
{
    *s = (struct v41_pass){ .side = x->side && rows <= WINDOW_ROWS_SHARED };
    s->mix[0] = arena_f32(x->tmp, (size_t)rows * (size_t)a->hc);
    s->mix[1] = arena_f32(x->tmp, (size_t)rows * (size_t)a->hc);
    s->post = arena_f32(x->tmp, (size_t)rows * (size_t)a->hc);
    s->comb = arena_f32(x->tmp, (size_t)rows * (size_t)(a->hc * a->hc));
    s->sum = arena_f32(x->tmp, (size_t)rows * (size_t)a->dim);
    if (sources && a->index_topk)
        s->sel = arena_i32(x->tmp, (size_t)rows * (size_t)a->index_topk);
    if (sources && a->cand_layer >= 0)
        s->cand = arena_i32(x->tmp, (size_t)rows * (size_t)a->cand_blocks);
}

void v41_attention(const struct v41_arch *a, const struct v41_layer *l,
                   const struct v41_layer *kv_source, struct exec *x, const struct slot_pool *p,
                   const struct v41_rows *r, struct v41_pass *s, float *X)
{
    size_t mark = arena_mark(x->tmp);
    float *n = arena_f32(x->tmp, (size_t)r->rows * (size_t)a->dim);

    v41_site(a, &l->hc_attn, x, r->rows, s, X, s->pre, s->mix[0], l->attn_norm, NULL, n);
    attention(a, l, kv_source, x, p, r, s, n, s->sum, X);
    s->due = true;
    arena_reset(x->tmp, mark);
}

void v41_experts(const struct v41_arch *a, const struct v41_layer *l, struct exec *x, int rows,
                 struct v41_pass *s, float *X)
{
    size_t mark = arena_mark(x->tmp);
    float *n = arena_f32(x->tmp, (size_t)rows * (size_t)a->dim);

    v41_site(a, &l->hc_ffn, x, rows, s, X, s->mix[0], s->mix[1], l->ffn_norm, NULL, n);
    mixes(a, x, rows, s, X);
    experts(a, l, x, rows, s, n, s->sum);
    s->due = true;
    s->pre = s->mix[1];
    arena_reset(x->tmp, mark);
}

void v41_layer_forward(const struct v41_arch *a, const struct v41_layer *l,
                       const struct v41_layer *kv_source, struct exec *x, const struct slot_pool *p,
                       const struct v41_rows *r, struct v41_pass *s, float *X)
{
    v41_attention(a, l, kv_source, x, p, r, s, X);
    v41_experts(a, l, x, r->rows, s, X);
}
