/* order - what rank 0 decided, sent to every rank and carried out here: one call does both.
 *
 * errors   as the calls of round.h, and of a message that could not be sent
 */
#ifndef TANDEM_RANK_ORDER_H
#define TANDEM_RANK_ORDER_H

#include "src/rank/round.h"

int order_admit(struct rounds *r, const struct plan_admit *p);
int order_fill(struct rounds *r, const struct plan_span *p);
int order_draft(struct rounds *r, const struct plan_draft *p);
int order_round(struct rounds *r, struct plan_round *p); /* sets the digest */
int order_keep(struct rounds *r, const struct plan_commit *c);
int order_score(struct rounds *r, const struct plan_span *p, score_fn *fn, void *arg);
int order_calibrate(struct rounds *r, const struct plan_calibrate *p, int64_t *ns);
int order_release(struct rounds *r, int slot);

/* order_stop - every rank leaves as planned. */
int order_stop(struct rounds *r);

#endif
