/* What a process says to its parent, by the step and by what went wrong in it. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "src/model/source.h"
#include "src/rank/checkpoint.h"
#include "src/rank/control.h"
#include "src/rank/exit_code.h"

enum { STEPS = STEP_ROUND + 1 };

static const struct {
    const char *name;
    int r;
    int code[STEPS]; /* config, data, write, device, round */
    int group;       /* of a group that does not come about */
} cases[] = {
    { "all is well", 0, { 0, 0, 0, 0, 0 }, 0 },
    { "nonsense", -EINVAL, { 78, 65, 73, 69, 70 }, 78 },
    { "a missing file", -ENOENT, { 66, 66, 66, 66, 70 }, 66 },
    { "rights", -EACCES, { 78, 65, 73, 69, 70 }, 77 },
    { "memory", -ENOMEM, { 71, 71, 71, 71, 70 }, 71 },
    { "open files", -EMFILE, { 71, 71, 71, 71, 70 }, 71 },
    { "open files of the machine", -ENFILE, { 71, 71, 71, 71, 70 }, 71 },
    { "threads", -EAGAIN, { 71, 71, 71, 71, 70 }, 71 },
    { "a full disk", -ENOSPC, { 73, 73, 73, 73, 70 }, 70 },
    { "a disk without quota", -EDQUOT, { 73, 73, 73, 73, 70 }, 70 },
    { "a read-only disk", -EROFS, { 73, 73, 73, 73, 70 }, 70 },
    { "no device", -ENODEV, { 69, 69, 69, 69, 70 }, 69 },
    { "a port that is taken", -EADDRINUSE, { 78, 65, 73, 69, 70 }, 69 },
    { "an address of nobody", -EADDRNOTAVAIL, { 78, 65, 73, 69, 70 }, 69 },
    { "a host that nobody knows", -EHOSTUNREACH, { 78, 65, 73, 69, 70 }, 69 },
    { "a rank that does not come", -ETIMEDOUT, { 78, 65, 73, 69, 70 }, 69 },
    { "a peer that is gone", -ECONNRESET, { 78, 65, 73, 69, 70 }, 70 },
    { "a peer of other words", -EPROTO, { 78, 65, 73, 69, 70 }, 70 },
};

Test(exit_code, says_what_went_wrong_in_which_step)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int step = 0; step < STEPS; step++)
            cr_expect(eq(int, exit_code_of((enum exit_step)step, cases[i].r), cases[i].code[step]),
                      "%s in step %d", cases[i].name, step);
        cr_expect(eq(int, group_exit_code(cases[i].r), cases[i].group), "a group: %s",
                  cases[i].name);
    }
    cr_expect(eq(int, group_exit_code(-ECANCELED), 0)); /* drained before there was a group */
}

static const struct {
    const char *name;
    int r;
    bool failed; /* a read of weights */
    int code;
} makings[] = {
    { "all is well", 0, false, 0 },
    { "nonsense in the model", -EINVAL, false, 65 },
    { "a tensor that is missing", -ENOENT, false, 65 },
    { "weights that cannot be read", -EIO, true, 65 },
    { "a file that cannot be written", -EIO, false, 73 },
    { "a folder in its place", -EISDIR, false, 73 },
    { "a link in its place", -ELOOP, false, 73 },
    { "a file in use", -EBUSY, false, 73 },
    { "rights", -EACCES, false, 73 },
    { "a full disk", -ENOSPC, false, 73 },
    { "a limit of sizes", -EFBIG, false, 73 },
    { "memory", -ENOMEM, false, 71 },
};

Test(exit_code, tells_what_is_read_from_what_is_written)
{
    for (size_t i = 0; i < sizeof(makings) / sizeof(makings[0]); i++) {
        struct source s = { .failed = makings[i].failed };
        struct checkpoint c = { .source = &s };
        enum exit_step step = STEP_DATA;
        int r = checkpoint_failure(&c, makings[i].r, &step);

        cr_expect(eq(int, exit_code_of(step, r), makings[i].code), "%s", makings[i].name);
    }
}
