/* exec.c owns the arena and the dry run that sizes it: ops and collectives that do nothing. */
#include "src/model/exec.h"

#include "kernels/backend.h"
#include "src/transport/comm.h"

#include <assert.h>
#include <stdint.h>

#define ARENA_ALIGN 256

/* An address that nothing reads: measuring passes do arithmetic on pointers and no more. */
#define DRY_BASE ((char *)(uintptr_t)4096)

void *arena_take(struct arena *a, size_t bytes)
{
    char *at = (a->base ? a->base : DRY_BASE) + a->used;

    a->used += (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (a->used > a->peak)
        a->peak = a->used;
    assert(!a->base || a->used <= a->size);
    return at;
}

#define DRY_OP(name)                                                                               \
    static void dry_##name(struct queue *q, const struct name##_args *a)                           \
    {                                                                                              \
        (void)q;                                                                                   \
        (void)a;                                                                                   \
    }
OP_LIST(DRY_OP)
#undef DRY_OP

static const struct op_table dry_ops = {
#define DRY_ENTRY(name) .name = dry_##name,
    OP_LIST(DRY_ENTRY)
#undef DRY_ENTRY
};

static void dry_sum(struct comm *c, struct queue *q, int site, float *x, size_t n)
{
    (void)c, (void)q, (void)site, (void)x, (void)n;
}

static void dry_gather(struct comm *c, struct queue *q, int site, const void *in, void *out,
                       size_t bytes)
{
    (void)c, (void)q, (void)site, (void)in, (void)out, (void)bytes;
}

static int dry_result(struct comm *c)
{
    (void)c;
    return 0;
}

static void dry_note(struct comm *c, struct queue *q)
{
    (void)c, (void)q;
}

static void dry_abort(struct comm *c, const char *why)
{
    (void)c, (void)why;
}

static void dry_close(struct comm *c)
{
    (void)c;
}

static const struct comm_ops dry_comm_ops = {
    .name = "dry",
    .sum = dry_sum,
    .gather = dry_gather,
    .note = dry_note,
    .barrier = dry_result,
    .check = dry_result,
    .abort = dry_abort,
    .close = dry_close,
};

void exec_dry(struct exec *x, struct arena *a, const struct exec *like)
{
    static struct comm comm = { .ops = &dry_comm_ops };

    *a = (struct arena){ 0 };
    *x = *like;
    x->op = &dry_ops;
    x->comm = &comm;
    x->tmp = a;
}

int arena_open(struct device *d, size_t bytes, struct arena *a)
{
    void *base;
    int r = d->ops->alloc(d, bytes + ARENA_ALIGN, &base);

    if (r < 0)
        return r;
    *a = (struct arena){ .base = base, .size = bytes };
    return 0;
}

void arena_close(struct device *d, struct arena *a)
{
    if (a->base)
        d->ops->free(d, a->base);
    *a = (struct arena){ 0 };
}
