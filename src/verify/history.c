/* history.c owns the tables of counts and biases; the arithmetic is in the ops count and
 * penalize. */
#include "src/verify/history.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/model/buffers.h"
#include "src/model/exec.h"
#include "src/model/slot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_ROWS 1024 /* tokens of one upload */

struct history {
    struct device *dev;
    int first, share;
    int counted[SLOTS_MAX]; /* tokens of the slot that are in its count */

    /* device */
    uint32_t *count; /* [SLOTS_MAX][share] */
    float *bias;     /* [SLOTS_MAX][share] */
    struct row_info *info;

    /* host */
    struct row_info h_info[COUNT_ROWS];
    float *row; /* [share], zeros between calls */
};

static int buffers(struct history *h, buffers_fn *fn)
{
    size_t row = h->share > 0 ? (size_t)h->share : 1;
    const struct buffer b[] = {
        { &h->count, sizeof(*h->count) * row * SLOTS_MAX },
        { &h->bias, sizeof(*h->bias) * row * SLOTS_MAX },
        { &h->info, sizeof(*h->info) * COUNT_ROWS },
    };

    return fn(h->dev, b, sizeof(b) / sizeof(b[0]));
}

int history_open(struct device *d, int first, int share, struct history **out)
{
    struct history *h = calloc(1, sizeof(*h));
    int r;

    if (!h)
        return fail(-ENOMEM, "history: out of memory");
    h->dev = d;
    h->first = first;
    h->share = share;
    h->row = calloc(share > 0 ? (size_t)share : 1, sizeof(float));
    r = h->row ? buffers(h, buffers_alloc)
               : fail(-ENOMEM, "history: no memory for a row of %d", share);
    if (r < 0) {
        history_close(h);
        return r;
    }
    *out = h;
    return 0;
}

void history_close(struct history *h)
{
    if (!h)
        return;
    buffers(h, buffers_free);
    free(h->row);
    free(h);
}

void history_admit(struct history *h, struct exec *x, int slot, const struct sampler *s,
                   const struct logit_bias *bias)
{
    size_t at = (size_t)slot * (size_t)h->share, bytes = (size_t)h->share * sizeof(float);

    h->counted[slot] = 0;
    if (sampler_counts(s))
        x->q->ops->put(x->q, h->count + at, h->row, bytes);
    if (s->biases == 0)
        return;
    for (int i = 0; i < s->biases; i++)
        if (bias[i].id >= h->first && bias[i].id < h->first + h->share)
            h->row[bias[i].id - h->first] += bias[i].add;
    x->q->ops->put(x->q, h->bias + at, h->row, bytes);
    memset(h->row, 0, bytes);
}

void history_follow(struct history *h, struct exec *x, const struct slot_pool *pool, int slot,
                    const struct sampler *sampler)
{
    while (h->counted[slot] < pool->pos[slot]) {
        int n = 0;

        for (; n < COUNT_ROWS && h->counted[slot] < pool->pos[slot]; n++) {
            int pos = h->counted[slot]++;

            h->h_info[n] =
                (struct row_info){ .slot = slot, .pos = pos, .tok = pool->ids[slot][pos] };
        }
        x->q->ops->put(x->q, h->info, h->h_info, sizeof(h->h_info[0]) * (size_t)n);
        x->op->count(x->q, &(struct count_args){ .info = h->info,
                                                 .sampler = sampler,
                                                 .count = h->count,
                                                 .rows = n,
                                                 .cols = h->share,
                                                 .id0 = h->first });
    }
}

void history_edit(const struct history *h, struct exec *x, const float *logits, float *y,
                  const struct row_info *info, int rows, const struct sampler *sampler)
{
    x->op->penalize(x->q, &(struct penalize_args){ .logits = logits,
                                                   .y = y,
                                                   .sampler = sampler,
                                                   .info = info,
                                                   .count = h->count,
                                                   .bias = h->bias,
                                                   .rows = rows,
                                                   .cols = h->share,
                                                   .id0 = h->first });
}
