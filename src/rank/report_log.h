/* report_log - one rank's round log read back: what a page and a table are made of.
 *
 * Nothing in a log is believed: a line that is no round in every number is left out, counted, and
 * the first few are named with what is wrong with them. Keys that this build does not know are
 * named too and otherwise ignored, so a newer log can be read.
 */
#ifndef TANDEM_RANK_REPORT_LOG_H
#define TANDEM_RANK_REPORT_LOG_H

#include "src/base/file.h"
#include "src/rank/report_speed.h"

/* What a round's time is made of: steps in the order of time, each without what it waited in
 * exchanges; that waiting; and what is left. */
enum part {
    PART_PLAN,
    PART_STAGE,
    PART_ROWS,
    PART_WINDOW,
    PART_CHOOSE,
    PART_INGEST,
    PART_DRAFT,
    PART_COMMIT,
    PART_STEPS,
    PART_WAIT = PART_STEPS,
    PART_REST,
    PARTS
};

/* part_name - "verify window"; part_help - one sentence for people who see it the first time. */
const char *part_name(enum part p);
const char *part_help(enum part p);

/* One round in little memory, times in microseconds. */
struct log_round {
    uint32_t round;
    int64_t t_ns;
    float us[PARTS], wait_us[PART_STEPS], move_us, prompt_us, lag_us;
    uint16_t landed;
    bool lag_known;
};

/* log_round_us - all parts together. */
double log_round_us(const struct log_round *r);

enum { REPORT_NAMED = 5, REPORT_UNKNOWN = 8, REPORT_NAME_BYTES = 128 };

struct report_log {
    char path[PATH_CAP];
    int rank; /* of the summary, else of the file's name; -1: not known */
    int ranks;
    char model[PATH_CAP];
    char family[REPORT_NAME_BYTES], drafter[REPORT_NAME_BYTES], backend[REPORT_NAME_BYTES],
        link[REPORT_NAME_BYTES], numerics[REPORT_NAME_BYTES];

    struct tally sums;
    int64_t part_ns[PARTS];
    struct log_round *round;
    size_t rounds, cap;
    struct speed speed;

    bool ended; /* the line with the sums is there */
    bool cut;   /* the last line is not whole */
    unsigned long lines, bad;
    struct {
        unsigned long line;
        char why[160];
    } named[REPORT_NAMED]; /* the first bad lines */
    char unknown[REPORT_UNKNOWN][32];
    int unknowns;
};

/* report_log_open - errors   of the file: -ENOENT, -EACCES, -EISDIR, -EIO; -ENOMEM; logged */
int report_log_open(const char *path, struct report_log **out);
void report_log_close(struct report_log *l);

/* report_source - in words, where the drafts of windows came from */
const char *report_source(const struct report_log *l, int source);

/* report_log_line - one line, as if it stood in the file; for tests.   errors   -ENOMEM */
int report_log_line(struct report_log *l, const char *text, size_t bytes);

#endif
