/* link_area - inbox memory of every CPU link, and the sleep of its waiters. */
#include "src/transport/link_area.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/base/log.h"

enum { AREA_PAGE = 4096 };

static size_t inbox_at(int slots)
{
    size_t end = (size_t)slots * LINK_FLAG_STRIDE;

    return (end + AREA_PAGE - 1) / AREA_PAGE * AREA_PAGE;
}

int link_mem_check(const struct link *l, const struct link_mem *m)
{
    if (m->channel != l->channel)
        return fail(-EINVAL, "link %s: memory of channel %d for channel %d", l->ops->name,
                    m->channel, l->channel);
    if (m->slots < 1 || m->slots > LINK_SLOTS_MAX)
        return fail(-EINVAL, "link %s: slots %d, want 1 to %d", l->ops->name, m->slots,
                    LINK_SLOTS_MAX);
    if (m->slot_bytes == 0 || m->slot_bytes % 16 != 0 || m->slot_bytes > LINK_SLOT_BYTES_MAX)
        return fail(-EINVAL, "link %s: slot bytes %zu, want a multiple of 16 up to %d",
                    l->ops->name, m->slot_bytes, LINK_SLOT_BYTES_MAX);
    return 0;
}

size_t link_area_bytes(int slots, size_t slot_bytes)
{
    size_t inbox = (size_t)slots * slot_bytes;

    return inbox_at(slots) + (inbox + AREA_PAGE - 1) / AREA_PAGE * AREA_PAGE;
}

uint8_t *link_area_map(size_t bytes)
{
    /* populated: a page fault in a round would show as a late exchange */
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
                   -1, 0);

    if (p == MAP_FAILED) {
        fail(-errno, "link: %zu bytes of inbox: %s", bytes, strerror(errno));
        return NULL;
    }
    return p;
}

void link_area_bind(struct link_mem *m, uint8_t *area)
{
    m->flags = area;
    m->inbox = area + inbox_at(m->slots);
}

void link_area_put(uint8_t *area, struct link_bell *bell, const struct link_mem *m, size_t off,
                   size_t len, uint64_t tag)
{
    struct link_mem peer = { .slots = m->slots };

    link_area_bind(&peer, area);
    memcpy(peer.inbox + off, m->outbox + off, len);
    atomic_store_explicit(link_flag(&peer, (int)(off / m->slot_bytes)), tag, memory_order_release);
    link_bell_ring(bell);
}

/* Either the ringer sees the sleeper, or the sleeper sees the new count: both write their word
 * before they read the other's, in one total order. */
void link_bell_ring(struct link_bell *b)
{
    atomic_fetch_add_explicit(&b->count, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&b->sleepers, memory_order_seq_cst) != 0)
        syscall(SYS_futex, &b->count, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void link_bell_sleep(struct link_bell *b, uint32_t heard, int us)
{
    struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000 };

    atomic_fetch_add_explicit(&b->sleepers, 1, memory_order_seq_cst);
    if (link_bell_heard(b) == heard)
        syscall(SYS_futex, &b->count, FUTEX_WAIT, heard, &t, NULL, 0);
    atomic_fetch_sub_explicit(&b->sleepers, 1, memory_order_seq_cst);
}
