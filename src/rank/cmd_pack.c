/* cmd_pack.c owns the making and checking of packs. */
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/pack.h"
#include "src/rank/checkpoint.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"
#include "src/rank/packs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Packs of one split that do not belong together are worse than none: their set digests must be
 * equal. */
static int verify(const char *path, uint8_t set[SET_DIGEST_BYTES], bool first)
{
    struct pack *p;
    int r = pack_open(path, &p), code;

    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    r = pack_verify(p);
    code = r == -EBADMSG ? CODE_NO : exit_code_of(STEP_DATA, r);
    if (first) {
        memcpy(set, pack_set_digest(p), SET_DIGEST_BYTES);
    } else if (code == 0 && memcmp(set, pack_set_digest(p), SET_DIGEST_BYTES) != 0) {
        fail(-EBADMSG, "pack %s is of another set than the first one", path);
        code = CODE_NO;
    }
    pack_close(p);
    if (code == 0)
        log_info("pack %s: every digest holds", path);
    return code;
}

int cmd_pack(struct options *o)
{
    int first = o->pack_rank < 0 ? 0 : o->pack_rank;
    int end = o->pack_rank < 0 ? o->pack_ranks : o->pack_rank + 1;
    uint8_t set[SET_DIGEST_BYTES];
    char path[PATH_CAP];
    bool made = access(o->word[1], F_OK) != 0;
    int code = exit_code_of(STEP_WRITE, make_dirs(o->word[1], 0777));

    for (int rank = first; rank < end && code == 0; rank++) {
        enum exit_step step = STEP_WRITE;
        int r = packs_path(o->word[1], rank, path);

        if (r == 0 && (!o->verify || access(path, F_OK) != 0))
            r = packs_write(&(struct checkpoint_settings){ .model = o->word[0],
                                                           .rank = rank,
                                                           .ranks = o->pack_ranks,
                                                           .layouts = o->layouts,
                                                           .whole_experts = o->whole_experts,
                                                           .link_rows = o->link_rows,
                                                           .extra = o->extra,
                                                           .n_extra = o->extras },
                            path, &step);
        code = exit_code_of(step, r);
    }
    for (int rank = first; rank < end && code == 0 && o->verify; rank++) {
        code = exit_code_of(STEP_WRITE, packs_path(o->word[1], rank, path));
        if (code == 0)
            code = verify(path, set, rank == first);
    }
    if (code != 0 && made)
        rmdir(o->word[1]); /* which leaves one with packs in it */
    return code;
}
