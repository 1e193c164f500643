/* cmd_config.c owns printing the settings; the table is base/config.c's. */
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"

#include <errno.h>
#include <stdio.h>

int cmd_config(struct options *o)
{
    char value[PATH_CAP];

    if (!o->get)
        return exit_code_of(STEP_WRITE, config_dump(&o->cfg, stdout));
    if (config_get(&o->cfg, o->get, value, sizeof(value)) < 0) {
        fail(-EINVAL, "config: there is no key %s", o->get);
        return CODE_USAGE;
    }
    printf("%s\n", value);
    return CODE_DONE;
}
