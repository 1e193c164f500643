/* accept - decide which proposed tokens become text.
 *
 *   with r = first[s]: keep tok[r + i] while it is choice[r + i - 1],
 *   choice[r + i - 1] = sample(logits[r + i - 1], key(seed, pos + i))
 *
 * shapes   logits [R][vocab / ranks] f32; tok, choice [R]; seg, n_ok, next [S]
 * units    temperature divides logits; 0 means greedy
 * in, out  reads logits, tok, seg, head; writes choice, n_ok (0 if len is 0, else 1 .. len), next
 * rows     a slot's result depends on that slot alone, bit for bit
 * ranks    every rank computes the same bytes: one gather of 8 bytes a row, and one of the logits'
 *          shares if a slot of the window is sampled
 * order    queue order; may be captured
 * errors   -EBADMSG in the queue for a row without a finite logit; nothing is committed then
 * owns     the scratch of struct accept; borrows the window until the queue has run
 * source   Daliri et al., arXiv 2408.07978, Gumbel coupling; docs/DECODE.md "accept"
 */
#ifndef TANDEM_VERIFY_ACCEPT_H
#define TANDEM_VERIFY_ACCEPT_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

struct accept;
struct device;
struct exec;
struct model;
struct window;

/* accept_open - candidate and gather buffers for this model; site is the first of ACCEPT_SITES
 * exchange sites.
 * errors   -ENOMEM */
#define ACCEPT_SITES 2
int accept_open(struct device *d, const struct model *m, int site, struct accept **out);
void accept_close(struct accept *a);

/* accept_window - queue choices, accept counts and next tokens of a window with logits.
 * per_slot [SLOTS_MAX], by slot number, host memory, the same on all ranks */
void accept_window(struct accept *a, struct exec *x, struct window *w,
                   const struct sampler *per_slot);

/* accept_logits - after the queue's wait: the whole vocabulary's logits of one row in host memory,
 * gathered now.
 * order    every rank calls it for the same row
 * errors   of queue_wait */
int accept_logits(struct accept *a, struct exec *x, struct window *w, int row, float *logits);

/* digest_note - add (round, slot, n_ok, next) to a running FNV-1a-64: what ROUND frames carry. */
uint64_t digest_note(uint64_t h, uint32_t round, int slot, int n_ok, int next);

#endif
