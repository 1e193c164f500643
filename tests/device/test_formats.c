/* The pocket model's shape with made-up weights of every format: the device against ref, and a
 * prompt in one window against the same prompt row by row. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/model/slot.h"
#include "src/model/window.h"
#include "tests/rig/goldens.h"
#include "tests/rig/rig.h"

#define ROWS 12
#define PROMPT 200
#define OFF_MAX 6 /* rows behind one for which two experts were so close that rounding decides */

static const struct {
    const char *name;
    double tol; /* of a logit; inputs of EXL3 products are f16, and a last bit may turn over */
} formats[] = { { "bf16", 1e-3 },       { "exl3-3", 2e-2 },   { "exl3-2.5", 2e-2 },
                { "exl3-5-mcg", 2e-2 }, { "exl3-v41", 2e-2 }, { "fp8-mxfp4", 1e-3 },
                { "fp8-128", 1e-3 },    { "nvfp4", 1e-3 },    { "nvfp4-ct", 1e-3 } };

struct run {
    float *logits; /* [ROWS][vocab] */
    int vocab;
};

static const int32_t *prompt(void)
{
    size_t n;

    return golden_i32(&n, "prose_long.ids");
}

static void first_rows(struct rig *g, void *arg)
{
    struct run *r = arg;

    int slot;

    r->vocab = g->m->vocab;
    r->logits = malloc((size_t)ROWS * (size_t)r->vocab * sizeof(float));
    cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
    rig_forward(g, slot, prompt(), ROWS, true);
    rig_logits(g, r->logits);
}

Test(formats, made_up_models_agree_with_ref)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        struct rig_settings s = { .ranks = 1,
                                  .fp32 = true,
                                  .made_up = formats[i].name,
                                  .no_quant = true,
                                  .context = 256,
                                  .rows_max = ROWS };
        struct run want, got;
        double worst = 0, sum = 0;
        int same = 0, off = 0;

        rigs_run(&s, first_rows, &got);
        s.backend = "ref";
        rigs_run(&s, first_rows, &want);
        for (int r = 0; r < ROWS; r++) {
            const float *a = want.logits + (size_t)r * (size_t)want.vocab;
            const float *b = got.logits + (size_t)r * (size_t)want.vocab;
            double here = 0;
            int x = 0, y = 0;

            for (int n = 0; n < want.vocab; n++) {
                double e = fabs((double)a[n] - (double)b[n]);

                here = e > here || e != e ? e : here;
                sum += (double)a[n] * a[n];
                x = a[n] > a[x] ? n : x;
                y = b[n] > b[y] ? n : y;
            }
            same += x == y;
            if (here > formats[i].tol)
                off++;
            else
                worst = here > worst ? here : worst;
        }
        printf("%-12s largest difference %.2g, logits of deviation %.2f, argmax equal %d of %d, %d "
               "rows chose another expert or entry\n",
               formats[i].name, worst, sqrt(sum / ROWS / want.vocab), same, ROWS, off);
        cr_expect(off <= OFF_MAX && same >= ROWS - 2, "%s: %d rows differ", formats[i].name, off);
        free(want.logits);
        free(got.logits);
    }
}

/* Logits of the row behind a prompt that came in windows of `rows` rows. */
static void prompt_by(struct rig *g, int rows, float *logits)
{
    const int32_t *ids = prompt();
    int slot;

    cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
    for (int at = 0; at < PROMPT; at += rows) {
        int n = PROMPT - at < rows ? PROMPT - at : rows;

        rig_forward(g, slot, ids + at, n, false);
        rig_keep(g, slot, n);
    }
    rig_forward(g, slot, ids + PROMPT, 1, true);
    rig_logits(g, logits);
    slot_drop(g->pool, slot);
}

static void chunks(struct rig *g, void *arg)
{
    static const int rows[] = { PROMPT, 100, 65, 64, 17, 16, 5 };
    size_t bytes = (size_t)g->m->vocab * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);

    prompt_by(g, 1, want);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        prompt_by(g, rows[i], got);
        cr_expect(memcmp(want, got, bytes) == 0, "%s: windows of %d rows", (const char *)arg,
                  rows[i]);
    }
    free(want);
    free(got);
}

Test(formats, any_chunking_of_a_prompt_is_the_same)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        rigs_run(
            &(struct rig_settings){
                .ranks = 1, .made_up = formats[i].name, .context = 256, .rows_max = PROMPT },
            chunks, (void *)(uintptr_t)formats[i].name);
}
