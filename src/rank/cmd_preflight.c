/* cmd_preflight.c owns `tandem preflight`: the facts of this machine, or the verdict on those of
 * all of them. */
#include "src/base/log.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"
#include "src/rank/preflight.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int cmd_preflight(struct options *o)
{
    struct facts *f = calloc(PREFLIGHT_RANKS_MAX, sizeof(*f));
    int n = 0, bad, r = 0;

    if (!f)
        return exit_code_of(STEP_DATA, fail(-ENOMEM, "preflight: no memory"));
    for (; r == 0 && n < PREFLIGHT_RANKS_MAX && o->word[n]; n++)
        r = facts_read(o->word[n], &f[n]);
    if (r == 0 && n == 0) {
        log_open(o->cfg.rank, LOG_WARN);
        if (o->meet)
            facts_meet(&o->cfg, f);
        else
            facts_gather(&o->cfg, f);
        facts_write(f, stdout);
    }
    bad = r == 0 && n > 0 ? facts_judge(f, n, stdout) : 0;
    free(f);
    return r < 0 ? exit_code_of(STEP_DATA, r) : bad ? CODE_NO : CODE_DONE;
}
