/* added - finds added tokens in text, before it is split into words. */
#ifndef TANDEM_MODEL_ADDED_H
#define TANDEM_MODEL_ADDED_H

#include "src/model/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ADDED_BYTES_MAX 1024 /* of one token's text */

struct added_token {
    int32_t id;
    size_t text, bytes;  /* what to look for, in the arena */
    bool lstrip, rstrip; /* takes the spaces before, behind */
    bool single_word;    /* only where no word continues on either side */
    bool marker;
};

/* struct added_set - starts as { 0 }: add all tokens, sort once, find. */
struct added_set {
    struct added_token *tokens; /* ordered by text */
    int n, cap;
    int first[257]; /* tokens of first byte b: first[b] .. first[b + 1] - 1 */
    struct text arena;
};

/* added_put - token->text is set here; errors -ENOMEM, -EINVAL for a text that is empty or too
 * long. */
int added_put(struct added_set *a, struct added_token token, const char *text, size_t bytes,
              const char *name);
void added_sort(struct added_set *a);
void added_free(struct added_set *a);

struct added_match {
    int32_t id;
    size_t start, end; /* stripped spaces included */
    size_t next;       /* where to go on looking; start with { 0 } */
};

/* added_next - the next added token: the first place, there the longest, not overlapping the last
 * one.
 *
 * in, out  markers: also those that are markers; else their text is text
 *          returns false if there is none
 */
bool added_next(const struct added_set *a, const char *s, size_t bytes, bool markers,
                struct added_match *m);

#endif
