/* comm_table - the implementers that comm.c lists. */
#ifndef TANDEM_TRANSPORT_COMM_TABLE_H
#define TANDEM_TRANSPORT_COMM_TABLE_H

#include "src/transport/comm.h"

extern const struct comm_ops comm_self_ops;
extern const struct comm_ops comm_link_ops;
extern const struct comm_ops comm_peer_ops;
extern const struct comm_ops comm_nccl_ops;
extern const struct comm_ops comm_relay_ops; /* comm_link's, for devices */

#endif
