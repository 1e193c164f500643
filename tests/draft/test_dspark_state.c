/* DSpark's state - what a pass sees of other slots, other requests, rejected rows and its own past:
 * nothing. All comparisons are of bits.
 */
#include "src/base/log.h"
#include "src/base/rng.h"
#include "src/draft/draft_dspark.h"
#include "src/model/source.h"
#include "tests/draft/draft_rig.h"
#include "tests/model/source_weight.h"
#include "tests/rig/goldens.h"
#include "tests/rig/late.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <string.h>

#define BLOCK 5
#define CANDS 128

/* Everything that a pass says about a slot. */
struct said {
    int len;
    int32_t draft[BLOCK];
    float logit[BLOCK];
    struct candidate z[BLOCK][CANDS];
};

static void keep_refined(struct drafter *d)
{
    dspark_candidates(d, CANDS);
    dspark_keep_refined(d);
}

/* One rank with short windows, so that rings wrap early. */
static void rig_run(void (*fn)(struct draft_rig *b, struct rig *g), int rows_max)
{
    struct draft_rig b = { .name = "dspark", .prepare = keep_refined, .fn = fn };

    draft_rigs_run(
        (struct rig_settings){ .ranks = 1, .slots = 4, .context = 512, .rows_max = rows_max }, &b);
}

static void hear(struct draft_rig *b, struct rig *g, const struct proposal *p, int i,
                 struct said *s)
{
    memset(s, 0, sizeof(*s));
    s->len = p->len[i];
    memcpy(s->draft, p->draft[i], sizeof(s->draft));
    for (int r = 0; r < BLOCK; r++) {
        const struct candidate *z;

        cr_assert(eq(int, dspark_refined(b->d[g->rank], p->slot[i], r, &z, &s->logit[r]), CANDS));
        memcpy(s->z[r], z, sizeof(s->z[r]));
    }
}

static struct said ask(struct draft_rig *b, struct rig *g, int slot, int32_t anchor)
{
    struct proposal p;
    struct said s;

    draft_anchor(g, slot, anchor);
    draft_ask(b, g, &slot, 1, &p);
    hear(b, g, &p, 0, &s);
    return s;
}

static void expect_same(const struct said *a, const struct said *b, const char *what, int n)
{
    cr_expect(eq(int, a->len, BLOCK), "%s %d", what, n);
    cr_expect(memcmp(a, b, sizeof(*a)) == 0, "%s %d", what, n);
}

static const int32_t *text(void)
{
    return golden_i32(&(size_t){ 0 }, "prose_long.ids");
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void every_set_of_slots(struct draft_rig *b, struct rig *g)
{
    struct said alone[SLOTS_MAX], got;
    struct proposal p;

    for (int s = 0; s < SLOTS_MAX; s++) {
        draft_slot(b, g, s, 0);
        draft_feed(b, g, s, text() + 100 * s, 3 + 61 * s, 16);
        alone[s] = ask(b, g, s, text()[100 * s + 3 + 61 * s]);
    }
    for (int set = 1; set < 1 << SLOTS_MAX; set++)
        for (int turn = 0; turn < 2; turn++) {
            int slots[SLOTS_MAX], n = 0;

            for (int s = 0; s < SLOTS_MAX; s++) {
                int slot = turn ? SLOTS_MAX - 1 - s : s;

                if (set >> slot & 1)
                    slots[n++] = slot;
            }
            draft_ask(b, g, slots, n, &p);
            for (int i = 0; i < n; i++) {
                hear(b, g, &p, i, &got);
                expect_same(&got, &alone[slots[i]], "set", set);
            }
        }
}

Test(dspark_state, a_slot_is_drafted_alike_in_every_company)
{
    rig_run(every_set_of_slots, 16);
}

/* ---- sections -------------------------------------------------------------------------------- */

/* What may run beside the rest of a pass, as late as it may. */
static void late_sections(struct draft_rig *b, struct rig *g)
{
    const struct op_table *op = g->x.op;
    int slot = draft_slot(b, g, 0, 0);
    struct said want, got;
    struct late *l;

    draft_feed(b, g, slot, text(), 61, 16);
    g->x.side = false;
    want = ask(b, g, slot, text()[61]);
    g->x.side = true;
    g->x.op = late_open(op, &l);
    got = ask(b, g, slot, text()[61]);
    cr_expect(gt(int, late_end(l), 0), "nothing was late");
    late_close(l);
    g->x.op = op;
    expect_same(&got, &want, "late sections", 0);
}

Test(dspark_state, sections_change_no_draft)
{
    rig_run(late_sections, 16);
}

/* ---- windows --------------------------------------------------------------------------------- */

#define HAVE 203

static struct said by_chunk[5];

static void every_chunking(struct draft_rig *b, struct rig *g)
{
    static const int chunks[] = { 1, 7, 16, 64, 512 };

    for (int i = 0; i < 5 && chunks[i] <= g->w->rows_max; i++) {
        int slot = draft_slot(b, g, 0, 0);

        /* rows that an earlier request left must not stand in for rows that this one owes */
        draft_feed(b, g, slot, text() + 700, HAVE, 16);
        slot_drop(g->pool, slot);
        slot = draft_slot(b, g, 0, 0);
        draft_feed(b, g, slot, text(), HAVE, chunks[i]);
        by_chunk[i] = ask(b, g, slot, text()[HAVE]);
        expect_same(&by_chunk[i], &by_chunk[0], "chunks of the same window", chunks[i]);
        slot_drop(g->pool, slot);
    }
}

Test(dspark_state, chunks_of_a_prompt_do_not_matter)
{
    struct said small;

    rig_run(every_chunking, 16);
    small = by_chunk[0];
    rig_run(every_chunking, 512);
    expect_same(&small, &by_chunk[0], "longer rings", 0);
}

static struct said fresh(struct draft_rig *b, struct rig *g, int have)
{
    int slot = draft_slot(b, g, -1, 0);
    struct said s;

    draft_feed(b, g, slot, text(), have, 16);
    s = ask(b, g, slot, text()[have]);
    slot_drop(g->pool, slot);
    return s;
}

/* Windows of right tokens and then wrong ones, all observed; a pass after each. */
static void wrong_drafts(struct draft_rig *b, struct rig *g)
{
    struct drafter *d = b->d[g->rank];
    int slot = draft_slot(b, g, -1, 0), have = 150;

    draft_feed(b, g, slot, text(), have, 16);
    for (int right = 1; right <= 16; right += 3) {
        int32_t rows[16];
        struct said got, want;

        for (int i = 0; i < 16; i++)
            rows[i] = i < right ? text()[have + i] : 4095 - i;
        rig_forward(g, slot, rows, 16, true);
        rig_keep(g, slot, right);
        d->ops->observe(d, &g->x, g->pool, g->w);
        have += right;
        got = ask(b, g, slot, text()[have]);
        want = fresh(b, g, have);
        expect_same(&got, &want, "rows kept", right);
    }
}

Test(dspark_state, rejected_rows_leave_nothing)
{
    rig_run(wrong_drafts, 16);
}

/* A pass ran behind a window as the device committed it; then fewer tokens land and another text
 * follows. */
static void fewer_land(struct draft_rig *b, struct rig *g)
{
    struct drafter *d = b->d[g->rank];

    for (int landed = 1; landed <= 16; landed += 5) {
        int slot = draft_slot(b, g, -1, 0), have = 150;
        int32_t rows[16];
        struct said got, want;

        draft_feed(b, g, slot, text(), have, 16);
        memcpy(rows, text() + have, sizeof(int32_t) * (size_t)landed);
        for (int i = landed; i < 16; i++)
            rows[i] = 77;
        rig_forward(g, slot, rows, 16, true);
        rig_keep(g, slot, 16);
        d->ops->observe(d, &g->x, g->pool, g->w);
        ask(b, g, slot, 99);
        slot_set(g->pool, g->q, slot, have + landed);
        got = ask(b, g, slot, text()[have + landed]);
        want = fresh(b, g, have + landed);
        expect_same(&got, &want, "tokens landed", landed);
        slot_drop(g->pool, slot);
    }
}

Test(dspark_state, a_pass_too_far_ahead_leaves_nothing)
{
    rig_run(fewer_land, 16);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void other_request(struct draft_rig *b, struct rig *g)
{
    struct said want[2], got;

    for (int used = 0; used < 2; used++)
        for (int resume = 0; resume < 2; resume++) {
            int slot = draft_slot(b, g, 0, 0), first = resume ? 90 : 0;

            if (used) {
                draft_feed(b, g, slot, text() + 700, 300, 16);
                ask(b, g, slot, 11);
                slot_drop(g->pool, slot);
                slot = draft_slot(b, g, 0, 0);
            }
            /* the state before `first` comes from elsewhere, without taps */
            for (int i = 0; i < first; i++) {
                rig_forward(g, slot, text() + i, 1, false);
                rig_keep(g, slot, 1);
            }
            b->d[g->rank]->ops->reset(b->d[g->rank], &g->x, g->pool, slot, first);
            draft_feed(b, g, slot, text() + first, 100 - first, 16);
            got = ask(b, g, slot, text()[100]);
            if (!used)
                want[resume] = got;
            expect_same(&got, &want[resume], resume ? "resumed" : "from the start", used);
            slot_drop(g->pool, slot);
        }
    cr_expect(memcmp(&want[0], &want[1], sizeof(want[0])) != 0, "a resumed request sees less");
}

Test(dspark_state, rows_of_another_request_are_not_seen)
{
    rig_run(other_request, 16);
}

static char warned[256];

static void keep_warning(void *arg, enum log_level level, const char *line)
{
    if (level == LOG_WARN && strstr(line, "finite"))
        strncpy(warned, line, sizeof(warned) - 1);
}

/* Taps that went wrong make bad rows: the slot proposes nothing, others do, and a reset heals
 * it. */
static void bad_taps(struct draft_rig *b, struct rig *g)
{
    struct drafter *d = b->d[g->rank];
    const int slots[] = { 0, 1 };
    const float nan = NAN;
    struct said want;
    struct proposal p;

    for (int s = 0; s < 2; s++) {
        draft_slot(b, g, s, 0);
        draft_feed(b, g, s, text(), 40, 16);
    }
    want = ask(b, g, 1, text()[40]);
    rig_forward(g, 0, text() + 40, 1, false);
    rig_keep(g, 0, 1);
    g->q->ops->put(g->q, g->w->taps, &nan, sizeof(nan));
    d->ops->observe(d, &g->x, g->pool, g->w);
    draft_anchor(g, 0, text()[41]);
    draft_ask(b, g, slots, 2, &p);
    cr_expect(eq(int, p.len[0], 0));
    cr_expect(strstr(warned, "slot 0 draft 1 is not finite") != NULL, "%s", warned);
    cr_expect(eq(int, p.len[1], BLOCK));
    cr_expect(memcmp(p.draft[1], want.draft, sizeof(want.draft)) == 0);
    d->ops->reset(d, &g->x, g->pool, 0, 41);
    draft_ask(b, g, slots, 2, &p);
    cr_expect(eq(int, p.len[0], BLOCK));
}

Test(dspark_state, numbers_that_are_none_cost_the_proposal_alone)
{
    log_sink(keep_warning, NULL);
    rig_run(bad_taps, 16);
}

/* ---- sampled requests ------------------------------------------------------------------------ */

/* The pick of a row is the keyed draw over its refined candidates, at the position that it
 * proposes. */
static void sampled(struct draft_rig *b, struct rig *g)
{
    struct sampler *s = b->sampler[g->rank];
    struct said got, greedy, others = { 0 };
    int slot = draft_slot(b, g, 2, 0), differ = 0;

    s[2] = (struct sampler){ .temperature = 1.5, .top_p = 1, .seed = 1234 };
    draft_feed(b, g, slot, text(), 60, 16);
    for (int n = 60; n < 80; n++) {
        got = ask(b, g, slot, text()[n]);
        for (int r = 0; r < got.len; r++) {
            double best = -INFINITY;
            int32_t id = -1;

            for (int c = 0; c < CANDS; c++) {
                const struct candidate *z = &got.z[r][c];
                double x = (double)z->z / 1.5 +
                           draw_gumbel(1234, (uint64_t)(n + 1 + r), (uint32_t)z->id, DRAW_TOKEN);

                if (x > best) {
                    best = x;
                    id = z->id;
                }
            }
            cr_expect(eq(int, got.draft[r], id), "position %d", n + 1 + r);
        }
        s[2].temperature = 0;
        greedy = ask(b, g, slot, text()[n]);
        s[2].temperature = 1.5;
        differ += memcmp(greedy.draft, got.draft, sizeof(got.draft)) != 0;
        s[1] = s[2];
        s[2].seed = 4321;
        others = ask(b, g, slot, text()[n]);
        differ += memcmp(others.draft, got.draft, sizeof(got.draft)) != 0;
        s[2].seed = 1234;
        draft_feed(b, g, slot, text() + n, 1, 16);
    }
    cr_expect(gt(int, differ, 20), "%d of 40 differ from greedy or from another seed", differ);
}

Test(dspark_state, sampled_slots_draw_with_their_own_key)
{
    rig_run(sampled, 16);
}

/* ---- weights --------------------------------------------------------------------------------- */

struct find_walk {
    struct walk base;
    struct source *src;
    int found;
};

static int find_weight(struct walk *w, const struct weight *d, void *target)
{
    struct find_walk *f = (struct find_walk *)w;
    char name[WEIGHT_NAME_MAX];
    struct tensor t;
    uint64_t first;

    cr_expect(eq(int,
                 source_weight(f->src, d->name, d->rows, d->cols, &t, name, sizeof(name), &first),
                 0),
              "%s", d->name);
    f->found++;
    return 0;
}

static int unused_mtp;

static void count_unused(void *arg, const char *name)
{
    if (strncmp(name, "mtp.", 4) == 0 && !strstr(name, ".gate.bias_vl")) {
        unused_mtp++;
        cr_log_error("%s is not read", name);
    }
}

static void every_tensor(struct draft_rig *b, struct rig *g)
{
    struct find_walk f = { .base = { .visit = find_weight, .ranks = 1 } };

    cr_assert(eq(int, source_hf_open(POCKET, &f.src), 0));
    b->d[0]->ops->weights(b->d[0], &f.base);
    cr_expect(eq(int, f.base.err, 0));
    f.src->ops->unused(f.src, count_unused, NULL);
    cr_expect(eq(int, unused_mtp, 0));
    cr_expect(eq(int, f.found, 72));
    f.src->ops->close(f.src);
}

Test(dspark_state, every_tensor_of_the_drafter_is_read)
{
    rig_run(every_tensor, 16);
}
