/* front - what users see of a reply: text on a file descriptor, written by a thread of its own. */
#ifndef TANDEM_RANK_FRONT_H
#define TANDEM_RANK_FRONT_H

#include <stddef.h>

struct front;

/* front_open - text goes to fd, which stays the caller's.   errors   of ring_open */
int front_open(int fd, struct front **out);

/* front_text - bytes of text, copied. From one thread. */
void front_text(struct front *f, const char *text, size_t bytes);

/* front_failed - the first error of a write, 0 if none: nobody reads any more, or the disk is full.
 * Any thread. */
int front_failed(const struct front *f);

/* front_close - after everything has been written; the first error, logged. NULL is fine. */
int front_close(struct front *f);

#endif
