/* cmd_against.c owns the comparison of two models on known texts: how often both choose the same
 * next token. */
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/model/window.h"
#include "src/rank/commands.h"
#include "src/rank/job.h"
#include "src/rank/prompt.h"
#include "src/verify/sampler.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text_item {
    struct named_prompt p;
    int32_t *choice[2]; /* of either model, [p.prompt.n] */
};

/* One pass over all texts with one model. */
struct pass {
    struct job job;
    struct options *o;
    struct text_item *item; /* [PROMPTS_MAX] */
    int n, model, vocab;
    int done; /* positions of this model */
    struct text_item *now;
};

/* The first model's tokenizer makes the ids; both must take them. */
static int prepare(struct job *j, struct rank *k)
{
    struct pass *s = (struct pass *)j;
    const struct options *o = s->o;
    int code = 0;

    s->vocab = k->model->vocab;
    if (s->model == 0 && o->givens == 1) {
        snprintf(s->item[0].p.name, sizeof(s->item[0].p.name), "prompt");
        code = prompt_read(o, &o->given[0], k->tok, s->vocab, &s->item[s->n++].p.prompt);
    } else if (s->model == 0) {
        struct named_prompt p[PROMPTS_MAX];

        code = prompt_folder(o->prompts, k->tok, p, &s->n);
        for (int i = 0; i < s->n; i++)
            s->item[i].p = p[i];
    }
    for (int i = 0; i < s->n && code == 0; i++) {
        struct text_item *it = &s->item[i];

        code = prompt_fits(&it->p.prompt, k->bounds.context, it->p.name);
        for (int t = 0; t < it->p.prompt.n && code == 0; t++)
            if (it->p.prompt.ids[t] >= s->vocab) {
                fail(-EINVAL, "%s: token %d, the vocabulary of %s is %d", it->p.name,
                     it->p.prompt.ids[t], o->against, s->vocab);
                code = CODE_DATA;
            }
        it->choice[s->model] = calloc((size_t)it->p.prompt.n + 1, sizeof(int32_t));
        if (code == 0 && !it->choice[s->model])
            code = exit_code_of(STEP_DEVICE, fail(-ENOMEM, "score: no memory"));
    }
    return code;
}

static void keep_choice(void *arg, int pos, const float *z)
{
    const struct pass *s = (const struct pass *)arg;
    int best = 0;

    for (int i = 1; i < s->vocab; i++)
        if (z[i] > z[best])
            best = i;
    s->now->choice[s->model][pos] = best;
}

static int score_item(struct pass *s, struct lead *l, struct text_item *it)
{
    struct rounds *r = lead_round(l);
    int chunk = r->k->bounds.prefill_chunk < WINDOW_ROWS_SHARED ? r->k->bounds.prefill_chunk
                                                                : WINDOW_ROWS_SHARED;
    struct plan_admit a = { .n = it->p.prompt.n, .ids = it->p.prompt.ids };
    struct plan_span p = { 0 };
    int err;

    s->now = it;
    sampler_default(&a.sampler);
    err = order_admit(r, &a);
    for (; err == 0 && p.start < a.n && !lead_leaving(l); p.start = p.end) {
        p.end = p.start + chunk < a.n ? p.start + chunk : a.n;
        err = order_score(r, &p, keep_choice, s);
    }
    s->done += p.start;
    return err == 0 ? order_release(r, 0) : err;
}

static int score(struct job *j, struct lead *l)
{
    struct pass *s = (struct pass *)j;
    int code = 0, all = 0;

    s->done = 0;
    for (int i = 0; i < s->n && code == 0; i++)
        code = job_code(l, score_item(s, l, &s->item[i]));
    for (int i = 0; i < s->n; i++)
        all += s->item[i].p.prompt.n;
    if (code == 0 && s->done < all) {
        fail(-EINTR, "score: interrupted after %d of %d positions", s->done, all);
        code = CODE_NO;
    }
    return code;
}

static void print(const struct pass *s, const char *model)
{
    int all = 0, equal = 0;

    for (int i = 0; i < s->n; i++) {
        const struct text_item *it = &s->item[i];
        int same = 0;

        for (int t = 0; t < it->p.prompt.n; t++)
            same += it->choice[0][t] == it->choice[1][t];
        printf("%-20s %6d of %6d positions choose the same token, %.2f%%\n", it->p.name, same,
               it->p.prompt.n, 100.0 * same / it->p.prompt.n);
        all += it->p.prompt.n;
        equal += same;
    }
    printf("top-1 agreement of %s with %s: %.2f%% of %d\n", model, s->o->against,
           100.0 * equal / all, all);
}

int cmd_against(struct options *o)
{
    struct text_item *item = calloc(PROMPTS_MAX, sizeof(*item));
    struct pass s = { .job = { .prepare = prepare, .lead = score }, .o = o, .item = item };
    char *first = o->cfg.model;
    int code;

    if (!item)
        return exit_code_of(STEP_DEVICE, fail(-ENOMEM, "score: no memory"));
    code = job_run(&s.job, &o->cfg);
    if (code == 0) {
        s.model = 1;
        o->cfg.model = (char *)o->against; /* borrowed; the settings get their own back */
        code = job_run(&s.job, &o->cfg);
        o->cfg.model = first;
    }
    if (code == 0)
        print(&s, first);
    for (int i = 0; i < s.n; i++) {
        prompts_free(&item[i].p, 1);
        free(item[i].choice[0]);
        free(item[i].choice[1]);
    }
    free(item);
    return code;
}
