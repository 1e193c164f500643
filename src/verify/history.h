/* history - what the requests in the slots have said so far, on the device, for penalties; and
 * their biases.
 *
 * A count holds the committed tokens before the slot's position; the tokens of a window are added
 * row by row by the op penalize. It follows the position that the host knows to have landed, so a
 * token that was accepted and then cut off is never counted.
 */
#ifndef TANDEM_VERIFY_HISTORY_H
#define TANDEM_VERIFY_HISTORY_H

#include "kernels/ops.h"
#include "src/verify/sampler.h"

struct device;
struct exec;
struct history;
struct slot_pool;

/* history_open - tables for ids first .. first + share - 1.   errors   -ENOMEM */
int history_open(struct device *d, int first, int share, struct history **out);
void history_close(struct history *h);

/* history_admit - a request enters the slot: nothing of it is counted, its biases are these.
 * in       bias [s->biases] */
void history_admit(struct history *h, struct exec *x, int slot, const struct sampler *s,
                   const struct logit_bias *bias);

/* history_follow - count what has landed in the slot since the last call.
 * in       sampler [SLOTS_MAX], device: already those of this window */
void history_follow(struct history *h, struct exec *x, const struct slot_pool *pool, int slot,
                    const struct sampler *sampler);

/* history_edit - y = the rows as they are sampled from. */
void history_edit(const struct history *h, struct exec *x, const float *logits, float *y,
                  const struct row_info *info, int rows, const struct sampler *sampler);

#endif
