/* report_view - the logs of a group side by side: on one clock, thinned out, and judged.
 *
 * The first log is that of the lowest rank which has a round: tokens, drafts and requests are told
 * by it alone. However long the logs are, a view is small.
 */
#ifndef TANDEM_RANK_REPORT_VIEW_H
#define TANDEM_RANK_REPORT_VIEW_H

#include "src/rank/report_log.h"

enum {
    VIEW_LOGS = 8,
    VIEW_BINS = 200,                   /* parts of the whole run */
    VIEW_CUTS = 3,                     /* stretches that are shown round by round */
    VIEW_STRETCH = 8,                  /* rounds of a stretch */
    VIEW_VERDICT = 12 + 2 * VIEW_LOGS, /* sentences: of the run, and of logs with less in them */
    VIEW_SENTENCE = 320
};

/* How a log's times relate to the first one's. */
enum view_clock {
    CLOCK_OWN,     /* it is the first one */
    CLOCK_KNOWN,   /* by the lag that the rounds carry */
    CLOCK_GUESSED, /* no comparison: windows are taken to start together, at the median */
    CLOCK_NONE     /* no round in common */
};

/* Neighbouring rounds of one log, as means; us_max is the slowest round. */
struct view_bin {
    uint32_t first;
    double at_s; /* of its first round, since the log's first */
    double us[PARTS], move_us, us_max, tokens, rounds;
};

struct view_log {
    struct report_log *log;
    char label[32]; /* "rank 0" */
    enum view_clock clock;
    int64_t ahead_ns;
    struct view_bin bin[VIEW_BINS];
    int bins;
    double median_us, p99_us, max_us; /* of rounds */
};

/* Rounds `first` .. `first + rounds - 1` of the first log, by index. */
struct view_cut {
    const char *title;
    size_t first, rounds;
};

/* What a reader should know, most important first. */
enum verdict_kind { VERDICT_PLAIN, VERDICT_WARN };
struct verdict {
    enum verdict_kind kind;
    char text[VIEW_SENTENCE];
};

struct report_view {
    struct view_log of[VIEW_LOGS];
    int n;
    struct view_cut cut[VIEW_CUTS];
    int cuts;
    struct verdict verdict[VIEW_VERDICT];
    int verdicts;
};

/* report_view_open - n logs, 1 .. VIEW_LOGS, sorted by rank, those without a round at the end.
 * errors   -ENOMEM, logged; the logs are freed
 * owns     the logs, from the call on */
int report_view_open(struct report_log *const *log, int n, struct report_view **out);
void report_view_close(struct report_view *v);

/* view_round - a log's round of this number, NULL if it has none. */
const struct log_round *view_round(const struct report_log *l, uint32_t round);

/* view_judge - the sentences; called by open. */
void view_judge(struct report_view *v);

/* view_part_ms - a part's share of a log's rounds in milliseconds a round; view_round_ms - of
 * all. */
double view_part_ms(const struct report_log *l, enum part p);
double view_round_ms(const struct report_log *l);

/* view_tok_s - tokens a second of all streams together: over groups of requests, else over
 * rounds. */
double view_tok_s(const struct report_log *l);

/* One number of a log: of its rounds (median, slowest hundredth from, slowest), what it had nothing
 * to do in all; exchanges a round, what they wait a round; what one waits and moves; how late
 * windows start. */
double view_median_ms(const struct view_log *w);
double view_p99_ms(const struct view_log *w);
double view_max_ms(const struct view_log *w);
double view_idle_ms(const struct view_log *w);
double view_exchanges(const struct view_log *w);
double view_wait_ms(const struct view_log *w);
double view_wait_us(const struct view_log *w);
double view_move_us(const struct view_log *w);
double view_lag_us(const struct view_log *w);

#endif
