/* pack_link - rows of a lookup table that stay in the checkpoint's files: a pack that links says
 * where they lie, and its file is opened with it. For the files that read and write packs.
 *
 * A row is one piece, or two where a checkpoint keeps codes and scales apart.
 */
#ifndef TANDEM_MODEL_PACK_LINK_H
#define TANDEM_MODEL_PACK_LINK_H

#include <stddef.h>
#include <stdint.h>

#include "src/base/hash.h"

#define LINKS_MAX 2

struct pack_toc;
struct pack_weight;
struct stored;

struct pack_link {
    char *path;          /* absolute; owned */
    uint64_t file_bytes; /* of the whole file: it is another one if this, or the digest, differs */
    uint8_t digest[XXH3_BYTES]; /* of its first bytes */
    uint64_t offset;            /* of the share's first row */
    int fd;                     /* -1 while closed */
};

/* pack_link_bytes - of a row in piece 0 .. LINKS_MAX - 1; 0 if its format has no such piece. */
size_t pack_link_bytes(const struct pack_weight *w, int piece);

/* pack_link_make - the links of a row table's share.
 * errors   -EINVAL the weight is in no file; those of the file */
int pack_link_make(struct pack_weight *w, const struct stored *stored);

/* pack_link_open - open the files of all links of a pack of this name, and check that they are
 * those
 * that were linked.   errors   -ENOENT, -EINVAL naming weight and file */
int pack_link_open(const char *pack, struct pack_toc *t);

/* pack_link_check - the values of a link that came out of a file.   errors   -EINVAL */
int pack_link_check(const char *pack, const struct pack_weight *w);

void pack_link_free(struct pack_weight *w);

#endif
