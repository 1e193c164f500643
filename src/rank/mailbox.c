/* mailbox.c owns the choice of the links that the plan takes. */
#include "src/rank/mailbox.h"

#include <errno.h>
#include <stdio.h>

#include "src/base/log.h"
#include "src/rank/group.h"
#include "src/rank/plan_box.h"

int mailbox_open_over(struct group *g, struct link *const *own, struct link *const *spare,
                      const struct plan_box_settings *s, int timeout_ms, struct plan_box **out)
{
    char why[GROUP_REASON_BYTES];
    struct plan_box *b = NULL;
    int r, all;

    if (!spare[g->rank == 0])
        return plan_box_open(own, g->rank, g->world, s, out);
    fail_hold(true); /* not the end of anything */
    r = plan_box_open(own, g->rank, g->world, s, &b);
    fail_hold(false);
    snprintf(why, sizeof(why), "%s",
             r < 0 && r != -ECONNRESET ? fail_text() : "another rank cannot have its link");
    all = group_vote(g, r == 0, timeout_ms);
    if (all == 1) {
        *out = b;
        return 0;
    }
    plan_box_close(b);
    if (all < 0)
        return all;
    log_warn("plan: it goes over TCP: %s", why);
    return plan_box_open(spare, g->rank, g->world, s, out);
}

int mailbox_open(struct group *g, const struct plan_box_settings *s, int timeout_ms,
                 struct plan_box **out)
{
    struct link *own[GROUP_WORLD_MAX] = { 0 }, *spare[GROUP_WORLD_MAX] = { 0 };

    for (int p = 0; p < g->world; p++) {
        if (p == g->rank)
            continue;
        own[p] = group_link(g, p, GROUP_PLAN);
        spare[p] = group_link(g, p, GROUP_SPARE);
    }
    return mailbox_open_over(g, own, spare, s, timeout_ms, out);
}
