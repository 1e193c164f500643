/* pack_stream.c owns the bytes of one weight on their way from a source into a pack: read in
 * blocks, laid out, hashed, written, forgotten. Nothing here is larger than a block, whatever the
 * size of the weight.
 */
#include <errno.h>
#include <string.h>

#include "kernels/cast.h"
#include "src/base/log.h"
#include "src/model/pack_file.h"
#include "src/model/source.h"

#define WIDE_BYTES (64 << 10) /* pieces of a row of at least this are read alone */

/* A rectangle of a stored matrix: the part of it that one block holds. */
struct rect {
    int64_t row, col;
    int64_t rows, cols;
};

static int feed_read(const struct pack_feed *f, uint64_t element, void *buf, uint64_t n)
{
    const struct stored_tensor *t = &f->stored->slice[0].codes;
    size_t each = dtype_bytes(t->t.dtype);

    return f->src->ops->read(f->src, t->name, &t->t, (f->stored->first_element + element) * each,
                             buf, (size_t)n * each);
}

/* Read a rectangle of a matrix with `cols` columns into buf, rows close together. Narrow pieces of
 * rows are cut out of whole rows, as many as fit: one read of all costs less than one for each.
 */
static int read_rect(const struct pack_feed *f, int64_t cols, const struct rect *c, char *buf,
                     void *staging)
{
    size_t each = dtype_bytes(f->stored->dtype), piece = (size_t)c->cols * each;
    int64_t fit = (int64_t)(PACK_BLOCK / ((size_t)cols * each));
    int r = 0;

    if (c->cols == cols)
        return feed_read(f, (uint64_t)(c->row * cols), buf, (uint64_t)(c->rows * cols));
    if (fit < 1 || piece >= WIDE_BYTES) {
        for (int64_t i = 0; i < c->rows && r == 0; i++)
            r = feed_read(f, (uint64_t)((c->row + i) * cols + c->col), buf + (size_t)i * piece,
                          (uint64_t)c->cols);
        return r;
    }
    for (int64_t i = 0; i < c->rows; i += fit) {
        int64_t n = c->rows - i < fit ? c->rows - i : fit;

        r = feed_read(f, (uint64_t)((c->row + i) * cols), staging, (uint64_t)(n * cols));
        if (r < 0)
            return r;
        for (int64_t j = 0; j < n; j++)
            memcpy(buf + (size_t)(i + j) * piece,
                   (const char *)staging + (size_t)(j * cols + c->col) * each, piece);
    }
    return 0;
}

/* One tile: rows (at most MAT_TILE) of cols values become columns of MAT_TILE values, zeros behind
 * the last row. Values are moved, not looked at.
 */
static void tile16(const uint16_t *in, int rows, int64_t cols, uint16_t *out)
{
    for (int64_t k = 0; k < cols; k++)
        for (int i = 0; i < MAT_TILE; i++)
            out[k * MAT_TILE + i] = i < rows ? in[i * cols + k] : 0;
}

static void tile32(const uint32_t *in, int rows, int64_t cols, uint32_t *out)
{
    for (int64_t k = 0; k < cols; k++)
        for (int i = 0; i < MAT_TILE; i++)
            out[k * MAT_TILE + i] = i < rows ? in[i * cols + k] : 0;
}

static int put_tiles(struct pack_out *o, size_t each, const struct rect *c)
{
    size_t tile = (size_t)c->cols * MAT_TILE * each;
    int64_t n = 0;

    for (int64_t i = 0; i < c->rows; i += MAT_TILE, n++) {
        int rows = c->rows - i < MAT_TILE ? (int)(c->rows - i) : MAT_TILE;
        const char *in = (const char *)o->in + (size_t)(i * c->cols) * each;
        char *out = (char *)o->out + (size_t)n * tile;

        if (each == 2)
            tile16((const uint16_t *)in, rows, c->cols, (uint16_t *)out);
        else
            tile32((const uint32_t *)in, rows, c->cols, (uint32_t *)out);
    }
    return pack_put(o, o->out, (size_t)n * tile);
}

/* share is the rank's rectangle; in the pack, tiles of so many rows follow each other, of one as
 * stored. A block is as many whole tiles as fit, or, of very long rows, as many columns of one
 * tile: both are contiguous there. */
static int stream_rows(struct pack_out *o, const struct pack_feed *f, int64_t cols,
                       const struct rect *share, int tile)
{
    size_t each = dtype_bytes(f->stored->dtype), column = (size_t)tile * each;
    int64_t wide = (int64_t)(PACK_BLOCK / column), tall = tile;

    if (wide > share->cols) {
        wide = share->cols;
        tall = (int64_t)(PACK_BLOCK / (column * (size_t)wide)) * tile;
    }
    for (int64_t i = 0; i < share->rows; i += tall)
        for (int64_t k = 0; k < share->cols; k += wide) {
            struct rect c = { .row = share->row + i,
                              .col = share->col + k,
                              .rows = share->rows - i < tall ? share->rows - i : tall,
                              .cols = share->cols - k < wide ? share->cols - k : wide };
            int r = read_rect(f, cols, &c, o->in, o->out);

            if (r == 0)
                r = tile > 1 ? put_tiles(o, each, &c)
                             : pack_put(o, o->in, (size_t)(c.rows * c.cols) * each);
            if (r < 0)
                return r;
        }
    return 0;
}

static int stream_vec(struct pack_out *o, const struct pack_feed *f, const struct rect *share)
{
    int64_t fit = (int64_t)(PACK_BLOCK / sizeof(float));

    for (int64_t i = 0; i < share->rows; i += fit) {
        int64_t n = share->rows - i < fit ? share->rows - i : fit;
        int r = feed_read(f, (uint64_t)(share->row + i), o->in, (uint64_t)n);

        if (r < 0)
            return r;
        f32_widen(f->stored->dtype, o->in, (size_t)n, o->out);
        r = pack_put(o, o->out, (size_t)n * sizeof(float));
        if (r < 0)
            return r;
    }
    return 0;
}

int pack_stream(struct pack_out *o, const struct pack_feed *feed, struct pack_weight *w)
{
    const struct weight *d = &w->d;
    struct rect share = { .rows = d->rows, .cols = d->cols };
    uint64_t begin = o->at;
    int r = 0;

    if (d->kind == WEIGHT_ROWS) {
        weight_local(d, &share.rows, &share.cols);
        for (int64_t c = 0; c < d->first; c++)
            share.row += d->prime[c];
    } else if (d->shard == SHARD_ROWS) {
        share.row = d->first;
        share.rows = d->count;
    } else if (d->shard == SHARD_COLS) {
        share.col = d->first;
        share.cols = d->count;
    }
    if (w->dtype > DTYPE_COUNT) {
        r = pack_quantised(o, feed, w);
    } else if (w->links > 0) {
        r = 0; /* plain rows that stay where they are */
    } else if (share.rows > 0 && share.cols > 0) {
        r = d->kind == WEIGHT_VEC
                ? stream_vec(o, feed, &share)
                : stream_rows(o, feed, d->cols, &share, d->kind == WEIGHT_MAT ? MAT_TILE : 1);
    }
    if (r < 0)
        return r;
    xxh3_end(o->hash, w->digest);
    if (o->at - begin != w->bytes)
        return fail(-EINVAL, "%s: %s: %llu bytes written, %llu planned", o->path, d->name,
                    (unsigned long long)(o->at - begin), (unsigned long long)w->bytes);
    return 0;
}
