/* calls.c owns the table in front of the backend's ops. */
#include "src/rank/calls.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/model/exec.h"
#include "src/model/stored.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGS_WORDS 64

enum kind {
#define KIND(name) KIND_##name,
    OP_LIST(KIND)
#undef KIND
        KINDS
};

struct kept {
    struct call call;
    enum kind kind;
    uint64_t args[ARGS_WORDS];
    struct mat expert[3],
        shared[3]; /* of a call of the experts: the first one's, the shared one's */
    int32_t *id;   /* [ids], of which the first rows * k are the call's */
    size_t ids;
};

struct calls {
    struct exec *x;
    const struct op_table *real;
    bool recording;
    int n, room;
    int64_t *at, *h_at; /* [room + 1] device and host */
    struct kept kept[];
};

/* ---- what a call is about -------------------------------------------------------------------- */

static double mat_read(const struct mat *w)
{
    struct mat_parts p;

    mat_parts(w, &p);
    return (double)p.total;
}

static void about_mat(struct call *c, const struct mat *w)
{
    int bits2 = w->dtype == DTYPE_EXL3 ? w->q.bits2 : 0;

    snprintf(c->what, sizeof(c->what), "%d x %d %s%s%.1g", w->rows, w->cols, dtype_name(w->dtype),
             bits2 ? " " : "", bits2 / 2.0);
    if (!bits2)
        snprintf(c->what, sizeof(c->what), "%d x %d %s", w->rows, w->cols, dtype_name(w->dtype));
    c->bytes = mat_read(w);
    c->weights = (double)w->rows * w->cols;
    c->bits2 = bits2;
}

/* Products of the same inputs: the outputs of each, and all that they read. */
static void about_mats(struct call *c, const struct matmuls_args *a)
{
    struct call one;
    size_t at = 0;

    for (int i = 0; i < a->n; i++) {
        about_mat(&one, a->of[i].w);
        if (i + 1 < a->n)
            at += (size_t)snprintf(c->what + at, sizeof(c->what) - at, "%d + ", a->of[i].w->rows);
        else
            snprintf(c->what + at, sizeof(c->what) - at, "%s", one.what);
        if (at >= sizeof(c->what))
            at = sizeof(c->what) - 1;
        c->bytes += one.bytes;
        c->weights += one.weights;
        c->bits2 = one.bits2 > c->bits2 ? one.bits2 : c->bits2;
    }
}

static double state_read(const struct state_view *v, int rows)
{
    return v->base ? (double)v->row_bytes * (rows < v->cap ? rows : v->cap) : 0;
}

/* States are counted for full windows and selections. */
static void about(struct kept *k, const void *args)
{
    struct call *c = &k->call;

    if (k->kind == KIND_matmul) {
        about_mat(c, ((const struct matmul_args *)args)->w);
    } else if (k->kind == KIND_matmuls) {
        about_mats(c, args);
    } else if (k->kind == KIND_hc_site) {
        const struct hc_site_args *a = args;

        if (a->fn)
            about_mat(c, a->fn);
        else
            snprintf(c->what, sizeof(c->what), "no mixes");
    } else if (k->kind == KIND_route) {
        const struct route_args *a = args;

        if (a->gate)
            about_mat(c, a->gate);
    } else if (k->kind == KIND_attend) {
        const struct attend_args *a = args;
        int window = a->mode == ATTEND_BLOCK ? a->span + a->block : a->span;

        snprintf(c->what, sizeof(c->what), "%d heads of %d, %d + %d keys", a->heads, a->dim, window,
                 a->more.base ? a->topk : 0);
        c->bytes = state_read(&a->win, window) + a->rows * state_read(&a->more, a->topk);
    } else if (k->kind == KIND_select) {
        const struct select_args *a = args;

        snprintf(c->what, sizeof(c->what), "%d of %d, %d heads of %d", a->topk, a->keys.cap,
                 a->heads, a->dim);
    } else if (k->kind == KIND_rmsnorm) {
        snprintf(c->what, sizeof(c->what), "%d", ((const struct rmsnorm_args *)args)->cols);
    } else if (k->kind == KIND_rope) {
        const struct rope_args *a = args;

        snprintf(c->what, sizeof(c->what), "%d heads of %d", a->heads, a->cols);
    } else if (k->kind == KIND_best) {
        const struct best_args *a = args;

        snprintf(c->what, sizeof(c->what), "%d of %d", a->k, a->cols);
    }
}

/* The first expert and the shared one stand for the sizes; who was chosen is fetched. */
static void about_experts(struct calls *c, struct kept *k, const struct moe_args *a)
{
    const struct mat *from[6] = { a->w1, a->w3, a->w2, a->s1, a->s3, a->s2 };
    struct queue *q = c->x->q;
    size_t n = (size_t)a->rows * (size_t)a->k;

    k->call.moe = 1;
    snprintf(k->call.what, sizeof(k->call.what), "%d of %d, %d x %d", a->k, a->experts, a->dim,
             a->inter);
    for (int i = 0; i < 6; i++)
        if (from[i])
            q->ops->get(q, i < 3 ? &k->expert[i] : &k->shared[i - 3], from[i], sizeof(struct mat));
    if (n > k->ids) {
        free(k->id);
        k->id = malloc(n * sizeof(*k->id));
        k->ids = k->id ? n : 0;
    }
    if (n <= k->ids)
        q->ops->get(q, k->id, a->id, n * sizeof(*k->id));
    else
        queue_fail(q, -ENOMEM, "bench: no memory for %zu choices", n);
}

static void settle_experts(struct kept *k)
{
    const struct moe_args *a = (const struct moe_args *)k->args;
    bool *seen = calloc((size_t)a->experts, sizeof(*seen));
    size_t n = (size_t)a->rows * (size_t)a->k;
    int distinct = 0;

    for (size_t i = 0; seen && i < n; i++)
        if (k->id[i] >= 0 && k->id[i] < a->experts && !seen[k->id[i]]) {
            seen[k->id[i]] = true;
            distinct++;
        }
    free(seen);
    k->call.chosen = distinct;
    k->call.bytes = k->call.weights = 0;
    for (int i = 0; i < 3; i++) {
        k->call.bytes += distinct * mat_read(&k->expert[i]) + (a->s1 ? mat_read(&k->shared[i]) : 0);
        k->call.weights += distinct * (double)k->expert[i].rows * k->expert[i].cols +
                           (double)k->shared[i].rows * k->shared[i].cols;
    }
    if (k->expert[0].dtype == DTYPE_EXL3)
        k->call.bits2 = k->expert[0].q.bits2;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void note(struct calls *c, enum kind kind, const char *op, const void *args, size_t bytes)
{
    struct kept *k;

    if (kind == KIND_stamp || kind == KIND_side || c->n == c->room)
        return;
    k = &c->kept[c->n++];
    if (!c->recording) {
        c->real->stamp(c->x->q, &(struct stamp_args){ .at = c->at + c->n, .name = op });
        return;
    }
    k->call = (struct call){ .op = op };
    k->kind = kind;
    memcpy(k->args, args, bytes);
    if (kind == KIND_moe)
        about_experts(c, k, args);
    else
        about(k, args);
}

#define TAP(name)                                                                                  \
    static_assert(sizeof(struct name##_args) <= ARGS_WORDS * sizeof(uint64_t), #name);             \
    static void tap_##name(struct queue *q, const struct name##_args *a)                           \
    {                                                                                              \
        struct calls *c = q->onlooker;                                                             \
                                                                                                   \
        c->real->name(q, a);                                                                       \
        note(c, KIND_##name, #name, a, sizeof(*a));                                                \
    }
OP_LIST(TAP)
#undef TAP

static const struct op_table taps = {
#define FILL(name) .name = tap_##name,
    OP_LIST(FILL)
#undef FILL
};

void calls_again(const struct calls *c, int i)
{
    const struct kept *k = &c->kept[i];

    switch (k->kind) {
#define AGAIN(name)                                                                                \
    case KIND_##name:                                                                              \
        c->real->name(c->x->q, (const struct name##_args *)k->args);                               \
        break;
        OP_LIST(AGAIN)
#undef AGAIN
    case KINDS:
        break;
    }
}

void calls_until(const struct calls *c, int i)
{
    for (int before = 0; before < i; before++)
        calls_again(c, before);
}

int calls_products(const struct calls *c, int i, const struct matmul_args **out)
{
    const struct kept *k = &c->kept[i];
    const struct matmuls_args *list = (const struct matmuls_args *)k->args;

    *out = k->kind == KIND_matmuls ? list->of : (const struct matmul_args *)k->args;
    return k->kind == KIND_matmuls ? list->n : k->kind == KIND_matmul;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

int calls_open(struct exec *x, int n, struct calls **out)
{
    struct calls *c = calloc(1, sizeof(*c) + (size_t)n * sizeof(c->kept[0]));
    struct device *d = x->q->dev;
    void *at;
    int r;

    if (c)
        c->h_at = calloc((size_t)n + 1, sizeof(*c->h_at));
    if (!c || !c->h_at) {
        free(c);
        return fail(-ENOMEM, "bench: no memory for %d calls", n);
    }
    r = d->ops->alloc(d, ((size_t)n + 1) * sizeof(*c->at), &at);
    if (r < 0) {
        free(c->h_at);
        free(c);
        return r;
    }
    c->at = at;
    c->x = x;
    c->real = x->op;
    c->room = n;
    *out = c;
    return 0;
}

void calls_close(struct calls *c)
{
    if (!c)
        return;
    calls_end(c);
    for (int i = 0; i < c->room; i++)
        free(c->kept[i].id);
    c->x->q->dev->ops->free(c->x->q->dev, c->at);
    free(c->h_at);
    free(c);
}

static void begin(struct calls *c, bool recording)
{
    c->recording = recording;
    c->n = 0;
    c->x->q->onlooker = c;
    c->x->op = &taps;
}

void calls_record(struct calls *c)
{
    begin(c, true);
}

void calls_stamp(struct calls *c)
{
    begin(c, false);
    c->real->stamp(c->x->q, &(struct stamp_args){ .at = c->at, .name = "begin" });
}

void calls_end(struct calls *c)
{
    c->x->op = c->real;
    c->x->q->onlooker = NULL;
}

int calls_settle(struct calls *c)
{
    int r = c->x->q->ops->wait(c->x->q);

    for (int i = 0; i < c->n && r == 0; i++)
        if (c->kept[i].kind == KIND_moe)
            settle_experts(&c->kept[i]);
    return r;
}

int calls_count(const struct calls *c)
{
    return c->n;
}

const struct call *calls_at(const struct calls *c, int i)
{
    return &c->kept[i].call;
}

int calls_times(struct calls *c, int64_t *ns)
{
    struct queue *q = c->x->q;
    int r;

    q->ops->get(q, c->h_at, c->at, ((size_t)c->n + 1) * sizeof(*c->h_at));
    r = q->ops->wait(q);
    for (int i = 0; i < c->n && r == 0; i++)
        ns[i] = c->h_at[i + 1] - c->h_at[i];
    return r;
}
