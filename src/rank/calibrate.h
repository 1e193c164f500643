/* calibrate - measures what windows and draft passes cost on these ranks, before the first
 * request. */
#ifndef TANDEM_RANK_CALIBRATE_H
#define TANDEM_RANK_CALIBRATE_H

#include "src/draft/depth.h"
#include "src/rank/round.h"

/* calibrate_run - windows of a fixed text behind a fixed prompt, dropped each time so that every
 * run sees the same state; then draft passes by slots. Windows of one slot have 1 .. `rows` rows,
 * each measured; wider ones are shared by two slots and more, less what a further slot costs, with
 * straight lines between. Medians; rank 0's own, whose windows end when the slowest rank's do.
 *
 * in       rank 0, no request in any slot, a drafter that proposes
 * errors   1 the context is too short to measure in; of round.h */
int calibrate_run(struct rounds *r, struct cost_table *out);

#endif
