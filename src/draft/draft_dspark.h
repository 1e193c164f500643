/* draft_dspark - the drafter of V4.1 checkpoints: a block of rows that see each other and the last
 * rows of the text, refined by a Markov chain over the ranks' best candidates.
 *
 *   observe   tap rows -> main_proj -> main_norm -> per stage a row of its own ring
 *   propose   [anchor, noise ...] -> embed -> stages -> collapse h -> norm -> head
 *             -> best K -> gather -> markov
 *
 * What a test or a report wants to see of a pass besides its drafts is asked for here.
 * source  docs/DECODE.md "dspark"
 */
#ifndef TANDEM_DRAFT_DRAFT_DSPARK_H
#define TANDEM_DRAFT_DRAFT_DSPARK_H

#include "kernels/ops.h"

struct drafter;

/* dspark_candidates - offer k candidates of a base row from each rank, 1 .. TOPK_MAX; before ready.
 * note     128 unless set */
void dspark_candidates(struct drafter *d, int k);

/* dspark_keep_refined - also copy every pass's refined candidates to the host; before ready. */
void dspark_keep_refined(struct drafter *d);

/* dspark_refined - after collect: the candidates of draft `row` of the slot with the Markov term
 * added, in rank order, and the logit behind the draft's confidence. Returns their number; those
 * with id -1 are padding. */
int dspark_refined(const struct drafter *d, int slot, int row, const struct candidate **z,
                   float *conf_logit);

#endif
