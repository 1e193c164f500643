/* cmd_against.c owns the comparison of two models on known texts: how often both choose the same
 * next token. */
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/model/tokenizer.h"
#include "src/model/window.h"
#include "src/rank/commands.h"
#include "src/rank/job.h"
#include "src/rank/prompt.h"
#include "src/verify/sampler.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXTS_MAX 64
#define TEXT_BYTES ((size_t)1 << 20)

struct text_item {
    char name[64];
    struct prompt prompt;
    int32_t *choice[2]; /* of either model, [prompt.n] */
};

/* One pass over all texts with one model. */
struct pass {
    struct job job;
    struct options *o;
    struct text_item *item; /* [TEXTS_MAX] */
    int n, model, vocab;
    int done; /* positions of this model */
    struct text_item *now;
};

static int is_text(const struct dirent *e)
{
    const char *dot = strrchr(e->d_name, '.');

    return dot && dot != e->d_name && strcmp(dot, ".txt") == 0;
}

/* As the demonstration reads them: without the last newline, markers count. */
static int read_item(struct text_item *it, const char *folder, const char *name,
                     const struct tokenizer *t)
{
    char path[PATH_CAP], *text;
    size_t bytes;
    int r = path_join(path, sizeof(path), folder, name), code;

    if (r == 0)
        r = file_read(path, TEXT_BYTES, &text, &bytes);
    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    if (bytes > 0 && text[bytes - 1] == '\n')
        bytes--;
    snprintf(it->name, sizeof(it->name), "%.*s", (int)(strlen(name) - strlen(".txt")), name);
    code = prompt_encode(t, text, bytes, ENCODE_BOS | ENCODE_MARKERS, &it->prompt);
    free(text);
    return code;
}

static int read_folder(struct pass *s, const struct tokenizer *t)
{
    const char *folder = s->o->prompts;
    struct dirent **entry;
    int n = scandir(folder, &entry, is_text, alphasort), code = 0;

    if (n < 0)
        return exit_code_of(STEP_DATA, fail(-errno, "prompts %s: %s", folder, strerror(errno)));
    if (n == 0 || n > TEXTS_MAX) {
        fail(-EINVAL, "prompts %s: %d files *.txt, want 1 .. %d", folder, n, TEXTS_MAX);
        code = CODE_DATA;
    }
    for (int i = 0; i < n; i++) {
        if (code == 0)
            code = read_item(&s->item[s->n++], folder, entry[i]->d_name, t);
        free(entry[i]);
    }
    free(entry);
    return code;
}

/* The first model's tokenizer makes the ids; both must take them. */
static int prepare(struct job *j, struct rank *k)
{
    struct pass *s = (struct pass *)j;
    const struct options *o = s->o;
    int code = 0;

    s->vocab = k->model->vocab;
    if (s->model == 0 && o->givens == 1) {
        snprintf(s->item[0].name, sizeof(s->item[0].name), "prompt");
        code = prompt_read(o, &o->given[0], k->tok, s->vocab, &s->item[s->n++].prompt);
    } else if (s->model == 0) {
        code = read_folder(s, k->tok);
    }
    for (int i = 0; i < s->n && code == 0; i++) {
        struct text_item *it = &s->item[i];

        code = prompt_fits(&it->prompt, k->bounds.context);
        for (int t = 0; t < it->prompt.n && code == 0; t++)
            if (it->prompt.ids[t] >= s->vocab) {
                fail(-EINVAL, "%s: token %d, the vocabulary of %s is %d", it->name,
                     it->prompt.ids[t], o->against, s->vocab);
                code = CODE_DATA;
            }
        it->choice[s->model] = calloc((size_t)it->prompt.n + 1, sizeof(int32_t));
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
    struct plan_admit a = { .n = it->prompt.n, .ids = it->prompt.ids };
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
        all += s->item[i].prompt.n;
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

        for (int t = 0; t < it->prompt.n; t++)
            same += it->choice[0][t] == it->choice[1][t];
        printf("%-20s %6d of %6d positions choose the same token, %.2f%%\n", it->name, same,
               it->prompt.n, 100.0 * same / it->prompt.n);
        all += it->prompt.n;
        equal += same;
    }
    printf("top-1 agreement of %s with %s: %.2f%% of %d\n", model, s->o->against,
           100.0 * equal / all, all);
}

int cmd_against(struct options *o)
{
    struct text_item *item = calloc(TEXTS_MAX, sizeof(*item));
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
        free(item[i].prompt.ids);
        free(item[i].choice[0]);
        free(item[i].choice[1]);
    }
    free(item);
    return code;
}
