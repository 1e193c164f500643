/* bench - rows of `tandem bench`: as a table, as JSON, and two JSON files against each other.
 *
 * Of a kind of text at a number of streams and a temperature:
 *   stream   decode tok/s of one stream: (tokens - 1) / (last - first token), over its replies
 *   all      tok/s of all streams together: tokens / (last - first token of the group)
 *   serial   decode tok/s of the same texts, each alone and without drafts
 *   speed-up  all / serial
 *   exact    every reply has the ids, text and reason of its serial one
 */
#ifndef TANDEM_RANK_BENCH_H
#define TANDEM_RANK_BENCH_H

#include "src/rank/tally.h"

#include <stdbool.h>
#include <stdint.h>

struct rank;

#define BENCH_ROWS 48

struct bench_row {
    char kind[32];
    int streams;
    double temperature;
    int64_t tokens, counted, stream_ns,
        wall_ns; /* counted: tokens behind the first of each reply */
    int64_t serial_tokens, serial_ns;
    bool exact;
    uint64_t rounds, windows, landed, drafted, accepted;
    uint64_t tries[WINDOW_MAX], hits[WINDOW_MAX];
};

/* bench_add - what rounds came to. */
void bench_add(struct bench_row *row, const struct tally *t);

/* bench_print - to stdout.
 * result   an exit code: 1 if a row is not exact, 73 if stdout cannot be written */
int bench_print(const struct rank *k, const struct bench_row *row, int rows, bool json);

/* bench_compare - two files that --json printed, row by row.
 * result   an exit code: 1 if a row of either is not exact; 65, 66 what is wrong with a file */
int bench_compare(const char *a, const char *b);

#endif
