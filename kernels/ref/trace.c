/* trace.c owns what computes nothing: the clock, sections, weights asked for ahead, and the search
 * for numbers that are none. */
#include <errno.h>
#include <math.h>

#include "kernels/lists.h"
#include "kernels/ref/ref.h"
#include "src/base/clock.h"

void ref_stamp(struct queue *q, const struct stamp_args *a)
{
    if (!q->err)
        *a->at = clock_ns();
}

void ref_side(struct queue *q, const struct side_args *a)
{
    if (!q->err && (a->lane < 0 || a->lane >= SIDE_LANES))
        queue_fail(q, -EINVAL, "side: lane %d of %d", a->lane, SIDE_LANES);
}

void ref_prefetch(struct queue *q, const struct prefetch_args *a)
{
    if (!q->err)
        (void)prefetch_refused(q, a);
}

void ref_inspect(struct queue *q, const struct inspect_args *a)
{
    if (q->err)
        return;
    for (int r = 0; r < a->rows; r++) {
        const float *x = a->x + (size_t)r * (size_t)a->cols;
        const struct row_info *i = &a->info[r];

        for (int c = 0; c < a->cols; c++)
            if (!isfinite(x[c])) {
                queue_fail(q, -EBADMSG, "layer %d: no finite number in slot %d row %d position %d",
                           a->layer, i->slot, r, i->pos);
                return;
            }
    }
}
