/* sample.c owns what choices, draws and the drafter's chain have in common. */
#include "kernels/ref/sample.h"

#include <math.h>
#include <stddef.h>

#define MASS_LANES 64

double ballot_floor(const struct ballot *b)
{
    if (!(b->s->min_p > 0))
        return -INFINITY;
    return (double)b->most / sampler_heat(b->s) + det_log(b->s->min_p);
}

int ballot_nucleus(const struct ballot *b, const uint64_t *sorted, int n, double *near)
{
    double most = (double)b->most / sampler_heat(b->s), whole = b->whole, sum = 0;
    int left = 0;

    if (near)
        *near = INFINITY;
    if (whole < 0) {
        whole = 0;
        for (int i = 0; i < n; i++)
            whole += det_exp(ballot_x(b, sorted[i]) - most);
    }
    while (left < n) {
        sum += det_exp(ballot_x(b, sorted[left]) - most) / whole;
        left++;
        if (near && fabs(sum - b->s->top_p) < *near)
            *near = fabs(sum - b->s->top_p);
        if (!(sum < b->s->top_p))
            break;
    }
    return left;
}

/* Whether noise of uniform u cannot lift a value that lies d below the best one to it. Noise is at
 * most -log(1 - u), and e^d at least 1 + d + d^2 / 2 + d^3 / 6; slack covers the rounding of both
 * values. It only spares two logarithms: nearly every id of a vocabulary is out of reach. */
static int out_of_reach(double d, double u, double slack)
{
    d -= slack;
    return d > 0 && (1 - u) * (1 + d * (1 + d * (0.5 + d * (1.0 / 6)))) > 1 + 1e-9;
}

int32_t ballot_draw(const struct ballot *b, const uint64_t *pair, int n)
{
    double floor = ballot_floor(b), top = -INFINITY;
    int32_t best = -1;

    for (int i = 0; i < n; i++) {
        int32_t id = (int32_t)(uint32_t)pair[i];
        double x = ballot_x(b, pair[i]), u, v;

        if (x < floor)
            continue;
        u = draw_u(b->s->seed, b->pos, (uint32_t)id, DRAW_TOKEN);
        if (out_of_reach(top - x, u, 1e-9 + fabs(top) * 1e-14))
            continue;
        v = x - det_log(-det_log(u));
        if (best < 0 || v > top || (v == top && id < best)) {
            top = v;
            best = id;
        }
    }
    return best;
}

/* The first pairs of the sampler's order, sorted: k of them, and those that tie with the last. */
static uint64_t *sort_first(const struct ballot *b, int k)
{
    uint32_t least = order_cut_pairs(b->pair, b->n, k).word;
    int n = 0;

    for (int i = 0; i < b->n; i++)
        if (b->pair[i] >> 32 >= least)
            b->pair[n++] = b->pair[i];
    return order_sort(b->pair, b->tmp, n);
}

int32_t ballot_sample(const struct ballot *b)
{
    int n = b->n;
    uint64_t *pair = b->pair;

    if (b->s->top_k > 0 && b->s->top_k < n) {
        n = b->s->top_k;
        pair = sort_first(b, n);
    } else if (sampler_has_top_p(b->s)) {
        pair = order_sort(b->pair, b->tmp, n);
    }
    if (sampler_has_top_p(b->s))
        n = ballot_nucleus(b, pair, n, NULL);
    return ballot_draw(b, pair, n);
}

/* Lane l sums ids l, l + 64, ... in order, then lanes are halved: ranks and devices agree. */
struct chunk_mass chunk_weigh(const float *z, int n, double heat)
{
    double lane[MASS_LANES] = { 0 }, top;
    struct chunk_mass c = { .peak = -INFINITY, .z = -INFINITY };

    for (int i = 0; i < n; i++)
        c.peak = z[i] > c.peak ? z[i] : c.peak;
    if (c.peak == -INFINITY)
        return c;
    top = (double)c.peak / heat;
    for (int i = 0; i < n; i++)
        lane[i % MASS_LANES] += det_exp((double)z[i] / heat - top);
    for (int half = MASS_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    c.sum = lane[0];
    return c;
}

double chunk_share(const struct chunk_mass *c, float most, double heat)
{
    if (c->peak == -INFINITY)
        return 0;
    return c->sum * det_exp((double)c->peak / heat - (double)most / heat);
}
