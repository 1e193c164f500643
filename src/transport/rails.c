/* rails - choice and pairing of RDMA ports; link_rdma.c finds them and connects them. */
#include "src/transport/rails.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "src/base/log.h"
#include "src/transport/link_rdma.h"

enum { SEEN_MAX = 16 };

static int is_ipv4(const uint8_t *gid)
{
    static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

    return memcmp(gid, mapped, sizeof(mapped)) == 0;
}

static uint32_t address_of(const uint8_t *gid)
{
    return (uint32_t)gid[12] << 24 | (uint32_t)gid[13] << 16 | (uint32_t)gid[14] << 8 | gid[15];
}

static uint32_t mask_of(int prefix)
{
    return prefix <= 0 ? 0 : prefix >= 32 ? UINT32_MAX : ~(UINT32_MAX >> prefix);
}

static int is_host(const uint8_t *gid, const char *host)
{
    struct in_addr a;

    return inet_pton(AF_INET, host, &a) == 1 && ntohl(a.s_addr) == address_of(gid);
}

int rail_gid_pick(const struct rail_gid *g, int n, const char *host)
{
    int best = -1;

    for (int i = 0; i < n; i++) {
        if (!g[i].roce_v2 || !is_ipv4(g[i].gid) || g[i].prefix == 0)
            continue;
        if (is_host(g[i].gid, host))
            return i;
        if (best < 0 || g[i].index < g[best].index)
            best = i;
    }
    return best;
}

void rail_ends_sort(struct rail_end *e, int n, const char *host)
{
    for (int i = 1; i < n; i++) {
        struct rail_end x = e[i];
        int k = i;

        for (; k > 0; k--) {
            int first = is_host(x.gid, host) - is_host(e[k - 1].gid, host);

            if (first < 0 || (first == 0 && address_of(x.gid) >= address_of(e[k - 1].gid)))
                break;
            e[k] = e[k - 1];
        }
        e[k] = x;
    }
}

const char *rail_text(const struct rail_end *e, char text[RAIL_TEXT_BYTES])
{
    snprintf(text, RAIL_TEXT_BYTES, "%s %d.%d.%d.%d/%d", e->device, e->gid[12], e->gid[13],
             e->gid[14], e->gid[15], e->prefix);
    return text;
}

/* Each has to see the other in its own subnet: a prefix that differs between the machines would
 * else pair them on one side only. */
static int joined(const struct rail_end *a, const struct rail_end *b)
{
    uint32_t d = address_of(a->gid) ^ address_of(b->gid);

    return a->prefix > 0 && b->prefix > 0 && (d & mask_of(a->prefix)) == 0 &&
           (d & mask_of(b->prefix)) == 0;
}

static int one_subnet(const struct rail_end *e, int a, int b)
{
    char ta[RAIL_TEXT_BYTES], tb[RAIL_TEXT_BYTES];

    return fail(-ENODEV, "rails: %s and %s are in one subnet; give every rail a subnet of its own",
                rail_text(&e[a], ta), rail_text(&e[b], tb));
}

static int none_joined(const struct rail_end *mine, const struct rail_end *theirs, int peer)
{
    char a[RAIL_TEXT_BYTES], b[RAIL_TEXT_BYTES];

    return fail(-ENODEV,
                "rails: %s of rank %d is in no local subnet, the first of which is %s; give the "
                "two ends of the cable addresses of one subnet",
                rail_text(&theirs[0], b), peer, rail_text(&mine[0], a));
}

int rails_pair(const struct rail_end *mine, int n, const struct rail_end *theirs, int m, int lower,
               int want, int peer, struct rail_pair *out)
{
    int outer = lower ? n : m, inner = lower ? m : n, pairs = 0;
    char text[RAIL_TEXT_BYTES];

    if (n == 0)
        return fail(-ENODEV, "rails: no active RoCE v2 port with an IPv4 address here");
    if (m == 0)
        return fail(-ENODEV, "rails: no active RoCE v2 port with an IPv4 address on rank %d", peer);
    for (int i = 0; i < outer && pairs < RAILS_MAX; i++) {
        int found = 0;

        for (int k = 0; k < inner && pairs < RAILS_MAX; k++) {
            struct rail_pair p = { lower ? i : k, lower ? k : i };

            if (!joined(&mine[p.mine], &theirs[p.theirs]))
                continue;
            for (int q = 0; q < pairs; q++) {
                if (joined(&mine[p.mine], &theirs[out[q].theirs]) && out[q].mine != p.mine)
                    return one_subnet(mine, out[q].mine, p.mine);
                if (joined(&theirs[p.theirs], &mine[out[q].mine]) && out[q].theirs != p.theirs)
                    return one_subnet(theirs, out[q].theirs, p.theirs);
            }
            out[pairs++] = p;
            found = 1;
        }
        if (!found)
            log_warn("rails: %s of %s has no partner",
                     rail_text(lower ? &mine[i] : &theirs[i], text),
                     lower ? "this rank" : "the other rank");
    }
    if (pairs == 0)
        return none_joined(mine, theirs, peer);
    if (want > pairs)
        return fail(-ENODEV, "rails: %d wanted, %d have both ends in one subnet", want, pairs);
    return want ? want : pairs;
}

void rail_stripe(size_t len, int rails, int i, size_t *at, size_t *n)
{
    size_t packs = len / 16, each = packs / (size_t)rails, odd = packs % (size_t)rails;
    size_t before = (size_t)i < odd ? (size_t)i : odd;

    *at = ((size_t)i * each + before) * 16;
    *n = (each + ((size_t)i < odd)) * 16;
    if (i == rails - 1)
        *n = len - *at;
}

int rdma_at(const char *host, struct rdma_seen *out)
{
    struct rdma_seen seen[SEEN_MAX];
    int n = rdma_survey(seen, SEEN_MAX), found = -1;
    size_t length = strlen(host);

    for (int i = 0; i < n; i++) {
        const char *a = seen[i].address;

        if (!seen[i].active || seen[i].gid_index < 0)
            continue;
        if (found < 0 || (strncmp(a, host, length) == 0 && a[length] == '/'))
            found = i;
    }
    if (found < 0)
        return -ENODEV;
    *out = seen[found];
    return 0;
}
