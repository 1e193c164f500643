/* drafter - the table: opening by name, what every drafter owes its caller, and the gates' two
 * drafters. */
#include "src/base/log.h"
#include "src/draft/draft_oracle.h"
#include "src/draft/drafter.h"
#include "tests/draft/draft_rig.h"
#include "tests/rig/goldens.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = { "none", "dspark", "ngram", "oracle", "random", "auto" };

#define NAMES ((int)(sizeof(names) / sizeof(names[0])))

static char said[1024];

static void keep_line(void *arg, enum log_level level, const char *line)
{
    snprintf(said, sizeof(said), "%s", line);
}

/* ---- the contract ---------------------------------------------------------------------------- */

static void expect_proposal(const struct drafter *d, const struct proposal *p, int vocab,
                            const char *name)
{
    cr_expect(d->block >= 0 && d->block < WINDOW_MAX, "%s", name);
    for (int i = 0; i < p->n; i++) {
        cr_expect(p->len[i] >= 0 && p->len[i] <= d->block, "%s proposes %d", name, p->len[i]);
        for (int j = 0; j < p->len[i]; j++) {
            cr_expect(p->draft[i][j] >= 0 && p->draft[i][j] < vocab, "%s: id %d", name,
                      p->draft[i][j]);
            cr_expect(p->conf[i][j] > 0 && p->conf[i][j] <= 1, "%s: chance %g", name,
                      (double)p->conf[i][j]);
        }
    }
}

/* Two slots with text, a third that comes and goes, proposals for each and for both. */
static void contract(struct draft_rig *b, struct rig *g)
{
    struct drafter *d = b->d[g->rank];
    size_t n;
    const int32_t *ids = golden_i32(&n, "code_short.ids");
    struct proposal p;
    int slot[3];

    for (int s = 0; s < 3; s++) {
        slot[s] = draft_slot(b, g, -1, 0);
        draft_feed(b, g, slot[s], ids, 20 + 7 * s, 16);
        draft_anchor(g, slot[s], ids[20 + 7 * s]);
    }
    slot_drop(g->pool, slot[0]);
    for (int k = 1; k <= 2; k++) {
        draft_ask(b, g, slot + 1, k, &p);
        cr_expect(eq(int, p.n, k), "%s", b->name);
        expect_proposal(d, &p, g->m->vocab, b->name);
    }
    slot[0] = draft_slot(b, g, slot[0], 0);
    draft_feed(b, g, slot[0], ids, 5, 16);
    draft_anchor(g, slot[0], ids[5]);
    draft_ask(b, g, slot, 3, &p);
    expect_proposal(d, &p, g->m->vocab, b->name);
}

Test(drafter, every_drafter_keeps_the_contract, .timeout = 60)
{
    for (int i = 0; i < NAMES; i++) {
        struct draft_rig b = { .name = names[i], .fn = contract };

        draft_rigs_run((struct rig_settings){ .ranks = 1, .slots = 3, .rows_max = 16 }, &b);
    }
}

/* ---- opening --------------------------------------------------------------------------------- */

static const struct family_ops no_family = { .name = "other" };

Test(drafter, opens_by_name_what_the_checkpoint_has)
{
    struct model m = { .ops = &no_family, .vocab = 100, .ranks = 1 };
    static const struct {
        const char *name, *opens, *says;
    } cases[] = {
        { "none", "none", NULL },
        { "auto", "none", NULL },
        { "ngram", "ngram", NULL },
        { "oracle", "oracle", NULL },
        { "random", "random", NULL },
        { "dspark", NULL, "the checkpoint has no dspark drafter" },
        { "mtp", NULL, "the checkpoint has no mtp drafter" },
        { "eagle", NULL,
          "eagle is not in this build, want one of auto, dspark, mtp, none, ngram, oracle, "
          "random" },
        { "", NULL, "is not in this build" },
    };

    log_sink(keep_line, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct drafter *d = NULL;
        int r = drafter_open(cases[i].name, NULL, &m, &d);

        cr_expect(eq(int, r, cases[i].opens ? 0 : -EINVAL), "%s", cases[i].name);
        if (cases[i].opens) {
            cr_assert(d != NULL);
            cr_expect(eq(str, (char *)d->ops->name, (char *)cases[i].opens));
            d->ops->close(d);
        } else {
            cr_expect(d == NULL && strstr(said, cases[i].says), "%s says %s", cases[i].name, said);
        }
    }
}

/* ---- oracle and random ----------------------------------------------------------------------- */

#define TEXT 200

static struct drafter *host_drafter(const char *name, struct model *m)
{
    struct drafter *d = NULL;

    *m = (struct model){ .ops = &no_family, .vocab = TEXT, .ranks = 1 };
    cr_assert(eq(int, drafter_open(name, NULL, m, &d), 0));
    return d;
}

static void ask_host(struct drafter *d, const struct slot_pool *pool, int slot, uint64_t seed,
                     struct proposal *p)
{
    struct sampler s[SLOTS_MAX] = { 0 };

    s[slot].seed = seed;
    *p = (struct proposal){ .n = 1, .slot = { slot } };
    d->ops->propose(d, NULL, pool, p, s);
    d->ops->collect(d, p);
}

Test(drafter, oracle_spoils_its_record_on_a_schedule)
{
    static const int wrong[] = { -1, 0,  -1, 0,  -1, 1,  -1, 0,  -1, 2,  -1,
                                 0,  -1, 3,  -1, 0,  -1, 4,  -1, 0,  -1, 0 };
    static struct slot_pool pool = { .slots = SLOTS_MAX };
    struct model m;
    struct drafter *d = host_drafter("oracle", &m);
    struct proposal p;
    int32_t text[TEXT];

    for (int i = 0; i < TEXT; i++)
        text[i] = TEXT - 1 - i;
    ask_host(d, &pool, 2, 0, &p);
    cr_expect(eq(int, p.len[0], 0), "nothing is recorded yet");
    cr_assert(eq(int, draft_oracle_set(d, 2, text, TEXT), 0));
    for (int i = 0; i < (int)(sizeof(wrong) / sizeof(wrong[0])); i++) {
        pool.pos[2] = 3 * i;
        ask_host(d, &pool, 2, 0, &p);
        cr_expect(eq(int, p.len[0], WINDOW_MAX - 1), "proposal %d", i);
        for (int j = 0; j < p.len[0]; j++)
            cr_expect(eq(int, p.draft[0][j] == text[3 * i + 1 + j], j != wrong[i]),
                      "proposal %d draft %d", i, j);
    }
    pool.pos[2] = TEXT - 4;
    ask_host(d, &pool, 2, 0, &p);
    cr_expect(eq(int, p.len[0], 3), "as far as the record goes");
    pool.pos[2] = TEXT + 5;
    ask_host(d, &pool, 2, 0, &p);
    cr_expect(eq(int, p.len[0], 0), "behind the record");
    pool.pos[1] = 0;
    ask_host(d, &pool, 1, 0, &p);
    cr_expect(eq(int, p.len[0], 0), "another slot has its own record");
    pool.pos[2] = 0;
    d->ops->reset(d, NULL, &pool, 2, 0);
    ask_host(d, &pool, 2, 0, &p);
    cr_expect(eq(int, p.len[0], 0), "a new request has none");
    d->ops->close(d);

    d = host_drafter("random", &m);
    log_sink(keep_line, NULL);
    cr_expect(eq(int, draft_oracle_set(d, 0, text, TEXT), -EINVAL));
    cr_expect(strstr(said, "draft random: takes no recorded text") != NULL, "%s", said);
    d->ops->close(d);
}

Test(drafter, random_ids_are_keyed_by_seed_and_position)
{
    static struct slot_pool pool = { .slots = SLOTS_MAX };
    struct model m;
    struct drafter *d = host_drafter("random", &m);
    struct proposal a, b;
    int seen[4] = { 0 };

    pool.pos[0] = 7;
    pool.pos[3] = 8;
    ask_host(d, &pool, 0, 5, &a);
    ask_host(d, &pool, 3, 5, &b);
    cr_expect(eq(int, a.len[0], WINDOW_MAX - 1));
    for (int j = 1; j < a.len[0]; j++)
        cr_expect(eq(int, a.draft[0][j], b.draft[0][j - 1]),
                  "the same position, another slot: draft %d", j);
    ask_host(d, &pool, 0, 6, &b);
    cr_expect(memcmp(a.draft[0], b.draft[0], sizeof(int32_t) * (size_t)a.len[0]) != 0,
              "another seed");
    for (int i = 0; i < 400; i++) {
        pool.pos[0] = i * WINDOW_MAX;
        ask_host(d, &pool, 0, 9, &a);
        for (int j = 0; j < a.len[0]; j++) {
            cr_assert(a.draft[0][j] >= 0 && a.draft[0][j] < m.vocab);
            seen[a.draft[0][j] * 4 / m.vocab]++;
        }
    }
    for (int i = 0; i < 4; i++)
        cr_expect(seen[i] > 1400 && seen[i] < 1600, "quarter %d of the ids: %d of 6000", i,
                  seen[i]);
    d->ops->close(d);
}
