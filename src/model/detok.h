/* detok - ids to text, one at a time, never half a character.
 *
 *   put(id) gives the text that is decided by now, finish gives the rest; all of it joined is the
 *   same
 *   however ids and bytes are grouped. Bytes that end inside a character wait for the next id.
 *   Bytes that
 *   can no longer become valid become one U+FFFD for each longest piece that began like a
 *   character; at
 *   finish the same happens to what still waits.
 */
#ifndef TANDEM_MODEL_DETOK_H
#define TANDEM_MODEL_DETOK_H

#include "src/model/tokenizer.h"

struct detok;

/* detok_open - skip_special: special tokens give no text, and characters may continue across them.
 *
 * errors   -ENOMEM; later calls allocate nothing and do not fail
 * owns     its buffer; borrows the tokenizer
 */
int detok_open(const struct tokenizer *t, bool skip_special, struct detok **out);
void detok_close(struct detok *d);

/* detok_put - the bytes of valid UTF-8 that id adds, perhaps none; an id without a token adds none.
 * *text stays until the next call and is not NUL-terminated.
 */
size_t detok_put(struct detok *d, int id, const char **text);

/* detok_finish - what waits, replaced; the detokenizer then starts anew. */
size_t detok_finish(struct detok *d, const char **text);

#endif
