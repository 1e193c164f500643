/* largest.c owns the windows that are only looked at: as large as the bounds allow, and never
 * run. */
#include "src/rank/largest.h"

#include <errno.h>

#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/rank/captures.h"
#include "src/rank/parts.h"
#include "src/rank/rank.h"

static void dry_window(struct rank *k, struct exec *x, int slots, int rows_each, int flags,
                       bool head)
{
    static const struct sampler sampled[SLOTS_MAX] = {
        { .temperature = 1 }, { .temperature = 1 }, { .temperature = 1 }, { .temperature = 1 }
    };
    struct window *w = k->win;
    struct proposal p = { .n = slots };

    window_clear(w);
    for (int s = 0; s < slots; s++) {
        w->seg[s] =
            (struct segment){ .slot = s, .first = w->rows, .len = rows_each, .flags = flags };
        w->rows += rows_each;
        p.slot[s] = s;
    }
    w->segs = slots;
    w->head = head;
    if (k->cfg.early_ingest && !(flags & SEG_KNOWN)) {
        w->tapped = parts_ingest;
        w->tapped_arg = k;
    }
    x->tmp->used = 0;
    k->model->ops->forward(k->model, x, k->pool, w);
    k->drafter->ops->observe(k->drafter, x, k->pool, w);
    x->tmp->used = 0;
    k->drafter->ops->propose(k->drafter, x, k->pool, &p, sampled);
}

void largest_queue(struct rank *k, struct exec *x)
{
    int logits = k->win->rows_max < WINDOW_ROWS_SHARED ? k->win->rows_max : WINDOW_ROWS_SHARED;

    dry_window(k, x, 1, k->bounds.prefill_chunk, SEG_KNOWN, false);
    dry_window(k, x, k->bounds.slots, k->bounds.window_max, 0, true);
    dry_window(k, x, 1, logits, SEG_KNOWN, true);
}

static void queue_largest(void *arg)
{
    struct rank *k = (struct rank *)arg;

    largest_queue(k, &k->x);
}

int largest_check(struct rank *k)
{
    struct captured g;
    int r;

    if (!rank_captures(k))
        return 0;
    r = capture(k->q, queue_largest, k, &g);
    if (r == 0)
        captured_close(k->q, &g);
    if (r != -ENOMEM)
        return r;
    log_info("graphs: no memory for the largest windows, which no kernel has checked");
    return 0;
}
