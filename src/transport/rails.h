/* rails - which RDMA ports of two machines belong together. Plain data: no verbs, so every case of
 * a broken fabric is a table in a test.
 *
 * A rail is a pair of ports, one a side, whose IPv4 addresses lie in one subnet. Names and indices
 * of devices mean nothing across machines: they differ and move.
 */
#ifndef TANDEM_TRANSPORT_RAILS_H
#define TANDEM_TRANSPORT_RAILS_H

#include <stddef.h>
#include <stdint.h>

enum { RAILS_MAX = 4, RAIL_GID_BYTES = 16, RAIL_TEXT_BYTES = 80 };

/* rail_gid - an entry of a port's GID table */
struct rail_gid {
    int index;
    int roce_v2; /* else RoCE v1, or InfiniBand */
    uint8_t gid[RAIL_GID_BYTES];
    int prefix; /* length of the netdev's subnet, 0 if the address is on no netdev any more */
};

/* rail_end - one side of a possible rail */
struct rail_end {
    char device[24];
    int gid_index;
    uint8_t gid[RAIL_GID_BYTES]; /* IPv4-mapped */
    int prefix;
    int mtu; /* active, in bytes */
};

struct rail_pair {
    int mine, theirs; /* indices of the two lists of ends */
};

/* rail_gid_pick - the entry that a port is used with: of RoCE v2, IPv4-mapped, on a netdev; the one
 * of address `host` (text, "" for none) if it is there, else the lowest index.
 * result   position in g, or -1 */
int rail_gid_pick(const struct rail_gid *g, int n, const char *host);

/* rail_ends_sort - the end of address `host` first, then by address: the same on every start */
void rail_ends_sort(struct rail_end *e, int n, const char *host);

/* rails_pair - pair by subnet, in the order of the lower rank's list; both sides get the same
 * pairs.
 *
 * in       lower: this side is the lower rank; want: that many pairs, 0 for all there are
 * result   how many pairs; ports without a partner are left out with a warning
 * errors   -ENODEV, logged: no port here or there, no common subnet, fewer than wanted; two rails
 *          in one subnet (the kernel would answer for one of them on the other)
 */
int rails_pair(const struct rail_end *mine, int n, const struct rail_end *theirs, int m, int lower,
               int want, int peer, struct rail_pair *out);

/* rail_text - "rxe0 192.0.2.1/24" */
const char *rail_text(const struct rail_end *e, char text[RAIL_TEXT_BYTES]);

/* rail_stripe - the part [*at, *at + *n) of a payload of len bytes that rail i of `rails` carries:
 * whole packs of 16 bytes, the first rail gets the odd one, the last the odd bytes */
void rail_stripe(size_t len, int rails, int i, size_t *at, size_t *n);

#endif
