/* comm_record - what kernels of an exchange leave behind, in words and in numbers. */
#ifndef TANDEM_TRANSPORT_COMM_RECORD_H
#define TANDEM_TRANSPORT_COMM_RECORD_H

#include "kernels/exchange.h"
#include "src/transport/comm.h"

/* comm_tags_differ - -EPROTO, with a line that names both exchanges. */
int comm_tags_differ(const char *comm, uint64_t want, uint64_t got, int peer);

/* comm_note_record - add to the comm's counters what kernels have counted since `seen`, which follows. */
void comm_note_record(struct comm *c, struct peer_record *seen, const struct peer_record *now);

#endif
