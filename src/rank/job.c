/* job.c owns the life of this process's ranks, from the settings to the exit code. */
#include "src/rank/job.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/rank/calibrate.h"
#include "src/rank/costs.h"
#include "src/rank/follow.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#define LEAVE_MS 5000 /* how long ranks wait for each other at the end */

struct rank_thread {
    struct job *job;
    struct config cfg;
    struct group_hub *hub;
    struct drain *drain;
    atomic_int *ready; /* rank 0 has checked what was asked */
    atomic_int *first; /* exit code of this process: see note_code */
    pthread_t thread;
};

int job_code(struct lead *l, int err)
{
    return err < 0 ? rank_failure(lead_round(l)->k, err) : CODE_DONE;
}

/* Prices are needed where depth is chosen by them. */
static int calibrate(struct lead *l)
{
    struct rounds *r = lead_round(l);
    struct cost_table costs;
    int err;

    if (r->k->cfg.depth != CONFIG_AUTO || (r->k->drafter->block == 0 && !r->k->copies) ||
        r->k->bounds.window_max == 1)
        return 0;
    if (r->k->costs.rows > 0) {
        log_info("costs: from %s", r->k->cfg.costs);
        lead_costs(l, &r->k->costs);
        return 0;
    }
    err = costs_find(r->k, &costs);
    if (err == 1) {
        err = calibrate_run(r, &costs);
        if (err == 0)
            costs_keep(r->k, &costs);
    }
    if (err == 0)
        lead_costs(l, &costs);
    return job_code(l, err);
}

static int lead_all(struct job *j, struct rounds *r)
{
    struct lead *l;
    int code = exit_code_of(STEP_ROUND, lead_open(r, &l)), err;

    if (code != 0)
        return code;
    watch_answers(r->k->watch, j->answer, j);
    /* what windows cost a rank alone is no price of the group's */
    code = j->alone ? CODE_DONE : calibrate(l);
    if (code == 0)
        code = j->lead(j, l);
    else if (j->answer)
        j->answer(j, rank_cause(r->k));
    watch_answers(r->k->watch, NULL, NULL);
    err = r->k->group && group_failed(r->k->group) ? 0 : order_stop(r);
    if (code == 0)
        code = job_code(l, err);
    lead_close(l);
    return code;
}

/* A rank that closes while another still reads looks like one that died. */
static int leave_group(struct rank *k, int code)
{
    int err;

    if (!k->group)
        return code;
    err = group_failed(k->group) ? 0 : group_barrier(k->group, LEAVE_MS);
    group_stop(k->group);
    return code == 0 && err < 0 ? rank_failure(k, err) : code;
}

static int serve(struct job *j, struct rank *k)
{
    struct rounds *r;
    enum exit_step step;
    int err = round_open(k, &step, &r), code;

    if (err < 0) {
        rank_broken(k, err, "rank %d cannot start", k->cfg.rank);
        return exit_code_of(step, err);
    }
    if (k->cfg.rank == 0) {
        code = lead_all(j, r);
    } else {
        err = follow_run(r);
        code = err < 0 ? rank_failure(k, err) : 0;
    }
    code = leave_group(k, code);
    err = round_close(r);
    return code == 0 ? exit_code_of(STEP_WRITE, err) : code;
}

static int run_rank(struct job *j, const struct config *cfg, struct drain *drain,
                    struct group_hub *hub, atomic_int *ready)
{
    struct rank k;
    int code = rank_open(cfg, drain, hub, j->alone, &k);

    k.keep = hub ? NULL : j->keep;
    if (code == 0)
        code = rank_load(&k);
    if (code == 0 && cfg->rank == 0)
        code = j->prepare(j, &k);
    if (code != 0)
        rank_refuse(&k);
    if (code == 0 && ready)
        atomic_store(ready, 1);
    if (code == 0)
        code = rank_join(&k);
    if (k.joined)
        code = serve(j, &k);
    rank_close(&k);
    return code;
}

/* The first code counts; but that a group failed only says that one of its ranks did, whose own
 * code tells why. A reply that was cut short is no such cause. */
static void note_code(atomic_int *first, int code)
{
    int old = CODE_DONE;

    if (!atomic_compare_exchange_strong(first, &old, code) && old == CODE_GROUP && code != CODE_NO)
        atomic_compare_exchange_strong(first, &old, code);
}

static void *run_thread(void *arg)
{
    struct rank_thread *t = (struct rank_thread *)arg;
    int code;

    log_rank(t->cfg.rank);
    /* What is wrong for all is said once, by rank 0. */
    while (t->cfg.rank != 0 && !atomic_load(t->ready)) {
        if (atomic_load(&t->drain->asked))
            return NULL;
        clock_sleep(NS_PER_MS);
    }
    code = run_rank(t->job, &t->cfg, t->drain, t->hub, t->ready);
    if (code != 0) {
        note_code(t->first, code);
        atomic_store(&t->drain->asked, DRAIN_FAILED); /* the others may still wait for this one */
    }
    return NULL;
}

static int run_threads(struct job *j, const struct config *cfg, struct drain *drain)
{
    struct rank_thread t[RANKS_MAX];
    struct group_hub *hub;
    atomic_int first = 0, ready = 0;
    int n = 0, err = group_hub_open(cfg->ranks, &hub);

    if (err < 0)
        return CODE_RESOURCE;
    for (; n < cfg->ranks && err == 0; n++) {
        t[n] = (struct rank_thread){
            .job = j, .cfg = *cfg, .hub = hub, .drain = drain, .ready = &ready, .first = &first
        };
        t[n].cfg.rank = n;
        err = pthread_create(&t[n].thread, NULL, run_thread, &t[n]);
        if (err) {
            fail(-err, "no thread for rank %d: %s", n, strerror(err));
            atomic_store(&first, CODE_RESOURCE);
            atomic_store(&drain->asked, DRAIN_FAILED);
            break;
        }
    }
    for (int i = 0; i < n; i++)
        pthread_join(t[i].thread, NULL);
    group_hub_close(hub);
    return atomic_load(&first);
}

int job_run(struct job *j, const struct config *cfg)
{
    bool threads = cfg->ranks > 1 && strcmp(cfg->link, "loop") == 0 && !j->alone;

    log_open(threads ? -1 : cfg->rank, (enum log_level)cfg->log_level);
    if (threads && cfg->rank != 0) {
        fail(-EINVAL, "config: with link loop one process runs all ranks, rank is %d", cfg->rank);
        return CODE_CONFIG;
    }
    if (!j->drain && drain_open(&j->drain) < 0)
        return CODE_RESOURCE;
    return threads ? run_threads(j, cfg, j->drain) : run_rank(j, cfg, j->drain, NULL, NULL);
}
