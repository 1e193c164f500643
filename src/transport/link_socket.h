/* link_socket - what links do on the socket they are opened with: its options, and the
 * records that the two ends exchange when they register. */
#ifndef TANDEM_TRANSPORT_LINK_SOCKET_H
#define TANDEM_TRANSPORT_LINK_SOCKET_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include "src/transport/link.h"

#define LINK_HELLO_MAGIC UINT32_C(0x4b4c4454) /* "TDLK" */

struct link_hello {
    uint32_t magic, channel, slots, slot_bytes;
    char name[48]; /* of the shared segment, from its maker; else zero */
};
static_assert(sizeof(struct link_hello) == 64, "record on the wire");

/* link_socket_check - -EINVAL unless fd is a stream socket */
int link_socket_check(int fd);

/* link_socket_tune - send at once, poll the device while waiting where that is allowed */
void link_socket_tune(int fd);

/* link_socket_send, link_socket_recv - n bytes, as below */
int link_socket_send(struct link *l, int fd, const void *p, size_t n);
int link_socket_recv(struct link *l, int fd, const atomic_int *aborted, int meet_ms, void *out,
                     size_t n);

/* link_hello_send, link_hello_recv - one record, within meet_ms, ended early by *aborted or the
 * peer's end.
 * errors   of link reg, without -EINVAL and -ENOMEM */
int link_hello_send(struct link *l, int fd, const struct link_hello *h);
int link_hello_recv(struct link *l, int fd, const atomic_int *aborted, int meet_ms,
                    struct link_hello *out);

/* link_hello_meet - send mine, wait for theirs; -EINVAL unless channel, slots and bytes are
 * equal */
int link_hello_meet(struct link *l, int fd, const atomic_int *aborted, int meet_ms,
                    const struct link_hello *mine, struct link_hello *theirs);

#endif
