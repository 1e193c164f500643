/* backend - devices, queues and device memory; the ops themselves are in ops.h.
 *
 * A backend is a table. `ref` is plain C and defines what every op means; the others are held to
 * it. Device pointers are host pointers where BACKEND_HOST_MEMORY is set, and must not be read
 * otherwise.
 *
 * A queue runs ops in the order of the calls. On host backends an op has run when the call returns.
 * The queue keeps its first error, ignores the ops that follow, and queue_wait returns the error
 * once.
 */
#ifndef TANDEM_KERNELS_BACKEND_H
#define TANDEM_KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bring_args;
struct op_table;
struct pool;
struct device;
struct graph;
struct queue;

enum backend_cap {
    BACKEND_HOST_MEMORY = 1, /* device memory is host memory */
    BACKEND_GRAPHS = 2       /* a window can be captured and replayed */
};

struct backend_ops {
    const char *name;
    unsigned caps;
    const struct op_table *op;

    /* probe - whether open would find this device; if not, why says what is missing. Logs nothing.
     * errors   -ENODEV */
    int (*probe)(int ordinal, char *why, size_t cap);
    /* open - ordinal names the device, threads the host workers of a host backend (at least 1).
     * errors   -ENODEV no such device or no driver, -ENOMEM */
    int (*open)(int ordinal, int threads, struct device **out);
    /* room - bytes of device memory that are left; 0 on host backends, where the machine says it */
    size_t (*room)(struct device *d);
    /* alloc - zeroed, aligned to 256 bytes; -ENOMEM names the bytes. Never inside a round. */
    int (*alloc)(struct device *d, size_t bytes, void **out);
    void (*free)(struct device *d, void *p);
    /* host_alloc - zeroed memory of the host that a put reads from without a copy on the way; may
     * be slow to make.
     * errors   -ENOMEM */
    int (*host_alloc)(struct device *d, size_t bytes, void **out);
    void (*host_free)(struct device *d, void *p);
    /* weights - make host bytes (a mapped pack) readable by ops; host backends return p itself. The
     * bytes stay mapped while the result is used; undone by unweights. */
    int (*weights)(struct device *d, const void *p, size_t bytes, const void **out);
    void (*unweights)(struct device *d, const void *p);
    int (*queue_open)(struct device *d, struct queue **out);
    void (*queue_close)(struct queue *q);
    /* put, get - copy between host and device memory in queue order; get's bytes are there after
     * wait */
    void (*put)(struct queue *q, void *dst, const void *src, size_t bytes);
    void (*get)(struct queue *q, void *dst, const void *src, size_t bytes);
    /* wait - until everything queued has run, what captured calls of op bring wait for fetched
     * first; the first error since the last wait */
    int (*wait)(struct queue *q);

    /* graph_begin .. graph_end - what is queued between them runs at every graph_launch instead of
     * now. Args are kept by value: addresses, rows and sizes are those of the capture, what lies at
     * the addresses is read at each launch. put and get belong to the graph: put reads its source
     * again at every launch (from host_alloc: until the wait behind it), get delivers by the wait
     * behind a launch, so both ends stay where they are until graph_close. No wait inside.
     * graph_end returns and clears the first error since graph_begin; nothing is left to close
     * then.
     * errors   -ENOTSUP without BACKEND_GRAPHS; -ENOMEM; -EINVAL a capture is, or is not, under way
     */
    int (*graph_begin)(struct queue *q);
    int (*graph_end)(struct queue *q, struct graph **out);
    void (*graph_launch)(struct queue *q, struct graph *g);
    /* graph_close - after a wait; NULL is fine */
    void (*graph_close)(struct graph *g);
    void (*close)(struct device *d);
};

#define DEVICE_NAME_BYTES 256

struct device {
    const struct backend_ops *ops;
    /* what it calls itself, or the instructions that a host backend uses: another name is another
     * speed */
    char name[DEVICE_NAME_BYTES];
    struct pool *pool; /* workers of a host backend, NULL elsewhere */
    /* made on the device so far, graphs included; a round makes none (on backends with graphs) */
    uint64_t allocations;
    /* what per-worker scratch is counted by, at least 1; no result depends on it */
    int workers;
    /* that a queue takes once it has captured a section of op `side`; 0: it runs none beside */
    size_t side_bytes;
    /* launches of a queue may overlap where the backend can; no result depends on it */
    bool overlap;
};

struct queue {
    const struct backend_ops *ops;
    struct device *dev;
    int err;        /* first error since the last wait, 0 if none */
    int nodes;      /* of the newest graph that was captured here */
    void *onlooker; /* of who stands in front of the table of ops; backends do not look at it */
};

/* backend_settle - puts into the environment what a device's libraries read there. A process says
 * it once, before it has a second thread, which may be reading the environment, and before anything
 * looks for a device. shared: its ranks may wait for each other on a device. Without it a device
 * opens, and a process ends, in a fraction of the time. */
void backend_settle(bool shared);

/* backend_find - the backend of this name, or for "auto" the last one that is built and finds its
 * device 0.
 * errors   -ENODEV with a line naming what is built */
int backend_find(const char *name, const struct backend_ops **out);

/* queue_fetch - what bring does on every backend when it runs at once: fetch, and keep an error.
 * True: the bytes are in src. */
bool queue_fetch(struct queue *q, const struct bring_args *a);

/* queue_fail - keep r as the queue's error if it has none, and log the cause. */
__attribute__((format(printf, 3, 4))) void queue_fail(struct queue *q, int r, const char *fmt, ...);

#endif
