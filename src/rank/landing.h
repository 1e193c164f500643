/* landing - which of the tokens that the ranks accepted become part of a reply, and what text they
 * add.
 *
 * Tokens are walked in order, and the first reason to end decides: an end token before a stop
 * string before the limit at the same token. What lies behind is as if it had never been produced.
 * The token that ends a reply is the last of its ids; an end token has no text, and text ends
 * before a stop string.
 */
#ifndef TANDEM_RANK_LANDING_H
#define TANDEM_RANK_LANDING_H

#include "src/model/text.h"
#include "src/rank/stop.h"

#include <stdbool.h>
#include <stdint.h>

/* Why a reply ended. */
enum finish {
    FINISH_NONE, /* it goes on */
    FINISH_END,  /* an end token */
    FINISH_STOP, /* a stop string */
    FINISH_LENGTH,
    FINISH_INTERRUPTED, /* a signal asked the ranks to leave */
    FINISH_CANCELLED,   /* whoever asked no longer wants it */
    FINISH_ERROR,       /* the ranks failed */
    FINISHES
};

/* The bytes of a token, NULL for one without text. */
typedef const char *token_bytes_fn(const void *arg, int32_t tok, size_t *bytes);

struct landing {
    int left;           /* tokens that may still land, at least 1 while it goes on */
    const int32_t *end; /* tokens that end a reply; none if they are ignored */
    int ends;
    token_bytes_fn *bytes;
    const void *arg;
    struct stop_scan scan;
    int32_t *ids; /* what landed: room for all, the caller's */
    int n;
    struct text *text; /* what is certain is appended; the caller's */
};

/* landing_is_end - whether a token would end the reply. */
bool landing_is_end(const struct landing *l, int32_t tok);

/* landing_take - land accepted tokens.
 *
 * in, out  n at least 1; *f says whether and why the reply is over
 * errors   -ENOMEM; else how many of them landed, 1 .. n */
int landing_take(struct landing *l, const int32_t *tok, int n, enum finish *f);

/* landing_cut - the reply ends here for another reason: what was held back becomes text.
 * errors   -ENOMEM */
int landing_cut(struct landing *l);

void landing_free(struct landing *l);

#endif
