/* walk.c turns what a family says about a weight into struct weight: its name, its shape, its
 * share. What is done with it is the visitor's business.
 */
#include "src/model/walk.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "src/base/log.h"

void share_of(int64_t blocks, int rank, int ranks, int64_t *first, int64_t *count)
{
    int64_t each = blocks / ranks, more = blocks % ranks;

    assert(blocks >= 0 && rank >= 0 && rank < ranks);
    *first = rank * each + (rank < more ? rank : more);
    *count = each + (rank < more);
}

void share_width(int64_t n, int unit, int rank, int ranks, int64_t *first, int64_t *count)
{
    int64_t step = unit > 1 ? unit : 1;

    share_of((n + step - 1) / step, rank, ranks, first, count);
    *count = (*first + *count) * step;
    *first *= step;
    *first = *first < n ? *first : n;
    *count = (*count < n ? *count : n) - *first;
}

void weight_local(const struct weight *d, int64_t *rows, int64_t *cols)
{
    *rows = d->shard == SHARD_ROWS ? d->count : d->rows;
    *cols = d->shard == SHARD_COLS ? d->count : d->cols;
    if (d->kind == WEIGHT_ROWS) {
        *rows = 0;
        for (int64_t c = d->first; c < d->first + d->count; c++)
            *rows += d->prime[c];
    }
}

int walk_parts(struct walk *w, const struct walk_part *parts, int n_parts)
{
    for (int i = 0; i < n_parts && w->err == 0; i++)
        parts[i].weights(parts[i].object, w);
    return w->err;
}

/* Cut `n` of the sharded dimension, for WEIGHT_ROWS its hash columns. */
static int cut(const struct walk *w, struct weight *d, int64_t n)
{
    if (d->unit < 1 || n % d->unit != 0)
        return fail(-EINVAL, "%s: %lld %s cannot be cut in units of %d", d->name, (long long)n,
                    d->kind == WEIGHT_ROWS   ? "hash columns"
                    : d->shard == SHARD_COLS ? "columns"
                                             : "rows",
                    d->unit);
    if (d->kind == WEIGHT_MAT && d->unit == 1) {
        share_width(n, w->width_unit, w->rank, w->ranks, &d->first, &d->count);
        return 0;
    }
    share_of(n / d->unit, w->rank, w->ranks, &d->first, &d->count);
    d->first *= d->unit;
    d->count *= d->unit;
    return 0;
}

/* owner: who holds all of a sharded weight, -1 if it is cut. */
static int visit(struct walk *w, struct weight *d, int owner, void *target, const char *fmt,
                 va_list ap)
{
    int n = vsnprintf(d->name, sizeof(d->name), fmt, ap), r;

    if (n <= 0 || n >= (int)sizeof(d->name))
        return fail(-ENAMETOOLONG, "%s...: name of a weight has %d bytes, 1 to %zu are possible",
                    n > 0 ? d->name : "", n, sizeof(d->name) - 1);
    if (d->rows < 1 || d->cols < 1)
        return fail(-EINVAL, "%s: shape [%lld, %lld]", d->name, (long long)d->rows,
                    (long long)d->cols);
    if (d->kind == WEIGHT_ROWS)
        r = cut(w, d, d->columns);
    else if (owner >= 0) {
        d->count = owner != w->rank ? 0 : d->shard == SHARD_ROWS ? d->rows : d->cols;
        r = 0;
    } else if (d->shard != SHARD_NONE)
        r = cut(w, d, d->shard == SHARD_ROWS ? d->rows : d->cols);
    else {
        d->count = d->rows;
        r = 0;
    }
    return r < 0 ? r : w->visit(w, d, target);
}

void walk_mat(struct walk *w, struct mat *m, int rows, int cols, enum shard shard, int unit,
              const char *fmt, ...)
{
    struct weight d = { .kind = WEIGHT_MAT, .rows = rows, .cols = cols, .shard = shard };
    va_list ap;

    if (w->err)
        return;
    d.unit = shard == SHARD_NONE ? 1 : unit;
    va_start(ap, fmt);
    w->err = visit(w, &d, -1, m, fmt, ap);
    va_end(ap);
}

/* The rank whose share of n things has thing i. */
static int owner_of(int64_t i, int64_t n, int ranks)
{
    int64_t first, count;
    int rank = 0;

    do
        share_of(n, rank++, ranks, &first, &count);
    while (i >= first + count);
    return rank - 1;
}

void walk_expert(struct walk *w, struct mat *m, int rows, int cols, enum shard shard, int expert,
                 int experts, const char *fmt, ...)
{
    struct weight d = { .kind = WEIGHT_MAT, .rows = rows, .cols = cols, .shard = shard, .unit = 1 };
    va_list ap;

    if (w->err)
        return;
    assert(shard != SHARD_NONE && expert >= 0 && expert < experts);
    va_start(ap, fmt);
    w->err = visit(w, &d, w->whole_experts ? owner_of(expert, experts, w->ranks) : -1, m, fmt, ap);
    va_end(ap);
}

void walk_table(struct walk *w, struct table *t, int rows, int cols, enum shard shard,
                const char *fmt, ...)
{
    struct weight d = {
        .kind = WEIGHT_TABLE, .rows = rows, .cols = cols, .shard = shard, .unit = 1
    };
    va_list ap;

    if (w->err)
        return;
    va_start(ap, fmt);
    w->err = visit(w, &d, -1, t, fmt, ap);
    va_end(ap);
}

void walk_vec(struct walk *w, const float **v, int n, enum shard shard, int unit, const char *fmt,
              ...)
{
    struct weight d = { .kind = WEIGHT_VEC, .rows = n, .cols = 1, .shard = shard };
    va_list ap;

    if (w->err)
        return;
    assert(shard != SHARD_COLS);
    d.unit = shard == SHARD_NONE ? 1 : unit;
    va_start(ap, fmt);
    w->err = visit(w, &d, -1, (void *)v, fmt, ap);
    va_end(ap);
}

void walk_rows(struct walk *w, struct row_table *t, const int64_t *prime, int columns, int cols,
               const char *fmt, ...)
{
    struct weight d = { .kind = WEIGHT_ROWS, .cols = cols, .shard = SHARD_ROWS, .unit = 1 };
    va_list ap;

    if (w->err)
        return;
    d.columns = columns;
    d.prime = prime;
    for (int i = 0; i < columns && d.rows >= 0; i++)
        if (prime[i] < 1 || __builtin_add_overflow(d.rows, prime[i], &d.rows))
            d.rows = -1; /* refused by name below, like every other size below 1 */
    va_start(ap, fmt);
    w->err = visit(w, &d, -1, t, fmt, ap);
    va_end(ap);
}
