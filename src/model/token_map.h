/* token_map - compressed token ids for Engram: tokens that read alike share one.
 *
 *   key(id) = the token's spelling                          if its text is not UTF-8 by itself,
 *             squeeze(lower(strip_marks(NFD(NFKC(text)))))  else; the text itself if that is empty
 *
 *   squeeze: runs of space, tab, CR, LF -> one space; exactly one space stays, else spaces at both
 *   ends go
 *
 * Compressed ids, the classes that src/model/engram_hash.h hashes, count the distinct keys in order
 * of first appearance over ascending id.
 */
#ifndef TANDEM_MODEL_TOKEN_MAP_H
#define TANDEM_MODEL_TOKEN_MAP_H

#include "src/model/engram_hash.h"
#include "src/model/tokenizer.h"

#include <stdint.h>

/* token_map_build - the map of all ids of a model.
 *
 * in, out  map [vocab]: the compressed id, 0 where the tokenizer has no token; the caller frees it
 *          want: how many distinct ids the model was made with
 * errors   -EINVAL: other than want, or the tokenizer has ids beyond vocab; -ENOMEM
 * source   the released inference/engram.py; docs/DECODE.md "engram"
 */
int token_map_build(const struct tokenizer *t, int vocab, int want, int32_t **map);

#endif
