/* largest - the largest windows that a rank's bounds allow: a prompt chunk, what its slots share, a
 * chunk with logits. */
#ifndef TANDEM_RANK_LARGEST_H
#define TANDEM_RANK_LARGEST_H

struct exec;
struct rank;

/* largest_queue - queue their passes in x, largest first, and a draft pass behind each.
 * order    while nothing else uses the rank's window */
void largest_queue(struct rank *k, struct exec *x);

/* largest_check - what a model asks of a kernel beyond its limits is refused now, by the kernel's
 * own check: the windows are captured, and never run.
 * errors   what an op refuses; no memory for the graph is told and none */
int largest_check(struct rank *k);

#endif
