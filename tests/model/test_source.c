#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <math.h>
#include <string.h>

#include "src/model/source.h"
#include "tests/model/source_weight.h"
#include "tests/model/tensors.h"

#define ROWS 24
#define COLS 32

static struct source *open_hf(void)
{
    uint16_t *v = bf16_values("w.weight", ROWS * COLS);
    struct tensors f = { 0 };
    char folder[PATH_CAP];
    struct source *s;

    temp_folder(folder);
    tensors_add(&f, "odd", "U8", "[3]", "abc", 3); /* what follows lies at an odd offset */
    tensors_add(&f, "w.weight", "BF16", "[24,32]", v, ROWS * COLS * 2);
    tensors_write(&f, folder, "model.safetensors");
    cr_assert(eq(int, source_hf_open(folder, &s), 0));
    folder_count(folder, 1); /* open files stay */
    free(v);
    return s;
}

static struct source *open_synth(void)
{
    struct source *s;

    cr_assert(eq(int, source_synth_open(7, DTYPE_BF16, &s), 0));
    return s;
}

/* Mixing weights in f32 and in f16, others in f32. */
static struct source *open_mixes(void)
{
    struct tensors f = { 0 };
    char folder[PATH_CAP];
    struct source *s;
    float v[ROWS * COLS];
    uint16_t half[ROWS * COLS];

    for (int i = 0; i < ROWS * COLS; i++) {
        v[i] = synth_normal(3, (uint64_t)i);
        half[i] = (uint16_t)i;
    }
    temp_folder(folder);
    tensors_add(&f, "layers.0.hc_ffn_fn", "F32", "[24,32]", v, sizeof(v));
    tensors_add(&f, "layers.1.hc_ffn_fn", "F16", "[24,32]", half, sizeof(half));
    tensors_add(&f, "layers.0.ffn.gate.weight", "F32", "[24,32]", v, sizeof(v));
    tensors_write(&f, folder, "model.safetensors");
    cr_assert(eq(int, source_hf_open(folder, &s), 0));
    cr_assert(eq(int, source_mixes_open(s, &s), 0));
    folder_count(folder, 1);
    return s;
}

static const struct {
    struct source *(*open)(void);
    const char *tensor; /* bf16, [ROWS][COLS] */
} sources[] = { { open_hf, "w.weight" },
                { open_synth, "w.weight" },
                { open_mixes, "layers.0.hc_ffn_fn" } };

/* The contract of the table, for every implementer. */
Test(source, contract)
{
    struct last_line line = { 0 };

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
        struct source *s = sources[i].open();
        const char *name = sources[i].tensor;
        uint16_t whole[ROWS * COLS], piece[ROWS * COLS];
        struct tensor t, other;

        cr_expect(eq(int, s->ops->find(s, "no such tensor", 0, 0, &t), 1), "%s", s->ops->name);
        cr_assert(eq(int, s->ops->find(s, name, ROWS, COLS, &t), 0), "%s", s->ops->name);
        cr_expect(t.dtype == DTYPE_BF16 && strcmp(t.type, "BF16") == 0 && t.rank == 2 &&
                      t.shape[0] == ROWS && t.shape[1] == COLS && t.elements == ROWS * COLS,
                  "%s", s->ops->name);
        cr_assert(eq(int, s->ops->read(s, name, &t, 0, whole, sizeof(whole)), 0));
        for (size_t n = 1; n < 40; n++) {
            memset(piece, 0xff, sizeof(piece));
            for (size_t at = 0; at < ROWS * COLS; at += n) {
                size_t take = ROWS * COLS - at < n ? ROWS * COLS - at : n;

                cr_assert(eq(int, s->ops->read(s, name, &t, at * 2, piece + at, take * 2), 0));
            }
            cr_expect(memcmp(whole, piece, sizeof(whole)) == 0, "%s: pieces of %zu values",
                      s->ops->name, n);
        }
        cr_expect(eq(int, s->ops->read(s, name, &t, sizeof(whole), piece, 0), 0));
        cr_expect(eq(int, s->ops->read(s, name, &t, sizeof(whole) - 2, piece, 4), -EINVAL));
        cr_expect(eq(int, s->ops->read(s, name, &t, UINT64_MAX - 1, piece, 4), -EINVAL));
        cr_assert(eq(int, s->ops->find(s, name, ROWS, COLS, &other), 0));
        cr_expect(other.offset == t.offset && other.shard == t.shard);
        s->ops->close(s);
    }
}

/* Rounded are mixing weights in f32 alone. */
Test(source, mixes_are_rounded_and_nothing_else)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } cases[] = { { "layers.0.hc_ffn_fn", DTYPE_BF16 },
                  { "layers.1.hc_ffn_fn", DTYPE_F16 },
                  { "layers.0.ffn.gate.weight", DTYPE_F32 } };
    struct source *s = open_mixes();

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        unsigned char raw[ROWS * COLS * 4];
        struct tensor t;

        cr_assert(eq(int, s->ops->find(s, cases[c].name, ROWS, COLS, &t), 0));
        cr_expect(t.dtype == cases[c].dtype && t.each == (int)dtype_bytes(t.dtype), "%s",
                  cases[c].name);
        cr_assert(
            eq(int, s->ops->read(s, cases[c].name, &t, 0, raw, ROWS * COLS * (size_t)t.each), 0));
        for (int i = 0; i < ROWS * COLS; i++) {
            float v = synth_normal(3, (uint64_t)i);
            uint16_t half = (uint16_t)i, bits = bf16_from_f32(v);
            const void *want = t.dtype == DTYPE_F32   ? (const void *)&v
                               : t.dtype == DTYPE_F16 ? (const void *)&half
                                                      : (const void *)&bits;

            cr_expect(memcmp(raw + i * t.each, want, (size_t)t.each) == 0, "%s %d", cases[c].name,
                      i);
        }
    }
    s->ops->close(s);
}

static void note(void *arg, const char *name)
{
    char *all = arg;

    strcat(strcat(all, name), " ");
}

Test(source, what_nobody_asked_for_is_told_in_file_order)
{
    struct source *s;
    struct tensors f = { 0 };
    char folder[PATH_CAP], all[256] = "";
    struct tensor t;

    temp_folder(folder);
    tensors_add(&f, "z", "U8", "[1]", "1", 1);
    tensors_add(&f, "m", "U8", "[1]", "2", 1);
    tensors_add(&f, "a", "U8", "[1]", "3", 1);
    tensors_write(&f, folder, "model.safetensors");
    cr_assert(eq(int, source_hf_open(folder, &s), 0));
    cr_assert(eq(int, s->ops->find(s, "m", 0, 0, &t), 0));
    s->ops->unused(s, note, all);
    cr_expect(eq(str, all, (char *)"z a "));
    s->ops->close(s);
    folder_count(folder, 1);
}

/* Large reads go past the page cache where the file system lets them. */
Test(source, large_reads_hold_what_small_ones_would)
{
    static unsigned char v[300 << 10];
    static const size_t ats[] = { 0, 1, 4093, 5000, sizeof(v) - 70000, sizeof(v) - 65536 };
    static const size_t sizes[] = { 65535, 65536, 65537, 69632, 70000, 200000 };
    struct last_line line = { 0 };
    struct tensors f = { 0 };
    char folder[PATH_CAP], path[PATH_CAP];
    char *buf = aligned_alloc(READ_ALIGN, sizeof(v) + 2 * READ_ALIGN);
    struct source *s;
    struct tensor t;

    for (size_t i = 0; i < sizeof(v); i++)
        v[i] = (unsigned char)((i * 2654435761u) >> 16);
    temp_folder(folder);
    tensors_add(&f, "odd", "U8", "[3]", "abc", 3);
    tensors_add(&f, "w", "U8", "[307200]", v, sizeof(v));
    tensors_write(&f, folder, "model.safetensors");
    cr_assert(eq(int, source_hf_open(folder, &s), 0));
    cr_assert(eq(int, s->ops->find(s, "w", 0, 0, &t), 0));
    for (size_t i = 0; i < sizeof(ats) / sizeof(ats[0]); i++)
        for (size_t j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++)
            for (size_t off = 0; off < 2; off++) { /* the buffer lies to its blocks as the file */
                char *to = buf + (t.offset + ats[i] + off) % READ_ALIGN;

                if (ats[i] + sizes[j] > sizeof(v))
                    continue;
                memset(to, 0, sizes[j] + 1);
                cr_assert(eq(int, s->ops->read(s, "w", &t, ats[i], to, sizes[j]), 0));
                cr_expect(memcmp(to, v + ats[i], sizes[j]) == 0 && to[sizes[j]] == 0,
                          "%zu bytes at %zu", sizes[j], ats[i]);
            }
    /* a file that has become shorter */
    log_sink(keep_line, &line);
    path_join(path, sizeof(path), folder, "model.safetensors");
    for (int missing = 1; missing <= 30001; missing += 30000) {
        cr_assert(truncate(path, (off_t)t.offset + 130000 - missing) == 0);
        for (size_t off = 0; off < 2; off++) {
            s->failed = false;
            cr_expect(s->ops->read(s, "w", &t, 60000, buf + (t.offset + 60000 + off) % READ_ALIGN,
                                   70000) < 0);
            cr_expect(s->failed && strstr(line.text, "tensor w"), "%s", line.text);
        }
    }
    log_sink(NULL, NULL);
    s->ops->close(s);
    folder_count(folder, 1);
    free(buf);
}

struct weight_case {
    const char *released, *a, *b;
    const char *shape;
    int rows, cols;
};

/* A row a line of the table of names; what is fused in generation B is tested by itself. */
static const struct weight_case weights[] = {
    { "embed.weight", "model.embed.weight", "model.embed_tokens.weight", "[8,4]", 8, 4 },
    { "norm.weight", "model.norm.weight", "model.norm.weight", "[4]", 4, 1 },
    { "head.weight", "lm_head.weight", "lm_head.weight", "[8,4]", 8, 4 },
    { "layers.3.attn_norm.weight", "model.layers.3.attn_norm.weight",
      "model.layers.3.input_layernorm.weight", "[4]", 4, 1 },
    { "layers.3.ffn_norm.weight", "model.layers.3.ffn_norm.weight",
      "model.layers.3.post_attention_layernorm.weight", "[4]", 4, 1 },
    { "layers.3.hc_attn_fn", "model.layers.3.hc_attn_fn", "model.layers.3.attn_hc.fn", "[2,4]", 2,
      4 },
    { "layers.3.hc_attn_base", "model.layers.3.hc_attn_base", "model.layers.3.attn_hc.base", "[3]",
      3, 1 },
    { "layers.3.hc_attn_scale", "model.layers.3.hc_attn_scale", "model.layers.3.attn_hc.scale",
      "[3]", 3, 1 },
    { "layers.3.hc_ffn_fn", "model.layers.3.hc_ffn_fn", "model.layers.3.ffn_hc.fn", "[2,4]", 2, 4 },
    { "layers.3.hc_ffn_base", "model.layers.3.hc_ffn_base", "model.layers.3.ffn_hc.base", "[3]", 3,
      1 },
    { "layers.3.hc_ffn_scale", "model.layers.3.hc_ffn_scale", "model.layers.3.ffn_hc.scale", "[3]",
      3, 1 },
    { "layers.3.attn.wq_a.weight", "model.layers.3.attn.wq_a.weight",
      "model.layers.3.self_attn.q_a_proj.weight", "[2,4]", 2, 4 },
    { "layers.3.attn.q_norm.weight", "model.layers.3.attn.q_norm.weight",
      "model.layers.3.self_attn.q_a_norm.weight", "[2]", 2, 1 },
    { "layers.3.attn.wq_b.weight", "model.layers.3.attn.wq_b.weight",
      "model.layers.3.self_attn.q_b_proj.weight", "[6,2]", 6, 2 },
    { "layers.3.attn.wkv.weight", "model.layers.3.attn.wkv.weight",
      "model.layers.3.self_attn.kv_proj.weight", "[2,4]", 2, 4 },
    { "layers.3.attn.kv_norm.weight", "model.layers.3.attn.kv_norm.weight",
      "model.layers.3.self_attn.kv_norm.weight", "[2]", 2, 1 },
    { "layers.3.attn.attn_sink", "model.layers.3.attn.attn_sink", "model.layers.3.self_attn.sinks",
      "[3]", 3, 1 },
    { "layers.3.attn.wo_a.weight", "model.layers.3.attn.wo_a.weight",
      "model.layers.3.self_attn.o_a_proj.weight", "[4,2]", 4, 2 },
    { "layers.3.attn.wo_b.weight", "model.layers.3.attn.wo_b.weight",
      "model.layers.3.self_attn.o_b_proj.weight", "[4,4]", 4, 4 },
    { "layers.3.attn.compressor.wkv.weight", "model.layers.3.attn.compressor.wkv.weight",
      "model.layers.3.self_attn.compressor.kv_proj.weight", "[2,4]", 2, 4 },
    { "layers.3.attn.compressor.wgate.weight", "model.layers.3.attn.compressor.wgate.weight",
      "model.layers.3.self_attn.compressor.gate_proj.weight", "[2,4]", 2, 4 },
    { "layers.3.attn.compressor.norm.weight", "model.layers.3.attn.compressor.norm.weight",
      "model.layers.3.self_attn.compressor.kv_norm.weight", "[2]", 2, 1 },
    { "layers.3.attn.indexer.wk.weight", "model.layers.3.attn.indexer.wk.weight",
      "model.layers.3.self_attn.indexer.k_proj.weight", "[2,2]", 2, 2 },
    { "layers.3.attn.indexer.k_norm.weight", "model.layers.3.attn.indexer.k_norm.weight",
      "model.layers.3.self_attn.indexer.k_norm.weight", "[2]", 2, 1 },
    { "layers.3.attn.indexer.wq_b.weight", "model.layers.3.attn.indexer.wq_b.weight",
      "model.layers.3.self_attn.indexer.q_b_proj.weight", "[4,2]", 4, 2 },
    { "layers.3.attn.indexer.weights_proj.weight",
      "model.layers.3.attn.indexer.weights_proj.weight",
      "model.layers.3.self_attn.indexer.weights_proj.weight", "[2,4]", 2, 4 },
    { "layers.3.ffn.gate.weight", "model.layers.3.ffn.gate.weight",
      "model.layers.3.mlp.gate.weight", "[3,4]", 3, 4 },
    { "layers.3.ffn.gate.bias", "model.layers.3.ffn.gate.bias",
      "model.layers.3.mlp.gate.e_score_correction_bias", "[3]", 3, 1 },
    { "layers.3.ffn.gate.bias_vl", "model.layers.3.ffn.gate.bias_vl",
      "model.layers.3.mlp.gate.e_score_correction_bias_vl", "[3]", 3, 1 },
    { "layers.3.ffn.shared_experts.w1.weight", "model.layers.3.ffn.shared_experts.w1.weight",
      "model.layers.3.mlp.shared_experts.gate_proj.weight", "[2,4]", 2, 4 },
    { "layers.3.ffn.shared_experts.w3.weight", "model.layers.3.ffn.shared_experts.w3.weight",
      "model.layers.3.mlp.shared_experts.up_proj.weight", "[2,4]", 2, 4 },
    { "layers.3.ffn.shared_experts.w2.weight", "model.layers.3.ffn.shared_experts.w2.weight",
      "model.layers.3.mlp.shared_experts.down_proj.weight", "[4,2]", 4, 2 },
    { "layers.3.engram.wkv.weight", "model.layers.3.engram.wkv.weight",
      "model.layers.3.engram.wkv.weight", "[5,3]", 5, 3 },
    { "layers.3.engram.q_weight", "model.layers.3.engram.q_weight",
      "model.layers.3.engram.q_weight", "[2,4]", 8, 1 },
    { "mtp.0.main_norm.weight", "mtp.0.main_norm.weight", "mtp.0.main_norm.weight", "[4]", 4, 1 },
};

#define N_WEIGHTS (sizeof(weights) / sizeof(weights[0]))
#define EXPERTS 3

/* Experts 0 .. 2: w1, w3 [2][4], w2 [4][2]; tables of layers 1 and 3 with 7 and 9 rows of 2. */
static void add_apart(struct tensors *f, const char *prefix)
{
    static const char *const w[] = { "w1", "w3", "w2" };

    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < 3; i++) {
            char name[128], tensor[160];
            uint16_t *v;

            snprintf(name, sizeof(name), "layers.3.ffn.experts.%d.%s.weight", e, w[i]);
            snprintf(tensor, sizeof(tensor), "%s%s", prefix, name);
            v = bf16_values(name, 8);
            tensors_add(f, tensor, "BF16", i < 2 ? "[2,4]" : "[4,2]", v, 16);
            free(v);
        }
    for (int layer = 1; layer <= 3; layer += 2) {
        char name[128], tensor[160];
        uint16_t *v;

        snprintf(name, sizeof(name), "layers.%d.engram.embed.weight", layer);
        snprintf(tensor, sizeof(tensor), "%s%s", prefix, name);
        v = bf16_values(name, 18);
        tensors_add(f, tensor, "BF16", layer == 1 ? "[7,2]" : "[9,2]", v, layer == 1 ? 28 : 36);
        free(v);
    }
}

static void add_fused(struct tensors *f)
{
    uint16_t up[EXPERTS][2][8], down[EXPERTS][8], *v;

    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < 3; i++) {
            char name[128];

            snprintf(name, sizeof(name), "layers.3.ffn.experts.%d.w%d.weight", e, i + 1);
            v = bf16_values(name, 8);
            memcpy(i == 0 ? up[e][0] : i == 2 ? up[e][1] : down[e], v, 16);
            free(v);
        }
    tensors_add(f, "model.layers.3.mlp.experts.gate_up_proj", "BF16", "[3,4,4]", up, sizeof(up));
    tensors_add(f, "model.layers.3.mlp.experts.down_proj", "BF16", "[3,4,2]", down, sizeof(down));
    v = bf16_values("layers.1.engram.embed.weight", 14);
    tensors_add(f, "model.engram_tables.0.weight", "BF16", "[7,2]", v, 28);
    free(v);
    v = bf16_values("layers.3.engram.embed.weight", 18);
    tensors_add(f, "model.engram_tables.1.weight", "BF16", "[9,2]", v, 36);
    free(v);
}

/* A checkpoint with the names of a generation, 0 for the released ones. */
static struct source *open_generation(int generation)
{
    struct tensors f = { 0 };
    char folder[PATH_CAP];
    struct source *s;

    for (size_t i = 0; i < N_WEIGHTS; i++) {
        const struct weight_case *c = &weights[i];
        const char *const name[] = { c->released, c->a, c->b };
        size_t n = (size_t)(c->rows * c->cols);
        uint16_t *v = bf16_values(c->released, n);

        tensors_add(&f, name[generation], "BF16", c->shape, v, 2 * n);
        free(v);
    }
    if (generation == 2)
        add_fused(&f);
    else
        add_apart(&f, generation == 1 ? "model." : "");
    temp_folder(folder);
    tensors_write(&f, folder, "model.safetensors");
    cr_assert(eq(int, source_hf_open(folder, &s), 0));
    folder_count(folder, 1);
    return s;
}

static void expect_values(struct source *s, const char *released, int rows, int cols,
                          int generation)
{
    size_t bytes = (size_t)(rows * cols) * 2;
    uint16_t *want = bf16_values(released, (size_t)(rows * cols)), got[64];
    char name[256];
    struct tensor t;
    uint64_t first;
    int r = source_weight(s, released, rows, cols, &t, name, sizeof(name), &first);

    cr_expect(eq(int, r, 0), "generation %d: %s", generation, released);
    if (r == 0) {
        cr_expect(eq(int, s->ops->read(s, name, &t, first * 2, got, bytes), 0));
        cr_expect(memcmp(got, want, bytes) == 0, "generation %d: %s in %s", generation, released,
                  name);
    }
    free(want);
}

Test(source, three_generations_of_names_hold_the_same_values)
{
    for (int g = 0; g < 3; g++) {
        struct source *s = open_generation(g);
        char unused[4096] = "";

        for (size_t i = 0; i < N_WEIGHTS; i++)
            expect_values(s, weights[i].released, weights[i].rows, weights[i].cols, g);
        for (int e = 0; e < EXPERTS; e++)
            for (int i = 1; i <= 3; i++) {
                char name[128];

                snprintf(name, sizeof(name), "layers.3.ffn.experts.%d.w%d.weight", e, i);
                expect_values(s, name, i == 2 ? 4 : 2, i == 2 ? 2 : 4, g);
            }
        expect_values(s, "layers.3.engram.embed.weight", 9, 2, g);
        expect_values(s, "layers.1.engram.embed.weight", 7, 2, g);
        s->ops->unused(s, note, unused);
        cr_expect(eq(str, unused, (char *)""), "generation %d", g);
        s->ops->close(s);
    }
}

struct found_case {
    const char *name;
    const char *tensor, *type, *shape; /* one tensor of the folder */
    size_t bytes;
    const char *second, *second_type; /* another one of 1 byte, or NULL */
    const char *released;
    int rows, cols, result;
    const char *says; /* part of the message */
};

static const struct found_case founds[] = {
    { "plain", "a.weight", "BF16", "[2,4]", 16, NULL, NULL, "a.weight", 2, 4, 0, NULL },
    { "half", "a.weight", "F16", "[2,4]", 16, NULL, NULL, "a.weight", 2, 4, 0, NULL },
    { "single", "a.weight", "F32", "[2,4]", 32, NULL, NULL, "a.weight", 2, 4, 0, NULL },
    { "a vector of any shape", "a.q", "BF16", "[2,4]", 16, NULL, NULL, "a.q", 8, 1, 0, NULL },
    { "prefix may be missing", "layers.0.mlp.up_proj.weight", "BF16", "[2,4]", 16, NULL, NULL,
      "model.layers.0.mlp.up_proj.weight", 2, 4, 0, NULL },
    { "prefix as released", "model.layers.0.mlp.up_proj.weight", "BF16", "[2,4]", 16, NULL, NULL,
      "model.layers.0.mlp.up_proj.weight", 2, 4, 0, NULL },
    { "nowhere", "b.weight", "BF16", "[2,4]", 16, NULL, NULL, "a.weight", 2, 4, 1, NULL },
    { "turned around", "a.weight", "BF16", "[4,2]", 16, NULL, NULL, "a.weight", 2, 4, -EINVAL,
      "a.weight: type BF16, shape [4, 2], want [2, 4]" },
    { "rank 3", "a.weight", "BF16", "[1,2,4]", 16, NULL, NULL, "a.weight", 2, 4, -EINVAL,
      "[1, 2, 4]" },
    { "short vector", "a.q", "BF16", "[7]", 14, NULL, NULL, "a.q", 8, 1, -EINVAL, "want 8 values" },
    { "too few experts", "model.layers.0.mlp.experts.down_proj", "BF16", "[2,2,4]", 32, NULL, NULL,
      "layers.0.ffn.experts.2.w2.weight", 2, 4, -EINVAL, "want [more than 2, 2, 4]" },
    { "no table of this shape", "model.engram_tables.0.weight", "BF16", "[2,4]", 16, NULL, NULL,
      "layers.5.engram.embed.weight", 3, 4, 1, NULL },
    { "a table of rank 3", "model.engram_tables.0.weight", "BF16", "[2,4,1]", 16, NULL, NULL,
      "layers.5.engram.embed.weight", 2, 4, 1, NULL },
    { "a wider table", "model.engram_tables.0.weight", "BF16", "[2,8]", 32, NULL, NULL,
      "layers.5.engram.embed.weight", 2, 4, 1, NULL },
    { "the last table", "model.engram_tables.15.weight", "BF16", "[2,4]", 16, NULL, NULL,
      "layers.5.engram.embed.weight", 2, 4, 0, NULL },
    { "another format", "a.trellis", "I16", "[1,1,16]", 32, "a.suh", "U8", "a.weight", 2, 4,
      -EINVAL, "a.trellis: type I16, shape [1, 1, 16]" },
    { "released exl3 name under generation A", "model.layers.0.attn.wkv.trellis", "I16", "[1,1,16]",
      32, NULL, NULL, "layers.0.attn.wkv.weight", 2, 4, -EINVAL,
      "model.layers.0.attn.wkv.trellis" },
    { "bare integers", "a.weight", "I32", "[2,4]", 32, NULL, NULL, "a.weight", 2, 4, -EINVAL,
      "type I32 is not supported" },
    { "leftover scale", "a.weight", "BF16", "[2,4]", 16, "a.scale", "F8_E8M0", "a.weight", 2, 4,
      -EINVAL, "a.scale beside a plain" },
    { "two generations at once", "head.weight", "BF16", "[2,4]", 16, "lm_head.weight", "U8",
      "head.weight", 2, 4, -EINVAL, "lm_head.weight is there too" },
};

Test(source, a_weight_is_found_or_refused_by_name)
{
    static const char zeros[64];
    struct last_line line = { 0 };

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(founds) / sizeof(founds[0]); i++) {
        const struct found_case *c = &founds[i];
        struct tensors f = { 0 };
        char folder[PATH_CAP], name[256];
        struct source *s;
        struct tensor t;
        uint64_t first;

        temp_folder(folder);
        tensors_add(&f, c->tensor, c->type, c->shape, zeros, c->bytes);
        if (c->second)
            tensors_add(&f, c->second, c->second_type, "[1]", zeros, 1);
        tensors_write(&f, folder, "model.safetensors");
        cr_assert(eq(int, source_hf_open(folder, &s), 0), "%s", c->name);
        line = (struct last_line){ 0 };
        cr_expect(
            eq(int, source_weight(s, c->released, c->rows, c->cols, &t, name, sizeof(name), &first),
               c->result),
            "%s: %s", c->name, line.text);
        cr_expect(eq(int, line.n, c->result < 0), "%s", c->name);
        if (c->says)
            cr_expect(strstr(line.text, c->says) != NULL, "%s: %s", c->name, line.text);
        s->ops->close(s);
        folder_count(folder, 1);
    }
}

Test(source, folder_without_tensors_is_refused)
{
    char folder[PATH_CAP], path[PATH_CAP];
    struct last_line line = { 0 };
    struct source *s;

    log_sink(keep_line, &line);
    temp_folder(folder);
    cr_expect(eq(int, source_hf_open(folder, &s), -ENOENT));
    cr_expect(strstr(line.text, folder) && strstr(line.text, "model.safetensors"), "%s", line.text);
    path_join(path, sizeof(path), folder, "no");
    cr_expect(eq(int, source_hf_open(path, &s), -ENOENT));
    path_join(path, sizeof(path), folder, "model.safetensors");
    cr_assert(eq(int, file_write(path, "1234567", 7, 0644), 0));
    cr_expect(eq(int, source_hf_open(folder, &s), -EINVAL));
    cr_expect(eq(int, source_hf_open(path, &s), -ENOTDIR));
    folder_count(folder, 1);
}

struct synth_case {
    const char *name;
    int rows, cols;
    double mean, deviation;
};

static const struct synth_case synths[] = {
    { "layers.0.attn.wq_b.weight", 64, 1024, 0, 1 / 32.0 },
    { "embed.weight", 512, 64, 0, 1 / 8.0 },
    { "layers.0.attn_norm.weight", 40000, 1, 1, 0.1 },
    { "layers.1.engram.k_weight", 40000, 1, 1, 0.1 },
    { "layers.0.ffn.gate.bias", 40000, 1, 0, 0.1 },
};

Test(source, made_up_weights_keep_a_network_finite)
{
    for (size_t i = 0; i < sizeof(synths) / sizeof(synths[0]); i++)
        for (enum dtype dtype = DTYPE_F32; dtype < DTYPE_COUNT; dtype++) {
            const struct synth_case *c = &synths[i];
            size_t n = (size_t)c->rows * (size_t)c->cols;
            double sum = 0, square = 0;
            char name[64], *stored = malloc(n * 4);
            float *v = malloc(n * 4);
            struct source *s;
            struct tensor t;
            uint64_t first;

            cr_assert(eq(int, source_synth_open(3, dtype, &s), 0));
            cr_assert(
                eq(int, source_weight(s, c->name, c->rows, c->cols, &t, name, sizeof(name), &first),
                   0));
            cr_assert(eq(int, s->ops->read(s, name, &t, 0, stored, n * dtype_bytes(dtype)), 0));
            f32_widen(dtype, stored, n, v);
            for (size_t k = 0; k < n; k++) {
                cr_assert(isfinite(v[k]));
                sum += v[k];
                square += (v[k] - c->mean) * (v[k] - c->mean);
            }
            cr_expect(fabs(sum / (double)n - c->mean) < 4 * c->deviation / sqrt((double)n) + 1e-3,
                      "%s: mean %g", c->name, sum / (double)n);
            cr_expect(fabs(sqrt(square / (double)n) / c->deviation - 1) < 0.03, "%s: deviation %g",
                      c->name, sqrt(square / (double)n));
            s->ops->close(s);
            free(v);
            free(stored);
        }
}

Test(source, made_up_weights_differ_by_name_and_seed)
{
    uint16_t v[3][64];
    struct tensor t;

    for (int i = 0; i < 3; i++) {
        const char *name = i == 1 ? "b.weight" : "a.weight";
        struct source *s;

        cr_assert(eq(int, source_synth_open(i == 2 ? 9 : 8, DTYPE_F16, &s), 0));
        cr_assert(eq(int, s->ops->find(s, name, 8, 8, &t), 0));
        cr_assert(eq(int, s->ops->read(s, name, &t, 0, v[i], sizeof(v[i])), 0));
        s->ops->close(s);
    }
    cr_expect(memcmp(v[0], v[1], sizeof(v[0])) != 0);
    cr_expect(memcmp(v[0], v[2], sizeof(v[0])) != 0);
}
