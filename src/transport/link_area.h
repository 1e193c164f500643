/* link_area - the memory that one end of a link receives into, and the bell that wakes who waits
 * for it.
 *
 * An area is one line of flags a slot, then, from the next page, the inbox. loop and shm let the
 * peer write there directly; tcp fills it from its socket and needs no bell.
 */
#ifndef TANDEM_TRANSPORT_LINK_AREA_H
#define TANDEM_TRANSPORT_LINK_AREA_H

#include <assert.h>
#include <stdalign.h>

#include "src/transport/link.h"

/* link_mem_check - the caller's four fields; -EINVAL, logged */
int link_mem_check(const struct link *l, const struct link_mem *m);

/* link_area_bytes - size of an area, whole pages */
size_t link_area_bytes(int slots, size_t slot_bytes);

/* link_area_map - zeroed private pages, touched; NULL and a log line when there are none */
uint8_t *link_area_map(size_t bytes);

/* link_area_bind - point inbox and flags of m into an area */
void link_area_bind(struct link_mem *m, uint8_t *area);

/* link_bell - a counter that changes with every tag and on abort. A futex of its own rather than
 * the flag: an abort has to wake a sleeper without touching what the peer wrote. */
struct link_bell {
    _Alignas(LINK_FLAG_STRIDE) _Atomic uint32_t count;
    _Alignas(LINK_FLAG_STRIDE) _Atomic uint32_t sleepers;
};
static_assert(sizeof(struct link_bell) == 2 * LINK_FLAG_STRIDE, "two lines in shared memory");

/* link_area_put - place bytes, raise the flag, ring. off and len are in range. */
void link_area_put(uint8_t *area, struct link_bell *bell, const struct link_mem *m, size_t off,
                   size_t len, uint64_t tag);

static inline uint32_t link_bell_heard(struct link_bell *b)
{
    return atomic_load_explicit(&b->count, memory_order_seq_cst);
}

/* link_bell_ring - change the count and wake the sleepers, of this process or another */
void link_bell_ring(struct link_bell *b);

/* link_bell_sleep - until the count is no longer `heard`, for at most us microseconds */
void link_bell_sleep(struct link_bell *b, uint32_t heard, int us);

#endif
