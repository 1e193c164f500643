/* cmd_demo.c owns the demonstration: real prompts, drafted and then serially, compared token for
 * token. */
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/model/tokenizer.h"
#include "src/rank/commands.h"
#include "src/rank/front.h"
#include "src/rank/job.h"
#include "src/rank/prompt.h"
#include "src/rank/report.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROMPTS_MAX 16
#define PROMPT_BYTES ((size_t)1 << 20)

struct item {
    char name[64];
    char *text;
    struct prompt prompt;
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

static int is_prompt(const struct dirent *e)
{
    const char *dot = strrchr(e->d_name, '.');

    return dot && dot != e->d_name && strcmp(dot, ".txt") == 0;
}

/* A prompt's text is taken as it is, but for the newline that an editor leaves at the end; markers
 * in it count. */
static int read_item(struct item *it, const char *folder, const char *name,
                     const struct tokenizer *t)
{
    char path[PATH_CAP];
    size_t bytes;
    int r = path_join(path, sizeof(path), folder, name);

    if (r == 0)
        r = file_read(path, PROMPT_BYTES, &it->text, &bytes);
    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    if (bytes > 0 && it->text[bytes - 1] == '\n')
        it->text[--bytes] = 0;
    snprintf(it->name, sizeof(it->name), "%.*s", (int)(strlen(name) - strlen(".txt")), name);
    return prompt_encode(t, it->text, bytes, ENCODE_BOS | ENCODE_MARKERS, &it->prompt);
}

static int prepare(struct job *j, struct rank *k)
{
    struct demo *d = (struct demo *)j;
    struct dirent **entry;
    int n = scandir(d->o->prompts, &entry, is_prompt, alphasort), code = 0;

    if (n < 0)
        return exit_code_of(STEP_DATA,
                            fail(-errno, "prompts %s: %s", d->o->prompts, strerror(errno)));
    if (n == 0 || n > PROMPTS_MAX) {
        fail(-EINVAL, "prompts %s: %d files *.txt, want 1 .. %d", d->o->prompts, n, PROMPTS_MAX);
        code = CODE_DATA;
    }
    for (int i = 0; i < n; i++) {
        if (code == 0) {
            code = read_item(&d->item[d->n], d->o->prompts, entry[i]->d_name, k->tok);
            if (code == 0)
                code = prompt_fits(&d->item[d->n].prompt, k->bounds.context);
            d->n++;
        }
        free(entry[i]);
    }
    free(entry);
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
    struct request q = { .ids = it->prompt.ids,
                         .n = it->prompt.n,
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

        it->row.name = it->name;
        print(d, "--- ");
        print(d, it->name);
        print(d, " ---\n");
        print(d, it->text);
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
            printf("%s: drafted and serial text DIFFER\n", d->item[i].name);
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
    if (code == 0 && lead_leaving(l))
        log_info("interrupted: nothing was compared");
    else if (code == 0)
        code = print_proof(d, lead_round(l)->k->cfg.ranks);
    return code;
}

int cmd_demo(struct options *o)
{
    struct demo d = { .job = { .prepare = prepare, .lead = demo }, .o = o };
    int code = job_run(&d.job, &o->cfg);

    for (int i = 0; i < d.n; i++) {
        reply_free(&d.item[i].drafted);
        reply_free(&d.item[i].serial);
        free(d.item[i].prompt.ids);
        free(d.item[i].text);
    }
    return code;
}
