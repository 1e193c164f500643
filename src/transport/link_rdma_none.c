/* link_rdma_none - stands in for link_rdma.c and rdma_device.c where libibverbs is not there. */
#include "src/transport/link_rdma.h"

#include <errno.h>
#include <unistd.h>

#include "src/base/log.h"
#include "src/transport/link_table.h"

static int none(void)
{
    return fail(-ENOTSUP, "link rdma: this build is without it; install libibverbs-dev and build");
}

static int none_reg(struct link *l, struct link_mem *m)
{
    (void)l, (void)m;
    return none();
}

static void none_unreg(struct link *l, struct link_mem *m)
{
    (void)l, (void)m;
}

static int none_send(struct link *l, const struct link_mem *m, size_t off, size_t len, uint64_t tag)
{
    (void)l, (void)m, (void)off, (void)len, (void)tag;
    return none();
}

static int none_poll(struct link *l)
{
    (void)l;
    return none();
}

static void none_end(struct link *l)
{
    (void)l;
}

const struct link_ops link_rdma_ops = {
    .name = "rdma",
    .caps = 0,
    .reg = none_reg,
    .unreg = none_unreg,
    .send = none_send,
    .poll = none_poll,
    .news = link_no_news,
    .abort = none_end,
    .close = none_end,
};

int link_rdma_open(int fd, int rank, int peer, int channel, int meet_ms,
                   const struct link_rdma_settings *s, struct link **out)
{
    (void)rank, (void)peer, (void)channel, (void)meet_ms, (void)s, (void)out;
    close(fd);
    return none();
}

int link_rdma_ready(void)
{
    return none();
}

int rdma_survey(struct rdma_seen *out, int max)
{
    (void)out, (void)max;
    return 0;
}
