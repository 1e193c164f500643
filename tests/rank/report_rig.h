/* report_rig - round logs made by hand, for tests of what is made of them. */
#ifndef TANDEM_TESTS_RANK_REPORT_RIG_H
#define TANDEM_TESTS_RANK_REPORT_RIG_H

#include "src/rank/report_view.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rank whose rounds are all alike. Milliseconds. */
struct rig_rank {
    int rank;
    int rounds;
    double window, wait, plan, rest; /* wait is part of the window */
    double lag;                      /* below 0: not logged */
    int k, a;                        /* of every round */
    double q;
    int every, odd_rest; /* every so many rounds take odd_rest more, outside of all steps */
    double clock;        /* what its clock shows at the first plan */
    double length;       /* of a round; 0: what its parts come to */
};

static inline struct report_log *rig_log(const struct rig_rank *r)
{
    struct report_log *l = calloc(1, sizeof(*l));
    double t = r->clock;

    cr_assert(l != NULL);
    l->rank = r->rank;
    snprintf(l->path, sizeof(l->path), "/tmp/rank%d.jsonl", r->rank);
    for (int i = 0; i < r->rounds; i++) {
        double rest = r->rest + (r->every && i % r->every == r->every - 1 ? r->odd_rest : 0);
        double length = r->window + r->plan + rest;
        char lag[32] = "null", line[512];
        int n;

        if (r->lag >= 0)
            snprintf(lag, sizeof(lag), "%.3f", r->lag * 1e3);
        n = snprintf(
            line, sizeof(line),
            "{\"r\":%d,\"t\":%lld,\"win\":[{\"slot\":0,\"P\":%d,\"src\":\"%s\",\"k\":%d,"
            "\"a\":%d,\"landed\":%d}],\"p\":[[%g]],\"q\":[[%g]],\"window_ms\":%.4f,\"plan_us\":%."
            "3f,"
            "\"wall_ms\":%.4f,\"xn\":8,\"xwait_us\":%.3f,\"xwait_window_us\":%.3f,\"xmove_us\":5,"
            "\"proposed\":5,\"lag_us\":%s}",
            i, (long long)(t * 1e6), 10 + i * (r->a + 1), r->k ? "dspark" : "none", r->k, r->a,
            r->a + 1, r->q, r->q, r->window, r->plan * 1e3, length, r->wait * 1e3, r->wait * 1e3,
            lag);
        cr_assert(report_log_line(l, line, (size_t)n) == 0);
        cr_assert(l->bad == 0, "%s", l->named[0].why);
        t += r->length > 0 ? r->length : length;
    }
    cr_assert(speed_end(&l->speed) == 0);
    return l;
}

static inline struct report_view *rig_view(const struct rig_rank *r, int n)
{
    struct report_log *log[VIEW_LOGS];
    struct report_view *v;

    for (int i = 0; i < n; i++)
        log[i] = rig_log(&r[i]);
    cr_assert(report_view_open(log, n, &v) == 0);
    return v;
}

#endif
