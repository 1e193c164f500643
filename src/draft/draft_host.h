/* draft_host - what drafters have in common that run on rank 0's host, inside plan: no weights, no
 * state on the device, nothing to observe, a proposal that is ready when propose returns.
 */
#ifndef TANDEM_DRAFT_DRAFT_HOST_H
#define TANDEM_DRAFT_DRAFT_HOST_H

#include "src/draft/drafter.h"

struct host_draft {
    struct drafter base;
    int vocab;
    struct proposal made; /* by propose, for collect */
};

/* draft_host_open - a zeroed object of `bytes` bytes that begins with a struct host_draft.
 * errors   -ENOMEM */
int draft_host_open(const struct drafter_ops *ops, size_t bytes, const struct model *m, int block,
                    struct drafter **out);

void draft_host_states(struct drafter *d, struct state_list *l);
void draft_host_weights(void *d, struct walk *w);
int draft_host_ready(struct drafter *d, struct device *dev, const struct slot_pool *p);
void draft_host_reset(struct drafter *d, struct exec *x, struct slot_pool *p, int slot, int first);
void draft_host_observe(struct drafter *d, struct exec *x, const struct slot_pool *p,
                        struct window *w);
void draft_host_stage(struct drafter *d, const struct proposal *p, const struct sampler *sampler);
void draft_host_collect(struct drafter *d, struct proposal *p);
void draft_host_close(struct drafter *d);

#endif
