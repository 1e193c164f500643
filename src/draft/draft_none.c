/* draft_none.c - the drafter that proposes nothing: plain decoding. */
#include "src/draft/draft_host.h"
#include "src/draft/draft_table.h"

static int none_open(const struct json *config, struct model *m, struct drafter **out)
{
    return draft_host_open(&draft_none, sizeof(struct host_draft), m, 0, out);
}

static void none_propose(struct drafter *d, struct exec *x, const struct slot_pool *pool,
                         struct proposal *p, const struct sampler *sampler)
{
    struct host_draft *h = (struct host_draft *)d;

    for (int i = 0; i < p->n; i++)
        h->made.len[i] = 0;
}

const struct drafter_ops draft_none = {
    .name = "none",
    .open = none_open,
    .states = draft_host_states,
    .weights = draft_host_weights,
    .ready = draft_host_ready,
    .reset = draft_host_reset,
    .observe = draft_host_observe,
    .stage = draft_host_stage,
    .propose = none_propose,
    .collect = draft_host_collect,
    .close = draft_host_close,
};
