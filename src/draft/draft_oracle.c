/* draft_oracle.c owns the recorded texts. */
#include "src/draft/draft_oracle.h"

#include "src/base/log.h"
#include "src/draft/draft_host.h"
#include "src/draft/draft_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct oracle {
    struct host_draft host;
    struct {
        int32_t *ids;
        int n;
        unsigned proposals;
    } record[SLOTS_MAX];
};

static int oracle_open(const struct json *config, struct model *m, struct drafter **out)
{
    return draft_host_open(&draft_oracle, sizeof(struct oracle), m, WINDOW_MAX - 1, out);
}

static void oracle_forget(struct oracle *o, int slot)
{
    free(o->record[slot].ids);
    memset(&o->record[slot], 0, sizeof(o->record[slot]));
}

int draft_oracle_set(struct drafter *d, int slot, const int32_t *ids, int n)
{
    struct oracle *o = (struct oracle *)d;
    int32_t *copy;

    if (d->ops != &draft_oracle)
        return fail(-EINVAL, "draft %s: takes no recorded text", d->ops->name);
    copy = malloc(sizeof(*ids) * (size_t)(n > 0 ? n : 1));
    if (!copy)
        return fail(-ENOMEM, "draft oracle: no memory for %d tokens", n);
    memcpy(copy, ids, sizeof(*ids) * (size_t)n);
    oracle_forget(o, slot);
    o->record[slot].ids = copy;
    o->record[slot].n = n;
    return 0;
}

static void oracle_reset(struct drafter *d, struct exec *x, struct slot_pool *p, int slot,
                         int first)
{
    oracle_forget((struct oracle *)d, slot);
}

/* The draft that proposal number n spoils, -1 for none. */
static int spoiled(unsigned n)
{
    if (n % 4 == 1)
        return (int)(n / 4 % 5);
    return n % 4 == 3 ? 0 : -1;
}

static void oracle_propose(struct drafter *d, struct exec *x, const struct slot_pool *pool,
                           struct proposal *p, const struct sampler *sampler)
{
    struct oracle *o = (struct oracle *)d;

    for (int i = 0; i < p->n; i++) {
        int slot = p->slot[i], first = pool->pos[slot] + 1;
        int left = o->record[slot].n - first;
        int len = left < 0 ? 0 : left < d->block ? left : d->block;
        int wrong = spoiled(o->record[slot].proposals++);

        o->host.made.len[i] = len;
        for (int j = 0; j < len; j++) {
            int32_t id = o->record[slot].ids[first + j];

            o->host.made.draft[i][j] = j == wrong ? (id + 1) % o->host.vocab : id;
            o->host.made.conf[i][j] = 1;
        }
    }
}

static void oracle_close(struct drafter *d)
{
    if (!d)
        return;
    for (int s = 0; s < SLOTS_MAX; s++)
        oracle_forget((struct oracle *)d, s);
    draft_host_close(d);
}

const struct drafter_ops draft_oracle = {
    .name = "oracle",
    .open = oracle_open,
    .states = draft_host_states,
    .weights = draft_host_weights,
    .ready = draft_host_ready,
    .reset = oracle_reset,
    .observe = draft_host_observe,
    .stage = draft_host_stage,
    .propose = oracle_propose,
    .collect = draft_host_collect,
    .close = oracle_close,
};
