/* speculation - what a pass that ran ahead is used for, and why not. */
#include "src/draft/speculation.h"

#include "kernels/ops.h"
#include "src/base/log.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

#define SLOT 2

static const int start[SLOTS_MAX] = { 10, 20, 30, 40 };
static const uint64_t inputs[SLOTS_MAX] = { 1, 2, 3, 4 };

/* A pass over these slots, behind windows that accepted three tokens each: the last is 100 +
 * slot. */
static void run(struct speculation *s, unsigned slots)
{
    cr_assert(eq(int, spec_launch(s, slots, start, inputs), 0));
    for (int i = 0; i < SLOTS_MAX; i++)
        if (slots >> i & 1u)
            spec_outcome(s, i, 3, 100 + i);
    spec_collected(s);
}

struct take_case {
    const char *name;
    int n_ok, landed, next; /* what the window accepted, what landed, and the last token of it */
    int anchor, pos;        /* that drafts are asked for */
    uint64_t inputs;
    enum spec_end end;
};

static const struct take_case cases[] = {
    { "all landed", 3, 3, 7, 7, 33, 3, SPEC_USED },
    { "one token, all of it", 1, 1, 7, 7, 31, 3, SPEC_USED },
    { "a stop cut the window", 3, 2, 5, 5, 32, 3, SPEC_COMMIT },
    { "the last token was replaced", 3, 3, 8, 8, 33, 3, SPEC_COMMIT },
    { "the window left the slot undecided", 0, 2, 7, 7, 32, 3, SPEC_COMMIT },
    { "a forced token is pending", 3, 3, 7, 9, 33, 3, SPEC_PENDING },
    { "another window ran in between", 3, 3, 7, 7, 34, 3, SPEC_PENDING },
    { "the request is sampled otherwise now", 3, 3, 7, 7, 33, 99, SPEC_INPUTS },
};

Test(speculation, is_used_if_it_is_the_pass_that_would_be_run)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct take_case *c = &cases[i];
        struct speculation s = { 0 };

        cr_assert(eq(int, spec_launch(&s, 1u << SLOT, start, inputs), 0));
        cr_expect(eq(int, s.state, SPEC_QUEUED));
        spec_outcome(&s, SLOT, c->n_ok, 7);
        spec_collected(&s);
        cr_expect(eq(int, s.state, SPEC_READY));
        cr_expect(eq(int, spec_commit(&s, SLOT, c->landed, c->next), c->end != SPEC_COMMIT), "%s",
                  c->name);
        cr_expect(eq(int, spec_take(&s, SLOT, c->anchor, c->pos, c->inputs), (int)c->end), "%s",
                  c->name);
        cr_expect(eq(int, s.state, SPEC_IDLE), "%s", c->name);
        cr_expect(eq(u32, s.count[c->end], 1), "%s", c->name);
        cr_expect(eq(int, spec_take(&s, SLOT, c->anchor, c->pos, c->inputs), SPEC_SLOTS),
                  "taken once");
    }
}

Test(speculation, slots_of_a_pass_are_settled_apart)
{
    struct speculation s = { 0 };

    run(&s, 0x7);
    cr_expect(spec_commit(&s, 0, 3, 100));
    cr_expect(not(spec_commit(&s, 1, 2, 55)));
    cr_expect(spec_commit(&s, 2, 3, 102));
    cr_expect(eq(int, spec_take(&s, 0, 100, 13, 1), SPEC_USED));
    cr_expect(eq(int, spec_take(&s, 1, 55, 22, 2), SPEC_COMMIT));
    cr_expect(eq(int, s.state, SPEC_READY));
    cr_expect(eq(int, spec_take(&s, 3, 1, 1, 1), SPEC_SLOTS), "one that took no part");
    spec_drop(&s, 2);
    cr_expect(eq(int, s.state, SPEC_IDLE));
    cr_expect(eq(u32, s.count[SPEC_UNUSED], 1), "its next window was copied");
    spec_drop(&s, 2);
    cr_expect(eq(u32, s.count[SPEC_UNUSED], 1));
}

Test(speculation, what_nobody_took_is_dropped_by_the_next_pass)
{
    struct speculation s = { 0 };

    run(&s, 0x3);
    run(&s, 0x4);
    cr_expect(eq(u32, s.count[SPEC_UNUSED], 2));
    cr_expect(eq(int, spec_take(&s, 0, 100, 13, 1), SPEC_SLOTS));
    spec_commit(&s, 2, 3, 102);
    cr_expect(eq(int, spec_take(&s, 2, 102, 33, 3), SPEC_USED));
}

static void quiet(void *arg, enum log_level level, const char *line)
{
}

Test(speculation, one_pass_is_on_its_way_at_a_time)
{
    struct speculation s = { 0 };

    log_sink(quiet, NULL);
    cr_assert(eq(int, spec_launch(&s, 1, start, inputs), 0));
    cr_expect(eq(int, spec_launch(&s, 2, start, inputs), -EBUSY));
    spec_outcome(&s, 0, 1, 5);
    spec_collected(&s);
    cr_expect(eq(int, spec_launch(&s, 2, start, inputs), 0));
}

/* T36: cancelled between launch and commit; the pass is settled before the slot has a new
 * request. */
Test(speculation, T36_a_cancelled_slot_leaves_nothing_to_the_next_request)
{
    for (int when = 0; when < 3; when++) {
        struct speculation s = { 0 };

        cr_assert(eq(int, spec_launch(&s, 0x3, start, inputs), 0));
        if (when == 0)
            spec_reset(&s, 0); /* before the outcome */
        spec_outcome(&s, 0, 3, 100);
        spec_outcome(&s, 1, 3, 101);
        if (when == 1)
            spec_reset(&s, 0); /* before it is collected */
        cr_expect(eq(int, spec_launch(&s, 0x1, start, inputs), -EBUSY));
        spec_collected(&s);
        if (when == 2)
            spec_reset(&s, 0); /* before its commit */
        cr_expect(eq(u32, s.count[SPEC_RESET], 1));
        cr_expect(not(spec_commit(&s, 0, 3, 100)));
        cr_expect(eq(int, spec_take(&s, 0, 100, 13, 1), SPEC_SLOTS),
                  "the new request gets nothing");
        cr_expect(spec_commit(&s, 1, 3, 101));
        cr_expect(eq(int, spec_take(&s, 1, 101, 23, 2), SPEC_USED), "the other slot does");
        cr_expect(eq(int, s.state, SPEC_IDLE));
    }
}

Test(speculation, a_slot_whose_passes_are_dropped_takes_part_every_eighth_time)
{
    struct speculation s = { 0 };
    int rounds = 0, parts = 0;

    for (; spec_wants(&s, 0x2) == 0x2 && rounds < 50; rounds++) {
        run(&s, 0x2);
        spec_commit(&s, 1, 1, 4);
        spec_take(&s, 1, 4, 21, 2);
    }
    cr_expect(eq(int, rounds, 6), "0.8^6 is below 0.3");
    for (int i = 0; i < 79; i++)
        parts += spec_wants(&s, 0x2) != 0;
    cr_expect(eq(int, parts, 10));
    for (int i = 0; i < 3; i++) {
        run(&s, 0x2);
        spec_commit(&s, 1, 3, 101);
        cr_expect(eq(int, spec_take(&s, 1, 101, 23, 2), SPEC_USED));
    }
    cr_expect(eq(uint, spec_wants(&s, 0x2), 0x2), "hits bring it back");
    spec_reset(&s, 1);
    cr_expect(eq(uint, spec_wants(&s, 0xf), 0xf), "a new request starts with a clean record");
    cr_expect(eq(uint, spec_wants(&s, 0), 0));
}

Test(speculation, inputs_are_what_a_pass_samples_with)
{
    struct sampler a = { .temperature = 0.7, .top_p = 0.9, .seed = 5, .top_k = 20 }, b = a;

    cr_expect(eq(u64, spec_inputs(&a), spec_inputs(&b)));
    b.seed = 6;
    cr_expect(ne(u64, spec_inputs(&a), spec_inputs(&b)));
    b = a;
    b.min_p = 0.1;
    cr_expect(ne(u64, spec_inputs(&a), spec_inputs(&b)));
    b = a;
    b.frequency = 1;
    cr_expect(eq(u64, spec_inputs(&a), spec_inputs(&b)), "a drafter knows no penalties");
    for (int e = 0; e < SPEC_ENDS; e++)
        cr_expect(spec_end_name((enum spec_end)e) != NULL);
}
