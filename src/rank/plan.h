/* plan - the orders of rank 0 as words, and back with every number checked.
 *
 *   ADMIT      a request takes a slot: its prompt, sampler and biases
 *   FILL       a chunk of the prompt runs: rows start .. end - 1
 *   DRAFT      a draft pass for slots whose prompt has run
 *   ROUND      what the last round landed, this round's windows with all ids, draft passes behind
 *              them
 *   KEEP       what the last round landed when no round follows
 *   SCORE      a chunk of known rows with logits, gathered on every rank
 *   CALIBRATE  a window that is dropped, or a draft pass that nobody uses
 *   RELEASE    a slot is free again
 *   CLOCK      at the start, a few times: rank 0's clock, for the comparison in clocks.h
 *   STOP       the group ends as planned
 *
 * Rank 0 encodes and obeys; followers decode and obey. Decoding trusts nothing: a word is used
 * after its check, bits without a meaning are zero, and what a follower cannot check alone
 * (positions) is checked where it is obeyed. The frames below are plan_box.h's; layouts are in
 * docs/DECODE.md "plan frame".
 */
#ifndef TANDEM_RANK_PLAN_H
#define TANDEM_RANK_PLAN_H

#include "src/base/limits.h"
#include "src/rank/plan_box.h"
#include "src/verify/sampler.h"

#include <stddef.h>
#include <stdint.h>

enum plan_op {
    PLAN_ADMIT = 1,
    PLAN_FILL,
    PLAN_DRAFT,
    PLAN_ROUND,
    PLAN_KEEP,
    PLAN_SCORE,
    PLAN_CALIBRATE,
    PLAN_RELEASE,
    PLAN_CLOCK,
    PLAN_STOP,
    PLAN_OPS
};

enum admit_flag { ADMIT_DRAFT = 1, ADMIT_IGNORE_END = 2 };
/* MATCHED: all that was accepted landed; STOPPED: the request is over */
enum commit_flag { COMMIT_MATCHED = 1, COMMIT_STOPPED = 2 };
enum plan_source { SOURCE_NONE, SOURCE_DRAFTER, SOURCE_COPY, SOURCES }; /* of a window's drafts */
enum plan_arm { ARM_BEHIND = 1 };           /* the asked passes run behind this round's commit */
enum calibrate_flag { CALIBRATE_PASS = 1 }; /* a draft pass, no window */

/* What the numbers of this group may be. */
struct plan_bounds {
    int slots, vocab, context;
    int window_max;    /* rows of one slot in a ROUND */
    int prefill_chunk; /* rows of a FILL */
};

struct plan_admit {
    int slot, n, budget;
    unsigned flags;
    struct sampler sampler;        /* but for `prompt`, which is n */
    const int32_t *ids;            /* [n]. encode: the caller's. decode: as given */
    const struct logit_bias *bias; /* [sampler.biases], the same way */
};

struct plan_span { /* FILL, SCORE */
    int slot, start, end;
};

struct plan_ask {
    int slot, start; /* position of the pending token when the pass was asked for */
    int most;        /* drafts of a chain; 0: the drafter's block */
};

struct plan_draft {
    int asks;
    struct plan_ask ask[SLOTS_MAX];
};

struct plan_commit {
    int slot, keep; /* landed tokens of the slot's last window */
    unsigned flags;
    int32_t next; /* the last landed token */
};

struct plan_window {
    int slot, rows, pos;
    enum plan_source source;
};

struct plan_round {
    uint64_t digest; /* of all outcomes before this round */
    int commits, windows, asks, rows;
    unsigned arm;
    int row_bucket; /* rows of the padded window; 0: it is not padded */
    struct plan_commit commit[SLOTS_MAX];
    struct plan_window window[SLOTS_MAX];
    struct plan_ask ask[SLOTS_MAX];
    int32_t tok[SLOTS_MAX * WINDOW_MAX]; /* of all windows, packed */
    int64_t start_ns; /* rank 0's clock when the last round's window started, or 0 */
};

struct plan_keep {
    uint64_t digest;
    int commits;
    struct plan_commit commit[SLOTS_MAX];
    int64_t start_ns; /* as in plan_round */
};

struct plan_clock {
    int64_t sent_ns; /* rank 0's clock now */
    int ranks;
    int64_t read_ns
        [RANKS_MAX]; /* and when it saw that rank r had read the CLOCK before; 0 for the first */
};

struct plan_calibrate { /* of slots 0 .. slots - 1 */
    int slots, rows;    /* rows of each: of its prompt, behind what has run; 0 for a pass */
    unsigned flags;
};

/* What a message says, decoded by its op. */
union plan_body {
    struct plan_admit admit;
    struct plan_span span;
    struct plan_draft draft;
    struct plan_round round;
    struct plan_keep keep;
    struct plan_calibrate calibrate;
    struct plan_clock clock;
    int slot;
};

/* plan_words - room for the longest message of these bounds. */
size_t plan_words(const struct plan_bounds *b);

/* plan_put_* - encode into word[], which has room; the result is the number of words. What decoding
 * checks holds already. */
size_t plan_put_admit(const struct plan_admit *p, uint64_t *word);
size_t plan_put_span(const struct plan_span *p, uint64_t *word);
size_t plan_put_draft(const struct plan_draft *p, uint64_t *word);
size_t plan_put_round(const struct plan_round *p, uint64_t *word);
size_t plan_put_keep(const struct plan_keep *p, uint64_t *word);
size_t plan_put_calibrate(const struct plan_calibrate *p, uint64_t *word);
size_t plan_put_slot(int slot, uint64_t *word);
size_t plan_put_clock(const struct plan_clock *p, uint64_t *word);

/* plan_get_* - decode and check against the bounds.
 *
 * in, out  *out is written on success only; ids of ADMIT go to ids[] with room for b->context, its
 *          biases to bias[LOGIT_BIASES_MAX]
 * errors   -EPROTO naming the op and the field
 */
int plan_get_admit(const struct plan_msg *m, const struct plan_bounds *b, int32_t *ids,
                   struct logit_bias *bias, struct plan_admit *out);
int plan_get_span(const struct plan_msg *m, const struct plan_bounds *b, struct plan_span *out);
int plan_get_draft(const struct plan_msg *m, const struct plan_bounds *b, struct plan_draft *out);
int plan_get_round(const struct plan_msg *m, const struct plan_bounds *b, struct plan_round *out);
int plan_get_keep(const struct plan_msg *m, const struct plan_bounds *b, struct plan_keep *out);
int plan_get_calibrate(const struct plan_msg *m, const struct plan_bounds *b,
                       struct plan_calibrate *out);
int plan_get_slot(const struct plan_msg *m, const struct plan_bounds *b, int *slot);
int plan_get_clock(const struct plan_msg *m, struct plan_clock *out);

/* plan_op_name - "ROUND"; NULL for a number that is no op. */
const char *plan_op_name(int op);

#endif
