/* link_rdma - writes of a NIC into the peer's memory: RoCE v2, reliable connections, one queue pair
 * a rail.
 *
 *   send   rail 0    payload | stripes, if that changed | tag       one chain, in this order
 *          rail i    payload | tag                                  only if the send is striped
 *
 *   with imm, the tag beside its flag, as a write with immediate data: its completion here raises
 *   the flag
 *
 * A queue pair keeps the order of its writes, so a tag proves the payload of its own rail; between
 * rails there is no order, so the waiter of a striped send looks at the line of every rail
 * (link.c). Nothing of the receiving side runs on its CPU. The socket that the link began with
 * carries the addresses and keys of memory to the authenticated peer, then it is the witness: a
 * killed process closes it at once. The retry limit of the queue pairs is longer than a hiccup of
 * the cable; that a peer is dead is the heartbeat's to notice.
 */
#include "src/transport/link_rdma.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/transport/link_area.h"
#include "src/transport/link_socket.h"
#include "src/transport/link_table.h"
#include "src/transport/rdma_device.h"

enum {
    QP_WRITES = 256,   /* of a send queue; at most three a send */
    QP_SENDS = 64,     /* that have not completed */
    QP_TIMEOUT = 16,   /* 268 ms a try */
    QP_RETRIES = 6,    /* 7 means for ever in software RoCE */
    QP_RNR_TIMER = 12, /* 0.64 ms */
    QP_HOPS = 64,
    CQ_BATCH = 16,
    LOOK_MS = 5,     /* between two looks at witness and device */
    DRAIN_MS = 2500, /* of sends when the memory is given back: above the retry limit */
    PROBE_SPIN_US = 50,
    IMM_TAG_AT = 16, /* in the line of a flag: a tag whose completion has not been seen */
    BYE = 'B'
};

/* One end of a rail on the wire. */
struct rdma_end {
    char device[24];
    uint8_t gid[RAIL_GID_BYTES];
    uint64_t area; /* address of the flags, which the inbox follows */
    uint32_t rkey, qpn, psn, mtu;
    uint32_t prefix, reserved;
};
static_assert(sizeof(struct rdma_end) == 72, "record on the wire");

struct rdma_record {
    uint32_t rails, stripe_min, imm, reserved;
    struct rdma_end end[RAILS_MAX];
};
static_assert(sizeof(struct rdma_record) == 304, "record on the wire");

struct rail {
    struct rdma_port port;
    struct ibv_mr *out, *in;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    uint32_t psn;
    uint64_t remote; /* address of the peer's area */
    uint32_t rkey;
    int flying; /* sends whose completion has not been seen */
};

struct rdma_link {
    struct link base;
    struct link_rdma_settings set;
    char host[64];
    int meet_ms, socket;
    atomic_int aborted;
    pthread_mutex_t
        ports;        /* held while rails are made or given back: news comes from another thread */
    atomic_int ill;   /* what a device has reported */
    int dead;         /* first error, kept */
    int probed, left; /* the first writes went through; the peer takes no more of them */
    struct link_bell bell; /* rung by abort only: what arrives rings nothing */
    const struct link_mem *mem;
    uint8_t *area;
    size_t area_bytes;
    int rails;
    struct rail rail[RAILS_MAX];
    uint64_t stripes[LINK_SLOTS_MAX]; /* as the peer knows them */
    int64_t looked_ns;
};

/* ---- from nothing to connected queue pairs --------------------------------------------------- */

static void rail_close(struct rail *r)
{
    /* queue pairs first: nobody may write any more when the memory is given back */
    if (r->qp)
        ibv_destroy_qp(r->qp);
    if (r->cq)
        ibv_destroy_cq(r->cq);
    if (r->in)
        ibv_dereg_mr(r->in);
    if (r->out)
        ibv_dereg_mr(r->out);
    rdma_port_close(&r->port);
    *r = (struct rail){ 0 };
}

static int verb_failed(const struct rail *r, const char *what, int e)
{
    char text[RAIL_TEXT_BYTES];

    return fail(e > 0 ? -e : -EIO, "link rdma: %s: %s: %s", rail_text(&r->port.end, text), what,
                strerror(e));
}

/* For one write with immediate data, which brings no bytes of a receive. */
static int post_receive(struct rail *r)
{
    struct ibv_recv_wr wr = { 0 }, *bad;

    return ibv_post_recv(r->qp, &wr, &bad);
}

/* Memory, completion queue and a queue pair that does not know its peer yet. */
static int rail_open(struct rdma_link *l, const struct link_mem *m, struct rail *r)
{
    /* as many as the peer may raise flags before it has been answered */
    unsigned receives = l->set.imm ? (unsigned)m->slots + 1 : 1;
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
                             .port_num = r->port.port,
                             .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
                                     .cap = { .max_send_wr = QP_WRITES,
                                              .max_recv_wr = receives,
                                              .max_send_sge = 1,
                                              .max_recv_sge = 1,
                                              .max_inline_data = sizeof(uint64_t) * 2 } };
    /* no relaxed ordering: the tag must not overtake its payload */
    int e, res = rdma_register(&r->port, l->area, l->area_bytes,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &r->in);

    if (res == 0)
        res = rdma_register(&r->port, m->outbox, (size_t)m->slots * m->slot_bytes, 0, &r->out);
    if (res == 0)
        res = random_bytes(&r->psn, sizeof(r->psn));
    if (res < 0)
        return res;
    r->psn &= 0xffffff;
    r->cq = ibv_create_cq(r->port.ctx, QP_WRITES + (int)receives, NULL, NULL, 0);
    if (!r->cq)
        return verb_failed(r, "completion queue", errno);
    init.send_cq = r->cq;
    init.recv_cq = r->cq;
    r->qp = ibv_create_qp(r->port.pd, &init);
    if (!r->qp)
        return verb_failed(r, "queue pair", errno);
    e = ibv_modify_qp(r->qp, &a,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    for (unsigned i = 0; l->set.imm && i < receives && !e; i++)
        e = post_receive(r);
    return e ? verb_failed(r, "queue pair to INIT", e) : 0;
}

static enum ibv_mtu mtu_enum(int bytes)
{
    enum ibv_mtu m = IBV_MTU_256;

    while (m < IBV_MTU_4096 && 128 << (m + 1) <= bytes)
        m++;
    return m;
}

static int rail_connect(const struct rdma_link *l, struct rail *r, const struct rdma_end *peer)
{
    int mtu = r->port.end.mtu < (int)peer->mtu ? r->port.end.mtu : (int)peer->mtu;
    struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR,
                               .path_mtu = mtu_enum(mtu),
                               .dest_qp_num = peer->qpn,
                               .rq_psn = peer->psn & 0xffffff,
                               .max_dest_rd_atomic = 1,
                               .min_rnr_timer = QP_RNR_TIMER,
                               .ah_attr = { .is_global = 1,
                                            .port_num = r->port.port,
                                            .grh = { .sgid_index = (uint8_t)r->port.end.gid_index,
                                                     .hop_limit = QP_HOPS } } };
    struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS,
                               .timeout = QP_TIMEOUT,
                               .retry_cnt = QP_RETRIES,
                               .rnr_retry = 7,
                               .sq_psn = r->psn,
                               .max_rd_atomic = 1 };
    char text[RAIL_TEXT_BYTES];
    int e;

    memcpy(rtr.ah_attr.grh.dgid.raw, peer->gid, RAIL_GID_BYTES);
    e = ibv_modify_qp(r->qp, &rtr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (e)
        return fail(-EHOSTUNREACH,
                    "link rdma: %s: no way to %d.%d.%d.%d of rank %d: %s; is it up, and does it "
                    "answer a ping?",
                    rail_text(&r->port.end, text), peer->gid[12], peer->gid[13], peer->gid[14],
                    peer->gid[15], l->base.peer, strerror(e));
    e = ibv_modify_qp(r->qp, &rts,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (e)
        return verb_failed(r, "queue pair to RTS", e);
    r->remote = peer->area;
    r->rkey = peer->rkey;
    if (r->port.end.mtu != (int)peer->mtu)
        log_warn("link rdma: %s has an MTU of %d, rank %d one of %u: %d is used; give both netdevs "
                 "the same, 9000 is best",
                 rail_text(&r->port.end, text), r->port.end.mtu, l->base.peer, peer->mtu, mtu);
    else if (mtu < 4096)
        log_debug("link rdma: %s: MTU %d; netdevs at 9000 give 4096", rail_text(&r->port.end, text),
                  mtu);
    return 0;
}

static void record_of(const struct rdma_link *l, int ends, struct rdma_record *out)
{
    *out = (struct rdma_record){ .rails = (uint32_t)ends,
                                 .stripe_min = (uint32_t)l->set.stripe_min,
                                 .imm = (uint32_t)l->set.imm };
    for (int i = 0; i < ends; i++) {
        const struct rail *r = &l->rail[i];
        struct rdma_end *e = &out->end[i];

        memcpy(e->device, r->port.end.device, sizeof(e->device));
        memcpy(e->gid, r->port.end.gid, RAIL_GID_BYTES);
        e->area = (uint64_t)(uintptr_t)l->area;
        e->rkey = r->in->rkey;
        e->qpn = r->qp->qp_num;
        e->psn = r->psn;
        e->mtu = (uint32_t)r->port.end.mtu;
        e->prefix = (uint32_t)r->port.end.prefix;
    }
}

/* What the peer says of itself goes nowhere before it has been checked. */
static int record_read(const struct rdma_link *l, struct rdma_record *rec, struct rail_end *out)
{
    if (rec->rails > RAILS_MAX)
        return fail(-EPROTO, "link rdma: rank %d has %u rails", l->base.peer, rec->rails);
    if (rec->stripe_min != l->set.stripe_min)
        return fail(-EINVAL, "link rdma: stripe_min is %zu here, %u on rank %d", l->set.stripe_min,
                    rec->stripe_min, l->base.peer);
    if (rec->imm != (uint32_t)l->set.imm)
        return fail(-EINVAL, "link rdma: tags come %s immediate data here, not so on rank %d",
                    l->set.imm ? "with" : "without", l->base.peer);
    for (uint32_t i = 0; i < rec->rails; i++) {
        struct rdma_end *e = &rec->end[i];

        if (e->mtu < 256 || e->mtu > 4096 || e->prefix > 32 || memchr(e->device, 0, 24) == NULL)
            return fail(-EPROTO, "link rdma: rank %d sent no record of a rail", l->base.peer);
        for (char *c = e->device; *c; c++)
            *c = *c > ' ' && *c < 127 ? *c : '?';
        out[i] = (struct rail_end){ .prefix = (int)e->prefix, .mtu = (int)e->mtu };
        memcpy(out[i].device, e->device, sizeof(out[i].device));
        memcpy(out[i].gid, e->gid, RAIL_GID_BYTES);
    }
    return 0;
}

/* Keep the ports that have a partner, in the order of the pairs, and connect them. */
static int connect_pairs(struct rdma_link *l, int ends, const struct rdma_record *theirs,
                         const struct rail_pair *pair, int pairs)
{
    struct rail all[RAILS_MAX];
    int r = 0;

    memcpy(all, l->rail, sizeof(all));
    memset(l->rail, 0, sizeof(l->rail));
    for (int i = 0; i < pairs; i++) {
        l->rail[i] = all[pair[i].mine];
        all[pair[i].mine] = (struct rail){ 0 };
    }
    for (int i = 0; i < ends; i++)
        rail_close(&all[i]);
    l->rails = pairs;
    for (int i = 0; i < pairs && r == 0; i++)
        r = rail_connect(l, &l->rail[i], &theirs->end[pair[i].theirs]);
    return r;
}

/* ---- sends and completions ------------------------------------------------------------------- */

static int gone(struct rdma_link *l)
{
    if (atomic_load_explicit(&l->aborted, memory_order_acquire))
        return l->dead = -ECANCELED;
    log_debug("link rdma channel %d: rank %d is gone", l->base.channel, l->base.peer);
    return l->dead = -ECONNRESET;
}

/* The socket is silent while the peer takes part; then it says one byte, and then it is closed. */
static int ask_witness(struct rdma_link *l)
{
    uint8_t byte;
    ssize_t n = recv(l->socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK);

    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    if (n > 0 && !l->left && byte == BYE) {
        l->left = 1;
        recv(l->socket, &byte, 1, MSG_DONTWAIT);
        return 0;
    }
    if (n > 0)
        return l->dead = fail(-EPROTO, "link rdma channel %d: rank %d sent bytes after its record",
                              l->base.channel, l->base.peer);
    return gone(l);
}

/* A tag and all before it have arrived, as the completion of its write says. */
static int raise_flag(struct rdma_link *l, struct rail *r, uint32_t slot)
{
    uint64_t tag;
    int e;

    if (slot >= (uint32_t)l->mem->slots)
        return l->dead = fail(-EPROTO, "link rdma channel %d: rank %d raises flag %u of %d",
                              l->base.channel, l->base.peer, slot, l->mem->slots);
    memcpy(&tag, link_rail_line(l->mem, (int)slot, 0) + IMM_TAG_AT, sizeof(tag));
    atomic_store_explicit(link_flag(l->mem, (int)slot), tag, memory_order_release);
    e = post_receive(r);
    return e ? l->dead = verb_failed(r, "receive", e) : 0;
}

static int reap(struct rdma_link *l, struct rail *r)
{
    struct ibv_wc wc[CQ_BATCH];
    int n = ibv_poll_cq(r->cq, CQ_BATCH, wc);

    if (n < 0)
        return l->dead = verb_failed(r, "completions", EIO);
    for (int i = 0; i < n; i++) {
        if (wc[i].status == IBV_WC_SUCCESS && wc[i].opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
            r->flying--;
            continue;
        }
        if (wc[i].status == IBV_WC_SUCCESS) {
            if (raise_flag(l, r, ntohl(wc[i].imm_data)) < 0)
                return l->dead;
            continue;
        }
        /* the first bad one tells the cause, unless the peer has left */
        if (!l->probed || ask_witness(l) == 0)
            l->dead = l->left ? gone(l)
                              : rdma_completion_failed(&r->port, &wc[i], l->base.peer, !l->probed);
        return l->dead;
    }
    return 0;
}

/* The rank that polls and the one that watches it may both ask; who finds something is told, the
 * other one finds it in ill. */
static int rdma_news(struct link *base)
{
    struct rdma_link *l = (struct rdma_link *)base;
    int r = 0;

    if (pthread_mutex_trylock(&l->ports) != 0)
        return 0;
    for (int i = 0; i < l->rails && r == 0; i++)
        r = rdma_port_news(&l->rail[i].port);
    pthread_mutex_unlock(&l->ports);
    if (r < 0)
        atomic_store_explicit(&l->ill, r, memory_order_release);
    return r;
}

static int rdma_poll(struct link *base)
{
    struct rdma_link *l = (struct rdma_link *)base;
    int64_t now;

    if (l->dead)
        return l->dead;
    if (atomic_load_explicit(&l->aborted, memory_order_acquire))
        return gone(l);
    for (int i = 0; i < l->rails; i++)
        if ((l->rail[i].flying || l->set.imm) && reap(l, &l->rail[i]) < 0)
            return l->dead;
    now = clock_ns();
    if (now - l->looked_ns < LOOK_MS * NS_PER_MS)
        return 0;
    l->looked_ns = now;
    rdma_news(base);
    l->dead = atomic_load_explicit(&l->ill, memory_order_acquire);
    return l->dead ? l->dead : ask_witness(l);
}

/* The requests of one send on one rail. */
struct chain {
    struct ibv_send_wr wr[3];
    struct ibv_sge sge[3];
    int n;
};

static void chain_write(struct chain *c, const struct rail *r, const void *from, size_t n,
                        uint32_t lkey, size_t to, unsigned flags)
{
    int k = c->n++;

    c->sge[k] = (struct ibv_sge){ (uint64_t)(uintptr_t)from, (uint32_t)n, lkey };
    c->wr[k] =
        (struct ibv_send_wr){ .sg_list = &c->sge[k],
                              .num_sge = 1,
                              .opcode = IBV_WR_RDMA_WRITE,
                              .send_flags = flags,
                              .wr.rdma = { .remote_addr = r->remote + to, .rkey = r->rkey } };
    if (k)
        c->wr[k - 1].next = &c->wr[k];
}

static int rail_send(struct rdma_link *l, int i, size_t off, size_t len, int stripes, uint64_t tag)
{
    const struct link_mem *m = l->mem;
    struct rail *r = &l->rail[i];
    int slot = (int)(off / m->slot_bytes), e;
    size_t line = (size_t)(link_rail_line(m, slot, i) - m->flags);
    struct ibv_send_wr *bad;
    struct chain c = { .n = 0 };
    size_t at, n;
    uint64_t count = (uint64_t)stripes;

    if (r->flying == QP_SENDS && reap(l, r) < 0)
        return l->dead;
    if (r->flying == QP_SENDS)
        return l->dead = fail(-ENOBUFS, "link rdma channel %d: %d sends to rank %d have not left",
                              l->base.channel, QP_SENDS, l->base.peer);
    rail_stripe(len, stripes, i, &at, &n);
    if (n)
        chain_write(&c, r, m->outbox + off + at, n, r->out->lkey,
                    (size_t)(m->inbox - m->flags) + off + at, 0);
    if (i == 0 && l->stripes[slot] != count)
        chain_write(&c, r, &count, sizeof(count), 0, line + LINK_STRIPES_AT, IBV_SEND_INLINE);
    chain_write(&c, r, &tag, sizeof(tag), 0, line + (l->set.imm ? IMM_TAG_AT : 0),
                IBV_SEND_INLINE | IBV_SEND_SIGNALED);
    if (l->set.imm) {
        c.wr[c.n - 1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        c.wr[c.n - 1].imm_data = htonl((uint32_t)slot);
    }
    e = ibv_post_send(r->qp, c.wr, &bad);
    if (e)
        return l->dead = verb_failed(r, "send", e);
    r->flying++;
    if (i == 0)
        l->stripes[slot] = count;
    return 0;
}

static int rdma_send(struct link *base, const struct link_mem *m, size_t off, size_t len,
                     uint64_t tag)
{
    struct rdma_link *l = (struct rdma_link *)base;
    int stripes = l->rails > 1 && len >= l->set.stripe_min ? l->rails : 1, r = 0;

    if (l->dead)
        return l->dead;
    if (atomic_load_explicit(&l->aborted, memory_order_acquire))
        return gone(l);
    assert(m == l->mem && off / m->slot_bytes < (size_t)m->slots);
    assert(off % m->slot_bytes + len <= m->slot_bytes);
    for (int i = 0; i < stripes && r == 0; i++)
        r = rail_send(l, i, off, len, stripes, tag);
    return r;
}

/* ---- reg, unreg ------------------------------------------------------------------------------ */

/* Until every send has completed, or the peer takes no more. */
static int drain(struct rdma_link *l, int limit_ms)
{
    int64_t until = clock_ns() + limit_ms * NS_PER_MS;

    for (int i = 0; i < l->rails; i++) {
        while (l->rail[i].flying && !l->left) {
            int r = rdma_poll(&l->base);

            if (r < 0)
                return r;
            if (clock_ns() > until)
                return fail(-ETIMEDOUT, "link rdma channel %d: sends to rank %d do not complete",
                            l->base.channel, l->base.peer);
            if (l->rail[i].flying)
                clock_sleep(PROBE_SPIN_US * NS_PER_US);
        }
    }
    return 0;
}

/* Both have come to this point. */
static int meet_again(struct rdma_link *l)
{
    static const uint8_t here[8] = "TDRDHERE";
    uint8_t theirs[8];
    int r = link_socket_send(&l->base, l->socket, here, sizeof(here));

    if (r == 0)
        r = link_socket_recv(&l->base, l->socket, &l->aborted, l->meet_ms, theirs, sizeof(theirs));
    if (r == 0 && memcmp(here, theirs, sizeof(here)) != 0)
        r = fail(-EPROTO, "link rdma: rank %d sent no sign", l->base.peer);
    return r;
}

/* A whole slot over every rail, so that an MTU that only small writes fit through shows now. The
 * peer's probe has arrived when it has said that its own sends are complete; then what it left is
 * wiped, and only then anybody sends. */
static int probe(struct rdma_link *l, const struct link_mem *m)
{
    int r = meet_again(l);

    for (int i = 0; i < l->rails && r == 0; i++) {
        struct rail *rail = &l->rail[i];
        struct chain c = { .n = 0 };
        struct ibv_send_wr *bad;
        int e;

        chain_write(&c, rail, m->outbox, m->slot_bytes, rail->out->lkey,
                    (size_t)(m->inbox - m->flags), IBV_SEND_SIGNALED);
        e = ibv_post_send(rail->qp, c.wr, &bad);
        rail->flying += e == 0;
        r = e ? verb_failed(rail, "probe", e) : 0;
    }
    /* no look at the witness meanwhile: the peer's next sign may be there already */
    l->looked_ns = INT64_MAX;
    if (r == 0)
        r = drain(l, l->meet_ms);
    if (r == 0)
        r = meet_again(l);
    if (r == 0) {
        memset(l->area, 0, l->area_bytes);
        atomic_thread_fence(memory_order_seq_cst);
        r = meet_again(l);
    }
    l->looked_ns = 0;
    l->probed = r == 0;
    return r;
}

static int meet(struct rdma_link *l, const struct link_mem *m, int ends)
{
    struct link *base = &l->base;
    struct link_hello mine = { .magic = LINK_HELLO_MAGIC,
                               .channel = (uint32_t)base->channel,
                               .slots = (uint32_t)m->slots,
                               .slot_bytes = (uint32_t)m->slot_bytes };
    struct link_hello theirs;
    struct rdma_record my, their;
    struct rail_end here[RAILS_MAX], there[RAILS_MAX];
    struct rail_pair pair[RAILS_MAX];
    /* a slot that is never striped needs no second rail */
    int want = l->set.imm || m->slot_bytes < l->set.stripe_min ? 1 : l->set.rails;
    int r = link_hello_meet(base, l->socket, &l->aborted, l->meet_ms, &mine, &theirs);

    if (r < 0)
        return r;
    record_of(l, ends, &my);
    r = link_socket_send(base, l->socket, &my, sizeof(my));
    if (r == 0)
        r = link_socket_recv(base, l->socket, &l->aborted, l->meet_ms, &their, sizeof(their));
    if (r == 0)
        r = record_read(l, &their, there);
    if (r < 0)
        return r;
    for (int i = 0; i < ends; i++)
        here[i] = l->rail[i].port.end;
    r = rails_pair(here, ends, there, (int)their.rails, base->rank < base->peer, want, base->peer,
                   pair);
    return r < 0 ? r : connect_pairs(l, ends, &their, pair, r);
}

static void give_back(struct rdma_link *l)
{
    for (int i = 0; i < RAILS_MAX; i++)
        rail_close(&l->rail[i]);
    l->rails = 0;
    if (l->area)
        munmap(l->area, l->area_bytes);
    l->area = NULL;
    l->mem = NULL;
}

static void say_rails(const struct rdma_link *l)
{
    char text[RAIL_TEXT_BYTES];

    for (int i = 0; i < l->rails; i++)
        log_debug("link rdma channel %d: rail %d to rank %d: %s, GID %d", l->base.channel, i,
                  l->base.peer, rail_text(&l->rail[i].port.end, text),
                  l->rail[i].port.end.gid_index);
}

static int make_rails(struct rdma_link *l, struct link_mem *m)
{
    struct rdma_port port[RAILS_MAX];
    int r, ends;
    size_t flags;

    flags = link_area_bytes(m->slots * RAILS_MAX, 0); /* a line for each slot and rail */
    l->area_bytes = flags + link_area_bytes(1, (size_t)m->slots * m->slot_bytes);
    l->area = link_area_map(l->area_bytes);
    if (!l->area)
        return -ENOMEM;
    ends = r = rdma_ports_open(l->host, port);
    for (int i = 0; i < ends; i++)
        l->rail[i].port = port[i];
    for (int i = 0; i < ends && r >= 0; i++)
        r = rail_open(l, m, &l->rail[i]);
    if (r >= 0)
        r = meet(l, m, ends);
    if (r == 0) {
        m->flags = l->area;
        m->inbox = l->area + flags;
        m->rails = l->rails;
        l->mem = m;
        r = probe(l, m);
    }
    if (r < 0) {
        m->inbox = NULL;
        m->flags = NULL;
        give_back(l);
        /* the peer need not wait for what does not come */
        shutdown(l->socket, SHUT_RDWR);
        return atomic_load(&l->aborted) ? -ECANCELED : r;
    }
    say_rails(l);
    return 0;
}

static int rdma_reg(struct link *base, struct link_mem *m)
{
    struct rdma_link *l = (struct rdma_link *)base;
    int r = link_mem_check(base, m);

    if (r < 0)
        return r;
    assert(!l->area);
    pthread_mutex_lock(&l->ports);
    r = make_rails(l, m);
    pthread_mutex_unlock(&l->ports);
    return r;
}

static void rdma_unreg(struct link *base, struct link_mem *m)
{
    struct rdma_link *l = (struct rdma_link *)base;

    static const uint8_t bye = BYE;

    /* what was sent last still has to arrive; what the peer sends from here on need not */
    if (l->area && !l->dead)
        drain(l, DRAIN_MS);
    send(l->socket, &bye, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    pthread_mutex_lock(&l->ports);
    give_back(l);
    pthread_mutex_unlock(&l->ports);
    if (!l->dead)
        l->dead = -ECANCELED;
    m->inbox = NULL;
    m->flags = NULL;
}

static void rdma_abort(struct link *base)
{
    struct rdma_link *l = (struct rdma_link *)base;

    atomic_store_explicit(&l->aborted, 1, memory_order_release);
    shutdown(l->socket, SHUT_RDWR);
    link_bell_ring(&l->bell);
}

static void rdma_close(struct link *base)
{
    struct rdma_link *l = (struct rdma_link *)base;

    give_back(l);
    pthread_mutex_destroy(&l->ports);
    close(l->socket);
    free(l);
}

const struct link_ops link_rdma_ops = {
    .name = "rdma",
    .caps = LINK_DIRECT | LINK_ACROSS,
    .reg = rdma_reg,
    .unreg = rdma_unreg,
    .send = rdma_send,
    .poll = rdma_poll,
    .news = rdma_news,
    .abort = rdma_abort,
    .close = rdma_close,
};

int link_rdma_open(int fd, int rank, int peer, int channel, int meet_ms,
                   const struct link_rdma_settings *s, struct link **out)
{
    struct rdma_link *l = NULL;
    int r = link_socket_check(fd);

    if (r < 0)
        goto close_fd;
    l = aligned_alloc(_Alignof(struct rdma_link), sizeof(*l));
    if (!l || s->rails < 0 || s->rails > RAILS_MAX || s->stripe_min > UINT32_MAX) {
        r = l ? fail(-EINVAL, "link rdma: rails %d, want 0 to %d; stripe_min %zu", s->rails,
                     RAILS_MAX, s->stripe_min)
              : fail(-ENOMEM, "link rdma channel %d: no memory", channel);
        goto close_fd;
    }
    memset(l, 0, sizeof(*l));
    pthread_mutex_init(&l->ports, NULL);
    link_socket_tune(fd);
    l->base = (struct link){
        .ops = &link_rdma_ops, .rank = rank, .peer = peer, .channel = channel, .fd = -1
    };
    l->base.bell = &l->bell;
    l->set = *s;
    if (strlen(s->host) < sizeof(l->host))
        memcpy(l->host, s->host, strlen(s->host));
    l->socket = fd;
    l->meet_ms = meet_ms;
    *out = &l->base;
    return 0;

close_fd:
    free(l);
    close(fd);
    return r;
}
