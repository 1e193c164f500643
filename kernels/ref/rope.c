/* rope.c owns the rotation by position. */
#include <errno.h>
#include <math.h>

#include "kernels/ref/ref.h"

#define ROPE_PAIRS_MAX 512

/* The angle is an f32 product, so that every backend turns by the same angle; its cosine and sine
 * are taken in double and rounded once. */
static void turn_of_row(const struct rope_args *a, int r, float *cosine, float *sine)
{
    int ratio = a->ratio > 1 ? a->ratio : 1;
    int pos = a->info[r].pos - a->info[r].pos % ratio;

    for (int i = 0; i < a->dims / 2; i++) {
        double angle = (double)((float)pos * a->freq[i]);

        cosine[i] = (float)cos(angle);
        sine[i] = (float)(a->inverse ? -sin(angle) : sin(angle));
    }
}

static void rotate_head(const struct rope_args *a, const float *cosine, const float *sine, float *x)
{
    int pairs = a->dims / 2;
    int near = a->pairs == ROPE_ADJACENT;

    for (int i = 0; i < pairs; i++) {
        float *u = x + (near ? 2 * i : i), *v = u + (near ? 1 : pairs);
        float p = *u * cosine[i] - *v * sine[i], s = *u * sine[i] + *v * cosine[i];

        *u = ref_round(p, a->round);
        *v = ref_round(s, a->round);
    }
}

static void rope_rows(const void *args, int lo, int hi, int worker)
{
    const struct rope_args *a = args;

    for (int r = lo; r < hi; r++) {
        float cosine[ROPE_PAIRS_MAX], sine[ROPE_PAIRS_MAX];
        float *x = a->x + (size_t)r * (size_t)a->heads * (size_t)a->cols;

        turn_of_row(a, r, cosine, sine);
        for (int h = 0; h < a->heads; h++)
            rotate_head(a, cosine, sine,
                        x + (size_t)h * (size_t)a->cols + (size_t)(a->cols - a->dims));
    }
}

void ref_rope(struct queue *q, const struct rope_args *a)
{
    if (q->err)
        return;
    if (a->dims % 2 != 0 || a->dims > a->cols || a->dims > 2 * ROPE_PAIRS_MAX) {
        queue_fail(q, -EINVAL, "rope: %d dims of %d, want an even number up to %d", a->dims,
                   a->cols, 2 * ROPE_PAIRS_MAX);
        return;
    }
    ref_run(q, a->rows, 8, rope_rows, a);
}
