/* bare - a group without a model: its links, sums, plan and clocks, for whoever wants to know what
 * they carry (bench --transport, preflight --meet).
 */
#ifndef TANDEM_RANK_BARE_H
#define TANDEM_RANK_BARE_H

#include "src/rank/clocks.h"
#include "src/rank/group_config.h"
#include "src/rank/placing.h"

struct comm;
struct plan_box;

struct bare {
    struct config cfg; /* its strings are the caller's */
    struct group_texts texts;
    struct group *group;
    struct comm *comm;
    struct plan_box *box;
    struct clocks clocks;
    int code; /* of a failed open */
};

/* bare_open - the rank that cfg names; hub as in group_settings. Where threads of one process join
 * over something else than a hub they need no secret.
 *
 * in       slot_bytes of the sums (bf16 partials), words: longest message of the plan
 * errors   of all parts, with their exit code in b->code; bare_close in any case */
int bare_open(const struct config *cfg, struct group_hub *hub, int threads, size_t slot_bytes,
              size_t words, struct bare *b);

/* bare_close - r: 0, or the error that ended the work, which the others hear; what: what it was.
 * result   an exit code */
int bare_close(struct bare *b, int r, const char *what);

#endif
