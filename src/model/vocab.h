/* vocab - the tokens of a tokenizer: id, spelling in the file, and the bytes that they stand for.
 *
 * A file spells the bytes of ordinary tokens with 256 printable characters, the byte alphabet; a
 * token with any other character stands for its own UTF-8, and so do added tokens.
 */
#ifndef TANDEM_MODEL_VOCAB_H
#define TANDEM_MODEL_VOCAB_H

#include "src/model/text.h"

#include <stdint.h>

#define VOCAB_MAX (1 << 20)
#define VOCAB_TOKEN_BYTES 65535 /* longest spelling */

enum token_flag {
    TOKEN_KNOWN = 1,   /* the id is used; ids may have gaps */
    TOKEN_ADDED = 2,   /* found in text before it is split */
    TOKEN_SPECIAL = 4, /* an added token that detokenizing can leave out */
    TOKEN_MARKER = 8   /* an added token that structures a prompt: see src/model/tokenizer.h */
};

struct token {
    uint32_t raw, bytes; /* offsets into the arena */
    uint16_t n_raw, n_bytes;
    unsigned flags;
};

/* struct vocab - starts as { 0 }; vocab_free frees what the calls below allocated. */
struct vocab {
    struct token *tokens;
    int n, cap; /* n = largest id + 1 */
    int count;  /* ids in use */
    int longest_raw, longest_bytes;
    int32_t *slots; /* open addressing by spelling: id + 1, 0 is free */
    uint32_t mask;
    struct text arena;
};

/* vocab_put - add a token. An added token may repeat an ordinary one, with the same id.
 *
 * in, out  name begins the messages; flags without TOKEN_KNOWN
 * errors   -EINVAL: id out of range or taken, spelling taken, empty or too long; -ENOMEM
 */
int vocab_put(struct vocab *v, const char *raw, int64_t id, unsigned flags, const char *name);

/* vocab_find - the id of a spelling; -1 if there is none. */
int vocab_find(const struct vocab *v, const char *raw, size_t bytes);

/* vocab_token - NULL unless id is in use. */
const struct token *vocab_token(const struct vocab *v, int64_t id);

void vocab_free(struct vocab *v);

/* byte_letter - the character of the byte alphabet for a byte, as UTF-8; returns its 1 or 2
 * bytes. */
int byte_letter(unsigned char byte, char out[4]);

#endif
