/* prompt - what the command line gives to run: a text, or token ids. */
#ifndef TANDEM_RANK_PROMPT_H
#define TANDEM_RANK_PROMPT_H

#include "src/rank/options.h"

#include <stdint.h>

struct tokenizer;

struct prompt {
    int32_t *ids;
    int n;
};

/* prompt_read - what one of --prompt, --prompt-file, --ids gives. Texts get the begin token in front unless
 * --no-bos; ids are taken as they are, each below `vocab`.
 * result   an exit code: 66 no such file, 65 not UTF-8, not ids; an ids file without any. A text may be none
 * owns     ids; the caller frees them */
int prompt_read(const struct options *o, const struct given *g, const struct tokenizer *t,
                int vocab, struct prompt *out);

/* prompt_encode - a text as a prompt. */
int prompt_encode(const struct tokenizer *t, const char *text, size_t bytes, unsigned flags,
                  struct prompt *out);

/* prompt_fits - a model can begin with it.
 * result   0; 65 if it is empty, or too long with both numbers in the message */
int prompt_fits(const struct prompt *p, int context);

#endif
