/* cmd_score.c owns teacher-forced scoring: what a model gives to each token of a known text. */
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/model/window.h"
#include "src/rank/commands.h"
#include "src/rank/job.h"
#include "src/rank/prompt.h"
#include "src/verify/sampler.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct score {
    struct job job;
    struct options *o;
    struct prompt prompt;
    struct json_writer w;
    int vocab;
    int *top;   /* [o->top] ids, largest logit first */
    int done;   /* positions that have been run */
    double sum; /* of logprobs */
    int err;
};

static int prepare(struct job *j, struct rank *k)
{
    struct score *s = (struct score *)j;
    const struct given *g = &s->o->given[0];
    char buf[PROMPT_NAME_CAP];
    int code = prompt_read(s->o, g, k->tok, k->model->vocab, &s->prompt);

    if (code == 0)
        code = prompt_fits(&s->prompt, k->bounds.context, prompt_name(s->o, g, buf));
    s->vocab = k->model->vocab;
    if (s->o->top > s->vocab)
        s->o->top = s->vocab;
    return code;
}

/* The n largest, largest first, of equal ones the lower id first: insertion into a short sorted
 * list. */
static void find_top(const float *z, int vocab, int n, int *top)
{
    int have = 0;

    for (int id = 0; id < vocab; id++) {
        int at = have < n ? have++ : n;

        if (at == n && !(z[id] > z[top[n - 1]]))
            continue;
        if (at == n)
            at--;
        while (at > 0 && z[id] > z[top[at - 1]]) {
            top[at] = top[at - 1];
            at--;
        }
        top[at] = id;
    }
}

static double logprob(const float *z, int vocab, float most, int id)
{
    double sum = 0;

    for (int i = 0; i < vocab; i++)
        sum += exp((double)z[i] - (double)most);
    return (double)z[id] - (double)most - log(sum);
}

static void print_row(void *arg, int pos, const float *z)
{
    struct score *s = (struct score *)arg;
    bool last = pos == s->prompt.n - 1;

    if (s->err < 0)
        return;
    find_top(z, s->vocab, s->o->top, s->top);
    json_begin_object(&s->w, NULL);
    json_put_int(&s->w, "pos", pos);
    json_put_int(&s->w, "id", s->prompt.ids[pos]);
    if (last) {
        json_put_null(&s->w, "logprob");
    } else {
        double lp = logprob(z, s->vocab, z[s->top[0]], s->prompt.ids[pos + 1]);

        s->sum += lp;
        json_put_f64(&s->w, "logprob", lp);
    }
    json_begin_array(&s->w, "top");
    for (int i = 0; i < s->o->top; i++) {
        json_begin_array(&s->w, NULL);
        json_put_int(&s->w, NULL, s->top[i]);
        json_put_f32(&s->w, NULL, z[s->top[i]]);
        json_end_array(&s->w);
    }
    json_end_array(&s->w);
    json_end_object(&s->w);
    s->err = json_write_line(&s->w, stdout);
}

static int score_all(struct score *s, struct lead *l)
{
    struct rounds *r = lead_round(l);
    int chunk = r->k->bounds.prefill_chunk < WINDOW_ROWS_SHARED ? r->k->bounds.prefill_chunk
                                                                : WINDOW_ROWS_SHARED;
    struct plan_admit a = { .n = s->prompt.n, .ids = s->prompt.ids };
    struct plan_span p = { 0 };
    int err;

    sampler_default(&a.sampler);
    err = order_admit(r, &a);
    for (; err == 0 && s->err == 0 && p.start < a.n && !lead_leaving(l); p.start = p.end) {
        p.end = p.start + chunk < a.n ? p.start + chunk : a.n;
        err = order_score(r, &p, print_row, s);
    }
    s->done = p.start;
    return err == 0 ? order_release(r, 0) : err;
}

static int score(struct job *j, struct lead *l)
{
    struct score *s = (struct score *)j;
    int n, code;

    s->top = malloc((size_t)s->o->top * sizeof(*s->top));
    if (!s->top)
        return exit_code_of(STEP_DEVICE, fail(-ENOMEM, "score: no memory for %d ids", s->o->top));
    json_writer_init(&s->w);
    code = job_code(l, score_all(s, l));
    if (fflush(stdout) != 0 && s->err == 0)
        s->err = -errno;
    if (code == 0 && s->err < 0)
        code = exit_code_of(STEP_WRITE,
                            fail(s->err, "cannot write the scores: %s", strerror(-s->err)));
    n = s->prompt.n - 1;
    if (code == 0 && s->done <= n) {
        /* what is printed ends well: nobody may take it for the whole */
        fail(-EINTR, "score: interrupted after %d of %d positions", s->done, s->prompt.n);
        code = CODE_NO;
    } else if (code == 0 && n > 0)
        log_info("scored %d tokens: mean logprob %.6f, perplexity %.4f", n, s->sum / n,
                 exp(-s->sum / n));
    json_writer_free(&s->w);
    free(s->top);
    return code;
}

int cmd_score(struct options *o)
{
    struct score s = { .job = { .prepare = prepare, .lead = score }, .o = o };
    int code;

    if (o->against)
        return cmd_against(o);
    code = job_run(&s.job, &o->cfg);

    free(s.prompt.ids);
    return code;
}
