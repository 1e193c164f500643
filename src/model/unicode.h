/* unicode - what characters are and their normal forms; the one home of utf8proc.
 *
 * All text here is valid UTF-8 (src/base/utf8.h checks).
 */
#ifndef TANDEM_MODEL_UNICODE_H
#define TANDEM_MODEL_UNICODE_H

#include "src/model/text.h"

#include <stdbool.h>
#include <stddef.h>

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* unicode_normalize - append the normal form of s to out.
 *
 *   in time O(n log n) whatever the text: a run of combining marks is sorted, not bubbled
 *
 * errors   -ENOMEM
 */
int unicode_normalize(enum unicode_form form, const char *s, size_t bytes, struct text *out);

/* unicode_next - the code point that s begins with; returns its bytes, 1 .. 4. bytes > 0. */
int unicode_next(const char *s, size_t bytes, unsigned *code);

/* unicode_last - the same for the code point that s ends with. */
int unicode_last(const char *s, size_t bytes, unsigned *code);

bool unicode_is_space(unsigned code); /* White_Space */
bool unicode_is_mark(unsigned code);  /* categories Mn, Mc, Me */
bool unicode_is_word(unsigned code);  /* \w: letters, marks, numbers, connectors, joiners */

/* unicode_lower - the lowercase of one character alone; U+0130, whose lowercase is two, keeps its
 * first. */
unsigned unicode_lower(unsigned code);

#endif
