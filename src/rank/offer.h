/* offer - what a window of a stream verifies besides its pending token: where its drafts come from,
 * how many of them, and whether a draft pass runs behind the window for the next round.
 *
 *   begin -> (need -> [a pass] -> choose -> order_round -> landed) ... -> end
 *
 * Drafts are the model's drafter's, or copied from the text where that is worth more. Every choice
 * here changes speed and nothing else; none of them reads a clock.
 */
#ifndef TANDEM_RANK_OFFER_H
#define TANDEM_RANK_OFFER_H

#include "src/draft/depth.h"
#include "src/draft/speculation.h"
#include "src/draft/watch.h"
#include "src/rank/round.h"

#include <stdbool.h>

/* A stream, and what this round offers it. */
struct offer {
    bool drafts;  /* the request wants them */
    bool passes;  /* draft passes are made for it: not all is copied */
    bool sampled; /* as calibrated confidences are kept apart */
    bool fresh;   /* no pass has run for it yet */
    bool due;     /* the next round has a pass, unless it copies */
    bool copied;  /* the last window's drafts were copies */
    uint64_t inputs;
    struct depth_history history, plain; /* of all rounds, and of those that copied nothing */
    struct pass_skip skip;
    struct accept_means means;

    /* of this round */
    bool passed; /* a pass has been made for it */
    int copies;  /* tokens that the text offers, and the chance of each */
    int32_t copy[WINDOW_MAX];
    float copy_p[WINDOW_MAX];
    enum plan_source source;
    enum spec_end spec;
    int offered, k;
    int32_t draft[WINDOW_MAX];
    float p[WINDOW_MAX], q[WINDOW_MAX];
    double lambda; /* that k was priced at, 0 if it was not */
};

/* A depth that somebody else chooses: gates. offered >= 1; the result is 0 .. offered. */
typedef int depth_fn(void *arg, int slot, int offered);

struct offers {
    struct rounds *r;
    struct conf_calibration conf;
    struct cost_table costs;
    bool priced; /* depth is `auto` and the costs are known */
    struct speculation spec;
    struct draft_watch watch;
    struct slot_alarm alarm[SLOTS_MAX];
    struct offer slot[SLOTS_MAX];
    depth_fn *depth; /* or NULL */
    void *arg;
};

/* What of a stream its offer depends on. */
struct offer_at {
    int slot, pos; /* of the pending token */
    int32_t pending;
    int left;   /* tokens that may still land, at least 1 */
    bool alone; /* no other stream decodes */
    const struct landing *landing;
};

/* offers_open - zeros and the round it is for. */
void offers_open(struct offers *o, struct rounds *r);

/* offers_costs - prices for the depth `auto`; without them every offered draft is verified. */
void offers_costs(struct offers *o, const struct cost_table *t);

/* offer_drafts - whether these ranks can draft for anybody. */
bool offer_drafts(const struct offers *o);

/* offer_begin - a new request in the slot. offer_end - it is over. */
void offer_begin(struct offers *o, int slot, bool drafts, const struct sampler *s);
void offer_end(struct offers *o, int slot);

/* offer_need - whether a draft pass has to run now, before the choice: the last window's did not,
 * or what it proposed cannot be used. Once a round. */
bool offer_need(struct offers *o, const struct offer_at *at);

/* offer_most - drafts that the slot's next pass is worth, where each of them is a pass of its own;
 * 0: as many as the drafter makes. */
int offer_most(const struct offers *o, int slot, bool alone);

/* offer_choose - fill o->slot[at->slot]: source, offered, k. After the passes that were needed. */
void offer_choose(struct offers *o, const struct offer_at *at);

/* offer_fill - after all slots chose: more drafts for windows whose padded rows are run anyway.
 * in       n slots that share a round whose windows are padded to `bucket` rows */
void offer_fill(struct offers *o, const int *slot, int n, int bucket);

/* offer_ask - bits by slot of those in `may` for which a pass is queued behind this round's
 * windows. */
unsigned offer_ask(struct offers *o, const struct offer_at *at, int n);

/* offer_ran - the round has run: what its windows accepted is in the seats. */
void offer_ran(struct offers *o, const int *slot, int n);

/* offer_landed - what became of the window, for evidence and the record. */
void offer_landed(struct offers *o, int slot, bool alone, int landed, struct round_slot *rec);

#endif
