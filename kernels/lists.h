/* lists.h declares what ops that take several calls at once refuse. The same on every backend.
 *
 * errors   the queue's, -EINVAL with a line: more calls than there is room for, calls that differ
 *          in what the op's contract says is common to all */
#ifndef TANDEM_KERNELS_LISTS_H
#define TANDEM_KERNELS_LISTS_H

#include <stdbool.h>

struct matmuls_args;
struct prefetch_args;
struct queue;
struct row_keeps_args;

bool matmuls_refused(struct queue *q, const struct matmuls_args *a);
bool prefetch_refused(struct queue *q, const struct prefetch_args *a);
bool row_keeps_refused(struct queue *q, const struct row_keeps_args *a);

#endif
