/* speculation - the books about draft passes that begin behind a window, before the host knows what
 * the window says. Bookkeeping alone: who runs a pass, and on what, is the rank's.
 *
 *          launch             outcome, all slots       take, drop
 *   IDLE ----------> QUEUED ----------------> READY -------------> IDLE
 *
 * One pass is on its way at a time: it is collected before another pass or a foreign collective is
 * queued, on every rank in the same order. Each slot of a pass is settled on its own, because a row
 * of a pass does not depend on the other rows: what it proposed is used if the pass that would be
 * run now is the one that was run, else it is dropped with a reason. A backend without asynchronous
 * queues makes the same calls.
 */
#ifndef TANDEM_DRAFT_SPECULATION_H
#define TANDEM_DRAFT_SPECULATION_H

#include "src/base/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct sampler;

enum spec_state { SPEC_IDLE, SPEC_QUEUED, SPEC_READY };

/* What became of a slot's part of a pass. */
enum spec_end {
    SPEC_OFF, /* no pass ran ahead, and none was expected */
    SPEC_USED,
    SPEC_RESET, /* the slot was released, cancelled or begun anew meanwhile */
    /* the next window took no drafts from it, or nobody asked before the next launch */
    SPEC_UNUSED,
    SPEC_SLOTS,   /* asked for a slot that took no part */
    SPEC_COMMIT,  /* other tokens landed than the window accepted */
    SPEC_PENDING, /* another pending token, or another position */
    SPEC_INPUTS,  /* other sampling parameters */
    SPEC_ENDS
};

/* spec_end_name - "off", "hit", or the reason for a miss, as the round log has it. */
const char *spec_end_name(enum spec_end e);

struct spec_slot {
    double misses; /* 1 - the decayed rate of hits, of the request in the slot */
    int waited;    /* rounds it was left out for its rate */
    /* of the pass on its way, if it takes part: a reset ends that, so nothing is left for the next
     * request */
    bool in, known, missed;
    int start, n_ok, pos;
    int32_t anchor;
    uint64_t inputs;
};

/* Zeros are a new one. */
struct speculation {
    enum spec_state state;
    struct spec_slot slot[SLOTS_MAX];
    uint32_t count[SPEC_ENDS];
};

/* spec_inputs - what a pass depends on besides tokens: a digest of the sampling parameters. */
uint64_t spec_inputs(const struct sampler *s);

/* spec_reset - a new request in the slot, or its end: what was begun for the old one is dropped.
 * Also settles a pass that is cancelled between launch and commit: its results are collected, never
 * used. */
void spec_reset(struct speculation *s, int slot);

/* spec_wants - of the slots in `may` (bit by slot; not those with drafts that no pass made, with
 * forced tokens, or with choices that need the host) those that take part in the next pass: a slot
 * whose rate is 0.3 at least, any other every 8th time. Call once a round. */
unsigned spec_wants(struct speculation *s, unsigned may);

/* spec_launch - a pass for these slots is queued behind their windows, which begin at start[slot];
 * what is left of an older one is dropped as unused.
 * errors   -EBUSY a pass is on its way and was not collected; the caller's order is wrong */
int spec_launch(struct speculation *s, unsigned slots, const int start[SLOTS_MAX],
                const uint64_t inputs[SLOTS_MAX]);

/* spec_outcome - after the wait: what the window accepted, and so where the pass began. 0 tokens:
 * the window left the slot undecided, and the pass began at the wrong place. */
void spec_outcome(struct speculation *s, int slot, int n_ok, int32_t next);

/* spec_collected - the pass's results are on the host. */
void spec_collected(struct speculation *s);

/* spec_commit - what landed. Returns whether the slot's context rows are those the pass wrote, so
 * that the commit's own ingest is not needed. */
bool spec_commit(struct speculation *s, int slot, int landed, int32_t next);

/* spec_take - drafts are asked for the slot behind this pending token at this position: SPEC_USED,
 * or why what there is cannot be used and a pass has to be run. */
enum spec_end spec_take(struct speculation *s, int slot, int32_t anchor, int pos, uint64_t inputs);

/* spec_drop - the round takes no drafts for the slot: copied or forced ones, or none. */
void spec_drop(struct speculation *s, int slot);

#endif
