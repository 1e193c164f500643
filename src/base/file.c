/* file.c owns descriptors only while a call or a struct new_file holds them. */
#include "src/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"

#define STREAM_BYTES ((size_t)64 << 10) /* of the first read; it doubles */

static int fail_path(const char *path, const char *what)
{
    int err = errno;

    return fail(-err, "%s: %s: %s", path, what, err == ENOSPC ? "no space left" : strerror(err));
}

/* read(2) until the file ends or *bytes are there; *bytes becomes what was read. */
static int read_up_to(int fd, const char *path, char *buf, size_t *bytes)
{
    size_t at = 0;

    while (at < *bytes) {
        ssize_t n = read(fd, buf + at, *bytes - at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_path(path, "read");
        if (n == 0)
            break;
        at += (size_t)n;
    }
    *bytes = at;
    return 0;
}

int file_read(const char *path, size_t max_bytes, char **out, size_t *bytes)
{
    struct stat st;
    size_t want, got;
    char *buf;
    int r;
    /* O_NONBLOCK: a FIFO must be refused, not waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return fail_path(path, "open");
    if (fstat(fd, &st) < 0) {
        r = fail_path(path, "stat");
        goto close_fd;
    }
    if (!S_ISREG(st.st_mode)) {
        r = fail(S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, "%s: not a regular file", path);
        goto close_fd;
    }
    if (st.st_size > (off_t)0 && (size_t)st.st_size > max_bytes) {
        r = fail(-EFBIG, "%s: %lld bytes, at most %zu are read", path, (long long)st.st_size,
                 max_bytes);
        goto close_fd;
    }
    want = (size_t)st.st_size;
    buf = malloc(want + 1);
    if (!buf) {
        r = fail(-ENOMEM, "%s: no memory for %zu bytes", path, want);
        goto close_fd;
    }
    got = want + 1; /* one more than it should have, to see it grow */
    r = read_up_to(fd, path, buf, &got);
    if (r < 0)
        goto free_buf;
    if (got != want) {
        r = fail(-EIO, "%s: changed while it was read", path);
        goto free_buf;
    }
    buf[want] = 0;
    close(fd);
    *out = buf;
    *bytes = want;
    return 0;

free_buf:
    free(buf);
close_fd:
    close(fd);
    return r;
}

int file_read_stream(const char *path, size_t max_bytes, char **out, size_t *bytes)
{
    size_t cap = STREAM_BYTES, at = 0, got;
    char *buf = NULL, *more;
    struct stat st;
    int fd, r;

    if (stat(path, &st) < 0)
        return fail_path(path, "open");
    if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        return file_read(path, max_bytes, out, bytes);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_path(path, "open");
    for (;;) {
        more = realloc(buf, cap + 1);
        if (!more) {
            r = fail(-ENOMEM, "%s: no memory for %zu bytes", path, cap);
            break;
        }
        buf = more;
        got = cap - at;
        r = read_up_to(fd, path, buf + at, &got);
        at += got;
        if (r == 0 && at > max_bytes)
            r = fail(-EFBIG, "%s: at most %zu bytes are read", path, max_bytes);
        if (r < 0 || at < cap)
            break;
        cap *= 2;
    }
    close(fd);
    if (r < 0) {
        free(buf);
        return r;
    }
    buf[at] = 0;
    *out = buf;
    *bytes = at;
    return 0;
}

/* The folder of path, "." if it names none. */
static void folder_of(const char *path, char out[PATH_CAP])
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;

    if (!slash)
        strcpy(out, ".");
    else if (n == 0)
        strcpy(out, "/");
    else {
        memcpy(out, path, n);
        out[n] = 0;
    }
}

/* Not mkostemp, whose files have a mode of their own: this one is less the umask. */
static int create_beside(const char *path, mode_t mode, char temp[PATH_CAP])
{
    int fd;

    do {
        uint64_t t = (uint64_t)clock_ns() * 0x9E3779B97F4A7C15u + (uint64_t)getpid();

        snprintf(temp, PATH_CAP, "%.*s.%06x", PATH_CAP - 8, path, (unsigned)(t >> 40));
        fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    } while (fd < 0 && (errno == EEXIST || errno == EINTR));
    return fd;
}

int new_file_open(struct new_file *f, const char *path, mode_t mode)
{
    int r;

    f->fd = -1;
    f->temp[0] = 0;
    if (strlen(path) + sizeof(".XXXXXX") > sizeof(f->temp))
        return fail(-ENAMETOOLONG, "%.64s...: path too long", path);
    strcpy(f->path, path);
    f->fd = create_beside(path, mode, f->temp);
    if (f->fd < 0) {
        r = fail_path(path, "create");
        f->temp[0] = 0;
        return r;
    }
    return 0;
}

int new_file_commit(struct new_file *f)
{
    char folder[PATH_CAP];
    int fd, r;

    if (fsync(f->fd) < 0) {
        r = fail_path(f->path, "fsync");
        goto drop;
    }
    r = close(f->fd);
    f->fd = -1;
    if (r < 0) {
        r = fail_path(f->path, "close");
        goto drop;
    }
    if (rename(f->temp, f->path) < 0) {
        r = fail_path(f->path, "rename");
        goto drop;
    }
    f->temp[0] = 0;
    /* The new name is on the disk only when the folder is. Some file systems cannot sync one. */
    folder_of(f->path, folder);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        if (fsync(fd) < 0 && errno != EINVAL)
            r = fail_path(folder, "fsync");
        close(fd);
    }
    return r;

drop:
    new_file_drop(f);
    return r;
}

void new_file_drop(struct new_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    if (f->temp[0])
        unlink(f->temp);
    f->fd = -1;
    f->temp[0] = 0;
}

int file_write(const char *path, const void *data, size_t bytes, mode_t mode)
{
    struct new_file f;
    int r = new_file_open(&f, path, mode);

    if (r < 0)
        return r;
    r = full_pwrite(f.fd, data, bytes, 0, path);
    if (r < 0) {
        new_file_drop(&f);
        return r;
    }
    return new_file_commit(&f);
}

int full_pread(int fd, void *out, size_t bytes, off_t offset, const char *name)
{
    char *p = out;

    while (bytes > 0) {
        ssize_t n = pread(fd, p, bytes, offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_path(name, "read");
        if (n == 0)
            return fail(-EIO, "%s: ends at byte %lld, %zu more were expected", name,
                        (long long)offset, bytes);
        p += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return 0;
}

int full_pwrite(int fd, const void *data, size_t bytes, off_t offset, const char *name)
{
    const char *p = data;

    while (bytes > 0) {
        ssize_t n = pwrite(fd, p, bytes, offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_path(name, "write");
        p += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return 0;
}

int file_room(const char *path, uint64_t bytes)
{
    struct statvfs v;
    double free_bytes;

    if (statvfs(path, &v) < 0 || v.f_blocks == 0)
        return 0;
    free_bytes = (double)v.f_frsize * (double)(geteuid() == 0 ? v.f_bfree : v.f_bavail);
    if ((double)bytes <= free_bytes)
        return 0;
    return fail(-ENOSPC, "%s: no room for %.1f MB, %.1f MB are free", path, (double)bytes / 1e6,
                free_bytes / 1e6);
}

/* The folder above is there, so "no such file" is no missing file: /proc and its like take no
 * folders, and a link that leads nowhere keeps its name.
 */
static int make_dir(const char *path, mode_t mode)
{
    struct stat st;
    int r = 0;

    if (mkdir(path, mode) == 0)
        return 0;
    if (errno != EEXIST)
        r = fail_path(path, "mkdir");
    else if (stat(path, &st) < 0)
        r = fail_path(path, "stat");
    if (r < 0)
        return r == -ENOENT ? -EROFS : r;
    return S_ISDIR(st.st_mode) ? 0 : fail(-ENOTDIR, "%s: exists and is no folder", path);
}

int make_dirs(const char *path, mode_t mode)
{
    char part[PATH_CAP];
    size_t n = strlen(path);
    int r = 0;

    if (n == 0)
        return fail(-ENOENT, "mkdir: empty path");
    if (n >= sizeof(part))
        return fail(-ENAMETOOLONG, "%.64s...: path too long", path);
    for (size_t i = 1; i <= n && r == 0; i++) {
        if (i < n && path[i] != '/')
            continue;
        memcpy(part, path, i);
        part[i] = 0;
        r = make_dir(part, mode);
    }
    return r;
}

int file_lock(const char *path, bool wait, int *fd)
{
    int f = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int r;

    if (f < 0)
        return fail_path(path, "open lock");
    do
        r = flock(f, LOCK_EX | (wait ? 0 : LOCK_NB));
    while (r < 0 && errno == EINTR);
    if (r < 0) {
        r = errno == EWOULDBLOCK ? 1 : fail_path(path, "lock");
        close(f);
        return r;
    }
    *fd = f;
    return 0;
}

void file_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}

int path_join(char *out, size_t cap, const char *dir, const char *name)
{
    size_t n = strlen(dir);
    const char *slash = n == 0 || dir[n - 1] == '/' ? "" : "/";

    if (n + strlen(slash) + strlen(name) >= cap)
        return fail(-ENAMETOOLONG, "%.64s.../%.64s: path too long", dir, name);
    snprintf(out, cap, "%s%s%s", dir, slash, name);
    return 0;
}

bool same_file(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool is_plain_name(const char *name, size_t bytes)
{
    if (bytes == 0 || bytes > NAME_MAX)
        return false;
    if (name[0] == '.' && (bytes == 1 || (bytes == 2 && name[1] == '.')))
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (name[i] == '/' || name[i] == '\\' || name[i] == 0)
            return false;
    return true;
}
