/* pack_link.c owns what a pack knows of the files that its rows stay in. */
#include "src/model/pack_link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/log.h"
#include "src/model/pack_file.h"

#define BEGIN_BYTES                                                                                \
    ((size_t)64 << 10) /* of a file, that tell it from others: names and offsets of tensors */

size_t pack_link_bytes(const struct pack_weight *w, int piece)
{
    size_t row = (size_t)pack_row_bytes(w), scales = (size_t)w->d.cols / 32;

    if (w->dtype != DTYPE_FP8)
        return piece == 0 ? row : 0;
    return piece == 0 ? row - scales : scales;
}

static uint64_t share_rows(const struct pack_weight *w)
{
    uint64_t rows = 0;

    for (int64_t i = 0; i < w->d.count; i++)
        rows += (uint64_t)w->column_rows[i];
    return rows;
}

/* Size and beginning of an open file. */
static int identify(const char *path, int fd, uint64_t *bytes, uint8_t digest[XXH3_BYTES])
{
    struct stat st;
    size_t n;
    char *buf;
    int r;

    if (fstat(fd, &st) < 0)
        return fail(-errno, "%s: stat: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(-EINVAL, "%s: not a regular file", path);
    n = (uint64_t)st.st_size < BEGIN_BYTES ? (size_t)st.st_size : BEGIN_BYTES;
    buf = malloc(n + 1);
    if (!buf)
        return fail(-ENOMEM, "%s: no memory for %zu bytes", path, n);
    r = full_pread(fd, buf, n, 0, path);
    xxh3_of(buf, n, digest);
    free(buf);
    *bytes = (uint64_t)st.st_size;
    return r;
}

static int make_one(const struct stored_tensor *t, uint64_t first, struct pack_link *l)
{
    int fd, r;

    *l = (struct pack_link){ .fd = -1, .path = realpath(t->t.file, NULL) };
    if (!l->path)
        return fail(-EINVAL, "%s: tensor %s: no file that could be linked: %s", t->t.file, t->name,
                    strerror(errno));
    fd = open(l->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(-errno, "%s: open: %s", l->path, strerror(errno));
    r = identify(l->path, fd, &l->file_bytes, l->digest);
    close(fd);
    l->offset = t->t.offset + first;
    return r;
}

int pack_link_make(struct pack_weight *w, const struct stored *stored)
{
    const struct stored_tensor *codes = &stored->slice[0].codes;
    size_t row = pack_link_bytes(w, 0), scales = pack_link_bytes(w, 1);
    uint64_t first = 0;
    int r;

    if (stored->slices > 1)
        return fail(-EINVAL, "%s: tensor %s: rows in %d tensors cannot be linked", codes->t.file,
                    codes->name, stored->slices);
    for (int64_t i = 0; i < w->d.first; i++)
        first += (uint64_t)w->d.prime[i];
    w->link = calloc(LINKS_MAX, sizeof(*w->link));
    if (!w->link)
        return fail(-ENOMEM, "%s: no memory", w->d.name);
    w->links = 1 + (scales > 0);
    for (int i = 0; i < w->links; i++)
        w->link[i].fd = -1;
    r = make_one(codes, stored->first_element * (uint64_t)codes->t.each + first * row, &w->link[0]);
    if (r == 0 && scales > 0)
        r = make_one(&stored->scale, first * scales, &w->link[1]);
    return r;
}

int pack_link_check(const char *pack, const struct pack_weight *w)
{
    if (w->links == 0)
        return 0;
    if (w->d.kind != WEIGHT_ROWS || w->links != 1 + (pack_link_bytes(w, 1) > 0))
        return fail(-EINVAL, "%s: %s: %d links", pack, w->d.name, w->links);
    for (int i = 0; i < w->links; i++) {
        const struct pack_link *l = &w->link[i];
        uint64_t bytes;

        if (l->path[0] != '/' ||
            __builtin_mul_overflow(share_rows(w), (uint64_t)pack_link_bytes(w, i), &bytes) ||
            l->file_bytes > INT64_MAX || l->offset > l->file_bytes ||
            bytes > l->file_bytes - l->offset)
            return fail(-EINVAL, "%s: %s: rows from offset %llu are not inside %s", pack, w->d.name,
                        (unsigned long long)l->offset, l->path);
    }
    return 0;
}

static int open_one(const char *pack, const char *name, struct pack_link *l)
{
    uint8_t digest[XXH3_BYTES];
    uint64_t bytes;
    int r;

    /* O_NONBLOCK: a FIFO must be refused, not waited for. */
    l->fd = open(l->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (l->fd < 0)
        return fail(-errno, "%s: %s stays in %s: %s", pack, name, l->path, strerror(errno));
    r = identify(l->path, l->fd, &bytes, digest);
    if (r == 0 && (bytes != l->file_bytes || memcmp(digest, l->digest, sizeof(digest)) != 0))
        r = fail(-EINVAL, "%s: %s stays in %s, which is another file now; pack the model again",
                 pack, name, l->path);
    return r;
}

int pack_link_open(const char *pack, struct pack_toc *t)
{
    int r = 0;

    for (size_t i = 0; i < t->n && r == 0; i++)
        for (int j = 0; j < t->weight[i].links && r == 0; j++)
            r = open_one(pack, t->weight[i].d.name, &t->weight[i].link[j]);
    return r;
}

void pack_link_free(struct pack_weight *w)
{
    for (int i = 0; i < w->links; i++) {
        if (w->link[i].fd >= 0)
            close(w->link[i].fd);
        free(w->link[i].path);
    }
    free(w->link);
    w->link = NULL;
    w->links = 0;
}
