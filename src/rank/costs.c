/* costs.c owns the files of cost tables; their numbers are calibrate.c's. */
#include "src/rank/costs.h"

#include "kernels/backend.h"
#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/pack.h"
#include "src/rank/rank.h"
#include "src/transport/comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COSTS_BYTES ((size_t)64 << 10)
#define KEY_BYTES 4096
#define PROGRAM_BYTES ((size_t)1 << 30)
#define NESTING 4

/* Numbers 1 .. INT32_MAX, at least `least` and at most `most` of them, into out[1 ..]. The count,
 * or -EINVAL. */
static int read_list(const struct json *o, const char *name, int least, int most, int32_t *out,
                     char *why, size_t cap)
{
    const struct json *list = json_get(o, name);
    int n = json_is(list, JSON_IS_ARRAY) ? (int)json_count(list) : 0;

    snprintf(why, cap, "%s: want %d .. %d whole numbers of at least 1", name, least, most);
    if (n < least || n > most)
        return -EINVAL;
    for (int i = 0; i < n; i++) {
        const struct json *v = json_at(list, (size_t)i);
        int64_t us = 0;

        if (!json_is(v, JSON_IS_INT) || json_as_i64(v, INT64_MIN, INT64_MAX, &us) < 0 || us < 1 ||
            us > INT32_MAX)
            return -EINVAL;
        out[i + 1] = (int32_t)us;
    }
    return n;
}

static int parse(const char *text, size_t bytes, struct cost_table *out, char *why, size_t cap)
{
    struct cost_table t = { 0 };
    struct json *root;
    int r = json_try(text, bytes, "costs", NESTING, &root, why, cap);

    if (r < 0)
        return r;
    r = read_list(root, "window_us", 2, COST_ROWS_MAX, t.window_us, why, cap);
    t.rows = r;
    if (r > 0)
        r = read_list(root, "draft_us", 1, SLOTS_MAX, t.draft_us, why, cap);
    json_close(root);
    if (r < 0)
        return r;
    cost_settle(&t);
    *out = t;
    return 0;
}

int costs_read(const char *path, struct cost_table *out)
{
    char why[256], *text;
    size_t bytes;
    int r = file_read(path, COSTS_BYTES, &text, &bytes);

    if (r < 0)
        return r;
    r = parse(text, bytes, out, why, sizeof(why));
    free(text);
    return r < 0 ? fail(r, "costs %s: %s", path, why) : 0;
}

/* The build that measures: another compiler or another kernel is another speed. */
static int digest_program(uint8_t out[XXH3_BYTES])
{
    char *text;
    size_t bytes;
    int r = file_read("/proc/self/exe", PROGRAM_BYTES, &text, &bytes);

    if (r < 0)
        return r;
    xxh3_of(text, bytes, out);
    free(text);
    return 0;
}

/* What a measurement depends on, and the file that is named after it. */
static int place(const struct rank *k, char key[KEY_BYTES], char path[PATH_CAP])
{
    const struct config *c = &k->cfg;
    char set[HEX_CAP(GROUP_DIGEST_BYTES)], hex[HEX_CAP(SHA256_BYTES)], name[64];
    char program[HEX_CAP(XXH3_BYTES)];
    uint8_t digest[SHA256_BYTES], build[XXH3_BYTES];
    int r = digest_program(build);

    if (r < 0)
        return r;
    snprintf(
        key, KEY_BYTES,
        "build %s, set %s, ranks %d at %s, link %s in %d of %zu spinning %d, plan %d, comm %s, "
        "threads %d, pin %s, backend %s, device %d %s, graphs %d up to %d in %d, overlap %d, "
        "side %d, early_ingest %d, prefetch %zu at %d, rows by %s of %zu, trace %d, slots %d, "
        "context %d, window_max %d, numerics %d, "
        "cache_quant %d, partials %d, experts %d, expert_top_p %d, drafter %s%s",
        hex_format(build, sizeof(build), program),
        hex_format(pack_set_digest(k->pack), GROUP_DIGEST_BYTES, set), c->ranks, c->hosts,
        c->ranks > 1 ? c->link : "none", c->rails, c->stripe_min, c->spin_us, c->plan_form,
        k->comm->ops->name, config_threads(c), c->pin, k->dev->ops->name, config_device(c),
        k->dev->name, c->graphs, c->graph_max, c->graph_pieces, c->overlap, c->side,
        c->early_ingest, c->prefetch, c->prefetch_rate, c->engram_io, c->engram_cache,
        c->trace_numerics, k->bounds.slots, k->bounds.context, k->bounds.window_max, c->numerics,
        c->cache_quant, c->partials, c->experts, c->expert_top_p, k->drafter->ops->name,
        k->copies ? " and copies" : "");
    r = sha256_of(key, strlen(key), digest);
    if (r < 0)
        return r;
    snprintf(name, sizeof(name), "costs-%.32s.json", hex_format(digest, sizeof(digest), hex));
    return path_join(path, PATH_CAP, c->cache, name);
}

int costs_find(const struct rank *k, struct cost_table *out)
{
    char key[KEY_BYTES], path[PATH_CAP], why[256], *text;
    size_t bytes;
    int r;

    if (place(k, key, path) < 0 || access(path, R_OK) != 0 ||
        file_read(path, COSTS_BYTES, &text, &bytes) < 0)
        return 1;
    r = parse(text, bytes, out, why, sizeof(why));
    free(text);
    if (r < 0) {
        log_warn("costs %s: %s; measured again", path, why);
        return 1;
    }
    log_info("costs: measured by an earlier start, %s", path);
    return 0;
}

static void put_list(struct json_writer *w, const char *name, const int32_t *us, int n)
{
    json_begin_array(w, name);
    for (int i = 1; i <= n && us[i] > 0; i++)
        json_put_int(w, NULL, us[i]);
    json_end_array(w);
}

static int write_table(const struct rank *k, const struct cost_table *t, char path[PATH_CAP])
{
    char key[KEY_BYTES];
    struct json_writer w;
    const char *text;
    size_t bytes;
    int r = place(k, key, path);

    if (r == 0)
        r = make_dirs(k->cfg.cache, 0755);
    if (r < 0)
        return r;
    json_writer_init(&w);
    json_begin_object(&w, NULL);
    json_put_str(&w, "key", key);
    put_list(&w, "window_us", t->window_us, t->rows);
    put_list(&w, "draft_us", t->draft_us, SLOTS_MAX);
    json_end_object(&w);
    r = json_writer_text(&w, &text, &bytes);
    if (r < 0)
        fail(r, "no memory");
    else
        r = file_write(path, text, bytes, 0644);
    json_writer_free(&w);
    return r;
}

void costs_keep(const struct rank *k, const struct cost_table *t)
{
    char path[PATH_CAP];
    int r;

    fail_hold(true); /* not the end of anything */
    r = write_table(k, t, path);
    fail_hold(false);
    if (r < 0)
        log_warn("costs: not kept, so every start measures them: %s", fail_text());
    else
        log_info("costs: kept in %s", path);
}
