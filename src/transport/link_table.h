/* link_table - the implementers that link.c lists: in memory, on a socket, by a NIC. */
#ifndef TANDEM_TRANSPORT_LINK_TABLE_H
#define TANDEM_TRANSPORT_LINK_TABLE_H

#include "src/transport/link.h"

extern const struct link_ops link_loop_ops;
extern const struct link_ops link_tcp_ops;
extern const struct link_ops link_shm_ops;
extern const struct link_ops link_rdma_ops;

#endif
