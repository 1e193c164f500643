/* tally - the record of one round, and sums over records.
 *
 * A round fills a fixed record; everything that is said about rounds later, on a terminal, in a
 * file or on a page, is a sum over records. Definitions are in docs/DECODE.md "round log".
 */
#ifndef TANDEM_RANK_TALLY_H
#define TANDEM_RANK_TALLY_H

#include "src/base/limits.h"
#include "src/draft/speculation.h"
#include "src/rank/landing.h"
#include "src/rank/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TALLY_GAP_NS INT64_C(50000000)

/* How the window's ops reached the device. */
enum round_mode { MODE_EAGER, MODE_CAPTURE, MODE_REPLAY, MODES };

const char *mode_name(enum round_mode m);
/* finish_name - of the log: "end" and "stop" apart; finish_reason - of a reply: both are "stop". */
const char *finish_name(enum finish f);
const char *finish_reason(enum finish f);

/* The first draft of a window that verified none, against the token that was chosen instead. */
enum skipped { SKIPPED_UNKNOWN, SKIPPED_WRONG, SKIPPED_RIGHT };

/* One slot's part of a round. */
struct round_slot {
    int slot, pos, k, a, landed; /* k drafts verified, a of them accepted */
    enum plan_source source;
    enum finish finish; /* on rank 0; followers only know that it is over */
    enum skipped skipped;
    int offered;                        /* drafts that the pass proposed, at least k */
    float p[WINDOW_MAX], q[WINDOW_MAX]; /* their chances, raw and calibrated */
    double expect, lambda;              /* of k drafts; 0 where it was not priced */
    int32_t cost_us;
};

struct round_record {
    uint32_t round;
    int64_t t_ns; /* clock_ns() when the plan was sent or came */
    int windows, rows;
    int bucket, ctx; /* padded rows; largest position */
    enum round_mode mode;
    enum spec_end spec; /* the worst of the slots that wanted drafts */
    struct round_slot slot[SLOTS_MAX];
    int64_t proposed; /* drafts of the passes since the last window, its own pass included */
    int64_t prompt_rows, prompt_ns; /* prompt chunks since the last window */
    int64_t plan_ns, stage_ns, launch_ns, engram_ns, window_ns, choose_ns;
    int64_t draft_ns, draft_wait_ns, ingest_ns, commit_ns, idle_ns;
    int64_t ahead_ns; /* asking n-gram rows of the next window ahead; hosts */
    int64_t bring_ns; /* taking the window's n-gram rows while a device runs; engram_ns: on hosts */
    int64_t wall_ns; /* from the end of the last round, or from the plan where others ran between */
    int64_t exchanges, wait_ns, move_ns;
    int64_t window_wait_ns, choose_wait_ns; /* of wait_ns; the rest is the draft pass's */
    /* rows of n-gram tables since the last window had run: asked; of these in the cache or being
     * read already; reads that ended; takes that waited */
    int64_t engram_rows, engram_hits, engram_reads, engram_waits;
    bool lag_known; /* on followers whose clock was compared */
    int64_t lag_ns; /* this rank's window start minus rank 0's */
};

/* Share of windows with chances in one tenth of [0, 1): how many, the sum of chances in millionths,
 * how many came true. */
struct tenth {
    uint64_t n, q_ppm, hits;
};

/* Sums over records. Every member is 64 bits wide. */
struct tally {
    uint64_t rounds, windows, rows, landed, drafted, accepted;
    uint64_t tries[WINDOW_MAX], hits[WINDOW_MAX]; /* draft j was reached; and accepted */
    uint64_t depth[WINDOW_MAX];                   /* windows by k */
    uint64_t offered;                             /* windows that could have verified a draft */
    uint64_t skipped[SKIPPED_RIGHT + 1];          /* of those, windows that verified none */
    struct tenth tenth[10];                       /* by q of the first draft */
    uint64_t source[SOURCES], drafted_of[SOURCES], accepted_of[SOURCES], mode[MODES],
        spec[SPEC_ENDS];
    uint64_t lags;
    int64_t lag_ns;
    int64_t proposed, prompt_rows, prompt_ns;
    int64_t plan_ns, stage_ns, launch_ns, engram_ns, window_ns, choose_ns;
    int64_t draft_ns, draft_wait_ns, ingest_ns, commit_ns, idle_ns, ahead_ns, bring_ns, wall_ns;
    int64_t exchanges, wait_ns, move_ns, window_wait_ns, choose_wait_ns;
    int64_t engram_rows, engram_hits, engram_reads, engram_waits;
    int64_t rest_ns; /* wall that no step accounts for, where it is less than TALLY_GAP_NS; */
    int64_t gap_ns;  /* and where it is more: nobody had work */
};

/* The numbers of a record that a tally adds up: their key and unit in a line of the log, and where
 * they are. */
enum record_unit { UNIT_COUNT, UNIT_US, UNIT_MS };
struct record_field {
    const char *key;
    enum record_unit unit;
    size_t in_record, in_tally; /* offsets of an int64_t */
};

/* record_fields - in the order of the log's lines; ends with a NULL key. */
extern const struct record_field record_fields[];

static inline int64_t record_number(const struct round_record *r, const struct record_field *f)
{
    return *(const int64_t *)(const void *)((const char *)r + f->in_record);
}

static inline int64_t tally_number(const struct tally *t, const struct record_field *f)
{
    return *(const int64_t *)(const void *)((const char *)t + f->in_tally);
}

/* record_busy_ns - the steps of a round that follow each other, all that its wall time holds but
 * waiting without a name. */
int64_t record_busy_ns(const struct round_record *r);

/* tally_add - a record that is complete joins the sums. */
void tally_add(struct tally *t, const struct round_record *r);

/* tally_minus - what happened since `before`. */
struct tally tally_minus(const struct tally *t, const struct tally *before);

/* per - a / b for means and shares; 0 where nothing was counted. */
static inline double per(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* tally_depth - positions that were drafted at least once. */
int tally_depth(const struct tally *t);

/* tally_reach - windows with at least j drafts, j from 1: survival at j is hits[j - 1] of these. */
uint64_t tally_reach(const struct tally *t, int j);

#endif
