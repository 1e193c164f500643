/* comm_record - what comms have in common: the type of their wire, and of comm link on hosts
 * (comm_link.c) and for devices (comm_relay.c) the tag of an exchange, what settings and sites
 * there may be, and what kernels of an exchange leave behind. */
#ifndef TANDEM_TRANSPORT_COMM_RECORD_H
#define TANDEM_TRANSPORT_COMM_RECORD_H

#include "kernels/exchange.h"
#include "src/transport/comm.h"

enum { COMM_UNIT_BYTES = 16, COMM_SITE_BARRIER = 0 };

/* comm_tag - of one exchange: bits 0-31 sequence, 32-43 site, 44-63 units of 16 bytes */
static inline uint64_t comm_tag(uint32_t seq, int site, size_t units)
{
    return seq | (uint64_t)site << 32 | (uint64_t)units << 44;
}

/* comm_wire - the type that partial sums travel in */
static inline enum exchange_wire comm_wire(const struct comm_settings *s)
{
    return s->partials == COMM_BF16 ? EXCHANGE_BF16 : EXCHANGE_F32;
}

/* comm_link_check, comm_site_check - errors   -EINVAL, with what may be */
int comm_link_check(int rank, int world, const struct comm_settings *s);
int comm_site_check(int site);

/* comm_tags_differ - -EPROTO, with a line that names both exchanges. */
int comm_tags_differ(const char *comm, uint64_t want, uint64_t got, int peer);

/* comm_note_record - add to the comm's counters what kernels have counted since `seen`, which
 * follows. */
void comm_note_record(struct comm *c, struct peer_record *seen, const struct peer_record *now);

#endif
