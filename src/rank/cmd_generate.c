/* cmd_generate.c owns the requests of one command and what is printed about their replies. */
#include "src/base/clock.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/rank/asked.h"
#include "src/rank/commands.h"
#include "src/rank/front.h"
#include "src/rank/job.h"
#include "src/rank/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One reply to come. */
struct wanted {
    const struct asked *asked;
    int index, choice; /* which request, which of its replies */
    struct request q;
    struct reply reply;
    bool begun;
    atomic_bool said; /* printed, or handed to the front */
};

struct generate {
    struct job job;
    struct options *o;
    struct asked_list asked;
    struct wanted *wanted;
    int n, next, told;   /* wanted; of these begun; and, as text, printed in their order */
    struct front *front; /* NULL with JSON */
};

static bool as_json(const struct generate *g)
{
    bool jobs = false;

    for (int i = 0; i < g->o->givens; i++)
        jobs |= g->o->given[i].as == GIVEN_JOBS_FILE;
    return g->o->json || jobs;
}

static void on_text(void *arg, const char *text, size_t bytes)
{
    const struct generate *g = (const struct generate *)arg;

    front_text(g->front, text, bytes);
}

/* Every reply of every request; one alone is seen while it comes. */
static int want_all(struct generate *g)
{
    int n = 0;

    for (int i = 0; i < g->asked.n; i++)
        n += g->asked.at[i].replies;
    g->wanted = calloc((size_t)n, sizeof(*g->wanted));
    if (!g->wanted) {
        fail(-ENOMEM, "no memory for %d replies", n);
        return CODE_RESOURCE;
    }
    g->n = n;
    for (int i = 0, at = 0; i < g->asked.n; i++)
        for (int c = 0; c < g->asked.at[i].replies; c++) {
            struct wanted *w = &g->wanted[at++];

            w->asked = &g->asked.at[i];
            w->index = i;
            w->choice = c;
            w->q = g->asked.at[i].q;
            w->q.sampler.seed = seed_of_choice(w->q.sampler.seed, (uint32_t)c);
            w->q.on_text = g->n == 1 && !as_json(g) ? on_text : NULL;
            w->q.arg = g;
        }
    return 0;
}

static int prepare(struct job *j, struct rank *k)
{
    struct generate *g = (struct generate *)j;
    int code = asked_read(
        &(struct asking){
            .o = g->o, .tok = k->tok, .vocab = k->model->vocab, .context = k->bounds.context },
        &g->asked);

    return code ? code : want_all(g);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_logprobs(struct json_writer *w, const struct reply *r)
{
    json_begin_array(w, "logprobs");
    for (int i = 0; i < r->n; i++) {
        const struct logprobs *p = &r->logprobs[i];

        json_begin_object(w, NULL);
        json_put_int(w, "id", r->ids[i]);
        json_put_f64(w, "logprob", p->chosen);
        json_begin_array(w, "top");
        for (int t = 0; t < p->n; t++) {
            json_begin_object(w, NULL);
            json_put_int(w, "id", p->id[t]);
            json_put_f64(w, "logprob", p->top[t]);
            json_end_object(w);
        }
        json_end_array(w);
        json_end_object(w);
    }
    json_end_array(w);
}

static void put_whose(struct json_writer *w, const struct generate *g, const struct wanted *r)
{
    if (r->asked->id)
        json_put_str(w, "id", r->asked->id);
    if (g->asked.n > 1)
        json_put_int(w, "request", r->index);
    if (r->asked->replies > 1)
        json_put_int(w, "choice", r->choice);
    if (!sampler_greedy(&r->q.sampler)) {
        char seed[24];

        snprintf(seed, sizeof(seed), "%llu", (unsigned long long)r->q.sampler.seed);
        json_put_str(w, "seed", seed);
    }
}

/* error: why the ranks failed, NULL if they did not */
static int print_json(const struct generate *g, const struct wanted *of, const struct reply *r,
                      const char *error)
{
    const struct tally *t = &r->sums;
    struct json_writer w;
    int err;

    json_writer_init(&w);
    json_begin_object(&w, NULL);
    put_whose(&w, g, of);
    json_begin_array(&w, "ids");
    for (int i = 0; i < r->n; i++)
        json_put_int(&w, NULL, r->ids[i]);
    json_end_array(&w);
    json_put_strn(&w, "text", r->text.s ? r->text.s : "", r->text.bytes);
    json_put_str(&w, "finish", finish_reason(r->finish));
    if (error)
        json_put_str(&w, "error", error);
    if (r->logprobs)
        put_logprobs(&w, r);
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

/* ---- replies --------------------------------------------------------------------------------- */

/* The process is being ended while the round's thread computes: every request gets its answer all
 * the same. What a reply has so far is that thread's. */
static void answer_late(void *arg, const char *why)
{
    struct generate *g = (struct generate *)arg;

    for (int i = 0; i < g->n && as_json(g); i++) {
        const struct wanted *w = &g->wanted[i];
        struct reply r = { .finish = FINISH_ERROR, .prompt_tokens = w->q.n };

        if (!atomic_exchange(&g->wanted[i].said, true))
            print_json(g, w, &r, why);
    }
}

/* Several texts come one after the other, in the order of the requests. */
static void tell_texts(struct generate *g)
{
    char head[96];

    while (g->told < g->n && g->wanted[g->told].reply.finish != FINISH_NONE) {
        struct wanted *w = &g->wanted[g->told++];

        snprintf(head, sizeof(head), "--- reply %d of %d (%s) ---\n", g->told, g->n,
                 finish_reason(w->reply.finish));
        if (g->n > 1) {
            front_text(g->front, head, strlen(head));
            front_text(g->front, w->reply.text.s ? w->reply.text.s : "", w->reply.text.bytes);
        }
        front_text(g->front, "\n", 1);
        atomic_store(&w->said, true);
        report_reply(&w->reply);
    }
}

/* Replies that are done, as they are done. */
static int tell(struct generate *g)
{
    int code = 0;

    if (g->front) {
        tell_texts(g);
        return front_failed(g->front) ? CODE_WRITE : 0;
    }
    for (int i = 0; i < g->next && code == 0; i++) {
        struct wanted *w = &g->wanted[i];

        if (w->reply.finish == FINISH_NONE || atomic_exchange(&w->said, true))
            continue;
        code = print_json(g, w, &w->reply, NULL);
        report_reply(&w->reply);
    }
    return code;
}

/* Fills free slots. */
static int begin(struct generate *g, struct lead *l)
{
    while (g->next < g->n) {
        struct wanted *w = &g->wanted[g->next];
        int err = lead_add(l, &w->q, &w->reply);

        if (err != 0)
            return err == 1 ? 0 : err;
        w->begun = true;
        g->next++;
    }
    return 0;
}

/* Steps while somebody reads; output that is gone ends the replies like a signal does. */
static int run_all(struct generate *g, struct lead *l, int *written)
{
    int err = 0;

    while (err >= 0) {
        err = lead_leaving(l) ? 0 : begin(g, l);
        if (err == 0)
            err = lead_step(l);
        if (*written == 0)
            *written = tell(g);
        if (*written != 0)
            atomic_store(&lead_round(l)->k->drain->asked, 1);
        if (err == 1 && (g->next == g->n || lead_leaving(l)))
            return 0;
    }
    return err;
}

/* Those that the end of the ranks has cut off. */
static void answer_rest(struct generate *g, const char *error)
{
    for (int i = 0; i < g->n && !g->front; i++) {
        struct wanted *w = &g->wanted[i];

        if (atomic_exchange(&w->said, true))
            continue;
        w->reply.prompt_tokens = w->q.n;
        w->reply.finish = error ? FINISH_ERROR : FINISH_INTERRUPTED;
        w->reply.end_ns = w->begun ? clock_ns() : 0;
        print_json(g, w, &w->reply, error);
    }
}

static int generate(struct job *j, struct lead *l)
{
    struct generate *g = (struct generate *)j;
    const struct rank *k = lead_round(l)->k;
    int code = 0, err, written = 0;

    if (!as_json(g))
        code = exit_code_of(STEP_DEVICE, front_open(STDOUT_FILENO, &g->front));
    if (code != 0)
        return code;
    err = run_all(g, l, &written);
    code = job_code(l, err);
    if (code != 0 || written == 0)
        answer_rest(g, code ? rank_cause(k) : NULL);
    if (g->front) {
        err = front_close(g->front);
        code = code ? code : exit_code_of(STEP_WRITE, err);
    }
    return code ? code : written;
}

int cmd_generate(struct options *o)
{
    struct generate g = { .job = { .prepare = prepare, .lead = generate, .answer = answer_late },
                          .o = o };
    int code = job_run(&g.job, &o->cfg);

    for (int i = 0; i < g.n; i++)
        reply_free(&g.wanted[i].reply);
    free(g.wanted);
    asked_free(&g.asked);
    return code;
}
