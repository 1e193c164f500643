/* stored_exl3.c owns the putting together of EXL3 groups: codebook, width, scales, slices, and the
 * rows of n-gram tables.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "kernels/formats/exl3.h"
#include "src/base/log.h"
#include "src/model/stored_parts.h"

#define MCG_MARKER 0xcbac1fedu
#define MUL1_MARKER 0x83dcd12du

static int read_codebook(struct group *g, enum codebook *out)
{
    char name[TENSOR_NAME_MAX + 32];
    bool mcg = g->have & BIT(TAIL_MCG), mul1 = g->have & BIT(TAIL_MUL1);
    enum tail tail = mcg ? TAIL_MCG : TAIL_MUL1;
    uint32_t want = mcg ? MCG_MARKER : MUL1_MARKER, is;
    int r;

    *out = CODEBOOK_3INST;
    if (!mcg && !mul1)
        return 0;
    if (mcg && mul1)
        return fail(-EINVAL, "%s: tensors %s{mcg, mul1}: two codebooks in one group",
                    g->t[TAIL_MCG].file, g->stem);
    r = group_read_number(g, tail, "I32", &is);
    if (r < 0)
        return r;
    if (is != want)
        return fail(-EINVAL, "%s: tensor %s: marker 0x%08X, want 0x%08X", g->t[tail].file,
                    group_name(g, tail, name, sizeof(name)), is, want);
    *out = mcg ? CODEBOOK_MCG : CODEBOOK_MUL1;
    return 0;
}

/* One side's scales: f16 numbers, or packed signs with magnitude 1. */
static int read_side(struct group *g, enum tail full, enum tail packed, int64_t n,
                     struct stored_tensor *out, bool *signs)
{
    enum tail tail = g->have & BIT(packed) ? packed : full;
    int64_t words = tail == packed ? n / 16 : n;
    char want[64], a[TENSOR_NAME_MAX + 32], b[TENSOR_NAME_MAX + 32];

    group_name(g, full, a, sizeof(a));
    group_name(g, packed, b, sizeof(b));
    if ((g->have & (BIT(full) | BIT(packed))) == 0)
        return fail(-EINVAL, "%s: tensor %s: neither %s nor %s is there", g->t[TAIL_TRELLIS].file,
                    g->stem, a, b);
    if ((g->have & BIT(full)) && (g->have & BIT(packed)))
        return fail(-EINVAL, "%s: tensor %s: %s is there too", g->t[full].file, a, b);
    snprintf(want, sizeof(want), "%s [%lld]", tail == packed ? "I16" : "F16", (long long)words);
    if (strcmp(g->t[tail].type, tail == packed ? "I16" : "F16") != 0 || g->t[tail].rank != 1 ||
        g->t[tail].shape[0] != words)
        return group_refuse(g, tail, want);
    *signs = tail == packed;
    group_take(g, tail, out);
    return 0;
}

static int read_bias(struct group *g, int64_t n, struct stored *out, struct stored_slice *s)
{
    char want[64];

    if (!(g->have & BIT(TAIL_BIAS)))
        return 0;
    snprintf(want, sizeof(want), "F16 [%lld]", (long long)n);
    if (strcmp(g->t[TAIL_BIAS].type, "F16") != 0 || g->t[TAIL_BIAS].rank != 1 ||
        g->t[TAIL_BIAS].shape[0] != n)
        return group_refuse(g, TAIL_BIAS, want);
    out->q.has_bias = 1;
    group_take(g, TAIL_BIAS, &s->bias);
    return 0;
}

/* One group into slice s; want_rows is what it must hold at least. */
static int read_matrix(struct group *g, int64_t want_rows, struct stored *out,
                       struct stored_slice *s)
{
    const struct tensor *t = &g->t[TAIL_TRELLIS];
    char want[160], name[TENSOR_NAME_MAX + 32];
    enum codebook book;
    int r;

    snprintf(want, sizeof(want),
             "I16 [K / 16, N / 16, 16 bits], K and N multiples of %d and at least %lld and %lld",
             EXL3_BLOCK, (long long)g->cols, (long long)want_rows);
    if (strcmp(t->type, "I16") != 0 || t->rank != 3 || t->shape[0] > INT_MAX / 16 ||
        t->shape[1] > INT_MAX / 16 || t->shape[0] % 8 != 0 || t->shape[1] % 8 != 0 ||
        t->shape[0] * 16 < g->cols || t->shape[1] * 16 < want_rows)
        return group_refuse(g, TAIL_TRELLIS, want);
    r = read_codebook(g, &book);
    if (r < 0)
        return r;
    group_name(g, TAIL_TRELLIS, name, sizeof(name));
    if (t->shape[2] > EXL3_WORDS_MAX * 2 || !exl3_width_ok(book, t->shape[2]))
        return fail(-EINVAL,
                    "%s: tensor %s: %lld words a tile is no width of this codebook: 16 to 128 by "
                    "16, with mul1 also 24, 40, 56",
                    t->file, name, (long long)t->shape[2]);
    if (g->have & BIT(TAIL_HEAD_BIAS))
        return group_refuse(g, TAIL_HEAD_BIAS, "none beside a matrix");
    out->k = t->shape[0] * 16;
    out->n = t->shape[1] * 16;
    out->q.codebook = (uint8_t)book;
    out->q.bits2 = (uint8_t)(t->shape[2] / 8);
    group_take(g, TAIL_TRELLIS, &s->codes);
    r = read_side(g, TAIL_SUH, TAIL_SU, out->k, &s->suh, &s->suh_signs);
    if (r == 0)
        r = read_side(g, TAIL_SVH, TAIL_SV, out->n, &s->svh, &s->svh_signs);
    return r < 0 ? r : read_bias(g, out->n, out, s);
}

/* ---- n-gram rows ------------------------------------------------------------------------- */

/* Bits of a value of rows of so many words; 0 if there are none of these. */
static int ngram_bits(const struct tensor *t)
{
    for (int bits = NGRAM_BITS2_MIN / 2; bits <= NGRAM_BITS2_MAX / 2; bits++)
        if (strcmp(t->type, "I16") == 0 && t->rank == 2 && t->shape[1] == ngram_row_words(bits))
            return bits;
    return 0;
}

static int ngram_done(struct group *g, struct stored *out, int bits)
{
    const struct tensor *b = &g->t[TAIL_HEAD_BIAS];

    if (strcmp(b->type, "F16") != 0 || b->rank != 2 || b->shape[1] != NGRAM_COLS)
        return group_refuse(g, TAIL_HEAD_BIAS, "F16 [heads, 160]");
    out->dtype = DTYPE_EXL3;
    out->q.codebook = CODEBOOK_MUL1;
    out->q.bits2 = (uint8_t)(2 * bits);
    group_take(g, TAIL_HEAD_BIAS, &out->slice[0].bias);
    return 0;
}

static int read_ngram(struct group *g, struct stored *out)
{
    const struct tensor *t = &g->t[TAIL_TRELLIS];
    int bits = ngram_bits(t);
    char want[128];

    snprintf(want, sizeof(want), "I16 [%lld, 41, 51 or 61] for rows of %d values",
             (long long)g->rows, NGRAM_COLS);
    if (bits == 0 || t->shape[0] != g->rows || g->cols != NGRAM_COLS)
        return group_refuse(g, TAIL_TRELLIS, want);
    if ((g->have & ~BIT(TAIL_BIAS)) != (BIT(TAIL_TRELLIS) | BIT(TAIL_HEAD_BIAS)))
        return fail(-EINVAL, "%s: tensor %strellis: rows of a lookup table need head_bias alone",
                    t->file, g->stem);
    group_take(g, TAIL_TRELLIS, &out->slice[0].codes);
    return ngram_done(g, out, bits);
}

/* The rows of shard 0, then those of shard 1, and so on. */
int read_ngram_shards(struct group *g, struct stored *out)
{
    int bits = ngram_bits(&g->t[TAIL_SHARD]), n = 0, r;
    int64_t rows = 0;

    if (g->as != STORED_ROWS || g->cols != NGRAM_COLS || bits == 0)
        return group_refuse(g, TAIL_SHARD,
                            "I16 [rows, 41, 51 or 61] of a lookup table of 160 values");
    for (;; n++) {
        struct stored_tensor t;

        if (snprintf(t.name, sizeof(t.name), "%sshard_%d.trellis", g->stem, n) >=
            (int)sizeof(t.name))
            return fail(-EINVAL, "tensor %s: name too long", g->stem);
        r = g->s->ops->find(g->s, t.name, g->rows, g->cols, &t.t);
        if (r != 0)
            break;
        if (n == STORED_SLICES_MAX)
            return fail(-EINVAL, "tensor %s: more than %d shards", g->stem, STORED_SLICES_MAX);
        if (ngram_bits(&t.t) != bits)
            return fail(-EINVAL, "%s: tensor %s: other rows than those of shard 0", t.t.file,
                        t.name);
        rows += t.t.shape[0];
        out->slice[n].codes = t;
    }
    if (r < 0)
        return r;
    if (rows != g->rows)
        return fail(-EINVAL, "%s: tensors %sshard: %d of %lld rows in all, want %lld",
                    out->slice[0].codes.t.file, g->stem, n, (long long)rows, (long long)g->rows);
    out->slices = n;
    return ngram_done(g, out, bits);
}

int read_exl3(struct group *g, struct stored *out)
{
    if (g->as == STORED_ROWS)
        return read_ngram(g, out);
    out->dtype = DTYPE_EXL3;
    return read_matrix(g, g->rows, out, &out->slice[0]);
}

/* ---- slices ------------------------------------------------------------------------------ */

/* Look up the parts of slice i; how many were found. */
static int gather_slice(struct group *g, const char *module, int i)
{
    static const enum tail tails[] = { TAIL_TRELLIS, TAIL_SUH, TAIL_SVH,  TAIL_SU,
                                       TAIL_SV,      TAIL_MCG, TAIL_MUL1, TAIL_BIAS };
    int n = 0;

    g->have = 0;
    if (snprintf(g->stem, sizeof(g->stem), "%sslice.%d.", module, i) >= (int)sizeof(g->stem))
        return fail(-EINVAL, "tensor %s: name too long", module);
    for (size_t j = 0; j < sizeof(tails) / sizeof(tails[0]); j++) {
        int r = group_find(g, tails[j]);

        if (r < 0)
            return r;
        n += r == 0;
    }
    return n;
}

/* What one kernel treats alike must be alike: width, codebook, sizes, and a bias or none. */
static int check_alike(const struct group *g, const struct stored *first, const struct stored *w)
{
    if (first->q.bits2 == w->q.bits2 && first->q.codebook == w->q.codebook && first->n == w->n &&
        first->k == w->k && first->q.has_bias == w->q.has_bias)
        return 0;
    return fail(-EINVAL,
                "%s: tensor %strellis: codebook, width, shape or bias differ from slice 0's",
                g->t[TAIL_TRELLIS].file, g->stem);
}

int read_exl3_slices(struct group *g, struct stored *out)
{
    char module[sizeof(g->stem)];
    struct stored one;
    int n = 0, parts;

    if (g->as == STORED_ROWS)
        return group_refuse(g, TAIL_SLICE, "no slices of a lookup table");
    strcpy(module, g->stem);
    out->dtype = DTYPE_EXL3;
    while ((parts = gather_slice(g, module, n)) > 0) {
        int r;

        one = (struct stored){ .slices = 1 };
        if (n == STORED_SLICES_MAX)
            return fail(-EINVAL, "tensor %s: more than %d slices", module, STORED_SLICES_MAX);
        if (!(g->have & BIT(TAIL_TRELLIS)))
            return fail(-EINVAL, "tensor %strellis is not there, other parts of it are", g->stem);
        r = read_matrix(g, 1, &one, &out->slice[n]);
        if (r == 0 && n == 0) {
            out->q = one.q;
            out->n = one.n;
            out->k = one.k;
        }
        if (r == 0)
            r = check_alike(g, out, &one);
        if (r < 0)
            return r;
        n++;
    }
    if (parts < 0)
        return parts;
    if (out->n * n != g->rows)
        return fail(-EINVAL, "%s: tensors %sslice: %d slices of %lld rows, want %lld in all",
                    out->slice[0].codes.t.file, module, n, (long long)out->n, (long long)g->rows);
    out->slices = n;
    out->q.slices = n > 1 ? n : 0;
    return 0;
}
