/* utf8 - which bytes are whole characters, and what to show for those that never will be.
 *
 * Valid is what Unicode calls well-formed: no overlong forms, no surrogates, nothing above
 * U+10FFFF.
 */
#ifndef TANDEM_BASE_UTF8_H
#define TANDEM_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

enum utf8_rest {
    UTF8_NONE, /* everything was whole */
    UTF8_PART, /* the rest begins a character that further bytes may complete; at most 3 bytes */
    UTF8_BAD   /* the rest begins with a byte that no further bytes can save */
};

/* utf8_scan - *whole = how many leading bytes form complete valid sequences; says what follows
 * them.
 */
enum utf8_rest utf8_scan(const char *s, size_t bytes, size_t *whole);

/* utf8_repair - copy what is decided, with U+FFFD for what is not UTF-8.
 *
 * One U+FFFD stands for each longest piece that began like a character ("maximal subpart" of the
 * Unicode standard), so the text is the same however the bytes were cut into calls.
 *
 * in, out  last: no bytes will follow, an unfinished character is replaced too. Otherwise it is
 *          left: *used tells how many bytes were consumed and the caller brings the rest again
 *          out has room for 3 * bytes; returns the bytes written; no NUL is added
 */
size_t utf8_repair(const char *s, size_t bytes, bool last, char *out, size_t *used);

/* utf8_encode - the bytes of a code point, 1 .. 4 of them; U+FFFD for what is no character. */
int utf8_encode(unsigned code, char out[4]);

#endif
