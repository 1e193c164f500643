/* moe.c owns the router's choice and the experts. An expert's weights are read once for all rows
 * that chose it; every row still adds its experts in ascending order, then the shared one. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/ref/product.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/rows.h"
#include "src/base/rng.h"

#define EXPERTS_MAX 1024

static float router_score(float v)
{
    double e = det_exp((double)v);

    /* Far below zero log(1 + e) is e, and 1 + e would lose it. */
    return sqrtf(v > 20 ? v : (float)(v < -18 ? e : det_log(1 + e)));
}

/* Experts behind those that hold `enough`; the sum of the others. */
static float leave_out(int32_t *id, float *weight, int n, float enough)
{
    bool out[EXPERTS_MAX];
    float sum = 0;

    for (int i = 0; i < n; i++) {
        float before = 0;

        for (int j = 0; j < n; j++)
            if (weight[j] > weight[i] || (weight[j] == weight[i] && j < i))
                before += weight[j];
        out[i] = before >= enough && before > 0;
    }
    for (int i = 0; i < n; i++) {
        if (out[i]) {
            id[i] = -1;
            weight[i] = 0;
        }
        sum += weight[i];
    }
    return sum;
}

/* An expert goes in front of those it beats; ids come ascending, so among equals the lower one
 * stays. */
static void route_row(const struct route_args *a, int r)
{
    const float *logit = a->logit + (size_t)r * (size_t)a->experts;
    int32_t *id = a->id + (size_t)r * (size_t)a->k;
    float *weight = a->weight + (size_t)r * (size_t)a->k;
    float sum = 0;
    int n = 0;

    for (int e = 0; e < a->experts; e++) {
        float v = router_score(logit[e] * a->temp) + a->bias[e];
        int at = n;

        while (at > 0 && v > weight[at - 1])
            at--;
        if (at >= a->k)
            continue;
        n = n < a->k ? n + 1 : n;
        for (int i = n - 1; i > at; i--) {
            id[i] = id[i - 1];
            weight[i] = weight[i - 1];
        }
        id[at] = e;
        weight[at] = v;
    }
    for (int i = 1; i < n; i++) {
        int32_t e = id[i];
        int at = i;

        for (; at > 0 && id[at - 1] > e; at--)
            id[at] = id[at - 1];
        id[at] = e;
    }
    for (int i = 0; i < n; i++) {
        weight[i] = router_score(logit[id[i]] * a->temp);
        sum += weight[i];
    }
    if (a->top_p > 0)
        sum = leave_out(id, weight, n, a->top_p * sum);
    for (int i = 0; i < n; i++)
        weight[i] = (a->norm ? weight[i] / (sum + 1e-20f) : weight[i]) * a->scale;
}

static void route_rows(const void *args, int lo, int hi, int worker)
{
    for (int r = lo; r < hi; r++)
        route_row(args, r);
}

void ref_route(struct queue *q, const struct route_args *a)
{
    if (q->err)
        return;
    if (a->k < 1 || a->k > a->experts || a->experts > EXPERTS_MAX) {
        queue_fail(q, -EINVAL, "route: %d of %d experts, want at most %d", a->k, a->experts,
                   EXPERTS_MAX);
        return;
    }
    if (a->gate)
        q->ops->op->matmul(
            q, &(struct matmul_args){ .w = a->gate, .x = a->x, .y = a->logit, .rows = a->rows });
    ref_run(q, a->rows, 32, route_rows, a);
}

int moe_group(const int32_t *id, int picks, int experts, int *uid, int *start, int *order)
{
    int n = 0, at = 0;

    for (int e = 0; e < experts; e++)
        uid[e] = 0;
    for (int i = 0; i < picks; i++)
        if (id[i] >= 0)
            uid[id[i]]++;
    for (int e = 0; e < experts; e++) { /* uid[e] becomes where the next pick of e goes */
        int members = uid[e];

        uid[e] = at;
        at += members;
    }
    for (int i = 0; i < picks; i++)
        if (id[i] >= 0)
            order[uid[id[i]]++] = i;
    for (int i = 0; i < at; i++)
        if (i == 0 || id[order[i]] != id[order[i - 1]]) {
            start[n] = i;
            uid[n++] = id[order[i]];
        }
    start[n] = at;
    return n;
}

/* Picks sorted by expert. Pick i = row * k + place has its hidden values at hidden + i * ld; those
 * of the shared expert for row r are at hidden + (rows * k + r) * ld. */
struct experts {
    const struct moe_args *a;
    strip_fn *strip;
    float *hidden;
    int ld;
    int *order; /* [rows * k] picks, by expert, then row */
    int n;      /* experts that were picked; group n is the shared one */
    int uid[EXPERTS_MAX], start[EXPERTS_MAX + 1];
    int parts; /* tasks of an expert's hidden values */
};

/* Some rows of a group: which pick, which row of the window. */
struct members {
    int n;
    int pick[STRIP_ROWS], row[STRIP_ROWS];
};

static int group_size(const struct experts *x, int group)
{
    return group == x->n ? x->a->rows : x->start[group + 1] - x->start[group];
}

static void take_members(const struct experts *x, int group, int first, struct members *m)
{
    const struct moe_args *a = x->a;
    int left = group_size(x, group) - first;

    m->n = left < STRIP_ROWS ? left : STRIP_ROWS;
    for (int i = 0; i < m->n; i++) {
        m->pick[i] =
            group == x->n ? a->rows * a->k + first + i : x->order[x->start[group] + first + i];
        m->row[i] = group == x->n ? first + i : m->pick[i] / a->k;
    }
}

/* Outputs lo .. end - 1 of w, at most STRIP_OUTPUTS of them, as many strips as that is. */
static void strips(strip_fn *strip, const struct mat *w, enum codec in, int lo, int end,
                   const float *const *x, int rows, float *y)
{
    int wide = strip_outputs(w);

    for (int first = lo; first < end; first += wide) {
        int n = end - first < wide ? end - first : wide;

        strip(
            &(struct strip){
                .w = w, .first = first, .n = n, .x = x, .rows = rows, .in = product_codec(w, in) },
            y + first - lo, STRIP_OUTPUTS);
    }
}

/* hidden = round(weight * silu(gate) * up) for a strip of a group. */
static void hidden_part(const struct experts *x, int group, int part)
{
    const struct moe_args *a = x->a;
    int is_shared = group == x->n;
    const struct mat *w1 = is_shared ? a->s1 : &a->w1[x->uid[group]];
    const struct mat *w3 = is_shared ? a->s3 : &a->w3[x->uid[group]];
    int lo = part * STRIP_OUTPUTS,
        end = w1->rows - lo < STRIP_OUTPUTS ? w1->rows : lo + STRIP_OUTPUTS;
    float g[STRIP_ROWS][STRIP_OUTPUTS], u[STRIP_ROWS][STRIP_OUTPUTS];
    const float *in[STRIP_ROWS];
    struct members m;

    for (int p = 0; lo < end && p < group_size(x, group); p += STRIP_ROWS) {
        take_members(x, group, p, &m);
        for (int i = 0; i < m.n; i++)
            in[i] = a->x + (size_t)m.row[i] * (size_t)w1->cols;
        strips(x->strip, w1, a->in, lo, end, in, m.n, g[0]);
        strips(x->strip, w3, a->in, lo, end, in, m.n, u[0]);
        for (int i = 0; i < m.n; i++) {
            float weight = is_shared ? 1 : a->weight[m.pick[i]];

            for (int c = 0; c < end - lo; c++) {
                g[i][c] = ref_round(g[i][c], a->round);
                u[i][c] = ref_round(u[i][c], a->round);
            }
            rows_swiglu(g[i], u[i], x->hidden + (size_t)m.pick[i] * (size_t)x->ld + (size_t)lo,
                        (size_t)(end - lo), weight, a->limit, a->round);
        }
    }
}

static void hidden_parts(const void *args, int lo, int hi, int worker)
{
    const struct experts *x = args;

    for (int i = lo; i < hi; i++)
        hidden_part(x, i / x->parts, i % x->parts);
}

/* Add a group's outputs of a strip to its rows. */
static void output_group(const struct experts *x, const struct mat *w2, int group, int lo, int end)
{
    const struct moe_args *a = x->a;
    float sum[STRIP_ROWS][STRIP_OUTPUTS];
    const float *in[STRIP_ROWS];
    struct members m;

    for (int p = 0; p < group_size(x, group); p += STRIP_ROWS) {
        take_members(x, group, p, &m);
        for (int i = 0; i < m.n; i++)
            in[i] = x->hidden + (size_t)m.pick[i] * (size_t)x->ld;
        strips(x->strip, w2, a->in, lo, end, in, m.n, sum[0]);
        for (int i = 0; i < m.n; i++) {
            float *y = a->y + (size_t)m.row[i] * (size_t)w2->rows + (size_t)lo;

            for (int c = 0; c < end - lo; c++)
                y[c] += sum[i][c];
        }
    }
}

static void output_parts(const void *args, int first, int last, int worker)
{
    const struct experts *x = args;
    const struct moe_args *a = x->a;
    int dim = a->w2[0].rows;

    for (int part = first; part < last; part++) {
        int lo = part * STRIP_OUTPUTS, end = dim - lo < STRIP_OUTPUTS ? dim : lo + STRIP_OUTPUTS;

        for (int r = 0; r < a->rows; r++)
            memset(a->y + (size_t)r * (size_t)dim + (size_t)lo, 0,
                   (size_t)(end - lo) * sizeof(float));
        for (int i = 0; i < x->n; i++)
            output_group(x, &a->w2[x->uid[i]], i, lo, end);
        if (a->s2)
            output_group(x, a->s2, x->n, lo, end);
    }
}

/* Every weight that is read; y has w2's rows for all experts. */
static bool weights_check(struct queue *q, const struct moe_args *a, const struct experts *x)
{
    for (int i = 0; i <= x->n; i++) {
        const struct mat *w1 = i == x->n ? a->s1 : &a->w1[x->uid[i]];
        const struct mat *w3 = i == x->n ? a->s3 : &a->w3[x->uid[i]];
        const struct mat *w2 = i == x->n ? a->s2 : &a->w2[x->uid[i]];

        if (w1 && !(product_check(q, "moe", w1, a->in, 1) &&
                    product_check(q, "moe", w3, a->in, 1) && product_check(q, "moe", w2, a->in, 1)))
            return false;
    }
    return true;
}

static bool moe_check(struct queue *q, const struct moe_args *a)
{
    if (a->experts < 1 || a->experts > EXPERTS_MAX) {
        queue_fail(q, -EINVAL, "moe: %d experts, want 1 .. %d", a->experts, EXPERTS_MAX);
        return false;
    }
    for (int i = 0; i < a->rows * a->k; i++)
        if (a->id[i] >= a->experts) {
            queue_fail(q, -EINVAL, "moe: row %d chose expert %d of %d", i / a->k, (int)a->id[i],
                       a->experts);
            return false;
        }
    return true;
}

static int parts_of(int outputs)
{
    return (outputs + STRIP_OUTPUTS - 1) / STRIP_OUTPUTS;
}

void product_moe(struct queue *q, const struct moe_args *a, strip_fn *strip)
{
    struct experts x = { .a = a, .strip = strip, .hidden = a->scratch };

    if (q->err || !moe_check(q, a))
        return;
    x.ld = a->s1 ? a->s1->rows : 0;
    for (int e = 0; e < a->experts; e++)
        x.ld = a->w1[e].rows > x.ld ? a->w1[e].rows : x.ld;
    x.order = (int *)(a->scratch + (size_t)a->rows * (size_t)(a->k + 1) * (size_t)x.ld);
    x.parts = parts_of(x.ld);
    if (x.ld > 0)
        x.n = moe_group(a->id, a->rows * a->k, a->experts, x.uid, x.start, x.order);
    if (!weights_check(q, a, &x))
        return;
    ref_run(q, (x.n + (a->s1 != NULL)) * x.parts, 1, hidden_parts, &x);
    ref_run(q, parts_of(a->w2[0].rows), 1, output_parts, &x);
}

void ref_moe(struct queue *q, const struct moe_args *a)
{
    product_moe(q, a, ref_strip);
}
