/* ring - hands work from the round's thread to a thread that may block: text for a terminal, lines
 * for a file.
 *
 * One thread puts, the ring's own thread takes. A put copies and returns; it waits only when the
 * ring is full, that is when the other side has been stuck for a whole ring.
 */
#ifndef TANDEM_RANK_RING_H
#define TANDEM_RANK_RING_H

#include <stddef.h>

struct ring;

/* n units at data, in the order they were put; on the ring's thread. */
typedef void ring_fn(void *arg, const void *data, size_t n);

/* ring_open - `units` units of `unit_bytes` bytes and a thread that hands them to fn.
 * errors   -ENOMEM, -EAGAIN; logged
 * owns     the thread, with all signals blocked in it, until ring_close */
int ring_open(size_t unit_bytes, size_t units, ring_fn *fn, void *arg, struct ring **out);

/* ring_put - copies n units; sleeps while the ring is full. */
void ring_put(struct ring *r, const void *data, size_t n);

/* ring_close - after fn has taken everything; NULL is fine. */
void ring_close(struct ring *r);

#endif
