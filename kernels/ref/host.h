/* host - the device of backends whose device memory is host memory: an op has run when its call
 * returns. */
#ifndef TANDEM_KERNELS_REF_HOST_H
#define TANDEM_KERNELS_REF_HOST_H

#include "kernels/backend.h"

/* host_open - a device of `ops`, called `name`, with a pool of threads; errors as backend_ops.open.
 */
int host_open(const struct backend_ops *ops, const char *name, int threads, struct device **out);

/* The other entries of backend_ops, the same for every host backend. */
int host_probe(int ordinal, char *why, size_t cap);
size_t host_room(struct device *d);
int host_alloc(struct device *d, size_t bytes, void **out);
void host_free(struct device *d, void *p);
int host_weights(struct device *d, const void *p, size_t bytes, const void **out);
void host_unweights(struct device *d, const void *p);
int host_queue_open(struct device *d, struct queue **out);
void host_queue_close(struct queue *q);
void host_copy(struct queue *q, void *dst, const void *src, size_t bytes);
int host_wait(struct queue *q);
int host_graph_begin(struct queue *q);
int host_graph_end(struct queue *q, struct graph **out);
void host_graph_launch(struct queue *q, struct graph *g);
void host_graph_close(struct graph *g);
void host_close(struct device *d);

#define HOST_ENTRIES                                                                               \
    .caps = BACKEND_HOST_MEMORY, .probe = host_probe, .room = host_room, .alloc = host_alloc,      \
    .free = host_free, .host_alloc = host_alloc, .host_free = host_free, .weights = host_weights,  \
    .unweights = host_unweights, .queue_open = host_queue_open, .queue_close = host_queue_close,   \
    .put = host_copy, .get = host_copy, .wait = host_wait, .graph_begin = host_graph_begin,        \
    .graph_end = host_graph_end, .graph_launch = host_graph_launch,                                \
    .graph_close = host_graph_close, .close = host_close

#endif
