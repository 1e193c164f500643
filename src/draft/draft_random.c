/* draft_random.c - uniform ids, for the gate that says that no proposal can change a reply. They
 * are a function of the request's seed and the position, so a run can be repeated.
 */
#include "src/base/rng.h"
#include "src/draft/draft_host.h"
#include "src/draft/draft_table.h"

static int random_open(const struct json *config, struct model *m, struct drafter **out)
{
    return draft_host_open(&draft_random, sizeof(struct host_draft), m, WINDOW_MAX - 1, out);
}

static void random_propose(struct drafter *d, struct exec *x, const struct slot_pool *pool,
                           struct proposal *p, const struct sampler *sampler)
{
    struct host_draft *h = (struct host_draft *)d;

    for (int i = 0; i < p->n; i++) {
        int slot = p->slot[i];

        h->made.len[i] = d->block;
        for (int j = 0; j < d->block; j++) {
            uint64_t pos = (uint64_t)pool->pos[slot] + 1 + (uint64_t)j;

            h->made.draft[i][j] =
                (int32_t)(draw_u(sampler[slot].seed, pos, 0, DRAW_OTHER) * h->vocab);
            h->made.conf[i][j] = 1;
        }
    }
}

const struct drafter_ops draft_random = {
    .name = "random",
    .open = random_open,
    .states = draft_host_states,
    .weights = draft_host_weights,
    .ready = draft_host_ready,
    .reset = draft_host_reset,
    .observe = draft_host_observe,
    .stage = draft_host_stage,
    .propose = random_propose,
    .collect = draft_host_collect,
    .close = draft_host_close,
};
