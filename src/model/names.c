/* names.c owns the table of tensor names of three generations; what a tensor holds is
 * stored.c's. */
#include "src/model/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLES_MAX 16 /* n-gram tables that generation B may number */

/* Tails behind `layers.L.`, released and generation B; B's begins behind `model.layers.L.`. */
static const struct {
    const char *released, *b;
} tails[] = {
    { "attn_norm.weight", "input_layernorm.weight" },
    { "ffn_norm.weight", "post_attention_layernorm.weight" },
    { "hc_attn_fn", "attn_hc.fn" },
    { "hc_attn_base", "attn_hc.base" },
    { "hc_attn_scale", "attn_hc.scale" },
    { "hc_ffn_fn", "ffn_hc.fn" },
    { "hc_ffn_base", "ffn_hc.base" },
    { "hc_ffn_scale", "ffn_hc.scale" },
    { "attn.wq_a.weight", "self_attn.q_a_proj.weight" },
    { "attn.q_norm.weight", "self_attn.q_a_norm.weight" },
    { "attn.wq_b.weight", "self_attn.q_b_proj.weight" },
    { "attn.wkv.weight", "self_attn.kv_proj.weight" },
    { "attn.kv_norm.weight", "self_attn.kv_norm.weight" },
    { "attn.attn_sink", "self_attn.sinks" },
    { "attn.wo_a.weight", "self_attn.o_a_proj.weight" },
    { "attn.wo_b.weight", "self_attn.o_b_proj.weight" },
    { "attn.compressor.wkv.weight", "self_attn.compressor.kv_proj.weight" },
    { "attn.compressor.wgate.weight", "self_attn.compressor.gate_proj.weight" },
    { "attn.compressor.norm.weight", "self_attn.compressor.kv_norm.weight" },
    { "attn.indexer.wk.weight", "self_attn.indexer.k_proj.weight" },
    { "attn.indexer.k_norm.weight", "self_attn.indexer.k_norm.weight" },
    { "attn.indexer.wq_b.weight", "self_attn.indexer.q_b_proj.weight" },
    { "attn.indexer.weights_proj.weight", "self_attn.indexer.weights_proj.weight" },
    { "ffn.gate.weight", "mlp.gate.weight" },
    { "ffn.gate.bias", "mlp.gate.e_score_correction_bias" },
    { "ffn.gate.bias_vl", "mlp.gate.e_score_correction_bias_vl" },
    { "ffn.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight" },
    { "ffn.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight" },
    { "ffn.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight" },
};

/* Experts behind `layers.L.ffn.experts.E.`: rows of w1 come before rows of w3 in the fused
 * tensor. */
static const struct {
    const char *released, *b;
    int part, parts;
} expert_tails[] = {
    { "w1.weight", "mlp.experts.gate_up_proj", 0, 2 },
    { "w3.weight", "mlp.experts.gate_up_proj", 1, 2 },
    { "w2.weight", "mlp.experts.down_proj", 0, 1 },
};

/* "layers.12.attn" after "layers.": number 12, rest "attn"; NULL if there is no number. */
static const char *numbered(const char *s, const char *prefix, int *number)
{
    size_t n = strlen(prefix);
    char *end;
    long v;

    if (strncmp(s, prefix, n) != 0 || s[n] < '0' || s[n] > '9')
        return NULL;
    v = strtol(s + n, &end, 10);
    if (*end != '.' || v > 1 << 20)
        return NULL;
    *number = (int)v;
    return end + 1;
}

static void add(struct name_place *p, int *n, const char *prefix, const char *tail)
{
    struct name_place *next = &p[*n];

    *next = (struct name_place){ .parts = 1 };
    if (snprintf(next->name, sizeof(next->name), "%s%s", prefix, tail) < (int)sizeof(next->name))
        (*n)++;
}

static void add_layer(struct name_place *p, int *n, int layer, const char *tail)
{
    char prefix[64];
    const char *expert_tail;
    int expert;

    snprintf(prefix, sizeof(prefix), "model.layers.%d.", layer);
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
        if (strcmp(tail, tails[i].released) == 0)
            add(p, n, prefix, tails[i].b);
    expert_tail = numbered(tail, "ffn.experts.", &expert);
    for (size_t i = 0; expert_tail && i < sizeof(expert_tails) / sizeof(expert_tails[0]); i++) {
        if (strcmp(expert_tail, expert_tails[i].released) != 0)
            continue;
        add(p, n, prefix, expert_tails[i].b);
        p[*n - 1].fused = true;
        p[*n - 1].expert = expert;
        p[*n - 1].part = expert_tails[i].part;
        p[*n - 1].parts = expert_tails[i].parts;
    }
    if (strcmp(tail, "engram.embed.weight") != 0)
        return;
    for (int i = 0; i < TABLES_MAX; i++) {
        snprintf(prefix, sizeof(prefix), "model.engram_tables.%d.", i);
        add(p, n, prefix, "weight");
        p[*n - 1].by_shape = true;
    }
}

int name_places(const char *released, struct name_place places[PLACES_MAX])
{
    char base[TENSOR_NAME_MAX];
    const char *tail;
    int n = 0, layer;

    snprintf(base, sizeof(base), "%.*s", (int)strcspn(released, "#"), released);
    if (strcmp(released + strlen(base), "#head") == 0) {
        add(places, &n, "", "lm_head.weight");
        places[0].quantised = true;
    }
    released = base;
    add(places, &n, "", released);
    if (strncmp(released, "model.", 6) == 0) {
        add(places, &n, "", released + 6);
        return n;
    }
    tail = numbered(released, "layers.", &layer);
    if (tail) {
        add(places, &n, "model.", released);
        add_layer(places, &n, layer, tail);
    } else if (strcmp(released, "embed.weight") == 0) {
        add(places, &n, "model.", released);
        add(places, &n, "model.", "embed_tokens.weight");
    } else if (strcmp(released, "norm.weight") == 0) {
        add(places, &n, "model.", released);
    } else if (strcmp(released, "head.weight") == 0) {
        add(places, &n, "", "lm_head.weight");
    }
    return n;
}
