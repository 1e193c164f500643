/* depth - how many drafts of a proposal are worth verifying.
 *
 * Maximises E(k) - lambda C(1 + k) with E(k) = 1 + sum of prod q, ties to the smaller k: tokens per modelled
 * time in the long run. No clock is read: the answer is a function of the cost table, the confidences and the
 * history, so it is the same on every machine. source  docs/DECODE.md "pricing"
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
    int32_t draft_us[SLOTS_MAX + 1];      /* [slots] */
    int rows;                             /* entries measured; behind them the slope of the last two */
};

/* cost_window - modelled time of a window of `rows` rows. */
int32_t cost_window(const struct cost_table *t, int rows);

/* cost_settle - make entries non-decreasing by pooling neighbours that are not, and at least 1. */
void cost_settle(struct cost_table *t);

/* The last 16 rounds of a stream: what lambda is made of. */
struct depth_history {
    int tokens[16];
    int32_t us[16];
    int n, at;
};

void depth_note(struct depth_history *h, const struct cost_table *t, int rows, bool drafted, int tokens);

/* depth_lambda - tokens a modelled microsecond; 2 / (C(2) + D) without a history. */
double depth_lambda(const struct depth_history *h, const struct cost_table *t);

/* depth_choose - k in 0 .. n for chances q[0 .. n - 1].
 * out      E and the modelled us of the choice, for the log; either may be NULL */
int depth_choose(const double *q, int n, double lambda, const struct cost_table *t, double *E, int32_t *us);

/* Calibrated confidences: decayed sums by draft position, apart for greedy and sampled requests. */
struct conf_calibration {
    double kept[2][WINDOW_MAX], prob[2][WINDOW_MAX];
};

/* conf_q - min(p * clamp((kept + 2) / (prob + 2), 0.2, 3), 0.995) */
double conf_q(const struct conf_calibration *c, bool sampled, int position, double p);

/* conf_note - a round verified k drafts with raw chances p and kept a of them. */
void conf_note(struct conf_calibration *c, bool sampled, const float *p, int k, int a);

#endif
