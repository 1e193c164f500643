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

#define PARTS_MAX 8

/* Of the first pack: its parts and the whole. */
struct set {
    uint8_t part[PARTS_MAX][SET_DIGEST_BYTES], all[SET_DIGEST_BYTES];
};

/* Packs of one split that do not belong together are worse than none: their sets must be equal. */
static int check_set(const struct pack *p, struct set *set, bool first)
{
    uint8_t digest[SET_DIGEST_BYTES];
    const char *what;
    int r = 0;

    for (int i = 0; r == 0 && i < PARTS_MAX; i++) {
        r = pack_set_part(p, i, &what, digest);
        if (r == 0 && first)
            memcpy(set->part[i], digest, sizeof(digest));
        else if (r == 0 && memcmp(set->part[i], digest, sizeof(digest)) != 0)
            return fail(-EBADMSG, "pack %s is of another set than the first one: %s differ",
                        pack_name(p), what);
    }
    if (r < 0)
        return r;
    if (first)
        memcpy(set->all, pack_set_digest(p), SET_DIGEST_BYTES);
    else if (memcmp(set->all, pack_set_digest(p), SET_DIGEST_BYTES) != 0)
        return fail(-EBADMSG, "pack %s is of another set than the first one", pack_name(p));
    return 0;
}

static int verify(const char *path, struct set *set, bool first)
{
    struct pack *p;
    int r = pack_open(path, &p), code;

    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    r = pack_verify(p);
    if (r == 0)
        r = check_set(p, set, first);
    code = r == -EBADMSG ? CODE_NO : exit_code_of(STEP_DATA, r);
    pack_close(p);
    if (code == 0)
        log_info("pack %s: every digest holds", path);
    return code;
}

int cmd_pack(struct options *o)
{
    int first = o->pack_rank < 0 ? 0 : o->pack_rank;
    int end = o->pack_rank < 0 ? o->pack_ranks : o->pack_rank + 1;
    struct set set;
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
            code = verify(path, &set, rank == first);
    }
    if (code != 0 && made)
        rmdir(o->word[1]); /* which leaves one with packs in it */
    return code;
}
