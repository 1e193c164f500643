/* pack_write.c owns the making of a pack: the plan from a walk, the place of every weight, the
 * lock, the temporary file and its end under the final name. The bytes themselves go through
 * pack_stream.c.
 */
#include "src/model/pack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/model/names.h"
#include "src/model/pack_file.h"
#include "src/model/source.h"

#define TEMP_TAIL 7 /* ".XXXXXX" of struct new_file */

/* ---- plan
 * -------------------------------------------------------------------------------------------- */

struct plan {
    struct walk w;
    struct pack_toc *toc;
    size_t cap;
    struct sha256 *digest;
};

static void add_number(struct sha256 *s, int64_t v)
{
    sha256_add(s, &v, sizeof(v));
}

/* What is equal on all ranks: not the share, but all that the shares follow from. */
static void digest_weight(struct sha256 *s, const struct weight *d)
{
    add_number(s, (int64_t)strlen(d->name));
    sha256_add(s, d->name, strlen(d->name));
    add_number(s, d->kind);
    add_number(s, d->rows);
    add_number(s, d->cols);
    add_number(s, d->shard);
    add_number(s, d->unit);
    add_number(s, d->columns);
    for (int i = 0; i < d->columns; i++)
        add_number(s, d->prime[i]);
}

static int plan_visit(struct walk *walk, const struct weight *d, void *target)
{
    struct plan *p = (struct plan *)walk;
    struct pack_toc *t = p->toc;
    struct pack_weight *w;

    if (t->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 1024;

        w = realloc(t->weight, cap * sizeof(*w));
        if (!w)
            return fail(-ENOMEM, "%s: no memory for %zu weights", d->name, cap);
        t->weight = w;
        p->cap = cap;
    }
    w = &t->weight[t->n++];
    *w = (struct pack_weight){ .d = *d };
    digest_weight(p->digest, d);
    if (d->kind != WEIGHT_ROWS)
        return 0;
    w->column_rows = calloc((size_t)d->count + 1, sizeof(*w->column_rows));
    if (!w->column_rows)
        return fail(-ENOMEM, "%s: no memory for %lld columns", d->name, (long long)d->count);
    for (int64_t i = 0; i < d->count; i++)
        w->column_rows[i] = d->prime[d->first + i];
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct pack_toc *t)
{
    const char **name = calloc(t->n + 1, sizeof(*name));
    int r = 0;

    if (!name)
        return fail(-ENOMEM, "pack: no memory for %zu names", t->n);
    for (size_t i = 0; i < t->n; i++)
        name[i] = t->weight[i].d.name;
    qsort(name, t->n, sizeof(*name), by_name);
    for (size_t i = 1; i < t->n && r == 0; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            r = fail(-EINVAL, "%s: the walk names two weights so", name[i]);
    free(name);
    return r;
}

static int copy_blobs(const struct pack_spec *spec, struct pack_toc *t)
{
    for (int i = 0; i < PACK_BLOBS_MAX; i++) {
        const struct pack_blob *b = &spec->blobs[i];
        char *data, *name;

        if (!b->name)
            continue;
        for (int j = 0; j < t->n_blobs; j++)
            if (strcmp(t->blob[j].name, b->name) == 0)
                return fail(-EINVAL, "pack: two blobs named %s", b->name);
        data = malloc(b->bytes + 1);
        name = strdup(b->name);
        t->blob[t->n_blobs++] = (struct pack_blob){ name, data, b->bytes };
        if (!data || !name)
            return fail(-ENOMEM, "pack: no memory for %s, %zu bytes", b->name, b->bytes);
        if (b->bytes > 0)
            memcpy(data, b->data, b->bytes);
        data[b->bytes] = 0;
    }
    return 0;
}

int pack_plan(const struct pack_spec *spec, struct pack_toc *out)
{
    struct pack_toc t = { .rank = spec->rank, .ranks = spec->ranks };
    struct plan p = { .w = { .visit = plan_visit, .rank = spec->rank, .ranks = spec->ranks },
                      .toc = &t };
    int r;

    if (spec->ranks < 1 || spec->ranks > RANKS_MAX || spec->rank < 0 || spec->rank >= spec->ranks)
        return fail(-EINVAL, "pack: rank %d of %d", spec->rank, spec->ranks);
    memcpy(t.source_digest, spec->source_digest, SHA256_BYTES);
    r = sha256_open(&p.digest);
    if (r < 0)
        return r;
    t.family = strdup(spec->family);
    r = t.family ? copy_blobs(spec, &t) : fail(-ENOMEM, "pack: no memory");
    if (r == 0)
        r = walk_parts(&p.w, spec->parts, spec->n_parts);
    if (r == 0)
        r = check_names(&t);
    if (r == 0)
        r = sha256_end(p.digest, t.walk_digest);
    sha256_close(p.digest);
    if (r < 0) {
        pack_toc_free(&t);
        return r;
    }
    *out = t;
    return 0;
}

static int look_up(struct source *src, const struct pack_weight *w, struct tensor *t,
                   char name[TENSOR_NAME_MAX], uint64_t *first_element)
{
    int r = source_weight(src, w->d.name, w->d.rows, w->d.cols, t, name, TENSOR_NAME_MAX,
                          first_element);

    return r == 1 ? fail(-ENOENT, "%s: not in the checkpoint under any known name", w->d.name) : r;
}

/* Find every tensor before the first byte is written, so that a checkpoint that does not fit is
 * refused at once. *end is where the table of contents goes.
 */
static int lay_out(struct source *src, struct pack_toc *t, uint64_t *end, uint64_t *total)
{
    uint64_t at = sizeof(struct pack_header), sum = 0;

    for (size_t i = 0; i < t->n; i++) {
        struct pack_weight *w = &t->weight[i];
        char name[TENSOR_NAME_MAX];
        struct tensor tensor;
        uint64_t first;
        int r = look_up(src, w, &tensor, name, &first);

        if (r < 0)
            return r;
        w->dtype = w->d.kind == WEIGHT_VEC ? DTYPE_F32 : tensor.dtype;
        w->offset = pack_align(at);
        if (pack_share_bytes(w, &w->bytes) < 0 || w->bytes > INT64_MAX / 2 - w->offset)
            return fail(-EINVAL, "%s: more than 2^62 bytes", w->d.name);
        at = w->offset + w->bytes;
        sum += w->bytes;
    }
    *end = pack_align(at);
    *total = sum;
    return 0;
}

/* ---- lock and leftovers
 * ------------------------------------------------------------------------------ */

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

/* A file that an interrupted run left: named like our temporary files and begun like them. */
static bool is_leftover(const char *path)
{
    struct pack_header h;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool yes = fd >= 0 && pread(fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h) &&
               memcmp(h.magic, PACK_MAGIC, sizeof(h.magic)) == 0 && h.complete == 0;

    if (fd >= 0)
        close(fd);
    return yes;
}

static void remove_leftovers(const char *path)
{
    char folder[PATH_CAP], other[PATH_CAP];
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t base_bytes = strlen(base);
    struct dirent *e;
    DIR *d;

    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path + 1) : 2,
             slash ? path : "./");
    d = opendir(folder);
    while (d && (e = readdir(d))) {
        if (strncmp(e->d_name, base, base_bytes) != 0 ||
            strlen(e->d_name) != base_bytes + TEMP_TAIL || e->d_name[base_bytes] != '.')
            continue;
        if (path_join(other, sizeof(other), folder, e->d_name) < 0 || !is_leftover(other))
            continue;
        log_info("%s: left by an interrupted run, removed", other);
        unlink(other);
    }
    if (d)
        closedir(d);
}

static bool same_digest(const uint8_t *a, const uint8_t *b)
{
    return memcmp(a, b, SHA256_BYTES) == 0;
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
    yes = strcmp(p->toc.family, spec->family) == 0 && p->toc.rank == spec->rank &&
          p->toc.ranks == spec->ranks && same_digest(p->toc.source_digest, spec->source_digest) &&
          same_digest(p->toc.walk_digest, walk_digest);
    pack_close(p);
    return yes;
}

/* ---- the file
 * ---------------------------------------------------------------------------------------- */

/* Ask for the space at once: a disk that is too small says so before hours of reading. */
static int reserve(int fd, uint64_t bytes, const char *path)
{
    if (fallocate(fd, 0, 0, (off_t)bytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS)
        return 0;
    return fail(-errno, "%s: no room for %llu bytes: %s", path, (unsigned long long)bytes,
                strerror(errno));
}

static int write_weights(struct source *src, struct pack_toc *t, struct pack_out *o)
{
    for (size_t i = 0; i < t->n; i++) {
        struct pack_weight *w = &t->weight[i];
        char name[TENSOR_NAME_MAX];
        struct tensor tensor;
        struct pack_feed feed = { .src = src, .name = name, .tensor = &tensor };
        int r = look_up(src, w, &tensor, name, &feed.first_element);

        if (r < 0)
            return r;
        o->at = w->offset;
        r = pack_stream(o, &feed, w);
        if (r < 0)
            return r;
    }
    return 0;
}

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

static int write_file(const char *path, struct source *src, struct pack_toc *t, struct pack_out *o)
{
    struct pack_header begun = { .version = PACK_VERSION };
    struct new_file f;
    uint64_t end = 0;
    int r = lay_out(src, t, &end, &o->total);

    if (r < 0)
        return r;
    r = new_file_open(&f, path, 0644);
    if (r < 0)
        return r;
    o->fd = f.fd;
    memcpy(begun.magic, PACK_MAGIC, sizeof(begun.magic));
    r = full_pwrite(f.fd, &begun, sizeof(begun), 0, path);
    if (r == 0)
        r = reserve(f.fd, end, path);
    if (r == 0)
        r = write_weights(src, t, o);
    if (r == 0)
        r = write_toc(f.fd, path, t, end);
    if (o->shown_ns > 0)
        fprintf(stderr, "\r\033[K");
    if (r < 0) {
        new_file_drop(&f);
        return r;
    }
    return new_file_commit(&f);
}

struct unused {
    int n;
    char first[TENSOR_NAME_MAX];
};

static void note_unused(void *arg, const char *name)
{
    struct unused *u = arg;

    if (u->n++ == 0)
        snprintf(u->first, sizeof(u->first), "%s", name);
    log_debug("tensor %s is not used", name);
}

static int write_locked(const char *path, struct source *src, struct pack_toc *t)
{
    struct pack_out o = { .path = path, .start_ns = clock_ns(), .terminal = isatty(STDERR_FILENO) };
    struct unused unused = { 0 };
    double seconds;
    int r = xxh3_open(&o.hash);

    if (r < 0)
        return r;
    o.in = malloc(PACK_BLOCK);
    o.out = malloc(PACK_BLOCK);
    r = o.in && o.out ? write_file(path, src, t, &o) : fail(-ENOMEM, "%s: no memory", path);
    free(o.out);
    free(o.in);
    xxh3_close(o.hash);
    if (r < 0)
        return r;
    src->ops->unused(src, note_unused, &unused);
    seconds = (double)(clock_ns() - o.start_ns) / NS_PER_S;
    log_info("%s: %zu weights, %.1f MB in %.1f s", path, t->n, (double)o.total / 1e6, seconds);
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
        remove_leftovers(path);
        r = write_locked(path, src, t);
    }
    lock_drop(lock, fd);
    return r;
}

int pack_write(const char *path, const struct pack_spec *spec, struct source *src)
{
    struct pack_toc t;
    int r = pack_plan(spec, &t);

    if (r < 0)
        return r;
    r = write_planned(path, spec, src, &t);
    pack_toc_free(&t);
    return r;
}
