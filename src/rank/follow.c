/* follow.c owns the receiving half of an order. */
#include "src/rank/follow.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/plan_box.h"

#include <errno.h>

#define LOOK_UP_MS 100 /* how often a rank without orders looks at its signals */

struct follower {
    struct rounds *r;
    bool told; /* rank 0 knows that this rank was asked to leave */
};

/* An order that is wrong in itself: its frames are in the log already. */
static int refused(struct rounds *r, const struct plan_msg *m, int err)
{
    if (err == -EPROTO)
        rank_broken(r->k, err, "round %u: order %s refused", m->round,
                    plan_op_name(m->op) ? plan_op_name(m->op) : "unknown");
    return err;
}

static int obey(struct rounds *r, const struct plan_msg *m, int64_t waited_ns)
{
    const struct plan_bounds *b = &r->k->bounds;
    union plan_body p;
    int64_t ns;
    int err;

    if (m->round != r->number)
        return refused(r, m, fail(-EPROTO, "plan: round %u comes, %u is due", m->round, r->number));
    switch (m->op) {
    case PLAN_ADMIT:
        /* Decoded in place only if the slot may be overwritten. */
        err = plan_get_admit(m, b, (int32_t *)r->word, r->bias, &p.admit);
        return err < 0 ? refused(r, m, err) : round_admit(r, &p.admit);
    case PLAN_FILL:
        err = plan_get_span(m, b, &p.span);
        return err < 0 ? refused(r, m, err) : round_fill(r, &p.span);
    case PLAN_DRAFT:
        err = plan_get_draft(m, b, &p.draft);
        return err < 0 ? refused(r, m, err) : round_draft(r, &p.draft);
    case PLAN_ROUND:
        err = plan_get_round(m, b, &p.round);
        return err < 0 ? refused(r, m, err) : round_run(r, &p.round, m->came_ns, waited_ns);
    case PLAN_KEEP:
        err = plan_get_keep(m, b, &p.keep);
        return err < 0 ? refused(r, m, err) : round_keep(r, &p.keep);
    case PLAN_SCORE:
        err = plan_get_span(m, b, &p.span);
        return err < 0 ? refused(r, m, err) : round_score(r, &p.span, NULL, NULL);
    case PLAN_CALIBRATE:
        err = plan_get_calibrate(m, b, &p.calibrate);
        return err < 0 ? refused(r, m, err) : round_calibrate(r, &p.calibrate, &ns);
    case PLAN_RELEASE:
        err = plan_get_slot(m, b, &p.slot);
        return err < 0 ? refused(r, m, err) : round_release(r, p.slot);
    default:
        return refused(r, m, fail(-EPROTO, "plan: op %d is unknown", m->op));
    }
}

/* A rank cannot leave alone: rank 0 sees that this one stops and ends the group after its round. */
static void look_up(struct follower *f)
{
    struct rank *k = f->r->k;

    if (f->told || !atomic_load(&k->drain->asked))
        return;
    f->told = true;
    log_info("asking rank 0 to stop");
    group_ask(k->group);
}

int follow_run(struct rounds *r)
{
    struct follower f = { .r = r };
    int64_t begin = clock_ns();

    for (;;) {
        struct plan_msg m;
        int err = plan_box_recv(r->k->box, LOOK_UP_MS, &m);

        look_up(&f);
        if (err == PLAN_QUIET)
            continue;
        if (err < 0)
            return rank_broken(r->k, err, "round %u: waiting for the plan", r->number);
        if (m.op == PLAN_STOP)
            return 0;
        progress_begin(&r->k->progress, (unsigned)m.op, r->number, m.came_ns);
        progress_phase(&r->k->progress, PHASE_CHECK);
        err = obey(r, &m, m.came_ns - begin);
        if (err < 0)
            return err;
        progress_end(&r->k->progress);
        begin = clock_ns();
    }
}
