/* draft_none.c - the drafter that proposes nothing: plain decoding. */
#include "src/draft/draft_host.h"
#include "src/draft/draft_table.h"

static int none_open(const struct json *config, struct model *m, struct drafter **out)
{
    return host_open(&draft_none, sizeof(struct host_draft), m, 0, out);
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
    .states = host_states,
    .weights = host_weights,
    .ready = host_ready,
    .reset = host_reset,
    .observe = host_observe,
    .propose = none_propose,
    .collect = host_collect,
    .close = host_close,
};
