/* Which ports are used and which belong together, as tables of what fabrics have shown. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "src/transport/rails.h"

static void ipv4(uint8_t gid[RAIL_GID_BYTES], const char *text)
{
    unsigned a, b, c, d;

    memset(gid, 0, RAIL_GID_BYTES);
    cr_assert(eq(int, sscanf(text, "%u.%u.%u.%u", &a, &b, &c, &d), 4));
    gid[10] = gid[11] = 0xff;
    gid[12] = (uint8_t)a;
    gid[13] = (uint8_t)b;
    gid[14] = (uint8_t)c;
    gid[15] = (uint8_t)d;
}

/* An entry of a table: an address, "fe80" for the link-local one, NULL for the end. */
struct entry {
    const char *address;
    int index, roce_v2, prefix;
};

static const struct {
    const char *name, *host;
    struct entry e[6];
    int index; /* of the entry that is used, -1 for none */
} picks[] = {
    { "link-local first, v1 beside v2",
      "",
      { { "fe80", 0, 0, 0 },
        { "fe80", 1, 1, 0 },
        { "10.0.0.1", 2, 0, 30 },
        { "10.0.0.1", 3, 1, 30 } },
      3 },
    { "moved to 4, a hole at 3",
      "",
      { { "fe80", 0, 0, 0 }, { "fe80", 1, 1, 0 }, { "10.0.0.1", 4, 1, 30 } },
      4 },
    { "only link-local", "", { { "fe80", 0, 1, 64 } }, -1 },
    { "an address that no netdev has any more",
      "",
      { { "10.0.0.1", 2, 1, 0 }, { "10.0.0.5", 5, 1, 30 } },
      5 },
    { "nothing left", "", { { "10.0.0.1", 2, 1, 0 } }, -1 },
    { "two addresses: the host's",
      "10.0.0.5",
      { { "10.0.0.1", 2, 1, 30 }, { "10.0.0.5", 5, 1, 30 } },
      5 },
    { "table out of order", "", { { "10.0.0.1", 5, 1, 30 }, { "10.0.1.1", 3, 1, 30 } }, 3 },
    { "empty table", "", { { NULL, 0, 0, 0 } }, -1 },
};

Test(rails, a_port_is_used_with_its_first_ipv4_address_of_roce_v2)
{
    for (size_t i = 0; i < sizeof(picks) / sizeof(picks[0]); i++) {
        struct rail_gid g[6] = { 0 };
        int n = 0, k;

        for (; n < 6 && picks[i].e[n].address; n++) {
            const struct entry *e = &picks[i].e[n];

            g[n] =
                (struct rail_gid){ .index = e->index, .roce_v2 = e->roce_v2, .prefix = e->prefix };
            if (strcmp(e->address, "fe80") == 0)
                g[n].gid[0] = 0xfe, g[n].gid[1] = 0x80;
            else
                ipv4(g[n].gid, e->address);
        }
        k = rail_gid_pick(g, n, picks[i].host);
        cr_expect(eq(int, k < 0 ? -1 : g[k].index, picks[i].index), "%s", picks[i].name);
    }
}

struct port {
    const char *address;
    int prefix;
};

static int ends(const struct port *p, struct rail_end *out)
{
    int n = 0;

    for (; n < RAILS_MAX && p[n].address; n++) {
        out[n] = (struct rail_end){ .prefix = p[n].prefix, .mtu = 4096 };
        snprintf(out[n].device, sizeof(out[n].device), "dev%d", n);
        ipv4(out[n].gid, p[n].address);
    }
    return n;
}

static const struct {
    const char *name;
    struct port low[RAILS_MAX + 1], high[RAILS_MAX + 1];
    int want, result;
    struct rail_pair pair[RAILS_MAX]; /* as the lower rank has them */
} pairings[] = {
    { "one cable, both halves",
      { { "10.0.0.1", 30 }, { "10.0.1.1", 30 } },
      { { "10.0.0.2", 30 }, { "10.0.1.2", 30 } },
      0,
      2,
      { { 0, 0 }, { 1, 1 } } },
    { "the other order there",
      { { "10.0.0.1", 30 }, { "10.0.1.1", 30 } },
      { { "10.0.1.2", 30 }, { "10.0.0.2", 30 } },
      0,
      2,
      { { 0, 1 }, { 1, 0 } } },
    { "one half has lost its address there",
      { { "10.0.0.1", 30 }, { "10.0.1.1", 30 } },
      { { "10.0.1.2", 30 } },
      0,
      1,
      { { 1, 0 } } },
    { "and two were wanted",
      { { "10.0.0.1", 30 }, { "10.0.1.1", 30 } },
      { { "10.0.1.2", 30 } },
      2,
      -ENODEV,
      { { 0 } } },
    { "one is enough",
      { { "10.0.0.1", 30 }, { "10.0.1.1", 30 } },
      { { "10.0.0.2", 30 }, { "10.0.1.2", 30 } },
      1,
      1,
      { { 0, 0 } } },
    { "no common subnet",
      { { "10.0.0.1", 30 } },
      { { "198.51.100.2", 24 } },
      0,
      -ENODEV,
      { { 0 } } },
    { "both rails in one subnet",
      { { "10.0.0.1", 24 }, { "10.0.0.3", 24 } },
      { { "10.0.0.2", 24 }, { "10.0.0.4", 24 } },
      0,
      -ENODEV,
      { { 0 } } },
    { "two ports of one side in one subnet",
      { { "10.0.0.1", 24 } },
      { { "10.0.0.2", 24 }, { "10.0.0.4", 24 } },
      0,
      -ENODEV,
      { { 0 } } },
    { "a prefix that only one side sees so",
      { { "10.0.0.1", 16 } },
      { { "10.0.1.2", 24 } },
      0,
      -ENODEV,
      { { 0 } } },
    { "addresses that are on no netdev any more",
      { { "10.0.0.1", 0 } },
      { { "10.0.0.2", 0 } },
      0,
      -ENODEV,
      { { 0 } } },
    { "no port here", { { NULL, 0 } }, { { "10.0.1.2", 24 } }, 0, -ENODEV, { { 0 } } },
    { "one machine, devices that talk to themselves",
      { { "10.0.0.1", 24 }, { "10.0.1.1", 24 } },
      { { "10.0.0.1", 24 }, { "10.0.1.1", 24 } },
      0,
      2,
      { { 0, 0 }, { 1, 1 } } },
};

Test(rails, pairs_are_made_by_subnet_and_are_the_same_on_both_sides)
{
    for (size_t i = 0; i < sizeof(pairings) / sizeof(pairings[0]); i++) {
        struct rail_end low[RAILS_MAX], high[RAILS_MAX];
        struct rail_pair a[RAILS_MAX], b[RAILS_MAX];
        int n = ends(pairings[i].low, low), m = ends(pairings[i].high, high);

        cr_expect(
            eq(int, rails_pair(low, n, high, m, 1, pairings[i].want, 1, a), pairings[i].result),
            "%s", pairings[i].name);
        cr_expect(
            eq(int, rails_pair(high, m, low, n, 0, pairings[i].want, 0, b), pairings[i].result),
            "%s, from the other side", pairings[i].name);
        for (int k = 0; k < pairings[i].result; k++) {
            cr_expect(eq(int, a[k].mine, pairings[i].pair[k].mine), "%s", pairings[i].name);
            cr_expect(eq(int, a[k].theirs, pairings[i].pair[k].theirs), "%s", pairings[i].name);
            cr_expect(eq(int, b[k].mine, a[k].theirs), "%s", pairings[i].name);
            cr_expect(eq(int, b[k].theirs, a[k].mine), "%s", pairings[i].name);
        }
    }
}

Test(rails, the_hosts_own_rail_comes_first)
{
    static const struct port p[] = {
        { "10.0.9.1", 30 }, { "10.0.1.1", 30 }, { "10.0.5.1", 30 }, { NULL, 0 }
    };
    struct rail_end e[RAILS_MAX];
    int n = ends(p, e);

    rail_ends_sort(e, n, "10.0.5.1");
    cr_expect(eq(str, e[0].device, (char *)"dev2"));
    cr_expect(eq(str, e[1].device, (char *)"dev1"));
    cr_expect(eq(str, e[2].device, (char *)"dev0"));
}

Test(rails, stripes_cover_every_byte_once)
{
    for (int rails = 1; rails <= RAILS_MAX; rails++) {
        for (size_t len = 0; len < 400; len += 7) {
            size_t next = 0;

            for (int i = 0; i < rails; i++) {
                size_t at, n;

                rail_stripe(len, rails, i, &at, &n);
                cr_expect(eq(sz, at, next));
                cr_expect(at % 16 == 0, "%d rails, %zu bytes: stripe %d at %zu", rails, len, i, at);
                next = at + n;
            }
            cr_expect(eq(sz, next, len));
        }
    }
}
