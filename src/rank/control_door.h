/* control_door - a listening socket, and the strangers in front of it until they have said enough.
 *
 * Reads a fixed number of bytes from each of a few guests at a time, within one deadline a guest.
 * What does not begin with our magic, is silent or too slow is shown out with one log line a
 * second; when all places are taken the oldest guest leaves its place after 200 ms, which is many
 * times what a rank needs. Nothing that a stranger does ends the door or keeps others waiting.
 * Where this process can open no more sockets, whoever waits stays outside, and that is said as
 * well.
 */
#ifndef TANDEM_RANK_CONTROL_DOOR_H
#define TANDEM_RANK_CONTROL_DOOR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "src/rank/control_wire.h"

enum { DOOR_GUESTS = 64, DOOR_DEADLINE_MS = 5000, DOOR_YIELD_MS = 200, DOOR_ADDRESSES = 8 };

struct door_address {
    struct sockaddr_storage a;
    socklen_t n;
};

struct door_guest {
    int fd; /* -1: the place is free */
    int64_t until;
    size_t have, want;
    int stage; /* the caller's; 0 at first */
    char host[INET6_ADDRSTRLEN];
    struct control_hello theirs, mine; /* the caller's, once the first bytes are here */
    uint8_t buf[sizeof(struct control_hello)];
};

/* What may be said once a second, each by itself. */
enum door_line { DOOR_GUEST, DOOR_NO_ROOM, DOOR_LINES };

struct door {
    int fd;
    const char *name; /* for log lines */
    int64_t said_ns[DOOR_LINES];
    bool stuck; /* the last one could not be let in */
    struct door_guest guest[DOOR_GUESTS];
};

/* door_addresses - those of a host, with a port, in the order in which they are to be tried; a name
 * may have several.
 * result   how many, at least one
 * errors   -EHOSTUNREACH a name that nobody knows */
int door_addresses(const char *host, int port, struct door_address out[DOOR_ADDRESSES]);

/* door_loopback - the address is this machine's own */
int door_loopback(const struct sockaddr_storage *a);

/* door_hint - what to do about an errno of bind, to stand behind its message; "" if nothing is
 * known */
const char *door_hint(int err);

/* door_listen - a socket that listens on a host's address, the first that this machine has; port 0
 * takes a free one. *out_port is the one in use.
 * errors   -EADDRINUSE; -EADDRNOTAVAIL, also of a port that this user may not take; -EHOSTUNREACH;
 *          -EMFILE, -ENFILE, -ENOMEM */
int door_listen(const char *name, const char *host, int port, int *fd, uint16_t *out_port);

/* door_init - a door around such a socket, which it takes */
void door_init(const char *name, int fd, struct door *d);

/* door_wait - up to wait_ms for a guest of whom guest->want bytes are here (128 at first).
 * result   1 and *out, whose bytes the caller takes at once: it asks for more, keeps or dismisses
 *          the guest; or 0 */
int door_wait(struct door *d, int wait_ms, struct door_guest **out);

/* door_more - read n bytes more from this guest, into a stage of its own */
void door_more(struct door_guest *g, int stage, size_t n);

/* door_keep - the guest's socket is the caller's now */
int door_keep(struct door_guest *g);

/* door_dismiss - the guest's socket is closed and its place free */
void door_dismiss(struct door_guest *g);

/* door_say - a line about a guest, one a second; the others are dropped */
__attribute__((format(printf, 3, 4))) void door_say(struct door *d, const struct door_guest *g,
                                                    const char *fmt, ...);

void door_close(struct door *d);

#endif
