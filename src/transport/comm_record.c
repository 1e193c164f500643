/* comm_record.c owns the words for exchanges that do not fit together, or that there cannot be. */
#include "src/transport/comm_record.h"

#include <errno.h>

#include "src/base/log.h"

int comm_link_check(int rank, int world, const struct comm_settings *s)
{
    if (world < 2 || world > COMM_WORLD_MAX || rank < 0 || rank >= world)
        return fail(-EINVAL, "comm link: rank %d of %d, want a world of 2 to %d", rank, world,
                    COMM_WORLD_MAX);
    if (s->slot_bytes == 0 || s->slot_bytes % 4096 != 0 || s->slot_bytes > LINK_SLOT_BYTES_MAX)
        return fail(-EINVAL, "comm link: slot bytes %zu, want a multiple of 4096 up to %d",
                    s->slot_bytes, LINK_SLOT_BYTES_MAX);
    return 0;
}

int comm_site_check(int site)
{
    if (site < 0 || site >= COMM_SITES)
        return fail(-EINVAL, "comm link: site %d, want 0 to %d", site, COMM_SITES - 1);
    return 0;
}

int comm_tags_differ(const char *comm, uint64_t want, uint64_t got, int peer)
{
    return fail(
        -EPROTO,
        "comm %s: exchange %u site %u units %u here, exchange %u site %u units %u on rank %d", comm,
        (uint32_t)want, (unsigned)(want >> 32 & 0xfff), (unsigned)(want >> 44), (uint32_t)got,
        (unsigned)(got >> 32 & 0xfff), (unsigned)(got >> 44), peer);
}

void comm_note_record(struct comm *c, struct peer_record *seen, const struct peer_record *now)
{
    struct comm_stats *s = &c->stats;

    s->exchanges += now->exchanges - seen->exchanges;
    s->bytes += now->bytes - seen->bytes;
    s->wait_ns += now->wait_ns - seen->wait_ns;
    s->move_ns += now->move_ns - seen->move_ns;
    if (now->wait_max_ns > s->wait_max_ns)
        s->wait_max_ns = now->wait_max_ns;
    *seen = *now;
}
