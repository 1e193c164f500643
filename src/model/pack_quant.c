/* pack_quant.c owns the way of quantised weights from a checkpoint's order into a blob of
 * kernels/mat.h, a panel at a time, and of the rows of lookup tables.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "kernels/formats/exl3.h"
#include "kernels/formats/repack.h"
#include "src/base/log.h"
#include "src/model/pack_file.h"
#include "src/model/source.h"

#define WIDE_BYTES (64 << 10) /* pieces of a row of at least this are read alone */

/* The weight on its way. */
struct pass {
    struct pack_out *o;
    struct source *src;
    const struct stored *w;
    struct mat m;     /* the share, without pointers */
    int64_t row, col; /* where the share begins */
    struct mat_parts parts;
    bool made; /* the codes are not stored */
};

/* Rows of a tensor, or a piece of each, as fetch left them. */
struct panel {
    const unsigned char *at;
    size_t ld;
};

static int read_at(struct pass *s, const struct stored_tensor *t, uint64_t at, void *buf,
                   size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < PACK_BLOCK ? bytes - done : PACK_BLOCK;
        int r = s->src->ops->read(s->src, t->name, &t->t, at + done, (char *)buf + done, n);

        if (r < 0)
            return r;
        done += n;
    }
    return 0;
}

/* Bytes `from` .. of `rows` rows of a tensor whose rows have stride bytes, into the panel buffer.
 * One read of all costs less than one for each row, as long as it fits and little is in vain. What
 * is read lies to the blocks of memory as it does to those of the file, where there is room for
 * that.
 */
static int fetch(struct pass *s, const struct stored_tensor *t, size_t stride, int64_t row,
                 int64_t rows, size_t from, size_t bytes, struct panel *p)
{
    uint64_t first = (uint64_t)row * stride;
    unsigned char *buf = s->o->panel;
    size_t ld = bytes + (stride - bytes) % READ_ALIGN;
    int r = 0;

    if ((uint64_t)rows * stride <= PACK_PANEL && (bytes < WIDE_BYTES || 4 * bytes >= stride)) {
        buf += (t->t.offset + first) % READ_ALIGN;
        *p = (struct panel){ buf + from, stride };
        return read_at(s, t, first, buf, (size_t)rows * stride);
    }
    if ((uint64_t)rows * bytes > PACK_PANEL)
        return fail(-EINVAL, "%s: tensor %s: %lld rows of %zu bytes at a time are too many",
                    t->t.file, t->name, (long long)rows, bytes);
    if ((uint64_t)rows * ld > PACK_PANEL)
        ld = bytes;
    buf += (t->t.offset + first + from) % READ_ALIGN;
    for (int64_t i = 0; i < rows && r == 0; i++)
        r = read_at(s, t, first + (uint64_t)i * stride + from, buf + (size_t)i * ld, bytes);
    *p = (struct panel){ buf, ld };
    return r;
}

/* What find_bad_* found, n elements of `each` bytes behind byte `at` of a tensor. */
static int refuse_bad(const struct stored_tensor *t, uint64_t at, int64_t bad, size_t each)
{
    if (bad < 0)
        return 0;
    at += (uint64_t)bad * each;
    return fail(-EINVAL, "%s: tensor %s: element %llu, offset %llu of the file, is no number",
                t->t.file, t->name, (unsigned long long)(at / each),
                (unsigned long long)(t->t.offset + at));
}

/* Zeros up to where a part begins. */
static int pad_to(struct pass *s, uint64_t begin, size_t at)
{
    static const char zeros[MAT_ALIGN];
    uint64_t is = s->o->at - begin;

    return is < at ? pack_put(s->o, zeros, (size_t)(at - is)) : 0;
}

/* Strips that one write takes. */
static int write_strips(size_t strip_bytes)
{
    return strip_bytes < PACK_PUT ? (int)(PACK_PUT / strip_bytes) : 1;
}

static int check_strip(const struct pass *s, size_t strip_bytes)
{
    if (strip_bytes <= PACK_BLOCK)
        return 0;
    return fail(-EINVAL, "tensor %s: %d inputs are too many for a pack", s->w->slice[0].codes.name,
                s->m.cols);
}

/* ---- EXL3 -------------------------------------------------------------------------------- */

/* Strips first .. first + n - 1 of column tiles that are in the panel. */
static int put_strips(struct pass *s, const struct panel *p, int n, size_t across)
{
    size_t bytes = mat_strip_bytes(DTYPE_EXL3, &s->m.q, s->m.cols);
    int most = write_strips(bytes), r = 0;

    for (int i = 0; i < n && r == 0; i += most) {
        int take = n - i < most ? n - i : most;
        char *out = pack_room(s->o, (size_t)take * bytes);

        for (int j = 0; j < take; j++)
            mat_pack_codes(&s->m, p->at + (size_t)(i + j) * across, p->ld, EXL3_BLOCK,
                           out + (size_t)j * bytes);
        r = pack_put(s->o, out, (size_t)take * bytes);
    }
    return r;
}

/* Column tiles from `tile` on, `strips` strips of them, of one stored matrix. */
static int exl3_codes(struct pass *s, const struct stored_slice *slice, int64_t tile, int strips)
{
    size_t tile_bytes = 16 * (size_t)s->m.q.bits2, across = EXL3_BLOCK / EXL3_TILE * tile_bytes;
    size_t stride = (size_t)(s->w->n / EXL3_TILE) * tile_bytes;
    int64_t steps = (int64_t)mat_round_up((size_t)s->m.cols, EXL3_BLOCK) / EXL3_TILE;
    int64_t fit = (int64_t)(PACK_PANEL / ((uint64_t)steps * across));

    fit = fit < 1 ? 1 : fit;
    for (int i = 0; i < strips; i += (int)fit) {
        int n = strips - i < fit ? strips - i : (int)fit;
        struct panel p;
        int r = fetch(s, &slice->codes, stride, s->col / EXL3_TILE, steps,
                      (size_t)tile * tile_bytes + (size_t)i * across, (size_t)n * across, &p);

        if (r == 0)
            r = put_strips(s, &p, n, across);
        if (r < 0)
            return r;
    }
    return 0;
}

/* n f16 numbers from number `first` of a side's scales, or of biases. */
static int exl3_scales(struct pass *s, const struct stored_tensor *t, bool signs, int64_t first,
                       size_t n)
{
    uint16_t *out = s->o->out, *in = s->o->in;
    size_t most = PACK_BLOCK / sizeof(*out);

    for (size_t i = 0; i < n; i += most) {
        size_t take = n - i < most ? n - i : most, words = signs ? take / 16 : take;
        uint64_t at = ((uint64_t)first + i) / (signs ? 16 : 1) * sizeof(*in);
        int r = read_at(s, t, at, in, words * sizeof(*in));

        if (r == 0 && signs)
            exl3_signs(in, (int)take, out);
        else if (r == 0)
            r = refuse_bad(t, at, find_bad_f16(in, (int64_t)take), sizeof(*in));
        if (r == 0)
            r = pack_put(s->o, signs ? out : in, take * sizeof(*out));
        if (r < 0)
            return r;
    }
    return 0;
}

/* suh of every slice of the share, then svh, then the bias; each a part of the blob. */
static int exl3_vectors(struct pass *s, uint64_t begin, int first_slice, int slices)
{
    size_t k = mat_round_up((size_t)s->m.cols, EXL3_BLOCK);
    size_t n = mat_round_up((size_t)(s->m.rows / slices), EXL3_BLOCK);
    int64_t row = s->w->slices > 1 ? 0 : s->row;
    int r = pad_to(s, begin, s->parts.at[PART_SUH]);

    for (int i = 0; i < slices && r == 0; i++) {
        const struct stored_slice *p = &s->w->slice[first_slice + i];

        r = exl3_scales(s, &p->suh, p->suh_signs, s->col, k);
    }
    if (r == 0)
        r = pad_to(s, begin, s->parts.at[PART_SVH]);
    for (int i = 0; i < slices && r == 0; i++) {
        const struct stored_slice *p = &s->w->slice[first_slice + i];

        r = exl3_scales(s, &p->svh, p->svh_signs, row, n);
    }
    if (r < 0 || !s->m.q.has_bias)
        return r;
    r = pad_to(s, begin, s->parts.at[PART_BIAS]);
    for (int i = 0; i < slices && r == 0; i++)
        r = exl3_scales(s, &s->w->slice[first_slice + i].bias, false, row, n);
    return r;
}

static int put_exl3(struct pass *s)
{
    uint64_t begin = s->o->at;
    int slices = s->m.q.slices > 1 ? s->m.q.slices : 1, r = 0;
    int first = s->w->slices > 1 ? (int)(s->row / s->w->n) : 0;
    int strips = mat_strips(&s->m) / slices;

    r = check_strip(s, mat_strip_bytes(DTYPE_EXL3, &s->m.q, s->m.cols));
    if (s->made)
        s->o->at += s->parts.at[PART_SUH];
    for (int i = 0; !s->made && i < slices && r == 0; i++)
        r = exl3_codes(s, &s->w->slice[first + i], s->w->slices > 1 ? 0 : s->row / EXL3_TILE,
                       strips);
    return r < 0 ? r : exl3_vectors(s, begin, first, slices);
}

/* ---- FP8, FP4 ---------------------------------------------------------------------------- */

/* Rows that are fetched at a time: whole strips. */
static int64_t rows_at_a_time(const struct pass *s, size_t stride)
{
    int64_t strip = mat_strip(s->m.dtype, &s->m.q), fit = (int64_t)(PACK_PANEL / stride);

    return fit < strip ? strip : fit / strip * strip;
}

/* The codes of `rows` rows in a panel; check them on the way. */
static int scaled_strips(struct pass *s, const struct panel *p, int64_t row, int64_t rows)
{
    const struct stored_tensor *t = &s->w->slice[0].codes;
    size_t bytes = mat_strip_bytes(s->m.dtype, &s->m.q, s->m.cols);
    int strip = mat_strip(s->m.dtype, &s->m.q), most = write_strips(bytes), held = 0, r = 0;
    char *out = NULL;

    for (int64_t i = 0; s->m.dtype == DTYPE_FP8 && i < rows && r == 0; i++)
        r = refuse_bad(t, (uint64_t)((row + i) * s->w->cols + s->col),
                       find_bad_e4m3(p->at + (size_t)i * p->ld, s->m.cols), 1);
    for (int64_t i = 0; i < rows && r == 0; i += strip) {
        int outputs = rows - i < strip ? (int)(rows - i) : strip;

        if (held == 0)
            out = pack_room(s->o, (size_t)most * bytes);
        mat_pack_codes(&s->m, p->at + (size_t)i * p->ld, p->ld, outputs,
                       out + (size_t)held++ * bytes);
        if (held < most && i + strip < rows)
            continue;
        r = pack_put(s->o, out, (size_t)held * bytes);
        held = 0;
    }
    return r;
}

static int scaled_codes(struct pass *s)
{
    bool fp8 = s->m.dtype == DTYPE_FP8;
    size_t stride = (size_t)(fp8 ? s->w->cols : s->w->cols / 2);
    size_t from = (size_t)(fp8 ? s->col : s->col / 2);
    size_t bytes = (size_t)(fp8 ? s->m.cols : s->m.cols / 2);
    int64_t fit = rows_at_a_time(s, stride);
    int r = check_strip(s, mat_strip_bytes(s->m.dtype, &s->m.q, s->m.cols));

    for (int64_t i = 0; i < s->m.rows && r == 0; i += fit) {
        int64_t n = s->m.rows - i < fit ? s->m.rows - i : fit;
        struct panel p;

        r = fetch(s, &s->w->slice[0].codes, stride, s->row + i, n, from, bytes, &p);
        if (r == 0)
            r = scaled_strips(s, &p, s->row + i, n);
    }
    return r;
}

/* n scales of a row that are in memory, at byte `at` of their tensor. */
static int check_scales(const struct pass *s, const unsigned char *p, uint64_t at, int64_t n)
{
    const struct stored_tensor *t = &s->w->scale;

    if (s->m.dtype == DTYPE_NVFP4)
        return refuse_bad(t, at, find_bad_e4m3_scale(p, n), 1);
    if (s->m.dtype == DTYPE_MXFP4 || s->m.q.e8m0)
        return refuse_bad(t, at, find_bad_e8m0(p, n), 1);
    return refuse_bad(t, at, find_bad_f32(p, n), (size_t)t->t.each);
}

/* Rows of halves as f32: a pack has no other scales of blocks. The caller frees *out. */
static int widen(const struct stored_tensor *t, int64_t rows, size_t cols, struct panel *p,
                 float **out)
{
    float *wide = malloc((size_t)rows * cols * sizeof(*wide));

    if (!wide)
        return fail(-ENOMEM, "tensor %s: no memory for %lld rows of scales", t->name,
                    (long long)rows);
    for (int64_t i = 0; i < rows; i++)
        f32_widen(t->t.dtype, p->at + (size_t)i * p->ld, cols, wide + (size_t)i * cols);
    *p = (struct panel){ (unsigned char *)wide, cols * sizeof(*wide) };
    *out = wide;
    return 0;
}

/* The grid of the share's blocks, then the strips' scales from it. */
static int fp8_scales(struct pass *s, unsigned char *out)
{
    int64_t block = s->m.q.block;
    bool one = block >= s->w->rows && block >= s->w->cols;
    int64_t row = one ? 0 : s->row / block, rows = (s->m.rows + block - 1) / block;
    size_t each = (size_t)s->w->scale.t.each, cols = (size_t)((s->m.cols + block - 1) / block);
    size_t stride = (size_t)((s->w->cols + block - 1) / block) * each;
    size_t from = one ? 0 : (size_t)(s->col / block) * each;
    int strip = mat_strip(s->m.dtype, &s->m.q);
    float *widened = NULL;
    struct panel p;
    int r = fetch(s, &s->w->scale, stride, row, rows, from, cols * each, &p);

    if (r == 0 && each == sizeof(uint16_t))
        r = widen(&s->w->scale, rows, cols, &p, &widened);
    for (int64_t i = 0; i < rows && r == 0; i++)
        r = check_scales(s, p.at + (size_t)i * p.ld, (uint64_t)(row + i) * stride + from,
                         (int64_t)cols);
    for (int i = 0; i < mat_strips(&s->m) && r == 0; i++)
        mat_pack_scales(&s->m, i, p.at + (size_t)(i * (int64_t)strip / block) * p.ld, p.ld, strip,
                        out);
    free(widened);
    return r;
}

static int fp4_scales(struct pass *s, unsigned char *out)
{
    int group = mat_group(s->m.dtype), strip = mat_strip(s->m.dtype, &s->m.q);
    size_t stride = (size_t)(s->w->cols / group), wide = (size_t)(s->m.cols / group);
    size_t from = (size_t)(s->col / group);
    int64_t fit = rows_at_a_time(s, stride);
    int r = 0;

    for (int64_t i = 0; i < s->m.rows && r == 0; i += fit) {
        int64_t n = s->m.rows - i < fit ? s->m.rows - i : fit;
        struct panel p;

        r = fetch(s, &s->w->scale, stride, s->row + i, n, from, wide, &p);
        for (int64_t j = 0; j < n && r == 0; j++)
            r = check_scales(s, p.at + (size_t)j * p.ld, (uint64_t)(s->row + i + j) * stride + from,
                             (int64_t)wide);
        for (int64_t j = 0; j < n && r == 0; j += strip)
            mat_pack_scales(&s->m, (int)((i + j) / strip), p.at + (size_t)j * p.ld, p.ld,
                            n - j < strip ? (int)(n - j) : strip, out);
    }
    return r;
}

static int put_scaled(struct pass *s)
{
    uint64_t begin = s->o->at;
    size_t bytes = s->parts.bytes[PART_SCALES];
    unsigned char *scales;
    int r = scaled_codes(s);

    if (r < 0)
        return r;
    scales = calloc(bytes, 1);
    if (!scales)
        return fail(-ENOMEM, "tensor %s: no memory for %zu bytes of scales", s->w->scale.name,
                    bytes);
    r = s->m.dtype == DTYPE_FP8 ? fp8_scales(s, scales) : fp4_scales(s, scales);
    if (r == 0)
        r = pad_to(s, begin, s->parts.at[PART_SCALES]);
    if (r == 0)
        r = pack_put(s->o, scales, bytes);
    free(scales);
    return r;
}

/* ---- rows of lookup tables --------------------------------------------------------------- */

/* A row's codes and its scales side by side: later one read gets both. */
static int put_fp8_rows(struct pass *s, int64_t first, int64_t rows)
{
    const struct stored_tensor *codes = &s->w->slice[0].codes, *scale = &s->w->scale;
    size_t wide = (size_t)s->w->cols, scales = wide / 32, row = wide + scales;
    int64_t fit = (int64_t)(PACK_BLOCK / row);
    unsigned char *in = s->o->in, *out = s->o->out;

    for (int64_t i = 0; i < rows; i += fit) {
        int64_t n = rows - i < fit ? rows - i : fit;
        unsigned char *in_scales = in + (size_t)n * wide;
        uint64_t at = (uint64_t)(first + i);
        int r = read_at(s, codes, at * wide, in, (size_t)n * wide);

        if (r == 0)
            r = read_at(s, scale, at * scales, in_scales, (size_t)n * scales);
        if (r == 0)
            r = refuse_bad(codes, at * wide, find_bad_e4m3(in, n * (int64_t)wide), 1);
        if (r == 0)
            r = refuse_bad(scale, at * scales, find_bad_e8m0(in_scales, n * (int64_t)scales), 1);
        if (r < 0)
            return r;
        for (int64_t j = 0; j < n; j++) {
            memcpy(out + (size_t)j * row, in + (size_t)j * wide, wide);
            memcpy(out + (size_t)j * row + wide, in_scales + (size_t)j * scales, scales);
        }
        r = pack_put(s->o, out, (size_t)n * row);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Rows from `row` on that lie in one shard of the table, at most n of them; fewer behind its
 * end. */
static int64_t find_shard(const struct stored *w, int64_t row, int64_t n, int *shard, int64_t *at)
{
    int i = 0;

    while (i < w->slices - 1 && row >= w->slice[i].codes.t.shape[0])
        row -= w->slice[i++].codes.t.shape[0];
    *shard = i;
    *at = row;
    return w->slice[i].codes.t.shape[0] - row < n ? w->slice[i].codes.t.shape[0] - row : n;
}

/* rows 0: they are linked, and only the biases are wanted. */
static int put_ngram_rows(struct pass *s, const struct weight *d, int64_t first, int64_t rows)
{
    size_t row = 2 * (size_t)ngram_row_words(s->m.q.bits2 / 2);
    int64_t fit = (int64_t)(PACK_BLOCK / row);
    uint64_t begin = s->o->at;
    int r = 0;

    for (int64_t done = 0, n; done < rows && r == 0; done += n) {
        int64_t at;
        int shard;

        n = find_shard(s->w, first + done, rows - done < fit ? rows - done : fit, &shard, &at);
        r = read_at(s, &s->w->slice[shard].codes, (uint64_t)at * row, s->o->in, (size_t)n * row);
        if (r == 0)
            r = pack_put(s->o, s->o->in, (size_t)n * row);
    }
    if (r == 0)
        r = pad_to(s, begin, (size_t)pack_align((uint64_t)rows * row));
    if (r == 0)
        r = exl3_scales(s, &s->w->slice[0].bias, false, d->first * NGRAM_COLS,
                        (size_t)d->count * NGRAM_COLS);
    return r;
}

static int put_rows(struct pass *s, const struct weight *d, bool linked)
{
    int64_t first = 0, rows, cols;

    weight_local(d, &rows, &cols);
    for (int64_t c = 0; c < d->first; c++)
        first += d->prime[c];
    rows = linked ? 0 : rows;
    return s->m.dtype == DTYPE_FP8 ? put_fp8_rows(s, first, rows)
                                   : put_ngram_rows(s, d, first, rows);
}

int pack_quantised(struct pack_out *o, const struct pack_feed *feed, const struct pack_weight *w)
{
    const struct weight *d = &w->d;
    struct pass s = { .o = o,
                      .src = feed->src,
                      .w = feed->stored,
                      .m = pack_mat(w),
                      .row = d->shard == SHARD_ROWS ? d->first : 0,
                      .col = d->shard == SHARD_COLS ? d->first : 0,
                      .made = w->n_made > 0 };

    if (d->kind == WEIGHT_ROWS)
        return put_rows(&s, d, w->links > 0);
    if (s.m.rows == 0 || s.m.cols == 0)
        return 0;
    mat_parts(&s.m, &s.parts);
    return w->dtype == DTYPE_EXL3 ? put_exl3(&s) : put_scaled(&s);
}
