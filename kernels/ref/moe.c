/* moe.c owns the router's choice and the experts. An expert's weights are read once for all rows that chose
 * it; every row still adds its experts in ascending order, then the shared one. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/dot.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/rows.h"

#define EXPERTS_MAX 1024
#define PART_TILES 4

static float router_score(float v)
{
    return sqrtf(v > 20 ? v : log1pf(expf(v)));
}

/* An expert goes in front of those it beats; ids come ascending, so among equals the lower one stays. */
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
    if (a->k < 1 || a->k > a->experts) {
        queue_fail(q, -EINVAL, "route: %d of %d experts", a->k, a->experts);
        return;
    }
    ref_run(q, a->rows, 32, route_rows, a);
}

/* Picks sorted by expert. Pick i = row * k + place has its hidden values at hidden + i * ld; those of the
 * shared expert for row r are at hidden + (rows * k + r) * ld. */
struct experts {
    const struct moe_args *a;
    float *hidden;
    int ld;
    int *order; /* [rows * k] picks, by expert, then row */
    int start[EXPERTS_MAX +
              1]; /* an expert's picks are order[start[e]] .. order[start[e + 1] - 1] */
    int parts;    /* tasks of an expert's hidden tiles */
};

static void group_picks(struct experts *x)
{
    const struct moe_args *a = x->a;
    int picks = a->rows * a->k;

    memset(x->start, 0, sizeof(x->start));
    for (int i = 0; i < picks; i++)
        if (a->id[i] >= 0)
            x->start[a->id[i] + 1]++;
    for (int e = 0; e < a->experts; e++)
        x->start[e + 1] += x->start[e];
    for (int i = 0; i < picks; i++)
        if (a->id[i] >= 0)
            x->order[x->start[a->id[i]]++] = i;
    for (int e = a->experts; e > 0; e--)
        x->start[e] = x->start[e - 1];
    x->start[0] = 0;
}

/* hidden = round(weight * silu(gate) * up) for some tiles of an expert; e == experts is the shared one. */
static void hidden_part(const struct experts *x, int e, int part)
{
    const struct moe_args *a = x->a;
    int shared = e == a->experts;
    const struct mat *w1 = shared ? a->s1 : &a->w1[e], *w3 = shared ? a->s3 : &a->w3[e];
    int first = shared ? 0 : x->start[e], last = shared ? a->rows : x->start[e + 1];
    int tile = part * PART_TILES, left = (w1->rows + MAT_TILE - 1) / MAT_TILE - tile;
    int tiles = left < PART_TILES ? left : PART_TILES;
    int lo = tile * MAT_TILE,
        n = w1->rows - lo < tiles * MAT_TILE ? w1->rows - lo : tiles * MAT_TILE;
    struct dot_tiles gate = dot_mat(w1), up = dot_mat(w3);

    for (int p = first; tiles > 0 && p < last; p += DOT_ROWS) {
        int rows = last - p < DOT_ROWS ? last - p : DOT_ROWS;
        float g[DOT_ROWS][PART_TILES * MAT_TILE], u[DOT_ROWS][PART_TILES * MAT_TILE];
        const float *in[DOT_ROWS];

        for (int i = 0; i < rows; i++)
            in[i] = a->x + (size_t)(shared ? p + i : x->order[p + i] / a->k) * (size_t)w1->cols;
        dot_rows(&gate, tile, tiles, in, rows, g[0], PART_TILES * MAT_TILE, false);
        dot_rows(&up, tile, tiles, in, rows, u[0], PART_TILES * MAT_TILE, false);
        for (int i = 0; i < rows; i++) {
            int pick = shared ? a->rows * a->k + p + i : x->order[p + i];
            float weight = shared ? 1 : a->weight[pick];

            for (int c = 0; c < n; c++) {
                g[i][c] = ref_round(g[i][c], a->round);
                u[i][c] = ref_round(u[i][c], a->round);
            }
            rows_swiglu(g[i], u[i], x->hidden + (size_t)pick * (size_t)x->ld + (size_t)lo,
                        (size_t)n, weight, a->limit, a->round);
        }
    }
}

static void hidden_parts(const void *args, int lo, int hi, int worker)
{
    const struct experts *x = args;

    for (int i = lo; i < hi; i++)
        hidden_part(x, i / x->parts, i % x->parts);
}

/* Add an expert's outputs of some tiles to its rows. */
static void output_expert(const struct experts *x, const struct mat *w2, int e, int tile, int tiles)
{
    const struct moe_args *a = x->a;
    int shared = e == a->experts;
    int first = shared ? 0 : x->start[e], last = shared ? a->rows : x->start[e + 1];
    int lo = tile * MAT_TILE,
        n = w2->rows - lo < tiles * MAT_TILE ? w2->rows - lo : tiles * MAT_TILE;
    struct dot_tiles w = dot_mat(w2);

    for (int p = first; p < last; p += DOT_ROWS) {
        int rows = last - p < DOT_ROWS ? last - p : DOT_ROWS;
        float sum[DOT_ROWS][PART_TILES * MAT_TILE];
        const float *in[DOT_ROWS];

        for (int i = 0; i < rows; i++)
            in[i] = x->hidden +
                    (size_t)(shared ? a->rows * a->k + p + i : x->order[p + i]) * (size_t)x->ld;
        dot_rows(&w, tile, tiles, in, rows, sum[0], PART_TILES * MAT_TILE, false);
        for (int i = 0; i < rows; i++) {
            int r = shared ? p + i : x->order[p + i] / a->k;
            float *y = a->y + (size_t)r * (size_t)w2->rows + (size_t)lo;

            for (int c = 0; c < n; c++)
                y[c] += sum[i][c];
        }
    }
}

static void output_parts(const void *args, int lo, int hi, int worker)
{
    const struct experts *x = args;
    const struct moe_args *a = x->a;
    int dim = a->w2[0].rows;

    for (int part = lo; part < hi; part++) {
        int tile = part * PART_TILES, left = (dim + MAT_TILE - 1) / MAT_TILE - tile;
        int tiles = left < PART_TILES ? left : PART_TILES;
        int at = tile * MAT_TILE, n = dim - at < tiles * MAT_TILE ? dim - at : tiles * MAT_TILE;

        for (int r = 0; r < a->rows; r++)
            memset(a->y + (size_t)r * (size_t)dim + (size_t)at, 0, (size_t)n * sizeof(float));
        for (int e = 0; e < a->experts; e++)
            output_expert(x, &a->w2[e], e, tile, tiles);
        if (a->s2)
            output_expert(x, a->s2, a->experts, tile, tiles);
    }
}

static int moe_check(struct queue *q, const struct moe_args *a)
{
    if (a->experts < 1 || a->experts > EXPERTS_MAX) {
        queue_fail(q, -EINVAL, "moe: %d experts, want 1 .. %d", a->experts, EXPERTS_MAX);
        return 0;
    }
    for (int i = 0; i < a->rows * a->k; i++)
        if (a->id[i] >= a->experts) {
            queue_fail(q, -EINVAL, "moe: row %d chose expert %d of %d", i / a->k, (int)a->id[i],
                       a->experts);
            return 0;
        }
    return 1;
}

void ref_moe(struct queue *q, const struct moe_args *a)
{
    struct experts x = { .a = a, .hidden = a->scratch };
    int tiles;

    if (q->err || !moe_check(q, a))
        return;
    x.ld = a->s1 ? a->s1->rows : 0;
    for (int e = 0; e < a->experts; e++)
        x.ld = a->w1[e].rows > x.ld ? a->w1[e].rows : x.ld;
    x.order = (int *)(a->scratch + (size_t)a->rows * (size_t)(a->k + 1) * (size_t)x.ld);
    x.parts = (x.ld + MAT_TILE * PART_TILES - 1) / (MAT_TILE * PART_TILES);
    if (x.ld > 0)
        group_picks(&x);
    else
        memset(x.start, 0, sizeof(x.start));
    tiles = (a->w2[0].rows + MAT_TILE - 1) / MAT_TILE;
    ref_run(q, (a->experts + (a->s1 != NULL)) * x.parts, 1, hidden_parts, &x);
    ref_run(q, (tiles + PART_TILES - 1) / PART_TILES, 1, output_parts, &x);
}
