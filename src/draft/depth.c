/* depth.c owns the price of a row and the choice that follows from it; who draws up the table is
 * the rank's. */
#include "src/draft/depth.h"

#include <assert.h>
#include <string.h>

#define CONF_PRIOR 2.0  /* trials that a position starts with */
#define CONF_DECAY 0.97 /* of the sums, a round that reached the position */
#define CONF_MOST 0.995
#define MEANS_RATE 0.15

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

double depth_lambda_last(const struct depth_history *h, const struct cost_table *t, int rounds)
{
    int64_t tokens = 0, us = 0;

    if (h->n == 0)
        return 2.0 / ((double)cost_window(t, 2) + t->draft_us[1]);
    for (int i = 1; i <= h->n && i <= rounds; i++) {
        int at = (h->at - i + DEPTH_ROUNDS) % DEPTH_ROUNDS;

        tokens += h->tokens[at];
        us += h->us[at];
    }
    return (double)tokens / (double)us;
}

double depth_lambda(const struct depth_history *h, const struct cost_table *t)
{
    return depth_lambda_last(h, t, DEPTH_ROUNDS);
}

double depth_expect(const double *q, int k)
{
    double expect = 1, survive = 1;

    for (int i = 0; i < k; i++) {
        survive *= q[i];
        expect += survive;
    }
    return expect;
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

int depth_chain(const double *q, int n, double lambda, int32_t cell_us, const struct cost_table *t)
{
    double survive = 1;
    int k = 0;

    for (; k < n; k++) {
        double us = (double)cell_us + cost_window(t, 2 + k) - cost_window(t, 1 + k);

        survive *= q[k];
        if (!(survive > lambda * us))
            break;
    }
    return k;
}

double depth_gain(const double *q, int n, double lambda, const struct cost_table *t)
{
    double expect;
    int32_t us;

    depth_choose(q, n, lambda, t, &expect, &us);
    return (expect - lambda * us) - (1 - lambda * cost_window(t, 1));
}

/* ---- shared rounds --------------------------------------------------------------------------- */

/* Chance that the draft behind the slot's k-th is reached and accepted; 0 if it may not have it. */
static double survival(const struct depth_share *s)
{
    double p = 1;

    if (s->k == s->offered || s->rate < SHARE_RATE)
        return 0;
    for (int i = 0; i <= s->k; i++)
        p *= s->q[i];
    return p;
}

int depth_fill(struct depth_share *share, int n, int bucket, const struct cost_table *t)
{
    struct depth_share best[SLOTS_MAX];
    int rows = 0, added = 0;
    double tokens = 0, rate;

    for (int s = 0; s < n; s++) {
        double p = 1;

        best[s] = share[s];
        rows += 1 + share[s].k;
        tokens += 1;
        for (int i = 0; i < share[s].k; i++)
            tokens += p *= share[s].q[i];
    }
    rate = SHARE_GAIN * tokens / cost_window(t, rows);
    for (int more = 1; rows + more <= bucket; more++) {
        double most = 0;
        int to = -1;

        for (int s = 0; s < n; s++) {
            double p = survival(&best[s]);

            if (p > most) {
                most = p;
                to = s;
            }
        }
        if (to < 0)
            break;
        best[to].k++;
        tokens += most;
        if (tokens / cost_window(t, rows + more) >= rate) {
            rate = tokens / cost_window(t, rows + more);
            added = more;
            for (int s = 0; s < n; s++)
                share[s].k = best[s].k;
        }
    }
    return added;
}

/* ---- skipped passes -------------------------------------------------------------------------- */

bool pass_wanted(struct pass_skip *s)
{
    if (s->left == 0)
        return true;
    s->left--;
    s->probe = s->left == 0;
    return false;
}

void pass_note(struct pass_skip *s, double gain, double lambda, int32_t draft_us)
{
    double gains = 0, prices = 0;

    if (s->probe) {
        if (gain < lambda * draft_us)
            s->left = SKIP_ROUNDS;
        else
            *s = (struct pass_skip){ 0 };
        return;
    }
    s->gain[s->at] = gain;
    s->price[s->at] = lambda * draft_us;
    s->at = (s->at + 1) % DEPTH_ROUNDS;
    if (s->n < DEPTH_ROUNDS)
        s->n++;
    if (s->n < DEPTH_ROUNDS)
        return;
    for (int i = 0; i < DEPTH_ROUNDS; i++) {
        gains += s->gain[i];
        prices += s->price[i];
    }
    if (gains < prices)
        *s = (struct pass_skip){ .left = SKIP_ROUNDS };
}

/* ---- chances --------------------------------------------------------------------------------- */

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

static double prior(bool alone)
{
    return alone ? 0.7 : 0.6;
}

double means_q(const struct accept_means *m, bool alone, int position)
{
    double q = m->seen[position] ? m->mean[position] : prior(alone);

    return q < CONF_MOST ? q : CONF_MOST;
}

bool means_probe(const struct accept_means *m)
{
    return m->rounds % MEANS_PROBE == MEANS_PROBE - 1;
}

void means_note(struct accept_means *m, bool alone, int k, int a)
{
    m->rounds++;
    for (int i = 0; i < k && i <= a; i++) {
        double *mean = &m->mean[i];

        if (!m->seen[i])
            *mean = prior(alone);
        m->seen[i] = true;
        *mean += MEANS_RATE * ((i < a ? 1 : 0) - *mean);
    }
}
