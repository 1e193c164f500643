/* rounds.c owns the requests that rounds are tried with, and the job that runs them. */
#include "tests/device/rounds.h"

#include <string.h>

#include "kernels/backend.h"
#include "src/base/clock.h"
#include "src/model/slot.h"
#include "src/verify/sampler.h"
#include "tests/rig/goldens.h"

int rounds_failures;
struct run rounds_serial;

/* ---- what is asked --------------------------------------------------------------------------- */

struct asked {
    int first, n, max; /* of the text; tokens of the reply */
    struct sampler sampler;
    bool draft;
};

/* Prompts around the edges of windows of 64 and of chunks, greedy and sampled, short and long. */
static void ask(int i, bool draft, struct asked *a)
{
    static const int lengths[ASKED] = { 1, 2, 9, 63, 64, 65, 66, 70, 127, 128, 129, 140, 300, 500 };

    *a = (struct asked){ .first = 17 * i, .n = lengths[i], .max = REPLY - i, .draft = draft };
    sampler_default(&a->sampler);
    a->sampler.temperature = i % 2 ? 0.8 : 0;
    a->sampler.top_p = i % 3 == 1 ? 0.95 : 1;
    a->sampler.top_k = i % 5 == 3 ? 20 : 0;
    a->sampler.frequency = i == 7 || i == 10 ? 0.5 : 0;
    a->sampler.seed = 7;
}

/* ---- one job --------------------------------------------------------------------------------- */

static int prepare(struct job *j, struct rank *k)
{
    return 0;
}

static void keep_text(const struct run *r, int i, const struct reply *got, struct said *t)
{
    CHECK(got->n <= REPLY, "request %d", i);
    t->n = got->n;
    memcpy(t->ids, got->ids, sizeof(t->ids[0]) * (size_t)got->n);
}

/* Requests join as slots come free. */
static int pass(struct run *r, struct lead *l)
{
    size_t n;
    const int32_t *ids = golden_i32(&n, "prose_long.ids");
    struct reply reply[ASKED] = { 0 };
    bool done[ASKED] = { false };
    int next = r->from, live = 0, err = 0;

    while (err == 0 && (next < r->to || live > 0)) {
        while (next < r->to && live < r->together) {
            struct asked a;
            struct request q;

            ask(next, r->draft, &a);
            q = (struct request){ .ids = ids + a.first,
                                  .n = a.n,
                                  .max_tokens = a.max,
                                  .sampler = a.sampler,
                                  .ignore_end = true,
                                  .draft = a.draft };
            err = lead_add(l, &q, &reply[next]);
            if (err != 0)
                break;
            next++, live++;
        }
        if (err == 0)
            err = lead_step(l);
        for (int i = r->from; i < next; i++)
            if (!done[i] && reply[i].finish != FINISH_NONE) {
                done[i] = true;
                live--;
                keep_text(r, i, &reply[i], &r->text[i]);
            }
        if (err == 1 && live == 0)
            err = 0;
    }
    for (int i = r->from; i < r->to; i++)
        reply_free(&reply[i]);
    return err;
}

/* A number that is none in what the third layer keeps of slot 0, as a broken kernel would leave
 * it. */
static int spoil(struct lead *l)
{
    struct rank *k = lead_round(l)->k;
    const struct state_view *v = k->pool->view;
    unsigned char row[4096];
    int window = 0, i = 0;

    for (;; i++)
        if (k->pool->states.spec[i].kind == STATE_RING && v[i].cols == v[0].cols && window++ == 2)
            break;
    memset(row, 0xff, sizeof(row)); /* codes and scales that read back as no number */
    for (int at = 0; at < v[i].cap; at++)
        k->q->ops->put(k->q, v[i].base + (size_t)at * v[i].row_bytes, row, v[i].row_bytes);
    return k->q->ops->wait(k->q);
}

static int work(struct job *j, struct lead *l)
{
    struct run *r = (struct run *)j;
    struct rounds *rounds = lead_round(l);
    int err = 0;

    for (int i = 0; i < r->passes && err == 0; i++) {
        err = pass(r, l);
        r->allocations[i] = rounds->k->dev->allocations;
        r->room[i] = rounds->k->dev->ops->room(rounds->k->dev);
        if (i == 0 && r->passes > 1)
            rounds->tally = (struct tally){ 0 };
    }
    if (err < 0)
        snprintf(r->said, sizeof(r->said), "%s", rank_cause(rounds->k));
    if (err == 0 && r->harm == BAD_STATE) {
        size_t n;
        struct reply reply = { 0 };
        struct request q = { .ids = golden_i32(&n, "prose_long.ids"), .n = 30, .max_tokens = 20 };

        sampler_default(&q.sampler);
        err = lead_add(l, &q, &reply);
        for (int i = 0; i < 4 && err == 0; i++)
            err = lead_step(l);
        if (err == 0)
            err = spoil(l);
        if (err == 0)
            err = lead_run(l);
        snprintf(r->said, sizeof(r->said), "%s", rank_cause(rounds->k));
        reply_free(&reply);
    }
    r->graphs = parts_counts(rounds->parts);
    r->tally = rounds->tally;
    return job_code(l, err);
}

int rounds_run(struct run *r, const char *const *set)
{
    static const char *const base[] = {
        "model=models/pocket-dsv41", "backend=cuda",   "context=640",
        "prefill_chunk=64",          "log_level=warn", NULL
    };
    struct config cfg;
    int code;

    r->job = (struct job){ .prepare = prepare, .lead = work };
    r->passes = r->passes ? r->passes : 1;
    r->together = r->together ? r->together : 1;
    r->to = r->to ? r->to : ASKED;
    CHECK(config_init(&cfg) == 0, "config");
    for (int i = 0; base[i]; i++)
        CHECK(config_set(&cfg, base[i]) == 0, "%s", base[i]);
    for (int i = 0; set[i]; i++)
        CHECK(config_set(&cfg, set[i]) == 0, "%s", set[i]);
    CHECK(config_check(&cfg) == 0, "config");
    code = job_run(&r->job, &cfg);
    config_free(&cfg);
    return code;
}

void rounds_same(const struct run *want, const struct run *got, const char *what)
{
    for (int i = got->from; i < got->to; i++)
        CHECK(want->text[i].n == got->text[i].n &&
                  memcmp(want->text[i].ids, got->text[i].ids,
                         sizeof(int32_t) * (size_t)want->text[i].n) == 0,
              "%s: request %d says something else", what, i);
}

static double per_round(const struct tally *t, int64_t ns)
{
    return t->rounds ? (double)ns / NS_PER_US / (double)t->rounds : 0;
}

void rounds_print(const char *what, const struct run *r)
{
    const struct tally *t = &r->tally;

    printf("%s: %llu rounds, %.2f tokens each; us a round: host %.1f (plan %.1f stage %.1f launch "
           "%.1f "
           "commit %.1f) and n-gram rows %.1f beside device %.0f (window %.0f choose %.0f ingest "
           "%.0f draft %.0f), idle %.0f; "
           "graphs %llu made, %llu dropped, %llu replayed, %llu eager\n",
           what, (unsigned long long)t->rounds,
           t->rounds ? (double)t->landed / (double)t->rounds : 0.0,
           per_round(t, t->plan_ns + t->stage_ns + t->launch_ns + t->commit_ns),
           per_round(t, t->plan_ns), per_round(t, t->stage_ns), per_round(t, t->launch_ns),
           per_round(t, t->commit_ns), per_round(t, t->bring_ns),
           per_round(t, t->window_ns + t->choose_ns + t->ingest_ns + t->draft_ns),
           per_round(t, t->window_ns), per_round(t, t->choose_ns), per_round(t, t->ingest_ns),
           per_round(t, t->draft_ns), per_round(t, t->idle_ns), (unsigned long long)r->graphs.made,
           (unsigned long long)r->graphs.dropped, (unsigned long long)r->graphs.replayed,
           (unsigned long long)r->graphs.eager);
    fflush(stdout);
}
