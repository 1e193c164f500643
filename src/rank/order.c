/* order.c owns the sending half of an order; plan.c the words, round.c the doing. */
#include "src/rank/order.h"

#include "src/base/clock.h"
#include "src/rank/plan_box.h"

static int send(struct rounds *r, enum plan_op op, size_t words)
{
    int err;

    progress_begin(&r->k->progress, op, r->number, clock_ns());
    if (!r->k->box)
        return 0;
    err = plan_box_send(r->k->box, op, r->number, 0, r->word, words);
    progress_phase(&r->k->progress, PHASE_CHECK);
    if (err < 0)
        return rank_broken(r->k, err, "round %u: %s not sent", r->number, plan_op_name(op));
    return 0;
}

/* An order has been carried out, or it has ended the rank. */
static int carried(struct rounds *r, int err)
{
    if (err == 0)
        progress_end(&r->k->progress);
    return err;
}

int order_admit(struct rounds *r, const struct plan_admit *p)
{
    int err = send(r, PLAN_ADMIT, plan_put_admit(p, r->word));

    return err < 0 ? err : carried(r, round_admit(r, p));
}

int order_fill(struct rounds *r, const struct plan_span *p)
{
    int err = send(r, PLAN_FILL, plan_put_span(p, r->word));

    return err < 0 ? err : carried(r, round_fill(r, p));
}

int order_draft(struct rounds *r, const struct plan_draft *p)
{
    int err = send(r, PLAN_DRAFT, plan_put_draft(p, r->word));

    return err < 0 ? err : carried(r, round_draft(r, p));
}

int order_round(struct rounds *r, struct plan_round *p)
{
    int64_t begin = clock_ns(), sent;
    int err;

    p->digest = r->digest;
    p->row_bucket = round_bucket(r, p);
    p->start_ns = r->start_ns;
    err = send(r, PLAN_ROUND, plan_put_round(p, r->word));
    sent = clock_ns();
    return err < 0 ? err : carried(r, round_run(r, p, sent, sent - begin));
}

int order_keep(struct rounds *r, const struct plan_commit *c)
{
    struct plan_keep p = {
        .digest = r->digest, .commits = 1, .commit = { *c }, .start_ns = r->start_ns
    };
    int err = send(r, PLAN_KEEP, plan_put_keep(&p, r->word));

    return err < 0 ? err : carried(r, round_keep(r, &p));
}

int order_score(struct rounds *r, const struct plan_span *p, score_fn *fn, void *arg)
{
    int err = send(r, PLAN_SCORE, plan_put_span(p, r->word));

    return err < 0 ? err : carried(r, round_score(r, p, fn, arg));
}

int order_calibrate(struct rounds *r, const struct plan_calibrate *p, int64_t *ns)
{
    int err = send(r, PLAN_CALIBRATE, plan_put_calibrate(p, r->word));

    return err < 0 ? err : carried(r, round_calibrate(r, p, ns));
}

int order_release(struct rounds *r, int slot)
{
    int err = send(r, PLAN_RELEASE, plan_put_slot(slot, r->word));

    return err < 0 ? err : carried(r, round_release(r, slot));
}

int order_stop(struct rounds *r)
{
    return carried(r, send(r, PLAN_STOP, 0));
}
