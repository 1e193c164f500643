/* preflight_judge - facts of all machines side by side, and what has to change before a start. */
#include "src/rank/preflight.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/file.h"
#include "src/base/log.h"

enum { FILE_MOST = 1 << 16, CLOCKS_APART_MS = 5000, LABEL_WIDTH = 12, VALUE_WIDTH = 34 };

enum how {
    SHOWN,      /* a machine judges it alone */
    EQUAL,      /* or the ranks refuse each other */
    BETTER_SAME /* else one of them is slower, or has another fault */
};

static const struct rule {
    const char *key;
    enum how how;
    const char *change;
} rules[] = {
    { "machine", SHOWN, NULL },
    { "architecture", BETTER_SAME, NULL },
    { "kernel", BETTER_SAME, NULL },
    { "cores", BETTER_SAME, NULL },
    { "driver", BETTER_SAME, NULL },
    { "cuda", BETTER_SAME, NULL },
    { "clock", BETTER_SAME, NULL },
    { "gpu", SHOWN, NULL },
    { "memory", SHOWN, NULL },
    { "huge_pages", SHOWN, NULL },
    { "contiguous", SHOWN, NULL },
    { "memlock", SHOWN, NULL },
    { "disk", SHOWN, NULL },
    { "address", SHOWN, NULL },
    { "port", SHOWN, NULL },
    { "mtu", EQUAL, "set the same MTU on both ends of the cable (ip link set DEV mtu 9000)" },
    { "rdma", SHOWN, NULL },
    { "version", EQUAL, "install the same build on all machines" },
    { "program", EQUAL, "install the same build on all machines" },
    { "secret", EQUAL, "copy the file of the setting secret to all machines" },
    { "pack", EQUAL, "pack the same model on all machines, or copy its packs" },
    { "weights", SHOWN, NULL },
    { "meet", SHOWN, NULL },
    { "wall", SHOWN, NULL },
};

const char *facts_find(const struct facts *f, const char *key)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->fact[i].key, key) == 0)
            return f->fact[i].value;
    return NULL;
}

void facts_write(const struct facts *f, FILE *to)
{
    for (int i = 0; i < f->n; i++)
        fprintf(to, "fact %s = %s\n", f->fact[i].key, f->fact[i].value);
}

int facts_read(const char *path, struct facts *out)
{
    char *text, *next;
    size_t bytes;
    int r = file_read(path, FILE_MOST, &text, &bytes);

    if (r < 0)
        return r;
    out->n = 0;
    for (char *line = text; *line; line = next) {
        char *eq = strstr(line, " = ");

        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = 0;
        if (strncmp(line, "fact ", 5) != 0 || !eq || eq > next)
            continue;
        *eq = 0;
        facts_put(out, line + 5, "%s", eq + 3);
    }
    free(text);
    return out->n ? 0 : fail(-EINVAL, "preflight: %s holds no facts", path);
}

/* ---- judging --------------------------------------------------------------------------------- */

struct verdict {
    const struct facts *of;
    int ranks, bad, warned;
    FILE *to;
    char change[FACT_KEY_BYTES + 3 * FACT_VALUE_BYTES]; /* the first thing */
};

static const char *value_of(const struct verdict *v, int rank, const char *key)
{
    const char *x = facts_find(&v->of[rank], key);

    return x ? x : "-";
}

static int starts(const char *x, const char *with)
{
    return strncmp(x, with, strlen(with)) == 0;
}

static void row(struct verdict *v, const char *key, const char *mark)
{
    fprintf(v->to, "%-4s %-*s", mark, LABEL_WIDTH, key);
    for (int r = 0; r < v->ranks; r++)
        fprintf(v->to, " | %-*s", r + 1 < v->ranks ? VALUE_WIDTH : 0, value_of(v, r, key));
    fprintf(v->to, "\n");
}

__attribute__((format(printf, 2, 3))) static void must_change(struct verdict *v, const char *fmt,
                                                              ...)
{
    va_list ap;

    va_start(ap, fmt);
    if (v->bad++ == 0)
        vsnprintf(v->change, sizeof(v->change), fmt, ap);
    va_end(ap);
}

/* The first rank that has not what rank 0 has, 0 if all have it. */
static int odd_rank(const struct verdict *v, const char *key)
{
    for (int r = 1; r < v->ranks; r++)
        if (strcmp(value_of(v, 0, key), value_of(v, r, key)) != 0)
            return r;
    return 0;
}

static void judge_rule(struct verdict *v, const struct rule *q)
{
    const char *mark = "ok";
    int said = 0, there = 0, odd = odd_rank(v, q->key);

    for (int r = 0; r < v->ranks; r++) {
        const char *x = value_of(v, r, q->key);

        there |= strcmp(x, "-") != 0;
        if (starts(x, "bad: ")) {
            must_change(v, "rank %d, %s: %s", r, q->key, x + 5);
            mark = "BAD";
            said = 1;
        } else if (starts(x, "warn: ") && !said) {
            v->warned++;
            mark = "warn";
            said = 1;
        }
    }
    if (!there)
        return;
    if (!said && q->how == EQUAL && odd) {
        must_change(v, "%s differs: %s on rank 0, %s on rank %d; %s", q->key,
                    value_of(v, 0, q->key), value_of(v, odd, q->key), odd, q->change);
        mark = "BAD";
    } else if (!said && q->how == BETTER_SAME && odd) {
        v->warned++;
        mark = "warn";
    }
    row(v, q->key, mark);
}

/* Ports, their tables of addresses and their slots, of whichever machine has them. */
static void judge_devices(struct verdict *v)
{
    static const char *const kinds[] = { "rdma.", "gids.", "pcie." };

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        for (int r = 0; r < v->ranks; r++) {
            for (int i = 0; i < v->of[r].n; i++) {
                const char *key = v->of[r].fact[i].key;
                /* a device of two ports has one slot */
                bool told = facts_find(&v->of[r], key) != v->of[r].fact[i].value;

                for (int before = 0; before < r; before++)
                    told |= facts_find(&v->of[before], key) != NULL;
                if (!told && starts(key, kinds[k]))
                    judge_rule(v, &(struct rule){ key, SHOWN, NULL });
            }
        }
    }
}

/* Settings that all ranks share: only those that differ are shown. */
static void judge_config(struct verdict *v)
{
    int differ = 0;

    for (int i = 0; i < v->of[0].n; i++) {
        const char *key = v->of[0].fact[i].key;
        int odd = starts(key, "config.") ? odd_rank(v, key) : 0;

        if (!odd)
            continue;
        must_change(v, "setting %s differs: %s on rank 0, %s on rank %d; use one config file",
                    key + strlen("config."), value_of(v, 0, key), value_of(v, odd, key), odd);
        row(v, key, "BAD");
        differ++;
    }
    if (differ == 0)
        fprintf(v->to, "%-4s %-*s | the settings that ranks share are equal\n", "ok", LABEL_WIDTH,
                "config");
}

static void judge_clocks(struct verdict *v)
{
    long long first = atoll(value_of(v, 0, "time_ms")), apart = 0;

    for (int r = 1; r < v->ranks; r++) {
        long long d = llabs(atoll(value_of(v, r, "time_ms")) - first);

        apart = d > apart ? d : apart;
    }
    v->warned += apart > CLOCKS_APART_MS;
    fprintf(v->to, "%-4s %-*s | %lld ms apart when asked\n",
            apart > CLOCKS_APART_MS ? "warn" : "ok", LABEL_WIDTH, "clocks", apart);
}

/* An RDMA port as its fact says it. */
struct port {
    const char *key;
    uint32_t address;
    int prefix, mtu, active;
};

static int port_of(const struct fact *f, struct port *out)
{
    unsigned a, b, c, d;
    char state[32];

    if (!starts(f->key, "rdma.") ||
        sscanf(f->value, "%31s %u.%u.%u.%u/%d gid %*d of %*d mtu %d", state, &a, &b, &c, &d,
               &out->prefix, &out->mtu) != 7 ||
        out->prefix < 1 || out->prefix > 32)
        return 0;
    out->key = f->key;
    out->address = a << 24 | b << 16 | c << 8 | d;
    out->active = strcmp(state, "active") == 0; /* as libibverbs calls it */
    return out->active;
}

/* Each usable port of rank 0 wants a partner in its subnet on every other rank, of the same MTU. */
static void judge_rails(struct verdict *v)
{
    int rails = 0;

    for (int r = 1; r < v->ranks; r++) {
        for (int i = 0; i < v->of[0].n; i++) {
            struct port mine, theirs;
            int found = 0;

            if (!port_of(&v->of[0].fact[i], &mine))
                continue;
            for (int k = 0; k < v->of[r].n && !found; k++)
                found = port_of(&v->of[r].fact[k], &theirs) &&
                        ((mine.address ^ theirs.address) >> (32 - mine.prefix)) == 0;
            if (!found) {
                v->warned++;
                fprintf(v->to, "%-4s %-*s | no port of rank %d is in its subnet\n", "warn",
                        LABEL_WIDTH, mine.key, r);
                continue;
            }
            rails++;
            fprintf(v->to, "%-4s %-*s | rail to %s of rank %d, MTU %d and %d\n",
                    mine.mtu == theirs.mtu ? "ok" : "BAD", LABEL_WIDTH, mine.key, theirs.key + 5, r,
                    mine.mtu, theirs.mtu);
            if (mine.mtu != theirs.mtu)
                must_change(v,
                            "MTU of %s is %d on rank 0, %d on rank %d: give both netdevs the same",
                            mine.key + 5, mine.mtu, theirs.mtu, r);
        }
    }
    if (rails == 0 && v->ranks > 1)
        must_change(v, "no RDMA port of rank 0 shares a subnet with one of rank 1: give the two "
                       "ends of the cable addresses of one subnet");
}

int facts_judge(const struct facts *of, int ranks, FILE *to)
{
    struct verdict v = { .of = of, .ranks = ranks, .to = to };
    const char *usable = facts_find(&of[0], "rdma"), *link = facts_find(&of[0], "config.link");

    fprintf(to, "%-4s %-*s", "", LABEL_WIDTH, "");
    for (int r = 0; r < ranks; r++)
        fprintf(to, " | rank %-*d", r + 1 < ranks ? VALUE_WIDTH - 5 : 0, r);
    fprintf(to, "\n");
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        judge_rule(&v, &rules[i]);
    judge_devices(&v);
    if (link && strcmp(link, "rdma") == 0 && usable && !starts(usable, "bad: "))
        judge_rails(&v);
    judge_config(&v);
    judge_clocks(&v);
    if (v.bad)
        fprintf(to, "not fit: %s%s\n", v.change, v.bad > 1 ? " (and more above)" : "");
    else
        fprintf(to, "fit%s\n", v.warned ? ", with warnings above" : "");
    return v.bad;
}
