/* What a drafter learns from a window inside its forward pass (struct window, tapped) is what it
 * learns behind it: the bits of every state and proposal. */
#include "src/model/window.h"
#include "tests/draft/draft_rig.h"
#include "tests/rig/late.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#define PROMPT 20
#define SPLITS                                                                                     \
    4 /* of a section between what runs where it is called and what runs late, from none on */

/* Windows of R rows of which the first N are kept. */
static const struct {
    int rows, keep;
} windows[] = { { 1, 1 }, { 6, 6 }, { 6, 2 }, { 16, 1 }, { 3, 3 } };

static const struct drafter_case {
    const char *name, *model;
    bool sections; /* its family has some */
} drafters[] = { { "dspark", NULL, true }, { "mtp", VECTORS "/mtp", false } };

struct learner {
    struct drafter *d;
    struct rig *g;
};

static void learn(void *arg, struct exec *x)
{
    const struct learner *l = arg;

    l->d->ops->observe(l->d, x, l->g->pool, l->g->w);
}

static int32_t token(int at, int vocab)
{
    return (at * 7919 + 13) % vocab;
}

/* A window and a pass behind it. */
static uint64_t step(struct draft_rig *b, struct rig *g, int slot, int i, bool inside,
                     struct proposal *p)
{
    struct learner l = { b->d[g->rank], g };
    int32_t tok[WINDOW_MAX];
    uint64_t digest = 0;

    for (int r = 0; r < windows[i].rows; r++)
        tok[r] = token(100 * i + r, g->m->vocab);
    g->tapped = inside ? learn : NULL;
    g->tapped_arg = &l;
    rig_forward(g, slot, tok, windows[i].rows, true);
    if (!inside)
        learn(&l, &g->x);
    g->tapped = NULL;
    rig_keep(g, slot, windows[i].keep);
    draft_anchor(g, slot, token(i, g->m->vocab));
    draft_ask(b, g, &slot, 1, p);
    cr_expect(eq(int, slot_digest(g->pool, g->q, slot, g->pool->states.n, &digest), 0));
    return digest;
}

static void ways(struct draft_rig *b, struct rig *g)
{
    const struct drafter_case *c = b->arg;
    const struct op_table *op = g->x.op;
    int32_t prompt[PROMPT];

    for (int i = 0; i < PROMPT; i++)
        prompt[i] = token(1000 + i, g->m->vocab);
    for (int late = 0; late <= SPLITS; late++) {
        struct proposal want, got;
        int behind = draft_slot(b, g, -1, 0), inside = draft_slot(b, g, -1, 0);

        draft_feed(b, g, behind, prompt, PROMPT, 16);
        draft_feed(b, g, inside, prompt, PROMPT, 16);
        for (int i = 0; i < (int)(sizeof(windows) / sizeof(windows[0])); i++) {
            uint64_t digest = step(b, g, behind, i, false, &want);
            struct late *l;
            int ran = 0;

            g->x.side = late > 0;
            if (late) {
                g->x.op = late_open(op, &l);
                late_first(l, late - 1);
            }
            cr_expect(eq(u64, step(b, g, inside, i, true, &got), digest),
                      "%s, rank %d of %d, window %d, late %d: states", c->name, g->rank,
                      g->m->ranks, i, late);
            if (late) {
                ran = late_end(l);
                late_close(l);
            }
            g->x.side = false;
            g->x.op = op;
            cr_expect(eq(int, ran > 0, late > 0 && c->sections), "%s, late %d", c->name, late);
            cr_expect(eq(int, got.len[0], b->d[g->rank]->block));
            cr_expect(memcmp(got.draft[0], want.draft[0], sizeof(got.draft[0])) == 0 &&
                          memcmp(got.conf[0], want.conf[0], sizeof(got.conf[0])) == 0,
                      "%s, rank %d of %d, window %d, late %d: drafts", c->name, g->rank,
                      g->m->ranks, i, late);
        }
        slot_drop(g->pool, behind);
        slot_drop(g->pool, inside);
    }
}

Test(ingest, inside_a_window_is_behind_it)
{
    for (size_t i = 0; i < sizeof(drafters) / sizeof(drafters[0]); i++)
        for (int ranks = 1; ranks <= 2; ranks++) {
            struct draft_rig b = { .name = drafters[i].name,
                                   .fn = ways,
                                   .arg = (void *)(uintptr_t)&drafters[i] };

            draft_rigs_run((struct rig_settings){ .model = drafters[i].model,
                                                  .ranks = ranks,
                                                  .slots = 2,
                                                  .context = 128,
                                                  .bf16_wire = ranks > 1,
                                                  .rows_max = 16 },
                           &b);
        }
}
