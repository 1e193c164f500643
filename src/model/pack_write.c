/* pack_write.c owns the making of a pack: the lock, the order of its weights and its end. What it
 * will hold is pack_plan.c's, the file until it is whole pack_part.c's, the bytes themselves go
 * through pack_line.c.
 */
#include "src/model/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/model/names.h"
#include "src/model/pack_line.h"
#include "src/model/source.h"

/* ---- lock ---------------------------------------------------------------------------- */

/* A lock file that is gone when the lock is free: who waited for one that was removed takes the
 * next. *waited: somebody else held it.
 */
static int lock_take(const char *lock, int *fd, bool *waited)
{
    struct stat mine, there;
    int r;

    for (;;) {
        r = file_lock(lock, false, fd);
        if (r == 1) {
            log_info("%s: another process is at it, waiting", lock);
            *waited = true;
            r = file_lock(lock, true, fd);
        }
        if (r < 0)
            return r;
        if (fstat(*fd, &mine) == 0 && stat(lock, &there) == 0 && mine.st_ino == there.st_ino &&
            mine.st_dev == there.st_dev)
            return 0;
        file_unlock(*fd);
    }
}

static void lock_drop(const char *lock, int fd)
{
    unlink(lock);
    file_unlock(fd);
}

static bool same_digest(const uint8_t *a, const uint8_t *b)
{
    return memcmp(a, b, SHA256_BYTES) == 0;
}

static bool rows_lie_as(const struct pack *p, const struct pack_spec *spec)
{
    for (int i = 0; i < p->n_tables; i++)
        if ((p->toc.weight[p->table[i]].links > 0) != spec->link_rows)
            return false;
    return true;
}

static bool is_of(const struct pack *p, const struct pack_spec *spec,
                  const uint8_t walk_digest[SHA256_BYTES])
{
    return strcmp(p->toc.family, spec->family) == 0 && p->toc.rank == spec->rank &&
           p->toc.ranks == spec->ranks && same_digest(p->toc.source_digest, spec->source_digest) &&
           p->toc.layouts == (spec->layouts ? spec->layouts : PACK_CPU) &&
           p->toc.whole_experts == spec->whole_experts && rows_lie_as(p, spec) &&
           same_digest(p->toc.walk_digest, walk_digest);
}

int pack_is_current(const char *path, const struct pack_spec *spec,
                    const uint8_t walk_digest[SHA256_BYTES])
{
    struct pack_header h;
    struct pack *p;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC), yes;

    if (fd < 0)
        return 0;
    /* What pack_open would refuse with an error is here only a pack that has to be made again. */
    yes = fstat(fd, &st) == 0 && pread(fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h) &&
          memcmp(h.magic, PACK_MAGIC, sizeof(h.magic)) == 0 && h.version == PACK_VERSION &&
          h.complete == 1 && h.file_bytes == (uint64_t)st.st_size;
    close(fd);
    if (!yes || pack_open(path, &p) < 0)
        return 0;
    yes = is_of(p, spec, walk_digest);
    pack_close(p);
    return yes;
}

int pack_is_of(const struct pack *p, const struct pack_spec *spec)
{
    struct pack_toc t;
    int r = pack_plan(spec, 1, &t);

    if (r < 0)
        return r;
    r = is_of(p, spec, t.walk_digest);
    pack_toc_free(&t);
    return r;
}

/* ---- the file ------------------------------------------------------------------------ */

static int write_toc(int fd, const char *path, struct pack_toc *t, uint64_t at)
{
    struct pack_header h = { .version = PACK_VERSION, .complete = 1, .toc_offset = at };
    uint8_t *toc;
    size_t bytes;
    int r = pack_toc_digest(t, t->set_digest);

    if (r < 0)
        return r;
    r = pack_toc_encode(t, &toc, &bytes);
    if (r < 0)
        return r;
    if (bytes > PACK_TOC_MAX) {
        r = fail(-EFBIG, "%s: table of contents of %zu bytes", path, bytes);
        goto free_toc;
    }
    memcpy(h.magic, PACK_MAGIC, sizeof(h.magic));
    h.toc_bytes = bytes;
    h.file_bytes = at + bytes;
    xxh3_of(toc, bytes, h.toc_digest);
    r = full_pwrite(fd, toc, bytes, (off_t)at, path);
    if (r == 0 && ftruncate(fd, (off_t)h.file_bytes) < 0)
        r = fail(-errno, "%s: truncate: %s", path, strerror(errno));
    if (r == 0)
        r = full_pwrite(fd, &h, sizeof(h), 0, path);

free_toc:
    free(toc);
    return r;
}

static int write_file(const char *path, struct source *src, struct pack_toc *t, uint64_t end,
                      uint64_t total)
{
    struct pack_sink *sink = NULL;
    struct pack_part p;
    uint64_t begin;
    int r = pack_part_open(path, t, end, &p);

    if (r < 0)
        return r;
    begin = p.since > 0 ? p.since : sizeof(struct pack_header);
    r = pack_sink_open(path, p.file.fd, begin, &sink);
    if (r == 0)
        r = pack_line_run(path, src, t, &p, sink, total);
    if (r == 0)
        r = pack_sink_flush(sink);
    pack_sink_close(sink);
    if (r == 0)
        r = write_toc(p.file.fd, path, t, end);
    if (r < 0) {
        pack_part_drop(&p);
        return r;
    }
    return pack_part_commit(&p);
}

struct unused {
    bool (*needs)(const char *name);
    int n;
    char first[TENSOR_NAME_MAX], needed[TENSOR_NAME_MAX];
};

static void note_unused(void *arg, const char *name)
{
    struct unused *u = arg;

    if (u->n++ == 0)
        snprintf(u->first, sizeof(u->first), "%s", name);
    if (u->needs && u->needs(name) && !u->needed[0])
        snprintf(u->needed, sizeof(u->needed), "%s", name);
    log_debug("tensor %s is not used", name);
}

static int write_locked(const char *path, const struct pack_spec *spec, struct source *src,
                        struct pack_toc *t)
{
    int64_t start_ns = clock_ns();
    struct unused unused = { .needs = spec->needs };
    uint64_t end, total;
    double seconds;
    int r = pack_lay_out(spec, src, t, &end, &total);

    if (r < 0)
        return r;
    src->ops->unused(src, note_unused, &unused);
    if (unused.needed[0])
        return fail(-EINVAL, "tensor %s: the config describes no weight that it belongs to",
                    unused.needed);
    r = write_file(path, src, t, end, total);
    if (r < 0)
        return r;
    seconds = (double)(clock_ns() - start_ns) / NS_PER_S;
    log_info("%s: %zu weights, %.1f MB in %.1f s", path, t->n, (double)total / 1e6, seconds);
    if (unused.n > 0)
        log_info("%s: %d tensors of the checkpoint are not used, first %s", path, unused.n,
                 unused.first);
    return 0;
}

static int write_planned(const char *path, const struct pack_spec *spec, struct source *src,
                         struct pack_toc *t)
{
    char lock[PATH_CAP];
    bool waited = false;
    int fd, r;

    if (snprintf(lock, sizeof(lock), "%s.lock", path) >= (int)sizeof(lock))
        return fail(-ENAMETOOLONG, "%.64s...: path too long", path);
    r = lock_take(lock, &fd, &waited);
    if (r < 0)
        return r;
    if (!waited || !pack_is_current(path, spec, t->walk_digest)) {
        r = write_locked(path, spec, src, t);
    }
    lock_drop(lock, fd);
    return r;
}

int pack_write(const char *path, const struct pack_spec *spec, struct source *src)
{
    struct pack_toc t;
    int r = pack_plan(spec, 1, &t);

    if (r < 0)
        return r;
    r = write_planned(path, spec, src, &t);
    pack_toc_free(&t);
    return r;
}
