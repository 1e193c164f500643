/* drafter - proposes the tail of a window. Plain decoding is the drafter that proposes nothing.
 *
 * A drafter never reads the target's caches; the window's taps, the token ids and the committed
 * positions are all it sees. What it proposes can change speed and nothing else. After each
 * committed window `observe` gets the window, then `propose` is asked for the slots that draft.
 *
 *   open(config, model) -> states, weights -> ready -> (reset slot) -> observe, propose, ...
 *   -> close
 */
#ifndef TANDEM_DRAFT_DRAFTER_H
#define TANDEM_DRAFT_DRAFTER_H

#include "kernels/ops.h"
#include "src/model/slot.h"
#include "src/model/walk.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;
struct drafter;
struct exec;
struct json;
struct model;
struct window;

enum drafter_cap {
    DRAFTER_DEVICE = 1, /* proposes on every rank with collectives; else rank 0 alone, in plan */
    DRAFTER_CONFIDENCES = 2, /* conf is a chance, not a constant */
    DRAFTER_CHAIN = 4 /* every draft is a pass of its own: `most` bounds what a proposal costs */
};

/* One propose call, for the slots in slot[0 .. n - 1]; results after the queue's wait. */
struct proposal {
    int n;
    int slot[SLOTS_MAX];
    int most;                  /* drafts of a chain, the same on all ranks; 0: the block */
    int32_t anchor[SLOTS_MAX]; /* pending tokens, for drafters without DRAFTER_DEVICE */
    int len[SLOTS_MAX];        /* drafts proposed, 0 .. block */
    bool bad[SLOTS_MAX];       /* the pass had a number that is not finite */
    int32_t draft[SLOTS_MAX][WINDOW_MAX]; /* ids for positions pos + 1, pos + 2, ... */
    float conf[SLOTS_MAX][WINDOW_MAX];    /* chance of draft i if those before it are accepted */
};

struct drafter_ops {
    const char *name;
    unsigned caps;
    /* open - for a model that is split; 1 if the checkpoint has no such drafter.
     * errors   -EINVAL a config it cannot serve, by name; -ENOMEM */
    int (*open)(const struct json *config, struct model *m, struct drafter **out);
    void (*states)(struct drafter *d, struct state_list *l);
    void (*weights)(void *d, struct walk *w);
    /* ready - after bind and slot_pool_open.   errors   -ENOMEM, -EINVAL */
    int (*ready)(struct drafter *d, struct device *dev, const struct slot_pool *p);
    /* reset - a new request in the slot whose first observed position will be `first` */
    void (*reset)(struct drafter *d, struct exec *x, struct slot_pool *p, int slot, int first);
    /* observe - queue what the window's committed rows teach; rows behind n_ok are rewritten
     * later.
     * order    behind the window's taps; choices and what is committed may come before it or behind
     *          it */
    void (*observe)(struct drafter *d, struct exec *x, const struct slot_pool *p, struct window *w);
    /* stage - what the host does for a pass, and all of it when a captured one runs again: for
     * which slots and with which samplers. propose does it too. */
    void (*stage)(struct drafter *d, const struct proposal *p, const struct sampler *sampler);
    /* propose - queue a pass for p->slot[]; anchors and positions are read from the slots' heads,
     * by drafters without DRAFTER_DEVICE from p->anchor and the pool's pos and ids (those before
     * pos), and they use neither x nor the queue.
     * in       sampler [SLOTS_MAX] by slot, host memory
     * order    every rank calls it in the same order; may be captured on devices, for equal n and
     *          most */
    void (*propose)(struct drafter *d, struct exec *x, const struct slot_pool *pool,
                    struct proposal *p, const struct sampler *sampler);
    /* collect - after the queue's wait: fill len, draft and conf of the pass */
    void (*collect)(struct drafter *d, struct proposal *p);
    void (*close)(struct drafter *d);
};

struct drafter {
    const struct drafter_ops *ops;
    int block; /* most drafts of a proposal */
    int sites; /* exchange sites from model->sites on */
    /* needs - whether a tensor that no weight is made of can only be this drafter's, so that drafts
     * would be wrong without it; NULL: there is none */
    bool (*needs)(const char *name);
};

/* drafter_open - by the setting `draft`; auto is the checkpoint's own drafter, else none. Copies
 * (ngram) go beside it: whoever wants them opens them too.
 * errors   -EINVAL unknown name, or one that this checkpoint does not have */
int drafter_open(const char *name, const struct json *config, struct model *m,
                 struct drafter **out);

#endif
