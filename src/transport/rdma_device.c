/* rdma_device - finds the ports, opens them, and puts errors of verbs into words. link_rdma.c joins
 * them to a peer's. */
#include "src/transport/rdma_device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include "src/base/log.h"
#include "src/transport/link_rdma.h"

enum { GIDS_MAX = 64, SEEN_MAX = 16 };

static int mtu_bytes(enum ibv_mtu m)
{
    return m >= IBV_MTU_256 && m <= IBV_MTU_4096 ? 128 << m : 0;
}

/* Length of the subnet that an IPv4-mapped GID has on its netdev, 0 if it is not there. */
static int prefix_of(const struct ifaddrs *list, const uint8_t *gid)
{
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)(const void *)i->ifa_addr;
        const struct sockaddr_in *m = (const struct sockaddr_in *)(const void *)i->ifa_netmask;

        if (a && m && a->sin_family == AF_INET && memcmp(&a->sin_addr, gid + 12, 4) == 0)
            return __builtin_popcount(m->sin_addr.s_addr);
    }
    return 0;
}

static int gids_of(struct ibv_context *ctx, int port, struct rail_gid *out)
{
    struct ibv_gid_entry e[GIDS_MAX];
    ssize_t got = ibv_query_gid_table(ctx, e, GIDS_MAX, 0);
    struct ifaddrs *list = NULL;
    int n = 0;

    if (got <= 0 || getifaddrs(&list) < 0)
        return 0;
    for (ssize_t i = 0; i < got; i++) {
        if (e[i].port_num != (uint32_t)port)
            continue;
        out[n] = (struct rail_gid){ .index = (int)e[i].gid_index,
                                    .roce_v2 = e[i].gid_type == IBV_GID_TYPE_ROCE_V2,
                                    .prefix = prefix_of(list, e[i].gid.raw) };
        memcpy(out[n++].gid, e[i].gid.raw, RAIL_GID_BYTES);
    }
    freeifaddrs(list);
    return n;
}

/* The end of this port, or 0 if it is none. */
static int end_of(struct ibv_context *ctx, int port, const char *host, struct rail_end *out)
{
    struct rail_gid g[GIDS_MAX];
    struct ibv_port_attr a;
    int k;

    if (ibv_query_port(ctx, (uint8_t)port, &a) != 0 || a.state != IBV_PORT_ACTIVE ||
        a.link_layer != IBV_LINK_LAYER_ETHERNET)
        return 0;
    k = rail_gid_pick(g, gids_of(ctx, port, g), host);
    if (k < 0)
        return 0;
    *out = (struct rail_end){ .gid_index = g[k].index,
                              .prefix = g[k].prefix,
                              .mtu = mtu_bytes(a.active_mtu) };
    memcpy(out->gid, g[k].gid, RAIL_GID_BYTES);
    snprintf(out->device, sizeof(out->device), "%s", ibv_get_device_name(ctx->device));
    return 1;
}

static int open_port(struct ibv_device *d, const char *host, struct rdma_port *out)
{
    struct ibv_context *ctx = ibv_open_device(d);
    struct ibv_device_attr a;
    int r;

    if (!ctx)
        return fail(errno ? -errno : -EIO, "rdma: %s cannot be opened: %s", ibv_get_device_name(d),
                    strerror(errno));
    if (ibv_query_device(ctx, &a) != 0)
        a.phys_port_cnt = 0;
    for (int p = 1; p <= a.phys_port_cnt; p++) {
        if (!end_of(ctx, p, host, &out->end))
            continue;
        out->pd = ibv_alloc_pd(ctx);
        if (!out->pd) {
            r = fail(-ENOMEM, "rdma: %s: no protection domain", ibv_get_device_name(d));
            ibv_close_device(ctx);
            return r;
        }
        /* reports are looked for now and then by whoever uses the link; nothing may block */
        fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK);
        out->ctx = ctx;
        out->port = (uint8_t)p;
        return 1;
    }
    ibv_close_device(ctx);
    return 0;
}

int rdma_ports_open(const char *host, struct rdma_port out[RAILS_MAX])
{
    struct rail_end order[RAILS_MAX];
    struct rdma_port found[RAILS_MAX];
    int count = 0, n = 0, r = 0;
    struct ibv_device **list;

    ibv_fork_init(); /* fails where the kernel copies at fork by itself */
    list = ibv_get_device_list(&count);
    for (int i = 0; list && i < count && n < RAILS_MAX && r >= 0; i++) {
        r = open_port(list[i], host, &found[n]);
        n += r > 0;
    }
    if (list)
        ibv_free_device_list(list);
    if (r < 0) {
        while (n > 0)
            rdma_port_close(&found[--n]);
        return r;
    }
    for (int i = 0; i < n; i++)
        order[i] = found[i].end;
    rail_ends_sort(order, n, host);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            if (strcmp(order[i].device, found[k].end.device) == 0)
                out[i] = found[k];
    return n;
}

void rdma_port_close(struct rdma_port *p)
{
    if (p->pd)
        ibv_dealloc_pd(p->pd);
    if (p->ctx)
        ibv_close_device(p->ctx);
    *p = (struct rdma_port){ 0 };
}

/* kB of a line of /proc/meminfo, -1 if there is none */
static long meminfo(const char *key)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    long kb = -1;

    while (f && kb < 0 && fgets(line, sizeof(line), f))
        if (strncmp(line, key, strlen(key)) == 0)
            kb = strtol(line + strlen(key) + 1, NULL, 10);
    if (f)
        fclose(f);
    return kb;
}

/* Too little lockable memory and a fault of some kernels look alike: the same ENOMEM. */
static int no_pages(const struct rdma_port *p, size_t bytes)
{
    struct rlimit lim = { 0 };
    struct utsname u = { 0 };

    getrlimit(RLIMIT_MEMLOCK, &lim);
    uname(&u);
    if (lim.rlim_cur != RLIM_INFINITY)
        return fail(
            -ENOMEM,
            "rdma: %s takes no %zu bytes: memory that may be locked is limited to %llu KiB; "
            "set it to unlimited (ulimit -l, LimitMEMLOCK, --ulimit memlock=-1)",
            p->end.device, bytes, (unsigned long long)lim.rlim_cur >> 10);
    if (meminfo("CmaFree") > meminfo("CmaTotal"))
        return fail(-ENOMEM,
                    "rdma: %s takes no %zu bytes: kernel %s counts its contiguous memory wrongly "
                    "(CmaFree is above CmaTotal); start another kernel, or this one with cma=0",
                    p->end.device, bytes, u.release);
    return fail(-ENOMEM, "rdma: %s takes no %zu bytes, with no limit set; kernel %s", p->end.device,
                bytes, u.release);
}

int rdma_register(struct rdma_port *p, void *at, size_t bytes, int access, struct ibv_mr **out)
{
    struct ibv_mr *mr = ibv_reg_mr(p->pd, at, bytes, access);

    if (!mr && errno == ENOMEM)
        return no_pages(p, bytes);
    if (!mr)
        return fail(errno ? -errno : -EIO, "rdma: %s takes no %zu bytes: %s%s", p->end.device,
                    bytes, strerror(errno),
                    errno == EFAULT || errno == EINVAL ? " (memory of a device, or managed?)" : "");
    *out = mr;
    return 0;
}

/* The address may have moved in the table, which ends nothing: queue pairs keep their entry. */
static int address_is_there(const struct rdma_port *p)
{
    struct rail_gid g[GIDS_MAX];
    int n = gids_of(p->ctx, p->port, g);

    for (int i = 0; i < n; i++)
        if (g[i].roce_v2 && g[i].prefix && memcmp(g[i].gid, p->end.gid, RAIL_GID_BYTES) == 0)
            return 1;
    return 0;
}

static int judge(struct rdma_port *p, enum ibv_event_type type)
{
    char text[RAIL_TEXT_BYTES];

    switch (type) {
    case IBV_EVENT_PORT_ERR:
        return fail(-ENETDOWN, "rdma: %s: the port is down", rail_text(&p->end, text));
    case IBV_EVENT_DEVICE_FATAL:
        return fail(-ENETDOWN, "rdma: %s: the device has failed; the kernel's log says more",
                    rail_text(&p->end, text));
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_CQ_ERR:
        return fail(-EIO, "rdma: %s: the device gave up a queue (%s); the kernel's log says more",
                    rail_text(&p->end, text), ibv_event_type_str(type));
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        return fail(-EPROTO, "rdma: %s: the other rank wrote where it may not (%s)",
                    rail_text(&p->end, text), ibv_event_type_str(type));
    case IBV_EVENT_GID_CHANGE:
        if (!address_is_there(p))
            return fail(-ENETDOWN, "rdma: %s: the address is gone", rail_text(&p->end, text));
        return 0;
    default:
        return 0;
    }
}

int rdma_port_news(struct rdma_port *p)
{
    struct pollfd f = { .fd = p->ctx->async_fd, .events = POLLIN };
    struct ibv_async_event e;
    int r = 0;

    while (r == 0 && poll(&f, 1, 0) > 0 && ibv_get_async_event(p->ctx, &e) == 0) {
        /* another port of this device is somebody else's */
        if (e.event_type != IBV_EVENT_PORT_ERR || e.element.port_num == p->port)
            r = judge(p, e.event_type);
        ibv_ack_async_event(&e);
    }
    return r;
}

int rdma_completion_failed(const struct rdma_port *p, const struct ibv_wc *wc, int peer, int first)
{
    char text[RAIL_TEXT_BYTES];

    rail_text(&p->end, text);
    switch (wc->status) {
    case IBV_WC_RETRY_EXC_ERR:
        return fail(-EHOSTUNREACH, "rdma: %s: rank %d does not answer%s", text, peer,
                    first ? " the first large write: compare MTU and GID of both ends"
                          : ": the path or the machine is gone");
    case IBV_WC_REM_ACCESS_ERR:
        return fail(-EPROTO, "rdma: %s: rank %d refuses a write outside its inbox", text, peer);
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return fail(-EPROTO, "rdma: %s: rank %d has no receive posted", text, peer);
    default:
        return fail(-EIO, "rdma: %s: rank %d: %s (vendor code %#x)", text, peer,
                    ibv_wc_status_str(wc->status), wc->vendor_err);
    }
}

static void table_text(const struct rail_gid *g, int n, char *out, size_t cap)
{
    static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
    size_t at = 0;

    out[0] = 0;
    for (int i = 0; i < n && at < cap; i++) {
        bool v4 = memcmp(g[i].gid, mapped, sizeof(mapped)) == 0;
        char text[INET6_ADDRSTRLEN];

        inet_ntop(v4 ? AF_INET : AF_INET6, g[i].gid + (v4 ? 12 : 0), text, sizeof(text));
        at += (size_t)snprintf(out + at, cap - at, "%s%d %s %s", i ? ", " : "", g[i].index, text,
                               g[i].roce_v2 ? "v2" : "v1");
    }
}

int rdma_survey(struct rdma_seen *out, int max)
{
    struct ibv_device **list;
    int count = 0, n = 0;

    list = ibv_get_device_list(&count);
    for (int i = 0; list && i < count && n < max; i++) {
        struct ibv_context *ctx = ibv_open_device(list[i]);
        struct ibv_device_attr a;

        if (!ctx || ibv_query_device(ctx, &a) != 0)
            a.phys_port_cnt = 0;
        for (int p = 1; p <= a.phys_port_cnt && n < max; p++) {
            struct rdma_seen *s = &out[n];
            struct rail_gid g[GIDS_MAX];
            struct ibv_port_attr attr;
            int k;

            if (ibv_query_port(ctx, (uint8_t)p, &attr) != 0)
                continue;
            *s = (struct rdma_seen){ .port = p,
                                     .active = attr.state == IBV_PORT_ACTIVE,
                                     .mtu = mtu_bytes(attr.active_mtu),
                                     .gids = gids_of(ctx, p, g),
                                     .gid_index = -1 };
            snprintf(s->device, sizeof(s->device), "%s", ibv_get_device_name(list[i]));
            snprintf(s->state, sizeof(s->state), "%s", ibv_port_state_str(attr.state));
            table_text(g, s->gids, s->table, sizeof(s->table));
            k = rail_gid_pick(g, s->gids, "");
            if (k >= 0) {
                s->gid_index = g[k].index;
                snprintf(s->address, sizeof(s->address), "%d.%d.%d.%d/%d", g[k].gid[12],
                         g[k].gid[13], g[k].gid[14], g[k].gid[15], g[k].prefix);
            }
            n++;
        }
        if (ctx)
            ibv_close_device(ctx);
    }
    if (list)
        ibv_free_device_list(list);
    return n;
}

int link_rdma_ready(void)
{
    struct rdma_seen seen[SEEN_MAX];
    int n = rdma_survey(seen, SEEN_MAX);

    for (int i = 0; i < n; i++)
        if (seen[i].active && seen[i].gid_index >= 0)
            return 0;
    if (n == 0)
        return fail(-ENODEV, "link rdma: no RDMA device on this machine");
    return fail(-ENODEV,
                "link rdma: none of %d ports is usable; the first, %s, is %s and has %s of RoCE v2",
                n, seen[0].device, seen[0].state,
                seen[0].address[0] ? seen[0].address : "no IPv4 address");
}
