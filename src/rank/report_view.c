/* report_view.c owns what is chosen from long logs; the sentences are report_verdict.c's. */
#include "src/rank/report_view.h"

#include "src/base/log.h"
#include "src/base/sort.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double view_part_ms(const struct report_log *l, enum part p)
{
    return l->rounds ? (double)l->part_ns[p] / 1e6 / (double)l->rounds : 0;
}

double view_round_ms(const struct report_log *l)
{
    double ms = 0;

    for (int p = 0; p < PARTS; p++)
        ms += view_part_ms(l, (enum part)p);
    return ms;
}

double view_tok_s(const struct report_log *l)
{
    const struct speed_sum *g = &l->speed.group;

    return g->ns > 0 ? (double)g->tokens * 1e9 / (double)g->ns
                     : per((double)l->sums.landed * 1e9, (double)l->sums.wall_ns);
}

double view_median_ms(const struct view_log *w)
{
    return w->median_us / 1e3;
}

double view_p99_ms(const struct view_log *w)
{
    return w->p99_us / 1e3;
}

double view_max_ms(const struct view_log *w)
{
    return w->max_us / 1e3;
}

double view_idle_ms(const struct view_log *w)
{
    return (double)w->log->sums.gap_ns / 1e6;
}

double view_exchanges(const struct view_log *w)
{
    return per((double)w->log->sums.exchanges, (double)w->log->sums.rounds);
}

double view_wait_ms(const struct view_log *w)
{
    return per((double)w->log->sums.wait_ns / 1e6, (double)w->log->sums.rounds);
}

double view_wait_us(const struct view_log *w)
{
    return per((double)w->log->sums.wait_ns / 1e3, (double)w->log->sums.exchanges);
}

double view_move_us(const struct view_log *w)
{
    return per((double)w->log->sums.move_ns / 1e3, (double)w->log->sums.exchanges);
}

double view_lag_us(const struct view_log *w)
{
    return per((double)w->log->sums.lag_ns / 1e3, (double)w->log->sums.lags);
}

const struct log_round *view_round(const struct report_log *l, uint32_t round)
{
    size_t lo = 0, hi = l->rounds;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (l->round[mid].round < round)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < l->rounds && l->round[lo].round == round ? &l->round[lo] : NULL;
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static int64_t start_of(const struct log_round *r)
{
    return r->t_ns + llround(((double)r->us[PART_STAGE] + (double)r->us[PART_ROWS]) * 1e3);
}

/* Of the rounds in common, the median of this log's window start minus the first one's, less the
 * lag where that is known. */
static int align(struct view_log *w, const struct report_log *first)
{
    const struct report_log *l = w->log;
    int64_t *d = malloc((l->rounds ? l->rounds : 1) * sizeof(*d));
    size_t known = 0, common = 0;
    bool behind = first->rank <= 0; /* lags are behind rank 0 */

    if (!d)
        return fail(-ENOMEM, "report: out of memory");
    for (size_t i = 0; i < l->rounds; i++)
        known += behind && l->round[i].lag_known && view_round(first, l->round[i].round);
    for (size_t i = 0; i < l->rounds; i++) {
        const struct log_round *r = &l->round[i], *with = view_round(first, r->round);

        if (with && (r->lag_known || known == 0))
            d[common++] =
                start_of(r) - start_of(with) - (known ? llround((double)r->lag_us * 1e3) : 0);
    }
    w->clock = common == 0 ? CLOCK_NONE : known ? CLOCK_KNOWN : CLOCK_GUESSED;
    if (common > 0) {
        sort_i64(d, common);
        w->ahead_ns = d[common / 2];
    }
    free(d);
    return 0;
}

/* ---- thinning -------------------------------------------------------------------------------- */

static void fill_bins(struct view_log *w)
{
    const struct report_log *l = w->log;
    size_t each = (l->rounds + VIEW_BINS - 1) / VIEW_BINS;

    for (size_t i = 0; i < l->rounds; i++) {
        const struct log_round *r = &l->round[i];
        struct view_bin *b = &w->bin[i / each];

        if (i % each == 0) {
            w->bins++;
            b->first = r->round;
            b->at_s = (double)(r->t_ns - l->round[0].t_ns) / 1e9;
        }
        b->rounds++;
        b->tokens += r->landed;
        b->move_us += r->move_us;
        for (int p = 0; p < PARTS; p++)
            b->us[p] += r->us[p];
        if (log_round_us(r) > b->us_max)
            b->us_max = log_round_us(r);
    }
    for (int i = 0; i < w->bins; i++) {
        struct view_bin *b = &w->bin[i];

        b->tokens /= b->rounds;
        b->move_us /= b->rounds;
        for (int p = 0; p < PARTS; p++)
            b->us[p] /= b->rounds;
    }
}

static int fill_quantiles(struct view_log *w)
{
    const struct report_log *l = w->log;
    double *us = malloc((l->rounds ? l->rounds : 1) * sizeof(*us));

    if (!us)
        return fail(-ENOMEM, "report: out of memory");
    for (size_t i = 0; i < l->rounds; i++)
        us[i] = log_round_us(&l->round[i]);
    sort_f64(us, l->rounds);
    if (l->rounds > 0) {
        w->median_us = us[l->rounds / 2];
        w->p99_us = us[(size_t)((double)(l->rounds - 1) * 0.99)];
        w->max_us = us[l->rounds - 1];
    }
    free(us);
    return 0;
}

/* ---- stretches ------------------------------------------------------------------------------- */

static void add_cut(struct report_view *v, const char *title, size_t first)
{
    size_t n = v->of[0].log->rounds;

    for (int i = 0; i < v->cuts; i++)
        if (v->cut[i].first == first)
            return;
    v->cut[v->cuts++] =
        (struct view_cut){ .title = title,
                           .first = first,
                           .rounds = n - first < VIEW_STRETCH ? n - first : VIEW_STRETCH };
}

static double end_us(const struct log_round *r)
{
    return (double)r->t_ns / 1e3 + log_round_us(r) - (double)r->us[PART_PLAN] -
           (double)r->us[PART_REST];
}

/* The stretch whose length, gaps included, is nearest to that of median rounds. */
static size_t typical(const struct view_log *w)
{
    const struct report_log *l = w->log;
    double want = w->median_us * VIEW_STRETCH, best = INFINITY;
    size_t at = 0;

    for (size_t i = 0; i + VIEW_STRETCH <= l->rounds; i++) {
        const struct log_round *a = &l->round[i], *b = &l->round[i + VIEW_STRETCH - 1];
        double off = fabs(end_us(b) - (double)a->t_ns / 1e3 - want);

        if (off < best) {
            best = off;
            at = i;
        }
    }
    return at;
}

static size_t around_slowest(const struct report_log *l)
{
    size_t slow = 0;

    for (size_t i = 0; i < l->rounds; i++)
        if (log_round_us(&l->round[i]) > log_round_us(&l->round[slow]))
            slow = i;
    if (slow < VIEW_STRETCH / 2)
        return 0;
    slow -= VIEW_STRETCH / 2;
    return slow + VIEW_STRETCH <= l->rounds ? slow : l->rounds - VIEW_STRETCH;
}

static void choose_cuts(struct report_view *v)
{
    const struct report_log *l = v->of[0].log;

    if (l->rounds == 0)
        return;
    if (l->rounds <= VIEW_STRETCH) {
        add_cut(v, "all rounds", 0);
        return;
    }
    add_cut(v, "typical rounds", typical(&v->of[0]));
    add_cut(v, "around the slowest round", around_slowest(l));
    add_cut(v, "the first rounds", 0);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int by_rank(const void *a, const void *b)
{
    const struct report_log *l = ((const struct view_log *)a)->log;
    const struct report_log *m = ((const struct view_log *)b)->log;
    int x = l->rank < 0 ? RANKS_MAX : l->rank, y = m->rank < 0 ? RANKS_MAX : m->rank;

    if ((l->rounds == 0) != (m->rounds == 0))
        return l->rounds == 0 ? 1 : -1;
    return x != y ? (x > y) - (x < y) : strcmp(l->path, m->path);
}

static void name_logs(struct report_view *v)
{
    for (int i = 0; i < v->n; i++) {
        int rank = v->of[i].log->rank, same = 0;

        for (int j = 0; j < i; j++)
            same += v->of[j].log->rank == rank;
        if (rank < 0)
            snprintf(v->of[i].label, sizeof(v->of[i].label), "log %d", i + 1);
        else if (same)
            snprintf(v->of[i].label, sizeof(v->of[i].label), "rank %d (%d)", rank, same + 1);
        else
            snprintf(v->of[i].label, sizeof(v->of[i].label), "rank %d", rank);
    }
}

int report_view_open(struct report_log *const *log, int n, struct report_view **out)
{
    struct report_view *v = calloc(1, sizeof(*v));
    int err = 0;

    if (!v) {
        for (int i = 0; i < n; i++)
            report_log_close(log[i]);
        return fail(-ENOMEM, "report: out of memory");
    }
    v->n = n;
    for (int i = 0; i < n; i++)
        v->of[i].log = log[i];
    qsort(v->of, (size_t)n, sizeof(v->of[0]), by_rank);
    name_logs(v);
    for (int i = 0; i < n && err == 0; i++) {
        fill_bins(&v->of[i]);
        err = fill_quantiles(&v->of[i]);
        if (err == 0 && i > 0)
            err = align(&v->of[i], v->of[0].log);
    }
    if (err < 0) {
        report_view_close(v);
        return err;
    }
    choose_cuts(v);
    view_judge(v);
    *out = v;
    return 0;
}

void report_view_close(struct report_view *v)
{
    if (!v)
        return;
    for (int i = 0; i < v->n; i++)
        report_log_close(v->of[i].log);
    free(v);
}
