/* lists.c owns the checks of ops that take several calls at once. */
#include "kernels/lists.h"

#include <errno.h>

#include "kernels/backend.h"
#include "kernels/ops.h"

static bool length_refused(struct queue *q, const char *op, int n, int most)
{
    if (n >= 0 && n <= most)
        return false;
    queue_fail(q, -EINVAL, "%s: %d calls, want 0 to %d", op, n, most);
    return true;
}

bool matmuls_refused(struct queue *q, const struct matmuls_args *a)
{
    if (length_refused(q, "matmuls", a->n, MATMULS_MAX))
        return true;
    for (int i = 1; i < a->n; i++)
        if (a->of[i].x != a->of[0].x || a->of[i].rows != a->of[0].rows) {
            queue_fail(q, -EINVAL, "matmuls: product %d has other inputs than the first", i);
            return true;
        }
    return false;
}

bool prefetch_refused(struct queue *q, const struct prefetch_args *a)
{
    if (length_refused(q, "prefetch", a->n, PREFETCH_MAX))
        return true;
    if (a->rate < 1)
        queue_fail(q, -EINVAL, "prefetch: %d GB/s, want 1 or more", a->rate);
    return a->rate < 1;
}

bool row_keeps_refused(struct queue *q, const struct row_keeps_args *a)
{
    if (length_refused(q, "row_keeps", a->n, ROW_KEEPS_MAX))
        return true;
    for (int i = 1; i < a->n; i++)
        if (a->of[i].rows != a->of[0].rows) {
            queue_fail(q, -EINVAL, "row_keeps: array %d has %d rows, the first %d", i,
                       a->of[i].rows, a->of[0].rows);
            return true;
        }
    return false;
}
