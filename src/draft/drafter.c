/* drafter.c owns the list of drafters and the meaning of the setting `draft`. */
#include "src/draft/drafter.h"

#include "src/base/log.h"
#include "src/draft/draft_table.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* What `auto` tries comes first, in this order; the others are asked for by name. */
static const struct {
    const struct drafter_ops *ops;
    bool in_auto;
} drafters[] = {
    { &draft_dspark, true }, { &draft_mtp, true },     { &draft_none, true },
    { &draft_ngram, false }, { &draft_oracle, false }, { &draft_random, false },
};

#define DRAFTERS (sizeof(drafters) / sizeof(drafters[0]))

int drafter_open(const char *name, const struct json *config, struct model *m, struct drafter **out)
{
    char names[128] = "auto";
    bool any = strcmp(name, "auto") == 0;

    for (size_t i = 0; i < DRAFTERS; i++) {
        int r;

        strcat(names, ", ");
        strcat(names, drafters[i].ops->name);
        if (any ? !drafters[i].in_auto : strcmp(name, drafters[i].ops->name) != 0)
            continue;
        r = drafters[i].ops->open(config, m, out);
        if (r == 1 && any)
            continue;
        if (r == 1)
            return fail(-EINVAL, "draft: the checkpoint has no %s drafter", name);
        return r;
    }
    return fail(-EINVAL, "draft: %s is not in this build, want one of %s", name, names);
}
