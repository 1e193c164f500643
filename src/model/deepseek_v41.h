/* deepseek_v41 - the pieces of a V4.1 layer, shared by the family and by its DSpark drafter.
 *
 * A layer is two sites of hyper-connections around attention and experts:
 *
 *   mix(X, attn) -> collapse(X, pre of the sublayer before) -> norm -> attention -> sum -> expand
 *   mix(X, ffn)  -> collapse(X, pre of the attention site)  -> norm -> experts   -> sum -> expand
 *
 * What lies between two sublayers, from expand to norm, is one op (hc_site).
 *
 * Names follow the released checkpoint. source  docs/DECODE.md "deepseek_v41"
 */
#ifndef TANDEM_MODEL_DEEPSEEK_V41_H
#define TANDEM_MODEL_DEEPSEEK_V41_H

#include "kernels/ops.h"
#include "src/model/family.h"
#include "src/model/slot.h"
#include "src/model/walk.h"

#include <stdbool.h>
#include <stdint.h>

struct device;
struct exec;
struct json;
struct model;

#define V41_EXPERTS_MAX 1024 /* what op moe takes */
#define V41_ROPE_MAX 1024    /* what op rope turns */
#define V41_LAYERS_MAX 128

/* Everything the arithmetic depends on, from config.json. */
struct v41_arch {
    int vocab, dim, layers, heads, head_dim, rope_dims, q_rank, o_groups, o_rank;
    int inter, experts, top_k, shared_inter;
    bool norm_topk;
    float routed_scale, limit, eps;
    int hc, hc_iters;
    float hc_eps;
    int window;
    int ratio[V41_LAYERS_MAX];        /* 0: window only */
    int kv_source[V41_LAYERS_MAX];    /* layer whose compressed rows are read; -1 at ratio 0 */
    int index_source[V41_LAYERS_MAX]; /* layer whose selection is used; -1 at ratio 0 */
    int cand_layer, cand_blocks, cand_block; /* cand_layer -1: no candidates */
    int index_heads, index_dim, index_topk;
    double rope_theta, compress_theta, yarn_factor, yarn_fast, yarn_slow;
    int yarn_original;
    int tap_layer[8], taps;
    int engram_layer[4], engrams, engram_orders, engram_heads, engram_dim, engram_bound,
        engram_classes;
    int engram_pad;
    /* DSpark */
    int stages, block, noise, markov_rank, draft_experts, draft_top_k;
    int bos, eos[FAMILY_ENDS_MAX], n_eos;
    int context_max;
};

struct v41_site {
    struct mat fn;
    const float *base, *scale;
};

/* Routed and shared experts; the arrays on the device are made by v41_layer_ready. */
struct v41_experts {
    int n, k, inter; /* inter: this rank's widest share, for scratch */
    uint32_t kinds;  /* of all their weights */
    int mixed;       /* as moe_args has it */
    struct mat gate;
    const float *bias;
    struct mat *w1, *w3, *w2;             /* host, [n] */
    const struct mat *d_w1, *d_w3, *d_w2; /* device, [n] */
    struct mat s1, s3, s2;
    const struct mat *d_s1, *d_s3, *d_s2; /* device */
};

struct v41_layer {
    int index;                /* of the layer: numbers its exchange sites */
    int ratio, heads, groups; /* heads and groups: this rank's */
    struct mat wq_a, wq_b, wkv, wo_a, wo_b;
    const float *q_norm, *kv_norm, *sink, *attn_norm, *ffn_norm;
    struct v41_site hc_attn, hc_ffn;
    struct v41_experts moe;
    /* what only sources own */
    bool kv_owner, index_owner, cand_owner, cand_user;
    struct mat c_wkv, c_wgate, i_wk, i_wq_b, i_weights;
    const float *c_norm, *i_k_norm;
    /* states: index into the pool's views, -1 if the layer has none */
    int win, raw, comp, keys;
    const float *freq; /* device, [rope_dims / 2] */
    int site;          /* its exchanges are site and site + 1 */
};

/* The rows a layer runs on: those of a window, or a drafter's blocks. */
struct v41_rows {
    const struct row_info *info; /* device, [rows] */
    int rows;
    enum attend_span mode;
    int block;                    /* rows of a slot's block in ATTEND_BLOCK */
    const struct slot_head *head; /* with floors, or NULL */
};

/* What passes from layer to layer inside one forward. */
struct v41_pass {
    const float *pre; /* [rows][hc] mix for the next collapse, NULL before the first sublayer */
    float *mix[2];    /* [rows][hc] what the attention and the FFN site make */
    float *sum;       /* [rows][dim] what the newest sublayer gave, summed over ranks */
    bool due;         /* it is not in the streams yet: v41_settle, or the next site */
    bool side;        /* its rows are few enough that ops run side by side */
    const struct v41_site *late; /* site whose mixes have not been queued yet, NULL if none; */
    float *late_pre;             /* and where its pre goes */
    /* whose weights may be asked for while this one ends, NULL if none */
    const struct v41_layer *next;
    float *post, *comb; /* [rows][hc], [rows][hc][hc] of the newest site */
    int32_t *sel;       /* [rows][index_topk] selection of the newest index source */
    int32_t *cand;      /* [rows][cand_blocks] of the candidate layer */
};

/* v41_arch_read - from config.json, released or text_config layout; both spellings of keys.
 * errors   -EINVAL a key is missing, out of range, or asks for arithmetic that is not implemented:
 *          named */
int v41_arch_read(const struct json *config, struct v41_arch *out);

/* v41_layer_init - roles, local sizes and site of a layer; experts as given (a drafter has
 * fewer). */
void v41_layer_init(struct v41_layer *l, const struct v41_arch *a, int index, int ratio,
                    int experts, int top_k, int ranks, int site);

/* v41_layer_states - the layer's states; raw, compressed and key rows only where the layer owns
 * them.
 * span     tokens its window ring keeps: the sliding window, and for a drafter its block besides */
void v41_layer_states(struct v41_layer *l, const struct v41_arch *a, int span, bool cache_quant,
                      struct state_list *s);

/* v41_layer_weights - walk a layer's weights under a prefix ("layers.3", "mtp.0"). Allocates the
 * host arrays of
 * experts on first use.   errors   in the walk */
void v41_layer_weights(struct v41_layer *l, const struct v41_arch *a, struct walk *w,
                       const char *prefix);

/* v41_layer_ready - device copies of the expert arrays.   errors   -ENOMEM */
int v41_layer_ready(struct v41_layer *l, struct device *d);
void v41_layer_free(struct v41_layer *l, struct device *d);

/* v41_freqs - a device table of rotation frequencies, with or without YaRN.   errors   -ENOMEM */
int v41_freqs(const struct v41_arch *a, struct device *d, bool compressed, const float **out);

/* v41_window_product, v41_window_rows - key rows of n [rows][dim] into the layer's ring: wkv n, a
 * product of `list`; and behind it norm(wkv n), rotated, stored. */
float *v41_window_product(const struct v41_layer *l, struct exec *x, struct matmuls_args *list,
                          const float *n, int rows);
void v41_window_rows(const struct v41_arch *a, const struct v41_layer *l, struct exec *x,
                     const struct slot_pool *p, const struct v41_rows *r, float *kv);

/* v41_pass_init - arena memory of a pass over `rows` rows.
 * note     a drafter's stages have no sources: sel and cand stay NULL with sources false */
void v41_pass_init(struct v41_pass *s, const struct v41_arch *a, struct exec *x, int rows,
                   bool sources);

/* v41_side - a step of op `side`, where the pass has sections: those of a layer, and those that
 * outlast it. */
enum v41_lane { V41_LANE_LAYER, V41_LANE_LONG };
void v41_side(struct exec *x, const struct v41_pass *s, enum side_at at, enum v41_lane lane);

/* v41_settle - bring into the streams what the newest sublayer gave. */
void v41_settle(const struct v41_arch *a, struct exec *x, int rows, struct v41_pass *s, float *X);

/* v41_site - settle, mix if there is a site, and the next sublayer's input from the mix `pre`: n =
 * its norm by w, and h before that if it is not NULL. to_pre: where the site's own mix for the
 * sublayer behind goes. */
void v41_site(const struct v41_arch *a, const struct v41_site *site, struct exec *x, int rows,
              struct v41_pass *s, float *X, const float *pre, float *to_pre, const float *w,
              float *h, float *n);

/* v41_attention, v41_experts - the halves of v41_layer_forward. */
void v41_attention(const struct v41_arch *a, const struct v41_layer *l,
                   const struct v41_layer *kv_source, struct exec *x, const struct slot_pool *p,
                   const struct v41_rows *r, struct v41_pass *s, float *X);
void v41_experts(const struct v41_arch *a, const struct v41_layer *l, struct exec *x, int rows,
                 struct v41_pass *s, float *X);

/* v41_layer_forward - the layer on streams X [rows][hc][dim], in place but for what v41_settle
 * adds. kv_source owns the compressed rows and keys that the layer reads; NULL at ratio 0. */
void v41_layer_forward(const struct v41_arch *a, const struct v41_layer *l,
                       const struct v41_layer *kv_source, struct exec *x, const struct slot_pool *p,
                       const struct v41_rows *r, struct v41_pass *s, float *X);

/* v41_model_arch - the arch of an open deepseek_v41 model; NULL for another family. */
const struct v41_arch *v41_model_arch(const struct model *m);

#endif
