/* The V4.1 family against outputs of independent implementations: tests/vectors/GOLDENS.md says how
 * they were made and which differences two correct programs show. */
#include "tests/rig/goldens.h"
#include "tests/rig/rig.h"

#include "kernels/ref/ref.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 4096
#define TOP 8

struct tally {
    float worst;    /* largest difference of a top-8 logit */
    double sum;     /* of all those differences */
    int rows, same; /* positions, and those with the same argmax */
};

static int argmax(const float *z, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (z[i] > z[best])
            best = i;
    return best;
}

static void compare_top(struct tally *t, const float *z, const int32_t *id, const float *val)
{
    for (int i = 0; i < TOP; i++) {
        float d = fabsf(z[id[i]] - val[i]);

        t->worst = d > t->worst || isnan(d) ? d : t->worst;
        t->sum += (double)d;
    }
    t->rows++;
    t->same += argmax(z, VOCAB) == id[0];
}

/* Runs a prompt through head windows and compares every position with the goldens under
 * `prefix`. */
static struct tally run_prompt(struct rig *g, const char *prompt, const char *prefix, int chunk)
{
    size_t n, m;
    const int32_t *ids = golden_i32(&n, "%s.ids", prompt);
    const int32_t *top = golden_i32(&m, "%s.%stop8_ids", prompt, prefix);
    const float *val = golden_f32(&m, "%s.%stop8_vals", prompt, prefix);
    float *z = malloc(sizeof(float) * VOCAB * (size_t)chunk);
    struct tally t = { 0 };
    int slot;

    cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
    for (int at = 0; at < (int)n; at += chunk) {
        int rows = (int)n - at < chunk ? (int)n - at : chunk;

        rig_forward(g, slot, ids + at, rows, true);
        rig_logits(g, z);
        for (int r = 0; r < rows; r++)
            compare_top(&t, z + (size_t)r * VOCAB, top + (at + r) * TOP, val + (at + r) * TOP);
        rig_keep(g, slot, rows);
    }
    slot_drop(g->pool, slot);
    free(z);
    return t;
}

static void every_prompt_without_quantisers(struct rig *g, void *arg)
{
    for (int i = 0; i < 6; i++) {
        struct tally t = run_prompt(g, golden_prompts[i], "noquant.", 64);

        printf("r%d of %d: %s rounding off: top-8 differs by %.2g, argmax equal %d of %d\n",
               g->rank, g->m->ranks, golden_prompts[i], (double)t.worst, t.same, t.rows);
        cr_expect(lt(flt, t.worst, 1e-4f), "%s", golden_prompts[i]);
    }
}

Test(goldens, rounding_off_one_rank)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .fp32 = true, .no_quant = true },
             every_prompt_without_quantisers, NULL);
}

Test(goldens, rounding_off_two_ranks)
{
    rigs_run(&(struct rig_settings){ .ranks = 2, .fp32 = true, .no_quant = true },
             every_prompt_without_quantisers, NULL);
}

/* Activations rounded to bf16, cache quantisers off. Nothing else judges that level, so `ref` was
 * measured once (docs/DECODE.md "Laws") and every backend is held to that. The bounds leave room
 * for a choice of experts or entries that turns over: 0.6 in the logits of a short prompt. A mean
 * below its bound is a rounding point that is missing. */
static const struct {
    const char *prompt;
    double worst, least_mean, most_mean; /* differences of top-8 logits from float32 */
    double same;                         /* argmax */
} measured[] = {
    { "prose_short", 1.5, 0.009, 0.06, 0.95 }, { "struct_count", 1.5, 0.009, 0.06, 0.95 },
    { "struct_json", 1.5, 0.009, 0.06, 0.95 }, { "code_short", 1.5, 0.009, 0.06, 0.95 },
    { "code_chat", 1.5, 0.009, 0.06, 0.95 },   { "prose_long", 5, 0.015, 0.024, 0.985 },
};

static void every_prompt_at_bf16(struct rig *g, void *arg)
{
    for (size_t i = 0; i < sizeof(measured) / sizeof(measured[0]); i++) {
        const char *name = measured[i].prompt;
        struct tally t = run_prompt(g, name, "noquant.", 64);
        double mean = t.sum / (t.rows * TOP);

        printf("r%d of %d: %s at bf16: top-8 differs by %.3g, mean %.3g, argmax equal %d of %d\n",
               g->rank, g->m->ranks, name, (double)t.worst, mean, t.same, t.rows);
        cr_expect(lt(dbl, (double)t.worst, measured[i].worst), "%s", name);
        cr_expect(lt(dbl, mean, measured[i].most_mean), "%s", name);
        cr_expect(gt(dbl, mean, measured[i].least_mean), "%s", name);
        cr_expect(ge(dbl, (double)t.same, measured[i].same * t.rows), "%s", name);
    }
}

Test(goldens, bf16_is_as_far_from_float32_as_it_was_measured)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .no_quant = true }, every_prompt_at_bf16, NULL);
    rigs_run(&(struct rig_settings){ .ranks = 2, .no_quant = true }, every_prompt_at_bf16, NULL);
}

/* The classes of GOLDENS.md: what another correct float32 program may show, by prompt. */
static const struct {
    const char *prompt;
    float worst;
    double same;
} classes[] = {
    { "prose_short", 0.1f, 1 }, { "struct_count", 0.1f, 1 }, { "struct_json", 0.1f, 1 },
    { "code_short", 0.1f, 1 },  { "code_chat", 0.2f, 1 },    { "prose_long", 0.7f, 0.998 },
};

static void every_prompt_with_quantisers(struct rig *g, void *arg)
{
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        struct tally t = run_prompt(g, classes[i].prompt, "", 64);

        printf("r%d of %d: %s rounding on: top-8 differs by %.2g, argmax equal %d of %d\n", g->rank,
               g->m->ranks, classes[i].prompt, (double)t.worst, t.same, t.rows);
        cr_expect(lt(flt, t.worst, classes[i].worst), "%s", classes[i].prompt);
        cr_expect(ge(dbl, (double)t.same, classes[i].same * t.rows), "%s", classes[i].prompt);
    }
}

Test(goldens, rounding_on)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .fp32 = true }, every_prompt_with_quantisers,
             NULL);
    rigs_run(&(struct rig_settings){ .ranks = 2, .fp32 = true }, every_prompt_with_quantisers,
             NULL);
}

/* Greedy text step by step. A token that differs where the margin is below 0.01 may be a flipped
 * step: then the golden token is fed on and the flip is reported; any other difference is a
 * fault. */
static void greedy(struct rig *g, void *arg)
{
    int *flips = arg;
    float z[VOCAB];

    for (int i = 0; i < 6; i++) {
        size_t n, m;
        const int32_t *ids = golden_i32(&n, "%s.ids", golden_prompts[i]);
        const int32_t *want = golden_i32(&m, "%s.greedy_ids", golden_prompts[i]);
        const float *margin = golden_f32(&m, "%s.greedy_margin", golden_prompts[i]);
        int slot;

        cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
        rig_forward(g, slot, ids, (int)n - 1, false);
        rig_keep(g, slot, (int)n - 1);
        for (int k = 0; k < 128; k++) {
            int got;

            rig_forward(g, slot, k ? &want[k - 1] : &ids[n - 1], 1, true);
            rig_logits(g, z);
            rig_keep(g, slot, 1);
            got = argmax(z, VOCAB);
            if (got != want[k])
                printf("%s: token %d is %d, golden %d with margin %.3g\n", golden_prompts[i], k,
                       got, want[k], (double)margin[k]);
            if (got != want[k] && margin[k] < 0.01f)
                flips[g->backend->caps & BACKEND_HOST_MEMORY ? 0 : 1]++;
            else
                cr_expect(eq(int, got, want[k]), "%s token %d", golden_prompts[i], k);
        }
        slot_drop(g->pool, slot);
    }
}

Test(goldens, greedy_text)
{
    int flips[2] = { 0 }; /* of 768 tokens: on hosts, on devices, whose sums are others */

    rigs_run(&(struct rig_settings){ .ranks = 1, .fp32 = true, .rows_max = 1536 }, greedy, flips);
    cr_expect(eq(int, flips[0], 0));
    cr_expect(le(int, flips[1], 2));
}

/* A backend whose select also writes down what it chose. */
#define SEL_TOP 32
#define SOURCES 4
static struct {
    int calls, at; /* at: position of the window's first row */
    int32_t sel[SOURCES][2048][SEL_TOP];
} seen;

static void recording_select(struct queue *q, const struct select_args *a)
{
    ref_ops.select(q, a);
    memcpy(seen.sel[seen.calls++ % SOURCES][seen.at], a->sel,
           sizeof(int32_t) * (size_t)(a->rows * a->topk));
}

/* Selects the golden entries, except at exact ties and behind a flipped quantiser step, which shows
 * as a logit that differs by more than rounding does. */
static void selections(struct rig *g, void *arg)
{
    static float z[64 * VOCAB];
    struct op_table ops = *g->x.op;
    int same = 0, excused = 0;

    ops.select = recording_select;
    g->x.op = &ops;
    for (int i = 0; i < 6; i++) {
        size_t n, m;
        const int32_t *ids = golden_i32(&n, "%s.ids", golden_prompts[i]);
        const int32_t *want = golden_i32(&m, "%s.index_sel_last16", golden_prompts[i]);
        const float *margin = golden_f32(&m, "%s.index_margin", golden_prompts[i]);
        const int32_t *top = golden_i32(&m, "%s.top8_ids", golden_prompts[i]);
        const float *val = golden_f32(&m, "%s.top8_vals", golden_prompts[i]);
        int slot, flip = (int)n;

        cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
        for (seen.at = 0; seen.at < (int)n; seen.at += g->w->rows) {
            rig_forward(g, slot, ids + seen.at, (int)n - seen.at < 64 ? (int)n - seen.at : 64,
                        true);
            rig_logits(g, z);
            for (int r = 0; r < g->w->rows && flip == (int)n; r++) {
                struct tally t = { 0 };
                int pos = seen.at + r;

                compare_top(&t, z + (size_t)r * VOCAB, top + pos * TOP, val + pos * TOP);
                if (t.worst > 2e-4f)
                    flip = pos;
            }
            rig_keep(g, slot, g->w->rows);
        }
        for (int s = 0; s < SOURCES; s++)
            for (int r = 0; r < 16; r++) {
                int pos = (int)n - 16 + r;
                bool equal = memcmp(seen.sel[s][pos], want + (s * 16 + r) * SEL_TOP,
                                    sizeof(seen.sel[s][pos])) == 0;

                same += equal;
                if (equal)
                    continue;
                excused++;
                cr_expect(margin[s * (int)n + pos] < 1e-5f || pos >= flip,
                          "%s: source %d position %d, margin %g, no flip before", golden_prompts[i],
                          s, pos, (double)margin[s * (int)n + pos]);
            }
        slot_drop(g->pool, slot);
    }
    printf("selections: %d equal, %d behind a tie or a flipped step\n", same, excused);
    cr_expect(gt(int, same, 360));
}

Test(goldens, index_selections)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .fp32 = true }, selections, NULL);
}
