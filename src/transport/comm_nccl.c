/* comm_nccl - sums and gathers by NCCL, captured like any op.
 *
 * NCCL adds in an order of its own, so a sum is its gather of rounded partials and an add of ours
 * in rank order. The library is looked for when a comm opens, not when the program starts: it is
 * 200 MB of kernels, which a process that loads kernels eagerly would put on every device. Ranks
 * meet, and hear of each other's failures, through a comm of their hosts. NCCL neither counts waits
 * nor notices ranks that call different sites.
 */
#include "src/transport/comm.h"

#include <dlfcn.h>
#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/exchange.h"
#include "src/base/log.h"
#include "src/transport/comm_record.h"
#include "src/transport/comm_table.h"

#define LIBRARY "libnccl.so.2"

enum { UNIT_BYTES = 16, SITE_ID = 1, WARM_BYTES = 4096 };

/* What of the library is called here. */
#define CALLS(F)                                                                                   \
    F(ncclGetUniqueId)                                                                             \
    F(ncclCommInitRank)                                                                            \
    F(ncclCommGetAsyncError)                                                                       \
    F(ncclAllGather) F(ncclAllReduce) F(ncclCommAbort) F(ncclCommDestroy) F(ncclGetErrorString)    \
        F(ncclGetLastError) F(ncclGetVersion)

static struct {
    pthread_once_t once;
    char why[256]; /* empty: it is there */
#define DECLARE(name) __typeof__(name) *name;
    CALLS(DECLARE)
#undef DECLARE
} nccl = { .once = PTHREAD_ONCE_INIT };

struct comm_nccl {
    struct comm base;
    struct comm *host;
    struct device *dev;
    ncclComm_t comm;
    enum exchange_wire wire;
    size_t slot_bytes;
    char *all; /* [world][a piece] on the device, the own part first staged in its place */
    pthread_mutex_t calls; /* of the library; its abort comes when nobody is inside any more */
    atomic_int aborted;
    int err;
};

/* ---- the library ----------------------------------------------------------------------------- */

void comm_settle(void)
{
    /* multicast over NVLink can put GPUs out of service that others share */
    setenv("NCCL_NVLS_ENABLE", "0", 1);
}

static void load(void)
{
    void *lib;

    lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        snprintf(nccl.why, sizeof(nccl.why), "%s", dlerror());
        return;
    }
#define FIND(name)                                                                                 \
    nccl.name = (__typeof__(nccl.name))(uintptr_t)dlsym(lib, #name);                               \
    if (!nccl.name)                                                                                \
        snprintf(nccl.why, sizeof(nccl.why), "%s has no %s", LIBRARY, #name);
    CALLS(FIND)
#undef FIND
}

static int failed(struct comm_nccl *c, ncclResult_t r, const char *what)
{
    const char *last = nccl.ncclGetLastError(c->comm);

    return fail(r == ncclRemoteError ? -ECONNRESET : -EIO, "comm nccl: %s: %s%s%s", what,
                nccl.ncclGetErrorString(r), last && last[0] ? ": " : "", last ? last : "");
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool nccl_usable(struct comm_nccl *c, struct queue *q, int site)
{
    if (c->err == 0 && (site < 0 || site >= COMM_SITES))
        c->err = fail(-EINVAL, "comm nccl: site %d, want 0 to %d", site, COMM_SITES - 1);
    if (c->err != 0 && q->err == 0)
        q->err = c->err;
    return c->err == 0 && q->err == 0;
}

/* False: somebody aborts, or has. */
static bool calls_begin(struct comm_nccl *c)
{
    pthread_mutex_lock(&c->calls);
    if (!atomic_load_explicit(&c->aborted, memory_order_acquire))
        return true;
    pthread_mutex_unlock(&c->calls);
    return false;
}

static void gather_piece(struct comm_nccl *c, struct queue *q, const void *in, void *out,
                         size_t bytes)
{
    ncclResult_t r;

    if (!calls_begin(c)) {
        q->err = q->err ? q->err : -ECANCELED;
        return;
    }
    r = nccl.ncclAllGather(in, out, bytes, ncclInt8, c->comm, (cudaStream_t)exchange_stream(q));
    if (r != ncclSuccess) {
        c->err = failed(c, r, "gather");
        queue_fail(q, c->err, "%s", fail_text());
    }
    pthread_mutex_unlock(&c->calls);
}

static void nccl_sum(struct comm *base, struct queue *q, int site, float *x, size_t n)
{
    struct comm_nccl *c = (struct comm_nccl *)base;
    size_t each = exchange_wire_bytes(c->wire), most = c->slot_bytes / each;

    for (size_t at = 0; at < n && nccl_usable(c, q, site); at += most) {
        size_t k = n - at < most ? n - at : most;
        size_t bytes = (k * each + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
        char *mine = c->all + (size_t)base->rank * bytes;

        exchange_put(q, c->wire, mine, x + at, k);
        gather_piece(c, q, mine, c->all, bytes);
        exchange_sum(q, c->wire, c->all, bytes, base->world, x + at, k);
    }
}

static void nccl_gather(struct comm *base, struct queue *q, int site, const void *in, void *out,
                        size_t bytes)
{
    struct comm_nccl *c = (struct comm_nccl *)base;

    if (bytes > 0 && nccl_usable(c, q, site))
        gather_piece(c, q, in, out, bytes);
}

/* NCCL's kernels count nothing. */
static void nccl_note(struct comm *base, struct queue *q)
{
}

static int nccl_check(struct comm *base)
{
    struct comm_nccl *c = (struct comm_nccl *)base;
    ncclResult_t state = ncclSuccess;

    if (c->err != 0)
        return c->err;
    if (!calls_begin(c))
        return c->err = -ECANCELED;
    if (nccl.ncclCommGetAsyncError(c->comm, &state) == ncclSuccess && state != ncclSuccess)
        c->err = failed(c, state, "exchange");
    pthread_mutex_unlock(&c->calls);
    return c->err;
}

static int nccl_barrier(struct comm *base)
{
    struct comm_nccl *c = (struct comm_nccl *)base;
    int r = nccl_check(base);

    if (r == 0)
        r = c->err = comm_barrier(c->host);
    return r;
}

/* The library's abort ends its kernels at once and returns when the last graph that has some is
 * gone. */
static void nccl_abort(struct comm *base, const char *why)
{
    struct comm_nccl *c = (struct comm_nccl *)base;

    if (atomic_exchange(&c->aborted, 1))
        return;
    log_debug("comm nccl: aborted: %s", why);
    comm_abort(c->host, why);
    pthread_mutex_lock(&c->calls);
    pthread_mutex_unlock(&c->calls);
    nccl.ncclCommAbort(c->comm);
}

static void nccl_close(struct comm *base)
{
    struct comm_nccl *c = (struct comm_nccl *)base;

    if (c->comm && !atomic_load(&c->aborted))
        c->err == 0 ? nccl.ncclCommDestroy(c->comm) : nccl.ncclCommAbort(c->comm);
    c->dev->ops->free(c->dev, c->all);
    comm_close(c->host);
    pthread_mutex_destroy(&c->calls);
    free(c);
}

const struct comm_ops comm_nccl_ops = {
    .name = "nccl",
    .caps = COMM_CAPTURE | COMM_DEVICE,
    .sum = nccl_sum,
    .gather = nccl_gather,
    .note = nccl_note,
    .barrier = nccl_barrier,
    .check = nccl_check,
    .abort = nccl_abort,
    .close = nccl_close,
};

void comm_nccl_reduce(struct comm *base, struct queue *q, void *x, size_t n)
{
    struct comm_nccl *c = (struct comm_nccl *)base;
    ncclResult_t r = nccl.ncclAllReduce(x, x, n, ncclBfloat16, ncclSum, c->comm,
                                        (cudaStream_t)exchange_stream(q));

    if (r != ncclSuccess)
        queue_fail(q, failed(c, r, "reduce"), "%s", fail_text());
}

/* ---- opening --------------------------------------------------------------------------------- */

/* What every rank tells the others before anybody waits inside the library. */
struct hello {
    int32_t status;
    ncclUniqueId id; /* of rank 0 */
};

static int meet(struct comm_nccl *c)
{
    struct hello mine = { 0 }, all[COMM_WORLD_MAX];
    struct comm *h = c->host;
    ncclResult_t n;
    int r;

    pthread_once(&nccl.once, load);
    if (nccl.why[0])
        mine.status = fail(-ENODEV, "comm nccl: %s", nccl.why);
    else if (h->rank == 0 && (n = nccl.ncclGetUniqueId(&mine.id)) != ncclSuccess)
        mine.status = failed(c, n, "id");
    comm_gather(h, NULL, SITE_ID, &mine, all, sizeof(mine));
    r = mine.status < 0 ? mine.status : comm_check(h);
    for (int p = 0; p < h->world && r == 0; p++)
        if (all[p].status < 0)
            r = fail(-ENODEV, "comm nccl: rank %d cannot open it", p);
    if (r < 0)
        return r;
    n = nccl.ncclCommInitRank(&c->comm, h->world, all[0].id, h->rank);
    return n == ncclSuccess ? 0 : (failed(c, n, "opening"), -ENODEV);
}

/* The first calls connect the ranks, which takes memory: no round may. */
static int warm(struct comm_nccl *c, struct queue *q)
{
    gather_piece(c, q, c->all + (size_t)c->base.rank * WARM_BYTES, c->all, WARM_BYTES);
    gather_piece(c, q, c->all + (size_t)c->base.rank * c->slot_bytes, c->all, c->slot_bytes);
    return q->ops->wait(q);
}

int comm_nccl_open(struct comm *host, struct queue *q, const struct comm_settings *s,
                   struct comm **out)
{
    struct comm_nccl *c = calloc(1, sizeof(*c));
    void *all;
    int r, version = 0;

    if (!c)
        return fail(-ENOMEM, "comm nccl: no memory");
    c->base = (struct comm){ .ops = &comm_nccl_ops, .rank = host->rank, .world = host->world };
    c->host = host;
    c->dev = q->dev;
    c->wire = comm_wire(s);
    c->slot_bytes = s->slot_bytes;
    pthread_mutex_init(&c->calls, NULL);
    r = c->dev->ops->alloc(c->dev, (size_t)host->world * s->slot_bytes, &all);
    if (r < 0)
        goto free_comm;
    c->all = all;
    r = meet(c);
    if (r < 0)
        goto free_all;
    r = warm(c, q);
    if (r < 0)
        goto abort_comm;
    nccl.ncclGetVersion(&version);
    log_debug("comm nccl: version %d", version);
    *out = &c->base;
    return 0;

abort_comm:
    nccl.ncclCommAbort(c->comm);
free_all:
    c->dev->ops->free(c->dev, c->all);
free_comm:
    pthread_mutex_destroy(&c->calls);
    free(c);
    return r;
}
