/* pack_sink - the way of a pack's bytes to the disk: blocks past the page cache, written by a
 * thread while the next one is filled. Where a file system has no such writes they go through the
 * cache and are dropped from it. For pack_write.c and pack_stream.c.
 */
#ifndef TANDEM_MODEL_PACK_SINK_H
#define TANDEM_MODEL_PACK_SINK_H

#include <stddef.h>
#include <stdint.h>

struct pack_sink;

/* pack_sink_open - bytes go to fd (open under the name path) from offset `at` on; what lies in
 * front
 * of it in the same block stays.   errors   -ENOMEM, -EIO, -EAGAIN */
int pack_sink_open(const char *path, int fd, uint64_t at, struct pack_sink **out);

/* pack_sink_put - bytes at offset `at`, which never goes back; what is left out reads as zeros, and
 * where it is much it is a hole.
 * errors   of an earlier write, too */
int pack_sink_put(struct pack_sink *s, uint64_t at, const void *data, size_t bytes);

/* pack_sink_flush - everything put so far has been written (not synced). */
int pack_sink_flush(struct pack_sink *s);

/* pack_buffer - memory for disks to read and write: in pages as large as there are, since the
 * kernel looks at each of them every time. NULL if there is none; free() gives it back. */
void *pack_buffer(size_t bytes);

/* pack_sink_close - what is not flushed is lost; NULL is fine. */
void pack_sink_close(struct pack_sink *s);

#endif
