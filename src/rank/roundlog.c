/* roundlog.c owns the files of lines; what is added up is tally.c's, who fills a record is in
 * round.c and lead.c. */
#include "src/rank/roundlog.h"

#include "src/base/clock.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/rank/ring.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS 1024
#define NAME_BYTES 256
#define PHASES_EVERY 64

struct roundlog {
    struct ring *ring;
    FILE *file; /* NULL: no folder */
    char path[PATH_CAP], phases[PATH_CAP];
    struct json_writer w;
    int err;
    int rank, ranks;
    char model[PATH_CAP];
    char family[NAME_BYTES], drafter[NAME_BYTES], backend[NAME_BYTES], link[NAME_BYTES],
        numerics[NAME_BYTES];
    pthread_mutex_t lock; /* of sums: the writer adds, anybody copies */
    struct tally sums;
};

/* ---- lines ----------------------------------------------------------------------------------- */

/* Nanoseconds to a tenth of a microsecond. */
static void put_us(struct json_writer *w, const char *key, int64_t ns)
{
    json_put_f64(w, key, (double)(ns / 100) / 10);
}

static void put_ms(struct json_writer *w, const char *key, int64_t ns)
{
    json_put_f64(w, key, (double)(ns / NS_PER_US) / 1000);
}

static void put_number(struct json_writer *w, const struct record_field *f, int64_t v)
{
    if (f->unit == UNIT_COUNT)
        json_put_int(w, f->key, v);
    else if (f->unit == UNIT_US)
        put_us(w, f->key, v);
    else
        put_ms(w, f->key, v);
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

static const char *source_of(const struct roundlog *l, enum plan_source s)
{
    static const char *const names[SOURCES] = { "none", "drafter", "lookup" };

    return s == SOURCE_DRAFTER && l->drafter[0] ? l->drafter : names[s];
}

static void put_slots(struct roundlog *l, const struct round_record *r)
{
    struct json_writer *w = &l->w;

    json_begin_array(w, "win");
    for (int i = 0; i < r->windows; i++) {
        const struct round_slot *s = &r->slot[i];

        json_begin_object(w, NULL);
        json_put_int(w, "slot", s->slot);
        json_put_int(w, "P", s->pos);
        json_put_str(w, "src", source_of(l, s->source));
        json_put_int(w, "k", s->k);
        json_put_int(w, "a", s->a);
        json_put_int(w, "landed", s->landed);
        json_put_str(w, "stop", finish_name(s->finish));
        if (s->skipped != SKIPPED_UNKNOWN)
            json_put_bool(w, "skipped_right", s->skipped == SKIPPED_RIGHT);
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

static void put_line(struct roundlog *l, const struct round_record *r)
{
    struct json_writer *w = &l->w;

    json_begin_object(w, NULL);
    json_put_int(w, "r", r->round);
    json_put_int(w, "t", r->t_ns);
    json_put_int(w, "n", r->windows);
    json_put_int(w, "rows", r->rows);
    json_put_int(w, "bucket", r->bucket);
    json_put_int(w, "ctx", r->ctx);
    json_put_str(w, "mode", mode_name(r->mode));
    put_slots(l, r);
    put_chances(w, "p", r, false);
    put_chances(w, "q", r, true);
    put_prices(w, r);
    json_put_str(w, "spec", spec_end_name(r->spec));
    for (const struct record_field *f = record_fields; f->key; f++)
        put_number(w, f, record_number(r, f));
    if (r->lag_known)
        put_us(w, "lag_us", r->lag_ns);
    else
        json_put_null(w, "lag_us");
    json_end_object(w);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void put_about(struct json_writer *w, const struct roundlog *l)
{
    json_begin_object(w, "about");
    json_put_int(w, "rank", l->rank);
    json_put_int(w, "ranks", l->ranks);
    json_put_str(w, "model", l->model);
    json_put_str(w, "family", l->family);
    json_put_str(w, "drafter", l->drafter);
    json_put_str(w, "backend", l->backend);
    json_put_str(w, "link", l->link);
    json_put_str(w, "numerics", l->numerics);
    json_end_object(w);
}

static void put_rates(struct json_writer *w, const struct tally *t)
{
    int n = tally_depth(t);

    json_begin_array(w, "accept");
    for (int j = 0; j < n; j++)
        json_put_f64(w, NULL, per((double)t->hits[j], (double)t->tries[j]));
    json_end_array(w);
    json_begin_array(w, "survival");
    for (int j = 0; j < n; j++)
        json_put_f64(w, NULL, per((double)t->hits[j], (double)tally_reach(t, j + 1)));
    json_end_array(w);
    json_begin_array(w, "depth");
    for (int k = 0; k <= n && k < WINDOW_MAX; k++)
        json_put_u64(w, NULL, t->depth[k]);
    json_end_array(w);
}

static void put_sums(struct roundlog *l, const struct tally *t)
{
    struct json_writer *w = &l->w;

    json_begin_object(w, NULL);
    json_begin_object(w, "summary");
    put_about(w, l);
    json_put_u64(w, "rounds", t->rounds);
    json_put_u64(w, "tokens", t->landed);
    json_put_f64(w, "tokens_per_round", per((double)t->landed, (double)t->rounds));
    json_put_f64(w, "tok_s", per((double)t->landed * 1e9, (double)t->wall_ns));
    json_put_u64(w, "drafted", t->drafted);
    json_put_u64(w, "accepted", t->accepted);
    json_put_f64(w, "draft_efficiency", per((double)t->accepted, (double)t->drafted));
    json_put_f64(w, "offered_efficiency",
                 per((double)t->accepted_of[SOURCE_DRAFTER], (double)t->proposed));
    put_rates(w, t);
    for (const struct record_field *f = record_fields; f->key; f++)
        put_number(w, f, tally_number(t, f));
    json_end_object(w);
    json_end_object(w);
}

/* Where host time went, by the names of the steps; a part stands behind the phase that it belongs
 * to. */
static void put_phases(struct roundlog *l, const struct tally *t)
{
    const struct {
        const char *name;
        int64_t ns;
    } phase[] = {
        { "prefill", t->prompt_ns },
        { "draft", t->draft_ns + t->ingest_ns + t->draft_wait_ns },
        { "draft.pass", t->draft_ns },
        { "draft.ingest", t->ingest_ns },
        { "draft.wait", t->draft_wait_ns },
        { "window", t->stage_ns + t->engram_ns + t->window_ns + t->choose_ns },
        { "window.stage", t->stage_ns },
        { "window.engram", t->engram_ns },
        { "ahead", t->ahead_ns },
        { "window.forward", t->window_ns },
        { "window.candidates", t->choose_ns },
        { "plan", t->plan_ns },
        { "commit", t->commit_ns },
        { "host", t->rest_ns },
        { "idle", t->gap_ns },
    };
    struct json_writer *w = &l->w;

    json_begin_object(w, NULL);
    put_about(w, l);
    json_put_u64(w, "rounds", t->rounds);
    put_ms(w, "wall_ms", t->wall_ns);
    json_begin_array(w, "phases");
    for (size_t i = 0; i < sizeof(phase) / sizeof(phase[0]); i++) {
        json_begin_object(w, NULL);
        json_put_str(w, "name", phase[i].name);
        put_ms(w, "ms", phase[i].ns);
        json_put_f64(w, "us_a_round", per((double)phase[i].ns / 1e3, (double)t->rounds));
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
}

/* A disk that does not take this has been named; the lines decide what becomes of the log. */
static void write_phases(struct roundlog *l)
{
    const char *text;
    size_t bytes;

    put_phases(l, &l->sums);
    if (json_writer_text(&l->w, &text, &bytes) == 0)
        file_write(l->phases, text, bytes, 0666);
    json_writer_reset(&l->w);
}

/* ---- the writer's thread --------------------------------------------------------------------- */

static void take_records(void *arg, const void *data, size_t n)
{
    struct roundlog *l = (struct roundlog *)arg;
    const struct round_record *r = (const struct round_record *)data;

    for (size_t i = 0; i < n; i++) {
        pthread_mutex_lock(&l->lock);
        tally_add(&l->sums, &r[i]);
        pthread_mutex_unlock(&l->lock);
        if (!l->file || l->err < 0)
            continue;
        put_line(l, &r[i]);
        l->err = json_write_line(&l->w, l->file);
        if (l->err < 0)
            log_warn("log %s: %s; rounds go on without lines", l->path, strerror(-l->err));
        if (l->err == 0 && l->sums.rounds % PHASES_EVERY == 0)
            write_phases(l);
    }
}

static int open_files(struct roundlog *l, const char *folder)
{
    char name[32], old[PATH_CAP + 8];
    int r = make_dirs(folder, 0777);

    snprintf(name, sizeof(name), "rank%d.jsonl", l->rank);
    if (r == 0)
        r = path_join(l->path, sizeof(l->path), folder, name);
    snprintf(name, sizeof(name), "rank%d.phases.json", l->rank);
    if (r == 0)
        r = path_join(l->phases, sizeof(l->phases), folder, name);
    if (r < 0)
        return r;
    snprintf(old, sizeof(old), "%s.old", l->path);
    if (rename(l->path, old) < 0 && errno != ENOENT)
        return fail(-errno, "log %s: %s", l->path, strerror(errno));
    l->file = fopen(l->path, "we");
    return l->file ? 0 : fail(-errno, "log %s: %s", l->path, strerror(errno));
}

static void keep_name(char *to, size_t cap, const char *from)
{
    snprintf(to, cap, "%s", from ? from : "");
}

int roundlog_open(const char *folder, const struct roundlog_about *a, struct roundlog **out)
{
    struct roundlog *l = calloc(1, sizeof(*l));
    int r;

    if (!l)
        return fail(-ENOMEM, "log: out of memory");
    json_writer_init(&l->w);
    pthread_mutex_init(&l->lock, NULL);
    l->rank = a->rank;
    l->ranks = a->ranks;
    keep_name(l->model, sizeof(l->model), a->model);
    keep_name(l->family, sizeof(l->family), a->family);
    keep_name(l->drafter, sizeof(l->drafter), a->drafter);
    keep_name(l->backend, sizeof(l->backend), a->backend);
    keep_name(l->link, sizeof(l->link), a->link);
    keep_name(l->numerics, sizeof(l->numerics), a->numerics);
    r = folder[0] ? open_files(l, folder) : 0;
    if (r < 0)
        goto free_log;
    r = ring_open(sizeof(struct round_record), RECORDS, take_records, l, &l->ring);
    if (r < 0)
        goto close_file;
    *out = l;
    return 0;

close_file:
    if (l->file)
        fclose(l->file);
free_log:
    pthread_mutex_destroy(&l->lock);
    free(l);
    return r;
}

void roundlog_put(struct roundlog *l, const struct round_record *r)
{
    if (l)
        ring_put(l->ring, r, 1);
}

struct tally roundlog_sums(struct roundlog *l)
{
    struct tally t;

    pthread_mutex_lock(&l->lock);
    t = l->sums;
    pthread_mutex_unlock(&l->lock);
    return t;
}

static int finish_files(struct roundlog *l)
{
    int r = l->err;

    if (r == 0) {
        write_phases(l);
        put_sums(l, &l->sums);
        r = json_write_line(&l->w, l->file);
    }
    if (fclose(l->file) != 0 && r == 0)
        r = -errno;
    return r < 0 ? fail(r, "log %s: %s", l->path, strerror(-r)) : 0;
}

int roundlog_close(struct roundlog *l)
{
    int r;

    if (!l)
        return 0;
    ring_close(l->ring);
    r = l->file ? finish_files(l) : 0;
    json_writer_free(&l->w);
    pthread_mutex_destroy(&l->lock);
    free(l);
    return r;
}
