/* bare.c owns the order in which such a group is opened and left. */
#include "src/rank/bare.h"

#include <string.h>

#include "src/base/log.h"
#include "src/rank/exit_code.h"
#include "src/rank/mailbox.h"
#include "src/rank/plan_box.h"
#include "src/transport/comm.h"

static int open_links(struct bare *b, size_t slot_bytes, size_t words)
{
    const struct config *c = &b->cfg;
    struct link *windows[RANKS_MAX] = { 0 };
    struct comm_settings s = { .partials = COMM_BF16,
                               .slot_bytes = slot_bytes,
                               .spin_us = c->spin_us,
                               .wait_limit_ms = c->wait_limit_ms };
    struct plan_box_settings p = { .spin_us = c->spin_us,
                                   .wait_limit_ms = c->wait_limit_ms,
                                   .max_words = words };
    int r;

    for (int i = 0; i < c->ranks; i++)
        if (i != c->rank)
            windows[i] = group_link(b->group, i, GROUP_WINDOWS);
    r = comm_link_open(windows, c->rank, c->ranks, &s, &b->comm);
    if (r == 0)
        r = mailbox_open(b->group, &p, c->wait_limit_ms, &b->box);
    if (r == 0)
        r = clocks_meet(b->box, c->rank, c->ranks, c->wait_limit_ms, &b->clocks);
    return r;
}

int bare_open(const struct config *cfg, struct group_hub *hub, int threads, size_t slot_bytes,
              size_t words, struct bare *b)
{
    struct group_settings s;
    struct placing placing;
    int r;

    *b = (struct bare){ .cfg = *cfg };
    r = group_of_config(cfg, &b->texts, &s);
    s.hub = hub;
    s.no_secret = threads;
    if (r == 0)
        r = placing_of(cfg, 0, false, &placing);
    if (r == 0)
        r = group_open(&s, &b->group);
    if (r < 0) {
        b->code = group_exit_code(r);
        return r;
    }
    placing_round(&placing);
    return open_links(b, slot_bytes, words);
}

int bare_close(struct bare *b, int r, const char *what)
{
    if (r == 0)
        r = group_barrier(b->group, b->cfg.wait_limit_ms);
    if (r < 0 && b->group)
        group_fail(b->group, r, "rank %d: %s: %s", b->cfg.rank, what, fail_text());
    if (r < 0 && b->code == 0)
        b->code = exit_code_of(STEP_ROUND, r);
    if (b->group && r == 0)
        group_stop(b->group);
    plan_box_close(b->box);
    comm_close(b->comm);
    group_close(b->group);
    group_texts_free(&b->texts);
    placing_leave();
    return b->code;
}
