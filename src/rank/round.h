/* round - carries out rank 0's orders on one rank; the same calls on every rank, in the same order.
 *
 *   ROUND:  keep (what the last round landed) -> window -> forward -> accept -> commit -> observe
 *           -> propose -> wait
 *
 * Rank 0 calls these with what it decided, followers with what they decoded (order.h, follow.h).
 * Every rank computes every outcome; a follower compares its own with rank 0's, which arrives with
 * the next order, and the digest over all outcomes so far. Nothing here decides anything.
 *
 * errors   of every call: a negative errno after rank_broken; the group is over then
 */
#ifndef TANDEM_RANK_ROUND_H
#define TANDEM_RANK_ROUND_H

#include "src/draft/drafter.h"
#include "src/model/row_store.h"
#include "src/rank/plan.h"
#include "src/rank/rank.h"
#include "src/rank/roundlog.h"

#include <stdbool.h>

/* A request in a slot, as every rank knows it. */
struct seat {
    bool taken, drafts;
    int32_t *prompt; /* [bounds.context], made once */
    int n;
    /* of its last window */
    bool open; /* what landed is not known yet */
    int before, n_ok;
    int32_t next, choice[WINDOW_MAX];
    int record_slot; /* its place in the record */
    /* of the newest draft pass, if no window has run since */
    bool pass_ready;
    int drafts_n;
    int32_t draft[WINDOW_MAX];
    float conf[WINDOW_MAX];
    bool bad; /* the pass had a number that is not finite */
};

struct parts;

struct rounds {
    struct rank *k;
    struct seat seat[SLOTS_MAX];
    struct sampler sampler[SLOTS_MAX];
    struct parts *parts;
    struct proposal pass; /* the one that is queued */
    uint32_t number;      /* of the next round */
    uint64_t digest;
    uint64_t *word; /* room for one encoded order */
    struct logit_bias bias[LOGIT_BIASES_MAX]; /* of an ADMIT that is being decoded */

    struct round_record rec; /* of the last round; a follower's waits for what landed */
    bool rec_open;
    struct tally tally;
    struct roundlog *log;
    int64_t prompt_rows, prompt_ns, proposed, pass_ns; /* since the last window; see the record */
    int64_t start_ns;                         /* when the last round's window started */
    int64_t end_ns, device_end_ns;            /* of the last round, on either clock */
    bool follows_round;                       /* nothing ran since the last round */
    struct row_store_stats rows;              /* when the last window had run */
};

/* round_open - errors   an errno, logged: memory, or the log's file */
int round_open(struct rank *k, struct rounds **out);

/* round_close - writes the rest of the log; NULL is fine.   errors   of the log's file */
int round_close(struct rounds *r);

/* plan_ns: time that the order took to send or was waited for; t_ns: when it was there. */
/* round_bucket - rows that the plan's window has on devices; its row_bucket. 0: as many as planned. */
int round_bucket(const struct rounds *r, const struct plan_round *p);

int round_run(struct rounds *r, const struct plan_round *p, int64_t t_ns, int64_t plan_ns);
int round_admit(struct rounds *r, const struct plan_admit *p);
int round_fill(struct rounds *r, const struct plan_span *p);
int round_draft(struct rounds *r, const struct plan_draft *p);
int round_keep(struct rounds *r, const struct plan_keep *p);
int round_release(struct rounds *r, int slot);

/* round_score - run known rows with logits; fn, if not NULL, gets the logits of every row in
 * turn. */
typedef void score_fn(void *arg, int pos, const float *logits);
int round_score(struct rounds *r, const struct plan_span *p, score_fn *fn, void *arg);

/* round_calibrate - a window that is dropped or a draft pass that nobody uses; *ns: how long it
 * took. */
int round_calibrate(struct rounds *r, const struct plan_calibrate *p, int64_t *ns);

/* round_record_done - the record of the last round is complete: add it up and hand it to the
 * log. */
void round_record_done(struct rounds *r);

#endif
