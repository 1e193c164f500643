/* pack_line - the weights of a pack, several at a time: workers take them in order, each reads one,
 * lays it out and hashes it, and their bytes reach the file in order. So the disk is read and
 * written at the same time, while cores compute.
 */
#ifndef TANDEM_MODEL_PACK_LINE_H
#define TANDEM_MODEL_PACK_LINE_H

#include "src/model/pack_file.h"
#include "src/model/pack_part.h"
#include "src/model/pack_sink.h"

/* pack_line_run - write the weights from p->noted on, and show how far they are if stderr is a
 * terminal. total: bytes of weights in the pack.
 * errors   those of the source, of the weights' contents and of the write; the first one ends
 *          all */
int pack_line_run(const char *path, struct source *src, struct pack_toc *t, struct pack_part *p,
                  struct pack_sink *sink, uint64_t total);

#endif
