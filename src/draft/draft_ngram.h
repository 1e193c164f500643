/* draft_ngram - drafts copied from what the slot has said and was told: after the longest text that
 * ends as the history does, what came then.
 *
 * A drafter of rank 0's host; the others get its ids. It stands alone (draft = ngram) or beside the
 * model's own (auto), where a copy has to be worth more than that one's drafts: ngram_depth prices
 * it. The chance of a copied draft is that of its band, by the length of the match: a prior worth
 * two trials, and what became of the slot's earlier copies.
 */
#ifndef TANDEM_DRAFT_DRAFT_NGRAM_H
#define TANDEM_DRAFT_DRAFT_NGRAM_H

#include "src/draft/depth.h"

struct drafter;

/* ngram_match - tokens of the history that stand before the newest proposal's source; 0: it made
 * none. */
int ngram_match(const struct drafter *d, int slot);

/* ngram_depth - how many of the n drafts that are left of the slot's newest proposal are worth a
 * copy window: E(k) - lambda C(1 + k) must be positive and above that of the alternative
 * (-INFINITY: none). A band of long matches that was passed over eight times is tried once.
 * in       q [n] of the proposal (conf); lambda: depth_lambda_last of 8 rounds that copied
 *          nothing */
int ngram_depth(struct drafter *d, int slot, const double *q, int n, double lambda,
                const struct cost_table *t, double alternative);

/* ngram_note - a window verified k drafts of the slot's newest proposal and kept a. */
void ngram_note(struct drafter *d, int slot, int k, int a);

#endif
