/* markov.c owns the drafter's chain: candidates of the ranks, refined by the token before. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/dot.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/sample.h"

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

/* Candidates of row r with the term of the token before; returns how many are finite, -1 for a
 * NaN. */
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
        if (n > 0 && a->head)
            markov_terms(a, id, n, prev, terms);
        for (int j = 0; j < n; j++) {
            out[at[j]].z += a->head ? terms[j] : 0;
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
        pair[b.n++] = ballot_pair(o.z, o.id);
    }
    b.most = top.z;
    return sampler_draws(s) ? ballot_sample(&b) : top.id;
}

static float confidence(const struct markov_args *a, int r, const float *prev)
{
    const float *h = a->h + (size_t)r * (size_t)a->dim;
    float sum = 0;

    if (!a->embed)
        return 0;
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

    if (before >= 0 && a->embed)
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
    int rank = a->embed ? a->embed->cols : 0;

    if (q->err)
        return;
    if (a->ranks < 1 || a->ranks > RANKS_MAX || a->k < 1 || a->k > TOPK_MAX || a->block < 1 ||
        a->rows % a->block != 0 || rank > MARKOV_RANK_MAX ||
        (a->head ? a->head->cols : 0) != rank) {
        queue_fail(q, -EINVAL,
                   "markov: %d rows in blocks of %d, %d ranks of %d candidates, rank %d", a->rows,
                   a->block, a->ranks, a->k, rank);
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
