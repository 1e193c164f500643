/* rdma_device - ports, address tables and memory of RDMA devices, and what verbs say when they
 * fail. With link_rdma.c the home of <infiniband/verbs.h>; nobody else includes this header.
 */
#ifndef TANDEM_TRANSPORT_RDMA_DEVICE_H
#define TANDEM_TRANSPORT_RDMA_DEVICE_H

#include <infiniband/verbs.h>
#include <stddef.h>

#include "src/transport/rails.h"

/* rdma_port - an open device, at the port and the address that it is used with */
struct rdma_port {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    uint8_t port;
    struct rail_end end;
};

/* rdma_ports_open - every active RoCE port that has an IPv4 address, at most RAILS_MAX, in the
 * order of rail_ends_sort.
 *
 * result   how many; 0 is an answer
 * errors   -ENOMEM, and the errno of a device that is there and cannot be opened
 */
int rdma_ports_open(const char *host, struct rdma_port out[RAILS_MAX]);
void rdma_port_close(struct rdma_port *p);

/* rdma_register - pages for this device's work; access as ibv_reg_mr.
 * errors   the errno of the call; the line says which limit it was */
int rdma_register(struct rdma_port *p, void *at, size_t bytes, int access, struct ibv_mr **out);

/* rdma_port_news - what a device has reported since the last call, without blocking. One thread at
 * a time.
 * errors   -ENETDOWN the port or the device does not work any more, or its address is gone; -EIO a
 *          queue has failed; logged */
int rdma_port_news(struct rdma_port *p);

/* rdma_completion_failed - log what a bad completion means and return its errno:
 * -EHOSTUNREACH no answer from the peer; -EPROTO the peer refused the access; -EIO the rest
 *
 * in       first: it was the first large write of the link */
int rdma_completion_failed(const struct rdma_port *p, const struct ibv_wc *wc, int peer, int first);

#endif
