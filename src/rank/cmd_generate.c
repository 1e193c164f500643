/* cmd_generate.c owns one request from the command line and what is printed about it. */
#include "src/base/clock.h"
#include "src/base/hash.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/rank/commands.h"
#include "src/rank/front.h"
#include "src/rank/job.h"
#include "src/rank/prompt.h"
#include "src/rank/report.h"
#include "src/verify/sampler.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct generate {
    struct job job;
    struct options *o;
    struct prompt prompt;
    struct front *front; /* NULL with --json */
};

static int choose_seed(struct options *o)
{
    int r;

    if (o->seeded || sampler_greedy(&o->sampler))
        return 0;
    r = random_bytes(&o->sampler.seed, sizeof(o->sampler.seed));
    if (r < 0)
        return exit_code_of(STEP_DEVICE, r);
    log_info("seed %llu", (unsigned long long)o->sampler.seed);
    return 0;
}

static int prepare(struct job *j, struct rank *k)
{
    struct generate *g = (struct generate *)j;
    int code = prompt_read(g->o, k->tok, k->model->vocab, &g->prompt);

    if (code == 0)
        code = prompt_fits(&g->prompt, k->bounds.context);
    return code ? code : choose_seed(g->o);
}

static void on_text(void *arg, const char *text, size_t bytes)
{
    const struct generate *g = (const struct generate *)arg;

    if (g->front)
        front_text(g->front, text, bytes);
}

/* error: why the ranks failed, NULL if they did not */
static int print_json(const struct reply *r, const char *error)
{
    const struct tally *t = &r->sums;
    struct json_writer w;
    int err;

    json_writer_init(&w);
    json_begin_object(&w, NULL);
    json_begin_array(&w, "ids");
    for (int i = 0; i < r->n; i++)
        json_put_int(&w, NULL, r->ids[i]);
    json_end_array(&w);
    json_put_strn(&w, "text", r->text.s ? r->text.s : "", r->text.bytes);
    json_put_str(&w, "finish", finish_reason(r->finish));
    if (error)
        json_put_str(&w, "error", error);
    json_put_int(&w, "prompt_tokens", r->prompt_tokens);
    json_put_int(&w, "completion_tokens", r->n);
    json_put_int(&w, "rounds", r->rounds);
    json_put_f64(&w, "tokens_per_round", r->rounds ? (double)r->n / r->rounds : 0);
    json_begin_array(&w, "accept");
    for (int i = 0; i < tally_depth(t); i++)
        json_put_f64(&w, NULL, (double)t->hits[i] / (double)t->tries[i]);
    json_end_array(&w);
    json_put_f64(&w, "seconds", (double)(r->end_ns - r->begin_ns) / (double)NS_PER_S);
    json_end_object(&w);
    err = json_write_line(&w, stdout);
    json_writer_free(&w);
    if (err == 0 && fflush(stdout) != 0)
        err = -errno;
    if (err < 0)
        fail(err, "cannot write the reply: %s", strerror(-err));
    return exit_code_of(STEP_WRITE, err);
}

/* The process is being ended while the round's thread computes: the request gets its answer all the
 * same. What the reply has so far is that thread's. */
static void answer_late(void *arg, const char *why)
{
    const struct generate *g = (const struct generate *)arg;

    if (g->o->json)
        print_json(&(struct reply){ .finish = FINISH_ERROR, .prompt_tokens = g->prompt.n }, why);
}

/* Steps while somebody reads; a terminal that is gone ends the reply like a signal does. */
static int run_until_done(struct generate *g, struct lead *l)
{
    int err = 0;

    while (err == 0) {
        if (g->front && front_failed(g->front))
            atomic_store(&lead_round(l)->k->drain->asked, 1);
        err = lead_step(l);
    }
    return err < 0 ? err : 0;
}

static int generate(struct job *j, struct lead *l)
{
    struct generate *g = (struct generate *)j;
    const struct options *o = g->o;
    const struct rank *k = lead_round(l)->k;
    struct request q = { .ids = g->prompt.ids,
                         .n = g->prompt.n,
                         .max_tokens = o->max_tokens,
                         .sampler = o->sampler,
                         .ignore_end = o->cfg.ignore_eos,
                         .draft = true,
                         .stop = o->stop,
                         .stops = o->stops,
                         .on_text = on_text,
                         .arg = g };
    struct reply reply = { 0 };
    int code = 0, err;

    if (!o->json)
        code = exit_code_of(STEP_DEVICE, front_open(STDOUT_FILENO, &g->front));
    if (code != 0)
        return code;
    watch_answers(k->watch, answer_late, g);
    err = lead_add(l, &q, &reply);
    if (err == 0)
        err = run_until_done(g, l);
    watch_answers(k->watch, NULL, NULL);
    code = job_code(l, err);
    if (g->front) {
        if (code == 0)
            front_text(g->front, "\n", 1);
        err = front_close(g->front);
        code = code ? code : exit_code_of(STEP_WRITE, err);
    } else if (code == 0) {
        code = print_json(&reply, NULL);
    } else {
        reply.finish = FINISH_ERROR;
        reply.end_ns = clock_ns();
        print_json(&reply, rank_cause(k));
    }
    if (code == 0)
        report_reply(&reply);
    reply_free(&reply);
    return code;
}

int cmd_generate(struct options *o)
{
    struct generate g = { .job = { .prepare = prepare, .lead = generate }, .o = o };
    int code = job_run(&g.job, &o->cfg);

    free(g.prompt.ids);
    return code;
}
