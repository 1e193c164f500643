/* calls - the ops of a pass as they were queued: what each is about, what it has to read, and when
 * the device had run it.
 *
 * A table of ops stands in front of the backend's. While it records, a call is kept with a copy of
 * its args, so that it can be queued again by itself; while it stamps, the device's clock is noted
 * behind each call, eagerly or in a graph. What a call leaves in memory is the backend's: nothing
 * changes.
 */
#ifndef TANDEM_RANK_CALLS_H
#define TANDEM_RANK_CALLS_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct calls;
struct exec;

struct call {
    const char *op;
    char what[48];  /* sizes and format of its weights */
    double bytes;   /* of weights and states that it reads at least, experts as they were routed */
    double weights; /* weights of these that are decoded */
    int bits2;      /* EXL3: twice the bits of one; 0 for others */
    int moe;        /* it is a call of the experts */
    int chosen;     /* of these, how many different ones its rows go to */
};

/* calls_open - room for n calls of a pass through x; x's queue is the caller's.
 * errors   -ENOMEM */
int calls_open(struct exec *x, int n, struct calls **out);
void calls_close(struct calls *c);

/* calls_record, calls_stamp - from now on x goes through the table, from the first call on.
 * Recording is eager: the bytes of experts are known after calls_settle. */
void calls_record(struct calls *c);
void calls_stamp(struct calls *c);

/* calls_end - x has the backend's own table again. */
void calls_end(struct calls *c);

/* calls_settle - behind the wait for a recorded pass: what was routed where.
 * errors   of the queue */
int calls_settle(struct calls *c);

int calls_count(const struct calls *c);
const struct call *calls_at(const struct calls *c, int i);

/* calls_again - queue a recorded call once more. */
void calls_again(const struct calls *c, int i);

/* calls_until - queue again all calls before call i: later ones have written where its inputs
 * were */
void calls_until(const struct calls *c, int i);

/* calls_products - the products that a recorded call is of, and how many; 0 for other ops. */
int calls_products(const struct calls *c, int i, const struct matmul_args **out);

/* calls_times - ns between the clock's notes, the first from `begin` on; what a note itself takes
 * is in all of them. Behind the wait for a stamped pass.
 * shapes   ns [n of the stamped pass]          errors   of the queue */
int calls_times(struct calls *c, int64_t *ns);

#endif
