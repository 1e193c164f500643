/* config.c owns the one table of settings; parsing, defaults, help, dump and agreed text all come
 * from it. What keys mean for each other is in config_check.c.
 */
#include "src/base/config.h"

#include <ctype.h>
#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/file.h"
#include "src/base/log.h"

#define FILE_MAX (64 << 10)
#define VALUE_CAP PATH_CAP
#define KEY_CAP 64
#define DAY_MS (24 * 60 * 60 * 1000)

enum cfg_type {
    CFG_INT,      /* int in lo .. hi */
    CFG_AUTO_INT, /* the same, or "auto" */
    CFG_MS,       /* int: milliseconds, or with the suffix ms or s */
    CFG_BYTES,    /* size_t: bytes, or with the suffix KiB, MiB or GiB */
    CFG_BOOL,
    CFG_CHOICE, /* int: index into names */
    CFG_NAME,   /* const char *: one of names */
    CFG_TEXT,   /* char * */
    CFG_PATH    /* char *; a leading ~/ is the home folder */
};

enum scope { LOCAL, AGREE }; /* AGREE: ranks that differ here do not start */

struct field {
    const char *key;
    enum cfg_type type;
    size_t offset;
    const char *value; /* default */
    enum scope scope;
    int64_t lo, hi;
    const char *const *names; /* allowed ones, NULL behind the last */
    const char *help;
};

#define F(key_, type_, value_, scope_, help_, ...)                                                 \
    {                                                                                              \
        .key = #key_, .type = type_, .offset = offsetof(struct config, key_), .value = value_,     \
        .scope = scope_, .help = help_, __VA_ARGS__                                                \
    }
#define RANGE(lo_, hi_) .lo = lo_, .hi = hi_
#define NAMES(...)                                                                                 \
    .names = (const char *const[])                                                                 \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

/* The names of a CHOICE stand in the order of its enum. */
static const struct field fields[] = {
    F(model, CFG_PATH, "", LOCAL,
      "checkpoint folder or pack folder; relative to the working directory"),
    F(cache, CFG_PATH, "~/.cache/tandem", LOCAL,
      "folder of packs made on first use and of cost tables"),
    F(ranks, CFG_INT, "1", AGREE, "how many ranks decode together", RANGE(1, RANKS_MAX)),
    F(rank, CFG_INT, "0", LOCAL, "this process's rank", RANGE(0, RANKS_MAX - 1)),
    F(link, CFG_NAME, "loop", AGREE,
      "how bytes travel between ranks; loop: one process runs all ranks in threads",
      NAMES("loop", "tcp", "shm", "rdma")),
    F(comm, CFG_NAME, "auto", AGREE,
      "how partial sums are added; auto: peer on one host with two devices, else link",
      NAMES("auto", "link", "nccl", "peer")),
    F(hosts, CFG_TEXT, "", LOCAL,
      "one host a rank, in rank order, separated by commas; empty: all here"),
    F(port, CFG_INT, "18515", LOCAL, "rank 0's control port, on the cable's address",
      RANGE(1, 65535)),
    F(secret, CFG_PATH, "", LOCAL,
      "file of at least 32 bytes, mode 0600; needed between processes"),
    F(backend, CFG_NAME, "auto", AGREE,
      "who computes; auto: the last of these that is built and works",
      NAMES("auto", "ref", "cpu", "cuda")),
    F(device, CFG_AUTO_INT, "auto", LOCAL, "ordinal for cuda; auto: the rank's index on its host",
      RANGE(0, 63)),
    F(numerics, CFG_CHOICE, "bf16", AGREE, "where activations are rounded",
      NAMES("fp32", "bf16", "released")),
    F(cache_quant, CFG_BOOL, "on", AGREE,
      "round what the state keeps as the model's cache formats do"),
    F(partials, CFG_CHOICE, "auto", AGREE,
      "wire type of partial sums; auto: as the model's family and numerics say",
      NAMES("auto", "bf16", "fp32")),
    F(experts, CFG_CHOICE, "width", AGREE,
      "cut every expert's width, or give whole experts to ranks", NAMES("width", "whole")),
    F(expert_top_p, CFG_INT, "100", AGREE,
      "lossy: percent of a row's expert weights behind which the smallest experts are left out",
      RANGE(1, 100)),
    F(draft, CFG_NAME, "auto", AGREE,
      "drafter; auto: the model's own with copies beside it; oracle, random: for gates",
      NAMES("auto", "none", "ngram", "dspark", "mtp", "oracle", "random")),
    F(depth, CFG_AUTO_INT, "auto", AGREE, "drafts a round; auto: priced by the cost table",
      RANGE(0, WINDOW_MAX - 1)),
    F(spec_draft, CFG_BOOL, "on", AGREE,
      "draft behind the round, before the host has seen its outcome"),
    F(costs, CFG_PATH, "auto", LOCAL, "cost table file; auto: measured once and kept in cache"),
    F(slots, CFG_INT, "4", AGREE, "sequences decoded at once", RANGE(1, SLOTS_MAX)),
    F(context, CFG_INT, "8192", AGREE, "positions that a slot can hold", RANGE(1, 1 << 22)),
    F(window_max, CFG_INT, "16", AGREE, "rows of one slot in a verify window",
      RANGE(1, WINDOW_MAX)),
    F(prefill_chunk, CFG_INT, "512", AGREE, "rows of one slot in a prompt chunk",
      RANGE(1, 1 << 14)),
    F(ignore_eos, CFG_BOOL, "off", AGREE, "end tokens do not stop a request"),
    F(threads, CFG_INT, "0", LOCAL,
      "CPU threads of a rank; 0: allowed cores / ranks on this host, at least 1", RANGE(0, 256)),
    F(pin, CFG_TEXT, "auto", LOCAL,
      "cores of the round and the proxy thread, as round,proxy; auto: where a rank is alone on its "
      "machine; off"),
    F(graphs, CFG_CHOICE, "auto", AGREE, "captured windows; auto: where backend and comm can",
      NAMES("auto", "on", "off")),
    F(overlap, CFG_BOOL, "on", LOCAL, "a kernel's blocks may come in while the one before it ends"),
    F(side, CFG_BOOL, "on", LOCAL,
      "ops that do not need each other run side by side in captured windows"),
    F(early_ingest, CFG_BOOL, "off", AGREE,
      "the drafter's context rows are made inside the window, beside its last layers, not behind "
      "it"),
    F(prefetch, CFG_BYTES, "0", LOCAL,
      "weights of the next products that are asked into the device's cache beside each exchange; "
      "0: none",
      RANGE(0, INT64_C(64) << 20)),
    F(prefetch_rate, CFG_INT, "200", LOCAL,
      "most GB/s at which that is done, to leave room for others", RANGE(1, 10000)),
    F(graph_max, CFG_INT, "48", AGREE, "captured windows kept at once", RANGE(0, 1024)),
    F(graph_pieces, CFG_INT, "1", LOCAL,
      "graphs that a captured window is cut into, so that the first runs while others are launched",
      RANGE(1, GRAPH_PIECES_MAX)),
    F(engram_cache, CFG_BYTES, "256MiB", LOCAL, "bound of the row cache",
      RANGE(0, INT64_C(1) << 40)),
    F(engram_io, CFG_NAME, "auto", LOCAL, "how rows are read from disk",
      NAMES("auto", "uring", "pread")),
    F(log, CFG_PATH, "", LOCAL, "folder for rank<r>.jsonl, one line a round; empty: none"),
    F(log_level, CFG_CHOICE, "info", LOCAL, "most verbose lines on stderr",
      NAMES("err", "warn", "info", "debug", "trace")),
    F(trace_numerics, CFG_BOOL, "off", LOCAL, "name the layer of a NaN or Inf"),
    F(heartbeat_ms, CFG_MS, "100", LOCAL, "control channel: time between signs of life",
      RANGE(1, DAY_MS)),
    F(peer_timeout_ms, CFG_MS, "1000", LOCAL, "control channel: silence after which a peer is gone",
      RANGE(1, DAY_MS)),
    F(stall_ms, CFG_MS, "10000", LOCAL, "exchange: time without progress that is an error",
      RANGE(1, DAY_MS)),
    F(wait_limit_ms, CFG_MS, "30000", LOCAL, "device: longest wait for a peer's flag",
      RANGE(1, DAY_MS)),
    F(round_limit_ms, CFG_MS, "300000", LOCAL, "watchdog: longest round", RANGE(1, DAY_MS)),
    F(connect_timeout_ms, CFG_MS, "300000", LOCAL, "start: how long to wait for the other ranks",
      RANGE(1, DAY_MS)),
    F(grace_ms, CFG_MS, "300", LOCAL, "end: time for the last notices before the process exits",
      RANGE(1, DAY_MS)),
    F(rails, CFG_AUTO_INT, "auto", AGREE, "queue pairs that an exchange is striped over",
      RANGE(1, 8)),
    F(stripe_min, CFG_BYTES, "32KiB", AGREE, "smaller exchanges use one rail",
      RANGE(0, INT64_C(1) << 30)),
    F(spin_us, CFG_INT, "20", LOCAL, "polling before a thread sleeps", RANGE(0, 1000000)),
    F(plan_form, CFG_CHOICE, "flag", AGREE,
      "how plan frames come over rdma: a flag in memory, immediate data, or not at all: over tcp",
      NAMES("flag", "imm", "tcp")),
};

#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static void *field_at(const struct config *c, const struct field *f)
{
    return (char *)c + f->offset;
}

static const struct field *field_find(const char *key)
{
    for (size_t i = 0; i < FIELDS; i++)
        if (strcmp(fields[i].key, key) == 0)
            return &fields[i];
    return NULL;
}

/* Insertions, deletions and replacements that turn a into b. */
static int edit_distance(const char *a, const char *b)
{
    int row[KEY_CAP + 1], n = (int)strlen(b);

    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];

        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static int fail_unknown(const char *where, const char *key)
{
    const struct field *near = NULL;
    int best = 3;

    for (size_t i = 0; i < FIELDS; i++) {
        int d = edit_distance(key, fields[i].key);

        if (d < best) {
            best = d;
            near = &fields[i];
        }
    }
    if (near)
        return fail(-EINVAL, "%s: unknown key %s, did you mean %s?", where, key, near->key);
    return fail(-EINVAL, "%s: unknown key %s", where, key);
}

static int bool_parse(const char *text, bool *out)
{
    static const char *const words[][2] = {
        { "off", "on" }, { "0", "1" }, { "false", "true" }, { "no", "yes" }
    };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        for (int v = 0; v < 2; v++)
            if (strcmp(text, words[i][v]) == 0) {
                *out = v;
                return 0;
            }
    return -EINVAL;
}

/* Index of text among names. Where on and off are names, their other spellings are too. */
static int name_parse(const char *const *names, const char *text)
{
    bool truth;

    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], text) == 0)
            return i;
    if (bool_parse(text, &truth) < 0)
        return -EINVAL;
    text = truth ? "on" : "off";
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], text) == 0)
            return i;
    return -EINVAL;
}

/* A whole number of decimal digits and one of the suffixes, each with its factor. One with a minus,
 * or that is beyond 64 bits, is a number as well: the range says that it does not do.
 * errors   -EINVAL no number; -ERANGE */
static int number_parse(const char *text, const char *const *suffix, const int64_t *factor,
                        int64_t *out)
{
    const char *digits = text + (text[0] == '-');
    char *end;
    long long v;

    if (!isdigit((unsigned char)digits[0]))
        return -EINVAL;
    errno = 0;
    v = strtoll(text, &end, 10);
    for (int i = 0; suffix[i]; i++)
        if (strcmp(end, suffix[i]) == 0)
            return errno == ERANGE || __builtin_mul_overflow((int64_t)v, factor[i], out) ? -ERANGE
                                                                                         : 0;
    return -EINVAL;
}

static int int_set(struct config *c, const struct field *f, const char *where, const char *text)
{
    static const char *const none[] = { "", NULL }, *const ms[] = { "", "ms", "s", NULL };
    static const char *const bytes[] = { "", "KiB", "MiB", "GiB", NULL };
    static const int64_t bytes_factor[] = { 1, 1 << 10, 1 << 20, 1 << 30 };
    static const int64_t ms_factor[] = { 1, 1, 1000 };
    int64_t v;
    int r;

    if (f->type == CFG_AUTO_INT && strcmp(text, "auto") == 0) {
        *(int *)field_at(c, f) = CONFIG_AUTO;
        return 0;
    }
    if (f->type == CFG_BYTES)
        r = number_parse(text, bytes, bytes_factor, &v);
    else
        r = number_parse(text, f->type == CFG_MS ? ms : none, ms_factor, &v);
    if (r == -EINVAL)
        return fail(r, "%s: %s: want a whole number%s, got \"%s\"", where, f->key,
                    f->type == CFG_AUTO_INT ? " or auto"
                    : f->type == CFG_MS     ? " of ms, or with the suffix s"
                    : f->type == CFG_BYTES  ? " of bytes, or with the suffix KiB, MiB or GiB"
                                            : "",
                    text);
    if (r < 0 || v < f->lo || v > f->hi)
        return fail(-EINVAL, "%s: %s: want %lld to %lld, got %s", where, f->key, (long long)f->lo,
                    (long long)f->hi, text);
    if (f->type == CFG_BYTES)
        *(size_t *)field_at(c, f) = (size_t)v;
    else
        *(int *)field_at(c, f) = (int)v;
    return 0;
}

static void names_list(const struct field *f, char *buf, size_t cap)
{
    size_t at = 0;

    for (int i = 0; f->names[i] && at < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, "%s%s", i ? ", " : "", f->names[i]);
}

static int name_set(struct config *c, const struct field *f, const char *where, const char *text)
{
    char list[256];
    int i = name_parse(f->names, text);

    if (i >= 0 && f->type == CFG_NAME) {
        *(const char **)field_at(c, f) = f->names[i];
        return 0;
    }
    if (i >= 0) {
        *(int *)field_at(c, f) = i;
        return 0;
    }
    names_list(f, list, sizeof(list));
    return fail(-EINVAL, "%s: %s: want one of %s, got \"%s\"", where, f->key, list, text);
}

/* "~/x" becomes "<home>/x". Without a home it stays as it is and config_check refuses it. */
static char *home_expand(const char *text)
{
    char buf[4096], *out;
    struct passwd user, *found;

    if (strncmp(text, "~/", 2) != 0 || getpwuid_r(getuid(), &user, buf, sizeof(buf), &found) != 0 ||
        !found || !user.pw_dir[0])
        return strdup(text);
    return asprintf(&out, "%s%s", user.pw_dir, text + 1) < 0 ? NULL : out;
}

static int text_set(struct config *c, const struct field *f, const char *where, const char *text)
{
    char **at = field_at(c, f), *copy;

    for (const char *p = text; *p; p++) {
        if ((unsigned char)*p < 0x20)
            return fail(-EINVAL, "%s: %s: control character in the value", where, f->key);
        if (*p == '#' && (p == text || p[-1] == ' '))
            return fail(-EINVAL, "%s: %s: \"#\" behind a blank begins a comment", where, f->key);
    }
    copy = f->type == CFG_PATH ? home_expand(text) : strdup(text);
    if (!copy)
        return fail(-ENOMEM, "%s: %s: no memory", where, f->key);
    free(*at);
    *at = copy;
    return 0;
}

static int field_set(struct config *c, const struct field *f, const char *where, const char *text)
{
    switch (f->type) {
    case CFG_INT:
    case CFG_AUTO_INT:
    case CFG_MS:
    case CFG_BYTES:
        return int_set(c, f, where, text);
    case CFG_BOOL:
        if (bool_parse(text, field_at(c, f)) < 0)
            return fail(-EINVAL, "%s: %s: want on or off, got \"%s\"", where, f->key, text);
        return 0;
    case CFG_CHOICE:
    case CFG_NAME:
        return name_set(c, f, where, text);
    case CFG_TEXT:
    case CFG_PATH:
        break;
    }
    return text_set(c, f, where, text);
}

/* Cut blanks off both ends of s[0 .. n) and copy the rest; -EINVAL if it does not fit. */
static int trim(const char *s, size_t n, char *out, size_t cap)
{
    while (n > 0 && isspace((unsigned char)s[0])) {
        s++;
        n--;
    }
    while (n > 0 && isspace((unsigned char)s[n - 1]))
        n--;
    if (n >= cap)
        return -EINVAL;
    memcpy(out, s, n);
    out[n] = 0;
    return 0;
}

static int assign(struct config *c, const char *where, const char *text, size_t bytes)
{
    const char *equals = memchr(text, '=', bytes);
    char key[KEY_CAP], value[VALUE_CAP];
    const struct field *f;

    if (!equals)
        return fail(-EINVAL, "%s: want key = value, got \"%.*s\"", where,
                    (int)(bytes < 64 ? bytes : 64), text);
    if (trim(text, (size_t)(equals - text), key, sizeof(key)) < 0)
        return fail(-EINVAL, "%s: unknown key %.*s...", where, KEY_CAP / 2, text);
    if (!key[0])
        return fail(-EINVAL, "%s: want a key before '='", where);
    f = field_find(key);
    if (!f)
        return fail_unknown(where, key);
    if (trim(equals + 1, bytes - (size_t)(equals + 1 - text), value, sizeof(value)) < 0)
        return fail(-EINVAL, "%s: %s: value longer than %d bytes", where, key, VALUE_CAP - 1);
    return field_set(c, f, where, value);
}

int config_init(struct config *c)
{
    memset(c, 0, sizeof(*c));
    for (size_t i = 0; i < FIELDS; i++) {
        int r = field_set(c, &fields[i], "default", fields[i].value);

        if (r < 0) {
            config_free(c);
            return r;
        }
    }
    return 0;
}

void config_free(struct config *c)
{
    for (size_t i = 0; i < FIELDS; i++)
        if (fields[i].type == CFG_TEXT || fields[i].type == CFG_PATH) {
            char **at = field_at(c, &fields[i]);

            free(*at);
            *at = NULL;
        }
}

int config_set(struct config *c, const char *assignment)
{
    return assign(c, "config", assignment, strlen(assignment));
}

/* Bytes of a line that are no comment. */
static size_t without_comment(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t'))
            return i;
    return bytes;
}

int config_read(struct config *c, const char *path)
{
    char where[PATH_CAP + 16], *text;
    size_t bytes, at = 0;
    int r = file_read(path, FILE_MAX, &text, &bytes);

    if (r < 0)
        return r;
    for (int line = 1; at < bytes && r == 0; line++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - (text + at)) : bytes - at;
        size_t used = without_comment(text + at, n);
        char first[2];

        snprintf(where, sizeof(where), "%s:%d", path, line);
        if (memchr(text + at, 0, n))
            r = fail(-EINVAL, "%s: NUL byte", where);
        else if (trim(text + at, used, first, 1) < 0) /* not blank */
            r = assign(c, where, text + at, used);
        at += n + 1;
    }
    free(text);
    return r;
}

static void bytes_format(size_t v, char *buf, size_t cap)
{
    static const char *const suffix[] = { "", "KiB", "MiB", "GiB" };
    int i = 0;

    while (i < 3 && v != 0 && v % 1024 == 0) {
        v /= 1024;
        i++;
    }
    snprintf(buf, cap, "%zu%s", v, suffix[i]);
}

static void limit_format(const struct field *f, int64_t limit, char *buf, size_t cap)
{
    if (f->type == CFG_BYTES)
        bytes_format((size_t)limit, buf, cap);
    else
        snprintf(buf, cap, "%lld", (long long)limit);
}

static void field_format(const struct config *c, const struct field *f, char *buf, size_t cap)
{
    const void *at = field_at(c, f);

    switch (f->type) {
    case CFG_AUTO_INT:
    case CFG_INT:
    case CFG_MS:
        if (f->type == CFG_AUTO_INT && *(const int *)at == CONFIG_AUTO)
            snprintf(buf, cap, "auto");
        else
            snprintf(buf, cap, "%d", *(const int *)at);
        return;
    case CFG_BYTES:
        bytes_format(*(const size_t *)at, buf, cap);
        return;
    case CFG_BOOL:
        snprintf(buf, cap, "%s", *(const bool *)at ? "on" : "off");
        return;
    case CFG_CHOICE:
        snprintf(buf, cap, "%s", f->names[*(const int *)at]);
        return;
    case CFG_NAME:
    case CFG_TEXT:
    case CFG_PATH:
        break;
    }
    snprintf(buf, cap, "%s", *(const char *const *)at);
}

int config_get(const struct config *c, const char *key, char *buf, size_t cap)
{
    const struct field *f = field_find(key);

    if (!f)
        return -EINVAL;
    field_format(c, f, buf, cap);
    return 0;
}

int config_dump(const struct config *c, FILE *out)
{
    char value[VALUE_CAP], list[256];

    for (size_t i = 0; i < FIELDS; i++) {
        const struct field *f = &fields[i];

        fprintf(out, "# %s\n# default: %s", f->help, f->value[0] ? f->value : "empty");
        if (f->names) {
            names_list(f, list, sizeof(list));
            fprintf(out, "; one of %s", list);
        } else if (f->hi > 0) {
            limit_format(f, f->lo, value, sizeof(value));
            fprintf(out, "; %s to ", value);
            limit_format(f, f->hi, value, sizeof(value));
            fprintf(out, "%s%s", value, f->type == CFG_AUTO_INT ? ", or auto" : "");
        }
        field_format(c, f, value, sizeof(value));
        fprintf(out, "\n%s =%s%s\n\n", f->key, value[0] ? " " : "", value);
    }
    if (fflush(out) == 0 && !ferror(out))
        return 0;
    return fail(errno ? -errno : -EIO, "config: cannot write: %s", strerror(errno));
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const struct field *const *)a)->key, (*(const struct field *const *)b)->key);
}

int config_agree_text(const struct config *c, char **out)
{
    const struct field *agree[FIELDS];
    char value[VALUE_CAP], *text = NULL;
    size_t n = 0, bytes;
    FILE *f = open_memstream(&text, &bytes);

    if (!f)
        return fail(-ENOMEM, "config: no memory");
    for (size_t i = 0; i < FIELDS; i++)
        if (fields[i].scope == AGREE)
            agree[n++] = &fields[i];
    qsort(agree, n, sizeof(agree[0]), by_key);
    for (size_t i = 0; i < n; i++) {
        field_format(c, agree[i], value, sizeof(value));
        fprintf(f, "%s = %s\n", agree[i]->key, value);
    }
    if (fclose(f) != 0) {
        free(text);
        return fail(-ENOMEM, "config: no memory");
    }
    *out = text;
    return 0;
}
