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
#include "src/rank/exit_code.h"
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
    uint64_t *word;                           /* room for one encoded order */
    struct logit_bias bias[LOGIT_BIASES_MAX]; /* of an ADMIT that is being decoded */

    struct round_record rec; /* of the last round; a follower's waits for what landed */
    bool rec_open;
    struct tally tally;
    struct roundlog *log;
    int64_t prompt_rows, prompt_ns, proposed, pass_ns; /* since the last window; see the record */
    int64_t start_ns;                                  /* when the last round's window started */
    int64_t end_ns, device_end_ns;                     /* of the last round, on either clock */
    bool follows_round;                                /* nothing ran since the last round */
    struct row_store_stats rows;                       /* when the last window had run */
};

/* round_open - errors   an errno, logged: memory, the device, a peer that is gone, the log's file;
 *          *step says which code it has */
int round_open(struct rank *k, enum exit_step *step, struct rounds **out);

/* round_close - writes the rest of the log; NULL is fine.   errors   of the log's file */
int round_close(struct rounds *r);

/* round_bucket - rows that the plan's window has on devices; its row_bucket. 0: as many as
 * planned. */
int round_bucket(const struct rounds *r, const struct plan_round *p);

/* round_run - one ROUND: keeps what the last one landed, then verifies a window of each slot named,
 * and runs the draft passes that are asked for behind it. Outcomes are in the seats until they are
 * kept.
 *
 * units    t_ns is when the order was there, plan_ns how long it took to send or was waited for
 * errors   also what does not fit a slot: not taken, last window not kept, another position */
int round_run(struct rounds *r, const struct plan_round *p, int64_t t_ns, int64_t plan_ns);

/* round_admit - a request takes a free slot: prompt, sampler, biases; nothing of it has run. */
int round_admit(struct rounds *r, const struct plan_admit *p);

/* round_fill - rows start .. end - 1 of a slot's prompt, without a head. The last token is not
 * among them: it is the pending token of the slot's first ROUND. */
int round_fill(struct rounds *r, const struct plan_span *p);

/* round_draft - draft passes that no window runs in front of; the drafts are in the seats. */
int round_draft(struct rounds *r, const struct plan_draft *p);

/* round_keep - what rank 0 landed of each slot's last window: a slot goes back to it where that is
 * less than was accepted.
 * errors   also outcomes, or the digest of all so far, that differ from rank 0's */
int round_keep(struct rounds *r, const struct plan_keep *p);

/* round_release - the slot is free; its last window has been kept. */
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
