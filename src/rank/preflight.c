/* preflight - the facts of one machine; preflight_judge.c compares them with another's. */
#include "src/rank/preflight.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/json.h"
#include "src/model/pack.h"
#include "src/rank/control_door.h"
#include "src/rank/memory_plan.h"
#include "src/rank/packs.h"
#include "src/transport/link_rdma.h"

enum { PORTS_MAX = 16, DIGEST_SHOWN = 8, SECRET_LEAST = 32, CUDA_FILE_MAX = 1 << 16 };

void facts_put(struct facts *f, const char *key, const char *fmt, ...)
{
    struct fact *x = &f->fact[f->n];
    va_list ap;

    if (f->n == FACTS_MAX)
        return;
    f->n++;
    snprintf(x->key, sizeof(x->key), "%s", key);
    va_start(ap, fmt);
    vsnprintf(x->value, sizeof(x->value), fmt, ap);
    va_end(ap);
    for (char *c = x->value; *c; c++)
        if (*c < ' ')
            *c = ' ';
}

/* The number behind a key of a file of `key value` or `key: value` lines; -1: none. */
static long number_in(const char *path, const char *key)
{
    FILE *f = fopen(path, "re");
    size_t n = strlen(key);
    char line[256];
    long v = -1;

    while (f && v < 0 && fgets(line, sizeof(line), f))
        if (strncmp(line, key, n) == 0 && (n == 0 || line[n] == ':' || line[n] == ' '))
            v = strtol(line + n + (n > 0), NULL, 10);
    if (f)
        fclose(f);
    return v;
}

static int first_line(const char *path, char *out, size_t cap)
{
    FILE *f = fopen(path, "re");
    int ok = f && fgets(out, (int)cap, f);

    if (f)
        fclose(f);
    if (!ok)
        return 0;
    out[strcspn(out, "\n")] = 0;
    return 1;
}

static void put_file_digest(struct facts *f, const char *key, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t digest[SHA256_BYTES];
    char hex[HEX_CAP(DIGEST_SHOWN)];
    static char buf[1 << 16];
    struct sha256 *h = NULL;
    ssize_t n = -1;

    if (fd >= 0 && sha256_open(&h) == 0)
        while ((n = read(fd, buf, sizeof(buf))) > 0)
            sha256_add(h, buf, (size_t)n);
    if (n == 0 && sha256_end(h, digest) == 0)
        facts_put(f, key, "%s", hex_format(digest, DIGEST_SHOWN, hex));
    else
        facts_put(f, key, "bad: %s cannot be read: %s", path, strerror(errno));
    sha256_close(h);
    if (fd >= 0)
        close(fd);
}

/* ---- machine --------------------------------------------------------------------------------- */

static void put_cuda(struct facts *f)
{
    const char *path = "/usr/local/cuda/version.json", *version = NULL;
    const struct json *cuda;
    struct json *root = NULL;

    if (access(path, R_OK) == 0 && json_read(path, CUDA_FILE_MAX, 8, &root) == 0) {
        cuda = json_get(root, "cuda");
        if (cuda)
            json_opt_str(cuda, "version", &version);
    }
    facts_put(f, "cuda", "%s", version ? version : "none");
    json_close(root);
}

/* Its clock and what holds it back, as the driver's own program says it: a GB10 that came up in a
 * low power state decodes at a third of its speed and looks well otherwise. */
static void put_gpu(struct facts *f)
{
    const char *ask =
        "timeout 5 /usr/bin/nvidia-smi --query-gpu=name,pstate,clocks.sm,clocks.max.sm,power.draw,"
        "clocks_throttle_reasons.hw_slowdown,clocks_throttle_reasons.sw_power_cap "
        "--format=csv,noheader 2>/dev/null";
    char line[FACT_VALUE_BYTES] = "";
    FILE *p = access("/usr/bin/nvidia-smi", X_OK) == 0 ? popen(ask, "re") : NULL;

    if (p && !fgets(line, sizeof(line), p))
        line[0] = 0;
    if (p)
        pclose(p);
    line[strcspn(line, "\n")] = 0;
    facts_put(f, "gpu", "%s%s", strstr(line, ", Active") ? "warn: held back: " : "",
              line[0] ? line : "none");
}

static void put_system(struct facts *f)
{
    char line[FACT_VALUE_BYTES];
    struct utsname u = { 0 };
    struct timespec now;
    long most, now_khz;

    uname(&u);
    facts_put(f, "machine", "%s", u.nodename);
    facts_put(f, "architecture", "%s", u.machine);
    facts_put(f, "kernel", "%s", u.release);
    facts_put(f, "cores", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    facts_put(f, "driver", "%s",
              first_line("/proc/driver/nvidia/version", line, sizeof(line)) ? line : "none");
    put_cuda(f);
    put_gpu(f);
    most = number_in("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "");
    now_khz = number_in("/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "");
    if (most <= 0)
        facts_put(f, "clock", "not known");
    else
        facts_put(f, "clock", "%s%ld of %ld MHz allowed", now_khz < most ? "warn: " : "",
                  now_khz / 1000, most / 1000);
    clock_gettime(CLOCK_REALTIME, &now);
    facts_put(f, "time_ms", "%lld", (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
}

static void put_memory(struct facts *f, int rdma)
{
    struct rlimit lim = { 0 };
    const char *info = "/proc/meminfo";
    char line[FACT_VALUE_BYTES];

    facts_put(f, "memory", "%ld MiB, %ld free, %ld in the page cache, %ld available",
              number_in(info, "MemTotal") >> 10, number_in(info, "MemFree") >> 10,
              number_in(info, "Cached") >> 10, (long)(memory_available() >> 20));
    facts_put(f, "huge_pages", "%ld of %ld kB, %ld free; transparent: %s",
              number_in(info, "HugePages_Total"), number_in(info, "Hugepagesize"),
              number_in(info, "HugePages_Free"),
              first_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line))
                  ? line
                  : "not known");
    if (number_in(info, "CmaFree") > number_in(info, "CmaTotal"))
        facts_put(f, "contiguous",
                  "warn: CmaFree is above CmaTotal: registering memory may fail on "
                  "this kernel; start another, or this one with cma=0");
    getrlimit(RLIMIT_MEMLOCK, &lim);
    if (lim.rlim_cur == RLIM_INFINITY)
        facts_put(f, "memlock", "unlimited");
    else
        facts_put(f, "memlock", "%s%llu KiB%s", rdma ? "bad: " : "",
                  (unsigned long long)lim.rlim_cur >> 10,
                  rdma ? "; set it to unlimited (ulimit -l, LimitMEMLOCK=infinity)" : "");
}

static void put_disk(struct facts *f, const char *cache)
{
    char path[PATH_CAP];
    struct statvfs v;

    snprintf(path, sizeof(path), "%s", cache);
    while (statvfs(path, &v) != 0 && strrchr(path, '/') && strrchr(path, '/') != path)
        *strrchr(path, '/') = 0; /* a folder that is not there yet is as large as the one above */
    if (statvfs(path, &v) != 0)
        facts_put(f, "disk", "warn: %s: %s", cache, strerror(errno));
    else
        facts_put(f, "disk", "%s%llu MiB free in %s", v.f_bavail == 0 ? "bad: " : "",
                  (unsigned long long)v.f_bavail * v.f_frsize >> 20, path);
}

/* ---- network --------------------------------------------------------------------------------- */

static int resolve(const char *host, struct sockaddr_storage *out, socklen_t *n)
{
    struct addrinfo want = { .ai_socktype = SOCK_STREAM }, *list;

    if (getaddrinfo(host, NULL, &want, &list) != 0)
        return 0;
    memcpy(out, list->ai_addr, list->ai_addrlen);
    *n = list->ai_addrlen;
    freeaddrinfo(list);
    return 1;
}

static void put_port(struct facts *f, const char *host, int port)
{
    struct sockaddr_storage a = { 0 };
    socklen_t n;
    int fd, one = 1;

    if (!resolve(host, &a, &n)) {
        facts_put(f, "port", "bad: hosts: %s is no address", host);
        return;
    }
    if (a.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)&a)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)(void *)&a)->sin_port = htons((uint16_t)port);
    fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)&a, n) == 0)
        facts_put(f, "port", "%d is free on %s", port, host);
    else
        facts_put(f, "port", "bad: %s port %d: %s%s", host, port, strerror(errno),
                  door_hint(errno));
    if (fd >= 0)
        close(fd);
}

/* MTU of the netdev that has this address, -1: none has it. */
static int netdev_of(const struct sockaddr_storage *a, char *name, size_t cap)
{
    const struct sockaddr_in *want = (const struct sockaddr_in *)(const void *)a;
    struct ifaddrs *list = NULL;
    char path[128];
    int mtu = -1;

    if (a->ss_family != AF_INET || getifaddrs(&list) < 0)
        return -1;
    for (struct ifaddrs *i = list; i && mtu < 0; i = i->ifa_next) {
        const struct sockaddr_in *has = (const struct sockaddr_in *)(const void *)i->ifa_addr;

        if (!has || has->sin_family != AF_INET || has->sin_addr.s_addr != want->sin_addr.s_addr)
            continue;
        snprintf(name, cap, "%s", i->ifa_name);
        snprintf(path, sizeof(path), "/sys/class/net/%s/mtu", i->ifa_name);
        mtu = (int)number_in(path, "");
    }
    freeifaddrs(list);
    return mtu;
}

static void put_network(struct facts *f, const struct config *c)
{
    struct sockaddr_storage a = { 0 };
    char host[256], name[64];
    socklen_t n;
    int mtu;

    if (config_host(c, c->rank, host, sizeof(host)) < 0)
        return;
    mtu = resolve(host, &a, &n) ? netdev_of(&a, name, sizeof(name)) : -1;
    if (mtu < 0)
        facts_put(f, "address", "bad: hosts: %s is on no interface of this machine", host);
    else if (door_loopback(&a) && config_neighbours(c) < c->ranks)
        facts_put(f, "address",
                  "bad: hosts: %s is the loopback here (see /etc/hosts), where no other machine "
                  "comes; write the address of the cable",
                  host);
    else
        facts_put(f, "address", "%s on %s", host, name);
    if (mtu > 0)
        facts_put(f, "mtu", "%d", mtu);
    if (c->rank == 0)
        put_port(f, host, c->port);
}

/* The slot that the device sits in: a device that came up at a part of its speed, or in half a
 * slot. */
static void put_slot(struct facts *f, const char *device)
{
    static const char *const what[] = { "current_link_speed", "current_link_width",
                                        "max_link_speed", "max_link_width" };
    char text[4][64], path[160], key[FACT_KEY_BYTES];

    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "/sys/class/infiniband/%.23s/device/%s", device, what[i]);
        if (!first_line(path, text[i], sizeof(text[i])))
            return; /* no PCIe device */
    }
    snprintf(key, sizeof(key), "pcie.%.23s", device);
    if (strcmp(text[0], text[2]) == 0 && strcmp(text[1], text[3]) == 0)
        facts_put(f, key, "%s x%s", text[0], text[1]);
    else
        facts_put(f, key, "warn: %s x%s of %s x%s: switch the machine off and on, or move the card",
                  text[0], text[1], text[2], text[3]);
}

static void put_rdma(struct facts *f, int wanted)
{
    struct rdma_seen seen[PORTS_MAX];
    int n = rdma_survey(seen, PORTS_MAX), usable = 0;
    char key[FACT_KEY_BYTES];

    for (int i = 0; i < n; i++) {
        const struct rdma_seen *s = &seen[i];

        usable += s->active && s->gid_index >= 0;
        snprintf(key, sizeof(key), "rdma.%.23s.%d", s->device, s->port);
        facts_put(f, key, "%s %s gid %d of %d mtu %d", s->state,
                  s->address[0] ? s->address : "no-address", s->gid_index, s->gids, s->mtu);
        snprintf(key, sizeof(key), "gids.%.23s.%d", s->device, s->port);
        facts_put(f, key, "%s", s->table);
        put_slot(f, s->device);
    }
    facts_put(f, "rdma", "%s%d of %d ports usable%s", wanted && usable == 0 ? "bad: " : "", usable,
              n,
              !wanted || usable ? ""
              : n == 0          ? "; no RDMA device, or a program built without libibverbs"
                                : "; give the cable's netdevs IPv4 addresses and set them up");
}

/* ---- what the ranks have to share ------------------------------------------------------------ */

static void put_secret(struct facts *f, const struct config *c)
{
    static const char what[] = "preflight";
    uint8_t proof[SHA256_BYTES];
    struct stat st;
    char hex[HEX_CAP(4)], *text;
    size_t n;

    if (!c->secret[0]) {
        facts_put(f, "secret", "none");
        return;
    }
    if (file_read(c->secret, PATH_CAP, &text, &n) < 0) {
        facts_put(f, "secret", "bad: %s: %s", c->secret, strerror(errno));
        return;
    }
    if (stat(c->secret, &st) == 0 && (st.st_mode & 077) != 0)
        facts_put(f, "secret", "bad: others may read %s; chmod 600", c->secret);
    else if (n < SECRET_LEAST)
        facts_put(f, "secret", "bad: %s has %zu bytes, want %d", c->secret, n, SECRET_LEAST);
    else if (hmac_sha256(text, n, what, sizeof(what), proof) == 0)
        facts_put(f, "secret", "%s", hex_format(proof, 4, hex));
    explicit_bzero(text, n);
    free(text);
}

static void put_pack(struct facts *f, const struct config *c)
{
    char hex[HEX_CAP(DIGEST_SHOWN)];
    enum exit_step step;
    struct pack *p;
    int r = packs_find(c, &step, &p);

    if (r < 0) {
        facts_put(f, "pack", "bad: model %s: %s", c->model[0] ? c->model : "is not set",
                  strerror(-r));
        return;
    }
    if (r > 0) {
        facts_put(f, "pack", "warn: not made yet; the first start packs the model");
        return;
    }
    facts_put(f, "pack", "%s", hex_format(pack_set_digest(p), DIGEST_SHOWN, hex));
    facts_put(f, "weights", "%s%llu MiB",
              memory_available() && memory_weights(p) > memory_available() ? "bad: more than is "
                                                                             "available: "
                                                                           : "",
              (unsigned long long)memory_weights(p) >> 20);
    pack_close(p);
}

static void put_config(struct facts *f, const struct config *c)
{
    char key[FACT_KEY_BYTES], *text, *next;

    if (config_agree_text(c, &text) < 0)
        return;
    for (char *line = text; *line; line = next) {
        char *eq = strstr(line, " = ");

        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = 0;
        if (!eq || eq > next)
            continue;
        snprintf(key, sizeof(key), "config.%.*s", (int)(eq - line), line);
        facts_put(f, key, "%s", eq + 3);
    }
    free(text);
}

void facts_gather(const struct config *c, struct facts *f)
{
    int rdma = strcmp(c->link, "rdma") == 0;

    f->n = 0;
    put_system(f);
    facts_put(f, "version", "%s", TANDEM_VERSION);
    put_file_digest(f, "program", "/proc/self/exe");
    put_memory(f, rdma);
    put_disk(f, c->cache);
    put_network(f, c);
    put_rdma(f, rdma);
    put_secret(f, c);
    put_pack(f, c);
    put_config(f, c);
}
