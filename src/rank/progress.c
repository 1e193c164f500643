/* progress.c owns how progress is read and put into words. */
#include "src/rank/progress.h"

#include "src/rank/plan.h"

#include <stdio.h>

static const char *phase_name(unsigned p)
{
    static const char *const names[PHASES] = { "idle",   "plan",    "check", "stage", "window",
                                               "choose", "observe", "draft", "wait" };

    return p < PHASES ? names[p] : "unknown";
}

void progress_read(const struct progress *p, struct progress_view *out)
{
    /* the steps first: a posted exchange that ends meanwhile looks done, never the other way
     * round */
    out->since_ns = atomic_load_explicit(&p->since_ns, memory_order_acquire);
    out->posted = atomic_load_explicit(&p->steps.posted, memory_order_relaxed);
    out->done = atomic_load_explicit(&p->steps.done, memory_order_relaxed);
    out->phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    out->order = atomic_load_explicit(&p->order, memory_order_relaxed);
    out->round = atomic_load_explicit(&p->round, memory_order_relaxed);
    out->begun = atomic_load_explicit(&p->begun, memory_order_relaxed);
    out->ended = atomic_load_explicit(&p->ended, memory_order_relaxed);
}

bool progress_same(const struct progress_view *a, const struct progress_view *b)
{
    return a->phase == b->phase && a->begun == b->begun && a->ended == b->ended &&
           a->posted == b->posted && a->done == b->done;
}

bool progress_waits(const struct progress_view *v)
{
    return v->posted > v->done || v->phase == PHASE_PLAN;
}

void progress_text(const struct progress_view *v, char *out, size_t cap)
{
    const char *order = plan_op_name((int)v->order);
    int n;

    if (v->begun == v->ended)
        n = snprintf(out, cap, "round %u, %s", v->round, v->begun ? "no order" : "no order yet");
    else
        n = snprintf(out, cap, "round %u, order %s, phase %s", v->round, order ? order : "unknown",
                     phase_name(v->phase));
    if (v->posted > 0 && n < (int)cap)
        snprintf(out + n, cap - (size_t)n, ", exchange %llu %s",
                 (unsigned long long)(v->posted > v->done ? v->posted : v->done),
                 v->posted > v->done ? "waits for a peer" : "done");
}
