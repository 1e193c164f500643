/* state.c owns what is written to the state of a slot, and the compressor that reads its raw
 * rows. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/lists.h"
#include "kernels/ref/codec.h"
#include "kernels/ref/exp.h"
#include "kernels/ref/ref.h"

#define PIECE 512 /* values at a time, a multiple of every codec's block */

static void requant_rows(const void *args, int lo, int hi, int worker)
{
    const struct requant_args *a = args;

    for (int r = lo; r < hi; r++) {
        float *x = a->x + (size_t)r * (size_t)a->cols;

        for (int c = 0; c < a->cols; c += PIECE) {
            int n = a->cols - c < PIECE ? a->cols - c : PIECE;
            unsigned char code[PIECE * 2];

            codec_encode(a->codec, x + c, n, code);
            codec_decode(a->codec, code, n, x + c);
        }
    }
}

void ref_requant(struct queue *q, const struct requant_args *a)
{
    if (q->err || a->codec == CODEC_F32)
        return;
    if (a->cols % codec_block(a->codec) != 0) {
        queue_fail(q, -EINVAL, "requant: %d values, want a multiple of %d", a->cols,
                   codec_block(a->codec));
        return;
    }
    ref_run(q, a->rows, 16, requant_rows, a);
}

void ref_row_put(struct queue *q, const struct row_put_args *a)
{
    const struct state_view *v = &a->view;
    int ratio = a->ratio > 1 ? a->ratio : 1;
    int width = a->width ? a->width : v->cols;
    size_t ldx = (size_t)(a->ldx ? a->ldx : v->cols);

    if (q->err)
        return;
    if (width % codec_block(v->codec) != 0 || a->col0 < 0 || a->col0 + width > v->cols ||
        (v->codec != CODEC_F32 && width != v->cols)) {
        queue_fail(q, -EINVAL, "row_put: values %d .. %d of a row of %d in blocks of %d", a->col0,
                   a->col0 + width - 1, v->cols, codec_block(v->codec));
        return;
    }
    for (int r = 0; r < a->rows; r++) {
        const struct row_info *i = &a->info[r];
        unsigned char *row;

        if ((i->pos + 1) % ratio != 0)
            continue;
        row = state_row(v, i->slot, i->pos / ratio);
        if (v->codec == CODEC_F32)
            row += (size_t)a->col0 * sizeof(float);
        codec_encode(v->codec, a->x + (size_t)r * ldx, width, row);
    }
}

static void row_keep(struct queue *q, const struct row_keep *a)
{
    if (a->w)
        ref_rmsnorm(q, &(struct rmsnorm_args){ .x = a->x,
                                               .w = a->w,
                                               .y = a->x,
                                               .rows = a->rows,
                                               .cols = a->view.cols,
                                               .eps = a->eps,
                                               .round = a->round });
    if (!a->view.base)
        return;
    ref_rope(q, &(struct rope_args){ .x = a->x,
                                     .freq = a->freq,
                                     .info = a->info,
                                     .rows = a->rows,
                                     .heads = 1,
                                     .cols = a->view.cols,
                                     .dims = a->dims,
                                     .ratio = a->ratio,
                                     .round = a->round });
    ref_row_put(
        q, &(struct row_put_args){
               .x = a->x, .view = a->view, .info = a->info, .rows = a->rows, .ratio = a->ratio });
}

void ref_row_keeps(struct queue *q, const struct row_keeps_args *a)
{
    if (row_keeps_refused(q, a))
        return;
    for (int i = 0; i < a->n; i++)
        row_keep(q, &a->of[i]);
}

/* Channels c0 .. c0 + n - 1 of the group that ends at row r. */
SIMD static void pool_piece(const struct pool_args *a, int r, int c0, int n, float *y)
{
    const struct row_info *info = &a->info[r];
    int begin = info->pos - (a->ratio - 1);
    float most[PIECE], total[PIECE] = { 0 }, sum[PIECE] = { 0 };

    for (int c = 0; c < n; c++)
        most[c] = -INFINITY;
    for (int i = 0; i < a->ratio; i++) {
        const float *b = state_f32(&a->raw, info->slot, begin + i) + a->cols + c0;

        for (int c = 0; c < n; c++)
            most[c] = b[c] > most[c] ? b[c] : most[c];
    }
    for (int i = 0; i < a->ratio; i++) {
        const float *b = state_f32(&a->raw, info->slot, begin + i) + a->cols + c0;

        for (int c = 0; c < n; c++)
            total[c] += exp_f32(b[c] - most[c]);
    }
    for (int i = 0; i < a->ratio; i++) {
        const float *v = state_f32(&a->raw, info->slot, begin + i) + c0, *b = v + a->cols;

        for (int c = 0; c < n; c++)
            sum[c] += exp_f32(b[c] - most[c]) / total[c] * v[c];
    }
    for (int c = 0; c < n; c++)
        y[c] = ref_round(sum[c], a->round);
}

void ref_row_get(struct queue *q, const struct row_get_args *a)
{
    size_t cols = (size_t)a->view.cols;

    if (q->err)
        return;
    if (a->view.codec != CODEC_F32) {
        queue_fail(q, -EINVAL, "row_get: rows of codec %d", a->view.codec);
        return;
    }
    for (int r = 0; r < a->rows; r++) {
        int pos = a->info[r].pos + a->offset;
        float *y = a->y + (size_t)r * cols;

        if (pos < 0)
            memset(y, 0, cols * sizeof(*y));
        else
            memcpy(y, state_f32(&a->view, a->info[r].slot, pos), cols * sizeof(*y));
    }
}

static void pool_row(const struct pool_args *a, int r)
{
    float *y = a->y + (size_t)r * (size_t)a->cols;

    if ((a->info[r].pos + 1) % a->ratio != 0) {
        memset(y, 0, (size_t)a->cols * sizeof(*y));
        return;
    }
    for (int c = 0; c < a->cols; c += PIECE)
        pool_piece(a, r, c, a->cols - c < PIECE ? a->cols - c : PIECE, y + c);
}

static void pool_rows(const void *args, int lo, int hi, int worker)
{
    for (int r = lo; r < hi; r++)
        pool_row(args, r);
}

void ref_pool(struct queue *q, const struct pool_args *a)
{
    if (q->err)
        return;
    if (a->ratio < 1 || a->raw.cap < a->ratio || a->raw.codec != CODEC_F32) {
        queue_fail(q, -EINVAL, "pool: groups of %d from a ring of %d", a->ratio, a->raw.cap);
        return;
    }
    ref_run(q, a->rows, 8, pool_rows, a);
}
