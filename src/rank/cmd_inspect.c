/* cmd_inspect.c owns the listing of a pack and the sum of what a window of one row reads of it. */
#include "src/base/json.h"
#include "src/model/pack.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"

#include <stdio.h>
#include <string.h>

#define CONFIG_NESTING 64

/* Parts of a model by what their names contain; the first that fits. A row meets some of the routed
 * experts, one row of a table, one row of each hash column, and everything else whole.
 */
enum part {
    ROUTED,
    DRAFTER,
    SHARED,
    ROUTER,
    SELECT,
    ATTENTION,
    ROWS,
    ENGRAM,
    STREAMS,
    HEAD,
    EMBED,
    REST,
    PARTS
};

static const struct {
    const char *title, *has[4];
} parts[PARTS] = {
    [ROUTED] = { "routed experts", { ".experts." } },
    [DRAFTER] = { "drafter", { "mtp." } },
    [SHARED] = { "shared experts", { ".shared_experts." } },
    [ROUTER] = { "routers", { ".ffn.gate." } },
    [SELECT] = { "compressors, indexers", { ".compressor.", ".indexer." } },
    [ATTENTION] = { "attention", { ".attn.", ".self_attn." } },
    [ROWS] = { "lookup rows", { ".engram.embed." } },
    [ENGRAM] = { "engram", { ".engram." } },
    [STREAMS] = { "hyper-connections", { ".hc_" } },
    [HEAD] = { "head", { "head." } },
    [EMBED] = { "embedding", { "embed" } },
    [REST] = { "rest", { "" } },
};

struct sum {
    double read[PARTS];
    uint64_t bytes[PARTS];
};

static enum part part_of(const char *name)
{
    if (strncmp(name, "mtp.", 4) == 0)
        return DRAFTER;
    for (enum part p = 0; p < PARTS; p++)
        for (int i = 0; i < 4 && parts[p].has[i]; i++)
            if (p != DRAFTER && strstr(name, parts[p].has[i]))
                return p;
    return REST;
}

/* How many of a layer's routed experts a token meets, by the config's own words for both
 * numbers. */
static double picked(const struct pack *p)
{
    static const char *const many[] = { "n_routed_experts", "num_experts", "num_local_experts" };
    static const char *const few[] = { "num_experts_per_tok", "n_activated_experts" };
    const struct json *levels[2] = { NULL, NULL };
    const char *text;
    struct json *root;
    int n = 0, k = 0;
    size_t bytes;

    if (pack_find_blob(p, "config.json", &text, &bytes) != 0 ||
        json_parse(text, bytes, "config.json", CONFIG_NESTING, &root) < 0)
        return 1;
    levels[0] = root;
    levels[1] = json_get(root, "text_config");
    for (int l = 0; l < 2; l++) {
        for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++)
            (void)json_opt_int(levels[l], many[i], 1, 1 << 20, &n);
        for (size_t i = 0; i < sizeof(few) / sizeof(few[0]); i++)
            (void)json_opt_int(levels[l], few[i], 1, 1 << 20, &k);
        if (!levels[1])
            break;
    }
    json_close(root);
    return n > 0 && k > 0 && k < n ? (double)k / n : 1;
}

static void add(struct sum *s, const struct pack_item *w, double share)
{
    enum part p = part_of(w->name);

    s->bytes[p] += w->bytes;
    if (w->kind == WEIGHT_ROWS)
        s->read[p] += (double)w->row_bytes * w->columns;
    else if (w->kind == WEIGHT_TABLE)
        s->read[p] += (double)w->bytes / (double)w->rows;
    else
        s->read[p] += (double)w->bytes * (p == ROUTED ? share : 1);
}

static void print_sum(const struct sum *s, double gbps)
{
    double window = 0;
    uint64_t bytes = 0;

    printf("\n%-22s %12s %12s %10s\n", "part", "MB here", "MB a row", "ms");
    for (enum part p = 0; p < PARTS; p++) {
        if (s->bytes[p] == 0)
            continue;
        bytes += s->bytes[p];
        window += p == DRAFTER ? 0 : s->read[p];
        printf("%-22s %12.3f %12.3f %10.4f%s\n", parts[p].title, (double)s->bytes[p] / 1e6,
               s->read[p] / 1e6, s->read[p] / gbps / 1e6, p == DRAFTER ? "  (its own pass)" : "");
    }
    printf("%-22s %12.3f %12.3f %10.4f  floor of a one-row window at %g GB/s\n", "sum",
           (double)bytes / 1e6, window / 1e6, window / gbps / 1e6, gbps);
}

int cmd_inspect(struct options *o)
{
    struct sum s = { 0 };
    struct pack_item w;
    struct pack *p;
    double share;
    int r = pack_open(o->word[0], &p);

    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    printf("family %s, rank %d of %d, widths cut at multiples of %d\n%-48s %-5s %-14s %s\n",
           pack_family(p), pack_rank(p), pack_ranks(p), pack_width_unit(p), "weight", "kind",
           "format, bits", "[rows, cols], this rank's share as first+count, bytes, digest");
    pack_list(p, stdout);
    share = picked(p);
    for (size_t i = 0; pack_item(p, i, &w) == 0; i++)
        if (!w.again)
            add(&s, &w, share);
    print_sum(&s, o->gbps);
    pack_close(p);
    return CODE_DONE;
}
