/* deepseek_v41_arch.c reads the config of a V4.1 checkpoint into numbers, and refuses what those
 * numbers would not describe. */
#include "src/model/deepseek_v41.h"

#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/family.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

/* An integer of the config under the released key or the reference code's own spelling. */
struct int_key {
    const char *key, *other;
    int lo, hi;
    int *out;
};

static const char *spelling(const struct json *o, const char *key, const char *other)
{
    return json_get(o, key) || !other ? key : other;
}

static int read_ints(const struct json *o, const struct int_key *k, int n)
{
    for (int i = 0; i < n; i++) {
        int r = json_int(o, spelling(o, k[i].key, k[i].other), k[i].lo, k[i].hi, k[i].out);

        if (r < 0)
            return r;
    }
    return 0;
}

/* Integers in 0 .. hi, at most max of them. */
static int read_list(const struct json *o, const char *key, const char *other, int hi, int max,
                     int *out, int *n)
{
    const struct json *list;
    char path[160];
    int r = json_get_array(o, spelling(o, key, other), &list);

    if (r < 0)
        return r;
    if (json_count(list) > (size_t)max)
        return fail(-EINVAL, "%s: %zu entries, at most %d are supported",
                    json_path(list, path, sizeof(path)), json_count(list), max);
    *n = (int)json_count(list);
    for (int i = 0; i < *n && r == 0; i++)
        r = json_as_int(json_at(list, (size_t)i), 0, hi, &out[i]);
    return r;
}

/* A key that names one way of computing: only the stated value is implemented. */
static int want_str(const struct json *o, const char *key, const char *value)
{
    const char *got = value;
    char path[160];
    int r = json_opt_str(o, key, &got);

    if (r < 0)
        return r;
    if (strcmp(got, value) != 0)
        return fail(-EINVAL, "%s: %s \"%s\" is not supported, only \"%s\"",
                    json_path(o, path, sizeof(path)), key, got, value);
    return 0;
}

static int want_off(const struct json *o, const char *key)
{
    bool got = false;
    char path[160];
    int r = json_opt_bool(o, key, &got);

    if (r < 0)
        return r;
    if (got)
        return fail(-EINVAL, "%s: %s = true is not supported", json_path(o, path, sizeof(path)),
                    key);
    return 0;
}

static int want_f64(const struct json *o, const char *key, double value)
{
    double got = value;
    char path[160];
    int r = json_opt_f64(o, key, &got);

    if (r < 0)
        return r;
    if (got != value)
        return fail(-EINVAL, "%s: %s = %g is not supported, only %g",
                    json_path(o, path, sizeof(path)), key, got, value);
    return 0;
}

static int read_shape(const struct json *o, struct v41_arch *a)
{
    int kv_heads = 1, shared = 1, r;
    const struct int_key keys[] = {
        { "vocab_size", NULL, 1, 1 << 24, &a->vocab },
        { "hidden_size", "dim", 16, 1 << 16, &a->dim },
        { "num_hidden_layers", "n_layers", 1, V41_LAYERS_MAX - 8, &a->layers },
        { "num_attention_heads", "n_heads", 1, 1024, &a->heads },
        { "head_dim", NULL, 32, 4096, &a->head_dim },
        { "qk_rope_head_dim", "rope_head_dim", 2, V41_ROPE_MAX, &a->rope_dims },
        { "q_lora_rank", NULL, 1, 1 << 16, &a->q_rank },
        { "o_groups", NULL, 1, 1024, &a->o_groups },
        { "o_lora_rank", NULL, 1, 1 << 16, &a->o_rank },
        { "moe_intermediate_size", "moe_inter_dim", 1, 1 << 16, &a->inter },
        { "n_routed_experts", NULL, 1, V41_EXPERTS_MAX, &a->experts },
        { "num_experts_per_tok", "n_activated_experts", 1, 64, &a->top_k },
        { "sliding_window", "window_size", 1, 1 << 16, &a->window },
        { "hc_mult", NULL, 1, HC_MAX, &a->hc },
        { "hc_sinkhorn_iters", NULL, 1, 1000, &a->hc_iters },
        { "max_position_embeddings", "max_seq_len", 1, INT_MAX, &a->context_max },
    };

    r = read_ints(o, keys, (int)(sizeof(keys) / sizeof(keys[0])));
    if (r == 0)
        r = json_opt_int(o, "num_key_value_heads", 1, 1024, &kv_heads);
    if (r == 0)
        r = json_opt_int(o, "n_shared_experts", 1, 16, &shared);
    if (r == 0)
        r = config_above_0(o, spelling(o, "rms_norm_eps", "norm_eps"), &a->eps);
    if (r == 0)
        r = config_above_0(o, "hc_eps", &a->hc_eps);
    if (r == 0)
        r = config_above_0(o, spelling(o, "routed_scaling_factor", "route_scale"),
                           &a->routed_scale);
    if (r == 0)
        r = config_above_0(o, "swiglu_limit", &a->limit);
    if (r < 0)
        return r;
    if (kv_heads != 1)
        return fail(-EINVAL, "config: num_key_value_heads %d is not supported, only 1", kv_heads);
    a->shared_inter = shared * a->inter;
    a->norm_topk = true;
    r = json_opt_bool(o, "norm_topk_prob", &a->norm_topk);
    if (r < 0)
        return r;
    if (a->rope_dims % 2 || a->rope_dims > a->head_dim || a->heads % a->o_groups ||
        a->top_k > a->experts || a->head_dim % 32)
        return fail(-EINVAL,
                    "config: head_dim %d, qk_rope_head_dim %d, %d heads in %d o_groups, %d of %d "
                    "experts do not fit together",
                    a->head_dim, a->rope_dims, a->heads, a->o_groups, a->top_k, a->experts);
    return 0;
}

static int read_rope(const struct json *o, struct v41_arch *a)
{
    const struct json *s;
    int r = json_f64(o, "rope_theta", &a->rope_theta);

    if (r == 0)
        r = json_f64(o, "compress_rope_theta", &a->compress_theta);
    if (r == 0)
        r = json_get_object(o, json_has(o, "rope_scaling") ? "rope_scaling" : "rope_parameters",
                            &s);
    if (r < 0)
        return r;
    if (json_has(s, "main") || json_has(s, "compress"))
        return fail(-EINVAL, "config: rope settings per layer kind are not supported");
    r = want_str(s, json_has(s, "rope_type") ? "rope_type" : "type", "yarn");
    if (r == 0)
        r = json_f64(s, "factor", &a->yarn_factor);
    if (r == 0)
        r = json_f64(s, "beta_fast", &a->yarn_fast);
    if (r == 0)
        r = json_f64(s, "beta_slow", &a->yarn_slow);
    if (r == 0)
        r = json_int(s, "original_max_position_embeddings", 1, INT_MAX, &a->yarn_original);
    if (r == 0 && (!(a->rope_theta > 1) || !(a->compress_theta > 1) || !(a->yarn_factor >= 1)))
        r = fail(-EINVAL, "config: rope_theta, compress_rope_theta and the factor must be above 1");
    if (r == 0 && (!(a->yarn_slow > 0) || !(a->yarn_fast >= a->yarn_slow)))
        r = fail(-EINVAL, "config: beta_fast %g, beta_slow %g, want fast >= slow > 0", a->yarn_fast,
                 a->yarn_slow);
    return r;
}

/* The layer of a schedule that `layer` reads: the largest one at or before it, -1 if there is
 * none. */
static int newest(const int *schedule, int n, int layer)
{
    int best = -1;

    for (int i = 0; i < n; i++)
        if (schedule[i] <= layer && schedule[i] > best)
            best = schedule[i];
    return best;
}

static int read_schedule(const struct json *o, struct v41_arch *a)
{
    int kv[V41_LAYERS_MAX], index[V41_LAYERS_MAX], ratios, n_kv, n_index;
    int r = read_list(o, "compress_ratios", NULL, 1024, V41_LAYERS_MAX, a->ratio, &ratios);

    if (r == 0)
        r = read_list(o, "kv_source_layer_ids", "kv_source_layers", a->layers - 1, V41_LAYERS_MAX,
                      kv, &n_kv);
    if (r == 0)
        r = read_list(o, "index_source_layer_ids", "index_source_layers", a->layers - 1,
                      V41_LAYERS_MAX, index, &n_index);
    if (r < 0)
        return r;
    if (ratios < a->layers)
        return fail(-EINVAL, "config: compress_ratios has %d entries for %d layers", ratios,
                    a->layers);
    for (int i = 0; i < a->layers; i++) {
        int k = a->ratio[i] ? newest(kv, n_kv, i) : -1;
        int s = a->ratio[i] ? newest(index, n_index, i) : -1;

        a->kv_source[i] = k;
        a->index_source[i] = s;
        if (!a->ratio[i])
            continue;
        if (k < 0 || s < 0)
            return fail(-EINVAL, "config: layer %d compresses by %d but no %s source precedes it",
                        i, a->ratio[i], k < 0 ? "kv" : "index");
        if (a->ratio[k] != a->ratio[i] || s < k)
            return fail(
                -EINVAL,
                "config: layer %d (ratio %d) reads kv of layer %d (ratio %d) and the selection "
                "of layer %d",
                i, a->ratio[i], k, a->ratio[k], s);
    }
    return 0;
}

static int read_index(const struct json *o, struct v41_arch *a)
{
    const struct int_key keys[] = {
        { "index_n_heads", NULL, 1, 1024, &a->index_heads },
        { "index_head_dim", NULL, 32, 4096, &a->index_dim },
        { "index_topk", NULL, 1, 1 << 16, &a->index_topk },
    };
    int r = 0;

    a->cand_layer = -1;
    for (int i = 0; i < a->layers; i++)
        if (a->ratio[i]) {
            r = read_ints(o, keys, 3);
            break;
        }
    if (r == 0)
        r = json_opt_int(o, spelling(o, "candidate_source_layer_id", "candidate_source_layer"), -1,
                         a->layers - 1, &a->cand_layer);
    if (r == 0 && a->cand_layer >= 0) {
        const struct int_key cand[] = {
            { "candidate_topk_blocks", NULL, 1, 1 << 20, &a->cand_blocks },
            { "candidate_block_size", NULL, 1, 1 << 16, &a->cand_block },
        };

        r = read_ints(o, cand, 2);
        if (r == 0 && (a->kv_source[a->cand_layer] != a->cand_layer ||
                       a->index_source[a->cand_layer] != a->cand_layer))
            r = fail(-EINVAL, "config: candidate layer %d is not a kv and index source",
                     a->cand_layer);
    }
    if (r == 0 && a->index_dim && (a->index_dim % 32 || a->index_dim < a->rope_dims))
        r = fail(-EINVAL, "config: index_head_dim %d, want a multiple of 32 from %d", a->index_dim,
                 a->rope_dims);
    return r;
}

static int read_engram(const struct json *o, struct v41_arch *a)
{
    const struct int_key keys[] = {
        { "engram_max_ngram_size", NULL, 2, 8, &a->engram_orders },
        { "engram_n_heads", NULL, 1, 64, &a->engram_heads },
        { "engram_head_dim", NULL, 1, 4096, &a->engram_dim },
        { "engram_vocab_size", NULL, 1, INT_MAX, &a->engram_bound },
        { "engram_compressed_vocab_size", NULL, 1, 1 << 24, &a->engram_classes },
        { "engram_pad_token_id", "engram_pad_id", 0, a->vocab - 1, &a->engram_pad },
    };
    int r;

    if (!json_has(o, "engram_layer_ids"))
        return 0;
    r = read_list(o, "engram_layer_ids", NULL, a->layers - 1, 4, a->engram_layer, &a->engrams);
    return r == 0 && a->engrams ? read_ints(o, keys, 6) : r;
}

static int read_dspark(const struct json *o, struct v41_arch *a)
{
    int r;

    a->draft_experts = a->experts;
    a->draft_top_k = a->top_k;
    r = json_opt_int(o, spelling(o, "num_nextn_predict_layers", "n_mtp_layers"), 0, 8, &a->stages);
    if (r < 0 || !a->stages || !json_has(o, "dspark_block_size")) {
        a->stages = 0;
        return r;
    }
    const struct int_key keys[] = {
        { "dspark_block_size", NULL, 1, WINDOW_MAX - 1, &a->block },
        { "dspark_noise_token_id", NULL, 0, a->vocab - 1, &a->noise },
        { "dspark_markov_rank", NULL, 1, 1 << 16, &a->markov_rank },
    };

    r = read_ints(o, keys, 3);
    if (r == 0)
        r = read_list(o, "dspark_target_layer_ids", NULL, a->layers - 1, 8, a->tap_layer, &a->taps);
    if (r == 0)
        r = json_opt_int(o, spelling(o, "dspark_n_routed_experts", "dspark_num_experts"), 1,
                         V41_EXPERTS_MAX, &a->draft_experts);
    if (r == 0)
        r = json_opt_int(o, spelling(o, "dspark_num_experts_per_tok", "dspark_n_activated_experts"),
                         1, 64, &a->draft_top_k);
    if (r == 0 && a->draft_top_k > a->draft_experts)
        r = fail(-EINVAL, "config: dspark_num_experts_per_tok %d, dspark_n_routed_experts is %d",
                 a->draft_top_k, a->draft_experts);
    for (int i = 1; i < a->taps && r == 0; i++)
        if (a->tap_layer[i] <= a->tap_layer[i - 1])
            r = fail(-EINVAL, "config: dspark_target_layer_ids must ascend");
    return r;
}

static int read_ids(const struct json *top, const struct json *o, struct v41_arch *a)
{
    const struct json *holder = json_has(o, "eos_token_id") ? o : top;
    int r;

    a->bos = -1;
    r = json_opt_int(json_has(o, "bos_token_id") ? o : top, "bos_token_id", 0, a->vocab - 1,
                     &a->bos);
    return r == 0 ? config_ends(holder, a->vocab, FAMILY_ENDS_MAX, a->eos, &a->n_eos) : r;
}

/* Keys whose other values would change the arithmetic. */
static int check_ways(const struct json *o)
{
    int r = want_str(o, "scoring_func", "sqrtsoftplus");

    if (r == 0)
        r = want_str(o, "topk_method", "noaux_tc");
    if (r == 0)
        r = want_str(o, "hidden_act", "silu");
    if (r == 0)
        r = want_off(o, "attention_bias");
    if (r == 0)
        r = want_off(o, "tie_word_embeddings");
    if (r == 0)
        r = want_f64(o, "gate_temp", 1.0);
    if (r == 0)
        r = want_f64(o, "n_group", 1.0);
    if (r == 0)
        r = want_f64(o, "first_k_dense_replace", 0.0);
    return r;
}

int v41_arch_read(const struct json *config, struct v41_arch *out)
{
    const struct json *o =
        json_has(config, "text_config") ? json_get(config, "text_config") : config;
    struct v41_arch a = { 0 };
    int r = o == config ? 0 : want_str(o, "model_type", "deepseek_v41_text");

    if (r == 0)
        r = check_ways(o);
    if (r == 0)
        r = read_shape(o, &a);
    if (r == 0)
        r = read_rope(o, &a);
    if (r == 0)
        r = read_schedule(o, &a);
    if (r == 0)
        r = read_index(o, &a);
    if (r == 0)
        r = read_engram(o, &a);
    if (r == 0)
        r = read_dspark(o, &a);
    if (r == 0)
        r = read_ids(config, o, &a);
    if (r == 0)
        *out = a;
    return r;
}
