/* lead - rank 0's decisions: who gets a slot, what runs next, how deep to draft, what lands and
 * when a reply ends.
 *
 *   add -> prompt chunks -> rounds ... -> done        step runs one chunk or one round over all
 *                                                     streams
 *
 * A reply is a function of its request alone: neither drafts nor company nor the depth chosen can
 * change it.
 */
#ifndef TANDEM_RANK_LEAD_H
#define TANDEM_RANK_LEAD_H

#include "src/model/text.h"
#include "src/rank/offer.h"
#include "src/rank/order.h"

#include <stdbool.h>

struct lead;

#define STOP_IDS_MAX (SAMPLER_ENDS - RANK_ENDS_MAX)

/* What is asked for; passed request_check. Borrowed until the reply is done. */
struct request {
    const int32_t *ids; /* prompt, 1 .. context tokens */
    int n;
    int max_tokens;                /* 0: an empty reply, nothing runs */
    struct sampler sampler;        /* but for prompt, ends and end, which are set here */
    const struct logit_bias *bias; /* [sampler.biases] */
    bool ignore_end, draft;
    const char *const *stop; /* each passed stop_check */
    int stops;
    const int32_t *stop_id; /* tokens that end this reply, whether or not end tokens do */
    int stop_ids;
    /* on_text - or NULL: text as it becomes certain, once a round at most, whole characters only */
    void (*on_text)(void *arg, const char *text, size_t bytes);
    void *arg;
};

/* What came of it. Starts as { 0 }; reply_free frees it. */
struct reply {
    int32_t *ids; /* [n] landed; the last one may be an end token, or complete a stop string */
    struct logprobs *logprobs; /* [n], of the model's own logits; NULL if they were not asked for */
    int n;
    struct text text; /* without special tokens, ends before a stop string */
    enum finish finish;
    int prompt_tokens, rounds;
    struct tally sums; /* of this stream: rounds, tries and hits by draft position */
    int64_t begin_ns, first_ns, last_ns, end_ns; /* added, first and last token landed, done */
};

void reply_free(struct reply *r);

/* request_check - what a request may ask of these ranks, but for the length of its prompt.
 * errors   -EINVAL naming what is wrong and its range */
int request_check(const struct request *q, int vocab);

/* lead_open - borrows the round.   errors   -ENOMEM */
int lead_open(struct rounds *r, struct lead **out);
void lead_close(struct lead *l);

/* lead_costs - prices for the depth `auto`; without them every offered draft is verified. */
void lead_costs(struct lead *l, const struct cost_table *t);

/* lead_depths - somebody else chooses depths from now on; NULL: nobody. */
void lead_depths(struct lead *l, depth_fn *fn, void *arg);

/* lead_turns - from now on a chunk and a round take turns, so that a run can be repeated: for
 * gates. Else prompts have half of the time while other streams decode. */
void lead_turns(struct lead *l);

/* lead_add - give a request a slot; out stays the caller's and is filled until the stream is done.
 * errors   1 no slot is free; -EINVAL the prompt is longer than the context, both numbers named; of
 *          round.h */
int lead_add(struct lead *l, const struct request *q, struct reply *out);

/* lead_step - the next chunk or round. When a signal or a peer asks to leave, streams end as
 * interrupted instead.
 * errors   1 no stream is left; of round.h */
int lead_step(struct lead *l);

/* lead_cancel - whoever asked for this reply no longer wants it: what has landed stays, and its
 * slot is free. Nothing if the reply is done.
 * order    between two steps
 * errors   of round.h */
int lead_cancel(struct lead *l, const struct reply *out);

/* lead_ends - fn(arg, slot, out) sees each reply that is over while its slot is still taken, at the
 * position that has landed: what gates digest. NULL: nobody.
 * errors   what fn returns ends the round as the rank's own error */
typedef int ends_fn(void *arg, int slot, const struct reply *out);
void lead_ends(struct lead *l, ends_fn *fn, void *arg);

/* lead_slot - the slot that a reply is made in, -1 if it is done. */
int lead_slot(const struct lead *l, const struct reply *out);

/* lead_run - steps until no stream is left.   errors   of round.h */
int lead_run(struct lead *l);

/* lead_leaving - somebody has asked this group to leave. */
bool lead_leaving(const struct lead *l);

/* lead_round - the round that it leads; for gates. */
struct rounds *lead_round(struct lead *l);

#endif
