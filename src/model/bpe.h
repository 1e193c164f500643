/* bpe - byte-level byte pair encoding of one word.
 *
 *   A word starts as its bytes, one token each. Of all neighbours that the merge table joins, the
 *   pair
 *   with the lowest rank (the leftmost of equals) is joined, again and again until none is left.
 *
 * A heap holds the pairs, so a word of n bytes takes O(n log n) whatever it says.
 */
#ifndef TANDEM_MODEL_BPE_H
#define TANDEM_MODEL_BPE_H

#include "src/base/json.h"
#include "src/model/vocab.h"

#include <stdbool.h>

/* struct ids - token ids that grow. Starts as { 0 }. */
struct ids {
    int32_t *id;
    size_t n, cap;
};

int ids_add(struct ids *l, int32_t id); /* -ENOMEM */

struct bpe;

/* bpe_open - read the merge table of the model object of a tokenizer.json.
 *
 * in, out  whole_words: a word that is a token is that token, whatever the merges would make of it
 *          v holds all tokens already; it is borrowed
 * errors   -EINVAL: a merge is no pair or names no token; a byte of UTF-8 text has no token;
 *          -ENOMEM
 */
int bpe_open(const struct json *merges, const struct vocab *v, bool whole_words, struct bpe **out);
void bpe_close(struct bpe *b);

/* struct bpe_scratch - of one thread; starts as { 0 }. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    struct bpe_pair *heap;
    size_t cap;
    struct text spelling;
};

void bpe_scratch_free(struct bpe_scratch *s);

/* bpe_word - append the tokens of a word of UTF-8.
 *
 * in, out  a TOKEN_MARKER is never made here, only found by the tokenizer
 * errors   -ENOMEM
 */
int bpe_word(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t bytes,
             struct ids *out);

#endif
