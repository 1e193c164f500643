/* file - whole files in and out, exact reads and writes, locks, paths.
 *
 * Every error is logged here with the path and the cause, "no space left" included.
 */
#ifndef TANDEM_BASE_FILE_H
#define TANDEM_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PATH_CAP 4096 /* bytes of a path with its NUL */

/* file_read - the whole of a regular file.
 *
 * in, out  *out is bytes long and NUL-terminated behind them; the caller frees it
 * errors   -ENOENT, -EACCES ... of open; -EISDIR for a folder; -EINVAL for what is no regular file;
 *          -EFBIG above max_bytes; -EIO; -ENOMEM
 */
int file_read(const char *path, size_t max_bytes, char **out, size_t *bytes);

/* file_read_stream - the same of whatever can be read to its end: a pipe or a terminal too. */
int file_read_stream(const char *path, size_t max_bytes, char **out, size_t *bytes);

/* file_write - replace path by these bytes in one step: struct new_file with one write. */
int file_write(const char *path, const void *data, size_t bytes, mode_t mode);

/* struct new_file - a file that appears under its name only when it is whole.
 *
 *   open    creates a temporary name in the folder of path, with mode less the umask
 *   ...     the caller writes to fd
 *   commit  fsync, rename over path, fsync of the folder; on an error the temporary file is gone
 *   drop    unlinks the temporary file; fine after commit, or if open failed
 *
 * errors   the errno of the call, logged with the path; -ENAMETOOLONG
 * owns     fd until commit or drop
 */
struct new_file {
    int fd;
    char path[PATH_CAP];
    char temp[PATH_CAP];
};

int new_file_open(struct new_file *f, const char *path, mode_t mode);
int new_file_commit(struct new_file *f);
void new_file_drop(struct new_file *f);

/* full_pread, full_pwrite - all bytes at offset, through EINTR and short calls. name is for the
 * message.
 * errors   full_pread: -EIO if the file ends before; else the errno of the call
 */
int full_pread(int fd, void *out, size_t bytes, off_t offset, const char *name);
int full_pwrite(int fd, const void *data, size_t bytes, off_t offset, const char *name);

/* file_room - whether the file system of a folder or file has this many bytes free: for who asks
 * before it writes or reserves. fallocate takes all there is before it says that this is too
 * little, and other programs find the disk full meanwhile.
 *
 * errors   -ENOSPC with both numbers; 0 where the file system does not tell
 */
int file_room(const char *path, uint64_t bytes);

/* make_dirs - the folder path and every missing folder above it; one that is there is fine.
 * errors   -ENOTDIR if something else has the name; -EROFS where no folder can be; else the errno
 *          of mkdir
 */
int make_dirs(const char *path, mode_t mode);

/* file_lock - take the exclusive flock(2) of path, created if missing and never removed.
 *
 * in, out  wait: block until it is free; else outcome 1 means that someone else holds it
 * owns     *fd until file_unlock; the lock also ends with the process
 */
int file_lock(const char *path, bool wait, int *fd);
void file_unlock(int fd);

/* path_join - "dir/name" into out; name alone if dir is empty, one slash if dir ends with one.
 * errors   -ENAMETOOLONG, logged
 */
int path_join(char *out, size_t cap, const char *dir, const char *name);

/* same_file - whether two paths lead to one file or folder, by links too; false if one is
 * missing. */
bool same_file(const char *a, const char *b);

/* is_plain_name - one path component that stays in its folder: not empty, not "." or "..", no '/',
 * no '\\', no NUL, at most 255 bytes. For names that come from files, such as the shards of an
 * index.
 */
bool is_plain_name(const char *name, size_t bytes);

#endif
