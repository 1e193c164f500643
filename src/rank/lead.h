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

#include "src/draft/depth.h"
#include "src/model/text.h"
#include "src/rank/order.h"

#include <stdbool.h>

struct lead;

/* What is asked for. Borrowed until the reply is done. */
struct request {
    const int32_t *ids; /* prompt, 1 .. context tokens */
    int n;
    int max_tokens; /* 0: an empty reply, nothing runs */
    struct sampler sampler;
    bool ignore_end, draft;
    const char *const *stop; /* each passed stop_check */
    int stops;
    /* on_text - or NULL: text as it becomes certain, once a round at most, whole characters only */
    void (*on_text)(void *arg, const char *text, size_t bytes);
    void *arg;
};

/* What came of it. Starts as { 0 }; reply_free frees it. */
struct reply {
    int32_t *ids; /* landed tokens, with the end token, or the one that completes a stop, at the end */
    int n;
    struct text text; /* without special tokens, ends before a stop string */
    enum finish finish;
    int prompt_tokens, rounds;
    struct tally sums; /* of this stream: rounds, tries and hits by draft position */
    int64_t begin_ns, first_ns, last_ns, end_ns; /* added, first and last token landed, done */
};

void reply_free(struct reply *r);

/* lead_open - borrows the round.   errors   -ENOMEM */
int lead_open(struct rounds *r, struct lead **out);
void lead_close(struct lead *l);

/* lead_costs - prices for the depth `auto`; without them every offered draft is verified. */
void lead_costs(struct lead *l, const struct cost_table *t);

/* lead_add - give a request a slot; out stays the caller's and is filled until the stream is done.
 * errors   1 no slot is free; -EINVAL the prompt is longer than the context, both numbers named; of
 *          round.h */
int lead_add(struct lead *l, const struct request *q, struct reply *out);

/* lead_step - the next chunk or round. When a signal or a peer asks to leave, streams end as
 * interrupted instead.
 * errors   1 no stream is left; of round.h */
int lead_step(struct lead *l);

/* lead_run - steps until no stream is left.   errors   of round.h */
int lead_run(struct lead *l);

/* lead_leaving - somebody has asked this group to leave. */
bool lead_leaving(const struct lead *l);

struct rounds *lead_round(struct lead *l);

#endif
