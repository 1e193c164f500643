/* stop - finds stop strings in text that arrives token by token, and lets through what is certain.
 *
 * Bytes go in as tokens give them; whole characters come out. What could still become a stop
 * string, or half a character, is held back until later bytes decide. The stop string that is
 * complete first wins, of those that end at the same byte the longest: the text ends before it.
 * Feed landed tokens only: nothing here can be taken back.
 *
 *   add, add, ...  1: a stop is complete, out has the last text and the scanner takes no more
 *   end            the text ended otherwise: what was held comes out, half a character as U+FFFD
 */
#ifndef TANDEM_RANK_STOP_H
#define TANDEM_RANK_STOP_H

#include "src/model/text.h"

#include <stdbool.h>

enum { STOPS_MAX = 16, STOP_BYTES_MAX = 256 };

struct stop_scan {
    const char *const *stop; /* borrowed */
    int n;
    bool done;
    struct text held; /* bytes not yet let through */
};

/* stop_check - whether a string may be a stop.   errors   -EINVAL empty, too long or no UTF-8;
 * logged */
int stop_check(const char *stop);

/* stop_init - scan for n checked strings, which stay where they are. stop_free may be called
 * twice. */
void stop_init(struct stop_scan *s, const char *const *stop, int n);
void stop_free(struct stop_scan *s);

/* stop_add - bytes of one more token; text that is certain is appended to out.
 * errors   1 a stop is complete; -ENOMEM */
int stop_add(struct stop_scan *s, const char *bytes, size_t n, struct text *out);

/* stop_end - nothing follows.   errors   -ENOMEM */
int stop_end(struct stop_scan *s, struct text *out);

#endif
