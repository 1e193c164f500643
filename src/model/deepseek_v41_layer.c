/* deepseek_v41_layer.c describes a V4.1 layer: roles, states, weights and what they need on the
 * device. */
#include "src/model/deepseek_v41.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/model/buffers.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void v41_layer_init(struct v41_layer *l, const struct v41_arch *a, int index, int ratio,
                    int experts, int top_k, int ranks, int site)
{
    *l = (struct v41_layer){ .index = index,
                             .ratio = ratio,
                             .heads = a->heads / ranks,
                             .groups = a->o_groups / ranks,
                             .site = site,
                             .win = -1,
                             .raw = -1,
                             .comp = -1,
                             .keys = -1 };
    l->moe.n = experts;
    l->moe.k = top_k;
    if (ratio == 0)
        return;
    l->kv_owner = a->kv_source[index] == index;
    l->index_owner = a->index_source[index] == index;
    l->cand_owner = a->cand_layer == index;
    l->cand_user = l->index_owner && !l->kv_owner && a->cand_layer >= 0 &&
                   a->kv_source[index] == a->cand_layer;
}

void v41_layer_states(struct v41_layer *l, const struct v41_arch *a, int span, bool cache_quant,
                      struct state_list *s)
{
    l->win = state_add(s, STATE_RING, span, cache_quant ? CODEC_QW : CODEC_F32, a->head_dim);
    if (!l->kv_owner)
        return;
    if (l->ratio > 1)
        l->raw = state_add(s, STATE_RING, l->ratio, CODEC_F32, 2 * a->head_dim);
    l->comp = state_add(s, STATE_ROWS, l->ratio, cache_quant ? CODEC_QC : CODEC_F32, a->head_dim);
    l->keys = state_add(s, STATE_ROWS, l->ratio, cache_quant ? CODEC_QI : CODEC_F32, a->index_dim);
}

static void site_weights(struct v41_site *s, const struct v41_arch *a, struct walk *w,
                         const char *prefix, const char *which)
{
    int mixes = (2 + a->hc) * a->hc;

    walk_mat(w, &s->fn, mixes, a->hc * a->dim, SHARD_NONE, 1, "%s.hc_%s_fn", prefix, which);
    walk_vec(w, &s->base, mixes, SHARD_NONE, 1, "%s.hc_%s_base", prefix, which);
    walk_vec(w, &s->scale, 3, SHARD_NONE, 1, "%s.hc_%s_scale", prefix, which);
}

static void expert_weights(struct v41_experts *e, const struct v41_arch *a, struct walk *w,
                           const char *prefix)
{
    if (!e->w1) {
        e->w1 = calloc((size_t)e->n * 3, sizeof(*e->w1));
        if (!e->w1) {
            w->err = fail(-ENOMEM, "%s: no memory for %d experts", prefix, e->n);
            return;
        }
        e->w3 = e->w1 + e->n;
        e->w2 = e->w3 + e->n;
    }
    walk_mat(w, &e->gate, e->n, a->dim, SHARD_NONE, 1, "%s.ffn.gate.weight", prefix);
    walk_vec(w, &e->bias, e->n, SHARD_NONE, 1, "%s.ffn.gate.bias", prefix);
    for (int i = 0; i < e->n; i++) {
        walk_expert(w, &e->w1[i], a->inter, a->dim, SHARD_ROWS, i, e->n,
                    "%s.ffn.experts.%d.w1.weight", prefix, i);
        walk_expert(w, &e->w3[i], a->inter, a->dim, SHARD_ROWS, i, e->n,
                    "%s.ffn.experts.%d.w3.weight", prefix, i);
        walk_expert(w, &e->w2[i], a->dim, a->inter, SHARD_COLS, i, e->n,
                    "%s.ffn.experts.%d.w2.weight", prefix, i);
    }
    walk_mat(w, &e->s1, a->shared_inter, a->dim, SHARD_ROWS, 1, "%s.ffn.shared_experts.w1.weight",
             prefix);
    walk_mat(w, &e->s3, a->shared_inter, a->dim, SHARD_ROWS, 1, "%s.ffn.shared_experts.w3.weight",
             prefix);
    walk_mat(w, &e->s2, a->dim, a->shared_inter, SHARD_COLS, 1, "%s.ffn.shared_experts.w2.weight",
             prefix);
}

static void source_weights(struct v41_layer *l, const struct v41_arch *a, struct walk *w,
                           const char *prefix)
{
    if (l->kv_owner) {
        walk_mat(w, &l->c_wkv, a->head_dim, a->dim, SHARD_NONE, 1, "%s.attn.compressor.wkv.weight",
                 prefix);
        if (l->ratio > 1)
            walk_mat(w, &l->c_wgate, a->head_dim, a->dim, SHARD_NONE, 1,
                     "%s.attn.compressor.wgate.weight", prefix);
        walk_vec(w, &l->c_norm, a->head_dim, SHARD_NONE, 1, "%s.attn.compressor.norm.weight",
                 prefix);
        walk_mat(w, &l->i_wk, a->index_dim, a->head_dim, SHARD_NONE, 1, "%s.attn.indexer.wk.weight",
                 prefix);
        walk_vec(w, &l->i_k_norm, a->index_dim, SHARD_NONE, 1, "%s.attn.indexer.k_norm.weight",
                 prefix);
    }
    if (l->index_owner) {
        walk_mat(w, &l->i_wq_b, a->index_heads * a->index_dim, a->q_rank, SHARD_NONE, 1,
                 "%s.attn.indexer.wq_b.weight", prefix);
        walk_mat(w, &l->i_weights, a->index_heads, a->dim, SHARD_NONE, 1,
                 "%s.attn.indexer.weights_proj.weight", prefix);
    }
}

void v41_layer_weights(struct v41_layer *l, const struct v41_arch *a, struct walk *w,
                       const char *prefix)
{
    int heads = a->heads * a->head_dim, lora = a->o_groups * a->o_rank;

    walk_vec(w, &l->attn_norm, a->dim, SHARD_NONE, 1, "%s.attn_norm.weight", prefix);
    walk_vec(w, &l->ffn_norm, a->dim, SHARD_NONE, 1, "%s.ffn_norm.weight", prefix);
    site_weights(&l->hc_attn, a, w, prefix, "attn");
    site_weights(&l->hc_ffn, a, w, prefix, "ffn");
    walk_mat(w, &l->wq_a, a->q_rank, a->dim, SHARD_NONE, 1, "%s.attn.wq_a.weight", prefix);
    walk_vec(w, &l->q_norm, a->q_rank, SHARD_NONE, 1, "%s.attn.q_norm.weight", prefix);
    walk_mat(w, &l->wq_b, heads, a->q_rank, SHARD_ROWS, a->head_dim, "%s.attn.wq_b.weight", prefix);
    walk_mat(w, &l->wkv, a->head_dim, a->dim, SHARD_NONE, 1, "%s.attn.wkv.weight", prefix);
    walk_vec(w, &l->kv_norm, a->head_dim, SHARD_NONE, 1, "%s.attn.kv_norm.weight", prefix);
    walk_vec(w, &l->sink, a->heads, SHARD_ROWS, 1, "%s.attn.attn_sink", prefix);
    walk_mat(w, &l->wo_a, lora, heads / a->o_groups, SHARD_ROWS, a->o_rank, "%s.attn.wo_a.weight",
             prefix);
    walk_mat(w, &l->wo_b, a->dim, lora, SHARD_COLS, a->o_rank, "%s.attn.wo_b.weight", prefix);
    source_weights(l, a, w, prefix);
    expert_weights(&l->moe, a, w, prefix);
}

int v41_layer_ready(struct v41_layer *l, struct device *d)
{
    struct v41_experts *e = &l->moe;
    size_t n = (size_t)e->n;
    struct queue *q;
    struct mat *m;
    void *p;
    int r = d->ops->alloc(d, (3 * n + 3) * sizeof(*m), &p);

    if (r < 0)
        return r;
    m = p;
    e->d_w1 = m;
    e->d_w3 = m + n;
    e->d_w2 = m + 2 * n;
    e->d_s1 = m + 3 * n;
    e->d_s3 = m + 3 * n + 1;
    e->d_s2 = m + 3 * n + 2;
    e->inter = e->s1.rows;
    for (int i = 0; i < e->n; i++)
        if (e->w1[i].rows > e->inter)
            e->inter = e->w1[i].rows;
    e->kinds = mat_kind(&e->s1) | mat_kind(&e->s3) | mat_kind(&e->s2);
    for (size_t i = 0; i < 3 * n; i++)
        e->kinds |= mat_kind(&e->w1[i]);
    e->mixed = mats_mixed(&e->s1, &e->s3, &e->s2);
    for (size_t i = 0; i < n; i++)
        e->mixed |= mats_mixed(&e->w1[i], &e->w1[n + i], &e->w1[2 * n + i]);
    r = d->ops->queue_open(d, &q);
    if (r < 0)
        return r;
    q->ops->put(q, m, e->w1, 3 * n * sizeof(*m));
    q->ops->put(q, m + 3 * n, &e->s1, sizeof(*m));
    q->ops->put(q, m + 3 * n + 1, &e->s3, sizeof(*m));
    q->ops->put(q, m + 3 * n + 2, &e->s2, sizeof(*m));
    r = q->ops->wait(q);
    q->ops->queue_close(q);
    return r;
}

void v41_layer_free(struct v41_layer *l, struct device *d)
{
    if (d)
        d->ops->free(d, (void *)(uintptr_t)l->moe.d_w1);
    free(l->moe.w1);
    l->moe.w1 = NULL;
    l->moe.d_w1 = NULL;
}

/* The reference computes the table in f32: theta^(2i/dims) is rounded, then inverted. */
int v41_freqs(const struct v41_arch *a, struct device *d, bool compressed, const float **out)
{
    int half = a->rope_dims / 2;
    double theta = compressed ? a->compress_theta : a->rope_theta;
    double turns = a->yarn_original / (2 * M_PI), ln = 2 * log(theta);
    float low = (float)fmax(floor(a->rope_dims * log(turns / a->yarn_fast) / ln), 0);
    float high = (float)fmin(ceil(a->rope_dims * log(turns / a->yarn_slow) / ln), a->rope_dims - 1);
    void *table;
    float *f;
    int r = d->ops->alloc(d, (size_t)half * sizeof(float), &table);

    if (r < 0)
        return r;
    f = malloc((size_t)half * sizeof(float));
    if (!f) {
        d->ops->free(d, table);
        return fail(-ENOMEM, "rope: out of memory");
    }
    if (low == high)
        high += 0.001f;
    for (int i = 0; i < half; i++) {
        float power = (float)pow(theta, (double)((float)(2 * i) / (float)a->rope_dims));
        float plain = 1.0f / power, scaled = 1.0f / ((float)a->yarn_factor * power);
        float ramp = ((float)i - low) / (high - low);

        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        f[i] = compressed ? scaled * ramp + plain * (1 - ramp) : plain;
    }
    r = buffer_put(d, table, f, (size_t)half * sizeof(float));
    free(f);
    if (r < 0)
        d->ops->free(d, table);
    else
        *out = table;
    return r;
}
