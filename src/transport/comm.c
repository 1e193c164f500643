/* comm - the list of comms. */
#include "src/transport/comm.h"

#include <errno.h>
#include <string.h>

#include "src/base/log.h"
#include "src/transport/comm_table.h"

static const struct comm_ops *const comms[] = { &comm_self_ops, &comm_link_ops, &comm_peer_ops,
                                                &comm_nccl_ops };

int comm_find(const char *name, const struct comm_ops **out)
{
    for (size_t i = 0; i < sizeof(comms) / sizeof(comms[0]); i++) {
        if (strcmp(name, comms[i]->name) == 0) {
            *out = comms[i];
            return 0;
        }
    }
    return fail(-EINVAL, "comm %s: want self, link, peer or nccl", name);
}
