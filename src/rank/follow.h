/* follow - the life of every rank but 0: read an order, check it, carry it out, until STOP. */
#ifndef TANDEM_RANK_FOLLOW_H
#define TANDEM_RANK_FOLLOW_H

#include "src/rank/round.h"

/* follow_run - until rank 0's STOP. A signal to this rank alone is told to rank 0, which then stops
 * all.
 * errors   as the calls of round.h */
int follow_run(struct rounds *r);

#endif
