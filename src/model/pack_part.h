/* pack_part - a pack that is not whole yet, and how far it is: what an interrupted run leaves and
 * the next one goes on from. For pack_write.c; the pack's lock is held.
 *
 *   <pack>.part    the pack, its header says that it is not complete
 *   <pack>.done    a key of all that will be in it, then the digest of each weight that is
 */
#ifndef TANDEM_MODEL_PACK_PART_H
#define TANDEM_MODEL_PACK_PART_H

#include "src/base/file.h"
#include "src/model/pack_file.h"
#include "src/model/pack_sink.h"

#include <stddef.h>
#include <stdint.h>

struct pack_part {
    struct new_file file; /* gets its name by new_file_commit */
    char done[PATH_CAP];
    int done_fd;
    size_t noted;   /* weights that the next run need not write again */
    uint64_t since; /* where the file was when they were */
};

/* pack_part_open - begin, or go on: weights 0 .. p->noted - 1 are there already and have their
 * digests in t. end: where the data end, reserved at once so that a disk that is too small says so
 * before hours of reading.
 * errors   -EEXIST a file of this name is nobody's part; -ENOSPC, -EACCES ... */
int pack_part_open(const char *path, struct pack_toc *t, uint64_t end, struct pack_part *p);

/* pack_part_note - weights up to `n` are on their way through the sink, which is at `at`: once in a
 * while they are flushed, synced and noted. */
int pack_part_note(struct pack_part *p, const struct pack_toc *t, size_t n, uint64_t at,
                   struct pack_sink *sink);

/* pack_part_commit - sync, and the pack has its name. */
int pack_part_commit(struct pack_part *p);

/* pack_part_drop - nothing is left. */
void pack_part_drop(struct pack_part *p);

#endif
