/* group_config - the group that a config asks for: the one place that turns settings into those of
 * a group. */
#ifndef TANDEM_RANK_GROUP_CONFIG_H
#define TANDEM_RANK_GROUP_CONFIG_H

#include "src/base/config.h"
#include "src/rank/control.h"

/* What the settings of a group point at; has to live as long as they do. */
struct group_texts {
    char *agree; /* what must be equal, as the group compares it */
    char host[RANKS_MAX][256];
    const char *hosts[RANKS_MAX];
};

/* group_of_config - without what a config does not know: hub, progress, listener, cancel, on_fail.
 *
 * owns     t, by its caller: group_texts_free, in any case
 * errors   -EINVAL hosts, -ENAMETOOLONG, -ENOMEM */
int group_of_config(const struct config *c, struct group_texts *t, struct group_settings *out);
void group_texts_free(struct group_texts *t);

#endif
