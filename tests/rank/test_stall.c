#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

#include "src/base/clock.h"
#include "src/rank/plan.h"
#include "src/rank/stall.h"

#define LIMIT_MS 500

static const struct progress_view idle = { .begun = 7, .ended = 7, .round = 3 };
static const struct progress_view idle_behind = { .begun = 6, .ended = 6, .round = 3 };
static const struct progress_view computes = { .begun = 7,
                                               .ended = 6,
                                               .round = 3,
                                               .order = PLAN_ROUND,
                                               .phase = PHASE_WINDOW,
                                               .posted = 40,
                                               .done = 40 };
static const struct progress_view idle_level = {
    .begun = 7, .ended = 7, .round = 3, .posted = 40, .done = 40
};
static const struct progress_view exchanges = { .begun = 7,
                                                .ended = 6,
                                                .round = 3,
                                                .order = PLAN_ROUND,
                                                .phase = PHASE_WINDOW,
                                                .posted = 41,
                                                .done = 40 };
static const struct progress_view sends = {
    .begun = 8, .ended = 7, .round = 3, .order = PLAN_ROUND, .phase = PHASE_PLAN
};

/* Where ranks 0 and 1 are and for how long they have been there; who is to blame, "" for nobody. */
static const struct stall_case {
    const char *name;
    const struct progress_view *at[2];
    int ms[2];
    bool whole;
    const char *blame;
} cases[] = {
    { "nothing to do", { &idle, &idle }, { 9000, 9000 }, true, "" },
    { "a long window that moves", { &exchanges, &computes }, { 499, 499 }, true, "" },
    { "rank 1 computes for ever",
      { &exchanges, &computes },
      { 600, 600 },
      true,
      "rank 1 has not got on for 500 ms: round 3, order ROUND, phase window" },
    { "rank 0 computes for ever",
      { &computes, &exchanges },
      { 600, 600 },
      true,
      "rank 0 has not got on" },
    { "seen by a rank that does not see all",
      { &computes, &exchanges },
      { 600, 600 },
      false,
      "rank 0 has not got on" },
    { "rank 1 has only just come here", { &exchanges, &computes }, { 600, 100 }, true, "" },
    { "an order is lost",
      { &exchanges, &idle_behind },
      { 600, 9000 },
      true,
      "rank 1 has not got order 7 in 500 ms; rank 0: round 3" },
    { "the last exchange is lost, rank 1 is past it",
      { &exchanges, &idle_level },
      { 600, 9000 },
      true,
      "ranks wait for each other for 500 ms" },
    { "an exchange is lost",
      { &exchanges, &exchanges },
      { 600, 600 },
      true,
      "ranks wait for each other for 500 ms" },
    { "others may be late", { &exchanges, &exchanges }, { 600, 600 }, false, "" },
    { "no room for an order, the reader computes",
      { &sends, &computes },
      { 600, 600 },
      true,
      "rank 1 has not got on" },
    { "no room for an order, the reader moves", { &sends, &computes }, { 600, 10 }, true, "" },
    { "rank 1 was never heard of",
      { &exchanges, NULL },
      { 600, 0 },
      true,
      "ranks wait for each other" },
};

Test(stall, the_rank_that_waits_for_nobody_is_to_blame)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct stall_case *c = &cases[i];
        const int64_t now = 100 * NS_PER_S;
        struct stall s = { 0 };
        char text[256] = "";
        int r;

        for (int rank = 0; rank < 2; rank++)
            if (c->at[rank]) {
                stall_note(&s, rank, c->at[rank], now - c->ms[rank] * NS_PER_MS);
                stall_note(&s, rank, c->at[rank], now); /* said again: it has not moved */
            }
        r = stall_find(&s, c->whole, LIMIT_MS, now, text, sizeof(text));
        cr_expect(eq(int, r, c->blame[0] ? 0 : 1), "%s: %s", c->name, text);
        cr_expect(strncmp(text, c->blame, strlen(c->blame)) == 0, "%s: %s", c->name, text);
    }
}

Test(stall, time_in_which_this_process_did_not_run_is_nobodys)
{
    struct stall s = { 0 };
    char text[256];

    stall_note(&s, 1, &computes, NS_PER_S);
    cr_expect(eq(int, stall_find(&s, true, LIMIT_MS, 2 * NS_PER_S, text, sizeof(text)), 0));
    stall_excuse(&s, 2 * NS_PER_S);
    cr_expect(eq(int, stall_find(&s, true, LIMIT_MS, 2 * NS_PER_S, text, sizeof(text)), 1));
    /* and ranks that were never heard of, or are not there, stay so */
    stall_note(&s, 1, &exchanges, 3 * NS_PER_S);
    stall_excuse(&s, 4 * NS_PER_S);
    cr_expect(eq(int, stall_find(&s, true, LIMIT_MS, 5 * NS_PER_S, text, sizeof(text)), 0));
    cr_expect(strncmp(text, "ranks wait for each other", 25) == 0, "%s", text);
}
