/* depth - vectors of the objective, the settled table, the history and the calibration. */
#include "src/draft/depth.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

/* C(R) = 21.8 + 4.65 (R - 1) ms, D = 3.5 ms: the figures of docs/DECODE.md "pricing". */
static struct cost_table straight(void)
{
    struct cost_table t = { .rows = 16 };

    for (int r = 1; r <= t.rows; r++)
        t.window_us[r] = 21800 + 4650 * (r - 1);
    for (int s = 1; s <= SLOTS_MAX; s++)
        t.draft_us[s] = 3500;
    return t;
}

struct choose_case {
    const char *name;
    double q[5];
    int n, k;
    double surplus;
};

static const struct choose_case choose_cases[] = {
    { "nothing offered", { 0 }, 0, 0, -0.456 },
    { "one good draft", { .9 }, 1, 1, 0.134 },
    { "two good drafts", { .9, .85 }, 2, 2, 0.588 },
    { "three good drafts", { .9, .85, .8 }, 3, 3, 0.890 },
    { "four good drafts", { .9, .85, .8, .75 }, 4, 4, 1.038 },
    { "five good drafts", { .9, .85, .8, .75, .7 }, 5, 5, 1.049 },
    { "even odds pay once", { .5, .45, .4, .35, .3 }, 5, 1, -0.266 },
    { "a bad first draft", { .25, .9, .9, .9, .9 }, 1, 0, -0.456 },
    { "just below the price", { .310 }, 1, 0, -0.456 },
    { "just above the price", { .311 }, 1, 1, -0.455 },
    { "good drafts behind a bad one", { .5, .1, .99, .99, .99 }, 5, 1, -0.266 },
};

Test(depth, takes_the_largest_surplus)
{
    struct cost_table t = straight();
    struct depth_history none = { 0 };
    double lambda = depth_lambda(&none, &t);

    cr_expect(ieee_ulp_eq(dbl, lambda, 2.0 / 29950, 2));
    for (size_t i = 0; i < sizeof(choose_cases) / sizeof(choose_cases[0]); i++) {
        const struct choose_case *c = &choose_cases[i];
        int32_t us = -1;
        double E = -1;
        int k = depth_choose(c->q, c->n, lambda, &t, &E, &us);

        cr_expect(eq(int, k, c->k), "%s", c->name);
        cr_expect(eq(i32, us, cost_window(&t, 1 + c->k)), "%s", c->name);
        cr_expect(epsilon_eq(dbl, E - lambda * us, c->surplus, 6e-4), "%s", c->name);
        cr_expect(eq(int, depth_choose(c->q, c->n, lambda, &t, NULL, NULL), c->k), "%s", c->name);
    }
}

Test(depth, a_tie_takes_the_smaller_depth)
{
    struct cost_table t = { .window_us = { 0, 4, 6, 8 }, .draft_us = { 0, 1 }, .rows = 3 };
    const double q[] = { .5, 1, 1 };

    /* a row costs 2 us: at 1/4 token a us the first draft earns exactly what it costs, and so do
     * the others */
    cr_expect(eq(int, depth_choose(q, 1, .25, &t, NULL, NULL), 0));
    cr_expect(eq(int, depth_choose(q, 3, .25, &t, NULL, NULL), 0));
    cr_expect(eq(int, depth_choose(q, 3, .2499, &t, NULL, NULL), 3));
}

struct settle_case {
    const char *name;
    int rows;
    int32_t in[6], out[6];
};

static const struct settle_case settle_cases[] = {
    { "rising", 4, { 10, 11, 11, 20 }, { 10, 11, 11, 20 } },
    { "one step down", 4, { 10, 8, 9, 20 }, { 9, 9, 9, 20 } },
    { "falling", 3, { 30, 20, 10 }, { 20, 20, 20 } },
    { "pools reach back", 6, { 5, 7, 6, 6, 4, 9 }, { 5, 5, 5, 5, 5, 9 } },
    { "below one", 3, { 0, -5, 3 }, { 1, 1, 3 } },
    { "large", 2, { 2147483647, 2147483645 }, { 2147483646, 2147483646 } },
    { "one entry", 1, { 7 }, { 7 } },
};

Test(depth, pools_neighbours_that_fall)
{
    for (size_t i = 0; i < sizeof(settle_cases) / sizeof(settle_cases[0]); i++) {
        const struct settle_case *c = &settle_cases[i];
        struct cost_table t = { .rows = c->rows };

        memcpy(t.window_us + 1, c->in, sizeof(int32_t) * (size_t)c->rows);
        cost_settle(&t);
        for (int r = 1; r <= c->rows; r++)
            cr_expect(eq(i32, t.window_us[r], c->out[r - 1]), "%s, row %d", c->name, r);
    }
}

Test(depth, a_pass_of_more_slots_is_never_cheaper)
{
    struct cost_table t = { .window_us = { 0, 5 }, .draft_us = { 0, 30, 20, 0, 40 }, .rows = 1 };
    const int32_t want[] = { 0, 30, 30, 30, 40 };

    cost_settle(&t);
    for (int s = 1; s <= SLOTS_MAX; s++)
        cr_expect(eq(i32, t.draft_us[s], want[s]), "%d slots", s);
}

Test(depth, prices_rows_behind_the_table_by_its_last_slope)
{
    struct cost_table t = { .window_us = { 0, 100, 130, 150 }, .rows = 3 };
    static const struct {
        int rows;
        int32_t us;
    } cases[] = { { 0, 100 }, { 1, 100 }, { 3, 150 }, { 4, 170 }, { 64, 150 + 61 * 20 } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cr_expect(eq(i32, cost_window(&t, cases[i].rows), cases[i].us), "%d rows", cases[i].rows);
    t.rows = 1;
    cr_expect(eq(i32, cost_window(&t, 9), 100), "one entry has no slope");
    t.rows = 0;
    cr_expect(eq(i32, cost_window(&t, 9), 1), "an empty table");
    t = (struct cost_table){ .window_us = { 0, 1, 2000000000 }, .rows = 2 };
    cr_expect(eq(i32, cost_window(&t, 64), INT32_MAX), "more than fits");
}

Test(depth, lambda_is_the_rate_of_the_last_sixteen_rounds)
{
    struct cost_table t = straight();
    struct depth_history h = { 0 };

    depth_note(&h, &t, 6, true, 6);
    cr_expect(epsilon_eq(dbl, depth_lambda(&h, &t), 6.0 / (21800 + 5 * 4650 + 3500), 1e-15));
    depth_note(&h, &t, 1, false, 1);
    cr_expect(
        epsilon_eq(dbl, depth_lambda(&h, &t), 7.0 / (21800 + 5 * 4650 + 3500 + 21800), 1e-15));
    for (int i = 0; i < DEPTH_ROUNDS; i++)
        depth_note(&h, &t, 2, true, 2);
    cr_expect(epsilon_eq(dbl, depth_lambda(&h, &t), 2.0 / 29950, 1e-15), "old rounds are gone");
}

Test(depth, a_new_calibration_changes_nothing)
{
    struct conf_calibration c = { 0 };

    cr_expect(eq(dbl, conf_q(&c, false, 0, 0.6), 0.6));
    cr_expect(eq(dbl, conf_q(&c, true, WINDOW_MAX - 1, 0.25), 0.25));
    cr_expect(eq(dbl, conf_q(&c, true, 0, 0.999), 0.995), "never certain");
}

Test(depth, calibration_sees_up_to_the_first_rejection)
{
    struct conf_calibration c = { 0 };
    const float p[] = { .5f, .75f, .25f };

    conf_note(&c, false, p, 3, 1);
    cr_expect(epsilon_eq(dbl, conf_q(&c, false, 0, .5), .5 * 3 / 2.5, 1e-15), "kept");
    cr_expect(epsilon_eq(dbl, conf_q(&c, false, 1, .5), .5 * 2 / 2.75, 1e-15), "rejected");
    cr_expect(eq(dbl, conf_q(&c, false, 2, .5), .5), "behind the rejection");
    cr_expect(eq(dbl, conf_q(&c, true, 0, .5), .5), "sampled requests have their own");

    conf_note(&c, false, p, 2, 2);
    cr_expect(
        epsilon_eq(dbl, conf_q(&c, false, 0, .5), .5 * (.97 + 1 + 2) / (.97 * .5 + .5 + 2), 1e-15));
    cr_expect(epsilon_eq(dbl, conf_q(&c, false, 1, .5), .5 * 3 / (.97 * .75 + .75 + 2), 1e-15));
    cr_expect(eq(dbl, c.prob[0][2], 0), "depth 2 never reached the third");

    conf_note(&c, true, p, 0, 0);
    cr_expect(eq(dbl, c.prob[1][0], 0), "nothing verified, nothing learnt");
}

Test(depth, calibration_factor_is_bounded)
{
    struct conf_calibration c = { 0 };
    const float sure = .99f, unsure = .01f;

    for (int i = 0; i < 400; i++) {
        conf_note(&c, false, &sure, 1, 0);
        conf_note(&c, true, &unsure, 1, 1);
    }
    cr_expect(epsilon_eq(dbl, conf_q(&c, false, 0, .9), .9 * .2, 1e-12));
    cr_expect(epsilon_eq(dbl, conf_q(&c, true, 0, .2), .6, 1e-12));
    cr_expect(eq(dbl, conf_q(&c, true, 0, .9), .995));
}

/* ---- without confidences --------------------------------------------------------------------- */

Test(depth, running_acceptance_starts_from_its_prior)
{
    struct accept_means m = { 0 };

    cr_expect(eq(dbl, means_q(&m, true, 0), 0.7));
    cr_expect(eq(dbl, means_q(&m, false, 3), 0.6));
    means_note(&m, true, 3, 1);
    cr_expect(epsilon_eq(dbl, means_q(&m, true, 0), 0.7 + 0.15 * 0.3, 1e-15), "kept");
    cr_expect(epsilon_eq(dbl, means_q(&m, true, 1), 0.7 - 0.15 * 0.7, 1e-15), "rejected");
    cr_expect(eq(dbl, means_q(&m, true, 2), 0.7), "behind the rejection");
    means_note(&m, false, 3, 3);
    cr_expect(epsilon_eq(dbl, means_q(&m, true, 2), 0.6 + 0.15 * 0.4, 1e-15),
              "first seen in a shared round");
    for (int i = 0; i < 200; i++)
        means_note(&m, true, 2, 2);
    cr_expect(eq(dbl, means_q(&m, true, 0), 0.995), "never certain");
}

Test(depth, every_sixteenth_round_runs_at_full_depth)
{
    struct accept_means m = { 0 };

    for (int i = 1; i <= 64; i++) {
        cr_expect(eq(int, means_probe(&m), i % 16 == 0), "round %d", i);
        means_note(&m, true, 0, 0);
    }
}

Test(depth, lambda_of_the_last_rounds_forgets_older_ones)
{
    struct cost_table t = straight();
    struct depth_history h = { 0 };

    cr_expect(eq(dbl, depth_lambda_last(&h, &t, 8), 2.0 / 29950));
    for (int i = 0; i < 20; i++)
        depth_note(&h, &t, 1, false, 1);
    for (int i = 0; i < 8; i++)
        depth_note(&h, &t, 2, false, 2);
    cr_expect(epsilon_eq(dbl, depth_lambda_last(&h, &t, 8), 2.0 / 26450, 1e-15));
    cr_expect(epsilon_eq(dbl, depth_lambda(&h, &t), 24.0 / (8 * 26450 + 8 * 21800), 1e-15));
}

/* ---- shared rounds --------------------------------------------------------------------------- */

/* Rows 17 .. 24 cost what 24 cost: the bucket is paid. */
static struct cost_table stepped(void)
{
    struct cost_table t = { .rows = 32, .draft_us = { 0, 3500 } };

    for (int r = 1; r <= 32; r++)
        t.window_us[r] = 20000 + 4000 * (r <= 16 ? r : r <= 24 ? 24 : 32);
    return t;
}

static const double good[] = { .95, .9, .9, .85, .8, .8, .8 }, poor[] = { .4, .3, .3 };

struct fill_case {
    const char *name;
    struct depth_share in[SLOTS_MAX];
    int bucket, k[SLOTS_MAX], added;
};

static const struct fill_case fill_cases[] = {
    { "no padding",
      { { good, 7, 5, 5 }, { good, 7, 3, 4 }, { good, 7, 2, 3.5 }, { good, 7, 2, 3 } },
      16,
      { 5, 3, 2, 2 },
      0 },
    { "padding goes to the likeliest drafts, ties to the first slot",
      { { good, 7, 5, 5 }, { good, 7, 3, 4 }, { good, 7, 2, 3.5 }, { good, 7, 3, 3 } },
      24,
      { 5, 5, 5, 5 },
      7 },
    { "slow streams get none",
      { { good, 7, 5, 5 }, { poor, 3, 1, 1.5 }, { good, 7, 5, 2.9 }, { good, 7, 2, 2 } },
      24,
      { 7, 1, 5, 2 },
      2 },
    { "no more than was offered",
      { { good, 6, 5, 5 }, { good, 4, 3, 4 }, { good, 3, 3, 4 }, { good, 2, 2, 4 } },
      24,
      { 6, 4, 3, 2 },
      2 },
    { "a gain below one in a hundred is left",
      { { poor, 3, 2, 3 }, { good, 5, 5, 5 }, { good, 5, 5, 5 }, { good, 1, 1, 5 } },
      24,
      { 2, 5, 5, 1 },
      0 },
};

Test(depth, padding_of_a_paid_bucket_is_given_away)
{
    struct cost_table t = stepped(), linear = straight();

    for (size_t i = 0; i < sizeof(fill_cases) / sizeof(fill_cases[0]); i++) {
        const struct fill_case *c = &fill_cases[i];
        struct depth_share s[SLOTS_MAX];

        memcpy(s, c->in, sizeof(s));
        cr_expect(eq(int, depth_fill(s, SLOTS_MAX, c->bucket, &t), c->added), "%s", c->name);
        for (int k = 0; k < SLOTS_MAX; k++)
            cr_expect(eq(int, s[k].k, c->k[k]), "%s, slot %d", c->name, k);
    }
    for (size_t i = 0; i < sizeof(fill_cases) / sizeof(fill_cases[0]); i++) {
        struct depth_share s[SLOTS_MAX];

        memcpy(s, fill_cases[i].in, sizeof(s));
        for (int k = 0; k < SLOTS_MAX; k++)
            s[k].k = s[k].offered < 5 ? s[k].offered : 5;
        cr_expect(eq(int, depth_fill(s, SLOTS_MAX, 32, &linear), 0),
                  "%s: rows that cost what they earn", fill_cases[i].name);
    }
}

/* ---- skipped passes -------------------------------------------------------------------------- */

Test(depth, gain_is_the_surplus_of_drafting)
{
    struct cost_table t = straight();
    double lambda = 2.0 / 29950;
    const double q[] = { .9, .85, .8, .75, .7 }, none[] = { .25 };

    cr_expect(epsilon_eq(dbl, depth_gain(q, 5, lambda, &t), 1.049 + 0.456, 2e-3));
    cr_expect(eq(dbl, depth_gain(none, 1, lambda, &t), 0));
    cr_expect(eq(dbl, depth_gain(NULL, 0, lambda, &t), 0));
}

Test(depth, a_chain_grows_while_the_next_cell_pays)
{
    struct cost_table t = straight();
    double lambda = 2.0 / 29950; /* a row costs 0.31 tokens, a cell of 1 ms 0.067 */
    const double q[] = { .9, .8, .7, .6, .9 }, low[] = { .37, .9 };

    cr_expect(eq(int, depth_chain(q, 5, lambda, 1000, &t), 3), "0.302 is below 0.377");
    cr_expect(eq(int, depth_chain(q, 2, lambda, 1000, &t), 2));
    cr_expect(eq(int, depth_chain(low, 2, lambda, 1000, &t), 0));
    cr_expect(eq(int, depth_chain(low, 2, lambda, 100, &t), 2), "cheap cells");
}

Test(depth, poor_passes_are_skipped_and_then_probed)
{
    struct pass_skip s = { 0 };
    const double lambda = 1e-4;
    int rounds = 0, passes = 0;

    /* a pass costs 0.35 tokens and earns 0.3 */
    for (; rounds < 16; rounds++) {
        cr_expect(pass_wanted(&s), "round %d", rounds);
        pass_note(&s, 0.3, lambda, 3500);
    }
    for (int probes = 0; probes < 3; probes++) {
        for (int i = 0; i < SKIP_ROUNDS; i++)
            cr_expect(not(pass_wanted(&s)), "probe %d, round %d", probes, i);
        cr_expect(pass_wanted(&s), "probe %d", probes);
        pass_note(&s, probes < 2 ? 0.3 : 0.4, lambda, 3500);
    }
    for (int i = 0; i < 15; i++) {
        passes += pass_wanted(&s);
        pass_note(&s, 0, lambda, 3500);
    }
    cr_expect(eq(int, passes, 15), "a probe that pays begins a new count");
    cr_expect(pass_wanted(&s));
    pass_note(&s, 0, lambda, 3500);
    cr_expect(not(pass_wanted(&s)));
}

Test(depth, passes_that_pay_are_never_skipped)
{
    struct pass_skip s = { 0 };

    for (int i = 0; i < 500; i++) {
        cr_expect(pass_wanted(&s));
        pass_note(&s, i % 2 ? 0 : 0.71, 1e-4, 3500); /* 0.355 on average */
    }
}
