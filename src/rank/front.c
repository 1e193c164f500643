/* front.c owns the thread that a slow terminal may hold up. */
#include "src/rank/front.h"

#include "src/base/log.h"
#include "src/rank/ring.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FRONT_BYTES ((size_t)1 << 20)

struct front {
    struct ring *ring;
    int fd;
    atomic_int err;
};

static void write_out(void *arg, const void *data, size_t n)
{
    struct front *f = (struct front *)arg;
    const char *p = (const char *)data;

    while (n > 0 && atomic_load(&f->err) == 0) {
        ssize_t w = write(f->fd, p, n);

        if (w >= 0) {
            p += w;
            n -= (size_t)w;
        } else if (errno == EAGAIN) {
            poll(&(struct pollfd){ .fd = f->fd, .events = POLLOUT }, 1, -1);
        } else if (errno != EINTR) {
            atomic_store(&f->err, -errno);
        }
    }
}

int front_open(int fd, struct front **out)
{
    struct front *f = calloc(1, sizeof(*f));
    int r;

    if (!f)
        return fail(-ENOMEM, "front: out of memory");
    f->fd = fd;
    r = ring_open(1, FRONT_BYTES, write_out, f, &f->ring);
    if (r < 0) {
        free(f);
        return r;
    }
    *out = f;
    return 0;
}

void front_text(struct front *f, const char *text, size_t bytes)
{
    ring_put(f->ring, text, bytes);
}

int front_failed(const struct front *f)
{
    return atomic_load(&f->err);
}

int front_close(struct front *f)
{
    int r;

    if (!f)
        return 0;
    ring_close(f->ring);
    r = front_failed(f);
    free(f);
    if (r < 0)
        return fail(r, "cannot write the text: %s", strerror(-r));
    return 0;
}
