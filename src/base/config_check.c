/* config_check.c owns the relations between settings; config.c knows each one alone. */
#include "src/base/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/cores.h"
#include "src/base/log.h"

/* Entry i of the list `hosts` and its length; NULL behind the last. */
static const char *host_at(const char *hosts, int i, size_t *bytes)
{
    const char *p = hosts;

    for (;; i--) {
        p += strspn(p, ", \t");
        *bytes = strcspn(p, ", \t");
        if (*bytes == 0)
            return NULL;
        if (i == 0)
            return p;
        p += *bytes;
    }
}

static bool same_host(const struct config *c, int a, int b)
{
    size_t na, nb;
    const char *pa = host_at(c->hosts, a, &na), *pb = host_at(c->hosts, b, &nb);

    return pa && pb ? na == nb && memcmp(pa, pb, na) == 0 : pa == pb;
}

static bool one_host(const struct config *c)
{
    for (int i = 1; i < c->ranks; i++)
        if (!same_host(c, 0, i))
            return false;
    return true;
}

int config_host(const struct config *c, int rank, char *buf, size_t cap)
{
    size_t bytes = strlen("127.0.0.1");
    const char *p = c->hosts[0] ? host_at(c->hosts, rank, &bytes) : "127.0.0.1";

    if (!p)
        return fail(-EINVAL, "config: hosts: none for rank %d", rank);
    if (bytes >= cap)
        return fail(-ENAMETOOLONG, "config: hosts: name of rank %d too long", rank);
    memcpy(buf, p, bytes);
    buf[bytes] = 0;
    return 0;
}

/* Of the ranks below `end` those on this rank's host. */
static int here(const struct config *c, int end)
{
    int n = 0;

    for (int i = 0; i < end; i++)
        n += same_host(c, i, c->rank);
    return n;
}

int config_neighbours(const struct config *c)
{
    return here(c, c->ranks);
}

int config_device(const struct config *c)
{
    return c->device == CONFIG_AUTO ? here(c, c->rank) : c->device;
}

int config_threads(const struct config *c)
{
    int n;

    if (c->threads > 0)
        return c->threads;
    n = cores_count() / config_neighbours(c);
    return n < 1 ? 1 : n > 256 ? 256 : n;
}

static int check_hosts(const struct config *c)
{
    size_t bytes;
    int n = 0;

    while (host_at(c->hosts, n, &bytes))
        n++;
    if (n != 0 && n != c->ranks)
        return fail(-EINVAL, "config: hosts names %d, ranks is %d", n, c->ranks);
    if (one_host(c))
        return 0;
    if (strcmp(c->link, "loop") == 0 || strcmp(c->link, "shm") == 0)
        return fail(-EINVAL, "config: link %s needs all hosts to be the same one", c->link);
    if (strcmp(c->comm, "peer") == 0)
        return fail(-EINVAL, "config: comm peer needs all hosts to be the same one");
    return 0;
}

/* "auto", "off" or two core numbers. */
static int check_pin(const struct config *c)
{
    const char *p = c->pin;
    int core[2];

    if (strcmp(p, "auto") == 0 || strcmp(p, "off") == 0)
        return 0;
    for (int i = 0; i < 2; i++) {
        size_t digits = strspn(p, "0123456789");

        if (digits < 1 || digits > 4 || p[digits] != (i == 0 ? ',' : 0))
            return fail(-EINVAL, "config: pin: want auto, off or two cores as 3,4, got \"%s\"",
                        c->pin);
        core[i] = atoi(p);
        p += digits + 1;
    }
    if (core[0] == core[1])
        return fail(-EINVAL,
                    "config: pin: round and proxy thread want cores of their own, got \"%s\"",
                    c->pin);
    return 0;
}

static int check_home(const char *key, const char *path)
{
    if (strncmp(path, "~/", 2) != 0)
        return 0;
    return fail(-EINVAL, "config: %s: this user has no home folder, name another place", key);
}

int config_check_paths(const struct config *c)
{
    const struct {
        const char *key, *path;
    } paths[] = { { "model", c->model },
                  { "cache", c->cache },
                  { "secret", c->secret },
                  { "costs", c->costs },
                  { "log", c->log } };
    int r = 0;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]) && r == 0; i++)
        r = check_home(paths[i].key, paths[i].path);
    if (r == 0 && !c->cache[0])
        return fail(-EINVAL, "config: cache: want a folder");
    if (r == 0 && !c->costs[0])
        return fail(-EINVAL, "config: costs: want auto or a file");
    return r;
}

int config_check(const struct config *c)
{
    int r;

    if (c->rank >= c->ranks)
        return fail(-EINVAL, "config: rank %d, ranks is %d", c->rank, c->ranks);
    if (c->depth >= c->window_max)
        return fail(-EINVAL, "config: depth %d needs a window_max of %d, it is %d", c->depth,
                    c->depth + 1, c->window_max);
    if (c->prefill_chunk < c->window_max)
        return fail(-EINVAL, "config: prefill_chunk %d is below window_max %d", c->prefill_chunk,
                    c->window_max);
    if (c->peer_timeout_ms / 2 < c->heartbeat_ms)
        return fail(-EINVAL, "config: peer_timeout_ms %d is less than two of heartbeat_ms %d",
                    c->peer_timeout_ms, c->heartbeat_ms);
    if (c->ranks > 1 && strcmp(c->link, "loop") != 0 && !c->secret[0])
        return fail(-EINVAL, "config: link %s with ranks %d needs secret", c->link, c->ranks);
    if (c->prefetch > 0 && !c->side)
        return fail(-EINVAL, "config: prefetch needs side on");
    r = check_hosts(c);
    if (r == 0)
        r = check_pin(c);
    if (r == 0)
        r = config_check_paths(c);
    return r;
}
