/* tokenizer - text to token ids, as a Hugging Face tokenizer.json with byte-level BPE describes it.
 *
 *   text -> added tokens | normalizers -> pre-tokenizers -> words -> merges -> ids
 *
 * Understood, everything else is refused by its type:
 *
 *   normalizers     NFC NFD NFKC NFKD Prepend Replace Sequence
 *   pre-tokenizers  Split (all behaviors, invert), Digits, Sequence; ByteLevel, once and last
 *   model           BPE without dropout and affixes; ignore_merges
 *   post-processor  ByteLevel, TemplateProcessing, Sequence: what stands before the text is the bos
 *   decoder         ByteLevel, Sequence of it
 *
 * A *marker* is an added token that structures a prompt: one that is special, or whose text begins
 * with < and ends with >, as some files do not call their turn markers special. Text that a user
 * types never becomes a marker unless the caller asks for it; other added tokens (runs of spaces,
 * say) are vocabulary.
 *
 * A tokenizer does not change once open: any number of threads may use one.
 */
#ifndef TANDEM_MODEL_TOKENIZER_H
#define TANDEM_MODEL_TOKENIZER_H

#include "src/model/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKENIZER_JSON_MAX ((size_t)256 << 20)
#define TOKENIZER_TEXT_MAX ((size_t)1 << 30)

struct tokenizer;

/* tokenizer_open - read the bytes of a tokenizer.json; name begins every message about it.
 * errors   -EINVAL with the path in the file and the cause; -EFBIG; -ENOMEM
 */
int tokenizer_open(const char *json, size_t bytes, const char *name, struct tokenizer **out);
void tokenizer_close(struct tokenizer *t);

enum encode_flag {
    ENCODE_BOS = 1,    /* put in front what the post-processor puts before a text */
    ENCODE_MARKERS = 2 /* the text of a marker is that marker */
};

/* tokenizer_encode - the ids of a text.
 *
 * in, out  text: any bytes; flags: enum encode_flag, or 0
 *          *ids holds *n ids, the caller frees it; *ids may be NULL if *n is 0
 * errors   -EILSEQ `prompt byte N is not UTF-8`; -EFBIG above TOKENIZER_TEXT_MAX, normalized text
 *          included; -ETIME if a pattern of the file takes too long on this text; -ENOMEM
 */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, unsigned flags,
                     int32_t **ids, int *n);

/* tokenizer_decode - the text of ids: all deltas of a struct detok (src/model/detok.h), joined.
 *
 * in, out  *text is NUL-terminated behind its *bytes; the caller frees it
 * errors   -ENOMEM
 */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int n, bool skip_special,
                     char **text, size_t *bytes);

/* tokenizer_vocab - the largest id + 1. */
int tokenizer_vocab(const struct tokenizer *t);

/* tokenizer_id - the id of a token by its text (added tokens) or its spelling in the file; -1:
 * none. */
int tokenizer_id(const struct tokenizer *t, const char *spelling);

/* tokenizer_flags - enum token_flag bits of an id; 0 if no token has it. */
unsigned tokenizer_flags(const struct tokenizer *t, int id);

/* tokenizer_bytes - the bytes that a token stands for, perhaps a part of a character; an added
 * token's are its text. NULL if no token has the id. Not NUL-terminated.
 */
const char *tokenizer_bytes(const struct tokenizer *t, int id, size_t *bytes);

/* tokenizer_spelling - the same token as the file spells it. */
const char *tokenizer_spelling(const struct tokenizer *t, int id, size_t *bytes);

/* tokenizer_longest - bytes of the longest token. */
size_t tokenizer_longest(const struct tokenizer *t);

#endif
