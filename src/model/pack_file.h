/* pack_file - the pack's bytes as structs, for the files that read and write packs; nobody else. */
#ifndef TANDEM_MODEL_PACK_FILE_H
#define TANDEM_MODEL_PACK_FILE_H

#include "src/base/hash.h"
#include "src/model/pack.h"
#include "src/model/pack_link.h"
#include "src/model/stored.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define PACK_MAGIC "TDMPACK\n"
#define PACK_VERSION 2
#define PACK_ALIGN 256
#define PACK_BLOBS_MAX 8
#define WIDTH_UNIT_MAX (1 << 20)
#define PACK_TOC_MAX ((uint64_t)1 << 30)

struct pack_header {
    char magic[8];
    uint32_t version;
    uint32_t complete; /* 1 once everything else is written */
    uint64_t file_bytes, toc_offset, toc_bytes;
    uint8_t toc_digest[XXH3_BYTES];
    uint64_t zero;
};
static_assert(sizeof(struct pack_header) == 64, "pack_header is a file format");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packs are mapped, not converted");

struct pack_weight {
    struct weight d; /* unit, columns and prime are not kept in the file */
    enum dtype dtype;
    struct quant q; /* of the share; EXL3 row tables use bits2 */
    uint64_t offset, bytes;
    uint8_t digest[XXH3_BYTES];
    int64_t *column_rows;   /* WEIGHT_ROWS: rows of each of the d.count columns; owned */
    int64_t *column_first;  /* and of a pack that was read, those before each; owned */
    struct pack_link *link; /* WEIGHT_ROWS: where rows lie that are not here; owned */
    int links;
    uint64_t *made; /* [n_made] where codes are made and not stored, see pack_made; owned */
    int n_made;
    int64_t made_col, made_cols; /* first column tile of the share in the tensor; the tensor's */
};

struct pack_toc {
    char *family;
    int rank, ranks, width_unit, layouts;
    bool whole_experts;
    uint8_t walk_digest[SHA256_BYTES], source_digest[SHA256_BYTES], set_digest[SHA256_BYTES];
    struct pack_blob blob[PACK_BLOBS_MAX]; /* owned; data is NUL-terminated */
    int n_blobs;
    struct pack_weight *weight; /* in file order */
    size_t n;
};

struct pack {
    char *path;
    int fd;
    const unsigned char *map;
    size_t bytes;
    struct pack_toc toc;
    size_t *by_name; /* [toc.n] */
    size_t *table;   /* [n_tables]: which weights are row tables */
    int n_tables;
    enum layout prefer;
};

static inline uint64_t pack_align(uint64_t at)
{
    return (at + PACK_ALIGN - 1) / PACK_ALIGN * PACK_ALIGN;
}

/* pack_share_bytes - what the share takes in the file, by checked arithmetic.   errors   -EINVAL,
 * unlogged */
int pack_share_bytes(const struct pack_weight *w, uint64_t *bytes);

/* pack_toc_encode - errors   -ENOMEM; the caller frees *out */
int pack_toc_encode(const struct pack_toc *t, uint8_t **out, size_t *bytes);

/* pack_toc_decode - every value checked against a file whose data ends at toc_offset. path is for
 * messages.
 * errors   -EINVAL naming the weight; -ENOMEM */
int pack_toc_decode(const char *path, const uint8_t *data, size_t bytes, uint64_t toc_offset,
                    struct pack_toc *out);
void pack_toc_free(struct pack_toc *t);

/* pack_header_check - errors   -EINVAL */
int pack_header_check(const char *path, const struct pack_header *h, uint64_t file_bytes);

/* pack_toc_digest - the set digest of what a table of contents says. */
int pack_toc_digest(const struct pack_toc *t, uint8_t out[SHA256_BYTES]);

/* pack_is_current - 1 if path is a complete pack of this spec, written by this walk; 0 if not,
 * unlogged. */
int pack_is_current(const char *path, const struct pack_spec *spec,
                    const uint8_t walk_digest[SHA256_BYTES]);

/* pack_plan - walk the parts for a rank: names, shapes and shares, without offsets; and the digest
 * of what was walked, equal on all ranks and independent of width_unit.
 * errors   those of the walk; -EINVAL a name used twice; -ENOMEM */
int pack_plan(const struct pack_spec *spec, int width_unit, struct pack_toc *out);

/* pack_find_stored - a weight in a source.   errors   -ENOENT, -EINVAL, -EIO */
int pack_find_stored(struct source *src, const struct pack_weight *w, struct stored *out);

/* pack_check_bias - a bias beside a weight is a weight of the walk, or nothing adds it; one in a
 * matrix's format is none, or it is added twice.   errors   -EINVAL */
int pack_check_bias(const struct pack_toc *t, const struct pack_weight *w,
                    const struct stored *stored);

/* pack_lay_out - the formats of a plan's weights, shares at whole blocks of them, and the place of
 * each. Every tensor is found before the first byte is written, so that a checkpoint that does not
 * fit is refused at once. *end is where the table of contents goes.
 * errors   as pack_find_stored; -EINVAL a share of heads or groups that cuts a block */
int pack_lay_out(const struct pack_spec *spec, struct source *src, struct pack_toc *t,
                 uint64_t *end, uint64_t *total);

/* pack_row_bytes - of a row of a row table. */
int pack_row_bytes(const struct pack_weight *w);

/* pack_mat - a matrix of the table of contents as struct mat, without pointers. */
struct mat pack_mat(const struct pack_weight *w);

/* pack_row_bias - where the biases of an EXL3 row table begin, behind its rows. */
uint64_t pack_row_bias(const struct pack_weight *w);

struct pack_line;

/* struct pack_out - a worker of pack_line.h with the weight that it writes. */
struct pack_out {
    struct pack_line *line;
    const char *path;
    size_t weight;     /* its place in the table of contents */
    uint64_t at;       /* where the next byte goes */
    struct xxh3 *hash; /* of the weight */
    void *in, *out;    /* blocks of PACK_BLOCK bytes */
    void *panel;       /* PACK_PANEL + READ_ALIGN bytes, aligned to READ_ALIGN */
    char *held;        /* bytes of the weight that others are in front of */
    size_t n_held;
    uint64_t held_at;
    bool due; /* nobody is */
};

#define PACK_BLOCK ((size_t)4 << 20)
#define PACK_PANEL ((size_t)32 << 20)
#define PACK_PUT                                                                                   \
    ((size_t)256 << 10) /* laid out at a time, so that it is still at hand when hashed */

/* Where a weight's values come from. */
struct pack_feed {
    struct source *src;
    const struct stored *stored;
};

/* pack_put - the next bytes of the weight: hashed, and on their way to the file. */
int pack_put(struct pack_out *o, const void *data, size_t bytes);

/* pack_room - where at most PACK_BLOCK bytes may be laid out, so that the next pack_put, which must
 * be of them, need not move them. */
void *pack_room(struct pack_out *o, size_t bytes);

/* pack_quantised - write the blob of a matrix, or the rows of a table, that are not plain; called
 * by pack_stream.
 * errors   -EINVAL a code or a scale that is no number, named with file, tensor and offset */
int pack_quantised(struct pack_out *o, const struct pack_feed *feed, const struct pack_weight *w);

/* pack_stored_at - bytes at the front of a share that are not in the file. */
static inline uint64_t pack_stored_at(const struct pack_weight *w)
{
    struct mat m = { .dtype = w->dtype, .q = w->q };
    struct mat_parts parts;
    int64_t rows, cols;

    if (w->n_made == 0)
        return 0;
    weight_local(&w->d, &rows, &cols);
    m.rows = (int)rows;
    m.cols = (int)cols;
    mat_parts(&m, &parts);
    return parts.at[PART_SUH];
}

/* pack_stream - write one weight's share at o->at and leave its digest in w.
 * errors   those of the source and of the write */
int pack_stream(struct pack_out *o, const struct pack_feed *feed, struct pack_weight *w);

#endif
