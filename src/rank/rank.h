/* rank - everything that one rank owns, opened in order and closed in reverse.
 *
 *   open   the group begins to open, where ranks are processes (meeting.h)
 *   load   pack, config, model, drafter, tokenizer: what a prompt can be checked against, no other
 *          rank needed
 *   join   the group; then device, weights, sums, plan, states, buffers; every rank meets at its
 *          end
 *
 * After a failed load or join, or any error of a round, the process leaves: nothing is repaired.
 */
#ifndef TANDEM_RANK_RANK_H
#define TANDEM_RANK_RANK_H

#include "src/base/config.h"
#include "src/draft/depth.h"
#include "src/model/exec.h"
#include "src/rank/clocks.h"
#include "src/rank/control.h"
#include "src/rank/drain.h"
#include "src/rank/group_config.h"
#include "src/rank/memory_plan.h"
#include "src/rank/packs.h"
#include "src/rank/placing.h"
#include "src/rank/plan.h"
#include "src/rank/progress.h"
#include "src/rank/watch.h"

#include <stdbool.h>
#include <stdint.h>

struct accept;
struct backend_ops;
struct comm;
struct device;
struct meeting;
struct plan_box;
struct queue;
struct resident;
struct row_store;
struct slot_pool;
struct tokenizer;
struct window;

/* of a slot: the largest message between ranks */
enum { RANK_ENDS_MAX = 8, RANK_SLOT_BYTES = 256 << 10 };

/* rank_keep - what of a rank on a device outlives it: for ranks behind each other, of the same
 * thread, that differ in neither model, share, device nor layout. Empty before the first. */
struct rank_keep {
    struct pack *pack;
    struct device *dev;
    struct resident *resident;
};
void rank_keep_close(struct rank_keep *keep);

struct rank {
    struct config cfg; /* strings borrowed */
    struct drain *drain;
    struct group_hub *hub;
    bool alone;             /* the config's other ranks are not there */
    struct rank_keep *keep; /* or NULL; set between open and load */
    struct progress progress;
    struct watch *watch;
    struct meeting *meeting; /* NULL for one rank or one alone, and for ranks that are threads */
    struct group_texts texts;
    char cause[GROUP_REASON_BYTES]; /* of the end of a rank without a group */

    /* load */
    const struct backend_ops *backend;
    struct pack *pack;
    struct blueprint plan;
    struct model *model;     /* of the plan */
    struct drafter *drafter; /* the one in use: the plan's or one that the setting `draft` names */
    struct drafter *copies;  /* drafts from the text: beside the other one, the same one, or NULL */
    struct tokenizer *tok;
    int32_t end[RANK_ENDS_MAX]; /* end tokens of config.json and generation_config.json */
    int ends;
    struct plan_bounds bounds;
    struct cost_table costs; /* of the file that the setting `costs` names; else without rows */
    struct placing placing;
    struct memory_plan memory; /* scratch is known at the end of join */

    /* join */
    atomic_bool joined;
    struct group *group; /* NULL for one rank or one alone, and so is box */
    /* the same for the watch's thread, which reads these two and the settings */
    struct group *_Atomic watched;
    struct comm *comm;
    struct plan_box *box;
    struct clocks clocks;
    struct device *dev;
    struct queue *q;
    struct resident *resident;
    struct row_store *rows;
    struct slot_pool *pool;
    int model_states; /* the pool's first ones are the model's */
    struct window *win;
    struct accept *acc;
    struct arena arena;
    struct exec x;
};

/* rank_open - for the rank that cfg names. hub is for ranks that are threads, else NULL; alone: it
 * meets nobody.
 * result   an exit code; rank_close in any case */
int rank_open(const struct config *cfg, struct drain *drain, struct group_hub *hub, bool alone,
              struct rank *k);

/* rank_load - result   an exit code; 0 if it is loaded */
int rank_load(struct rank *k);

/* rank_refuse - this rank will not join, for the cause that this thread has logged last: the others
 * hear it */
void rank_refuse(struct rank *k);

/* rank_join - meet the others.
 * result   an exit code; the others have been told. 0 and not k->joined: a signal came while this
 *          rank waited for them */
int rank_join(struct rank *k);

/* rank_captures - whether what a joined rank queues can be captured: by backend and sums. */
bool rank_captures(const struct rank *k);

/* rank_broken - a round cannot go on: wait a moment for the group's own cause, else be the cause:
 * the text, and behind it the error that this thread has logged; an -EPROTO has its whole sentence
 * in the text.
 * result   r */
__attribute__((format(printf, 3, 4))) int rank_broken(struct rank *k, int r, const char *fmt, ...);

/* rank_cause - why it is over, in words for whoever asked for something. */
const char *rank_cause(const struct rank *k);

/* rank_failure - the exit code of an error that rank_broken has seen. */
int rank_failure(const struct rank *k, int r);

/* rank_close - everything in reverse; what watch_end has begun goes on. */
void rank_close(struct rank *k);

#endif
