/* roundlog - what every round did and how long each part took: one JSON line a round, and the sums
 * of all rounds.
 *
 * The round fills a fixed record; another thread adds records up and turns them into lines of
 * <folder>/rank<r>.jsonl, and every 64 rounds rewrites the phases in <folder>/rank<r>.phases.json.
 * Fields and definitions are in docs/DECODE.md "round log".
 */
#ifndef TANDEM_RANK_ROUNDLOG_H
#define TANDEM_RANK_ROUNDLOG_H

#include "src/rank/tally.h"

/* What a log is about; strings are copied. */
struct roundlog_about {
    int rank, ranks;
    const char *model, *family, *drafter, *backend, *link, *numerics;
};

struct roundlog;

/* roundlog_open - make the folder, and its files anew; the lines of the run before, which may say
 * why it ended, go to rank<r>.jsonl.old. An empty folder: only the sums are kept.
 * errors   -EACCES, -ENOSPC ... of a file; -ENOMEM, -EAGAIN; logged */
int roundlog_open(const char *folder, const struct roundlog_about *a, struct roundlog **out);

/* roundlog_put - from the round's thread; no lock, no wait while the writer keeps up. NULL is
 * fine. */
void roundlog_put(struct roundlog *l, const struct round_record *r);

/* roundlog_sums - of the records that the writer has seen so far. Any thread. */
struct tally roundlog_sums(struct roundlog *l);

/* roundlog_close - writes the rest and a last line with the sums.
 * errors   the first error of a write, logged. NULL is fine */
int roundlog_close(struct roundlog *l);

#endif
