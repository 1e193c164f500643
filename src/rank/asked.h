/* asked - requests as users write them, on the command line or a line of JSON each, checked before
 * any rank is met.
 *
 * A line of a jobs file is one object. Its prompt is `prompt`, a text, or `ids`; everything else
 * may be missing and is then as on the command line. The fields are in docs/DECODE.md "requests".
 */
#ifndef TANDEM_RANK_ASKED_H
#define TANDEM_RANK_ASKED_H

#include "src/rank/options.h"

#include <stddef.h>
#include <stdint.h>

struct json;
struct tokenizer;

/* One request with everything that it borrows. */
struct asked {
    struct request q; /* but for on_text */
    int replies;
    bool seeded;    /* or the seed is still to be drawn */
    const char *id; /* of a job that has one, else NULL */
    int32_t *ids, *stop_id;
    struct logit_bias *bias;
    const char **stop;
    struct json *job; /* its strings */
};

struct asked_list {
    struct asked *at;
    int n;
};

/* What a request is checked against, and what it is made of where it says nothing. */
struct asking {
    const struct options *o;
    const struct tokenizer *tok;
    int vocab, context;
};

/* asked_read - everything that the command line gives; seeds that are missing are drawn and logged.
 * result   an exit code: of prompt.h; 65 what a job or an option asks for is wrong, the line and
 *          field named
 * owns     asked_free gives back all, after an error too */
int asked_read(const struct asking *a, struct asked_list *out);
void asked_free(struct asked_list *l);

/* asked_job - one line; name begins every message.
 * result   an exit code; *out is whole or untouched */
int asked_job(const struct asking *a, const char *text, size_t bytes, const char *name,
              struct asked *out);
void asked_drop(struct asked *q);

#endif
