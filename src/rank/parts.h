/* parts - what a round queues on the device, part by part, eagerly or as graphs.
 *
 *   WINDOW  upload, forward pass, choices, accept counts, commit, copy to the host
 *                                                      by (rows, segments, class of choices,
 *                                                      ingest)
 *   DRAFT   the drafter's context rows, and a pass from what WINDOW has committed
 *                                                      by (rows, segments, slots and length of the
 *                                                      pass)
 *
 * Every position, token, length and sampler is read from device memory, where a launch puts it
 * anew; no buffer that a graph knows ever moves. Kernels are launched for the capacity of a slot
 * and end early, so that one graph serves every context. With graphs rows are padded to a bucket
 * (window.h). Where a step of a part ends, the device's clock is noted.
 */
#ifndef TANDEM_RANK_PARTS_H
#define TANDEM_RANK_PARTS_H

#include "src/rank/captures.h"
#include "src/rank/rank.h"
#include "src/rank/tally.h"

#include <stdbool.h>

struct parts;
struct proposal;

/* What of a round is wanted. */
struct parts_order {
    bool window;  /* the window of k->win */
    bool dropped; /* its outcome is not committed: it was run to measure */
    bool observe; /* its rows are worth observing, behind it */
    bool ingest;  /* the same inside it, as soon as its taps are there (setting early_ingest) */
    struct proposal *pass; /* NULL: no draft pass */
};

/* How it went. The waits are known here for comms of the host; others count on the device. */
struct parts_ran {
    enum round_mode mode;
    uint64_t window_wait_ns, choose_wait_ns;
};

/* parts_open - graphs if the settings say so; sampler [SLOTS_MAX] is read whenever a pass is run.
 * errors   -ENOMEM */
int parts_open(struct rank *k, const struct sampler *sampler, struct parts **out);

/* parts_close - after a wait; says how many graphs there were. NULL is fine. */
void parts_close(struct parts *p);

/* parts_warm - make the graphs that one stream will need; every rank, before the first order.
 * errors   of the comm's barrier, of the ops */
int parts_warm(struct parts *p);

/* parts_bucket - rows of a window that has so many, the last segment last_len of them; 0: as it
 * is. */
int parts_bucket(const struct parts *p, int rows, int last_len);

/* parts_run - queue it all; the window is staged (accept_stage) and noted.
 * order    every rank, the same
 * errors   of the comm's barrier and of what is captured; others come with the queue's wait */
int parts_run(struct parts *p, const struct parts_order *o, struct parts_ran *ran);

/* parts_ingest - a window's `tapped`: the drafter of a rank learns from its window. */
void parts_ingest(void *rank, struct exec *x);

struct capture_counts parts_counts(const struct parts *p);

#endif
