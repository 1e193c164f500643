/* roundlog.c owns the files of lines; who fills a record is in round.c and lead.c. */
#include "src/rank/roundlog.h"

#include "src/base/clock.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/rank/ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS 1024

struct roundlog {
    struct ring *ring;
    FILE *file;
    char path[PATH_CAP];
    struct json_writer w;
    int err;
};

const char *finish_name(enum finish f)
{
    static const char *const names[FINISHES] = { "", "end", "stop", "length", "interrupted" };

    return names[f];
}

const char *finish_reason(enum finish f)
{
    return f == FINISH_END ? "stop" : finish_name(f);
}

/* ---- sums -------------------------------------------------------------------------------------------- */

void tally_add(struct tally *t, const struct round_record *r)
{
    t->rounds++;
    t->windows += (uint64_t)r->windows;
    t->rows += (uint64_t)r->rows;
    t->passes += (uint64_t)r->passes;
    for (int i = 0; i < r->windows; i++) {
        const struct round_slot *s = &r->slot[i];

        t->landed += (uint64_t)s->landed;
        t->drafted += (uint64_t)s->k;
        t->accepted += (uint64_t)s->a;
        t->depth[s->k]++;
        for (int j = 0; j < s->k && j <= s->a; j++) {
            t->tries[j]++;
            t->hits[j] += j < s->a;
        }
    }
    t->plan_ns += r->plan_ns;
    t->window_ns += r->window_ns;
    t->choose_ns += r->choose_ns;
    t->draft_ns += r->draft_ns;
    t->ingest_ns += r->ingest_ns;
    t->commit_ns += r->commit_ns;
    t->idle_ns += r->idle_ns;
    t->exchanges += r->exchanges;
    t->wait_ns += r->wait_ns;
    t->move_ns += r->move_ns;
}

struct tally tally_minus(const struct tally *t, const struct tally *before)
{
    struct tally d = *t;

    d.rounds -= before->rounds;
    d.windows -= before->windows;
    d.rows -= before->rows;
    d.landed -= before->landed;
    d.drafted -= before->drafted;
    d.accepted -= before->accepted;
    d.passes -= before->passes;
    for (int j = 0; j < WINDOW_MAX; j++) {
        d.tries[j] -= before->tries[j];
        d.hits[j] -= before->hits[j];
        d.depth[j] -= before->depth[j];
    }
    d.plan_ns -= before->plan_ns;
    d.window_ns -= before->window_ns;
    d.choose_ns -= before->choose_ns;
    d.draft_ns -= before->draft_ns;
    d.ingest_ns -= before->ingest_ns;
    d.commit_ns -= before->commit_ns;
    d.idle_ns -= before->idle_ns;
    d.exchanges -= before->exchanges;
    d.wait_ns -= before->wait_ns;
    d.move_ns -= before->move_ns;
    d.prompt_tokens -= before->prompt_tokens;
    d.prompt_ns -= before->prompt_ns;
    d.decode_ns -= before->decode_ns;
    return d;
}

int tally_depth(const struct tally *t)
{
    int n = 0;

    while (n < WINDOW_MAX && t->tries[n] > 0)
        n++;
    return n;
}

/* ---- lines ------------------------------------------------------------------------------------------- */

static void put_us(struct json_writer *w, const char *key, int64_t ns)
{
    json_put_f64(w, key, (double)(ns / 100) / 10);
}

static void put_ms(struct json_writer *w, const char *key, int64_t ns)
{
    json_put_f64(w, key, (double)(ns / NS_PER_US) / 1000);
}

static void put_chances(struct json_writer *w, const char *key, const struct round_record *r,
                        bool calibrated)
{
    json_begin_array(w, key);
    for (int i = 0; i < r->windows; i++) {
        const struct round_slot *s = &r->slot[i];

        json_begin_array(w, NULL);
        for (int j = 0; j < s->offered; j++)
            json_put_f32(w, NULL, calibrated ? s->q[j] : s->p[j]);
        json_end_array(w);
    }
    json_end_array(w);
}

static void put_slots(struct json_writer *w, const struct round_record *r)
{
    static const char *const sources[SOURCES] = { "none", "drafter", "lookup", "forced" };

    json_begin_array(w, "win");
    for (int i = 0; i < r->windows; i++) {
        const struct round_slot *s = &r->slot[i];

        json_begin_object(w, NULL);
        json_put_int(w, "slot", s->slot);
        json_put_int(w, "P", s->pos);
        json_put_str(w, "src", sources[s->source]);
        json_put_int(w, "k", s->k);
        json_put_int(w, "a", s->a);
        json_put_int(w, "landed", s->landed);
        json_put_str(w, "stop", finish_name(s->finish));
        json_end_object(w);
    }
    json_end_array(w);
}

static void put_prices(struct json_writer *w, const struct round_record *r)
{
    json_begin_array(w, "E");
    for (int i = 0; i < r->windows; i++)
        json_put_f64(w, NULL, r->slot[i].expect);
    json_end_array(w);
    json_begin_array(w, "lambda");
    for (int i = 0; i < r->windows; i++)
        json_put_f64(w, NULL, r->slot[i].lambda * 1000);
    json_end_array(w);
    json_begin_array(w, "C");
    for (int i = 0; i < r->windows; i++)
        put_ms(w, NULL, r->slot[i].cost_us * NS_PER_US);
    json_end_array(w);
}

static void put_line(struct json_writer *w, const struct round_record *r)
{
    json_begin_object(w, NULL);
    json_put_int(w, "r", r->round);
    json_put_int(w, "t", r->t_ns);
    json_put_int(w, "n", r->windows);
    json_put_int(w, "rows", r->rows);
    json_put_str(w, "mode", "eager");
    put_slots(w, r);
    put_chances(w, "p", r, false);
    put_chances(w, "q", r, true);
    put_prices(w, r);
    put_us(w, "plan_us", r->plan_ns);
    put_ms(w, "window_ms", r->window_ns);
    put_ms(w, "choose_ms", r->choose_ns);
    put_ms(w, "draft_ms", r->draft_ns);
    put_ms(w, "ingest_ms", r->ingest_ns);
    put_us(w, "commit_us", r->commit_ns);
    put_ms(w, "idle_ms", r->idle_ns);
    json_put_u64(w, "xn", r->exchanges);
    put_us(w, "xwait_us", (int64_t)r->wait_ns);
    put_us(w, "xmove_us", (int64_t)r->move_ns);
    json_end_object(w);
}

static void put_rates(struct json_writer *w, const char *key, const struct tally *t)
{
    int n = tally_depth(t);

    json_begin_array(w, key);
    for (int j = 0; j < n; j++)
        json_put_f64(w, NULL, (double)t->hits[j] / (double)t->tries[j]);
    json_end_array(w);
}

static void put_sums(struct json_writer *w, const struct tally *t)
{
    json_begin_object(w, NULL);
    json_begin_object(w, "summary");
    json_put_u64(w, "rounds", t->rounds);
    json_put_u64(w, "tokens", t->landed);
    json_put_f64(w, "tokens_per_round", t->rounds ? (double)t->landed / (double)t->rounds : 0);
    json_put_f64(w, "tok_s", t->decode_ns ? (double)t->landed * 1e9 / (double)t->decode_ns : 0);
    json_put_u64(w, "prompt_tokens", t->prompt_tokens);
    put_ms(w, "prompt_ms", t->prompt_ns);
    json_put_u64(w, "drafted", t->drafted);
    json_put_u64(w, "accepted", t->accepted);
    put_rates(w, "accept", t);
    json_begin_array(w, "depth");
    for (int k = 0; k <= tally_depth(t) && k < WINDOW_MAX; k++)
        json_put_u64(w, NULL, t->depth[k]);
    json_end_array(w);
    put_ms(w, "plan_ms", t->plan_ns);
    put_ms(w, "window_ms", t->window_ns);
    put_ms(w, "choose_ms", t->choose_ns);
    put_ms(w, "draft_ms", t->draft_ns);
    put_ms(w, "ingest_ms", t->ingest_ns);
    put_ms(w, "commit_ms", t->commit_ns);
    put_ms(w, "idle_ms", t->idle_ns);
    json_put_u64(w, "xn", t->exchanges);
    put_ms(w, "xwait_ms", (int64_t)t->wait_ns);
    put_ms(w, "xmove_ms", (int64_t)t->move_ns);
    json_end_object(w);
    json_end_object(w);
}

static void write_records(void *arg, const void *data, size_t n)
{
    struct roundlog *l = (struct roundlog *)arg;
    const struct round_record *r = (const struct round_record *)data;

    for (size_t i = 0; i < n && l->err == 0; i++) {
        put_line(&l->w, &r[i]);
        l->err = json_write_line(&l->w, l->file);
    }
    if (l->err == 0 && fflush(l->file) != 0)
        l->err = -errno;
}

int roundlog_open(const char *folder, int rank, struct roundlog **out)
{
    struct roundlog *l = calloc(1, sizeof(*l));
    char name[32];
    int r;

    if (!l)
        return fail(-ENOMEM, "log: out of memory");
    json_writer_init(&l->w);
    snprintf(name, sizeof(name), "rank%d.jsonl", rank);
    r = make_dirs(folder, 0777);
    if (r == 0)
        r = path_join(l->path, sizeof(l->path), folder, name);
    if (r < 0)
        goto free_log;
    l->file = fopen(l->path, "we");
    if (!l->file) {
        r = fail(-errno, "log %s: %s", l->path, strerror(errno));
        goto free_log;
    }
    r = ring_open(sizeof(struct round_record), RECORDS, write_records, l, &l->ring);
    if (r < 0)
        goto close_file;
    *out = l;
    return 0;

close_file:
    fclose(l->file);
free_log:
    free(l);
    return r;
}

void roundlog_put(struct roundlog *l, const struct round_record *r)
{
    if (l)
        ring_put(l->ring, r, 1);
}

int roundlog_close(struct roundlog *l, const struct tally *t)
{
    int r;

    if (!l)
        return 0;
    ring_close(l->ring);
    put_sums(&l->w, t);
    if (l->err == 0)
        l->err = json_write_line(&l->w, l->file);
    if (fclose(l->file) != 0 && l->err == 0)
        l->err = -errno;
    r = l->err < 0 ? fail(l->err, "log %s: %s", l->path, strerror(-l->err)) : 0;
    json_writer_free(&l->w);
    free(l);
    return r;
}
