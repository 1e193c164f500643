/* Row independence and rollback on the pocket model: whatever the windows, a row has the bits of
 * the one-row step at its position, and what was rolled back never happened. */
#include "tests/rig/goldens.h"
#include "tests/rig/late.h"
#include "tests/rig/rig.h"

#include "src/base/log.h"
#include "src/base/rng.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 16
#define START 53 /* odd, no multiple of a ratio, windows of 64 wrap inside the rows */

/* Everything a row leaves behind: logits, taps, and the slot's committed states after it. */
struct trace {
    float *logits, *taps;
    uint64_t digest[ROWS + 1];
};

static size_t logits_row(const struct rig *g)
{
    return (size_t)g->m->vocab_share;
}

static void trace_open(const struct rig *g, struct trace *t)
{
    t->logits = calloc(ROWS * logits_row(g), sizeof(float));
    t->taps = calloc(ROWS * (size_t)g->m->tap_cols, sizeof(float));
}

static void trace_close(struct trace *t)
{
    free(t->logits);
    free(t->taps);
}

/* Copies the window's rows from row `first` into the trace behind `at`. */
static void record(struct rig *g, struct trace *t, int at, int first, int rows)
{
    size_t z = logits_row(g), n = (size_t)g->m->tap_cols;

    g->q->ops->get(g->q, t->logits + (size_t)at * z, g->w->logits + (size_t)first * z,
                   sizeof(float) * z * (size_t)rows);
    g->q->ops->get(g->q, t->taps + (size_t)at * n, g->w->taps + (size_t)first * n,
                   sizeof(float) * n * (size_t)rows);
    cr_assert(eq(int, g->q->ops->wait(g->q), 0));
}

static int fresh_slot(struct rig *g, const int32_t *ids, int n)
{
    int slot;

    cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
    for (int at = 0; at < n; at += g->w->rows) {
        rig_forward(g, slot, ids + at, n - at < g->pool->rows_max ? n - at : g->pool->rows_max,
                    false);
        rig_keep(g, slot, g->w->rows);
    }
    return slot;
}

static uint64_t digest(struct rig *g, int slot)
{
    uint64_t d = 0;

    cr_assert(eq(int, slot_digest(g->pool, g->q, slot, g->pool->states.n, &d), 0));
    return d;
}

/* One row at a time: what every other way of running the rows is compared with. */
static void serial(struct rig *g, const int32_t *ids, struct trace *t)
{
    int slot = fresh_slot(g, ids, START);

    t->digest[0] = digest(g, slot);
    for (int i = 0; i < ROWS; i++) {
        rig_forward(g, slot, ids + START + i, 1, true);
        record(g, t, i, 0, 1);
        rig_keep(g, slot, 1);
        t->digest[i + 1] = digest(g, slot);
    }
    slot_drop(g->pool, slot);
}

static void expect_same(const struct rig *g, const struct trace *a, const struct trace *b, int rows,
                        const char *what, int n)
{
    cr_expect(memcmp(a->logits, b->logits, sizeof(float) * logits_row(g) * (size_t)rows) == 0,
              "logits of %s %d", what, n);
    cr_expect(memcmp(a->taps, b->taps, sizeof(float) * (size_t)(g->m->tap_cols * rows)) == 0,
              "taps of %s %d", what, n);
}

/* Windows of R rows, for every R, and random splits of the rows. */
static void every_split(struct rig *g, void *arg)
{
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    struct trace want, got;

    trace_open(g, &want);
    trace_open(g, &got);
    serial(g, ids, &want);
    for (int r = 1; r <= ROWS + 32; r++) {
        int slot = fresh_slot(g, ids, START), at = 0;

        while (at < ROWS) {
            int rows = r <= ROWS
                           ? r
                           : 1 + (int)(philox4x32((uint32_t)r, (uint32_t)at, 0, 0, 1).w[0] % ROWS);

            rows = rows < ROWS - at ? rows : ROWS - at;
            rig_forward(g, slot, ids + START + at, rows, true);
            record(g, &got, at, 0, rows);
            rig_keep(g, slot, rows);
            at += rows;
            cr_expect(eq(u64, digest(g, slot), want.digest[at]), "states after row %d, split %d",
                      at, r);
        }
        expect_same(g, &got, &want, ROWS, "split", r);
        slot_drop(g->pool, slot);
    }
    trace_close(&want);
    trace_close(&got);
}

Test(windows, every_split_has_the_bits_of_single_rows)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .rows_max = ROWS }, every_split, NULL);
    rigs_run(&(struct rig_settings){ .ranks = 1, .rows_max = ROWS, .fp32 = true }, every_split,
             NULL);
    rigs_run(&(struct rig_settings){ .ranks = 2, .rows_max = ROWS, .bf16_wire = true }, every_split,
             NULL);
}

/* Inputs of FP8 and FP4 weights are quantised row by row, so the laws hold for them too. */
Test(windows, every_split_has_the_bits_of_single_rows_at_released_numerics)
{
    rigs_run(&(struct rig_settings){ .model = rig_quantised(),
                                     .backend = "cpu",
                                     .ranks = 2,
                                     .rows_max = ROWS,
                                     .bf16_wire = true,
                                     .released = true },
             every_split, NULL);
}

/* Ops of sections as late as they may run, so that nothing they read has changed and nothing they
 * write is in use. */
static void sections(struct rig *g, void *arg)
{
    const struct op_table *op = g->x.op;
    struct trace want, got;
    struct late *l;
    const int32_t *ids;
    size_t n;
    int slot;

    ids = golden_i32(&n, "prose_long.ids");
    trace_open(g, &want);
    trace_open(g, &got);
    g->x.side = false;
    serial(g, ids, &want);
    g->x.side = true;
    g->x.prefetch = 64 << 10;
    g->x.prefetch_rate = 200;
    g->x.op = late_open(op, &l);
    for (int rows = 1, split = 0; rows <= ROWS; rows *= 2, split++) {
        late_first(l, split);
        slot = fresh_slot(g, ids, START);
        for (int at = 0; at < ROWS; at += rows) {
            rig_forward(g, slot, ids + START + at, rows, true);
            cr_expect(gt(int, late_end(l), 0), "nothing was late");
            record(g, &got, at, 0, rows);
            rig_keep(g, slot, rows);
        }
        expect_same(g, &got, &want, ROWS, "late sections, rows a window:", rows);
        cr_expect(eq(u64, digest(g, slot), want.digest[ROWS]));
        slot_drop(g->pool, slot);
    }
    late_close(l);
    g->x.op = op;
    trace_close(&want);
    trace_close(&got);
}

Test(windows, sections_change_no_row_and_no_state)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .rows_max = ROWS }, sections, NULL);
    rigs_run(&(struct rig_settings){ .ranks = 2, .rows_max = ROWS, .bf16_wire = true }, sections,
             NULL);
}

/* Windows of R rows that are filled up to a bucket, as captured ones are: the padding is
 * nobody's. */
static void every_padding(struct rig *g, void *arg)
{
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    struct trace want, got;

    trace_open(g, &want);
    trace_open(g, &got);
    serial(g, ids, &want);
    for (int r = 1; r < ROWS; r++) {
        int slot = fresh_slot(g, ids, START);

        for (int at = 0; at + r <= ROWS; at += r) {
            window_clear(g->w);
            g->w->head = true;
            cr_assert(eq(int, window_add(g->w, slot, ids + START + at, r, 0), 0));
            window_pad(g->w, r + at % (ROWS - r) + 1);
            cr_assert(eq(int, g->m->ops->stage(g->m, g->pool, g->rows, g->w), 0));
            cr_assert(eq(int, window_upload(&g->x, g->pool, g->w), 0));
            g->m->ops->forward(g->m, &g->x, g->pool, g->w);
            record(g, &got, at, 0, r);
            rig_keep(g, slot, r);
            cr_expect(eq(u64, digest(g, slot), want.digest[at + r]),
                      "states after row %d, %d a window", at + r, r);
        }
        expect_same(g, &got, &want, ROWS / r * r, "padded windows of", r);
        slot_drop(g->pool, slot);
    }
    trace_close(&want);
    trace_close(&got);
}

Test(windows, padding_changes_no_row_and_no_state)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .rows_max = ROWS }, every_padding, NULL);
    rigs_run(&(struct rig_settings){ .ranks = 2, .rows_max = ROWS, .bf16_wire = true },
             every_padding, NULL);
}

/* Drafts that are wrong from row k on: the window's rows behind k are dropped and the right tokens
 * follow. */
static void every_rollback(struct rig *g, void *arg)
{
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    struct trace want, got;

    trace_open(g, &want);
    trace_open(g, &got);
    serial(g, ids, &want);
    for (int start = 0; start < 4; start++)
        for (int k = 1; k <= ROWS - start; k++) {
            int slot = fresh_slot(g, ids, START);
            int32_t rows[ROWS];

            if (start) {
                rig_forward(g, slot, ids + START, start, true);
                rig_keep(g, slot, start);
            }
            for (int i = 0; i < ROWS; i++)
                rows[i] = i < k && start + i < ROWS ? ids[START + start + i] : 7 + 31 * i;
            rig_forward(g, slot, rows, ROWS, true);
            record(g, &got, start, 0, ROWS - start);
            rig_keep(g, slot, k);
            cr_expect(eq(u64, digest(g, slot), want.digest[start + k]), "kept %d of a window at %d",
                      k, start);
            for (int i = start + k; i < ROWS; i++) {
                rig_forward(g, slot, ids + START + i, 1, true);
                record(g, &got, i, 0, 1);
                rig_keep(g, slot, 1);
            }
            cr_expect(eq(u64, digest(g, slot), want.digest[ROWS]));
            cr_expect(memcmp(got.logits + (size_t)start * logits_row(g),
                             want.logits + (size_t)start * logits_row(g),
                             sizeof(float) * logits_row(g) * (size_t)(ROWS - start)) == 0,
                      "logits after keeping %d at %d", k, start);
            slot_drop(g->pool, slot);
        }
    trace_close(&want);
    trace_close(&got);
}

Test(windows, rolled_back_never_happened)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .rows_max = ROWS }, every_rollback, NULL);
}

Test(windows, rolled_back_never_happened_at_released_numerics)
{
    rigs_run(&(struct rig_settings){ .model = rig_quantised(),
                                     .backend = "cpu",
                                     .ranks = 1,
                                     .rows_max = ROWS,
                                     .released = true },
             every_rollback, NULL);
}

/* The last row of a context, with rows behind the end that are dropped: nothing that is committed
 * is written over. */
static void the_last_row(struct rig *g, void *arg)
{
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    int last = g->pool->context - 1, slot;
    uint64_t want = 0;

    for (int rows = 1; rows <= ROWS; rows += ROWS - 1) {
        slot = fresh_slot(g, ids, last);
        rig_forward(g, slot, ids + last, rows, true);
        rig_keep(g, slot, 1);
        want = rows == 1 ? digest(g, slot) : want;
        cr_expect(eq(u64, digest(g, slot), want), "%d rows", rows);
        slot_drop(g->pool, slot);
    }
    /* a whole window has room behind the last position, and no more than that */
    cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
    for (int beyond = 0; beyond < 2; beyond++) {
        g->pool->pos[slot] = g->pool->context + beyond;
        window_clear(g->w);
        cr_assert(eq(int, window_add(g->w, slot, ids, ROWS, 0), 0));
        cr_expect(eq(int, window_note(g->pool, g->w), beyond ? -EOVERFLOW : 0));
    }
    slot_drop(g->pool, slot);
}

Test(windows, rows_behind_the_end_write_over_nothing)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .context = 71, .rows_max = ROWS }, the_last_row,
             NULL);
}

/* Slots that share a window: each has the bits it has alone, wherever it stands in the window. */
static void shared_windows(struct rig *g, void *arg)
{
    size_t n;
    const int32_t *text[SLOTS_MAX];
    struct trace want[SLOTS_MAX], got;

    for (int s = 0; s < SLOTS_MAX; s++) {
        text[s] = golden_i32(&n, "prose_long.ids") + 101 * s;
        trace_open(g, &want[s]);
        serial(g, text[s], &want[s]);
    }
    trace_open(g, &got);
    for (int turn = 0; turn < SLOTS_MAX; turn++) {
        int slot[SLOTS_MAX];

        for (int s = 0; s < SLOTS_MAX; s++)
            slot[s] = fresh_slot(g, text[s], START);
        window_clear(g->w);
        for (int i = 0; i < SLOTS_MAX; i++) {
            int s = (turn + i) % SLOTS_MAX;

            cr_assert(eq(int, window_add(g->w, slot[s], text[s] + START, ROWS - 3 * i, 0), 0));
        }
        g->w->head = true;
        cr_assert(eq(int, g->m->ops->stage(g->m, g->pool, g->rows, g->w), 0));
        cr_assert(eq(int, window_upload(&g->x, g->pool, g->w), 0));
        g->m->ops->forward(g->m, &g->x, g->pool, g->w);
        for (int i = 0; i < SLOTS_MAX; i++) {
            int s = (turn + i) % SLOTS_MAX, rows = ROWS - 3 * i;

            record(g, &got, 0, g->w->seg[i].first, rows);
            expect_same(g, &got, &want[s], rows, "slot", s);
            rig_keep(g, slot[s], rows);
            cr_expect(eq(u64, digest(g, slot[s]), want[s].digest[rows]), "states of slot %d", s);
        }
        for (int s = 0; s < SLOTS_MAX; s++)
            slot_drop(g->pool, slot[s]);
    }
    for (int s = 0; s < SLOTS_MAX; s++)
        trace_close(&want[s]);
    trace_close(&got);
}

Test(windows, slots_in_company_have_the_bits_of_slots_alone)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .slots = 4, .rows_max = 64 }, shared_windows,
             NULL);
}

/* A prompt in chunks of any size leaves the states and the next logits of one chunk. */
static void every_chunking(struct rig *g, void *arg)
{
    static const int chunks[] = { 300, 1, 7, 64, 100, 128, 255 };
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    uint64_t want_digest = 0;
    struct trace want, got;

    trace_open(g, &want);
    trace_open(g, &got);
    for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
        int slot;
        uint64_t d;

        cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
        for (int at = 0; at < 300; at += chunks[c]) {
            int rows = chunks[c] < 300 - at ? chunks[c] : 300 - at;

            rig_forward(g, slot, ids + at, rows, false);
            rig_keep(g, slot, rows);
        }
        d = digest(g, slot);
        rig_forward(g, slot, ids + 300, 1, true);
        record(g, c ? &got : &want, 0, 0, 1);
        if (c == 0) {
            want_digest = d;
        } else {
            cr_expect(eq(u64, d, want_digest), "chunks of %d", chunks[c]);
            expect_same(g, &got, &want, 1, "chunks of", chunks[c]);
        }
        slot_drop(g->pool, slot);
    }
    trace_close(&want);
    trace_close(&got);
}

Test(windows, any_chunking_of_a_prompt_is_the_same)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .rows_max = 300 }, every_chunking, NULL);
}

/* Results do not depend on the number of threads. */
struct run {
    float logits[64 * 4096];
};

static void run_once(struct rig *g, void *arg)
{
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    int slot = fresh_slot(g, ids, 301);

    rig_forward(g, slot, ids + 301, 64, true);
    rig_logits(g, ((struct run *)arg)->logits);
}

Test(windows, threads_change_nothing)
{
    static struct run one, three;

    rigs_run(&(struct rig_settings){ .ranks = 1, .threads = 1 }, run_once, &one);
    rigs_run(&(struct rig_settings){ .ranks = 1, .threads = 3 }, run_once, &three);
    cr_expect(memcmp(&one, &three, sizeof(one)) == 0);
}

/* With trace_numerics a number that is none is named where it comes in: here from what a layer
 * keeps of the tokens before. */
static void every_bad_layer(struct rig *g, void *arg)
{
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    const struct state_list *l = &g->pool->states;
    int layer = 0;

    g->x.trace = true;
    for (int i = 0; i < l->n; i++) {
        const struct state_view *v = &g->pool->view[i];
        float bad = NAN;
        char want[32];
        int slot;

        if (l->spec[i].kind != STATE_RING || l->spec[i].cols != l->spec[0].cols)
            continue; /* not the window of a layer */
        slot = fresh_slot(g, ids, START);
        g->q->ops->put(g->q,
                       v->base + (size_t)slot * v->slot_stride +
                           (size_t)((START - 2) % v->cap) * v->row_bytes,
                       &bad, sizeof(bad));
        window_clear(g->w);
        g->w->head = true;
        cr_assert(eq(int, window_add(g->w, slot, ids + START, 3, 0), 0));
        cr_assert(eq(int, g->m->ops->stage(g->m, g->pool, g->rows, g->w), 0));
        cr_assert(eq(int, window_upload(&g->x, g->pool, g->w), 0));
        g->m->ops->forward(g->m, &g->x, g->pool, g->w);
        cr_expect(eq(int, g->q->ops->wait(g->q), -EBADMSG), "layer %d", layer);
        snprintf(want, sizeof(want), "layer %d: no finite", layer++);
        cr_expect(strncmp(fail_text(), want, strlen(want)) == 0, "%s: %s", want, fail_text());
        slot_drop(g->pool, slot);
    }
    cr_expect(eq(int, layer, g->m->layers));
}

Test(windows, a_bad_number_names_its_layer)
{
    rigs_run(&(struct rig_settings){ .ranks = 1, .rows_max = 64, .no_quant = true },
             every_bad_layer, NULL);
}
