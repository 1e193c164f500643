/* pack_sink.c owns two blocks and the thread that writes one while the other is filled. */
#include "src/model/pack_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/file.h"
#include "src/base/log.h"

#define SINK_BLOCK ((size_t)8 << 20)
#define LARGE_PAGE ((size_t)2 << 20)
#define SINK_HOLE ((size_t)256 << 10) /* zeros that are rather left out */
#define SINK_ALIGN ((size_t)4096)     /* of memory, offsets and sizes of writes past the cache */

struct pack_sink {
    char *path;
    int fd, direct_fd; /* direct_fd: -1 if the file system has no such writes */
    char *block[2];
    int filling;   /* which block is being filled; the other one is the thread's while busy */
    uint64_t base; /* where the block that is filled begins in the file */
    size_t used;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool busy, leave;
    uint64_t out_at; /* the thread's work: the other block, this much of it, there */
    size_t out_bytes;
    int err; /* the first failed write */
    char why[PATH_CAP + 128];
};

void *pack_buffer(size_t bytes)
{
    size_t whole = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    void *p = aligned_alloc(LARGE_PAGE, whole);

    if (p)
        madvise(p, whole, MADV_HUGEPAGE);
    return p;
}

static int write_block(struct pack_sink *s, const char *block, uint64_t at, size_t bytes)
{
    int r;

    if (s->direct_fd >= 0)
        return full_pwrite(s->direct_fd, block, bytes, (off_t)at, s->path);
    r = full_pwrite(s->fd, block, bytes, (off_t)at, s->path);
    if (r == 0) {
        sync_file_range(s->fd, (off_t)at, (off_t)bytes,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                            SYNC_FILE_RANGE_WAIT_AFTER);
        posix_fadvise(s->fd, (off_t)at, (off_t)bytes, POSIX_FADV_DONTNEED);
    }
    return r;
}

static void *write_blocks(void *arg)
{
    struct pack_sink *s = arg;

    fail_hold(true);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        const char *block;
        uint64_t at;
        size_t bytes;
        int r;

        while (!s->busy && !s->leave)
            pthread_cond_wait(&s->change, &s->lock);
        if (!s->busy)
            break;
        block = s->block[!s->filling];
        at = s->out_at;
        bytes = s->out_bytes;
        pthread_mutex_unlock(&s->lock);
        r = write_block(s, block, at, bytes);
        pthread_mutex_lock(&s->lock);
        if (r < 0 && s->err == 0) {
            s->err = r;
            snprintf(s->why, sizeof(s->why), "%s", fail_text());
        }
        s->busy = false;
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The thread has nothing to do; the first error of what it did. */
static int wait_idle(struct pack_sink *s)
{
    int r;

    pthread_mutex_lock(&s->lock);
    while (s->busy)
        pthread_cond_wait(&s->change, &s->lock);
    r = s->err;
    pthread_mutex_unlock(&s->lock);
    return r < 0 ? fail(r, "%s", s->why) : 0;
}

/* Hand the full block over and go on with the other one. */
static int hand_over(struct pack_sink *s)
{
    int r = wait_idle(s);

    if (r < 0)
        return r;
    pthread_mutex_lock(&s->lock);
    s->out_at = s->base;
    s->out_bytes = s->used;
    s->filling = !s->filling;
    s->busy = true;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    s->base += s->used;
    s->used = 0;
    return 0;
}

static int add(struct pack_sink *s, const char *data, uint64_t bytes)
{
    while (bytes > 0) {
        size_t n = SINK_BLOCK - s->used < bytes ? SINK_BLOCK - s->used : (size_t)bytes;

        if (data) {
            memcpy(s->block[s->filling] + s->used, data, n);
            data += n;
        } else {
            memset(s->block[s->filling] + s->used, 0, n);
        }
        s->used += n;
        bytes -= n;
        if (s->used == SINK_BLOCK) {
            int r = hand_over(s);

            if (r < 0)
                return r;
        }
    }
    return 0;
}

/* The last block may be short; it stays, and is written again when there is more of it. */
int pack_sink_flush(struct pack_sink *s)
{
    size_t whole = (s->used + SINK_ALIGN - 1) / SINK_ALIGN * SINK_ALIGN;
    int r = wait_idle(s);

    if (r < 0 || s->used == 0)
        return r;
    memset(s->block[s->filling] + s->used, 0, whole - s->used);
    return write_block(s, s->block[s->filling], s->base, whole);
}

/* Go on at `at`, far behind what was put so far; the file has no data there yet. */
static int leave_hole(struct pack_sink *s, uint64_t at)
{
    int r = pack_sink_flush(s);

    s->base = at / SINK_ALIGN * SINK_ALIGN;
    s->used = (size_t)(at - s->base);
    memset(s->block[s->filling], 0, s->used);
    return r;
}

int pack_sink_put(struct pack_sink *s, uint64_t at, const void *data, size_t bytes)
{
    int r = 0;

    if (at < s->base + s->used)
        return fail(-EINVAL, "%s: bytes at %llu are written already", s->path,
                    (unsigned long long)at);
    if (at > s->base + s->used + SINK_HOLE)
        r = leave_hole(s, at);
    else if (at > s->base + s->used)
        r = add(s, NULL, at - (s->base + s->used));
    return r < 0 ? r : add(s, data, bytes);
}

/* The same file again, past the cache. */
static int open_direct(int fd)
{
    char name[64];

    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    return open(name, O_WRONLY | O_DIRECT | O_CLOEXEC);
}

int pack_sink_open(const char *path, int fd, uint64_t at, struct pack_sink **out)
{
    struct pack_sink *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return fail(-ENOMEM, "%s: no memory", path);
    s->fd = fd;
    s->direct_fd = -1;
    s->path = strdup(path);
    for (int i = 0; i < 2; i++)
        s->block[i] = pack_buffer(SINK_BLOCK);
    if (!s->path || !s->block[0] || !s->block[1]) {
        r = fail(-ENOMEM, "%s: no memory for blocks of %zu bytes", path, SINK_BLOCK);
        goto free_blocks;
    }
    s->base = at / SINK_ALIGN * SINK_ALIGN;
    s->used = (size_t)(at - s->base);
    r = s->used ? full_pread(fd, s->block[0], s->used, (off_t)s->base, path) : 0;
    if (r < 0)
        goto free_blocks;
    s->direct_fd = open_direct(fd);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->change, NULL);
    r = -pthread_create(&s->thread, NULL, write_blocks, s);
    if (r == 0) {
        *out = s;
        return 0;
    }
    r = fail(r, "%s: no thread to write with: %s", path, strerror(-r));
    if (s->direct_fd >= 0)
        close(s->direct_fd);
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);

free_blocks:
    free(s->block[0]);
    free(s->block[1]);
    free(s->path);
    free(s);
    return r;
}

void pack_sink_close(struct pack_sink *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->leave = true;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    if (s->direct_fd >= 0)
        close(s->direct_fd);
    free(s->block[0]);
    free(s->block[1]);
    free(s->path);
    free(s);
}
