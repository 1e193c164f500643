/* report - what rounds came to, in words and as a table on a terminal. */
#ifndef TANDEM_RANK_REPORT_H
#define TANDEM_RANK_REPORT_H

#include "src/rank/tally.h"

#include <stdio.h>

struct reply;

/* report_reply - the log's line about a finished reply. */
void report_reply(const struct reply *r);

/* report_sums - the log's lines about rounds: speed, acceptance, where the time went. None if
 * nothing ran. */
void report_sums(const struct tally *t);

/* One line of the table. */
struct report_row {
    const char *name;
    struct tally drafted, serial; /* sums of the rounds of either run */
};

/* report_table - speeds and acceptance, then times a round.
 * units    tok/s counts decoding only; times are means of rank 0 */
void report_table(const struct report_row *row, int n, FILE *f);

#endif
