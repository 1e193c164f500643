/* checkpoint - what packs and other checkpoints are made from: a folder, or weights made up for
 * one.
 *
 *   FOLDER                config.json, tokenizer.json, weights
 *   synth:FOLDER          weights from a hash of their names, bf16; config.json alone is enough:
 *                         without a tokenizer.json a token is a byte
 *   synth+FORMAT:FOLDER   the same in a format of scheme.h, e.g. synth+exl3-v41:FOLDER
 */
#ifndef TANDEM_RANK_CHECKPOINT_H
#define TANDEM_RANK_CHECKPOINT_H

#include "src/model/pack.h"
#include "src/model/scheme.h"
#include "src/rank/packs.h"

struct checkpoint_settings {
    const char *model;
    int rank, ranks;
    int layouts; /* enum pack_layouts; 0: for host backends */
    bool whole_experts, link_rows;
    bool round_mixes;         /* source_mixes_open */
    const char *const *extra; /* files of weights beside the folder's own */
    int n_extra;
};

/* Texts of a checkpoint that its packs carry, in this order; the first must be there. */
enum { TEXT_CONFIG, TEXT_TOKENIZER, TEXT_GENERATION, TEXTS };

struct checkpoint {
    struct checkpoint_settings set;
    const char *folder;
    bool synth;
    struct scheme scheme; /* of a made-up one */
    char *text[TEXTS];
    size_t bytes[TEXTS];
    struct blueprint plan;
    struct tokenizer *tok;
    struct source *source;
    struct pack_spec spec;
};

/* checkpoint_open - everything but what only writing needs.
 * errors   those of the files and of blueprint_open; *step says which code they have */
int checkpoint_open(const struct checkpoint_settings *s, enum exit_step *step,
                    struct checkpoint *out);

/* checkpoint_source - the weights, and what the model derives from the tokenizer. */
int checkpoint_source(struct checkpoint *c);

/* checkpoint_failure - r, the error of a call that read c's weights and wrote files; *step says
 * which of the two has gone wrong. */
int checkpoint_failure(const struct checkpoint *c, int r, enum exit_step *step);

void checkpoint_close(struct checkpoint *c);

/* checkpoint_folder - the folder in a name; *made_up: the weights are. */
const char *checkpoint_folder(const char *model, bool *made_up);

/* checkpoint_tokenizer - the tokenizer.json of a folder, or the one for bytes where a made-up
 * checkpoint has none.   owns   *text, NUL-terminated */
int checkpoint_tokenizer(const char *folder, bool made_up, char **text, size_t *bytes);

#endif
