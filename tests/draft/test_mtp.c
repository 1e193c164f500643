/* mtp - the next-token head against chains made in float64 by tests/vectors/mtp/make.py. */
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/safetensors.h"
#include "tests/draft/draft_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

#define FOLDER VECTORS "/mtp"
#define ROWS 48
#define CHAIN 3

static int32_t ids[ROWS], drafts[ROWS][CHAIN];

static void read_tensor(const struct safetensors *f, const char *name, void *out, size_t bytes)
{
    const struct st_tensor *t = safetensors_find(f, name);

    cr_assert(t != NULL && t->end - t->begin == bytes);
    cr_assert(eq(int, full_pread(f->fd, out, bytes, (off_t)(f->data + t->begin), name), 0));
}

static void read_goldens(void)
{
    struct safetensors *f;

    cr_assert(eq(int, safetensors_open(FOLDER "/goldens.safetensors", &f), 0));
    read_tensor(f, "ids", ids, sizeof(ids));
    read_tensor(f, "drafts", drafts, sizeof(drafts));
    safetensors_close(f);
}

static void expect_chain(const struct proposal *p, int i, int at, const struct rig *g)
{
    cr_expect(eq(int, p->len[i], CHAIN));
    cr_expect(not(p->bad[i]));
    for (int j = 0; j < CHAIN; j++)
        cr_expect(eq(int, p->draft[i][j], drafts[at][j]), "behind %d, draft %d, rank %d of %d", at,
                  j, g->rank, g->m->ranks);
}

/* After every token a chain, whose cells the next window overwrites; windows with drafts that are
 * rejected in between. */
static void every_position(struct draft_rig *b, struct rig *g)
{
    int slot = draft_slot(b, g, -1, 0);
    struct proposal p;

    draft_feed(b, g, slot, ids, 1, 1);
    for (int at = 1; at < ROWS; at++) {
        draft_anchor(g, slot, ids[at]);
        draft_ask(b, g, &slot, 1, &p);
        expect_chain(&p, 0, at, g);
        if (at % 3 == 0) {
            /* the pending token is right, what was drafted behind it is not */
            int32_t tok[4] = { ids[at], p.draft[0][0], p.draft[0][1], p.draft[0][2] };

            rig_forward(g, slot, tok, 4, true);
            rig_keep(g, slot, 1);
            b->d[g->rank]->ops->observe(b->d[g->rank], &g->x, g->pool, g->w);
        } else {
            draft_feed(b, g, slot, ids + at, 1, 1);
        }
    }
}

static void run(int ranks, int slots, void (*fn)(struct draft_rig *b, struct rig *g))
{
    struct draft_rig b = { .name = "mtp", .fn = fn };

    read_goldens();
    draft_rigs_run((struct rig_settings){ .model = FOLDER,
                                          .ranks = ranks,
                                          .fp32 = true,
                                          .slots = slots,
                                          .context = 128,
                                          .rows_max = 16 },
                   &b);
}

Test(mtp, chains_equal_float64)
{
    run(1, 1, every_position);
    run(2, 1, every_position);
}

/* Prompts in chunks of every size; slots of one pass, and one whose slot had another text
 * before. */
static void slots_together(struct draft_rig *b, struct rig *g)
{
    static const int at[] = { 47, 5, 20 }, chunk[] = { 16, 2, 7 };
    struct proposal p;
    int slot[3];

    for (int s = 0; s < 3; s++) {
        slot[s] = draft_slot(b, g, s, 0);
        draft_feed(b, g, slot[s], ids + 1, 30, 16);
        draft_anchor(g, slot[s], ids[0]);
    }
    draft_ask(b, g, slot, 3, &p);
    for (int s = 0; s < 3; s++) {
        slot_drop(g->pool, slot[s]);
        slot[s] = draft_slot(b, g, s, 0);
        draft_feed(b, g, slot[s], ids, at[s], chunk[s]);
        draft_anchor(g, slot[s], ids[at[s]]);
    }
    draft_ask(b, g, slot, 3, &p);
    for (int s = 0; s < 3; s++)
        expect_chain(&p, s, at[s], g);
    draft_ask(b, g, slot + 1, 2, &p);
    for (int s = 0; s < 2; s++)
        expect_chain(&p, s, at[s + 1], g);
}

Test(mtp, a_pass_over_several_slots_drafts_what_each_would)
{
    run(1, 3, slots_together);
    run(2, 3, slots_together);
}

/* Nothing is known before the first observed position. */
static void from_the_middle(struct draft_rig *b, struct rig *g)
{
    struct proposal p, q;
    int slot = draft_slot(b, g, 0, 0);

    draft_feed(b, g, slot, ids, 10, 16);
    draft_anchor(g, slot, ids[10]);
    draft_ask(b, g, &slot, 1, &p);
    b->d[g->rank]->ops->reset(b->d[g->rank], &g->x, g->pool, slot, 10);
    draft_ask(b, g, &slot, 1, &q);
    cr_expect(eq(int, q.len[0], CHAIN), "a chain without context is a chain");
    cr_expect(memcmp(p.draft[0], q.draft[0], sizeof(p.draft[0])) != 0);
    slot = draft_slot(b, g, 1, 0);
    draft_anchor(g, slot, ids[0]);
    draft_ask(b, g, &slot, 1, &p);
    cr_expect(eq(int, p.len[0], CHAIN), "and so is one at position 0");
}

/* As long as was asked for: the first drafts of the whole chain. */
static void shorter(struct draft_rig *b, struct rig *g)
{
    struct drafter *d = b->d[g->rank];
    int slot = draft_slot(b, g, -1, 0);

    draft_feed(b, g, slot, ids, 12, 16);
    draft_anchor(g, slot, ids[12]);
    for (int most = 0; most <= 5; most++) {
        struct proposal p = { .n = 1, .slot = { slot }, .most = most };
        int n = most == 0 || most > CHAIN ? CHAIN : most;

        d->ops->propose(d, &g->x, g->pool, &p, b->sampler[g->rank]);
        cr_assert(eq(int, g->q->ops->wait(g->q), 0));
        d->ops->collect(d, &p);
        cr_expect(eq(int, p.len[0], n));
        cr_expect(not(p.bad[0]));
        for (int j = 0; j < n; j++)
            cr_expect(eq(int, p.draft[0][j], drafts[12][j]));
    }
}

Test(mtp, a_chain_is_as_long_as_was_asked)
{
    run(2, 1, shorter);
}

Test(mtp, reset_forgets_what_lies_before)
{
    run(1, 2, from_the_middle);
}

/* ---- F-09 ------------------------------------------------------------------------------------ */

static char said[1024];

static void keep(void *arg, enum log_level level, const char *line)
{
    strncat(said, line, sizeof(said) - strlen(said) - 1);
}

Test(mtp, F_09_a_head_that_the_family_cannot_run_is_named)
{
    static const struct family_ops other = { .name = "other" };
    struct model m = { .ops = &other, .vocab = 10, .ranks = 1 };
    static const struct {
        const char *draft, *config;
        int r;
        const char *says;
    } cases[] = {
        { "mtp", "{\"num_nextn_predict_layers\": 1}", -EINVAL, "the family other has no layer" },
        { "mtp", "{\"num_nextn_predict_layers\": 1}", -EINVAL,
          "the checkpoint has no mtp drafter" },
        { "auto", "{\"num_nextn_predict_layers\": 2}", 0, "num_nextn_predict_layers is 2" },
        { "auto", "{}", 0, NULL },
        { "mtp", "{}", -EINVAL, "the checkpoint has no mtp drafter" },
    };

    log_sink(keep, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct drafter *d = NULL;
        struct json *config;

        said[0] = '\0';
        cr_assert(
            eq(int, json_parse(cases[i].config, strlen(cases[i].config), "config.json", 8, &config),
               0));
        cr_expect(eq(int, drafter_open(cases[i].draft, config, &m, &d), cases[i].r), "case %zu", i);
        cr_expect(cases[i].says ? strstr(said, cases[i].says) != NULL : said[0] == '\0',
                  "case %zu says %s", i, said);
        if (d)
            d->ops->close(d);
        json_close(config);
    }
}
