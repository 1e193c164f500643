/* row_store.c owns the choice between the readers. */
#include "src/model/row_store.h"

#include <errno.h>
#include <string.h>

#include "src/base/log.h"

int row_store_open(const struct row_store_settings *s, struct row_store **out)
{
    int r;

    if (strcmp(s->io, "pread") == 0)
        return row_store_pread_open(s, out);
    r = row_store_uring_open(s, out);
    if (r == 0 || r == -ENOMEM)
        return r;
    if (strcmp(s->io, "auto") != 0)
        return fail(-ENODEV, "row store: no io_uring: %s",
                    r == -ENOTSUP ? "not in this build" : strerror(-r));
    log_debug("row store: no io_uring (%s), plain reads", strerror(-r));
    return row_store_pread_open(s, out);
}
