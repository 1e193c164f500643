/* pack - one rank's weights in one file that a decoder maps and never copies.
 *
 * File: 64-byte header (magic, version, offsets, sizes), data aligned to 256 bytes a weight, then
 * a protobuf-c table of contents: family, the checkpoint's config.json, tokenizer.json,
 * generation_config.json, named blobs that were derived while packing (the Engram token map),
 * split, walk digest, and per weight its name, kind, format, share, offset, bytes and XXH3-128
 * digest. A quantised matrix lies as kernels/mat.h says, for host backends, for devices, or twice.
 * A pack is complete when its header says so: it is written under a temporary name, synced and
 * renamed. Numbers are little-endian. A reader refuses other versions; a change of what any byte
 * means is a new version.
 */
#ifndef TANDEM_MODEL_PACK_H
#define TANDEM_MODEL_PACK_H

#include "src/base/file.h"
#include "src/model/walk.h"

#include <stddef.h>
#include <stdint.h>

#define SET_DIGEST_BYTES 32

struct pack;
struct source;

/* A named text or blob carried by the pack. */
struct pack_blob {
    const char *name;
    const void *data;
    size_t bytes;
};

/* Bits: what quantised matrices are laid out for. */
enum pack_layouts { PACK_CPU = 1, PACK_DEVICE = 2, PACK_BOTH = 3 };

struct pack_spec {
    const char *family;        /* name of the family */
    struct pack_blob blobs[8]; /* config.json, tokenizer.json, ...; unused entries have no name */
    const struct walk_part *parts;
    int n_parts;
    int rank, ranks;
    int layouts;        /* enum pack_layouts; 0 is PACK_CPU */
    bool whole_experts; /* an expert lies on one rank, instead of a part of its width on each */
    bool link_rows;     /* rows of lookup tables stay where the source has them */
    /* EXL3 codes that a source makes up, in the device's layout, are left out */
    bool hollow;
    /* whether the checkpoint may not have a tensor of this name that nobody uses; NULL: it may have
     * any */
    bool (*needs)(const char *name);
    uint8_t source_digest[32];
};

/* pack_write - this rank's share of a source into path; progress on stderr if it is a terminal.
 *
 * A lock beside path keeps two processes apart: the second waits and finds the pack that the first
 * has made. A run that was killed leaves path.part and path.done; the next one goes on from there
 * if it would write the same, and begins anew if not. Memory stays below 256 MiB beside the table
 * of contents; what was read and written does not stay in the page cache.
 *
 * errors   -ENOENT/-EINVAL a tensor is missing, has another shape, holds what is no number or is
 *          needed and not used (named), a share would cut a block of its format; -ENOSPC, -EACCES
 *          cannot write; nothing is left behind but path itself, complete */
int pack_write(const char *path, const struct pack_spec *spec, struct source *src);

/* pack_is_of - 1 if an open pack is of this spec: source, rank, split, layouts and walk; 0 if not.
 * errors   those of pack_write about the walk */
int pack_is_of(const struct pack *p, const struct pack_spec *spec);

/* pack_cached - the pack of a checkpoint in `cache`: <source digest>-<ranks>/rank<r>.pack, written
 * at first use and again when the walk has changed; -device and -whole behind the ranks keep packs
 * of another layout and another cut apart, -hollow those without the codes that a device can make.
 *
 * in, out  src may be NULL; then nothing is written. path is written on success and on outcome 1
 * errors   outcome 1: not there and src is NULL; else those of pack_write */
int pack_cached(const char *cache, const struct pack_spec *spec, struct source *src,
                char path[PATH_CAP]);

/* pack_open - map a pack and check its header, table of contents, sizes and offsets.
 * errors   -ENOENT; -EINVAL not a pack, truncated, another version, a table that does not fit the
 *          file */
int pack_open(const char *path, struct pack **out);
void pack_close(struct pack *p);

/* pack_prefer - which layout pack_bind takes where a matrix has two; LAYOUT_CPU at first. */
void pack_prefer(struct pack *p, enum layout l);

/* pack_bind - walk the parts and point every target into the map; every weight of the pack must be
 * asked for, once, with its kind, shape and share.
 * errors   -EINVAL naming the first difference; targets may be bound in part then */
int pack_bind(struct pack *p, const struct walk_part *parts, int n_parts);

const char *pack_family(const struct pack *p);
int pack_rank(const struct pack *p);
int pack_ranks(const struct pack *p);
int pack_width_unit(const struct pack *p); /* see walk.h */

/* pack_find_blob - 1 if there is none; the bytes live as long as the pack and are
 * NUL-terminated. */
int pack_find_blob(const struct pack *p, const char *name, const char **data, size_t *bytes);

/* pack_set_digest - SHA-256 over config, tokenizer and derived blobs (all but
 * generation_config.json), walk, split, types, and the digests of all replicated weights: equal in
 * the packs of all ranks of one split, different for other weights. */
const uint8_t *pack_set_digest(const struct pack *p);

/* pack_set_part - SHA-256 of part i of what the set digest is made of, and its name: which part it
 * is
 * that differs between packs. 1 behind the last part.   errors   -ENOMEM */
int pack_set_part(const struct pack *p, int i, const char **name, uint8_t out[SET_DIGEST_BYTES]);

/* pack_made - the hashes of the slices of a matrix whose codes are not in the file but made (op
 * synth); 0 hashes if they are there. name as in the walk; the hashes live as long as the pack.
 * tile_* are those of the op. */
struct pack_made {
    const uint64_t *hash;
    int n;
    int64_t tile_row, tile_col, tile_cols;
};
void pack_made(const struct pack *p, const char *name, struct pack_made *out);

/* pack_verify - read everything again and compare digests.
 * errors   -EBADMSG naming the first weight that differs; -EIO */
int pack_verify(struct pack *p);

/* pack_list - one line a weight on out (a FILE *): name, kind, format, bits, shape, share, bytes,
 * digest. */
void pack_list(const struct pack *p, void *out);

/* pack_item - weight i of a pack, in file order; 1 behind the last. Of a matrix with two layouts
 * the second one has `again` set. */
struct pack_item {
    const char *name;
    enum weight_kind kind;
    int64_t rows, cols; /* of the whole weight */
    uint64_t bytes;     /* of the share */
    int row_bytes;      /* WEIGHT_ROWS */
    int columns;        /* WEIGHT_ROWS: of the share */
    const char *linked; /* WEIGHT_ROWS: the file that the rows stay in, or NULL */
    enum dtype dtype;
    struct quant q; /* of the share */
    bool again;
};
int pack_item(const struct pack *p, size_t i, struct pack_item *out);

/* Where the rows of a hash column lie. Row i is bytes bytes from offset + i * bytes on of each
 * piece, one behind the other; a row that lies in one piece has none in the second. */
struct pack_rows {
    int64_t rows;
    int file; /* a number of the first piece's file: 0 is the pack, up to 255 */
    struct {
        int fd; /* the pack's */
        uint64_t offset;
        size_t bytes;
    } piece[2];
};

/* pack_rows_at - of local column c of a row table.   errors   -EINVAL no such table or column */
int pack_rows_at(const struct pack *p, int table, int column, struct pack_rows *out);

/* pack_rows_size - rows of all row tables here, and bytes of the longest; 0 and 0 without
 * tables. */
void pack_rows_size(const struct pack *p, uint64_t *rows, size_t *longest);

/* pack_name - the path it was opened by, for messages. */
const char *pack_name(const struct pack *p);

/* source_digest - cheap key of a checkpoint folder for the cache: SHA-256 over config, tokenizer,
 * index, shard headers, sizes and mtimes. Never compared between machines.
 * errors   -ENOENT no config.json or a shard is missing; -EINVAL a broken index or shard */
int source_digest(const char *folder, uint8_t out[32]);

#endif
