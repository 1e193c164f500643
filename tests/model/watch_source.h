/* watch_source - a source that counts, and fails or does something else at the read it is told
 * to. */
#ifndef TANDEM_TESTS_MODEL_WATCH_SOURCE_H
#define TANDEM_TESTS_MODEL_WATCH_SOURCE_H

#include <errno.h>

#include "src/base/log.h"
#include "src/model/source.h"

struct watch_source {
    struct source base;
    struct source *real;
    int reads;
    size_t largest;
    int fail_at;                          /* this read is -EIO; 0: none */
    void (*first)(struct watch_source *); /* before the first read, or NULL */
    void *arg;
};

static int watch_find(struct source *s, const char *name, int64_t rows, int64_t cols,
                      struct tensor *out)
{
    struct watch_source *w = (struct watch_source *)s;

    return w->real->ops->find(w->real, name, rows, cols, out);
}

static int watch_read(struct source *s, const char *name, const struct tensor *t, uint64_t at,
                      void *buf, size_t bytes)
{
    struct watch_source *w = (struct watch_source *)s;

    if (++w->reads == 1 && w->first)
        w->first(w);
    if (w->reads == w->fail_at)
        return fail(-EIO, "watched: tensor %s: read %d fails", name, w->reads);
    if (bytes > w->largest)
        w->largest = bytes;
    return w->real->ops->read(w->real, name, t, at, buf, bytes);
}

static void watch_unused(struct source *s, void (*fn)(void *arg, const char *name), void *arg)
{
    struct watch_source *w = (struct watch_source *)s;

    w->real->ops->unused(w->real, fn, arg);
}

static void watch_close(struct source *s)
{
    struct watch_source *w = (struct watch_source *)s;

    w->real->ops->close(w->real);
}

static const struct source_ops watch_ops = {
    .name = "watch",
    .find = watch_find,
    .read = watch_read,
    .unused = watch_unused,
    .close = watch_close,
};

static inline void watch_init(struct watch_source *w, struct source *real)
{
    *w = (struct watch_source){ .base = { .ops = &watch_ops }, .real = real };
}

#endif
