/* depth.c owns the price of a row and the choice that follows from it; who draws up the table is
 * the rank's. */
#include "src/draft/depth.h"

#include <assert.h>
#include <string.h>

#define CONF_PRIOR 2.0  /* trials that a position starts with */
#define CONF_DECAY 0.97 /* of the sums, a round that reached the position */
#define CONF_MOST 0.995

static int32_t to_us(int64_t us)
{
    if (us < 1)
        return 1;
    return us > INT32_MAX ? INT32_MAX : (int32_t)us;
}

int32_t cost_window(const struct cost_table *t, int rows)
{
    int64_t last, slope;

    if (t->rows < 1)
        return 1;
    if (rows < 1)
        rows = 1;
    if (rows <= t->rows)
        return to_us(t->window_us[rows]);
    last = t->window_us[t->rows];
    slope = t->rows > 1 ? last - t->window_us[t->rows - 1] : 0;
    return to_us(last + slope * (rows - t->rows));
}

void cost_settle(struct cost_table *t)
{
    int64_t sum[COST_ROWS_MAX + 1];
    int count[COST_ROWS_MAX + 1];
    int blocks = 0, row = 1;

    assert(t->rows <= COST_ROWS_MAX);
    for (int r = 1; r <= t->rows; r++) {
        sum[blocks] = to_us(t->window_us[r]);
        count[blocks++] = 1;
        /* mean of the block before > mean of the last, without a division */
        while (blocks > 1 &&
               sum[blocks - 2] * count[blocks - 1] > sum[blocks - 1] * count[blocks - 2]) {
            sum[blocks - 2] += sum[blocks - 1];
            count[blocks - 2] += count[blocks - 1];
            blocks--;
        }
    }
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < count[b]; i++)
            t->window_us[row++] = to_us(sum[b] / count[b]);
    for (int s = 1; s <= SLOTS_MAX; s++) {
        t->draft_us[s] = to_us(t->draft_us[s]);
        if (s > 1 && t->draft_us[s] < t->draft_us[s - 1])
            t->draft_us[s] = t->draft_us[s - 1];
    }
}

void depth_note(struct depth_history *h, const struct cost_table *t, int rows, bool drafted,
                int tokens)
{
    h->tokens[h->at] = tokens;
    h->us[h->at] = to_us((int64_t)cost_window(t, rows) + (drafted ? t->draft_us[1] : 0));
    h->at = (h->at + 1) % DEPTH_ROUNDS;
    if (h->n < DEPTH_ROUNDS)
        h->n++;
}

double depth_lambda(const struct depth_history *h, const struct cost_table *t)
{
    int64_t tokens = 0, us = 0;

    if (h->n == 0)
        return 2.0 / ((double)cost_window(t, 2) + t->draft_us[1]);
    for (int i = 0; i < h->n; i++) {
        tokens += h->tokens[i];
        us += h->us[i];
    }
    return (double)tokens / (double)us;
}

int depth_choose(const double *q, int n, double lambda, const struct cost_table *t, double *E,
                 int32_t *us)
{
    double expect = 1, survive = 1, best = 1 - lambda * cost_window(t, 1), best_E = 1;
    int k = 0;

    for (int i = 1; i <= n; i++) {
        double surplus;

        survive *= q[i - 1];
        expect += survive;
        surplus = expect - lambda * cost_window(t, 1 + i);
        if (surplus > best) {
            best = surplus;
            best_E = expect;
            k = i;
        }
    }
    if (E)
        *E = best_E;
    if (us)
        *us = cost_window(t, 1 + k);
    return k;
}

double conf_q(const struct conf_calibration *c, bool sampled, int position, double p)
{
    double f =
        (c->kept[sampled][position] + CONF_PRIOR) / (c->prob[sampled][position] + CONF_PRIOR);

    f = f < 0.2 ? 0.2 : f > 3.0 ? 3.0 : f;
    return p * f < CONF_MOST ? p * f : CONF_MOST;
}

void conf_note(struct conf_calibration *c, bool sampled, const float *p, int k, int a)
{
    for (int i = 0; i < k && i <= a; i++) {
        double *kept = &c->kept[sampled][i], *prob = &c->prob[sampled][i];

        *kept = *kept * CONF_DECAY + (i < a ? 1 : 0);
        *prob = *prob * CONF_DECAY + (double)p[i];
    }
}
