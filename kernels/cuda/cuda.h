/* cuda - what the files of the CUDA backend share on the host side; for C and CUDA sources alike.
 *
 * A queue is a stream. Kernels report what only they can see (a token out of range, a row without a
 * number) in the queue's fault: the first one wins, accept and commit then write nothing, and wait
 * returns it.
 */
#ifndef TANDEM_KERNELS_CUDA_CUDA_H
#define TANDEM_KERNELS_CUDA_CUDA_H

#include <assert.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/backend.h"
#include "kernels/backend_table.h"
#include "kernels/lists.h"
#include "kernels/ops.h"

/* Rows that ops with scratch of their own take at a time: the `workers` of a CUDA device. */
#define CUDA_WORKERS 16

#define CUDA_WARP 32

enum fault_kind {
    FAULT_NONE,
    FAULT_TOKEN,  /* embed: `value` is no token of `limit` */
    FAULT_EXPERT, /* moe: `value` is no expert of `limit` */
    FAULT_TYPE,   /* moe: weights of type `value` that the call was not queued for */
    FAULT_LOGITS, /* choose: a row without a finite logit */
    FAULT_LAYER,  /* inspect: a number that is none behind layer `value` */
    FAULT_BRING,  /* bring: the error `value` of whoever was to bring it */
    FAULT_LATE    /* bring: nothing came in `value` ms */
};

/* What a kernel found; it lies in memory that host and device see. */
struct cuda_fault {
    int32_t kind, slot, row, pos, value, limit;
};

/* The fault of a queue as kernels get it: set once by who wins `taken`. */
struct cuda_alarm {
    int32_t *taken;            /* device memory: what accept and commit look at */
    struct cuda_fault *record; /* pinned host memory, written by the winner */
};

struct cuda_device {
    struct device base;
    int ordinal;
    int shared_max; /* bytes of shared memory a block may ask for */
    int sms;
    int shared_sm; /* bytes of shared memory that a multiprocessor has */
    /* of attention that are clusters at once, two blocks a multiprocessor; 0: none */
    int gangs;
    bool crowds; /* EXL3 experts of many rows go to crowd.cu */
    int wide;    /* rows up to which a site's gangs have 16 blocks; 0: none does */
    bool told;   /* that a call of attention does not fit into what they share */
};

/* A copy that leaves a staging area for the caller's memory once the device is done. */
struct cuda_landing {
    void *dst;
    const void *staged;
    size_t bytes;
};

#define CUDA_LANDINGS 256
#define CUDA_TICKETS (60 << 10)
#define CUDA_SEATS 64          /* places of a multiprocessor for warps, a word each */
#define CUDA_SEATED 256        /* multiprocessors that have them */
#define CUDA_MEETING (2 << 20) /* bytes in which blocks' sums meet: of 256 blocks, 16 rows of 128 */
#define CUDA_LOOSE (20 << 10)  /* words of gangs that are no clusters (gang.cu) */
#define INDEX_COUNT (17 << 10) /* bytes that a row's selection counts in */

/* Copies of one kernel: from pinned memory or to it. */
#define CUDA_COPIES 12

struct cuda_copy {
    void *dst;
    const void *src;
    size_t bytes;
};

struct cuda_copies {
    struct cuda_copy at[CUDA_COPIES];
    int n;
    bool in; /* to the device */
    cudaGraphNode_t node;
};

/* What the next wait has to fetch, because a launched graph waits for it. */
#define CUDA_FETCHES 32

struct cuda_fetch {
    void (*fetch)(void *arg);
    void *arg;
};

/* Where ops of a queue go, one behind the other: its stream, or one beside it while a window is
 * captured. */
struct cuda_lane {
    cudaStream_t stream;
    void *scratch; /* device memory of ops between their launches, one op at a time */
    size_t scratch_bytes;
    /* device memory, [CUDA_TICKETS]: zero between ops; seats of few.cuh behind */
    uint32_t *tickets;
    void *meeting; /* device memory, [CUDA_MEETING] bytes: zero between ops */
    /* device memory, [CUDA_LOOSE]: zero between ops, of gangs that are no clusters */
    uint32_t *loose;
    void *counts; /* [CUDA_WORKERS][INDEX_COUNT] bytes: zero between ops */
    bool ahead;   /* it has ops that the queue's stream has not met yet */
    bool apart;   /* the next kernel is the first of a section */
};

#define CUDA_LANES (1 + SIDE_LANES) /* the first is the queue's own */

struct cuda_queue {
    struct queue base;
    struct cuda_lane lane[CUDA_LANES];
    int on;            /* lane that ops go to */
    cudaEvent_t cross; /* from lane to lane; NULL: no lane but the first is open */
    struct cuda_alarm alarm;

    char *ring; /* pinned; handed out from the front, all free again after a wait */
    size_t ring_bytes, ring_used;
    struct cuda_landing landing[CUDA_LANDINGS];
    int landings;
    struct cuda_fetch fetch[CUDA_FETCHES];
    int fetches;
    struct graph *capture; /* being captured, NULL if none */
    uint64_t waits;
};

static inline struct cuda_queue *cuda_queue(struct queue *q)
{
    return (struct cuda_queue *)q;
}

static inline struct cuda_lane *cuda_lane(struct queue *q)
{
    return &cuda_queue(q)->lane[cuda_queue(q)->on];
}

static inline cudaStream_t cuda_stream(struct queue *q)
{
    return cuda_lane(q)->stream;
}

/* cuda_apart - whether the kernel launched now comes in when those in front have ended: the first
 * of a section, for two kernels that both come in early are later than one. */
static inline bool cuda_apart(struct queue *q)
{
    bool apart = cuda_lane(q)->apart;

    cuda_lane(q)->apart = false;
    return apart;
}

/* cuda_errno - a negative errno for a CUDA error, 0 for success. CUDA forgets the error, which
 * would be that of the next launch too: who goes on without what failed must not meet it again. */
int cuda_errno(cudaError_t e);

/* queue_note - pick up a launch error of the op just queued. */
void queue_note(struct queue *q, const char *op);

/* cuda_range_*, cuda_mark - names for a profiler's time line; nothing where nobody looks. range.c,
 * range_none.c. A name is NULL for none. */
void cuda_range_begin(const char *name);
void cuda_range_end(void);
void cuda_mark(const char *name);

/* cuda_*_limits - let the kernels of a file use shared_max bytes of shared memory a block. */
cudaError_t cuda_attend_limits(int shared_max);
cudaError_t cuda_crowd_limits(int shared_max, bool *can); /* whether crowd.cu is for this device */
/* gangs: how many of attention's fit as clusters where a multiprocessor has two blocks, 0: none */
cudaError_t cuda_gang_limits(int shared_max, int shared_sm, int *gangs);
cudaError_t cuda_markov_limits(int shared_max);
cudaError_t cuda_select_limits(int shared_max);
cudaError_t cuda_sheet_limits(int shared_max);
cudaError_t cuda_strip_limits(int shared_max);

/* cuda_site_wide - rows up to which a site is gangs of 16 blocks, 0 where a device has none; lets
 * them. The bits are those of gangs of 8. */
int cuda_site_wide(void);

/* Copies through pinned memory and graphs: copy.c and graph.c. */
void cuda_put(struct queue *q, void *dst, const void *src, size_t bytes);
void cuda_get(struct queue *q, void *dst, const void *src, size_t bytes);
int cuda_drain(struct cuda_queue *q);
int cuda_lanes_open(struct cuda_queue *q);
int cuda_graph_begin(struct queue *q);
int cuda_graph_end(struct queue *q, struct graph **out);
void cuda_graph_launch(struct queue *q, struct graph *g);
void cuda_graph_close(struct graph *g);
void cuda_graph_name(struct cuda_queue *q, const char *name);
void cuda_graph_put(struct cuda_queue *q, void *dst, const void *src, size_t bytes);
void cuda_graph_bring(struct cuda_queue *q, const struct bring_args *a);
void cuda_graph_get(struct cuda_queue *q, void *dst, const void *src, size_t bytes);

/* cuda_copy - between the device and pinned memory, or memory of the device; cuda_copy_within: the
 * latter, as fast as it goes */
cudaError_t cuda_copy(cudaStream_t s, void *dst, const void *src, size_t bytes);
cudaError_t cuda_copy_within(cudaStream_t s, void *dst, const void *src, size_t bytes);

/* cuda_copies_add - capture a copy: by the kernel that the stream has captured last, if that copies
 * the same way, else by one of its own. *c is zero before the first. */
cudaError_t cuda_copies_add(cudaStream_t s, struct cuda_copies *c, bool in, void *dst,
                            const void *src, size_t bytes);

#define CUDA_ENTRY(name) void cuda_##name(struct queue *q, const struct name##_args *a);
OP_LIST(CUDA_ENTRY)
#undef CUDA_ENTRY

#ifdef __cplusplus
}
#endif

#endif
