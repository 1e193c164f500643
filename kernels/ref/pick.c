/* pick.c owns choices: candidates of a row, and the token of a row from what the ranks gathered. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/order.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/sample.h"

#define SURE 1e-9 /* sums of shares that come closer to top-p are left to the whole row */
#define FEW 64    /* candidates that are cheaper kept in order than sorted */

/* ---- candidates ------------------------------------------------------------------------------ */

/* A few: each goes in front of those it beats. Ids come ascending, so among equals the lower one
 * stays. */
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

/* ---- from all logits ------------------------------------------------------------------------- */

struct ballots {
    const struct choose_args *a;
    int vocab;
    size_t stride; /* in bytes */
    int k;
};

static int32_t choose_whole(const struct ballots *j, int r, const struct sampler *s, void *scratch)
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
        pair[b.n++] = ballot_pair(z[id], id);
    }
    if (b.n == 0)
        return -1;
    if (sampler_weighs(s)) {
        b.whole = 0;
        for (int c = 0; c < j->vocab; c += MASS_CHUNK) {
            int len = j->vocab - c < MASS_CHUNK ? j->vocab - c : MASS_CHUNK;
            struct chunk_mass m = chunk_weigh(z + c, len, sampler_heat(s));

            b.whole += chunk_share(&m, b.most, sampler_heat(s));
        }
    }
    return ballot_sample(&b);
}

/* ---- from candidates ------------------------------------------------------------------------- */

static const struct candidate *offered(const struct ballots *j, int r, int rank)
{
    const char *of = (const char *)j->a->best + (size_t)rank * j->stride;

    return (const struct candidate *)of + (size_t)r * (size_t)j->k;
}

static int32_t choose_greedy(const struct ballots *j, int r)
{
    struct candidate top = { .id = -1 };

    for (int i = 0; i < j->a->ranks; i++) {
        struct candidate c = *offered(j, r, i);

        if (c.z != c.z)
            return -1;
        if (c.id >= 0 && (top.id < 0 || c.z > top.z || (c.z == top.z && c.id < top.id)))
            top = c;
    }
    return top.id;
}

/* Mass of the vocabulary, and the largest logit in it; NaN if nothing was weighed. */
static double gathered_mass(const struct ballots *j, int r, float most, double heat, float *peak)
{
    const struct choose_args *a = j->a;
    double whole = 0;

    *peak = -INFINITY;
    if (!a->mass)
        return NAN;
    for (int i = 0; i < a->ranks; i++) {
        const char *of = (const char *)a->mass + (size_t)i * j->stride;
        const struct chunk_mass *m = (const struct chunk_mass *)of + (size_t)r * (size_t)a->ldm;

        for (int c = 0; c < mass_chunks(a->width[i]); c++) {
            *peak = m[c].peak > *peak ? m[c].peak : *peak;
            whole += chunk_share(&m[c], most, heat);
        }
    }
    return whole;
}

/* All candidates of a row as pairs. *bound becomes the first, in order, of the last candidates of
 * ranks that may have had more: up to it the pairs miss nothing. 0 if no rank can have had more.
 * errors   -1 a NaN, or nothing finite */
static int poll(const struct ballots *j, int r, int per_rank, struct ballot *b, uint64_t *bound)
{
    *bound = 0;
    for (int i = 0; i < j->a->ranks; i++) {
        const struct candidate *c = offered(j, r, i);
        int n = 0;

        if (c->z != c->z)
            return -1;
        for (; n < per_rank && c[n].id >= 0; n++) {
            b->most = c[n].z > b->most ? c[n].z : b->most;
            b->pair[b->n++] = ballot_pair(c[n].z, c[n].id);
        }
        if (n == j->k && n < j->a->width[i]) {
            uint64_t last = b->pair[b->n - 1];

            *bound = *bound && ballot_first(*bound, last) ? *bound : last;
        }
    }
    return b->n > 0 ? 0 : -1;
}

/* Top-p and min-p without top-k. A floor above the bound is sure whatever top-p says: what it
 * leaves is all at hand. */
static int32_t choose_prefix(const struct ballots *j, int r, struct ballot *b, uint64_t bound)
{
    int above = !bound || ballot_floor(b) > ballot_x(b, bound), n = b->n;
    uint64_t *pair = b->pair;
    double near;
    float peak;

    if (!sampler_has_top_p(b->s))
        return above ? ballot_draw(b, pair, n) : CHOICE_OPEN;
    b->whole = gathered_mass(j, r, b->most, sampler_heat(b->s), &peak);
    if (!(b->whole > 0 && b->whole < INFINITY) || peak != b->most)
        return CHOICE_OPEN;
    pair = order_sort(pair, b->tmp, n);
    n = ballot_nucleus(b, pair, n, &near);
    if (near <= SURE)
        return CHOICE_OPEN;
    if (!above && (!ballot_first(pair[n - 1], bound) || pair[n - 1] >> 32 == bound >> 32))
        return CHOICE_OPEN;
    return ballot_draw(b, pair, n);
}

static int32_t choose_offered(const struct ballots *j, int r, const struct sampler *s,
                              void *scratch)
{
    int plain = sampler_is_plain(s);
    uint64_t *pair = scratch, bound;
    struct ballot b = { .s = s,
                        .pos = (uint64_t)(j->a->info[r].pos + 1),
                        .pair = pair,
                        .tmp = pair + j->a->ranks * j->k,
                        .most = -INFINITY,
                        .whole = -1 };

    if (poll(j, r, plain ? 1 : j->k, &b, &bound) < 0)
        return -1;
    if (plain)
        return ballot_draw(&b, pair, b.n);
    if (s->top_k > 0)
        return !bound || s->top_k <= j->k ? ballot_sample(&b) : CHOICE_OPEN;
    return choose_prefix(j, r, &b, bound);
}

/* ---- choose ---------------------------------------------------------------------------------- */

static void choose_rows(const void *args, int lo, int hi, int worker)
{
    const struct ballots *j = args;
    const struct choose_args *a = j->a;
    char *scratch = (char *)a->scratch + (size_t)worker * choose_scratch((size_t)j->vocab);

    for (int r = lo; r < hi; r++) {
        const struct sampler *s = &a->sampler[a->info[r].slot];

        if (!sampler_draws(s))
            a->choice[r] = choose_greedy(j, r);
        else if (a->full)
            a->choice[r] = choose_whole(j, r, s, scratch);
        else
            a->choice[r] = choose_offered(j, r, s, scratch);
    }
}

void ref_choose(struct queue *q, const struct choose_args *a)
{
    struct ballots j = { .a = a, .k = a->k ? a->k : 1 };

    if (q->err)
        return;
    for (int i = 0; i < RANKS_MAX && i < a->ranks; i++)
        j.vocab += a->width[i];
    if (a->ranks < 1 || a->ranks > RANKS_MAX || a->k < 0 ||
        2 * sizeof(uint64_t) * (size_t)a->ranks * (size_t)j.k > choose_scratch((size_t)j.vocab)) {
        queue_fail(q, -EINVAL, "choose: %d ranks of %d candidates for a vocabulary of %d", a->ranks,
                   j.k, j.vocab);
        return;
    }
    j.stride = a->stride ? a->stride : (size_t)a->rows * (size_t)j.k * sizeof(struct candidate);
    ref_run(q, a->rows, 1, choose_rows, &j);
    for (int r = 0; r < a->rows; r++)
        if (a->choice[r] < 0 && a->choice[r] != CHOICE_OPEN) {
            queue_fail(q, -EBADMSG, "choose: no finite logits in slot %d row %d position %d",
                       (int)a->info[r].slot, r, (int)a->info[r].pos);
            return;
        }
}
