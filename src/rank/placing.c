/* placing.c owns the choice of processors; base/cores.h moves the threads. */
#include "src/rank/placing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/log.h"
#include "src/transport/link_rdma.h"

static const struct placing nowhere = { .round = -1, .proxy = -1 };

enum placing_result placing_share(const int *order, int cores, int workers, bool proxy,
                                  struct placing *out)
{
    int threads = 1 + proxy + workers;

    *out = nowhere;
    if (threads >= cores)
        return threads > cores ? PLACING_SHORT : PLACING_FULL;
    out->round = order[0];
    if (proxy)
        out->proxy = order[1];
    for (int i = 1 + proxy; i < cores && workers > 0; i++)
        out->worker[out->workers++] = order[i];
    return PLACING_DONE;
}

static void say(const struct placing *p)
{
    log_debug("pin: round on core %d, proxy %d, workers on %d cores", p->round, p->proxy,
              p->workers);
}

/* "3,12": config_check has seen that it is two numbers. */
static int named(const struct config *c, const int *order, int cores, struct placing *out)
{
    int want[2] = { atoi(c->pin), atoi(strchr(c->pin, ',') + 1) }, found = 0;

    for (int i = 0; i < cores; i++) {
        if (order[i] == want[0] || order[i] == want[1])
            found++;
        else
            out->worker[out->workers++] = order[i];
    }
    if (c->ranks > 1 && strcmp(c->link, "loop") == 0)
        return fail(
            -EINVAL,
            "config: pin: %s are the cores of one rank, with link loop this process has %d; "
            "want auto or off",
            c->pin, c->ranks);
    if (found < 2)
        return fail(-EINVAL, "config: pin: this process may not use the cores %s; %d are allowed",
                    c->pin, cores);
    out->round = want[0];
    out->proxy = want[1];
    say(out);
    return 0;
}

int placing_of(const struct config *c, int workers, bool proxy, struct placing *out)
{
    int order[CORES_MAX], cores;
    bool automatic = strcmp(c->pin, "auto") == 0;
    char host[256];
    struct rdma_seen port = { 0 };

    *out = nowhere;
    if (strcmp(c->pin, "off") == 0)
        return 0;
    /* Several ranks here are a trial, and there may be other trials: all would take the same
     * processors. */
    if (automatic && (c->ranks == 1 || config_neighbours(c) > 1))
        return 0;
    if (strcmp(c->link, "rdma") == 0 && config_host(c, c->rank, host, sizeof(host)) == 0)
        rdma_at(host, &port);
    cores = cores_list(port.device, order, CORES_MAX);
    if (!automatic)
        return named(c, order, cores, out);
    switch (placing_share(order, cores, workers, proxy, out)) {
    case PLACING_DONE:
        say(out);
        break;
    case PLACING_FULL:
        log_debug("pin: %d threads leave no core to others: the kernel places them", cores);
        break;
    case PLACING_SHORT:
        log_warn("pin: %d threads on %d cores: the kernel places them; set fewer threads",
                 1 + proxy + workers, cores);
        break;
    }
    return 0;
}

static void stay(const int *core, int n)
{
    int r = cores_stay(core, n);

    if (r < 0)
        log_warn("pin: core %d: %s; the kernel places this thread", core[0], strerror(-r));
}

void placing_workers(const struct placing *p)
{
    if (p->workers > 0)
        stay(p->worker, p->workers);
}

void placing_round(const struct placing *p)
{
    if (p->round >= 0)
        stay(&p->round, 1);
}

void placing_leave(void)
{
    cores_leave();
}
