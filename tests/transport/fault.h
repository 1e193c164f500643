/* fault - a link that misbehaves on purpose, in front of a real one. */
#ifndef TANDEM_TESTS_TRANSPORT_FAULT_H
#define TANDEM_TESTS_TRANSPORT_FAULT_H

#include "src/transport/link.h"

enum fault {
    FAULT_NONE,
    FAULT_DIE,       /* from send `at` on the rank is gone, for itself and for the peer */
    FAULT_DROP,      /* send `at` is lost */
    FAULT_DUPLICATE, /* every send is made twice */
    FAULT_DELAY,     /* sends are late by up to 200 us */
    FAULT_TEAR, /* send `at` raises the flag over half of its bytes, the rest comes when the peer
                      * has looked */
    FAULT_HALF, /* send `at` raises the flag over half of its bytes, the rest never comes */
    FAULT_REG   /* it cannot be made, which the peer sees as one that is gone */
};

struct fault_link {
    struct link base;
    struct link *real;
    enum fault fault;
    int at;              /* sends before it happens */
    uint64_t dice, last; /* last: tag */

    /* FAULT_TEAR: the sender's end has the rest, the peer's knows that end and asks for it */
    struct fault_link *torn_by;
    const struct link_mem *mem;
    struct {
        const struct link_mem *mem;
        size_t off, len;
        uint64_t tag;
    } rest;
    atomic_int torn; /* enum torn */
    int looks;
};

/* fault_peer - the other end of one with FAULT_TEAR. */
void fault_peer(struct fault_link *f, struct link *real, struct fault_link *torn_by);

/* fault_wrap - f in front of real; closing f closes real. Waits must be made with the wrapper. */
void fault_wrap(struct fault_link *f, struct link *real, enum fault fault, int at);

#endif
