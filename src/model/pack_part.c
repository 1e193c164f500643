/* pack_part.c owns the files of a pack in the making. */
#include "src/model/pack_part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/log.h"

#define NOTE_BYTES ((uint64_t)1 << 30) /* of data between two syncs */

struct note_head {
    char magic[8];
    uint8_t key[SHA256_BYTES];
};

static const char note_magic[8] = "TDMDONE\n";

/* ---- key --------------------------------------------------------------------------------- */

/* Everything that decides the bytes of a weight and their place. */
static int key_of(const struct pack_toc *t, uint64_t end, uint8_t key[SHA256_BYTES])
{
    struct sha256 *s;
    int r = sha256_open(&s);

    if (r < 0)
        return r;
    sha256_add(s, t->source_digest, SHA256_BYTES);
    sha256_add(s, t->walk_digest, SHA256_BYTES);
    sha256_add_u64(s, PACK_VERSION);
    sha256_add_u64(s, (uint64_t)t->rank);
    sha256_add_u64(s, (uint64_t)t->ranks);
    sha256_add_u64(s, end);
    sha256_add_u64(s, t->n);
    for (size_t i = 0; i < t->n; i++) {
        const struct pack_weight *w = &t->weight[i];

        sha256_add(s, w->d.name, strlen(w->d.name) + 1);
        sha256_add_u64(s, (uint64_t)w->d.first);
        sha256_add_u64(s, (uint64_t)w->d.count);
        sha256_add_u64(s, w->dtype);
        sha256_add(s, &w->q, sizeof(w->q));
        sha256_add_u64(s, w->offset);
        sha256_add_u64(s, w->bytes);
        sha256_add_u64(s, (uint64_t)w->n_made);
    }
    r = sha256_end(s, key);
    sha256_close(s);
    return r;
}

/* ---- going on ---------------------------------------------------------------------------- */

/* A file that is named like ours and begins like ours, or is not there. */
static int check_ours(int fd, const char *path)
{
    struct pack_header h;
    struct stat st;

    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0)
        return 0;
    if (pread(fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h) &&
        memcmp(h.magic, PACK_MAGIC, sizeof(h.magic)) == 0 && h.complete == 0)
        return 0;
    return fail(-EEXIST, "%s: not the beginning of a pack; move it away", path);
}

/* The last noted weight is read again: notes are worth nothing if the disk has lost what they
 * say. */
static bool holds(int fd, const struct pack_weight *w)
{
    uint8_t digest[XXH3_BYTES];
    struct xxh3 *hash;
    char *buf = malloc(PACK_BLOCK);
    bool ok = false;

    if (buf && xxh3_open(&hash) == 0) {
        ok = true;
        for (uint64_t at = pack_stored_at(w); ok && at < w->bytes;) {
            size_t n = w->bytes - at < PACK_BLOCK ? (size_t)(w->bytes - at) : PACK_BLOCK;

            ok = pread(fd, buf, n, (off_t)(w->offset + at)) == (ssize_t)n;
            xxh3_add(hash, buf, n);
            at += n;
        }
        xxh3_end(hash, digest);
        ok = ok && memcmp(digest, w->digest, sizeof(digest)) == 0;
        xxh3_close(hash);
    }
    free(buf);
    return ok;
}

/* How many weights the notes of an earlier run are good for. */
static size_t read_notes(struct pack_part *p, struct pack_toc *t, uint64_t end,
                         const uint8_t key[SHA256_BYTES])
{
    struct note_head h;
    struct stat st;
    off_t at = sizeof(h);
    size_t n = 0;

    if (fstat(p->file.fd, &st) < 0 || (uint64_t)st.st_size < end ||
        pread(p->done_fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h) ||
        memcmp(h.magic, note_magic, sizeof(note_magic)) != 0 ||
        memcmp(h.key, key, sizeof(h.key)) != 0)
        return 0;
    while (n < t->n && pread(p->done_fd, t->weight[n].digest, XXH3_BYTES, at) == XXH3_BYTES) {
        at += XXH3_BYTES;
        n++;
    }
    return n > 0 && holds(p->file.fd, &t->weight[n - 1]) ? n : 0;
}

/* ---- beginning --------------------------------------------------------------------------- */

static int reserve(int fd, uint64_t bytes, const char *path)
{
    int r = file_room(path, bytes);

    if (r < 0)
        return r;
    do
        r = fallocate(fd, 0, 0, (off_t)bytes);
    while (r < 0 && errno == EINTR); /* of a process that was stopped, too */
    if (r == 0 || errno == EOPNOTSUPP || errno == ENOSYS)
        return 0;
    return fail(-errno, "%s: no room for %llu bytes: %s", path, (unsigned long long)bytes,
                strerror(errno));
}

/* A pack with holes takes the room that it fills. */
static bool has_holes(const struct pack_toc *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->weight[i].n_made > 0)
            return true;
    return false;
}

static int begin(struct pack_part *p, const struct pack_toc *t, uint64_t end,
                 const uint8_t key[SHA256_BYTES])
{
    struct pack_header begun = { .version = PACK_VERSION };
    struct note_head h;
    int r;

    memcpy(begun.magic, PACK_MAGIC, sizeof(begun.magic));
    memcpy(h.magic, note_magic, sizeof(note_magic));
    memcpy(h.key, key, sizeof(h.key));
    if (ftruncate(p->file.fd, 0) < 0 || ftruncate(p->done_fd, 0) < 0)
        return fail(-errno, "%s: truncate: %s", p->file.temp, strerror(errno));
    r = full_pwrite(p->file.fd, &begun, sizeof(begun), 0, p->file.path);
    if (r == 0 && !has_holes(t))
        r = reserve(p->file.fd, end, p->file.temp);
    else if (r == 0 && ftruncate(p->file.fd, (off_t)end) < 0)
        r = fail(-errno, "%s: truncate: %s", p->file.path, strerror(errno));
    if (r == 0)
        r = full_pwrite(p->done_fd, &h, sizeof(h), 0, p->done);
    return r;
}

static int open_one(const char *path, int *fd)
{
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    return *fd >= 0 ? 0 : fail(-errno, "%s: %s", path, strerror(errno));
}

int pack_part_open(const char *path, struct pack_toc *t, uint64_t end, struct pack_part *p)
{
    uint8_t key[SHA256_BYTES];
    int r;

    *p = (struct pack_part){ .file = { .fd = -1 }, .done_fd = -1 };
    if (snprintf(p->file.path, PATH_CAP, "%s", path) >= PATH_CAP - 8)
        return fail(-ENAMETOOLONG, "%.64s...: path too long", path);
    snprintf(p->done, PATH_CAP, "%.*s.done", PATH_CAP - 8, path);
    r = key_of(t, end, key);
    if (r < 0)
        return r;
    snprintf(p->file.temp, PATH_CAP, "%.*s.part", PATH_CAP - 8, path);
    r = open_one(p->file.temp, &p->file.fd);
    if (r == 0)
        r = check_ours(p->file.fd, p->file.temp);
    if (r < 0) {
        p->file.temp[0] = 0; /* it is not ours to remove */
        p->done[0] = 0;
    } else {
        r = open_one(p->done, &p->done_fd);
    }
    if (r == 0) {
        p->noted = read_notes(p, t, end, key);
        p->since = p->noted ? t->weight[p->noted - 1].offset + t->weight[p->noted - 1].bytes : 0;
        if (p->noted)
            log_info("%s: going on behind %zu of %zu weights", path, p->noted, t->n);
        else
            r = begin(p, t, end, key);
    }
    if (r < 0)
        pack_part_drop(p);
    return r;
}

int pack_part_note(struct pack_part *p, const struct pack_toc *t, size_t n, uint64_t at,
                   struct pack_sink *sink)
{
    int r = 0;

    if (at < p->since + NOTE_BYTES)
        return 0;
    r = pack_sink_flush(sink);
    if (r < 0)
        return r;
    if (fdatasync(p->file.fd) < 0)
        return fail(-errno, "%s: sync: %s", p->file.path, strerror(errno));
    for (; p->noted < n && r == 0; p->noted++)
        r = full_pwrite(p->done_fd, t->weight[p->noted].digest, XXH3_BYTES,
                        (off_t)(sizeof(struct note_head) + p->noted * XXH3_BYTES), p->done);
    p->since = at;
    return r;
}

static void drop_notes(struct pack_part *p)
{
    if (p->done_fd >= 0)
        close(p->done_fd);
    if (p->done[0])
        unlink(p->done);
    p->done_fd = -1;
}

int pack_part_commit(struct pack_part *p)
{
    int r = new_file_commit(&p->file);

    drop_notes(p);
    return r;
}

void pack_part_drop(struct pack_part *p)
{
    new_file_drop(&p->file);
    drop_notes(p);
}
