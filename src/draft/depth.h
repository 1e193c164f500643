/* depth - how many drafts of a proposal are worth verifying.
 *
 * Maximises E(k) - lambda C(1 + k) with E(k) = 1 + sum of prod q, ties to the smaller k: tokens per
 * modelled time in the long run. No clock is read: the answer is a function of the cost table, the
 * confidences and the history, so it is the same on every machine. source  docs/DECODE.md "pricing"
 */
#ifndef TANDEM_DRAFT_DEPTH_H
#define TANDEM_DRAFT_DEPTH_H

#include "src/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define COST_ROWS_MAX 64

/* Modelled cost of a window by rows and of a draft pass by slots, in microseconds, at least 1. */
struct cost_table {
    int32_t window_us[COST_ROWS_MAX + 1]; /* [rows], entry 0 unused, non-decreasing */
    int32_t draft_us[SLOTS_MAX + 1];      /* [slots], entry 0 unused, non-decreasing */
    int rows; /* entries measured; behind them the slope of the last two */
};

/* cost_window - modelled time of a window of `rows` rows; 1 for a table without entries. */
int32_t cost_window(const struct cost_table *t, int rows);

/* cost_settle - make a measured table fit for pricing: neighbours of window_us that decrease become
 * their common mean, rounded down, and a draft pass costs no less than one of fewer slots (0: not
 * measured). */
void cost_settle(struct cost_table *t);

/* The last 16 rounds of a stream: what lambda is made of. All zeros is a new stream. */
#define DEPTH_ROUNDS 16
struct depth_history {
    int tokens[DEPTH_ROUNDS];
    int32_t us[DEPTH_ROUNDS];
    int n, at;
};

/* depth_note - a round ran a window of `rows` rows, with a draft pass or without, and landed
 * `tokens`. */
void depth_note(struct depth_history *h, const struct cost_table *t, int rows, bool drafted,
                int tokens);

/* depth_lambda - tokens a modelled microsecond; 2 / (C(2) + D) without a history. */
double depth_lambda(const struct depth_history *h, const struct cost_table *t);

/* depth_choose - k in 0 .. n for chances q[0 .. n - 1].
 * out      E and the modelled us of the choice, for the log; either may be NULL */
int depth_choose(const double *q, int n, double lambda, const struct cost_table *t, double *E,
                 int32_t *us);

/* Calibrated confidences: decayed sums by draft position, apart for greedy and sampled requests,
 * because the head was trained on agreement of distributions and greedy agreement is another event.
 * Zeros are new. */
struct conf_calibration {
    double kept[2][WINDOW_MAX], prob[2][WINDOW_MAX];
};

/* conf_q - min(p * clamp((kept + 2) / (prob + 2), 0.2, 3), 0.995); position 0 is the first
 * draft. */
double conf_q(const struct conf_calibration *c, bool sampled, int position, double p);

/* conf_note - a round verified k drafts with raw chances p and kept a of them: positions 0 ..
 * min(k, a + 1) - 1 were seen, what lies behind the first rejection was not. */
void conf_note(struct conf_calibration *c, bool sampled, const float *p, int k, int a);

#endif
