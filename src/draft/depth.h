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

/* depth_lambda_last - the same over the newest `rounds` of them: copy windows are priced against
 * the last 8 rounds that copied nothing, noted in a history of their own. */
double depth_lambda_last(const struct depth_history *h, const struct cost_table *t, int rounds);

/* depth_expect - E of k drafts: tokens that a window of their rows lands. */
double depth_expect(const double *q, int k);

/* depth_choose - k in 0 .. n for chances q[0 .. n - 1].
 * out      E and the modelled us of the choice; either may be NULL */
int depth_choose(const double *q, int n, double lambda, const struct cost_table *t, double *E,
                 int32_t *us);

/* depth_chain - cells worth running for a drafter whose every draft costs a pass of its own, before
 * any is drafted: up to the first whose chance is worth less than its cell and its row. */
int depth_chain(const double *q, int n, double lambda, int32_t cell_us, const struct cost_table *t);

/* depth_gain - what the best depth earns over verifying nothing: max of the surplus, less that of
 * 0. */
double depth_gain(const double *q, int n, double lambda, const struct cost_table *t);

/* ---- shared rounds --------------------------------------------------------------------------- */

/* What a slot of a shared round chose for itself. */
struct depth_share {
    const double *q; /* of its offered drafts */
    int offered, k;
    double rate; /* tokens a round of the stream, of late */
};

#define SHARE_RATE 3.0  /* streams that may take padding */
#define SHARE_GAIN 1.01 /* of tokens per modelled time, at least */

/* depth_fill - padding rows of a bucket run anyway: give them to streams with at least SHARE_RATE
 * tokens a round, one draft after the other by its chance of being reached and accepted, ties to
 * the first slot, as many as make tokens per modelled time best, if that rises by SHARE_GAIN.
 * in, out  share[n].k; bucket: rows of the padded window
 * out      drafts added */
int depth_fill(struct depth_share *share, int n, int bucket, const struct cost_table *t);

/* ---- skipped passes -------------------------------------------------------------------------- */

#define SKIP_ROUNDS 8

/* Whether a draft pass is worth its time. A stream whose passes earned less than they cost over the
 * last 16 rounds goes without for SKIP_ROUNDS rounds, then tries one: a pass that pays begins a new
 * count, another costs SKIP_ROUNDS rounds more. Zeros are new.
 *
 *   WATCH --16 poor rounds--> SKIP --8 rounds--> PROBE --poor--> SKIP
 *     ^------------------------------------------- pays */
struct pass_skip {
    double gain[DEPTH_ROUNDS], price[DEPTH_ROUNDS];
    int n, at;
    int left; /* rounds without a pass still to come */
    bool probe;
};

/* pass_wanted - once a round that could have one: whether it gets a pass. */
bool pass_wanted(struct pass_skip *s);

/* pass_note - a pass was made and its drafts were priced: depth_gain of them; draft_us is what it
 * cost. */
void pass_note(struct pass_skip *s, double gain, double lambda, int32_t draft_us);

/* ---- chances --------------------------------------------------------------------------------- */

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

/* Running acceptance by position, for a drafter without confidences. Zeros are new. */
struct accept_means {
    double mean[WINDOW_MAX];
    bool seen[WINDOW_MAX];
    int rounds;
};

#define MEANS_PROBE 16

/* means_q - chance of the draft at a position: the exponential mean, at first 0.7, in shared rounds
 * 0.6. */
double means_q(const struct accept_means *m, bool alone, int position);

/* means_probe - whether this round verifies all it is offered, so that late positions stay
 * measured: every MEANS_PROBE-th. */
bool means_probe(const struct accept_means *m);

/* means_note - a round verified k drafts and kept a. */
void means_note(struct accept_means *m, bool alone, int k, int a);

#endif
