/* link_rdma - what the RDMA link needs beside a socket, and what this machine has for it.
 *
 * Where libibverbs is not there to build with, link_rdma_none.c has the same names: the link is
 * refused and the survey is empty.
 */
#ifndef TANDEM_TRANSPORT_LINK_RDMA_H
#define TANDEM_TRANSPORT_LINK_RDMA_H

#include <stddef.h>

#include "src/transport/link.h"

struct link_rdma_settings {
    const char *host;  /* this rank's address, the first rail is where it is; "" if unknown */
    int rails;         /* 0: all that have both ends in one subnet */
    size_t stripe_min; /* shorter sends go over the first rail alone; the same on both ends */
    /* over one rail; the tag comes as a write with immediate data, and poll raises the flag when
     * the device has reported it: the order that InfiniBand promises. The same on both ends */
    int imm;
};

/* link_rdma_open - the end of a link whose other end opens the same over the other end of this
 * connected, authenticated stream socket. Addresses and keys of memory go through it, and
 * afterwards it is the witness: a killed process closes it at once.
 *
 * owns     the socket, also when it fails
 * errors   -EINVAL no stream socket, -ENOMEM, -ENOTSUP not in this build
 */
int link_rdma_open(int fd, int rank, int peer, int channel, int meet_ms,
                   const struct link_rdma_settings *s, struct link **out);

/* link_rdma_ready - whether this machine could open one: said before anything is loaded.
 * errors   -ENOTSUP not in this build; -ENODEV no active port with an IPv4 address of RoCE v2 */
int link_rdma_ready(void);

/* rdma_seen - a port of a device of this machine */
struct rdma_seen {
    char device[24], state[24];
    char address[24]; /* "192.0.2.1/24", "" if it has no IPv4 address of RoCE v2 */
    int port, active;
    int mtu;         /* in bytes */
    int gids;        /* entries of its table */
    int gid_index;   /* of address, -1 if none */
    char table[160]; /* "0 fe80::1 v2, 1 192.0.2.1 v2" as far as there is room */
};

/* rdma_survey - the ports of this machine, at most max; how many */
int rdma_survey(struct rdma_seen *out, int max);

/* rdma_at - the usable port whose address is host's, else the first usable one.
 * errors   -ENODEV none is usable, unlogged */
int rdma_at(const char *host, struct rdma_seen *out);

#endif
