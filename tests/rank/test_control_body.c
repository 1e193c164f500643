/* Bodies of control frames: what a peer may put into one and does not get through. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/log.h"
#include "src/rank/control_body.h"

enum body { AGREE, LISTEN, TABLE, REASON, BARRIER };

/* Fields as protobuf has them on the wire: tag, then length or number. */
#define EIGHT(c) c c c c c c c c
#define NONCE "\x0a\x20" EIGHT("nonc")

static const struct {
    const char *name, *bytes;
    size_t n;
    enum body body;
    int result;
    const char *line;
} bodies[] = {
#define BYTES(text) text, sizeof(text) - 1
    { "a digest", BYTES("\x12\x20" EIGHT("hash")), AGREE, 0, "" },
    { "a short digest",
      BYTES("\x12\x03"
            "abc"),
      AGREE, -EPROTO, "digest" },
    { "no digest", BYTES(""), AGREE, -EPROTO, "digest" },
    { "a length behind the end",
      BYTES("\x12\x20"
            "abc"),
      AGREE, -EPROTO, "5 bytes are no Agree" },
    { "a port", BYTES("\x08\xff\xff\x03"), LISTEN, 0, "" },
    { "port 0", BYTES(""), LISTEN, -EPROTO, "port" },
    { "port 65536", BYTES("\x08\x80\x80\x04"), LISTEN, -EPROTO, "port" },
    { "two ports", BYTES(NONCE "\x12\x02\x07\x09"), TABLE, 0, "" },
    { "a port 0", BYTES(NONCE "\x12\x02\x07\x00"), TABLE, -EPROTO, "port" },
    { "a port 65536", BYTES(NONCE "\x12\x04\x07\x80\x80\x04"), TABLE, -EPROTO, "port" },
    { "nine ports", BYTES(NONCE "\x12\x09" EIGHT("\x07") "\x07"), TABLE, -EPROTO, "table" },
    { "a short nonce",
      BYTES("\x0a\x03"
            "abc\x12\x02\x07\x09"),
      TABLE, -EPROTO, "table" },
    { "the last rank", BYTES("\x08\x07"), REASON, 0, "" },
    { "a rank behind the last", BYTES("\x08\x08"), REASON, -EPROTO, "rank" },
    { "a rank below 0", BYTES("\x08\xff\xff\xff\xff\x0f"), REASON, -EPROTO, "rank" },
    { "no mark", BYTES("\x08\x05"), BARRIER, 0, "" },
    { "a mark", BYTES("\x12\x20" EIGHT("mark")), BARRIER, 0, "" },
    { "a short mark",
      BYTES("\x12\x03"
            "abc"),
      BARRIER, -EPROTO, "mark" },
    { "a long mark", BYTES("\x12\x21" EIGHT("mark") "!"), BARRIER, -EPROTO, "mark" },
#undef BYTES
};

static int unpack(enum body body, const uint8_t *p, size_t n)
{
    struct body_agree agree = { 0 };
    struct body_table table = { 0 };
    struct body_reason reason;
    struct body_barrier barrier;
    uint16_t port = 0;
    int r = 0;

    switch (body) {
    case AGREE:
        r = body_agree_unpack(p, n, &agree);
        if (r == 0)
            free((char *)agree.text);
        break;
    case LISTEN:
        r = body_listen_unpack(p, n, &port);
        cr_expect(r < 0 || port == 65535);
        break;
    case TABLE:
        r = body_table_unpack(p, n, &table);
        cr_expect(r < 0 || (table.world == 2 && table.port[0] == 7 && table.port[1] == 9));
        break;
    case REASON:
        r = body_reason_unpack(p, n, &reason);
        cr_expect(r < 0 || reason.rank == GROUP_WORLD_MAX - 1);
        break;
    case BARRIER:
        r = body_barrier_unpack(p, n, &barrier);
        cr_expect(r < 0 || barrier.marked == (n > 2));
        break;
    }
    return r;
}

Test(control_body, what_does_not_fit_is_refused_by_name)
{
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        int r = unpack(bodies[i].body, (const uint8_t *)bodies[i].bytes, bodies[i].n);

        cr_expect(eq(int, r, bodies[i].result), "%s", bodies[i].name);
        cr_expect(r == 0 || strstr(fail_text(), bodies[i].line), "%s: %s", bodies[i].name,
                  fail_text());
    }
}

/* The errno of another rank, or the one for faults of a peer; and a text that a log can show. */
Test(control_body, a_reason_has_an_error_and_can_be_shown)
{
    static const struct {
        int error, comes;
    } cases[] = { { -EIO, -EIO }, { 0, -EREMOTEIO }, { -4095, -4095 }, { -4096, -EREMOTEIO } };
    static struct control_body body;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct body_reason a = { .rank = 3, .error = cases[i].error }, b;

        snprintf(a.text, sizeof(a.text), "one\ntwo \x1b[2J\xff");
        cr_assert(eq(int, body_reason_pack(&a, &body), 0));
        cr_assert(eq(int, body_reason_unpack(body.bytes, body.n, &b), 0));
        cr_expect(eq(int, b.rank, 3));
        cr_expect(eq(int, b.error, cases[i].comes));
        cr_expect(eq(str, (char *)b.text, (char *)"one?two ?[2J?"));
    }
}
