/* pick.c owns choices: candidates of a row, the sampler's filters, the keyed draw, the drafter's chain.
 *
 * Filters are prefixes of one order, larger logit first, then lower id; so a row is sorted at most once, and
 * not at all where only the draw or min-p is on. Everything behind a logit is double, with the exp and log of
 * src/base/rng.h.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/dot.h"
#include "kernels/ref/order.h"
#include "kernels/ref/ref.h"
#include "src/base/rng.h"

#define MASS_CHUNK 320 /* ids */
#define MASS_LANES 64
#define FEW 64 /* candidates that are cheaper kept in order than sorted */

/* ---- candidates -------------------------------------------------------------------------------------- */

/* A few: each goes in front of those it beats. Ids come ascending, so among equals the lower one stays. */
static int best_few(const float *z, int cols, int k, int id0, struct candidate *cand)
{
    int n = 0;

    for (int c = 0; c < cols; c++) {
        int at = n;

        if (!(z[c] > (n == k ? cand[n - 1].z : -INFINITY)))
            continue;
        while (at > 0 && z[c] > cand[at - 1].z)
            at--;
        n = n < k ? n + 1 : n;
        memmove(cand + at + 1, cand + at, (size_t)(n - 1 - at) * sizeof(*cand));
        cand[at] = (struct candidate){ .z = z[c], .id = id0 + c };
    }
    return n;
}

/* Many: find the cut first, then sort what lies above it. */
static int best_many(const float *z, int cols, int k, int id0, struct candidate *cand)
{
    struct order_cut cut = order_cut_f32(z, cols, k);
    uint64_t pair[TOPK_MAX], tmp[TOPK_MAX], *sorted;
    int n = 0;

    for (int c = 0; c < cols && n < k; c++) {
        uint32_t word = order_word(z[c]);

        if (z[c] > -INFINITY && (word > cut.word || (word == cut.word && cut.ties-- > 0)))
            pair[n++] = (uint64_t)word << 32 | (uint32_t)c;
    }
    sorted = order_sort(pair, tmp, n);
    for (int i = 0; i < n; i++) {
        int c = (int)(uint32_t)sorted[i];

        cand[i] = (struct candidate){ .z = z[c], .id = id0 + c };
    }
    return n;
}

static int all_below_infinity(const float *z, int cols)
{
    int bad = 0;

    for (int c = 0; c < cols; c++)
        bad |= !(z[c] < INFINITY);
    return !bad;
}

static void best_row(const struct best_args *a, int r)
{
    const float *z = a->logits + (size_t)r * (size_t)a->cols;
    struct candidate *cand = a->cand + (size_t)r * (size_t)a->k;
    int ok = all_below_infinity(z, a->cols), n = 0;

    if (ok)
        n = a->k <= FEW ? best_few(z, a->cols, a->k, a->id0, cand)
                        : best_many(z, a->cols, a->k, a->id0, cand);
    for (; n < a->k; n++)
        cand[n] = (struct candidate){ .z = -INFINITY, .id = -1 };
    if (!ok)
        cand[0].z = NAN;
}

static void best_rows(const void *args, int lo, int hi, int worker)
{
    for (int r = lo; r < hi; r++)
        best_row(args, r);
}

void ref_best(struct queue *q, const struct best_args *a)
{
    if (q->err)
        return;
    if (a->k < 1 || a->k > TOPK_MAX) {
        queue_fail(q, -EINVAL, "best: %d candidates, want 1 .. %d", a->k, TOPK_MAX);
        return;
    }
    ref_run(q, a->rows, 1, best_rows, a);
}

/* ---- the sampler ------------------------------------------------------------------------------------- */

/* Pairs of a row: order word << 32 | id, in the order of ids. */
struct ballot {
    const struct sampler *s;
    uint64_t pos;
    uint64_t *pair, *tmp;
    int n;
    float most;   /* the largest logit */
    double whole; /* mass of the vocabulary relative to the largest; < 0: what top-k left */
};

static double heat(const struct sampler *s)
{
    return s->temperature < 1e-6 ? 1e-6 : s->temperature;
}

static int has_top_p(const struct sampler *s)
{
    return s->top_p > 0 && s->top_p < 1;
}

static double scaled(const struct ballot *b, uint64_t pair)
{
    return (double)order_value((uint32_t)(pair >> 32)) / heat(b->s);
}

/* How many of the first n sorted pairs top-p leaves: those up to the one that reaches it. */
static int nucleus(const struct ballot *b, const uint64_t *sorted, int n)
{
    double most = (double)b->most / heat(b->s), whole = b->whole, sum = 0;
    int left = 0;

    if (whole < 0) {
        whole = 0;
        for (int i = 0; i < n; i++)
            whole += det_exp(scaled(b, sorted[i]) - most);
    }
    while (left < n) {
        sum += det_exp(scaled(b, sorted[left]) - most) / whole;
        left++;
        if (!(sum < b->s->top_p))
            break;
    }
    return left;
}

/* Whether noise of uniform u cannot lift a value that lies d below the best one to it. Noise is at most
 * -log(1 - u), and e^d at least 1 + d + d^2 / 2 + d^3 / 6; slack covers the rounding of both values. It only
 * spares two logarithms: nearly every id of a vocabulary is out of reach. */
static int out_of_reach(double d, double u, double slack)
{
    d -= slack;
    return d > 0 && (1 - u) * (1 + d * (1 + d * (0.5 + d * (1.0 / 6)))) > 1 + 1e-9;
}

/* The token: largest x + g among the survivors, ties to the lower id. */
static int32_t draw(const struct ballot *b, const uint64_t *pair, int n)
{
    double floor =
        b->s->min_p > 0 ? (double)b->most / heat(b->s) + det_log(b->s->min_p) : -INFINITY;
    double top = -INFINITY;
    int32_t best = -1;

    for (int i = 0; i < n; i++) {
        int32_t id = (int32_t)(uint32_t)pair[i];
        double x = scaled(b, pair[i]), u, v;

        if (x < floor)
            continue;
        u = draw_u(b->s->seed, b->pos, (uint32_t)id, DRAW_TOKEN);
        if (out_of_reach(top - x, u, 1e-9 + fabs(top) * 1e-14))
            continue;
        v = x - det_log(-det_log(u));
        if (best < 0 || v > top || (v == top && id < best)) {
            top = v;
            best = id;
        }
    }
    return best;
}

/* The first pairs of the sampler's order, sorted: k of them, and those that tie with the last. */
static uint64_t *sort_first(const struct ballot *b, int k)
{
    uint32_t least = order_cut_pairs(b->pair, b->n, k).word;
    int n = 0;

    for (int i = 0; i < b->n; i++)
        if (b->pair[i] >> 32 >= least)
            b->pair[n++] = b->pair[i];
    return order_sort(b->pair, b->tmp, n);
}

static int32_t sample(const struct ballot *b)
{
    int n = b->n;
    uint64_t *pair = b->pair;

    if (b->s->top_k > 0 && b->s->top_k < n) {
        n = b->s->top_k;
        pair = sort_first(b, n);
    } else if (has_top_p(b->s)) {
        pair = order_sort(b->pair, b->tmp, n);
    }
    if (has_top_p(b->s))
        n = nucleus(b, pair, n);
    return draw(b, pair, n);
}

/* Mass of the vocabulary relative to its largest logit, from chunks of MASS_CHUNK ids so that ranks and
 * devices agree: lane l of a chunk sums ids l, l + 64, ... in order, lanes are halved, chunks add in order. */
static double vocabulary_mass(const float *z, int n, float most, double heat_)
{
    double whole = 0, m = (double)most / heat_;

    for (int c = 0; c < n; c += MASS_CHUNK) {
        int len = n - c < MASS_CHUNK ? n - c : MASS_CHUNK;
        double lane[MASS_LANES] = { 0 }, top;
        float peak = -INFINITY;

        for (int i = 0; i < len; i++)
            peak = z[c + i] > peak ? z[c + i] : peak;
        if (peak == -INFINITY)
            continue;
        top = (double)peak / heat_;
        for (int i = 0; i < len; i++)
            lane[i % MASS_LANES] += det_exp((double)z[c + i] / heat_ - top);
        for (int half = MASS_LANES / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++)
                lane[i] += lane[i + half];
        whole += lane[0] * det_exp(top - m);
    }
    return whole;
}

/* ---- choose ------------------------------------------------------------------------------------------ */

struct ballots {
    const struct choose_args *a;
    int vocab;
};

static int32_t choose_greedy(const struct choose_args *a, int r)
{
    struct candidate top = { .id = -1 };

    for (int i = 0; i < a->ranks; i++) {
        struct candidate c = a->best[(size_t)i * (size_t)a->rows + (size_t)r];

        if (c.z != c.z)
            return -1;
        if (c.id >= 0 && (top.id < 0 || c.z > top.z || (c.z == top.z && c.id < top.id)))
            top = c;
    }
    return top.id;
}

static int32_t choose_sampled(const struct ballots *j, int r, const struct sampler *s,
                              void *scratch)
{
    const struct choose_args *a = j->a;
    uint64_t *pair = scratch;
    float *z = (float *)(pair + 2 * (size_t)j->vocab);
    struct ballot b = { .s = s,
                        .pos = (uint64_t)(a->info[r].pos + 1),
                        .pair = pair,
                        .tmp = pair + j->vocab,
                        .most = -INFINITY,
                        .whole = -1 };
    int at = 0;

    for (int i = 0; i < a->ranks; at += a->width[i++])
        memcpy(z + at, a->full + ((size_t)i * (size_t)a->rows + (size_t)r) * (size_t)a->ldf,
               (size_t)a->width[i] * sizeof(*z));
    for (int id = 0; id < j->vocab; id++) {
        if (!(z[id] < INFINITY))
            return -1;
        if (z[id] == -INFINITY)
            continue;
        b.most = z[id] > b.most ? z[id] : b.most;
        pair[b.n++] = (uint64_t)order_word(z[id]) << 32 | (uint32_t)id;
    }
    if (b.n == 0)
        return -1;
    if (has_top_p(s) && s->top_k <= 0)
        b.whole = vocabulary_mass(z, j->vocab, b.most, heat(s));
    return sample(&b);
}

static void choose_rows(const void *args, int lo, int hi, int worker)
{
    const struct ballots *j = args;
    const struct choose_args *a = j->a;
    char *scratch = (char *)a->scratch + (size_t)worker * choose_scratch((size_t)j->vocab);

    for (int r = lo; r < hi; r++) {
        const struct sampler *s = &a->sampler[a->info[r].slot];

        a->choice[r] = s->temperature > 0 ? choose_sampled(j, r, s, scratch) : choose_greedy(a, r);
    }
}

void ref_choose(struct queue *q, const struct choose_args *a)
{
    struct ballots j = { .a = a };

    if (q->err)
        return;
    if (a->ranks < 1 || a->ranks > RANKS_MAX) {
        queue_fail(q, -EINVAL, "choose: %d ranks, want 1 .. %d", a->ranks, RANKS_MAX);
        return;
    }
    for (int i = 0; i < a->ranks; i++)
        j.vocab += a->width[i];
    for (int r = 0; r < a->rows; r++)
        if (!a->full && a->sampler[a->info[r].slot].temperature > 0) {
            queue_fail(q, -EINVAL, "choose: row %d is sampled and no logits were gathered", r);
            return;
        }
    ref_run(q, a->rows, 1, choose_rows, &j);
    for (int r = 0; r < a->rows; r++)
        if (a->choice[r] < 0) {
            queue_fail(q, -EBADMSG, "choose: no finite logits in slot %d row %d position %d",
                       (int)a->info[r].slot, r, (int)a->info[r].pos);
            return;
        }
}

/* ---- the drafter's chain ----------------------------------------------------------------------------- */

#define MARKOV_RANK_MAX 1024
#define MARKOV_CANDS_MAX (RANKS_MAX * TOPK_MAX)

/* terms[j] = head row id[j] . prev for n <= MAT_TILE candidates */
static void markov_terms(const struct markov_args *a, const int32_t *id, int n, const float *prev,
                         float *terms)
{
    float rows[MAT_TILE * MARKOV_RANK_MAX], tile[MAT_TILE * MARKOV_RANK_MAX];
    int rank = a->head->cols, ld = round_up(rank, MAT_TILE);
    struct dot_tiles w = { tile, DTYPE_F32, 0, MAT_TILE, rank };

    for (int j = 0; j < n; j++) {
        ref_table_row(a->head, id[j], rows + j * ld);
        memset(rows + j * ld + rank, 0, (size_t)(ld - rank) * sizeof(*rows));
    }
    dot_transpose(rows, (size_t)ld, n, ld, tile);
    dot_rows(&w, 0, 1, &prev, 1, terms, MAT_TILE, false);
}

/* Candidates of row r with the term of the token before; returns how many are finite, -1 for a NaN. */
static int refine(const struct markov_args *a, int r, const float *prev, struct candidate *out)
{
    int all = a->ranks * a->k, finite = 0;

    for (int i = 0; i < a->ranks; i++)
        memcpy(out + i * a->k, a->cand + ((size_t)i * (size_t)a->rows + (size_t)r) * (size_t)a->k,
               (size_t)a->k * sizeof(*out));
    for (int c = 0; c < all;) {
        int32_t id[MAT_TILE];
        int at[MAT_TILE], n = 0;
        float terms[MAT_TILE];

        for (; c < all && n < MAT_TILE; c++) {
            if (out[c].z != out[c].z)
                return -1;
            if (out[c].id < 0)
                continue;
            at[n] = c;
            id[n++] = out[c].id;
        }
        if (n > 0)
            markov_terms(a, id, n, prev, terms);
        for (int j = 0; j < n; j++) {
            out[at[j]].z += terms[j];
            if (!(fabsf(out[at[j]].z) < INFINITY))
                return -1;
        }
        finite += n;
    }
    return finite;
}

static int32_t markov_pick(const struct markov_args *a, int r, int pos,
                           const struct candidate *cand)
{
    const struct sampler *s = &a->sampler[a->info[r].slot];
    uint64_t pair[MARKOV_CANDS_MAX], tmp[MARKOV_CANDS_MAX];
    struct ballot b = { .s = s, .pos = (uint64_t)pos, .pair = pair, .tmp = tmp, .whole = -1 };
    struct candidate top = { .id = -1 };

    for (int c = 0; c < a->ranks * a->k; c++) {
        struct candidate o = cand[c];

        if (o.id < 0)
            continue;
        if (top.id < 0 || o.z > top.z || (o.z == top.z && o.id < top.id))
            top = o;
        pair[b.n++] = (uint64_t)order_word(o.z) << 32 | (uint32_t)o.id;
    }
    b.most = top.z;
    return s->temperature > 0 ? sample(&b) : top.id;
}

static float confidence(const struct markov_args *a, int r, const float *prev)
{
    const float *h = a->h + (size_t)r * (size_t)a->dim;
    float sum = 0;

    for (int c = 0; c < a->dim; c++)
        sum += a->proj[c] * h[c];
    for (int k = 0; k < a->embed->cols; k++)
        sum += a->proj[a->dim + k] * prev[k];
    return sum;
}

/* A row that proposes nothing. */
static void markov_none(const struct markov_args *a, int r, struct candidate *cand)
{
    for (int c = 0; c < a->ranks * a->k; c++)
        cand[c] = (struct candidate){ .z = -INFINITY, .id = -1 };
    a->draft[r] = -1;
    a->conf[r] = NAN;
}

/* Draft of row r behind the token `before`, which is -1 when the chain is broken already. */
static void markov_row(const struct markov_args *a, int r, int pos, int32_t before)
{
    float prev[MARKOV_RANK_MAX];
    struct candidate cand[MARKOV_CANDS_MAX];

    if (before >= 0)
        ref_table_row(a->embed, before, prev);
    if (before < 0 || refine(a, r, prev, cand) <= 0) {
        markov_none(a, r, cand);
    } else {
        a->conf[r] = confidence(a, r, prev);
        a->draft[r] = markov_pick(a, r, pos, cand);
    }
    if (a->z)
        memcpy(a->z + (size_t)r * (size_t)(a->ranks * a->k), cand,
               (size_t)(a->ranks * a->k) * sizeof(*cand));
}

void ref_markov(struct queue *q, const struct markov_args *a)
{
    if (q->err)
        return;
    if (a->ranks < 1 || a->ranks > RANKS_MAX || a->k < 1 || a->k > TOPK_MAX || a->block < 1 ||
        a->rows % a->block != 0 || a->embed->cols > MARKOV_RANK_MAX ||
        a->head->cols != a->embed->cols) {
        queue_fail(q, -EINVAL,
                   "markov: %d rows in blocks of %d, %d ranks of %d candidates, rank %d", a->rows,
                   a->block, a->ranks, a->k, a->embed->cols);
        return;
    }
    for (int first = 0; first < a->rows; first += a->block) {
        int32_t before = a->info[first].tok;

        for (int i = 0; i < a->block; i++) {
            markov_row(a, first + i, a->info[first].pos + 1 + i, before);
            before = a->draft[first + i];
        }
    }
}
