/* watch - F-09: a drafter that does not draft, or drafts badly, is noticed. */
#include "src/draft/watch.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

struct watch_case {
    const char *name;
    bool sampled;
    int proposed, k, kept_of[4]; /* accepted drafts, round by round */
    enum watch_verdict verdict;
    const char *says;
};

static const struct watch_case cases[] = {
    { "code",
      false,
      5,
      3,
      { 3, 2, 3, 0 },
      WATCH_FINE,
      "draft dspark: acceptance by position 0.75 1.00 0.67 over 200 rounds" },
    { "prose",
      false,
      5,
      2,
      { 0, 1, 0, 1 },
      WATCH_LOW,
      "acceptance by position 0.50 0.00 over 200 rounds; greedy position 1 has 0.50, below 0.60" },
    { "sampled prose is no warning", true, 5, 2, { 0, 1, 0, 1 }, WATCH_FINE, "0.50 0.00" },
    { "offered and never verified", false, 5, 0, { 0 }, WATCH_FINE, "acceptance by position over" },
    { "F-09: loaded and silent",
      false,
      0,
      0,
      { 0 },
      WATCH_SILENT,
      "200 rounds and not one draft proposed" },
};

Test(watch, F_09_says_once_how_a_drafter_does)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct watch_case *c = &cases[i];
        struct draft_watch w = { 0 };
        char line[256] = "";

        for (int r = 0; r < WATCH_ROUNDS; r++) {
            cr_expect(eq(int, watch_verdict(&w, "dspark", line, sizeof(line)), WATCH_QUIET));
            watch_note(&w, c->sampled, c->proposed, c->k, c->kept_of[r % 4]);
        }
        cr_expect(eq(int, watch_verdict(&w, "dspark", line, sizeof(line)), (int)c->verdict), "%s",
                  c->name);
        cr_expect(strstr(line, c->says) != NULL, "%s says %s", c->name, line);
        cr_expect(eq(int, watch_verdict(&w, "dspark", line, sizeof(line)), WATCH_QUIET), "once");
    }
}

Test(watch, a_line_is_cut_to_its_room)
{
    struct draft_watch w = { 0 };
    char line[40];

    for (int r = 0; r < WATCH_ROUNDS; r++)
        watch_note(&w, false, 15, 15, 15);
    watch_verdict(&w, "dspark", line, sizeof(line));
    cr_expect(eq(sz, strlen(line), sizeof(line) - 1));
}

/* 200 rounds of a slot that keeps `kept` of every hundred drafts. */
static int soak(struct slot_alarm *a, int slot, int kept)
{
    int raised = 0;

    for (int r = 0; r < WATCH_ROUNDS; r++)
        raised += alarm_note(a, slot, 1, r % 100 < kept, false);
    return raised;
}

Test(watch, T33_a_slot_that_lost_its_drafts_is_told_from_weather)
{
    struct slot_alarm a[SLOTS_MAX] = { 0 };

    cr_expect(eq(int, soak(a, 0, 0), 0), "nobody else to compare with");
    cr_expect(eq(int, soak(a, 1, 5), 0), "neither good nor hopeless");
    cr_expect(eq(int, soak(a, 0, 1), 0), "weather: the other is no better than poor");
    cr_expect(eq(int, soak(a, 2, 60), 0));
    cr_expect(eq(int, soak(a, 0, 1), 1));
    cr_expect(eq(int, soak(a, 0, 0), 0), "said once");
    cr_expect(eq(int, soak(a, 1, 2), 0), "two in a hundred are not under it");
    a[0] = (struct slot_alarm){ 0 };
    cr_expect(eq(int, soak(a, 0, 50), 0), "a new request");
    cr_expect(eq(int, soak(a, 2, 0), 1));
    cr_expect(eq(int, alarm_note(a, 0, 0, 0, false), 0));
}

Test(watch, T33_a_number_that_is_not_finite_ends_drafting_at_once)
{
    struct slot_alarm a[SLOTS_MAX] = { 0 };

    cr_expect(eq(int, alarm_note(a, 3, 4, 2, false), 0));
    cr_expect(eq(int, alarm_note(a, 3, 0, 0, true), 1));
    cr_expect(eq(int, alarm_note(a, 3, 0, 0, true), 0));
}
