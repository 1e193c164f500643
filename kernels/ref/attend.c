/* attend.c owns attention over decoded rows. Keys of a row are decoded once for all heads: row by
 * row as values, and transposed in tiles of MAT_TILE as keys, so that both products run across
 * outputs. Rows of one slot whose windows overlap share the decoded window. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/codec.h"
#include "kernels/ref/dot.h"
#include "kernels/ref/exp.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/simd.h"

/* A worker's scratch. Places 0 .. room - 1 hold window rows, those behind them selected rows. */
struct keys {
    float *value; /* [places][dim] */
    float *tile;  /* [places / MAT_TILE][dim][MAT_TILE] */
    float *prob;  /* [DOT_ROWS][places] */
    int places, room;
    int lo, hi; /* positions of the decoded window; lo is at place 0 */
};

struct span {
    int lo, hi; /* positions lo .. hi - 1 */
};

static struct span window_of(const struct attend_args *a, int r)
{
    const struct row_info *i = &a->info[r];
    int floor = a->head ? a->head[i->slot].floor : 0;
    struct span s = { i->pos - a->span + 1, i->pos + 1 };

    if (a->mode == ATTEND_BLOCK) {
        int begin = a->info[i->first].pos;

        s = (struct span){ begin - a->span, begin + a->block };
    }
    floor = floor > 0 ? floor : 0;
    s.lo = s.lo > floor ? s.lo : floor;
    return s;
}

static void decode(const struct state_view *v, int slot, int row, int dim, struct keys *k,
                   int place)
{
    codec_decode(v->codec, state_row(v, slot, row), dim, k->value + (size_t)place * (size_t)dim);
}

static void transpose(struct keys *k, int dim, int place, int n)
{
    for (int i = 0; i < n; i += MAT_TILE)
        dot_transpose(k->value + (size_t)(place + i) * (size_t)dim, (size_t)dim,
                      n - i < MAT_TILE ? n - i : MAT_TILE, dim,
                      k->tile + (size_t)(place + i) * (size_t)dim);
}

/* Decode the window of row r and of as many rows behind it as find room. Returns the row behind the
 * last. */
static int window_load(const struct attend_args *a, struct keys *k, int r, int end)
{
    struct span s = window_of(a, r);
    int slot = a->info[r].slot;

    k->lo = s.lo;
    k->hi = s.hi;
    for (r++; r < end && a->info[r].slot == slot; r++) {
        s = window_of(a, r);
        if (s.hi < k->hi || s.hi - k->lo > k->room) /* a later end never has an earlier begin */
            break;
        k->hi = s.hi;
    }
    for (int p = k->lo; p < k->hi; p++)
        decode(&a->win, slot, p, a->dim, k, p - k->lo);
    transpose(k, a->dim, 0, k->hi - k->lo);
    return r;
}

static int selected_load(const struct attend_args *a, struct keys *k, int r)
{
    const int32_t *sel = a->sel + (size_t)r * (size_t)a->topk;
    int n = 0;

    for (; n < a->topk && sel[n] >= 0; n++)
        decode(&a->more, a->info[r].slot, sel[n], a->dim, k, k->room + n);
    transpose(k, a->dim, k->room, n);
    return n;
}

/* Logits become e^(l - most) in place; returns their sum, in order, added to sum. */
SIMD static float exponents(float *l, int n, float most, float sum)
{
    for (int j = 0; j < n; j++)
        l[j] = exp_f32(l[j] - most);
    for (int j = 0; j < n; j++)
        sum += l[j];
    return sum;
}

SIMD static float scaled_most(float *l, int n, float scale, float most)
{
    for (int j = 0; j < n; j++) {
        l[j] *= scale;
        most = l[j] > most ? l[j] : most;
    }
    return most;
}

SIMD static void round_values(float *x, int n)
{
    for (int j = 0; j < n; j++)
        x[j] = bf16_round(x[j]);
}

SIMD static void divide_values(float *x, int n, float by, enum round round)
{
    for (int j = 0; j < n; j++)
        x[j] /= by;
    if (round == ROUND_BF16)
        round_values(x, n);
}

/* Heads h .. h + n - 1 of row r: window places from .. from + win - 1, then sel places from room
 * on. */
static void attend_heads(const struct attend_args *a, struct keys *k, int r, int h, int n, int from,
                         int win, int sel)
{
    size_t dim = (size_t)a->dim, ld = (size_t)k->places;
    size_t at = ((size_t)r * (size_t)a->heads + (size_t)h) * dim;
    struct dot_tiles key = { k->tile, DTYPE_F32, MAT_TILE * dim, MAT_TILE, a->dim };
    struct dot_tiles value = { k->value + (size_t)from * dim, DTYPE_F32, MAT_TILE, dim, win };
    int tile = from / MAT_TILE, tiles = (from + win + MAT_TILE - 1) / MAT_TILE - tile;
    const float *x[DOT_ROWS];
    float total[DOT_ROWS];

    for (int i = 0; i < n; i++)
        x[i] = a->q + at + (size_t)i * dim;
    dot_rows(&key, tile, tiles, x, n, k->prob + tile * MAT_TILE, ld, false);
    dot_rows(&key, k->room / MAT_TILE, (sel + MAT_TILE - 1) / MAT_TILE, x, n, k->prob + k->room, ld,
             false);
    for (int i = 0; i < n; i++) {
        float *near = k->prob + (size_t)i * ld + from, *far = k->prob + (size_t)i * ld + k->room;
        float most = scaled_most(near, win, a->scale, a->sink[h + i]);

        most = scaled_most(far, sel, a->scale, most);
        total[i] = exponents(far, sel, most, exponents(near, win, most, 0));
        total[i] += exp_f32(a->sink[h + i] - most);
        if (a->round == ROUND_BF16) {
            round_values(near, win);
            round_values(far, sel);
        }
        x[i] = near;
    }
    dot_rows(&value, 0, a->dim / MAT_TILE, x, n, a->o + at, dim, false);
    value.data = k->value + (size_t)k->room * dim;
    value.cols = sel;
    for (int i = 0; i < n; i++)
        x[i] = k->prob + (size_t)i * ld + k->room;
    if (sel > 0)
        dot_rows(&value, 0, a->dim / MAT_TILE, x, n, a->o + at, dim, true);
    for (int i = 0; i < n; i++)
        divide_values(a->o + at + (size_t)i * dim, a->dim, total[i], a->round);
}

/* A task is a range of (head piece, row): with fewer rows than workers the heads are cut as
 * well. */
struct attend_job {
    const struct attend_args *a;
    int pieces;
};

static struct keys keys_of(const struct attend_args *a, int worker)
{
    size_t dim = (size_t)a->dim;
    size_t floats = attend_scratch(a->dim, a->span, a->block, a->topk);
    float *base = a->scratch + (size_t)worker * floats;
    struct keys k = { .places = (int)(floats / (2 * dim + DOT_ROWS)) };

    k.room = k.places - round_up(a->topk, MAT_TILE);
    k.value = base;
    k.tile = base + (size_t)k.places * dim;
    k.prob = k.tile + (size_t)k.places * dim;
    return k;
}

static void attend_rows(const struct attend_args *a, struct keys *k, int lo, int hi, int h0, int h1)
{
    for (int r = lo; r < hi;) {
        int end = window_load(a, k, r, hi);

        for (; r < end; r++) {
            struct span s = window_of(a, r);
            int sel = a->more.base ? selected_load(a, k, r) : 0;

            for (int h = h0; h < h1; h += DOT_ROWS)
                attend_heads(a, k, r, h, h1 - h < DOT_ROWS ? h1 - h : DOT_ROWS, s.lo - k->lo,
                             s.hi - s.lo, sel);
        }
    }
}

static void attend_part(const void *args, int lo, int hi, int worker)
{
    const struct attend_job *j = args;
    const struct attend_args *a = j->a;
    struct keys k = keys_of(a, worker);

    while (lo < hi) {
        int piece = lo / a->rows, r = lo % a->rows;
        int end = (piece + 1) * a->rows < hi ? a->rows : hi - piece * a->rows;

        attend_rows(a, &k, r, end, a->heads * piece / j->pieces,
                    a->heads * (piece + 1) / j->pieces);
        lo += end - r;
    }
}

static void turn(struct queue *q, const struct attend_args *a, float *x, int inverse)
{
    ref_rope(q, &(struct rope_args){ .x = x,
                                     .freq = a->freq,
                                     .info = a->info,
                                     .rows = a->rows,
                                     .heads = a->heads,
                                     .cols = a->dim,
                                     .dims = a->dims,
                                     .inverse = inverse,
                                     .round = a->round });
}

void ref_attend(struct queue *q, const struct attend_args *a)
{
    struct attend_job j = { .a = a, .pieces = 1 };

    if (q->err)
        return;
    if (a->dim % MAT_TILE != 0 || a->dim % codec_block(a->win.codec) != 0 ||
        a->win.cols != a->dim ||
        (a->more.base && (a->more.cols != a->dim || a->dim % codec_block(a->more.codec) != 0))) {
        queue_fail(q, -EINVAL, "attend: heads of %d values, rows of %d and %d", a->dim, a->win.cols,
                   a->more.base ? a->more.cols : a->dim);
        return;
    }
    if (a->rows > 0 && a->rows < q->dev->workers)
        j.pieces = (q->dev->workers + a->rows - 1) / a->rows;
    if (j.pieces > a->heads)
        j.pieces = a->heads;
    if (a->freq)
        turn(q, a, a->q, 0);
    ref_run(q, a->rows * j.pieces, 1, attend_part, &j);
    if (a->freq)
        turn(q, a, a->o, 1);
}

/* ---- plain attention ------------------------------------------------------------------------- */

static void gqa_head(const struct attend_gqa_args *a, int r, int h, float *prob)
{
    const struct row_info *i = &a->info[r];
    int kv = h / (a->heads / a->kv_heads) * a->dim;
    int first = a->head ? a->head[i->slot].floor : 0, n;
    size_t at = ((size_t)r * (size_t)a->heads + (size_t)h) * (size_t)a->dim;
    const float *x = a->q + at;
    float *o = a->o + at, most = -INFINITY, total;

    first = first < i->pos ? first : i->pos;
    n = i->pos + 1 - first;
    for (int j = 0; j < n; j++) {
        const float *key = state_f32(&a->k, i->slot, first + j) + kv;
        float sum = 0;

        for (int c = 0; c < a->dim; c++)
            sum += x[c] * key[c];
        prob[j] = sum;
    }
    most = scaled_most(prob, n, a->scale, most);
    total = exponents(prob, n, most, 0);
    if (a->round == ROUND_BF16)
        round_values(prob, n);
    memset(o, 0, (size_t)a->dim * sizeof(*o));
    for (int j = 0; j < n; j++) {
        const float *value = state_f32(&a->v, i->slot, first + j) + kv;

        for (int c = 0; c < a->dim; c++)
            o[c] += prob[j] * value[c];
    }
    divide_values(o, a->dim, total, a->round);
}

static void gqa_heads(const void *args, int lo, int hi, int worker)
{
    const struct attend_gqa_args *a = args;

    for (int i = lo; i < hi; i++)
        gqa_head(a, i / a->heads, i % a->heads, a->scratch + (size_t)worker * (size_t)a->k.cap);
}

void ref_attend_gqa(struct queue *q, const struct attend_gqa_args *a)
{
    if (q->err)
        return;
    if (a->kv_heads < 1 || a->heads % a->kv_heads != 0 || a->k.codec != CODEC_F32 ||
        a->v.codec != CODEC_F32) {
        queue_fail(q, -EINVAL, "attend_gqa: %d heads on %d", a->heads, a->kv_heads);
        return;
    }
    ref_run(q, a->rows * a->heads, 1, gqa_heads, a);
}
