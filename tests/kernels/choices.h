/* choices - the definitions that picks are compared with: the largest by brute force, a choice with
 * everything sorted. */
#ifndef TANDEM_TESTS_KERNELS_CHOICES_H
#define TANDEM_TESTS_KERNELS_CHOICES_H

#include "kernels/sampling.h"
#include "tests/kernels/bed.h"

#define VOCAB_MAX 5000

static int before(struct candidate a, struct candidate b)
{
    return a.z > b.z || (a.z == b.z && a.id < b.id);
}

static void naive_best(const float *z, int cols, int k, int id0, struct candidate *out)
{
    for (int i = 0; i < k; i++)
        out[i] = (struct candidate){ -INFINITY, -1 };
    for (int c = 0; c < cols; c++) {
        struct candidate it = { z[c], id0 + c };

        if (z[c] == -INFINITY)
            continue;
        for (int i = 0; i < k; i++)
            if (out[i].id < 0 || before(it, out[i])) {
                struct candidate swap = out[i];

                out[i] = it;
                it = swap;
                if (it.id < 0)
                    break;
            }
    }
}

static int by_order(const void *a, const void *b)
{
    return before(*(const struct candidate *)a, *(const struct candidate *)b) ? -1 : 1;
}

/* The definition, with everything sorted: filters are prefixes, then argmax of x + g. */
static int naive_choice(const struct sampler *s, const float *z, int vocab, uint64_t pos,
                        int *survivors)
{
    static struct candidate c[VOCAB_MAX];
    int n = 0, k, n_p, n_m, best = -1;
    double heat = fmax(s->temperature, 1e-6), top, mass = 0, sum = 0, most = -INFINITY;

    for (int id = 0; id < vocab; id++)
        if (z[id] > -INFINITY)
            c[n++] = (struct candidate){ z[id], id };
    qsort(c, (size_t)n, sizeof(*c), by_order);
    top = (double)c[0].z / heat;
    k = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    for (int i = 0; i < k; i++)
        mass += det_exp((double)c[i].z / heat - top);
    n_p = s->top_p > 0 && s->top_p < 1 ? 1 : n;
    for (int i = 0; i < k && n_p < n; i++) {
        sum += det_exp((double)c[i].z / heat - top) / mass;
        n_p += sum < s->top_p;
    }
    n_m = n;
    while (s->min_p > 0 && n_m > 1 && (double)c[n_m - 1].z / heat < top + det_log(s->min_p))
        n_m--;
    n = k < n_p ? k : n_p;
    n = n < n_m ? n : n_m;
    for (int i = 0; i < n; i++) {
        double v = (double)c[i].z / heat + draw_gumbel(s->seed, pos, (uint32_t)c[i].id, DRAW_TOKEN);

        if (v > most || (v == most && c[i].id < best)) {
            most = v;
            best = c[i].id;
        }
    }
    *survivors = n;
    return best;
}

static const struct sampler samplers[] = {
    { .temperature = 1, .seed = 1 },
    { .temperature = 0.6, .seed = 2, .top_k = 1 },
    { .temperature = 0.8, .seed = 3, .top_k = 20 },
    { .temperature = 1.3, .seed = 4, .top_p = 0.9 },
    { .temperature = 1, .seed = 5, .top_p = 0.3, .top_k = 40 },
    { .temperature = 2, .seed = 6, .min_p = 0.05 },
    { .temperature = 1, .seed = 7, .min_p = 0.02, .top_p = 0.95, .top_k = 100 },
    { .temperature = 100, .seed = ~0ull },
    { .temperature = 1e-9, .seed = 9, .top_p = 0.999 },
    { .temperature = 1, .seed = 10, .top_p = 1, .top_k = 100000 },
    { .temperature = 0.7, .seed = 11, .top_p = 1e-12 },
    { .temperature = 0 },
    { .temperature = -1, .top_k = 3 },
};

#endif
