/* buffers.c owns the way from a list to device memory and back, and what is put there at once. */
#include "src/model/buffers.h"

#include "kernels/backend.h"

#include <string.h>

int buffers_alloc(struct device *d, const struct buffer *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *p;
        int r;

        if (b[i].bytes == 0)
            continue;
        r = d->ops->alloc(d, b[i].bytes, &p);
        if (r < 0)
            return r;
        memcpy(b[i].at, &p, sizeof(p));
    }
    return 0;
}

int buffers_free(struct device *d, const struct buffer *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *p;

        memcpy(&p, b[i].at, sizeof(p));
        d->ops->free(d, p);
    }
    return 0;
}

int buffer_put(struct device *d, void *to, const void *from, size_t bytes)
{
    struct queue *q;
    int r = d->ops->queue_open(d, &q);

    if (r < 0)
        return r;
    q->ops->put(q, to, from, bytes);
    r = q->ops->wait(q);
    q->ops->queue_close(q);
    return r;
}
