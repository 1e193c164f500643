/* accept - decide which proposed tokens become text.
 *
 *   with r = first[s]: keep tok[r + i] while it is choice[r + i - 1],
 *   choice[r + i - 1] = sample(edited logits[r + i - 1], key(seed, pos + i))
 *
 *   stage -> window -> (queue's wait) -> [accept_undecided: resolve -> wait]
 *
 * shapes   logits [R][vocab / ranks] f32; tok, choice [R]; seg, n_ok, next [S]
 * units    temperature divides logits; 0 means greedy
 * in, out  reads logits, tok, seg, head; writes choice, n_ok (0 if len is 0, else 1 .. len), next
 * rows     a slot's result depends on that slot alone, bit for bit
 * ranks    every rank computes the same bytes from the same gathered bytes. Greedy and draws
 *          without filters gather 8 bytes a row, top-k a little more than top_k candidates, top-p
 *          and min-p 512 and what the vocabulary's chunks weigh. A row that this does not decide
 *          leaves its slot undecided (rarely); then the shares of its rows are gathered. So they
 *          are at once where the shares do not begin with whole chunks and a slot samples with
 *          top-p alone
 * order    queue order; accept_window may be captured, for equal rows and accept_class
 * errors   -EBADMSG in the queue for a row without a finite logit; nothing is committed then
 * owns     the scratch of struct accept; borrows the window until the queue has run
 * source   Daliri et al., arXiv 2408.07978, Gumbel coupling; docs/DECODE.md "accept"
 */
#ifndef TANDEM_VERIFY_ACCEPT_H
#define TANDEM_VERIFY_ACCEPT_H

#include "kernels/ops.h"
#include "src/verify/sampler.h"

#include <stdbool.h>
#include <stdint.h>

struct accept;
struct device;
struct exec;
struct model;
struct slot_pool;
struct window;

/* accept_open - candidate and gather buffers for this model; site is the first of three exchange
 * sites.
 * errors   -ENOMEM */
int accept_open(struct device *d, const struct model *m, int site, struct accept **out);
void accept_close(struct accept *a);

/* accept_admit - a request enters the slot: its history is empty, its biases are these.
 * in       bias [s->biases]; both checked (sampler.h), the same on all ranks */
void accept_admit(struct accept *a, struct exec *x, int slot, const struct sampler *s,
                  const struct logit_bias *bias);

/* accept_stage - the uploads of a window: samplers, and what has landed since the slots' last one.
 * per_slot [SLOTS_MAX], by slot number, host memory, the same on all ranks
 * order    the positions of the pool are those that the window is staged at; not captured */
void accept_stage(struct accept *a, struct exec *x, const struct slot_pool *pool,
                  const struct window *w, const struct sampler *per_slot);

/* accept_class - which ops and exchanges accept_window queues for what was staged: 0 for greedy
 * without anything else, the same number for the same queue of work. */
unsigned accept_class(const struct accept *a);

/* accept_window - queue choices, accept counts and next tokens of the staged window with logits,
 * and the copy of logprobs to the host. */
void accept_window(struct accept *a, struct exec *x, struct window *w);

/* accept_undecided - after the wait and window_fetch: how many slots of the window are undecided.
 * Nothing of them is committed; what was queued behind the commit saw them unchanged. */
int accept_undecided(const struct window *w);

/* accept_resolve - queue the choices of undecided slots from whole rows, and their commits. Then
 * window_fetch and the wait again.
 * order    every rank calls it; a draft pass that ran behind the window is not theirs */
void accept_resolve(struct accept *a, struct exec *x, struct slot_pool *pool, struct window *w);

/* accept_logprobs - after the wait: of a row of a slot that wants them, else garbage. From the
 * model's own logits at temperature 1, before any edit. */
const struct logprobs *accept_logprobs(const struct accept *a, int row);

/* accept_logits - after the queue's wait: the whole vocabulary's logits of one row in host memory,
 * gathered now.
 * order    every rank calls it for the same row
 * errors   of queue_wait */
int accept_logits(struct accept *a, struct exec *x, struct window *w, int row, float *logits);

/* accept_route - what tests ask for: how many candidates top-p and min-p get (0: as they
 * need), and whole rows for every sampled window. */
void accept_route(struct accept *a, int candidates, bool whole);

/* digest_note - add (round, slot, n_ok, next) to a running FNV-1a-64: what ROUND frames carry. */
uint64_t digest_note(uint64_t h, uint32_t round, int slot, int n_ok, int next);

#endif
