/* rdma_pair - the contract of link.h over rdma between two processes or two machines, each of which
 * runs this program:
 *
 *   rdma_pair RANK MY_ADDRESS ADDRESS_OF_RANK_0 PORT
 *
 * Every case opens a link of its own over a fresh socket; the cases run in the same order on both
 * sides. A plain program: a Criterion test cannot be two processes. Prints a line a case; exits
 * with the number of wrong ones. 77: no RDMA device.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/transport/link_rdma.h"
#include "tests/transport/wires.h"

enum { SLOTS = 4, SLOT_BYTES = 4096, MEET_MS = 20000, WAIT_MS = 20000, OPS = 300 };

struct here {
    int rank, port;
    const char *mine, *leader;
    int rails; /* that the next link wants, 0 for all */
    int imm;
};

struct end {
    struct link *link;
    struct link_mem mem;
    uint8_t *outbox;
    struct link_wait wait;
};

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(99);
    }
}

static int meet(const struct here *h)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)h->port) };
    int64_t until = clock_ns() + MEET_MS * NS_PER_MS;
    int fd, one = 1, l;

    must(inet_pton(AF_INET, h->leader, &a.sin_addr) == 1, "address");
    for (; h->rank == 1; clock_sleep(20 * NS_PER_MS)) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
            return fd;
        close(fd);
        must(clock_ns() < until, "connect");
    }
    l = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    must(l >= 0 && bind(l, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(l, 1) == 0, "listen");
    fd = accept(l, NULL, NULL);
    must(fd >= 0, "accept");
    close(l);
    return fd;
}

static int end_open(const struct here *h, struct end *e, int slots, size_t slot_bytes)
{
    struct link_rdma_settings s = {
        .host = h->mine, .rails = h->rails, .imm = h->imm, .stripe_min = WIRES_STRIPE_MIN
    };

    *e = (struct end){ .outbox = aligned_alloc(64, (size_t)slots * slot_bytes) };
    must(e->outbox && link_rdma_open(meet(h), h->rank, !h->rank, 0, MEET_MS, &s, &e->link) == 0,
         "open");
    memset(e->outbox, 0, (size_t)slots * slot_bytes);
    e->mem = (struct link_mem){ .slots = slots, .slot_bytes = slot_bytes, .outbox = e->outbox };
    e->wait = (struct link_wait){ .links = &e->link, .n = 1, .spin_us = 20, .limit_ms = WAIT_MS };
    return e->link->ops->reg(e->link, &e->mem);
}

static void end_close(struct end *e)
{
    if (e->mem.inbox)
        e->link->ops->unreg(e->link, &e->mem);
    e->link->ops->close(e->link);
    free(e->outbox);
}

static uint8_t byte_of(int rank, int op, size_t i)
{
    return (uint8_t)(rank * 77 + op * 13 + (int)i);
}

/* Sends of every length, below and above what is striped; slots are reused as an exchange does. */
static int streams(const struct here *h, int ops)
{
    uint64_t seen[SLOTS] = { 0 };
    struct end e;
    int r = end_open(h, &e, SLOTS, SLOT_BYTES), wrong = 0;

    for (int k = 1; k <= ops && r == 0 && !wrong; k++) {
        size_t at = (size_t)(k % SLOTS) * SLOT_BYTES, len = (size_t)(k * 1237 % SLOT_BYTES);
        uint64_t tag = (uint64_t)k << 32 | len, now = 0;

        for (size_t i = 0; i < len; i++)
            e.outbox[at + i] = byte_of(h->rank, k, i);
        r = e.link->ops->send(e.link, &e.mem, at, len, tag);
        if (r == 0)
            r = link_wait_flag(&e.wait, e.link, &e.mem, k % SLOTS, seen[k % SLOTS], &now);
        seen[k % SLOTS] = now;
        wrong = r == 0 && now != tag;
        for (size_t i = 0; i < len && r == 0; i++)
            wrong |= e.mem.inbox[at + i] != byte_of(!h->rank, k, i);
    }
    end_close(&e);
    return r == 0 && !wrong;
}

static int over_all_rails(const struct here *h)
{
    return streams(h, OPS);
}

static int over_one_rail(const struct here *h)
{
    struct here one = *h;

    one.rails = 1;
    return streams(&one, OPS / 4);
}

static int with_immediate_data(const struct here *h)
{
    struct here imm = *h;

    imm.imm = 1;
    return streams(&imm, OPS);
}

static int forms_that_differ(const struct here *h)
{
    struct here imm = *h;
    struct end e;
    int r;

    imm.imm = h->rank;
    r = end_open(&imm, &e, SLOTS, SLOT_BYTES);
    end_close(&e);
    return r == -EINVAL;
}

static int more_rails_than_there_are(const struct here *h)
{
    struct here many = *h;
    struct end e;
    int r;

    many.rails = 4; /* two machines of tests have two */
    r = end_open(&many, &e, SLOTS, SLOT_BYTES);
    end_close(&e);
    return r == -ENODEV;
}

static int ends_that_differ(const struct here *h)
{
    struct end e;
    int r = end_open(h, &e, h->rank ? SLOTS : 2, SLOT_BYTES);

    end_close(&e);
    return r == -EINVAL;
}

/* Rank 0 writes behind the inbox of rank 1: an error on both sides, and not a byte is changed. */
static int a_write_outside_the_inbox(const struct here *h)
{
    struct end e;
    uint64_t now;
    int r = end_open(h, &e, SLOTS, SLOT_BYTES), clean = 1;

    if (r == 0 && h->rank == 0) {
        memset(e.outbox, 0xee, (size_t)SLOTS * SLOT_BYTES);
        e.mem.inbox += (size_t)1 << 20;
        r = e.link->ops->send(e.link, &e.mem, 0, SLOT_BYTES, 1);
        if (r == 0)
            r = link_wait_flag(&e.wait, e.link, &e.mem, 0, 0, &now);
    } else if (r == 0) {
        r = link_wait_flag(&e.wait, e.link, &e.mem, 0, 0, &now);
        for (size_t i = 0; i < (size_t)SLOTS * SLOT_BYTES; i++)
            clean &= e.mem.inbox[i] == 0;
    }
    end_close(&e);
    /* whose device speaks first is the devices' affair */
    return clean && (r == -EPROTO || r == -ECONNRESET);
}

/* What was sent before the end still counts, and then the wait ends. */
static int the_peer_leaves(const struct here *h, int by_abort)
{
    struct end e;
    uint64_t now = 0;
    int r = end_open(h, &e, SLOTS, SLOT_BYTES), ok = r == 0;

    if (ok && h->rank == 1) {
        ok = e.link->ops->send(e.link, &e.mem, 0, SLOT_BYTES, 7) == 0;
        if (by_abort) {
            clock_sleep(200 * NS_PER_MS);
            e.link->ops->abort(e.link);
        }
    } else if (ok) {
        ok = link_wait_flag(&e.wait, e.link, &e.mem, 0, 0, &now) == 0 && now == 7 &&
             link_wait_flag(&e.wait, e.link, &e.mem, 0, 7, &now) == -ECONNRESET;
    }
    end_close(&e);
    return ok;
}

static int the_peer_closes(const struct here *h)
{
    return the_peer_leaves(h, 0);
}

static int the_peer_aborts(const struct here *h)
{
    return the_peer_leaves(h, 1);
}

static const struct {
    const char *name;
    int (*run)(const struct here *h);
} cases[] = {
    { "payload is there when the flag is, all rails", over_all_rails },
    { "payload is there when the flag is, one rail", over_one_rail },
    { "payload is there when the flag is, immediate data", with_immediate_data },
    { "ends of two forms", forms_that_differ },
    { "more rails than there are", more_rails_than_there_are },
    { "ends that differ", ends_that_differ },
    { "a write outside the inbox", a_write_outside_the_inbox },
    { "the peer closes", the_peer_closes },
    { "the peer aborts", the_peer_aborts },
};

int main(int argc, char **argv)
{
    struct here h;
    int bad = 0;

    if (argc != 5)
        return 64;
    h = (struct here){
        .rank = atoi(argv[1]) != 0, .mine = argv[2], .leader = argv[3], .port = atoi(argv[4])
    };
    log_open(h.rank, LOG_WARN);
    if (link_rdma_ready() < 0)
        return 77;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int ok = cases[i].run(&h);

        printf("%s: %s\n", ok ? "ok" : "WRONG", cases[i].name);
        fflush(stdout);
        bad += !ok;
        h.port++; /* no case meets the socket of another */
    }
    return bad;
}
