/* cmd_bench.c owns what is measured and in which order; a speed counts only if every reply is what
 * the same request gets alone and serially. */
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/family.h"
#include "src/rank/bench.h"
#include "src/rank/commands.h"
#include "src/rank/job.h"
#include "src/rank/prompt.h"
#include "src/rank/report.h"

#include <errno.h>
#include <string.h>

static const double temperatures[] = { 0, 0.7 };
static const int streams[] = { 1, 2, 4 };

#define HEATS ((int)(sizeof(temperatures) / sizeof(temperatures[0])))
#define WIDTHS ((int)(sizeof(streams) / sizeof(streams[0])))
#define SEED 20

/* A text at a temperature, decoded serially and alone. */
struct serial {
    struct reply reply[HEATS];
};

struct bench {
    struct job job;
    struct options *o;
    struct named_prompt prompt[PROMPTS_MAX];
    struct serial serial[PROMPTS_MAX];
    int n, kind[PROMPTS_MAX]; /* texts, and where the first text of their kind is */
    struct bench_row row[BENCH_ROWS];
    int rows;
};

/* "code-2" is a text of the kind "code". */
static size_t kind_length(const char *name)
{
    return strcspn(name, "-");
}

static bool same_kind(const char *a, const char *b)
{
    return kind_length(a) == kind_length(b) && strncmp(a, b, kind_length(a)) == 0;
}

static int prepare(struct job *j, struct rank *k)
{
    struct bench *b = (struct bench *)j;
    int code = prompt_folder(b->o->prompts, k->tok, b->prompt, &b->n), kinds = 0;

    for (int i = 0; i < b->n && code == 0; i++) {
        code = prompt_fits(&b->prompt[i].prompt, k->bounds.context, b->prompt[i].name);
        b->kind[i] = i;
        for (int k0 = i - 1; k0 >= 0; k0--)
            if (same_kind(b->prompt[k0].name, b->prompt[i].name))
                b->kind[i] = k0;
        kinds += b->kind[i] == i;
    }
    if (code == 0 && kinds * HEATS * WIDTHS > BENCH_ROWS) {
        fail(-EINVAL, "prompts %s: %d kinds of texts, want at most %d", b->o->prompts, kinds,
             BENCH_ROWS / HEATS / WIDTHS);
        code = CODE_DATA;
    }
    return code;
}

/* ---- running --------------------------------------------------------------------------------- */

static struct request request_of(const struct bench *b, int text, int heat, bool draft)
{
    struct request q = { .ids = b->prompt[text].prompt.ids,
                         .n = b->prompt[text].prompt.n,
                         .max_tokens = b->o->max_tokens,
                         .sampler = b->o->sampler,
                         .ignore_end = true,
                         .draft = draft };

    q.sampler.temperature = temperatures[heat];
    q.sampler.seed = SEED + (uint64_t)text;
    return q;
}

static int run_serial(struct bench *b, struct lead *l)
{
    int err = 0;

    for (int i = 0; i < b->n && err == 0; i++)
        for (int h = 0; h < HEATS && err == 0 && !lead_leaving(l); h++) {
            struct request q = request_of(b, i, h, false);

            err = lead_add(l, &q, &b->serial[i].reply[h]);
            if (err == 0)
                err = lead_run(l);
        }
    return err;
}

static bool same_reply(const struct reply *a, const struct reply *b)
{
    return a->n == b->n && a->finish == b->finish && a->text.bytes == b->text.bytes &&
           memcmp(a->ids, b->ids, (size_t)a->n * sizeof(*a->ids)) == 0 &&
           memcmp(a->text.s, b->text.s, a->text.bytes) == 0;
}

/* Adds a group of replies that ran together to the row. While all of them decode, speed is
 * steady. */
static void add_group(struct bench *b, struct bench_row *row, const int *text, int heat,
                      const struct reply *reply, int n)
{
    int64_t first = INT64_MAX, last = 0;

    for (int i = 0; i < n; i++) {
        const struct reply *r = &reply[i], *s = &b->serial[text[i]].reply[heat];

        first = r->first_ns < first ? r->first_ns : first;
        last = r->last_ns > last ? r->last_ns : last;
        row->tokens += r->n;
        row->counted += r->n - 1;
        row->stream_ns += r->last_ns - r->first_ns;
        row->serial_tokens += s->n - 1;
        row->serial_ns += s->last_ns - s->first_ns;
        row->exact &= same_reply(r, s);
        if (!same_reply(r, s))
            log_warn("bench: %s at temperature %g with %d streams differs from its serial reply",
                     b->prompt[text[i]].name, temperatures[heat], n);
    }
    row->wall_ns += last - first;
}

static int run_group(struct bench *b, struct lead *l, struct bench_row *row, const int *text,
                     int heat, int n)
{
    const struct tally *t = &lead_round(l)->tally;
    struct tally before = *t, ran;
    struct reply reply[SLOTS_MAX] = { 0 };
    struct request q[SLOTS_MAX];
    int err = 0;

    for (int i = 0; i < n && err == 0; i++) {
        q[i] = request_of(b, text[i], heat, true);
        err = lead_add(l, &q[i], &reply[i]);
    }
    if (err == 0)
        err = lead_run(l);
    ran = tally_minus(t, &before);
    bench_add(row, &ran);
    if (err == 0 && !lead_leaving(l))
        add_group(b, row, text, heat, reply, n);
    for (int i = 0; i < n; i++)
        reply_free(&reply[i]);
    return err;
}

/* The texts of a kind in groups of `width`; a kind with fewer texts says some of them twice. */
static int run_row(struct bench *b, struct lead *l, int first, int heat, int width)
{
    struct bench_row *row = &b->row[b->rows++];
    int text[PROMPTS_MAX], n = 0, err = 0;

    log_info("bench: %.*s at temperature %g, %d at once", (int)kind_length(b->prompt[first].name),
             b->prompt[first].name, temperatures[heat], width);
    *row = (struct bench_row){ .streams = width, .temperature = temperatures[heat], .exact = true };
    memcpy(row->kind, b->prompt[first].name,
           kind_length(b->prompt[first].name) < sizeof(row->kind)
               ? kind_length(b->prompt[first].name)
               : sizeof(row->kind) - 1);
    for (int i = 0; i < b->n; i++)
        if (b->kind[i] == first)
            text[n++] = i;
    for (int at = 0; at < n && err == 0 && !lead_leaving(l); at += width) {
        int group[SLOTS_MAX];

        for (int i = 0; i < width; i++)
            group[i] = text[(at + i) % n];
        err = run_group(b, l, row, group, heat, width);
    }
    return err;
}

static int run_all(struct bench *b, struct lead *l)
{
    int slots = lead_round(l)->k->bounds.slots, err;

    log_info("bench: %d texts, each serially and alone", b->n);
    err = run_serial(b, l);
    for (int i = 0; i < b->n; i++)
        for (int h = 0; h < HEATS && b->kind[i] == i; h++)
            for (int w = 0; w < WIDTHS && err == 0 && !lead_leaving(l); w++)
                if (streams[w] <= slots)
                    err = run_row(b, l, i, h, streams[w]);
    return err;
}

static int bench(struct job *j, struct lead *l)
{
    struct bench *b = (struct bench *)j;
    const struct rank *k = lead_round(l)->k;
    int code;

    /* Serial replies are kept whole: with the clamped length nothing is cut by the context. */
    code = job_code(l, run_all(b, l));
    if (code != 0)
        return code;
    if (lead_leaving(l)) {
        fail(-EINTR, "bench: interrupted, nothing was compared");
        return CODE_NO;
    }
    return bench_print(k, b->row, b->rows, b->o->json);
}

int cmd_bench(struct options *o)
{
    struct bench b = { .job = { .prepare = prepare, .lead = bench }, .o = o };
    int code;

    if (o->word[0] && !o->compare) {
        fail(-EINVAL, "bench: %s: only --compare reads files", o->word[0]);
        return CODE_USAGE;
    }
    if (o->only && !o->transport) {
        fail(-EINVAL, "bench: --only wants --transport");
        return CODE_USAGE;
    }
    if (o->transport)
        return cmd_bench_transport(o);
    if (o->windows || o->kernels || o->profile)
        return cmd_bench_device(o);
    if (o->compare)
        return o->word[0] && o->word[1]
                   ? bench_compare(o->word[0], o->word[1])
                   : (fail(-EINVAL, "--compare: wants A.json B.json"), CODE_USAGE);
    code = job_run(&b.job, &o->cfg);
    for (int i = 0; i < b.n; i++)
        for (int h = 0; h < HEATS; h++)
            reply_free(&b.serial[i].reply[h]);
    prompts_free(b.prompt, b.n);
    return code;
}
