/* row_store_uring_none.c stands for row_store_uring.c in a build without liburing. */
#include "src/model/row_store.h"

#include <errno.h>

int row_store_uring_open(const struct row_store_settings *s, struct row_store **out)
{
    return -ENOTSUP;
}
