/* draft_table - the implementers of struct drafter_ops that drafter.c lists. */
#ifndef TANDEM_DRAFT_DRAFT_TABLE_H
#define TANDEM_DRAFT_DRAFT_TABLE_H

#include "src/draft/drafter.h"

extern const struct drafter_ops draft_none;
extern const struct drafter_ops draft_dspark; /* of V4.1 checkpoints */
extern const struct drafter_ops draft_mtp;    /* one next-token layer, V3 style */
extern const struct drafter_ops draft_ngram;  /* draft_ngram.h */
extern const struct drafter_ops draft_oracle; /* draft_oracle.h */
extern const struct drafter_ops draft_random; /* uniform ids, keyed by seed and position */

#endif
