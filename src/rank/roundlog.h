/* roundlog - what every round did and how long each part took: one JSON line a round, and the sums of all rounds.
 *
 * The round fills a fixed record; another thread turns records into lines of <folder>/rank<r>.jsonl. Fields and
 * definitions are in docs/DECODE.md "round log".
 */
#ifndef TANDEM_RANK_ROUNDLOG_H
#define TANDEM_RANK_ROUNDLOG_H

#include "src/base/limits.h"
#include "src/rank/landing.h"
#include "src/rank/plan.h"

#include <stdint.h>
#include <stdio.h>

/* finish_name - of the log: "end" and "stop" apart; finish_reason - of a reply: both are "stop". */
const char *finish_name(enum finish f);
const char *finish_reason(enum finish f);

/* One slot's part of a round. */
struct round_slot {
    int slot, pos, k, a, landed; /* k drafts verified, a of them accepted */
    enum plan_source source;
    enum finish finish;                 /* on rank 0; followers only know that it is over */
    int offered;                        /* drafts that the pass proposed, at least k */
    float p[WINDOW_MAX], q[WINDOW_MAX]; /* their chances, raw and calibrated */
    double expect, lambda;              /* of the choice of k; 0 where it was not priced */
    int32_t cost_us;
};

struct round_record {
    uint32_t round;
    int64_t t_ns; /* clock_ns() when the plan was sent or came */
    int windows, rows;
    struct round_slot slot[SLOTS_MAX];
    int passes; /* slots of the draft pass behind the window */
    int64_t plan_ns, window_ns, choose_ns, draft_ns, ingest_ns, commit_ns, idle_ns;
    uint64_t exchanges, wait_ns, move_ns;
};

/* Sums over records. */
struct tally {
    uint64_t rounds, windows, rows, landed, drafted, accepted, passes;
    uint64_t tries[WINDOW_MAX], hits[WINDOW_MAX]; /* draft j was reached; and accepted */
    uint64_t depth[WINDOW_MAX];                   /* windows by k */
    int64_t plan_ns, window_ns, choose_ns, draft_ns, ingest_ns, commit_ns, idle_ns;
    uint64_t exchanges, wait_ns, move_ns;
    uint64_t prompt_tokens;
    int64_t prompt_ns,
        decode_ns; /* wall: prompts; from the first round's plan to the last one's end */
};

void tally_add(struct tally *t, const struct round_record *r);

/* tally_minus - what happened since `before`. */
struct tally tally_minus(const struct tally *t, const struct tally *before);

/* tally_depth - positions that were drafted at least once. */
int tally_depth(const struct tally *t);

struct roundlog;

/* roundlog_open - make the folder, and the file anew.
 * errors   -EACCES, -ENOSPC ... of the file; -ENOMEM; logged */
int roundlog_open(const char *folder, int rank, struct roundlog **out);

/* roundlog_put - from the round's thread; no lock, no wait while the writer keeps up. NULL is fine. */
void roundlog_put(struct roundlog *l, const struct round_record *r);

/* roundlog_close - writes the rest and a last line with the sums.
 * errors   the first error of a write, logged. NULL is fine */
int roundlog_close(struct roundlog *l, const struct tally *t);

#endif
