/* names - where the tensor of a released name may lie in checkpoints of other name generations.
 *
 * Released names are those of the release: embed.weight, layers.3.attn.wq_a.weight. Generation A
 * puts `model.` before them and calls the head lm_head.weight. Generation B has module names of
 * its own, keeps all experts of a layer in one tensor, and counts n-gram tables instead of naming
 * their layer. Names that begin with `model.` are released names themselves (dense models); the
 * prefix may be missing. What stands behind a # tells two uses of one tensor apart: `#head` is an
 * embedding as the head, which quantisers store beside it as lm_head.
 */
#ifndef TANDEM_MODEL_NAMES_H
#define TANDEM_MODEL_NAMES_H

#include <stdbool.h>

#define TENSOR_NAME_MAX 256
#define PLACES_MAX 24

/* One place to look: a tensor that is the weight, or [experts][parts * rows][cols] of which it is
 * a slice. */
struct name_place {
    char name[TENSOR_NAME_MAX];
    bool fused;
    int expert, part, parts;
    bool by_shape;  /* one of several numbered tensors: the one whose shape fits */
    bool quantised; /* instead of the other places, unless it is plain */
};

/* name_places - every place of a released name, the released name first; returns how many. */
int name_places(const char *released, struct name_place places[PLACES_MAX]);

#endif
