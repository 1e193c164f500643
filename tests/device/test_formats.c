/* The pocket model's shape with made-up weights of every format: the device against ref, and a
 * prompt in one window against the same prompt row by row. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/model/slot.h"
#include "src/model/window.h"
#include "tests/rig/goldens.h"
#include "tests/rig/rig.h"

#define ROWS 12
#define PROMPT 200
#define CALLS 16 /* of the router, a layer each */
#define EXPERTS 64
#define CHOICES 8
#define OFF_MAX                                                                                    \
    6 /* rows that differ because an expert was chosen otherwise, in them or before them */

static const struct {
    const char *name;
    double tol; /* of a logit; inputs of EXL3 products are f16, and a last bit may turn over */
} formats[] = { { "bf16", 1e-3 },       { "exl3-3", 2e-2 },   { "exl3-2.5", 2e-2 },
                { "exl3-5-mcg", 2e-2 }, { "exl3-v41", 2e-2 }, { "fp8-mxfp4", 1e-3 },
                { "fp8-128", 1e-3 },    { "nvfp4", 1e-3 },    { "nvfp4-ct", 1e-3 } };

/* What the router saw and chose in a run. */
struct choices {
    const struct op_table *op;
    int calls, experts, k;
    float score[CALLS][ROWS][EXPERTS]; /* with the bias */
    int32_t id[CALLS][ROWS][CHOICES];
};

struct run {
    float *logits; /* [ROWS][vocab] */
    int vocab;
    struct choices seen;
};

static struct choices *recorder;

static void recording_route(struct queue *q, const struct route_args *a)
{
    struct choices *c = recorder;
    float logit[ROWS * EXPERTS], bias[EXPERTS];
    int32_t id[ROWS * CHOICES];
    size_t rows = (size_t)a->rows;

    c->op->route(q, a);
    cr_assert(c->calls < CALLS && a->rows <= ROWS && a->experts <= EXPERTS && a->k <= CHOICES);
    q->ops->get(q, logit, a->logit, rows * (size_t)a->experts * sizeof(*logit));
    q->ops->get(q, bias, a->bias, (size_t)a->experts * sizeof(*bias));
    q->ops->get(q, id, a->id, rows * (size_t)a->k * sizeof(*id));
    cr_assert(eq(int, q->ops->wait(q), 0));
    c->experts = a->experts;
    c->k = a->k;
    for (int r = 0; r < a->rows; r++) {
        for (int e = 0; e < a->experts; e++) {
            float v = logit[r * a->experts + e] * a->temp;

            c->score[c->calls][r][e] = sqrtf(v > 20 ? v : log1pf(expf(v))) + bias[e];
        }
        memcpy(c->id[c->calls][r], id + r * a->k, (size_t)a->k * sizeof(*id));
    }
    c->calls++;
}

/* How much further the last expert that was chosen is than the first that was not. */
static double margin(const struct choices *c, int call, int row)
{
    double last = INFINITY, next = -INFINITY;

    for (int e = 0; e < c->experts; e++) {
        double s = (double)c->score[call][row][e];
        bool in = false;

        for (int i = 0; i < c->k; i++)
            in |= c->id[call][row][i] == e;
        if (in)
            last = s < last ? s : last;
        else
            next = s > next ? s : next;
    }
    return last - next;
}

/* How far the scores of a row differ at most. */
static double apart(const struct choices *x, const struct choices *y, int call, int row)
{
    double most = 0;

    for (int e = 0; e < x->experts; e++)
        most = fmax(most, fabs((double)x->score[call][row][e] - (double)y->score[call][row][e]));
    return most;
}

/* The first row for which some layer chose other experts. A choice that no other one can have
 * caused, which lies in an earlier layer and no later row, must have been as close as scores within
 * tol allow. */
static int first_turned(const char *name, double tol, const struct choices *want,
                        const struct choices *got)
{
    int seen = ROWS; /* rows from here on have read what a turned row left */

    cr_assert(eq(int, want->calls, got->calls));
    for (int c = 0; c < want->calls; c++) {
        int here = ROWS;

        for (int r = 0; r < ROWS; r++) {
            double far = apart(want, got, c, r), close = margin(want, c, r);

            if (memcmp(want->id[c][r], got->id[c][r], sizeof(want->id[c][r])) == 0)
                continue;
            here = r < here ? r : here;
            if (r >= seen)
                continue;
            printf("%-12s layer %d row %d: other experts, %.2g apart, scores differ by %.2g\n",
                   name, c, r, close, far);
            cr_expect(close <= 2 * far && far <= tol, "%s: layer %d row %d chose other experts",
                      name, c, r);
        }
        seen = here < seen ? here : seen;
    }
    return seen;
}

static const int32_t *prompt(void)
{
    size_t n;

    return golden_i32(&n, "prose_long.ids");
}

static void first_rows(struct rig *g, void *arg)
{
    struct run *r = arg;
    struct op_table ops = *g->x.op;
    int slot;

    r->seen = (struct choices){ .op = g->x.op };
    recorder = &r->seen;
    ops.route = recording_route;
    g->x.op = &ops;
    r->vocab = g->m->vocab;
    r->logits = malloc((size_t)ROWS * (size_t)r->vocab * sizeof(float));
    cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
    rig_forward(g, slot, prompt(), ROWS, true);
    rig_logits(g, r->logits);
    g->x.op = r->seen.op;
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
        static struct run want, got;
        double worst = 0, sum = 0;
        int same = 0, off = 0, turned;

        rigs_run(&s, first_rows, &got);
        s.backend = "ref";
        rigs_run(&s, first_rows, &want);
        turned = first_turned(formats[i].name, formats[i].tol, &want.seen, &got.seen);
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
            if (r < turned)
                worst = here > worst || here != here ? here : worst;
            else
                off += here > formats[i].tol;
        }
        printf("%-12s largest difference %.2g in the %d rows before other experts, %d rows behind "
               "them "
               "differ; logits of deviation %.2f, argmax equal %d of %d\n",
               formats[i].name, worst, turned, off, sqrt(sum / ROWS / want.vocab), same, ROWS);
        cr_expect(worst <= formats[i].tol && off <= OFF_MAX && same >= ROWS - 2, "%s: rows differ",
                  formats[i].name);
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
