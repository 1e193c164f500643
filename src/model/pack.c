/* pack.c owns the format: header, table of contents and their checks, and the map of an open pack.
 * It is one of the two homes of protobuf-c. pack_write.c makes packs, pack_bind.c gives their
 * weights to models.
 */
#include "src/model/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/formats/exl3.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/mapping.h"
#include "src/model/pack.pb-c.h"
#include "src/model/pack_file.h"

int pack_row_bytes(const struct pack_weight *w)
{
    int64_t cols = w->d.cols;

    if (w->dtype == DTYPE_FP8)
        return (int)(cols + cols / 32);
    if (w->dtype == DTYPE_EXL3)
        return 2 * ngram_row_words(w->q.bits2 / 2);
    return (int)(cols * (int64_t)dtype_bytes(w->dtype));
}

/* What the rows take here, nothing if they are linked. Sizes that no machine has end the arithmetic
 * before it can wrap. */
static int rows_bytes(const struct pack_weight *w, uint64_t *bytes)
{
    uint64_t rows = 0;

    for (int64_t i = 0; i < w->d.count; i++)
        if (__builtin_add_overflow(rows, (uint64_t)w->column_rows[i], &rows))
            return -EINVAL;
    if (__builtin_mul_overflow(rows, (uint64_t)pack_row_bytes(w), bytes) || *bytes > INT64_MAX / 2)
        return -EINVAL;
    if (w->links > 0)
        *bytes = 0;
    return 0;
}

uint64_t pack_row_bias(const struct pack_weight *w)
{
    uint64_t bytes = 0;

    (void)rows_bytes(w, &bytes);
    return w->offset + pack_align(bytes);
}

struct mat pack_mat(const struct pack_weight *w)
{
    return (struct mat){ .dtype = w->dtype,
                         .rows = (int)(w->d.shard == SHARD_ROWS ? w->d.count : w->d.rows),
                         .cols = (int)(w->d.shard == SHARD_COLS ? w->d.count : w->d.cols),
                         .q = w->q };
}

int pack_share_bytes(const struct pack_weight *w, uint64_t *bytes)
{
    uint64_t rows = (uint64_t)(w->d.shard == SHARD_ROWS ? w->d.count : w->d.rows);
    uint64_t cols = (uint64_t)(w->d.shard == SHARD_COLS ? w->d.count : w->d.cols), both;

    if (w->d.kind == WEIGHT_ROWS) {
        int r = rows_bytes(w, bytes);

        if (r == 0 && w->dtype == DTYPE_EXL3)
            *bytes = pack_align(*bytes) + (uint64_t)w->d.count * NGRAM_COLS * 2;
        return r;
    }
    if (w->dtype > DTYPE_COUNT) {
        struct mat m = pack_mat(w);
        struct mat_parts p;

        if (__builtin_mul_overflow(rows + EXL3_BLOCK, cols + EXL3_BLOCK, &both) ||
            both > (uint64_t)1 << 50)
            return -EINVAL;
        mat_parts(&m, &p);
        *bytes = p.total;
        return 0;
    }
    if (w->d.kind == WEIGHT_MAT)
        rows = (rows + MAT_TILE - 1) / MAT_TILE * MAT_TILE;
    if (__builtin_mul_overflow(rows, cols, bytes) ||
        __builtin_mul_overflow(*bytes, dtype_bytes(w->dtype), bytes))
        return -EINVAL;
    return 0;
}

/* ---- writing ------------------------------------------------------------------------- */

static void weight_message(const struct pack_weight *w, Toc__Weight *m, Toc__Link link[LINKS_MAX],
                           Toc__Link *links[LINKS_MAX])
{
    toc__weight__init(m);
    m->n_links = (size_t)w->links;
    m->links = links;
    for (int i = 0; i < w->links; i++) {
        const struct pack_link *l = &w->link[i];

        toc__link__init(&link[i]);
        link[i].path = l->path;
        link[i].file_bytes = l->file_bytes;
        link[i].digest = (ProtobufCBinaryData){ .len = XXH3_BYTES, .data = (uint8_t *)l->digest };
        link[i].offset = l->offset;
        links[i] = &link[i];
    }
    m->name = (char *)w->d.name;
    m->kind = w->d.kind;
    m->dtype = w->dtype;
    m->shard = w->d.shard;
    m->rows = w->d.rows;
    m->cols = w->d.cols;
    m->first = w->d.first;
    m->count = w->d.count;
    m->offset = w->offset;
    m->bytes = w->bytes;
    m->digest = (ProtobufCBinaryData){ .len = XXH3_BYTES, .data = (uint8_t *)w->digest };
    if (w->d.kind == WEIGHT_ROWS) {
        m->n_column_rows = (size_t)w->d.count;
        m->column_rows = w->column_rows;
    }
    m->made = w->made;
    m->n_made = (size_t)w->n_made;
    m->made_col = w->made_col;
    m->made_cols = w->made_cols;
    m->layout = w->q.layout;
    m->codebook = w->q.codebook;
    m->bits2 = w->q.bits2;
    m->has_bias = w->q.has_bias;
    m->e8m0 = w->q.e8m0;
    m->divides = w->q.divides;
    m->block = w->q.block;
    m->slices = w->q.slices;
    m->global = w->q.global;
}

static ProtobufCBinaryData digest_bytes(const uint8_t *digest)
{
    return (ProtobufCBinaryData){ .len = SHA256_BYTES, .data = (uint8_t *)digest };
}

int pack_toc_encode(const struct pack_toc *t, uint8_t **out, size_t *bytes)
{
    Toc__Contents m = TOC__CONTENTS__INIT;
    Toc__Weight *weight = calloc(t->n + 1, sizeof(*weight));
    Toc__Weight **weights = calloc(t->n + 1, sizeof(Toc__Weight *));
    Toc__Link *link = calloc(t->n + 1, sizeof(*link) * LINKS_MAX);
    Toc__Link **links = calloc(t->n + 1, sizeof(*links) * LINKS_MAX);
    Toc__Blob blob[PACK_BLOBS_MAX], *blobs[PACK_BLOBS_MAX];
    uint8_t *buf = NULL;
    int r = 0;

    if (!weight || !weights || !link || !links) {
        r = fail(-ENOMEM, "pack: no memory for a table of %zu weights", t->n);
        goto free_weights;
    }
    for (size_t i = 0; i < t->n; i++) {
        weight_message(&t->weight[i], &weight[i], link + LINKS_MAX * i, links + LINKS_MAX * i);
        weights[i] = &weight[i];
    }
    for (int i = 0; i < t->n_blobs; i++) {
        toc__blob__init(&blob[i]);
        blob[i].name = (char *)t->blob[i].name;
        blob[i].data.len = t->blob[i].bytes;
        blob[i].data.data = (uint8_t *)t->blob[i].data;
        blobs[i] = &blob[i];
    }
    m.family = t->family;
    m.rank = (uint32_t)t->rank;
    m.ranks = (uint32_t)t->ranks;
    m.width_unit = (uint32_t)t->width_unit;
    m.layouts = (uint32_t)t->layouts;
    m.whole_experts = t->whole_experts;
    m.walk_digest = digest_bytes(t->walk_digest);
    m.source_digest = digest_bytes(t->source_digest);
    m.set_digest = digest_bytes(t->set_digest);
    m.n_blobs = (size_t)t->n_blobs;
    m.blobs = blobs;
    m.n_weights = t->n;
    m.weights = weights;
    *bytes = toc__contents__get_packed_size(&m);
    buf = malloc(*bytes + 1);
    if (!buf) {
        r = fail(-ENOMEM, "pack: no memory for a table of contents of %zu bytes", *bytes);
        goto free_weights;
    }
    toc__contents__pack(&m, buf);
    *out = buf;

free_weights:
    free(links);
    free(link);
    free(weights);
    free(weight);
    return r;
}

/* Lengths go in before bytes, so that no two different sets feed the same stream. */
int pack_toc_digest(const struct pack_toc *t, uint8_t out[SHA256_BYTES])
{
    struct sha256 *s;
    int r = sha256_open(&s);

    if (r < 0)
        return r;
    sha256_add_u64(s, PACK_VERSION);
    sha256_add_u64(s, (uint64_t)t->ranks);
    sha256_add_u64(s, (uint64_t)t->width_unit);
    sha256_add_u64(s, (uint64_t)t->layouts);
    sha256_add_u64(s, t->whole_experts);
    sha256_add_u64(s, strlen(t->family));
    sha256_add(s, t->family, strlen(t->family));
    for (int i = 0; i < t->n_blobs; i++) {
        const struct pack_blob *b = &t->blob[i];

        /* Only rank 0 reads suggested sampling. */
        if (strcmp(b->name, "generation_config.json") == 0)
            continue;
        sha256_add_u64(s, strlen(b->name));
        sha256_add(s, b->name, strlen(b->name));
        sha256_add_u64(s, b->bytes);
        sha256_add(s, b->data, b->bytes);
    }
    sha256_add(s, t->walk_digest, SHA256_BYTES);
    for (size_t i = 0; i < t->n; i++) {
        sha256_add_u64(s, t->weight[i].dtype);
        if (t->weight[i].d.shard == SHARD_NONE)
            sha256_add(s, t->weight[i].digest, XXH3_BYTES);
    }
    r = sha256_end(s, out);
    sha256_close(s);
    return r;
}

/* ---- reading ------------------------------------------------------------------------- */

/* What can be said of struct quant without the share: only what its format uses is set, and so that
 * no reader of a blob leaves it.
 */
static bool quant_holds(const struct pack_weight *w, const Toc__Weight *m)
{
    const struct quant *q = &w->q;
    bool mat = w->d.kind == WEIGHT_MAT;

    if (m->layout > LAYOUT_DEVICE || m->codebook > CODEBOOK_MUL1 || m->bits2 > 16 ||
        m->has_bias > 1 || m->e8m0 > 1 || m->divides > 1 || m->block < 0 || m->slices < 0)
        return false;
    switch (w->dtype) {
    case DTYPE_FP8:
        return mat ? q->block >= MAT_TILE && q->block % MAT_TILE == 0
                   : w->d.kind == WEIGHT_ROWS && w->d.cols % 32 == 0;
    case DTYPE_MXFP4:
        return mat && w->d.cols % 32 == 0;
    case DTYPE_NVFP4:
        return mat && w->d.cols % 16 == 0 && isfinite(q->global) && q->global > 0;
    case DTYPE_EXL3:
        if (w->d.kind == WEIGHT_ROWS)
            return w->d.cols == NGRAM_COLS && q->bits2 % 2 == 0 && q->bits2 >= NGRAM_BITS2_MIN &&
                   q->bits2 <= NGRAM_BITS2_MAX;
        return mat && exl3_width_ok((enum codebook)q->codebook, 8 * q->bits2);
    default:
        return memcmp(q, &(struct quant){ 0 }, sizeof(*q)) == 0;
    }
}

/* The share of a quantised matrix: whole groups, whole slices. */
static bool share_holds(const struct pack_weight *w)
{
    int64_t rows, cols;

    if (w->d.kind != WEIGHT_MAT || w->dtype < DTYPE_COUNT)
        return true;
    weight_local(&w->d, &rows, &cols);
    if (mat_group(w->dtype) && cols % mat_group(w->dtype) != 0)
        return false;
    return w->q.slices <= 1 || (rows % w->q.slices == 0 && rows / w->q.slices % EXL3_BLOCK == 0);
}

static int read_quant(const char *path, const Toc__Weight *m, struct pack_weight *w)
{
    w->q = (struct quant){ .layout = (uint8_t)m->layout,
                           .codebook = (uint8_t)m->codebook,
                           .bits2 = (uint8_t)m->bits2,
                           .has_bias = (uint8_t)m->has_bias,
                           .e8m0 = (uint8_t)m->e8m0,
                           .divides = (uint8_t)m->divides,
                           .block = m->block,
                           .slices = m->slices,
                           .global = m->global };
    if (!quant_holds(w, m) || !share_holds(w))
        return fail(-EINVAL,
                    "%s: %s: no %s is like this: layout %u, codebook %u, %g bits, block %d, %d "
                    "slices",
                    path, m->name, dtype_name(w->dtype), m->layout, m->codebook,
                    (double)m->bits2 / 2, m->block, m->slices);
    return 0;
}

/* Kind, type and share of a weight, each in its range before anything is computed from it. */
static int read_weight(const char *path, const Toc__Weight *m, struct pack_weight *w)
{
    int64_t whole = m->rows;
    size_t len = strlen(m->name);

    if (len == 0 || len >= WEIGHT_NAME_MAX)
        return fail(-EINVAL, "%s: weight with a name of %zu bytes", path, len);
    memcpy(w->d.name, m->name, len + 1);
    if (m->kind > WEIGHT_ROWS || m->dtype >= DTYPE_END || m->dtype == DTYPE_COUNT ||
        m->shard > SHARD_COLS)
        return fail(-EINVAL, "%s: %s: kind %u, dtype %u, shard %u", path, m->name, m->kind,
                    m->dtype, m->shard);
    w->d.kind = (enum weight_kind)m->kind;
    w->d.shard = (enum shard)m->shard;
    w->dtype = (enum dtype)m->dtype;
    if (m->rows < 1 || m->cols < 1 || m->cols > INT_MAX ||
        (m->rows > INT_MAX && w->d.kind != WEIGHT_ROWS))
        return fail(-EINVAL, "%s: %s: shape [%lld, %lld]", path, m->name, (long long)m->rows,
                    (long long)m->cols);
    if (w->d.kind == WEIGHT_VEC &&
        (m->cols != 1 || w->dtype != DTYPE_F32 || w->d.shard == SHARD_COLS))
        return fail(-EINVAL, "%s: %s: a vector has one column of F32", path, m->name);
    if (w->d.kind == WEIGHT_ROWS && w->d.shard != SHARD_ROWS)
        return fail(-EINVAL, "%s: %s: row table with shard %u", path, m->name, m->shard);
    if (w->d.shard == SHARD_COLS)
        whole = m->cols;
    if (m->first < 0 || m->count < 0 || m->first > whole || m->count > whole - m->first ||
        (w->d.shard == SHARD_NONE && (m->first != 0 || m->count != whole)))
        return fail(-EINVAL, "%s: %s: share from %lld, %lld of %lld", path, m->name,
                    (long long)m->first, (long long)m->count, (long long)whole);
    if (m->digest.len != XXH3_BYTES)
        return fail(-EINVAL, "%s: %s: digest of %zu bytes", path, m->name, m->digest.len);
    memcpy(w->digest, m->digest.data, XXH3_BYTES);
    w->d.rows = m->rows;
    w->d.cols = m->cols;
    w->d.first = m->first;
    w->d.count = m->count;
    w->d.unit = 1;
    w->offset = m->offset;
    w->bytes = m->bytes;
    return read_quant(path, m, w);
}

static int read_made(const char *path, const Toc__Weight *m, struct pack_weight *w)
{
    int slices = w->q.slices > 1 ? w->q.slices : 1;

    if (m->n_made == 0)
        return 0;
    if (w->d.kind != WEIGHT_MAT || w->dtype != DTYPE_EXL3 || w->q.layout != LAYOUT_DEVICE ||
        m->n_made != (size_t)slices || m->made_col < 0 || m->made_cols < 0 ||
        m->made_cols > INT_MAX || m->made_col > m->made_cols)
        return fail(-EINVAL, "%s: %s: %zu hashes of codes that are made", path, m->name, m->n_made);
    w->made = calloc(m->n_made, sizeof(*w->made));
    if (!w->made)
        return fail(-ENOMEM, "%s: %s: no memory", path, m->name);
    memcpy(w->made, m->made, m->n_made * sizeof(*w->made));
    w->n_made = (int)m->n_made;
    w->made_col = m->made_col;
    w->made_cols = m->made_cols;
    return 0;
}

static int read_columns(const char *path, const Toc__Weight *m, struct pack_weight *w)
{
    int64_t rows = 0;

    if (w->d.kind != WEIGHT_ROWS) {
        if (m->n_column_rows != 0)
            return fail(-EINVAL, "%s: %s: hash columns of a weight that is no row table", path,
                        m->name);
        return 0;
    }
    if (m->n_column_rows != (uint64_t)w->d.count)
        return fail(-EINVAL, "%s: %s: rows of %zu hash columns, %lld are here", path, m->name,
                    m->n_column_rows, (long long)w->d.count);
    w->column_rows = calloc(m->n_column_rows + 1, sizeof(*w->column_rows));
    w->column_first = calloc(m->n_column_rows + 1, sizeof(*w->column_first));
    if (!w->column_rows || !w->column_first)
        return fail(-ENOMEM, "%s: %s: no memory for %zu columns", path, m->name, m->n_column_rows);
    for (size_t i = 0; i < m->n_column_rows; i++) {
        w->column_rows[i] = m->column_rows[i];
        w->column_first[i] = rows;
        if (m->column_rows[i] < 1 || __builtin_add_overflow(rows, m->column_rows[i], &rows) ||
            rows > w->d.rows)
            return fail(-EINVAL, "%s: %s: hash column %zu has %lld rows of %lld", path, m->name, i,
                        (long long)m->column_rows[i], (long long)w->d.rows);
    }
    return 0;
}

static int read_links(const char *path, const Toc__Weight *m, struct pack_weight *w)
{
    if (m->n_links > LINKS_MAX)
        return fail(-EINVAL, "%s: %s: %zu links", path, m->name, m->n_links);
    if (m->n_links == 0)
        return 0;
    w->link = calloc(LINKS_MAX, sizeof(*w->link));
    if (!w->link)
        return fail(-ENOMEM, "%s: %s: no memory", path, m->name);
    for (size_t i = 0; i < m->n_links; i++) {
        const Toc__Link *l = m->links[i];

        w->link[i] = (struct pack_link){
            .path = strdup(l->path), .file_bytes = l->file_bytes, .offset = l->offset, .fd = -1
        };
        w->links++;
        if (!w->link[i].path)
            return fail(-ENOMEM, "%s: %s: no memory", path, m->name);
        if (l->digest.len != XXH3_BYTES)
            return fail(-EINVAL, "%s: %s: digest of %zu bytes", path, m->name, l->digest.len);
        memcpy(w->link[i].digest, l->digest.data, XXH3_BYTES);
    }
    return pack_link_check(path, w);
}

/* Weights lie in order, each at the first aligned place behind the one before: anything else is a
 * lie. */
static int read_weights(const char *path, const Toc__Contents *m, uint64_t toc_offset,
                        struct pack_toc *t)
{
    uint64_t end = sizeof(struct pack_header);

    t->weight = calloc(m->n_weights + 1, sizeof(*t->weight));
    if (!t->weight)
        return fail(-ENOMEM, "%s: no memory for %zu weights", path, m->n_weights);
    for (size_t i = 0; i < m->n_weights; i++) {
        struct pack_weight *w = &t->weight[i];
        uint64_t bytes;
        int r = read_weight(path, m->weights[i], w);

        t->n = i + 1;
        if (r == 0)
            r = read_columns(path, m->weights[i], w);
        if (r == 0)
            r = read_links(path, m->weights[i], w);
        if (r == 0)
            r = read_made(path, m->weights[i], w);
        if (r < 0)
            return r;
        if (pack_share_bytes(w, &bytes) < 0 || bytes != w->bytes)
            return fail(-EINVAL, "%s: %s: %llu bytes do not fit its shape and type", path,
                        w->d.name, (unsigned long long)w->bytes);
        if (w->offset != pack_align(end) || w->offset > toc_offset ||
            w->bytes > toc_offset - w->offset)
            return fail(
                -EINVAL, "%s: %s: %llu bytes at offset %llu; it must begin at %llu and end by %llu",
                path, w->d.name, (unsigned long long)w->bytes, (unsigned long long)w->offset,
                (unsigned long long)pack_align(end), (unsigned long long)toc_offset);
        end = w->offset + w->bytes;
    }
    if (toc_offset != pack_align(end))
        return fail(-EINVAL, "%s: data ends at offset %llu, table of contents begins at %llu", path,
                    (unsigned long long)end, (unsigned long long)toc_offset);
    return 0;
}

static int read_blobs(const char *path, const Toc__Contents *m, struct pack_toc *t)
{
    if (m->n_blobs > PACK_BLOBS_MAX)
        return fail(-EINVAL, "%s: %zu blobs, at most %d", path, m->n_blobs, PACK_BLOBS_MAX);
    for (size_t i = 0; i < m->n_blobs; i++) {
        const Toc__Blob *b = m->blobs[i];
        char *data = malloc(b->data.len + 1), *name = strdup(b->name);

        t->blob[t->n_blobs++] = (struct pack_blob){ name, data, b->data.len };
        if (!data || !name)
            return fail(-ENOMEM, "%s: no memory for blob %s", path, b->name);
        if (b->data.len > 0)
            memcpy(data, b->data.data, b->data.len);
        data[b->data.len] = 0;
    }
    return 0;
}

static int read_digest(const char *path, const char *what, ProtobufCBinaryData d,
                       uint8_t out[SHA256_BYTES])
{
    if (d.len != SHA256_BYTES)
        return fail(-EINVAL, "%s: %s digest of %zu bytes", path, what, d.len);
    memcpy(out, d.data, SHA256_BYTES);
    return 0;
}

static int read_contents(const char *path, const Toc__Contents *m, uint64_t toc_offset,
                         struct pack_toc *t)
{
    int r;

    if (m->ranks < 1 || m->ranks > RANKS_MAX || m->rank >= m->ranks)
        return fail(-EINVAL, "%s: rank %u of %u", path, m->rank, m->ranks);
    t->rank = (int)m->rank;
    t->ranks = (int)m->ranks;
    if (m->width_unit < 1 || m->width_unit > WIDTH_UNIT_MAX || m->layouts < PACK_CPU ||
        m->layouts > PACK_BOTH || m->whole_experts > 1)
        return fail(-EINVAL, "%s: widths in units of %u, layouts %u, whole experts %u", path,
                    m->width_unit, m->layouts, m->whole_experts);
    t->width_unit = (int)m->width_unit;
    t->layouts = (int)m->layouts;
    t->whole_experts = m->whole_experts;
    t->family = strdup(m->family);
    if (!t->family)
        return fail(-ENOMEM, "%s: no memory", path);
    r = read_digest(path, "walk", m->walk_digest, t->walk_digest);
    if (r == 0)
        r = read_digest(path, "source", m->source_digest, t->source_digest);
    if (r == 0)
        r = read_digest(path, "set", m->set_digest, t->set_digest);
    if (r == 0)
        r = read_blobs(path, m, t);
    if (r == 0)
        r = read_weights(path, m, toc_offset, t);
    return r;
}

int pack_toc_decode(const char *path, const uint8_t *data, size_t bytes, uint64_t toc_offset,
                    struct pack_toc *out)
{
    struct pack_toc t = { 0 };
    Toc__Contents *m = toc__contents__unpack(NULL, bytes, data);
    int r;

    if (!m)
        return fail(-EINVAL, "%s: broken table of contents at offset %llu", path,
                    (unsigned long long)toc_offset);
    r = read_contents(path, m, toc_offset, &t);
    toc__contents__free_unpacked(m, NULL);
    if (r < 0) {
        pack_toc_free(&t);
        return r;
    }
    *out = t;
    return 0;
}

void pack_toc_free(struct pack_toc *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->weight[i].column_rows);
        free(t->weight[i].column_first);
        pack_link_free(&t->weight[i]);
        free(t->weight[i].made);
    }
    free(t->weight);
    for (int i = 0; i < t->n_blobs; i++) {
        free((char *)t->blob[i].name);
        free((void *)t->blob[i].data);
    }
    free(t->family);
    *t = (struct pack_toc){ 0 };
}

int pack_header_check(const char *path, const struct pack_header *h, uint64_t file_bytes)
{
    if (memcmp(h->magic, PACK_MAGIC, sizeof(h->magic)) != 0)
        return fail(-EINVAL, "%s: not a pack", path);
    if (h->version != PACK_VERSION)
        return fail(-EINVAL, "%s: pack of version %u, this program reads %d", path, h->version,
                    PACK_VERSION);
    if (h->complete != 1 || h->zero != 0)
        return fail(-EINVAL, "%s: unfinished pack", path);
    if (h->file_bytes != file_bytes)
        return fail(-EINVAL, "%s: %llu bytes, the pack was written with %llu: truncated?", path,
                    (unsigned long long)file_bytes, (unsigned long long)h->file_bytes);
    if (h->toc_offset < sizeof(*h) || h->toc_offset > file_bytes || h->toc_bytes > PACK_TOC_MAX ||
        h->toc_bytes != file_bytes - h->toc_offset)
        return fail(-EINVAL, "%s: table of contents of %llu bytes at offset %llu of %llu", path,
                    (unsigned long long)h->toc_bytes, (unsigned long long)h->toc_offset,
                    (unsigned long long)file_bytes);
    return 0;
}

/* ---- an open pack -------------------------------------------------------------------- */

static int by_name(const void *a, const void *b, void *arg)
{
    const struct pack_weight *w = arg, *x = &w[*(const size_t *)a], *y = &w[*(const size_t *)b];
    int c = strcmp(x->d.name, y->d.name);

    return c ? c : (int)x->q.layout - (int)y->q.layout;
}

/* Names sorted, row tables numbered. Rows are read one by one and never through the map. */
static int make_lists(struct pack *p)
{
    p->by_name = calloc(p->toc.n + 1, sizeof(*p->by_name));
    p->table = calloc(p->toc.n + 1, sizeof(*p->table));
    if (!p->by_name || !p->table)
        return fail(-ENOMEM, "%s: no memory for %zu weights", p->path, p->toc.n);
    for (size_t i = 0; i < p->toc.n; i++) {
        p->by_name[i] = i;
        if (p->toc.weight[i].d.kind == WEIGHT_ROWS)
            p->table[p->n_tables++] = i;
    }
    qsort_r(p->by_name, p->toc.n, sizeof(*p->by_name), by_name, p->toc.weight);
    for (size_t i = 1; i < p->toc.n; i++)
        if (by_name(&p->by_name[i - 1], &p->by_name[i], p->toc.weight) == 0)
            return fail(-EINVAL, "%s: %s: two weights of this name", p->path,
                        p->toc.weight[p->by_name[i]].d.name);
    return 0;
}

static int map_file(struct pack *p)
{
    const struct pack_header *h;
    uint8_t digest[XXH3_BYTES];
    struct stat st;
    const void *map;
    int r;

    if (fstat(p->fd, &st) < 0)
        return fail(-errno, "%s: stat: %s", p->path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return fail(-EINVAL, "%s: a folder; packs are the rank<r>.pack in one", p->path);
    if (!S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(*h))
        return fail(-EINVAL, "%s: not a pack", p->path);
    r = mapping_open(p->fd, (size_t)st.st_size, p->path, &map);
    if (r < 0)
        return fail(r, "%s: map: %s", p->path, strerror(-r));
    p->map = map;
    p->bytes = (size_t)st.st_size;
    h = map;
    r = pack_header_check(p->path, h, p->bytes);
    if (r < 0)
        return r;
    xxh3_of(p->map + h->toc_offset, (size_t)h->toc_bytes, digest);
    if (memcmp(digest, h->toc_digest, sizeof(digest)) != 0)
        return fail(-EINVAL,
                    "%s: table of contents at offset %llu has another digest than the header says",
                    p->path, (unsigned long long)h->toc_offset);
    r = pack_toc_decode(p->path, p->map + h->toc_offset, (size_t)h->toc_bytes, h->toc_offset,
                        &p->toc);
    /* What a hollow pack leaves out is most of it, and reading ahead would make pages of zeros of
     * that. */
    for (size_t i = 0; r == 0 && i < p->toc.n; i++)
        if (p->toc.weight[i].n_made > 0) {
            mapping_scattered(p->map, p->bytes);
            break;
        }
    return r;
}

int pack_open(const char *path, struct pack **out)
{
    struct pack *p = calloc(1, sizeof(*p));
    int r;

    if (!p)
        return fail(-ENOMEM, "%s: no memory", path);
    p->path = strdup(path);
    /* O_NONBLOCK: a FIFO must be refused, not waited for. */
    p->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (p->fd < 0)
        r = fail(-errno, "%s: open: %s", path, strerror(errno));
    else if (!p->path)
        r = fail(-ENOMEM, "%s: no memory", path);
    else
        r = map_file(p);
    if (r == 0)
        r = pack_link_open(p->path, &p->toc);
    if (r == 0)
        r = make_lists(p);
    if (r < 0) {
        pack_close(p);
        return r;
    }
    *out = p;
    return 0;
}

void pack_close(struct pack *p)
{
    if (!p)
        return;
    free(p->table);
    free(p->by_name);
    pack_toc_free(&p->toc);
    if (p->map)
        mapping_close(p->map, p->bytes);
    if (p->fd >= 0)
        close(p->fd);
    free(p->path);
    free(p);
}

const char *pack_name(const struct pack *p)
{
    return p->path;
}

const char *pack_family(const struct pack *p)
{
    return p->toc.family;
}

int pack_rank(const struct pack *p)
{
    return p->toc.rank;
}

int pack_ranks(const struct pack *p)
{
    return p->toc.ranks;
}

int pack_width_unit(const struct pack *p)
{
    return p->toc.width_unit;
}

void pack_prefer(struct pack *p, enum layout l)
{
    p->prefer = l;
}

const uint8_t *pack_set_digest(const struct pack *p)
{
    return p->toc.set_digest;
}

int pack_find_blob(const struct pack *p, const char *name, const char **data, size_t *bytes)
{
    for (int i = 0; i < p->toc.n_blobs; i++) {
        if (strcmp(p->toc.blob[i].name, name) != 0)
            continue;
        *data = p->toc.blob[i].data;
        *bytes = p->toc.blob[i].bytes;
        return 0;
    }
    return 1;
}
