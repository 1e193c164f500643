/* report_log.c owns reading a round log; its lines are roundlog.c's. */
#include "src/rank/report_log.h"

#include "src/base/json.h"
#include "src/base/log.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LINE_BYTES ((size_t)1 << 20) /* a longer line is no round */
#define LINE_DEPTH 8
#define TIME_MAX_US 1e12 /* eleven days: no step takes longer */
#define COUNT_MAX (INT64_C(1) << 40)

const char *part_name(enum part p)
{
    static const char *const names[PARTS] = {
        [PART_PLAN] = "plan",           [PART_STAGE] = "staging",
        [PART_ROWS] = "n-gram rows",    [PART_WINDOW] = "verify window",
        [PART_CHOOSE] = "choices",      [PART_INGEST] = "drafter's context",
        [PART_DRAFT] = "draft pass",    [PART_COMMIT] = "commit",
        [PART_WAIT] = "exchange waits", [PART_REST] = "other",
    };

    return names[p];
}

const char *part_help(enum part p)
{
    static const char *const help[PARTS] = {
        [PART_PLAN] = "rank 0 decides what runs and tells the others; the others wait for it",
        [PART_STAGE] = "host work between the plan and the first operation",
        [PART_ROWS] = "waiting for rows of the n-gram tables from disk",
        [PART_WINDOW] = "the model runs over all rows of the round",
        [PART_CHOOSE] = "candidates, draws, and how many drafts are accepted",
        [PART_INGEST] = "the drafter takes in what was accepted",
        [PART_DRAFT] = "the drafter proposes the next tokens",
        [PART_COMMIT] = "rank 0 lands tokens: stops, limits, text",
        [PART_WAIT] = "inside window, choices and draft pass: until the other ranks' sums are here",
        [PART_REST] = "between the steps: copies, bookkeeping, the system's scheduler",
    };

    return help[p];
}

double log_round_us(const struct log_round *r)
{
    double us = 0;

    for (int p = 0; p < PARTS; p++)
        us += r->us[p];
    return us;
}

/* ---- values of a line ------------------------------------------------------------------------ */

/* A line that is being taken apart, and the first thing that is wrong with it. */
struct taker {
    bool wrong;
    char why[160];
};

__attribute__((format(printf, 2, 3))) static void refuse(struct taker *t, const char *fmt, ...)
{
    va_list ap;

    if (t->wrong)
        return;
    t->wrong = true;
    va_start(ap, fmt);
    vsnprintf(t->why, sizeof(t->why), fmt, ap);
    va_end(ap);
}

/* A whole number in lo .. hi; `other` where there is none. */
static int64_t take_int(struct taker *t, const struct json *o, const char *key, int64_t lo,
                        int64_t hi, int64_t other)
{
    const struct json *v = json_get(o, key);
    int64_t n = 0;

    if (!v || json_is(v, JSON_IS_NULL))
        return other;
    if (!json_is(v, JSON_IS_INT) || json_as_i64(v, INT64_MIN, INT64_MAX, &n) < 0)
        refuse(t, "%s is no whole number", key);
    else if (n < lo || n > hi)
        refuse(t, "%s %lld is not in %lld .. %lld", key, (long long)n, (long long)lo,
               (long long)hi);
    return t->wrong ? other : n;
}

static double number(const struct json *v)
{
    double x = NAN;

    if (json_is(v, JSON_IS_INT) || json_is(v, JSON_IS_REAL))
        json_as_f64(v, &x);
    return x;
}

static double take_real(struct taker *t, const struct json *o, const char *key, double lo,
                        double hi)
{
    const struct json *v = json_get(o, key);
    double x = v ? number(v) : 0;

    if (v && !(x >= lo && x <= hi)) {
        refuse(t, "%s is no number in %g .. %g", key, lo, hi);
        return 0;
    }
    return x;
}

static int take_name(struct taker *t, const struct json *o, const char *key,
                     const char *(*name)(int i), int names)
{
    const struct json *v = json_get(o, key);
    const char *s = "";

    if (!v)
        return 0;
    if (!json_is(v, JSON_IS_STRING) || json_as_str(v, &s) < 0) {
        refuse(t, "%s is no string", key);
        return 0;
    }
    for (int i = 0; i < names; i++)
        if (strcmp(s, name(i)) == 0)
            return i;
    refuse(t, "%s \"%.40s\" is unknown", key, s);
    return 0;
}

static const char *mode_at(int i)
{
    return mode_name((enum round_mode)i);
}

static const char *spec_at(int i)
{
    return spec_end_name((enum spec_end)i);
}

static const char *finish_at(int i)
{
    return finish_name((enum finish)i);
}

static void keep_name(char *to, size_t cap, const struct json *o, const char *key)
{
    const struct json *v = json_get(o, key);
    const char *s = "";

    if (json_is(v, JSON_IS_STRING) && json_as_str(v, &s) == 0)
        snprintf(to, cap, "%s", s);
}

/* ---- a round --------------------------------------------------------------------------------- */

/* Where the drafts of a window came from: any name but these is a drafter's. */
static enum plan_source take_source(struct report_log *l, const struct json *o)
{
    char name[REPORT_NAME_BYTES] = "none";

    keep_name(name, sizeof(name), o, "src");
    if (strcmp(name, "none") == 0)
        return SOURCE_NONE;
    if (strcmp(name, "lookup") == 0)
        return SOURCE_COPY;
    snprintf(l->drafter, sizeof(l->drafter), "%s", name);
    return SOURCE_DRAFTER;
}

const char *report_source(const struct report_log *l, int source)
{
    static const char *const names[SOURCES] = { "no drafts", "drafter", "copies" };

    return source == SOURCE_DRAFTER && l->drafter[0] ? l->drafter : names[source];
}

static void take_window(struct report_log *l, struct taker *t, const struct json *o,
                        struct round_slot *s)
{
    const struct json *skipped = json_get(o, "skipped_right");
    bool right = false;

    s->slot = (int)take_int(t, o, "slot", 0, SLOTS_MAX - 1, 0);
    s->pos = (int)take_int(t, o, "P", 0, INT32_MAX, 0);
    s->k = (int)take_int(t, o, "k", 0, WINDOW_MAX - 1, 0);
    s->a = (int)take_int(t, o, "a", 0, s->k, 0);
    s->landed = (int)take_int(t, o, "landed", 0, s->k + 1, 0);
    s->finish = (enum finish)take_name(t, o, "stop", finish_at, FINISHES);
    s->source = take_source(l, o);
    if (skipped && json_is(skipped, JSON_IS_BOOL) && json_as_bool(skipped, &right) == 0)
        s->skipped = right ? SKIPPED_RIGHT : SKIPPED_WRONG;
}

/* Chances of a slot's offered drafts; how many there are. */
static int take_chances(struct taker *t, const struct json *o, const char *key, int slot, float *to)
{
    const struct json *list = json_get(o, key), *own;
    int n;

    if (!list)
        return 0;
    own = json_is(list, JSON_IS_ARRAY) && (size_t)slot < json_count(list)
              ? json_at(list, (size_t)slot)
              : NULL;
    if (!json_is(own, JSON_IS_ARRAY) || json_count(own) > WINDOW_MAX) {
        refuse(t, "%s has no list of at most %d for window %d", key, WINDOW_MAX, slot);
        return 0;
    }
    n = (int)json_count(own);
    for (int i = 0; i < n; i++) {
        double x = number(json_at(own, (size_t)i));

        to[i] = isnan(x) ? -1 : (float)x;
    }
    return n;
}

static void take_windows(struct report_log *l, struct taker *t, const struct json *o,
                         struct round_record *r)
{
    const struct json *win = json_get(o, "win");
    unsigned seen = 0;

    if (!json_is(win, JSON_IS_ARRAY) || json_count(win) > SLOTS_MAX) {
        refuse(t, "win is no list of at most %d windows", SLOTS_MAX);
        return;
    }
    r->windows = (int)json_count(win);
    for (int i = 0; i < r->windows; i++) {
        struct round_slot *s = &r->slot[i];
        const struct json *w = json_at(win, (size_t)i);

        if (!json_is(w, JSON_IS_OBJECT)) {
            refuse(t, "window %d is no object", i);
            return;
        }
        take_window(l, t, w, s);
        if (seen >> s->slot & 1)
            refuse(t, "slot %d twice", s->slot);
        seen |= 1u << s->slot;
        take_chances(t, o, "p", i, s->p);
        s->offered = take_chances(t, o, "q", i, s->q);
    }
}

static void take_numbers(struct taker *t, const struct json *o, struct round_record *r)
{
    for (const struct record_field *f = record_fields; f->key; f++) {
        int64_t *to = (int64_t *)(void *)((char *)r + f->in_record);

        if (f->unit == UNIT_COUNT) {
            *to = take_int(t, o, f->key, 0, COUNT_MAX, 0);
        } else {
            double us_each = f->unit == UNIT_US ? 1 : 1000;

            *to = llround(take_real(t, o, f->key, 0, TIME_MAX_US / us_each) * us_each * 1000);
        }
    }
}

static void take_round(struct report_log *l, struct taker *t, const struct json *o,
                       struct round_record *r)
{
    const struct json *lag = json_get(o, "lag_us");

    r->round = (uint32_t)take_int(t, o, "r", 0, UINT32_MAX, 0);
    r->t_ns = take_int(t, o, "t", 0, INT64_MAX / 4, -1);
    if (r->t_ns < 0)
        refuse(t, "there is no time t");
    r->rows = (int)take_int(t, o, "rows", 0, SLOTS_MAX * WINDOW_MAX, 0);
    r->bucket = (int)take_int(t, o, "bucket", 0, INT32_MAX, 0);
    r->ctx = (int)take_int(t, o, "ctx", 0, INT32_MAX, 0);
    r->mode = (enum round_mode)take_name(t, o, "mode", mode_at, MODES);
    r->spec = (enum spec_end)take_name(t, o, "spec", spec_at, SPEC_ENDS);
    take_windows(l, t, o, r);
    take_numbers(t, o, r);
    r->lag_known = lag && !json_is(lag, JSON_IS_NULL);
    if (r->lag_known)
        r->lag_ns = llround(take_real(t, o, "lag_us", -TIME_MAX_US, TIME_MAX_US) * 1000);
    if (l->rounds > 0 && r->round <= l->round[l->rounds - 1].round)
        refuse(t, "round %u comes after round %u", r->round, l->round[l->rounds - 1].round);
    else if (l->rounds > 0 && r->t_ns < l->round[l->rounds - 1].t_ns)
        refuse(t, "time goes back");
}

/* What a step waited in exchanges is no more than the step. */
static void split(struct log_round *r, enum part p, int64_t ns, int64_t waited_ns)
{
    if (waited_ns > ns)
        waited_ns = ns;
    r->us[p] = (float)(ns - waited_ns) / 1e3f;
    r->wait_us[p] = (float)waited_ns / 1e3f;
    r->us[PART_WAIT] += r->wait_us[p];
}

static struct log_round small_round(const struct round_record *r)
{
    struct log_round s = { .round = r->round,
                           .t_ns = r->t_ns,
                           .move_us = (float)r->move_ns / 1e3f,
                           .prompt_us = (float)r->prompt_ns / 1e3f,
                           .lag_known = r->lag_known,
                           .lag_us = (float)r->lag_ns / 1e3f };
    int64_t rest = r->wall_ns - record_busy_ns(r);

    for (int i = 0; i < r->windows; i++)
        s.landed = (uint16_t)(s.landed + r->slot[i].landed);
    split(&s, PART_PLAN, r->plan_ns, 0);
    split(&s, PART_STAGE, r->stage_ns, 0);
    split(&s, PART_ROWS, r->engram_ns + r->ahead_ns, 0);
    split(&s, PART_WINDOW, r->window_ns, r->window_wait_ns);
    split(&s, PART_CHOOSE, r->choose_ns, r->choose_wait_ns);
    split(&s, PART_INGEST, r->ingest_ns, 0);
    split(&s, PART_DRAFT, r->draft_ns + r->draft_wait_ns,
          r->wait_ns - r->window_wait_ns - r->choose_wait_ns > 0
              ? r->wait_ns - r->window_wait_ns - r->choose_wait_ns
              : 0);
    split(&s, PART_COMMIT, r->commit_ns, 0);
    if (rest > 0 && rest < TALLY_GAP_NS)
        s.us[PART_REST] = (float)rest / 1e3f;
    return s;
}

static int64_t end_of(const struct round_record *r)
{
    return r->t_ns + record_busy_ns(r) - r->plan_ns;
}

static int keep_round(struct report_log *l, const struct round_record *r)
{
    struct log_round s = small_round(r);

    if (l->rounds == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        struct log_round *more = realloc(l->round, cap * sizeof(*more));

        if (!more)
            return fail(-ENOMEM, "report: no memory for %zu rounds", cap);
        l->round = more;
        l->cap = cap;
    }
    l->round[l->rounds++] = s;
    tally_add(&l->sums, r);
    for (int p = 0; p < PARTS; p++)
        l->part_ns[p] += llround((double)s.us[p] * 1e3);
    return speed_note(&l->speed, r, end_of(r));
}

/* ---- lines ----------------------------------------------------------------------------------- */

static bool known(const char *key)
{
    static const char *const keys[] = { "r", "t", "n", "rows", "bucket", "ctx",  "mode",  "win",
                                        "p", "q", "E", "C",    "lambda", "spec", "lag_us" };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    for (const struct record_field *f = record_fields; f->key; f++)
        if (strcmp(key, f->key) == 0)
            return true;
    return false;
}

static void note_unknown(struct report_log *l, const struct json *o)
{
    for (size_t i = 0; i < json_count(o) && l->unknowns < REPORT_UNKNOWN; i++) {
        const char *key = json_key(json_at(o, i));
        bool seen = known(key);

        for (int j = 0; j < l->unknowns && !seen; j++)
            seen = strncmp(key, l->unknown[j], sizeof(l->unknown[j]) - 1) == 0;
        if (!seen)
            snprintf(l->unknown[l->unknowns++], sizeof(l->unknown[0]), "%s", key);
    }
}

static void take_summary(struct report_log *l, const struct json *o)
{
    const struct json *about = json_get(o, "about");
    struct taker t = { 0 };

    l->ended = true;
    if (!json_is(about, JSON_IS_OBJECT))
        return;
    l->rank = (int)take_int(&t, about, "rank", 0, RANKS_MAX - 1, l->rank);
    l->ranks = (int)take_int(&t, about, "ranks", 1, RANKS_MAX, 0);
    keep_name(l->model, sizeof(l->model), about, "model");
    keep_name(l->family, sizeof(l->family), about, "family");
    keep_name(l->drafter, sizeof(l->drafter), about, "drafter");
    keep_name(l->backend, sizeof(l->backend), about, "backend");
    keep_name(l->link, sizeof(l->link), about, "link");
    keep_name(l->numerics, sizeof(l->numerics), about, "numerics");
}

static void name_bad(struct report_log *l, const char *why)
{
    if (l->bad < REPORT_NAMED) {
        l->named[l->bad].line = l->lines;
        snprintf(l->named[l->bad].why, sizeof(l->named[l->bad].why), "%s", why);
    }
    l->bad++;
}

int report_log_line(struct report_log *l, const char *text, size_t bytes)
{
    struct taker t = { 0 };
    struct round_record r = { 0 };
    struct json *o;
    int err;

    l->lines++;
    if (bytes > LINE_BYTES) {
        name_bad(l, "longer than a round's line can be");
        return 0;
    }
    err = json_try(text, bytes, "line", LINE_DEPTH, &o, t.why, sizeof(t.why));
    if (err == -ENOMEM)
        return fail(err, "report: no memory");
    if (err < 0) {
        /* the parser knows one line only */
        name_bad(l, strncmp(t.why, "line 1 ", 7) == 0 ? t.why + 7 : t.why);
        return 0;
    }
    if (json_is(json_get(o, "summary"), JSON_IS_OBJECT)) {
        take_summary(l, json_get(o, "summary"));
    } else if (!json_has(o, "r")) {
        name_bad(l, "neither a round nor the sums");
    } else {
        take_round(l, &t, o, &r);
        note_unknown(l, o);
        if (t.wrong)
            name_bad(l, t.why);
        else
            err = keep_round(l, &r);
    }
    json_close(o);
    return err;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* .../rank<r>.jsonl */
static int rank_of(const char *path)
{
    const char *name = strrchr(path, '/');
    int rank = -1, n = 0;

    name = name ? name + 1 : path;
    if (sscanf(name, "rank%2d.jsonl%n", &rank, &n) != 1 || name[n] || rank < 0 || rank >= RANKS_MAX)
        return -1;
    return rank;
}

/* The next line into buf [LINE_BYTES + 1], what does not fit is dropped; its length, at most one
 * more than the room, or -1 at the end. */
static long next_line(FILE *f, char *buf, bool *whole)
{
    size_t n = 0;
    int c = getc_unlocked(f);

    if (c == EOF)
        return -1;
    for (; c != EOF && c != '\n'; c = getc_unlocked(f)) {
        if (n < LINE_BYTES)
            buf[n] = (char)c;
        n += n <= LINE_BYTES;
    }
    *whole = c == '\n';
    return (long)n;
}

static int read_lines(struct report_log *l, FILE *f)
{
    char *line = malloc(LINE_BYTES + 1);
    int err = 0;
    long n;

    if (!line)
        return fail(-ENOMEM, "report: no memory");
    while (err == 0 && (n = next_line(f, line, &l->cut)) >= 0) {
        unsigned long bad = l->bad;

        err = report_log_line(l, line, (size_t)n);
        l->cut = !l->cut && l->bad > bad; /* without its end, and it shows */
    }
    free(line);
    if (err == 0 && ferror(f))
        err = fail(-EIO, "report: %s: cannot be read", l->path);
    return err;
}

int report_log_open(const char *path, struct report_log **out)
{
    struct report_log *l = calloc(1, sizeof(*l));
    struct stat st;
    FILE *f = NULL;
    int err = 0;

    if (!l)
        return fail(-ENOMEM, "report: out of memory");
    snprintf(l->path, sizeof(l->path), "%s", path);
    l->rank = rank_of(path);
    f = fopen(path, "re");
    if (!f)
        err = fail(-errno, "report: %s: %s", path, strerror(errno));
    else if (fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode))
        err = fail(-EISDIR, "report: %s is a folder", path);
    if (err == 0)
        err = read_lines(l, f);
    if (f)
        fclose(f);
    if (err == 0)
        err = speed_end(&l->speed);
    if (err < 0) {
        report_log_close(l);
        return err;
    }
    *out = l;
    return 0;
}

void report_log_close(struct report_log *l)
{
    if (!l)
        return;
    speed_free(&l->speed);
    free(l->round);
    free(l);
}
