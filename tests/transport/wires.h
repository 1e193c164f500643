/* wires - a world of ranks in this process, joined by links of any kind. For tests and
 * benchmarks. */
#ifndef TANDEM_TESTS_TRANSPORT_WIRES_H
#define TANDEM_TESTS_TRANSPORT_WIRES_H

#include "src/transport/link.h"

enum { WIRES_MAX = 8 };

/* kinds of links that wires_open knows, NULL at the end; rdma, and rdma imm, where this machine has
 * a device. WIRES=KIND in the environment leaves that one */
extern const char *wires_kinds[];

enum { WIRES_STRIPE_MIN = 512 }; /* of the rdma links */

struct wires {
    int world;
    struct link *link[WIRES_MAX][WIRES_MAX]; /* [rank][peer]; NULL on the diagonal */
};

/* wires_open - every pair of ranks joined on one channel; exits the test when it cannot */
void wires_open(struct wires *w, const char *kind, int world, int channel);
void wires_close(struct wires *w);

/* wires_socketpair - two connected TCP sockets on loopback, or Unix ones */
void wires_socketpair(int tcp, int fd[2]);

/* wires_run - fn(rank, arg) on a thread a rank, then join all */
void wires_run(int world, void (*fn)(int rank, void *arg), void *arg);

/* wires_random - splitmix64, the tests' dice */
uint64_t wires_random(uint64_t *state);

#endif
