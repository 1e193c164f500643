/* engram.c owns what is done with gathered pieces of rows and with the n-gram memory's rows, keys
 * and value. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/exp.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/simd.h"

void ref_bring(struct queue *q, const struct bring_args *a)
{
    if (queue_fetch(q, a))
        memcpy(a->y, a->src, a->bytes);
}

void ref_unshard(struct queue *q, const struct unshard_args *a)
{
    int cols = 0, at = 0;

    if (q->err)
        return;
    if (a->ranks < 1 || a->ranks > RANKS_MAX) {
        queue_fail(q, -EINVAL, "unshard: %d ranks, want 1 .. %d", a->ranks, RANKS_MAX);
        return;
    }
    for (int i = 0; i < a->ranks; i++) {
        cols += a->width[i];
        if (a->width[i] < 0 || a->width[i] > a->ldx) {
            queue_fail(q, -EINVAL, "unshard: piece %d has %d values in rows of %d", i, a->width[i],
                       a->ldx);
            return;
        }
    }
    for (int i = 0; i < a->ranks; i++) {
        for (int r = 0; r < a->rows; r++)
            memcpy(a->y + (size_t)r * (size_t)cols + (size_t)at,
                   a->x + ((size_t)i * (size_t)a->rows + (size_t)r) * (size_t)a->ldx,
                   (size_t)a->width[i] * sizeof(float));
        at += a->width[i];
    }
}

SIMD static void inject(float *x, const float *value, float gate, int n, enum round round)
{
    if (round == ROUND_BF16)
        for (int c = 0; c < n; c++)
            x[c] = bf16_round(x[c] + gate * value[c]);
    else
        for (int c = 0; c < n; c++)
            x[c] += gate * value[c];
}

static float gate_of(const struct engram_gate_args *a, const float *x, const float *key,
                     const float *qw, const float *kw)
{
    float dot = 0, xx = 0, kk = 0, n = (float)a->dim, d;

    for (int c = 0; c < a->dim; c++) {
        dot += x[c] * (qw[c] * kw[c]) * key[c];
        xx += x[c] * x[c];
        kk += key[c] * key[c];
    }
    d = dot * (1.0f / sqrtf(xx / n + a->eps)) * (1.0f / sqrtf(kk / n + a->eps)) * (1.0f / sqrtf(n));
    /* The sign of a zero counts; max would drop a NaN. */
    return sigmoid_f32(copysignf(sqrtf(fabsf(d) < 1e-6f ? 1e-6f : fabsf(d)), d));
}

static void gate_rows(const void *args, int lo, int hi, int worker)
{
    const struct engram_gate_args *a = args;
    size_t dim = (size_t)a->dim;

    for (int r = lo; r < hi; r++) {
        const float *kv = a->kv + (size_t)r * (size_t)(a->hc + 1) * dim;
        float *x = a->x + (size_t)r * (size_t)a->hc * dim;

        for (int i = 0; i < a->hc; i++) {
            size_t at = (size_t)i * dim;
            float gate = gate_of(a, x + at, kv + at, a->qw + at, a->kw + at);

            inject(x + at, kv + (size_t)a->hc * dim, gate, a->dim, a->round);
        }
    }
}

void ref_engram_gate(struct queue *q, const struct engram_gate_args *a)
{
    if (q->err)
        return;
    ref_run(q, a->rows, 4, gate_rows, a);
}
