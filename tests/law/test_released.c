/* The released numerics: which products have quantised inputs, which results are rounded to bf16,
 * what the quantiser gives, and what stays equal whatever the backend and the number of ranks. */
#include "tests/rig/goldens.h"
#include "tests/rig/rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 48

/* ---- which products -------------------------------------------------------------------------- */

/* A weight of the walk and where its matrix is bound. */
struct named {
    struct walk base;
    struct {
        const struct mat *m;
        char name[WEIGHT_NAME_MAX];
    } at[4096];
    size_t n;
};

static int note_name(struct walk *w, const struct weight *d, void *target)
{
    struct named *n = (struct named *)w;

    if (d->kind != WEIGHT_MAT || n->n == sizeof(n->at) / sizeof(n->at[0]))
        return 0;
    n->at[n->n].m = target;
    snprintf(n->at[n->n++].name, sizeof(n->at[0].name), "%s", d->name);
    return 0;
}

static struct named names;
static const struct op_table *real;
static int products, experts, wrong;

/* Tensors that the released code multiplies with quantised inputs, experts aside. */
static bool has_quantised_inputs(const char *name)
{
    static const char *const tails[] = { ".attn.wq_a.weight",    ".attn.wq_b.weight",
                                         ".attn.wkv.weight",     ".attn.wo_b.weight",
                                         ".indexer.wq_b.weight", ".engram.wkv.weight",
                                         ".self_attn.",          ".mlp." };

    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
        if (strstr(name, tails[i]))
            return true;
    return false;
}

static void seen_matmul(struct queue *q, const struct matmul_args *a)
{
    const char *name = "";

    for (size_t i = 0; i < names.n; i++)
        if (names.at[i].m == a->w)
            name = names.at[i].name;
    products++;
    if (a->in != (has_quantised_inputs(name) ? CODEC_QW : CODEC_F32)) {
        wrong++;
        cr_log_error("%s: inputs of codec %d", name, a->in);
    }
    real->matmul(q, a);
}

static void seen_matmuls(struct queue *q, const struct matmuls_args *a)
{
    for (int i = 0; i < a->n; i++)
        seen_matmul(q, &a->of[i]);
}

static void seen_moe(struct queue *q, const struct moe_args *a)
{
    experts++;
    wrong += a->in != CODEC_QW;
    real->moe(q, a);
}

static void run_watched(struct rig *g, void *arg)
{
    struct op_table seen = *g->x.op;
    size_t n;
    const int32_t *golden = golden_i32(&n, "prose_long.ids");
    int32_t ids[8];

    for (int i = 0; i < 8; i++)
        ids[i] = golden[i] % g->m->vocab;
    names.base = (struct walk){ .visit = note_name, .ranks = 1 };
    g->m->ops->weights(g->m, &names.base);
    cr_assert(eq(int, names.base.err, 0));
    real = g->x.op;
    seen.matmul = seen_matmul;
    seen.matmuls = seen_matmuls;
    seen.moe = seen_moe;
    g->x.op = &seen;
    rig_forward(g, 0, ids, 8, true);
    g->x.op = real;
}

Test(released, inputs_are_quantised_where_the_released_code_does_it)
{
    rigs_run(&(struct rig_settings){ .model = rig_quantised(), .ranks = 1, .released = true },
             run_watched, NULL);
    cr_expect(gt(int, products, 40));
    cr_expect(gt(int, experts, 4));
    cr_expect(eq(int, wrong, 0));
}

/* ---- which results --------------------------------------------------------------------------- */

static bool is_weight(const char *name)
{
    for (size_t i = 0; i < names.n; i++)
        if (strcmp(names.at[i].name, name) == 0)
            return true;
    return false;
}

/* Products that stay f32: logits, what is still to be summed over the ranks, and a compressor that
 * pools. */
static bool stays_f32(const char *name)
{
    const char *wkv = strstr(name, ".compressor.wkv.");
    char gate[WEIGHT_NAME_MAX];

    if (!wkv)
        return strcmp(name, "head.weight") == 0 || strstr(name, ".attn.wo_b.") ||
               strstr(name, ".compressor.wgate.");
    snprintf(gate, sizeof(gate), "%.*s.compressor.wgate.weight", (int)(wkv - name), name);
    return is_weight(gate);
}

static void note_round(enum round got, enum round want, const char *name)
{
    products++;
    if (got != want) {
        wrong++;
        cr_log_error("%s: round %d", name, got);
    }
}

static void rounded_matmul(struct queue *q, const struct matmul_args *a)
{
    const char *name = "";

    for (size_t i = 0; i < names.n; i++)
        if (names.at[i].m == a->w)
            name = names.at[i].name;
    note_round(a->round, stays_f32(name) ? ROUND_NONE : ROUND_BF16, name);
    real->matmul(q, a);
}

static void rounded_matmuls(struct queue *q, const struct matmuls_args *a)
{
    for (int i = 0; i < a->n; i++)
        rounded_matmul(q, &a->of[i]);
}

static void rounded_row_keeps(struct queue *q, const struct row_keeps_args *a)
{
    for (int i = 0; i < a->n; i++)
        note_round(a->of[i].round, ROUND_BF16, "row_keeps");
    real->row_keeps(q, a);
}

#define ROUNDED(op)                                                                                \
    static void rounded_##op(struct queue *q, const struct op##_args *a)                           \
    {                                                                                              \
        note_round(a->round, ROUND_BF16, #op);                                                     \
        real->op(q, a);                                                                            \
    }

ROUNDED(rmsnorm)
ROUNDED(rope)
ROUNDED(pool)
ROUNDED(attend)
ROUNDED(moe)
ROUNDED(hc_site)
ROUNDED(hc_expand)
ROUNDED(hc_mean)
ROUNDED(engram_gate)

static void run_rounded(struct rig *g, void *arg)
{
    struct op_table seen = *g->x.op;
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_short.ids");

    names.base = (struct walk){ .visit = note_name, .ranks = 1 };
    g->m->ops->weights(g->m, &names.base);
    cr_assert(eq(int, names.base.err, 0));
    real = g->x.op;
    seen.matmul = rounded_matmul;
    seen.matmuls = rounded_matmuls;
    seen.row_keeps = rounded_row_keeps;
    seen.rmsnorm = rounded_rmsnorm;
    seen.rope = rounded_rope;
    seen.pool = rounded_pool;
    seen.attend = rounded_attend;
    seen.moe = rounded_moe;
    seen.hc_site = rounded_hc_site;
    seen.hc_expand = rounded_hc_expand;
    seen.hc_mean = rounded_hc_mean;
    seen.engram_gate = rounded_engram_gate;
    g->x.op = &seen;
    rig_forward(g, 0, ids, 8, true);
    g->x.op = real;
}

Test(released, results_are_rounded_where_the_released_code_does_it)
{
    rigs_run(&(struct rig_settings){ .ranks = 1 }, run_rounded, NULL);
    cr_expect(gt(int, products, 80));
    cr_expect(eq(int, wrong, 0));
}

Test(released, inputs_of_a_dense_model_are_quantised_but_the_head_s)
{
    rigs_run(
        &(struct rig_settings){ .model = VECTORS "/dense/qwen3", .ranks = 1, .released = true },
        run_watched, NULL);
    cr_expect(ge(int, products, 15));
    cr_expect(eq(int, wrong, 0));
}

/* ---- logits ---------------------------------------------------------------------------------- */

struct logits {
    float z[ROWS * 4096];
    int vocab;
};

static void run_text(struct rig *g, void *arg)
{
    struct logits *l = arg;
    struct logits *own = g->rank == 0 ? l : calloc(1, sizeof(*l));
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");

    rig_forward(g, 0, ids, ROWS, true);
    rig_logits(g, own->z);
    own->vocab = g->m->vocab;
    if (own != l)
        free(own);
}

static int best(const struct logits *l, int row)
{
    const float *z = l->z + (size_t)row * (size_t)l->vocab;
    int at = 0;

    for (int i = 1; i < l->vocab; i++)
        if (z[i] > z[at])
            at = i;
    return at;
}

static int agreement(const struct logits *a, const struct logits *b)
{
    int same = 0;

    for (int r = 0; r < ROWS; r++)
        same += best(a, r) == best(b, r);
    return same;
}

Test(released, backends_have_the_same_bits_and_ranks_choose_alike)
{
    static struct logits ref, cpu, two, plain;
    struct rig_settings s = { .model = rig_quantised(), .ranks = 1, .released = true };

    rigs_run(&s, run_text, &ref);
    s.backend = "cpu";
    s.threads = 2;
    rigs_run(&s, run_text, &cpu);
    cr_expect(memcmp(&ref, &cpu, sizeof(ref)) == 0, "cpu has the bits of ref");
    s.ranks = 2;
    rigs_run(&s, run_text, &two);
    cr_expect(ge(int, agreement(&ref, &two), ROWS - 2), "%d of %d", agreement(&ref, &two), ROWS);
    s.ranks = 1;
    s.released = false;
    rigs_run(&s, run_text, &plain);
    cr_expect(memcmp(&ref, &plain, sizeof(ref)) != 0, "the quantiser does something");
    cr_expect(ge(int, agreement(&ref, &plain), ROWS * 3 / 4), "%d of %d", agreement(&ref, &plain),
              ROWS);
}

/* Without FP8 and FP4 weights there is nothing to quantise for. */
Test(released, plain_weights_ignore_it)
{
    static struct logits with, without;
    struct rig_settings s = { .ranks = 1, .released = true, .backend = "cpu" };

    rigs_run(&s, run_text, &with);
    s.released = false;
    rigs_run(&s, run_text, &without);
    cr_expect(memcmp(&with, &without, sizeof(with)) == 0);
}
