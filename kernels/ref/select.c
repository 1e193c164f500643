/* select.c owns the indexer: scores of compressed entries, the exact best of them, and candidate
 * blocks.
 *
 * A row's scores become order words in its worker's scratch: larger word, larger score. The cut is
 * found by counting words digit by digit, so no list is sorted or copied. */
#include <errno.h>
#include <string.h>

#include "kernels/ref/codec.h"
#include "kernels/ref/dot.h"
#include "kernels/ref/order.h"
#include "kernels/ref/ref.h"

/* The entries that compete in a row, ascending: all of 0 .. n - 1, or those of the candidate
 * blocks. */
struct field {
    const struct select_args *a;
    const int32_t *cand; /* NULL: all */
    int row, slot;
    int n;    /* visible entries */
    int size; /* competing entries */
};

static int entry_of(const struct field *f, int i)
{
    return f->cand ? f->cand[i / f->a->block] * f->a->block + i % f->a->block : i;
}

static struct field field_of(const struct select_args *a, int r)
{
    struct field f = { .a = a, .row = r, .slot = a->info[r].slot };

    f.n = (a->info[r].pos + 1) / (a->ratio > 1 ? a->ratio : 1);
    f.size = f.n;
    if (a->cand_in) {
        f.cand = a->cand_in + (size_t)r * (size_t)a->blocks;
        f.size = 0;
        for (int b = 0; b < a->blocks && f.cand[b] >= 0; b++) {
            int left = f.n - f.cand[b] * a->block;

            f.size += left < a->block ? (left > 0 ? left : 0) : a->block;
        }
    }
    return f;
}

/* Scores of competing entries first .. first + n - 1, n <= MAT_TILE. */
static void score_tile(const struct field *f, int first, int n, uint32_t *word)
{
    const struct select_args *a = f->a;
    const float *q = a->q + (size_t)f->row * (size_t)a->heads * (size_t)a->dim;
    const float *wt = a->wt + (size_t)f->row * (size_t)a->heads;
    const unsigned char *key[MAT_TILE];
    float tile[MAT_TILE * DECODE_COLS];
    float dot[DOT_ROWS][MAT_TILE], sum[MAT_TILE] = { 0 };
    struct dot_tiles w = { tile, DTYPE_F32, 0, MAT_TILE, a->dim };

    for (int j = 0; j < n; j++)
        key[j] = state_row(&a->keys, f->slot, entry_of(f, first + j));
    codec_decode_tile(a->keys.codec, key, n, a->dim, tile);
    for (int h = 0; h < a->heads; h += DOT_ROWS) {
        int heads = a->heads - h < DOT_ROWS ? a->heads - h : DOT_ROWS;
        const float *x[DOT_ROWS];

        for (int i = 0; i < heads; i++)
            x[i] = q + (size_t)(h + i) * (size_t)a->dim;
        dot_rows(&w, 0, 1, x, heads, dot[0], MAT_TILE, false);
        for (int i = 0; i < heads; i++)
            for (int j = 0; j < MAT_TILE; j++)
                sum[j] += wt[h + i] * (dot[i][j] < 0 ? 0 : dot[i][j]);
    }
    for (int j = 0; j < n; j++)
        word[first + j] = order_word(a->scale * sum[j]);
}

/* Write the entries of the k largest words in ascending order, -1 behind them up to `room`. */
static void take_best(const struct field *f, const uint32_t *word, int k, int32_t *out, int room)
{
    struct order_cut cut = order_cut(word, f->size, k);
    int at = 0;

    for (int i = 0; i < f->size && at < k; i++) {
        if (word[i] > cut.word || (word[i] == cut.word && cut.ties-- > 0))
            out[at++] = entry_of(f, i);
    }
    for (; at < room; at++)
        out[at] = -1;
}

static void take_first(int n, int32_t *out, int room)
{
    for (int i = 0; i < room; i++)
        out[i] = i < n ? i : -1;
}

/* Blocks of a fully scored row: the newest always, of the others those with the largest word. The
 * words are consumed: block b's largest replaces word b. */
static void take_blocks(const struct field *f, uint32_t *word, int32_t *out)
{
    const struct select_args *a = f->a;
    int newest = (f->n - 1) / a->block;
    struct field blocks = { .a = a, .size = newest };

    for (int b = 0; b < newest; b++) {
        uint32_t most = word[b * a->block];

        for (int i = 1; i < a->block; i++)
            most = word[b * a->block + i] > most ? word[b * a->block + i] : most;
        word[b] = most;
    }
    take_best(&blocks, word, a->blocks - 1, out, a->blocks - 1);
    out[a->blocks - 1] = newest;
}

static void select_row(const struct select_args *a, int r, uint32_t *word)
{
    struct field f = field_of(a, r);
    int32_t *sel = a->sel + (size_t)r * (size_t)a->topk;
    int32_t *out = a->cand_out ? a->cand_out + (size_t)r * (size_t)a->blocks : NULL;
    int blocks = out ? (f.n + a->block - 1) / a->block : 0;

    if (f.n > a->topk || blocks > a->blocks) {
        for (int i = 0; i < f.size; i += MAT_TILE)
            score_tile(&f, i, f.size - i < MAT_TILE ? f.size - i : MAT_TILE, word);
    }
    if (f.n <= a->topk)
        take_first(f.n, sel, a->topk);
    else
        take_best(&f, word, a->topk < f.size ? a->topk : f.size, sel, a->topk);
    if (blocks > a->blocks)
        take_blocks(&f, word, out);
    else if (out)
        take_first(blocks, out, a->blocks);
}

static void select_rows(const void *args, int lo, int hi, int worker)
{
    const struct select_args *a = args;

    for (int r = lo; r < hi; r++)
        select_row(a, r, (uint32_t *)a->scratch + (size_t)worker * (size_t)a->keys.cap);
}

void ref_select(struct queue *q, const struct select_args *a)
{
    if (q->err)
        return;
    if (a->dim % MAT_TILE != 0 || a->dim > DECODE_COLS || a->keys.cols != a->dim ||
        a->dim % codec_block(a->keys.codec) != 0) {
        queue_fail(q, -EINVAL, "select: keys of %d values for queries of %d, want a multiple of %d",
                   a->keys.cols, a->dim, MAT_TILE);
        return;
    }
    if ((a->cand_in || a->cand_out) && (a->blocks < 1 || a->block < 1)) {
        queue_fail(q, -EINVAL, "select: %d candidate blocks of %d", a->blocks, a->block);
        return;
    }
    if (a->cand_in && a->cand_out) {
        queue_fail(q, -EINVAL, "select: candidates both read and written");
        return;
    }
    ref_run(q, a->rows, 1, select_rows, a);
}
