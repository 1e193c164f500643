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

/* prompt_read - what one of --prompt, --prompt-file, --ids gives. Texts get the begin token in
 * front unless --no-bos; ids are taken as they are, each below `vocab`.
 * result   an exit code: 66 no such file, 65 not UTF-8, not ids; an ids file without any. A text
 *          may be none
 * owns     ids; the caller frees them */
int prompt_read(const struct options *o, const struct given *g, const struct tokenizer *t,
                int vocab, struct prompt *out);

/* prompt_name - what messages call it: the file, "prompt 2" where the line has several, else NULL.
 * Borrowed from the options or from buf. */
#define PROMPT_NAME_CAP 32
const char *prompt_name(const struct options *o, const struct given *g, char buf[PROMPT_NAME_CAP]);

/* prompt_encode - a text as a prompt. */
int prompt_encode(const struct tokenizer *t, const char *text, size_t bytes, unsigned flags,
                  struct prompt *out);

#define PROMPTS_MAX 64

/* A text of a folder of prompts. */
struct named_prompt {
    char name[64]; /* of its file, without .txt */
    char *text;
    struct prompt prompt;
};

/* prompt_folder - every *.txt of a folder in the order of their names. A text is taken as it is,
 * but for the newline that an editor leaves at its end; markers in it count.
 * in, out  out[PROMPTS_MAX]; *n of them were read, after an error too
 * result   an exit code: 66 no such folder, 65 none or too many texts, and as prompt_encode
 * owns     prompts_free gives them back */
int prompt_folder(const char *folder, const struct tokenizer *t, struct named_prompt *out, int *n);
void prompts_free(struct named_prompt *p, int n);

/* prompt_fits - a model can begin with it. name: whose the message is, NULL if there is only one.
 * result   0; 65 if it is empty, or too long with both numbers in the message */
int prompt_fits(const struct prompt *p, int context, const char *name);

#endif
