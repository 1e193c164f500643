/* buffers - device memory of an object that has much of it: one list, by which it is made and
 * freed. */
#ifndef TANDEM_MODEL_BUFFERS_H
#define TANDEM_MODEL_BUFFERS_H

#include <stddef.h>

struct device;

struct buffer {
    void *at;     /* address of the pointer to it, NULL until it is there */
    size_t bytes; /* 0: none */
};

/* What is done with a list of n. */
typedef int buffers_fn(struct device *d, const struct buffer *b, size_t n);

/* buffers_alloc - errors   -ENOMEM; what was made is left for buffers_free */
buffers_fn buffers_alloc;

/* buffers_free - 0; what was never made is fine. */
buffers_fn buffers_free;

/* buffer_put - bytes of the host to where there is memory, outside of rounds: by a queue of its
 * own, waited for.   errors   of the queue */
int buffer_put(struct device *d, void *to, const void *from, size_t bytes);

#endif
