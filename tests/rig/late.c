/* late.c owns the ops of sections between their call and the place where they are met. */
#include "tests/rig/late.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ARGS_WORDS 64
#define KEPT_MAX 4096

enum kind {
#define KIND(name) KIND_##name,
    OP_LIST(KIND)
#undef KIND
        KINDS
};

struct kept {
    enum kind kind;
    int lane; /* -1: it has run */
    struct queue *q;
    uint64_t args[ARGS_WORDS];
};

struct late {
    struct op_table table;
    const struct op_table *real;
    int lane;         /* of the open section, -1 if none */
    int first, begun; /* of its ops that run where they are called: how many, and how many have */
    int n, ran;
    struct kept kept[KEPT_MAX];
};

static _Thread_local struct late *now;

static void run(struct kept *k)
{
    k->lane = -1;
    now->ran++;
    switch (k->kind) {
#define RUN(name)                                                                                  \
    case KIND_##name:                                                                              \
        now->real->name(k->q, (const struct name##_args *)k->args);                                \
        return;
        OP_LIST(RUN)
#undef RUN
    case KINDS:
        return;
    }
}

static void keep(struct queue *q, enum kind kind, const void *args, size_t bytes)
{
    struct kept *k = &now->kept[now->n];

    if (now->n == KEPT_MAX)
        abort();
    now->n++;
    *k = (struct kept){ .kind = kind, .lane = now->lane, .q = q };
    memcpy(k->args, args, bytes);
}

#define WRAP(name)                                                                                 \
    static void late_##name(struct queue *q, const struct name##_args *a)                          \
    {                                                                                              \
        _Static_assert(sizeof(*a) <= ARGS_WORDS * sizeof(uint64_t), #name);                        \
        if (now->lane < 0 || now->begun < now->first) {                                            \
            now->begun++;                                                                          \
            now->real->name(q, a);                                                                 \
        } else {                                                                                   \
            keep(q, KIND_##name, a, sizeof(*a));                                                   \
        }                                                                                          \
    }
OP_LIST(WRAP)
#undef WRAP

static void meet(int lane)
{
    for (int i = 0; i < now->n; i++)
        if (now->kept[i].lane >= 0 && (lane < 0 || now->kept[i].lane == lane))
            run(&now->kept[i]);
}

/* Sections of a lane run one after the other. */
static bool queued(int lane)
{
    for (int i = 0; i < now->n; i++)
        if (now->kept[i].lane == lane)
            return true;
    return false;
}

static void section(struct queue *q, const struct side_args *a)
{
    now->real->side(q, a);
    if (a->at == SIDE_BEGIN) {
        now->lane = a->lane;
        now->begun = queued(a->lane) ? now->first : 0;
    } else if (a->at == SIDE_END) {
        now->lane = -1;
    } else {
        meet(a->lane);
    }
}

const struct op_table *late_open(const struct op_table *real, struct late **out)
{
    struct late *l = calloc(1, sizeof(*l));

    if (!l)
        abort();
#define ENTRY(name) l->table.name = late_##name;
    OP_LIST(ENTRY)
#undef ENTRY
    l->table.side = section;
    l->real = real;
    l->lane = -1;
    *out = now = l;
    return &l->table;
}

void late_first(struct late *l, int ops)
{
    l->first = ops;
}

int late_end(struct late *l)
{
    meet(-1);
    l->n = 0;
    return l->ran;
}

void late_close(struct late *l)
{
    free(l);
    now = NULL;
}
