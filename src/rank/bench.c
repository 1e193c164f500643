/* bench.c owns how rows of a benchmark look; cmd_bench.c what was run. */
#include "src/rank/bench.h"

#include "kernels/backend.h"
#include "src/base/clock.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/rank/exit_code.h"
#include "src/rank/rank.h"

#include <stdio.h>
#include <string.h>

#define FILE_BYTES ((size_t)4 << 20)
#define FILE_DEPTH 8

static double rate(int64_t tokens, int64_t ns)
{
    return per((double)tokens * (double)NS_PER_S, (double)ns);
}

void bench_add(struct bench_row *row, const struct tally *t)
{
    row->rounds += t->rounds;
    row->windows += t->windows;
    row->landed += t->landed;
    row->drafted += t->drafted;
    row->accepted += t->accepted;
    for (int i = 0; i < WINDOW_MAX; i++) {
        row->tries[i] += t->tries[i];
        row->hits[i] += t->hits[i];
    }
}

/* ---- one run --------------------------------------------------------------------------------- */

static void print_table(const struct bench_row *row, int rows)
{
    printf("tok/s of a stream, of all together, and of the same requests serially and alone; T: "
           "temperature\n\n");
    printf("%-12s %7s %4s %9s %9s %9s %9s %13s %9s %6s  %s\n", "text", "streams", "T", "stream",
           "all", "serial", "speed-up", "tokens/window", "accepted", "exact",
           "acceptance by draft position");
    for (int i = 0; i < rows; i++) {
        const struct bench_row *r = &row[i];

        printf("%-12s %7d %4.1f %9.1f %9.1f %9.1f %8.2fx %13.2f %8.0f%% %6s ", r->kind, r->streams,
               r->temperature, rate(r->counted, r->stream_ns), rate(r->tokens, r->wall_ns),
               rate(r->serial_tokens, r->serial_ns),
               per(rate(r->tokens, r->wall_ns), rate(r->serial_tokens, r->serial_ns)),
               per((double)r->landed, (double)r->windows),
               100 * per((double)r->accepted, (double)r->drafted), r->exact ? "yes" : "NO");
        for (int j = 0; j < WINDOW_MAX && r->tries[j] > 0; j++)
            printf(" %.2f", per((double)r->hits[j], (double)r->tries[j]));
        printf("\n");
    }
}

static void put_about(struct json_writer *w, const struct rank *k)
{
    char numerics[16] = "";

    config_get(&k->cfg, "numerics", numerics, sizeof(numerics));
    json_begin_object(w, "about");
    json_put_str(w, "version", TANDEM_VERSION);
    json_put_str(w, "model", k->cfg.model);
    json_put_str(w, "family", k->model->ops->name);
    json_put_str(w, "drafter", k->drafter->ops->name);
    json_put_str(w, "backend", k->dev->ops->name);
    json_put_str(w, "device", k->dev->name);
    json_put_int(w, "ranks", k->cfg.ranks);
    json_put_str(w, "link", k->group ? k->cfg.link : "none");
    json_put_int(w, "threads", config_threads(&k->cfg));
    json_put_str(w, "numerics", numerics);
    json_put_int(w, "expert_top_p", k->cfg.expert_top_p);
    json_end_object(w);
}

static void put_row(struct json_writer *w, const struct bench_row *r)
{
    json_begin_object(w, NULL);
    json_put_str(w, "text", r->kind);
    json_put_int(w, "streams", r->streams);
    json_put_f64(w, "temperature", r->temperature);
    json_put_f64(w, "stream_tok_s", rate(r->counted, r->stream_ns));
    json_put_f64(w, "all_tok_s", rate(r->tokens, r->wall_ns));
    json_put_f64(w, "serial_tok_s", rate(r->serial_tokens, r->serial_ns));
    json_put_int(w, "tokens", r->tokens);
    json_put_int(w, "rounds", (int64_t)r->rounds);
    json_put_f64(w, "tokens_per_window", per((double)r->landed, (double)r->windows));
    json_put_f64(w, "draft_efficiency", per((double)r->accepted, (double)r->drafted));
    json_begin_array(w, "accept");
    for (int j = 0; j < WINDOW_MAX && r->tries[j] > 0; j++)
        json_put_f64(w, NULL, per((double)r->hits[j], (double)r->tries[j]));
    json_end_array(w);
    json_put_bool(w, "exact", r->exact);
    json_end_object(w);
}

static bool all_exact(const struct bench_row *row, int rows)
{
    bool exact = true;

    for (int i = 0; i < rows; i++)
        exact &= row[i].exact;
    return exact;
}

static int print_json(const struct rank *k, const struct bench_row *row, int rows)
{
    struct json_writer w;
    int err;

    json_writer_init(&w);
    json_begin_object(&w, NULL);
    put_about(&w, k);
    json_begin_array(&w, "rows");
    for (int i = 0; i < rows; i++)
        put_row(&w, &row[i]);
    json_end_array(&w);
    json_put_bool(&w, "exact_all", all_exact(row, rows));
    json_end_object(&w);
    err = json_write_line(&w, stdout);
    json_writer_free(&w);
    if (err < 0)
        fail(err, "cannot write the result: %s", strerror(-err));
    return exit_code_of(STEP_WRITE, err);
}

int bench_print(const struct rank *k, const struct bench_row *row, int rows, bool json)
{
    bool exact = all_exact(row, rows);
    int code = 0;

    if (json) {
        code = print_json(k, row, rows);
    } else {
        print_table(row, rows);
        printf("\nexact_all: %s\n", exact ? "yes" : "NO: these speeds do not count");
    }
    return code == 0 && !exact ? CODE_NO : code;
}

/* ---- two runs -------------------------------------------------------------------------------- */

struct side {
    struct json *root;
    const struct json *rows;
};

struct compared {
    const char *text;
    int streams;
    double temperature, all, stream, tokens;
    bool exact;
};

static int read_row(const struct json *o, struct compared *out)
{
    int r = json_str(o, "text", &out->text);

    if (r == 0)
        r = json_int(o, "streams", 1, SLOTS_MAX, &out->streams);
    if (r == 0)
        r = json_f64(o, "temperature", &out->temperature);
    if (r == 0)
        r = json_f64(o, "all_tok_s", &out->all);
    if (r == 0)
        r = json_f64(o, "stream_tok_s", &out->stream);
    if (r == 0)
        r = json_f64(o, "tokens_per_window", &out->tokens);
    return r == 0 ? json_bool(o, "exact", &out->exact) : r;
}

static int open_side(const char *path, struct side *s)
{
    int r = json_read(path, FILE_BYTES, FILE_DEPTH, &s->root);

    return r == 0 ? json_get_array(s->root, "rows", &s->rows) : r;
}

/* The row of the other file for the same thing; 1 if it has none. */
static int find_row(const struct json *rows, const struct compared *like, struct compared *out)
{
    for (size_t i = 0; i < json_count(rows); i++) {
        int r = read_row(json_at(rows, i), out);

        if (r < 0)
            return r;
        if (strcmp(out->text, like->text) == 0 && out->streams == like->streams &&
            out->temperature == like->temperature)
            return 0;
    }
    return 1;
}

static int compare_row(const struct json *row, const struct json *others, bool *exact)
{
    struct compared a, b;
    int r = read_row(row, &a);

    if (r == 0)
        r = find_row(others, &a, &b);
    if (r < 0)
        return r;
    if (r == 1) {
        printf("%-12s %7d %4.1f %9.1f %9s\n", a.text, a.streams, a.temperature, a.all, "-");
        return 0;
    }
    *exact &= a.exact && b.exact;
    printf("%-12s %7d %4.1f %9.1f %9.1f %7.2fx %9.2f %9.2f  %s\n", a.text, a.streams, a.temperature,
           a.all, b.all, per(b.all, a.all), a.tokens, b.tokens, a.exact && b.exact ? "yes" : "NO");
    return 0;
}

int bench_compare(const char *a, const char *b)
{
    struct side side[2] = { 0 };
    bool exact = true;
    int r = open_side(a, &side[0]);

    if (r == 0)
        r = open_side(b, &side[1]);
    if (r == 0) {
        printf("A is %s, B is %s; tok/s of all streams\n", a, b);
        printf("%-12s %7s %4s %9s %9s %8s %9s %9s  %s\n", "text", "streams", "T", "A", "B", "B / A",
               "tokens A", "tokens B", "exact");
    }
    for (size_t i = 0; r == 0 && i < json_count(side[0].rows); i++)
        r = compare_row(json_at(side[0].rows, i), side[1].rows, &exact);
    json_close(side[0].root);
    json_close(side[1].root);
    return r < 0 ? exit_code_of(STEP_DATA, r) : exact ? 0 : CODE_NO;
}
