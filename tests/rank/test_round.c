/* test_round.c - two ranks as threads that must agree: what a follower refuses, and that the group
 * then ends on both.
 *
 * Rank 0 sends orders by hand. A case changes what rank 0 believes or sends, as a rank that
 * computes wrong would.
 */
#include "src/model/slot.h"
#include "src/rank/follow.h"
#include "src/rank/order.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/transport/comm.h"
#include "src/verify/sampler.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>

#define PROMPT 8

enum fault {
    NO_FAULT,
    OTHER_TOKEN,    /* rank 0 chose another token in the last round */
    OTHER_COUNT,    /* rank 0 accepted fewer */
    OTHER_PAST,     /* an older outcome differs: only the digest knows */
    OTHER_POSITION, /* the window stands elsewhere */
    NOT_KEPT,       /* the last round's outcome is not told */
    FREE_SLOT,      /* a window for a slot that nobody has */
    UNKNOWN_ORDER,
    OTHER_ROUND,  /* a round was lost */
    OTHER_BUCKET, /* rank 0 pads its windows */
    IN_PROMPT     /* a window that would choose the prompt's tokens */
};

struct round_case {
    const char *name;
    enum fault fault;
    const char *line; /* on the follower's log */
};

static const struct round_case cases[] = {
    { "ranks agree", NO_FAULT, NULL },
    { "another token", OTHER_TOKEN, "round 1 slot 0: rank 0 kept 1 and goes on with token" },
    { "another count", OTHER_COUNT, "round 1 slot 0: rank 0 kept 1 of more" },
    { "another past", OTHER_PAST, "round 1: outcomes digest to" },
    { "another position", OTHER_POSITION, "ROUND of slot 0: window at 10, the slot is at 9" },
    { "an outcome is not told", NOT_KEPT, "its last one is not kept" },
    { "a free slot", FREE_SLOT, "ROUND of slot 1: window at 9, the slot is at 0" },
    { "an unknown order", UNKNOWN_ORDER, "op 77 is unknown" },
    { "a lost round", OTHER_ROUND, "round 3 comes, 2 is due" },
    { "another bucket", OTHER_BUCKET, "ROUND of slot 0: 1 rows as 4, here as 0" },
    { "a prompt that has not run", IN_PROMPT, "ROUND of slot 0: window at 0, the slot is at 0" },
};

static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;
static char lines[1 << 16];

static void keep_line(void *arg, enum log_level level, const char *line)
{
    pthread_mutex_lock(&lines_lock);
    if (strlen(lines) + strlen(line) + 2 < sizeof(lines))
        strcat(strcat(lines, line), "\n");
    pthread_mutex_unlock(&lines_lock);
}

struct member {
    struct group_hub *hub;
    struct drain *drain;
    const struct config *cfg;
    int rank, result;
    char reason[GROUP_REASON_BYTES];
    enum fault fault;
};

static struct plan_round window_of(const struct rounds *r, int slot, int pos)
{
    struct plan_round p = { .windows = 1, .rows = 1, .tok = { r->seat[slot].next } };

    p.window[0] = (struct plan_window){ .slot = slot, .rows = 1, .pos = pos };
    return p;
}

static struct plan_commit commit_of(const struct rounds *r)
{
    return (struct plan_commit){ .keep = r->seat[0].n_ok,
                                 .flags = COMMIT_MATCHED,
                                 .next = r->seat[0].next };
}

/* The third round of three carries the fault. */
static int faulty_round(struct rounds *r, enum fault fault)
{
    struct plan_round p = window_of(r, 0, PROMPT + 1);
    struct seat *s = &r->seat[0];

    p.commits = 1;
    switch (fault) {
    case OTHER_TOKEN:
        s->next = s->choice[0] = (s->next + 1) % r->k->bounds.vocab;
        break;
    case OTHER_COUNT:
        s->n_ok = 2; /* so that rank 0 finds its own words in order */
        p.commit[0] = (struct plan_commit){ .keep = 1, .next = s->next };
        break;
    case OTHER_PAST:
        r->digest ^= 1;
        break;
    case OTHER_POSITION:
        p.window[0].pos++;
        break;
    case NOT_KEPT:
        p.commits = 0;
        break;
    case FREE_SLOT:
        p.window[0].slot = 1;
        break;
    case UNKNOWN_ORDER:
        return plan_box_send(r->k->box, 77, r->number, 0, r->word, 0);
    case OTHER_ROUND:
        r->number++;
        break;
    case OTHER_BUCKET:
        p.commit[0] = commit_of(r);
        p.digest = r->digest;
        p.row_bucket = 4;
        return plan_box_send(r->k->box, PLAN_ROUND, r->number, 0, r->word,
                             plan_put_round(&p, r->word));
    case IN_PROMPT:
    case NO_FAULT:
        break;
    }
    if (fault != OTHER_COUNT)
        p.commit[0] = commit_of(r);
    return order_round(r, &p);
}

static int lead(struct rounds *r, enum fault fault)
{
    int32_t ids[PROMPT] = { 0, 10, 20, 30, 40, 50, 60, 70 };
    struct plan_admit a = { .n = PROMPT, .budget = 16, .ids = ids };
    struct plan_span fill = { .end = PROMPT - 1 };
    struct plan_round p;
    struct plan_commit c;
    int err;

    sampler_default(&a.sampler);
    err = order_admit(r, &a);
    if (err == 0 && fault != IN_PROMPT)
        err = order_fill(r, &fill);
    p = window_of(r, 0, fault == IN_PROMPT ? 0 : PROMPT - 1);
    p.tok[0] = ids[p.window[0].pos];
    if (err == 0)
        err = order_round(r, &p);
    if (err < 0)
        return err;
    p = window_of(r, 0, PROMPT);
    p.commits = 1;
    p.commit[0] = commit_of(r);
    err = order_round(r, &p);
    if (err == 0)
        err = faulty_round(r, fault);
    if (err < 0)
        return err;
    /* Told or not, rank 0 learns of the follower's fault in one of its next orders. */
    c = commit_of(r);
    err = order_keep(r, &c);
    if (err == 0)
        err = order_release(r, 0);
    if (err == 0)
        err = order_stop(r);
    return err == 0 ? group_barrier(r->k->group, 5000) : err;
}

static void *run_member(void *arg)
{
    struct member *m = (struct member *)arg;
    struct config cfg = *m->cfg;
    struct rounds *r = NULL;
    enum exit_step step;
    struct rank k;

    cfg.rank = m->rank;
    log_rank(m->rank);
    m->result = rank_open(&cfg, m->drain, m->hub, false, &k);
    if (m->result == 0)
        m->result = rank_load(&k);
    if (m->result == 0)
        m->result = rank_join(&k);
    if (m->result == 0)
        m->result = round_open(&k, &step, &r);
    if (m->result == 0)
        m->result = m->rank == 0 ? lead(r, m->fault) : follow_run(r);
    if (m->result == 0 && m->rank != 0)
        m->result = group_barrier(k.group, 5000);
    if (k.group)
        snprintf(m->reason, sizeof(m->reason), "%s", group_reason(k.group));
    round_close(r);
    rank_close(&k);
    return NULL;
}

static void run_case(const struct round_case *c, const struct config *cfg)
{
    struct drain drain = { 0 };
    struct member m[2];
    pthread_t t[2];
    struct group_hub *hub;

    lines[0] = 0;
    cr_assert(eq(int, group_hub_open(2, &hub), 0));
    for (int i = 0; i < 2; i++) {
        m[i] = (struct member){
            .hub = hub, .drain = &drain, .cfg = cfg, .rank = i, .fault = c->fault
        };
        cr_assert(eq(int, pthread_create(&t[i], NULL, run_member, &m[i]), 0));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    group_hub_close(hub);
    if (c->fault == NO_FAULT) {
        cr_expect(eq(int, m[0].result, 0), "%s: %s", c->name, lines);
        cr_expect(eq(int, m[1].result, 0), "%s: %s", c->name, lines);
        return;
    }
    cr_expect(lt(int, m[0].result, 0), "%s: rank 0", c->name);
    cr_expect(eq(int, m[1].result, -EPROTO), "%s: rank 1", c->name);
    cr_expect(strstr(lines, c->line) != NULL, "%s: want \"%s\" in\n%s", c->name, c->line, lines);
    cr_expect(m[0].reason[0] && m[1].reason[0], "%s: no reason", c->name);
}

static void open_settings(struct config *cfg)
{
    cr_assert(eq(int, config_init(cfg), 0));
    cr_assert(eq(int, config_set(cfg, "model=" POCKET), 0));
    cr_assert(eq(int, config_set(cfg, "cache=" CACHE), 0));
    cr_assert(eq(int, config_set(cfg, "context=64"), 0));
    cr_assert(eq(int, config_set(cfg, "prefill_chunk=16"), 0));
}

Test(round, ranks_that_differ_end_with_the_difference_named, .timeout = 120)
{
    struct config cfg;

    log_sink(keep_line, NULL);
    open_settings(&cfg);
    cr_assert(eq(int, config_set(&cfg, "ranks=2"), 0));
    cr_assert(eq(int, config_set(&cfg, "slots=2"), 0));
    cr_assert(
        eq(int, config_set(&cfg, "grace_ms=86400000"), 0)); /* this process outlives its groups */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        run_case(&cases[i], &cfg);
    config_free(&cfg);
}

/* ---- a start that fails ---------------------------------------------------------------------- */

/* A device with graphs, whose first wait, or the barrier in front of it, fails. */
static struct {
    struct backend_ops dev, q;
    struct comm_ops comm;
    int wait, barrier;
    bool gone;
} failing;

static int failing_graph_begin(struct queue *q)
{
    return -ENOMEM;
}

static int failing_wait(struct queue *q)
{
    return failing.wait;
}

static int failing_barrier(struct comm *c)
{
    failing.gone = failing.barrier < 0;
    return failing.barrier;
}

static int failing_check(struct comm *c)
{
    return failing.gone ? failing.barrier : 0;
}

static void make_failing(struct rank *k)
{
    failing.dev = *k->dev->ops;
    failing.dev.caps |= BACKEND_GRAPHS;
    failing.q = *k->q->ops;
    failing.q.graph_begin = failing_graph_begin;
    failing.q.wait = failing_wait;
    failing.comm = *k->comm->ops;
    failing.comm.caps |= COMM_CAPTURE;
    failing.comm.barrier = failing_barrier;
    failing.comm.check = failing_check;
    k->dev->ops = &failing.dev;
    k->q->ops = &failing.q;
    k->comm->ops = &failing.comm;
}

static const struct {
    const char *name;
    int wait, barrier;
    const char *log;
    int code;
} starts[] = {
    { .name = "all is well" },
    { .name = "a device that fails", .wait = -EIO, .code = 69 },
    { .name = "a device without memory", .wait = -ENOMEM, .code = 71 },
    { .name = "a peer that is gone", .barrier = -ECONNRESET, .code = 70 },
    { .name = "a log that cannot be written", .log = "log=/dev/null/log", .code = 73 },
};

Test(round, a_start_that_fails_says_what_has)
{
    log_sink(keep_line, NULL);
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        const struct backend_ops *dev, *q;
        const struct comm_ops *comm;
        struct drain drain = { 0 };
        struct rounds *r = NULL;
        enum exit_step step;
        struct config cfg;
        struct rank k;
        int err;

        lines[0] = 0;
        open_settings(&cfg);
        if (starts[i].log)
            cr_assert(eq(int, config_set(&cfg, starts[i].log), 0));
        failing.wait = starts[i].wait;
        failing.barrier = starts[i].barrier;
        failing.gone = false;
        cr_assert(eq(int, rank_open(&cfg, &drain, NULL, false, &k), 0), "%s", lines);
        cr_assert(eq(int, rank_load(&k), 0), "%s", lines);
        cr_assert(eq(int, rank_join(&k), 0), "%s", lines);
        dev = k.dev->ops;
        q = k.q->ops;
        comm = k.comm->ops;
        make_failing(&k);
        err = round_open(&k, &step, &r);
        cr_expect(eq(int, exit_code_of(step, err), starts[i].code), "%s", starts[i].name);
        round_close(r);
        k.dev->ops = dev;
        k.q->ops = q;
        k.comm->ops = comm;
        rank_close(&k);
        config_free(&cfg);
    }
}
