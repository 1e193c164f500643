/* cmd_demo.c owns the demonstration: real prompts, drafted and then serially, compared token for
 * token. */
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/rank/commands.h"
#include "src/rank/front.h"
#include "src/rank/job.h"
#include "src/rank/prompt.h"
#include "src/rank/report.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct item {
    struct named_prompt p;
    struct reply drafted, serial;
    struct report_row row;
};

struct demo {
    struct job job;
    struct options *o;
    struct item item[PROMPTS_MAX];
    int n;
    struct front *front;
};

static int prepare(struct job *j, struct rank *k)
{
    struct demo *d = (struct demo *)j;
    struct named_prompt p[PROMPTS_MAX];
    int code = prompt_folder(d->o->prompts, k->tok, p, &d->n);

    for (int i = 0; i < d->n; i++) {
        d->item[i].p = p[i];
        if (code == 0)
            code = prompt_fits(&p[i].prompt, k->bounds.context, p[i].name);
    }
    return code;
}

static void on_text(void *arg, const char *text, size_t bytes)
{
    const struct demo *d = (const struct demo *)arg;

    front_text(d->front, text, bytes);
}

static void print(struct demo *d, const char *text)
{
    front_text(d->front, text, strlen(text));
}

static int run(struct demo *d, struct lead *l, struct item *it, bool draft)
{
    const struct options *o = d->o;
    struct request q = { .ids = it->p.prompt.ids,
                         .n = it->p.prompt.n,
                         .max_tokens = o->max_tokens,
                         .sampler = o->sampler,
                         .ignore_end = o->cfg.ignore_eos,
                         .draft = draft,
                         .stop = o->stop,
                         .stops = o->stops,
                         .on_text = draft ? on_text : NULL,
                         .arg = d };
    const struct tally *t = &lead_round(l)->tally;
    struct tally before = *t;
    int err = lead_add(l, &q, draft ? &it->drafted : &it->serial);

    if (err == 0)
        err = lead_run(l);
    *(draft ? &it->row.drafted : &it->row.serial) = tally_minus(t, &before);
    return err;
}

static bool same(const struct item *it)
{
    const struct reply *a = &it->drafted, *b = &it->serial;

    return a->n == b->n && a->finish == b->finish && a->text.bytes == b->text.bytes &&
           (a->n == 0 || memcmp(a->ids, b->ids, (size_t)a->n * sizeof(*a->ids)) == 0) &&
           (a->text.bytes == 0 || memcmp(a->text.s, b->text.s, a->text.bytes) == 0);
}

/* Streams every reply, then decodes it again without drafts: the serial text is found, not
 * assumed. */
static int run_all(struct demo *d, struct lead *l)
{
    int err = 0;

    for (int i = 0; i < d->n && err == 0 && !lead_leaving(l); i++) {
        struct item *it = &d->item[i];

        it->row.name = it->p.name;
        print(d, "--- ");
        print(d, it->p.name);
        print(d, " ---\n");
        print(d, it->p.text);
        print(d, "\n...\n");
        err = run(d, l, it, true);
        print(d, "\n\n");
        if (err == 0)
            err = run(d, l, it, false);
    }
    return err;
}

static int print_proof(struct demo *d, int ranks)
{
    struct report_row row[PROMPTS_MAX] = { 0 };
    int tokens = 0, differ = 0;

    for (int i = 0; i < d->n; i++) {
        row[i] = d->item[i].row;
        tokens += d->item[i].drafted.n;
        if (!same(&d->item[i])) {
            printf("%s: drafted and serial text DIFFER\n", d->item[i].p.name);
            differ++;
        }
    }
    report_table(row, d->n, stdout);
    if (differ) {
        printf("\n%d of %d texts differ between drafted and serial decoding.\n", differ, d->n);
        return CODE_NO;
    }
    printf("\nDrafted text equals serial text token for token: %d tokens in %d texts, %d rank%s, "
           "checked just now.\n",
           tokens, d->n, ranks, ranks == 1 ? "" : "s");
    return CODE_DONE;
}

static int demo(struct job *j, struct lead *l)
{
    struct demo *d = (struct demo *)j;
    int code = exit_code_of(STEP_DEVICE, front_open(STDOUT_FILENO, &d->front)), r;

    if (code != 0)
        return code;
    code = job_code(l, run_all(d, l));
    r = front_close(d->front);
    if (code == 0 && r < 0)
        code = exit_code_of(STEP_WRITE, r);
    if (code == 0 && lead_leaving(l)) {
        fail(-EINTR, "demo: interrupted, nothing was compared");
        code = CODE_NO;
    } else if (code == 0) {
        code = print_proof(d, lead_round(l)->k->cfg.ranks);
    }
    return code;
}

int cmd_demo(struct options *o)
{
    struct demo d = { .job = { .prepare = prepare, .lead = demo }, .o = o };
    int code = job_run(&d.job, &o->cfg);

    for (int i = 0; i < d.n; i++) {
        reply_free(&d.item[i].drafted);
        reply_free(&d.item[i].serial);
        prompts_free(&d.item[i].p, 1);
    }
    return code;
}
