/* packs - where a rank's weights come from: a folder of packs, or a checkpoint that is packed when
 * first used.
 *
 *   model folder holds rank<r>.pack      opened as it is
 *   a checkpoint (checkpoint.h)          packed into the cache, each rank its own share, for the
 *                                        setting `backend`
 */
#ifndef TANDEM_RANK_PACKS_H
#define TANDEM_RANK_PACKS_H

#include "src/base/config.h"
#include "src/base/file.h"
#include "src/model/walk.h"
#include "src/rank/exit_code.h"

#include <stdbool.h>
#include <stddef.h>

struct checkpoint_settings;
struct drafter;
struct json;
struct model;
struct pack;
struct tokenizer;

/* struct blueprint - model and drafter as a config.json describes them, cut for one rank, without
 * weights. The drafter is the checkpoint's own, whatever the setting `draft` says: a pack carries
 * its weights and a bind asks for them. */
struct blueprint {
    struct json *config;
    struct model *model;
    struct drafter *drafter;
    struct walk_part part[2];
};

#define BLUEPRINT_PARTS 2

/* blueprint_open - from the text of a config.json.
 *
 * in       family: the name that a pack carries, NULL to go by model_type; width_unit: the pack's,
 *          1 while packing
 * errors   -EINVAL, with *step STEP_CONFIG if only the number of ranks does not fit, else STEP_DATA
 * owns     everything in it; blueprint_close may be called on an empty one */
int blueprint_open(const char *text, size_t bytes, const char *family, bool cache_quant, int rank,
                   int ranks, int width_unit, enum exit_step *step, struct blueprint *out);
void blueprint_close(struct blueprint *b);

/* packs_write - pack a rank's share of a checkpoint into path.
 * errors   those of the files and of pack_write; *step says which code they have */
int packs_write(const struct checkpoint_settings *s, const char *path, enum exit_step *step);

/* packs_match - 1 if a pack is what packs_write would write, as far as names, sizes and times of
 * the
 * checkpoint's files tell; 0 if not.   errors   those of packs_write */
int packs_match(const struct checkpoint_settings *s, const struct pack *p, enum exit_step *step);

/* packs_path - "<folder>/rank<r>.pack" */
int packs_path(const char *folder, int rank, char path[PATH_CAP]);

/* packs_open - the pack of this rank by the settings model, cache and ranks; made first if need be.
 * errors   -ENOENT no such folder, or a folder of packs without this rank's; -EINVAL, -ENOSPC ...;
 *          *step as above */
int packs_open(const struct config *c, enum exit_step *step, struct pack **out);

/* packs_find - the same of a pack that is there already; outcome 1: it would have to be made. */
int packs_find(const struct config *c, enum exit_step *step, struct pack **out);

/* packs_tokenizer - the tokenizer of a checkpoint or pack folder; nothing is packed for it. Errors
 * as above. */
int packs_tokenizer(const struct config *c, enum exit_step *step, struct tokenizer **out);

#endif
