/* comm_nccl_none - in the place of comm_nccl.c where the build has no CUDA or no header of NCCL:
 * the name is known and says what is missing. */
#include "src/transport/comm.h"

#include <errno.h>

#include "src/base/log.h"
#include "src/transport/comm_table.h"

/* Nothing below is ever reached: no such comm opens. */
static void none_sum(struct comm *c, struct queue *q, int site, float *x, size_t n)
{
}

static void none_gather(struct comm *c, struct queue *q, int site, const void *in, void *out,
                        size_t bytes)
{
}

static void none_note(struct comm *c, struct queue *q)
{
}

static int none_result(struct comm *c)
{
    return -ENOTSUP;
}

static void none_abort(struct comm *c, const char *why)
{
}

static void none_close(struct comm *c)
{
}

const struct comm_ops comm_nccl_ops = {
    .name = "nccl",
    .sum = none_sum,
    .gather = none_gather,
    .note = none_note,
    .barrier = none_result,
    .check = none_result,
    .abort = none_abort,
    .close = none_close,
};

void comm_settle(void)
{
}

void comm_nccl_reduce(struct comm *c, struct queue *q, void *x, size_t n)
{
}

int comm_nccl_open(struct comm *host, struct queue *q, const struct comm_settings *s,
                   struct comm **out)
{
    return fail(-ENODEV, "comm nccl: this build has no NCCL");
}
