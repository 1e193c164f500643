/* roofline.c owns which ops a weight stands for, and the sum of their times. */
#include "src/rank/roofline.h"

#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/pack.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES ((size_t)1 << 20)
#define NESTING 64
#define LANES 128.0 /* of a multiprocessor: instructions a clock, a warp's counted as 32 */

static const char *const op_names[ROOF_OPS] = {
    [ROOF_PRODUCT] = "product", [ROOF_LIST] = "list", [ROOF_JOINED] = "joined",
    [ROOF_EXPERTS] = "experts", [ROOF_SITE] = "site", [ROOF_ROUTE] = "route",
    [ROOF_ATTEND] = "attend",   [ROOF_KEEP] = "keep", [ROOF_NORM] = "norm",
    [ROOF_SELECT] = "select",   [ROOF_REST] = "rest", [ROOF_CHAIN] = "chain"
};

/* What a weight stands for, by what its name contains; the first that fits. `also` are the ops
 * behind its product. */
static const struct {
    const char *has, *title;
    enum roof_op op;
    enum roof_op also[4]; /* ends with ROOF_PRODUCT */
} uses[] = {
    { ".ffn.experts.", "experts", ROOF_EXPERTS, { ROOF_PRODUCT } },
    { ".shared_experts.", "experts", ROOF_EXPERTS, { ROOF_PRODUCT } },
    { ".ffn.gate.weight", "routers", ROOF_ROUTE, { ROOF_PRODUCT } },
    { ".hc_attn_fn", "hyper-connections", ROOF_SITE, { ROOF_PRODUCT } },
    { ".hc_ffn_fn", "hyper-connections", ROOF_SITE, { ROOF_PRODUCT } },
    { ".compressor.wkv.", "compressors, indexers", ROOF_JOINED, { ROOF_NORM } },
    { ".compressor.wgate.",
      "compressors, indexers",
      ROOF_JOINED,
      { ROOF_REST, ROOF_REST, ROOF_REST } },
    { ".indexer.wk.", "compressors, indexers", ROOF_LIST, { ROOF_KEEP } },
    { ".indexer.wq_b.",
      "compressors, indexers",
      ROOF_JOINED,
      { ROOF_REST, ROOF_REST, ROOF_SELECT } },
    { ".indexer.weights_proj.", "compressors, indexers", ROOF_JOINED, { ROOF_PRODUCT } },
    { ".attn.wkv.weight", "attention products", ROOF_JOINED, { ROOF_KEEP, ROOF_ATTEND } },
    { ".attn.wq_", "attention products", ROOF_LIST, { ROOF_PRODUCT } },
    { ".attn.w", "attention products", ROOF_PRODUCT, { ROOF_PRODUCT } },
    { ".engram.wkv.", "n-gram rows", ROOF_PRODUCT, { ROOF_REST, ROOF_REST, ROOF_REST, ROOF_REST } },
    { "head.weight", "head", ROOF_PRODUCT, { ROOF_REST, ROOF_REST, ROOF_REST } },
};

#define USES (sizeof(uses) / sizeof(uses[0]))

struct roof {
    const struct roof_device *d;
    const struct roof_kernels *k;
    int rows;
    struct roof_window *out;
};

/* ---- files ----------------------------------------------------------------------------------- */

/* A figure of the file at path, not below 0; `need`: it has to be there. */
static int read_figure(const char *path, const struct json *o, const char *key, bool need,
                       double *out)
{
    int r = need ? json_f64(o, key, out) : json_opt_f64(o, key, out);

    return r == 0 && *out < 0 ? fail(-EINVAL, "%s: %s: %g is below 0", path, key, *out) : r;
}

int roof_read_device(const char *path, struct roof_device *out)
{
    struct json *root;
    const char *name;
    int r = json_read(path, FILE_BYTES, NESTING, &root);

    if (r < 0)
        return r;
    *out = (struct roof_device){ 0 };
    r = json_str(root, "name", &name);
    if (r == 0) {
        snprintf(out->name, sizeof(out->name), "%s", name);
        r = json_int(root, "sms", 1, 1 << 16, &out->sms);
    }
    if (r == 0)
        r = json_f64(root, "clock_ghz", &out->clock_ghz);
    if (r == 0)
        r = json_f64(root, "read_gbps", &out->read_gbps);
    if (r == 0)
        r = read_figure(path, root, "exchange_us", false, &out->exchange_us);
    if (r == 0)
        r = read_figure(path, root, "pass_ms", false, &out->pass_ms);
    for (int rows = 1; rows <= ROOF_ROWS && r == 0; rows++) {
        char key[24];

        snprintf(key, sizeof(key), "window_%d_ms", rows);
        r = read_figure(path, root, key, false, &out->window_ms[rows]);
        snprintf(key, sizeof(key), "experts_%d", rows);
        if (r == 0)
            r = read_figure(path, root, key, false, &out->experts[rows]);
    }
    if (r == 0 && (out->clock_ghz <= 0 || out->read_gbps <= 0))
        r = fail(-EINVAL, "%s: clock_ghz and read_gbps want to be above 0", path);
    json_close(root);
    return r;
}

static int read_window(const char *path, const struct json *o, struct roof_device *d)
{
    double us, experts;
    int rows, r = json_int(o, "rows", 1, ROOF_ROWS, &rows);

    if (r == 0)
        r = read_figure(path, o, "window_us", true, &us);
    if (r == 0)
        r = read_figure(path, o, "experts", true, &experts);
    if (r == 0) {
        d->window_ms[rows] = us / 1e3;
        d->experts[rows] = experts;
    }
    return r;
}

int roof_read_measured(const char *path, struct roof_device *d)
{
    const struct json *windows;
    struct json *root;
    double pass_us;
    int r = json_read(path, FILE_BYTES, NESTING, &root);

    if (r < 0)
        return r;
    memset(d->window_ms, 0, sizeof(d->window_ms));
    memset(d->experts, 0, sizeof(d->experts));
    r = json_get_array(root, "windows", &windows);
    for (size_t i = 0; r == 0 && i < json_count(windows); i++)
        r = read_window(path, json_at(windows, i), d);
    if (r == 0)
        r = read_figure(path, root, "pass_us", true, &pass_us);
    if (r == 0)
        d->pass_ms = pass_us / 1e3;
    json_close(root);
    return r;
}

int roof_read_kernels(const char *path, struct roof_kernels *out)
{
    struct json *root;
    int r = json_read(path, FILE_BYTES, NESTING, &root);

    if (r < 0)
        return r;
    *out = (struct roof_kernels){ 0 };
    r = json_f64(root, "clock_ghz", &out->clock_ghz);
    if (r == 0)
        r = json_f64(root, "instructions_a_weight", &out->instructions);
    if (r == 0)
        r = json_f64(root, "issue", &out->issue);
    if (r == 0)
        r = json_f64(root, "experts_issue", &out->experts_issue);
    if (r == 0)
        r = read_figure(path, root, "experts_again", true, &out->again);
    if (r == 0 && out->again > 1)
        r = fail(-EINVAL, "%s: experts_again: %g is no share", path, out->again);
    for (int op = 0; op < ROOF_OPS && r == 0; op++) {
        char key[32];

        snprintf(key, sizeof(key), "%s_us", op_names[op]);
        r = read_figure(path, root, key, true, &out->step_us[op]);
        snprintf(key, sizeof(key), "%s_row_us", op_names[op]);
        if (r == 0)
            r = read_figure(path, root, key, true, &out->row_us[op]);
    }
    if (r == 0 && (out->clock_ghz <= 0 || out->instructions <= 0 || out->issue <= 0 ||
                   out->experts_issue <= 0))
        r = fail(-EINVAL, "%s: clock_ghz, instructions_a_weight and issue want to be above 0",
                 path);
    json_close(root);
    return r;
}

/* Four digits: more are not known. */
static void put(struct json_writer *w, const char *key, double v)
{
    char text[32];

    snprintf(text, sizeof(text), "%.4g", v);
    json_put_f64(w, key, strtod(text, NULL));
}

void roof_put_kernels(struct json_writer *w, const struct roof_kernels *k)
{
    json_begin_object(w, NULL);
    put(w, "clock_ghz", k->clock_ghz);
    put(w, "instructions_a_weight", k->instructions);
    put(w, "issue", k->issue);
    put(w, "experts_issue", k->experts_issue);
    put(w, "experts_again", k->again);
    for (int op = 0; op < ROOF_OPS; op++) {
        char key[32];

        snprintf(key, sizeof(key), "%s_us", op_names[op]);
        put(w, key, k->step_us[op]);
        snprintf(key, sizeof(key), "%s_row_us", op_names[op]);
        put(w, key, k->row_us[op]);
    }
    json_end_object(w);
}

/* ---- one op ---------------------------------------------------------------------------------- */

static struct roof_part *part_of(struct roof_window *w, const char *title)
{
    for (int i = 0; i < w->parts; i++)
        if (strcmp(w->part[i].title, title) == 0)
            return &w->part[i];
    w->part[w->parts] = (struct roof_part){ .title = title };
    return &w->part[w->parts++];
}

double roof_decode_rate(const struct roof_device *d, const struct roof_kernels *k, double issue)
{
    return d->sms * LANES * d->clock_ghz * issue / k->instructions;
}

static double step(const struct roof *w, enum roof_op op)
{
    return (w->k->step_us[op] + w->k->row_us[op] * (w->rows - 1)) * w->k->clock_ghz /
           w->d->clock_ghz;
}

static void add(struct roof *w, const char *title, enum roof_op op, double bytes, double weights)
{
    struct roof_part *p = part_of(w->out, title);
    double issue = op == ROOF_EXPERTS ? w->k->experts_issue : w->k->issue;
    double rate = roof_decode_rate(w->d, w->k, issue);
    double us = fmax(bytes / w->d->read_gbps, weights / rate) / 1e3 + step(w, op);

    p->calls++;
    p->bytes += bytes;
    p->weights += weights;
    p->us += us;
    w->out->us += us;
    w->out->bytes += bytes;
}

static double decoded(const struct pack_item *i)
{
    return i->dtype == DTYPE_EXL3   ? (double)i->bytes * 16 / i->q.bits2
           : i->dtype == DTYPE_FP8  ? (double)i->bytes
           : i->dtype > DTYPE_COUNT ? (double)i->bytes * 2
                                    : 0;
}

/* ---- the pack -------------------------------------------------------------------------------- */

struct shape {
    int experts, chosen, draft_experts, draft_chosen, block;
};

static int read_shape(const struct pack *p, struct shape *s)
{
    const struct json *level[2] = { NULL, NULL };
    struct json *root;
    const char *text;
    size_t bytes;
    int r = pack_find_blob(p, "config.json", &text, &bytes);

    if (r != 0)
        return fail(-EINVAL, "roofline: no config.json in the pack");
    r = json_parse(text, bytes, "config.json", NESTING, &root);
    if (r < 0)
        return r;
    *s = (struct shape){
        .experts = 1, .chosen = 1, .draft_experts = 1, .draft_chosen = 1, .block = 1
    };
    level[0] = root;
    level[1] = json_get(root, "text_config");
    for (int i = 0; i < 2 && level[i]; i++) {
        (void)json_opt_int(level[i], "n_routed_experts", 1, 1 << 20, &s->experts);
        (void)json_opt_int(level[i], "num_experts_per_tok", 1, 1 << 20, &s->chosen);
        (void)json_opt_int(level[i], "dspark_n_routed_experts", 1, 1 << 20, &s->draft_experts);
        (void)json_opt_int(level[i], "dspark_num_experts_per_tok", 1, 1 << 20, &s->draft_chosen);
        (void)json_opt_int(level[i], "dspark_block_size", 1, 64, &s->block);
    }
    json_close(root);
    return 0;
}

/* A layer's experts are one op: their weights follow each other in a pack. */
struct group {
    char layer[48];
    double bytes, weights;
};

static void group_end(struct roof *w, struct group *g)
{
    if (g->layer[0])
        add(w, "experts", ROOF_EXPERTS, g->bytes, g->weights);
    g->layer[0] = 0;
    g->bytes = g->weights = 0;
}

static void group_add(struct roof *w, struct group *g, const struct pack_item *i, double share)
{
    int n = (int)(strstr(i->name, ".ffn.") - i->name);

    if (strncmp(g->layer, i->name, (size_t)n) != 0 || g->layer[n]) {
        group_end(w, g);
        snprintf(g->layer, sizeof(g->layer), "%.*s", n, i->name);
    }
    g->bytes += share * (double)i->bytes;
    g->weights += share * decoded(i);
}

static void use(struct roof *w, struct group *g, const struct pack_item *i, double share)
{
    for (size_t u = 0; u < USES; u++) {
        if (!strstr(i->name, uses[u].has))
            continue;
        if (uses[u].op == ROOF_EXPERTS) {
            group_add(w, g, i, strstr(i->name, ".shared_experts.") ? 1 : share);
            return;
        }
        add(w, uses[u].title, uses[u].op, (double)i->bytes, decoded(i));
        for (int a = 0; a < 4 && uses[u].also[a] != ROOF_PRODUCT; a++)
            add(w, uses[u].also[a] == ROOF_ATTEND ? "attention core" : "rows, norms, choices",
                uses[u].also[a], 0, 0);
        return;
    }
}

int roof_window(const struct pack *p, const struct roof_device *d, const struct roof_kernels *k,
                int rows, bool pass, struct roof_window *out)
{
    struct group g = { 0 };
    struct pack_item i;
    struct shape s;
    struct roof w = { .d = d, .k = k, .rows = rows, .out = out };
    double share;
    int r = read_shape(p, &s);

    if (r < 0)
        return r;
    *out = (struct roof_window){ 0 };
    w.rows = pass ? s.block : rows;
    out->rows = w.rows;
    share = pass ? (double)s.draft_chosen / s.draft_experts : (double)s.chosen / s.experts;
    share = 1 - (1 - share) * pow(1 - share * (1 - k->again), w.rows - 1);
    if (!pass && d->experts[rows] > 0)
        share = fmin(d->experts[rows] / s.experts, 1); /* counted on a model that has more */
    for (size_t n = 0; pack_item(p, n, &i) == 0; n++) {
        bool mine = strncmp(i.name, "mtp.", 4) == 0;

        if (i.again || i.kind != WEIGHT_MAT)
            continue;
        if (mine == pass || (pass && strcmp(i.name, "head.weight") == 0))
            use(&w, &g, &i, share);
    }
    group_end(&w, &g);
    if (pass)
        add(&w, "candidates, chain", ROOF_CHAIN, 0, 0);
    return 0;
}

int roof_exchanges(const struct pack *p)
{
    struct pack_item i;
    int n = 0;

    for (size_t at = 0; pack_item(p, at, &i) == 0; at++)
        if (!i.again && strncmp(i.name, "mtp.", 4) != 0)
            n += strstr(i.name, ".attn.wo_b.weight") || strstr(i.name, ".ffn.gate.weight") ||
                         strstr(i.name, ".engram.wkv.")
                     ? 1
                     : 0;
    return n;
}
