/* cmd_pack.c owns the making and checking of packs. */
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/pack.h"
#include "src/rank/checkpoint.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"
#include "src/rank/packs.h"

#include <errno.h>
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
    return code;
}

/* A pack that was there before is of this checkpoint, this split and these options. */
static int check_request(const struct checkpoint_settings *s, const char *path)
{
    enum exit_step step = STEP_DATA;
    struct pack *p;
    int r = pack_open(path, &p), code;

    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    r = packs_match(s, p, &step);
    code = r < 0 ? exit_code_of(step, r) : r == 1 ? 0 : CODE_NO;
    if (r == 0)
        fail(-EBADMSG,
             "pack %s: of another checkpoint, split or layout than asked for, or the checkpoint's "
             "files have changed since; without --verify it is written again",
             path);
    pack_close(p);
    if (code == 0)
        log_info("pack %s: every digest holds", path);
    return code;
}

struct packing {
    const struct options *o;
    int first, end;
    bool there[RANKS_MAX]; /* before this run */
};

static struct checkpoint_settings settings_of(const struct options *o, int rank)
{
    return (struct checkpoint_settings){ .model = o->word[0],
                                         .rank = rank,
                                         .ranks = o->pack_ranks,
                                         .layouts = o->layouts,
                                         .whole_experts = o->whole_experts,
                                         .link_rows = o->link_rows,
                                         .round_mixes = o->round_mixes,
                                         .extra = o->extra,
                                         .n_extra = o->extras };
}

static int write_all(struct packing *p)
{
    char path[PATH_CAP];
    int code = 0;

    for (int rank = p->first; rank < p->end && code == 0; rank++) {
        code = exit_code_of(STEP_WRITE, packs_path(p->o->word[1], rank, path));
        p->there[rank] = code == 0 && access(path, F_OK) == 0;
    }
    for (int rank = p->first; rank < p->end && code == 0; rank++) {
        struct checkpoint_settings s = settings_of(p->o, rank);
        enum exit_step step = STEP_WRITE;
        int r = packs_path(p->o->word[1], rank, path);

        if (r == 0 && !(p->o->verify && p->there[rank]))
            r = packs_write(&s, path, &step);
        code = exit_code_of(step, r);
    }
    return code;
}

static int verify_all(const struct packing *p)
{
    struct set set;
    char path[PATH_CAP];
    int code = 0;

    for (int rank = p->first; rank < p->end && code == 0; rank++) {
        code = exit_code_of(STEP_WRITE, packs_path(p->o->word[1], rank, path));
        if (code == 0)
            code = verify(path, &set, rank == p->first);
    }
    for (int rank = p->first; rank < p->end && code == 0; rank++) {
        struct checkpoint_settings s = settings_of(p->o, rank);

        code = exit_code_of(STEP_WRITE, packs_path(p->o->word[1], rank, path));
        if (code == 0)
            code = check_request(&s, path);
    }
    return code;
}

/* A checkpoint that is refused for a later rank leaves nothing of the ranks before it. */
static void take_back(const struct packing *p)
{
    char path[PATH_CAP];

    for (int rank = p->first; rank < p->end; rank++)
        if (!p->there[rank] && packs_path(p->o->word[1], rank, path) == 0)
            unlink(path);
}

int cmd_pack(struct options *o)
{
    struct packing p = { .o = o,
                         .first = o->pack_rank < 0 ? 0 : o->pack_rank,
                         .end = o->pack_rank < 0 ? o->pack_ranks : o->pack_rank + 1 };
    bool made = access(o->word[1], F_OK) != 0;
    int code = exit_code_of(STEP_WRITE, make_dirs(o->word[1], 0777));

    if (code == 0)
        code = write_all(&p);
    if (code == CODE_DATA)
        take_back(&p);
    if (code == 0 && o->verify)
        code = verify_all(&p);
    if (code != 0 && made)
        rmdir(o->word[1]); /* which leaves one with packs in it */
    return code;
}
