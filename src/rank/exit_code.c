/* exit_code.c owns the table from errors to exit codes; codes of a group that fails are
 * control.c's. */
#include "src/rank/exit_code.h"

#include <errno.h>

static int general(int r)
{
    switch (r) {
    case -ENOENT:
        return CODE_MISSING;
    case -ENOMEM:
    case -EMFILE:
    case -ENFILE:
    case -EAGAIN:
        return CODE_RESOURCE;
    case -ENOSPC:
    case -EDQUOT:
    case -EROFS:
        return CODE_WRITE;
    case -ENODEV:
        return CODE_UNAVAILABLE;
    default:
        return 0;
    }
}

int exit_code_of(enum exit_step step, int r)
{
    static const int otherwise[] = { [STEP_CONFIG] = CODE_CONFIG,
                                     [STEP_DATA] = CODE_DATA,
                                     [STEP_WRITE] = CODE_WRITE,
                                     [STEP_DEVICE] = CODE_UNAVAILABLE,
                                     [STEP_ROUND] = CODE_GROUP };
    int code;

    if (r == 0)
        return CODE_DONE;
    code = step == STEP_ROUND ? 0 : general(r);
    return code ? code : otherwise[step];
}
