/* memory_plan.c owns the sum of a rank's memory and the reading of what there is. */
#include "src/rank/memory_plan.h"

#include "src/base/log.h"
#include "src/model/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES (64 << 10)

uint64_t memory_weights(const struct pack *p)
{
    struct pack_item w;
    uint64_t sum = 0;

    for (size_t i = 0; pack_item(p, i, &w) == 0; i++)
        if (w.kind != WEIGHT_ROWS && !w.again)
            sum += w.bytes;
    return sum;
}

/* The number behind a word at the beginning of a line; 0 if there is none. */
static uint64_t number_of(const char *text, const char *word)
{
    size_t len = strlen(word);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, word, len) == 0)
            return strtoull(line + len, NULL, 10);
    }
    return 0;
}

uint64_t memory_parse(const char *meminfo, const char *max, const char *current, const char *stat)
{
    uint64_t machine = meminfo ? number_of(meminfo, "MemAvailable:") << 10 : 0, most, used, cached;

    if (!max || !current || max[0] < '0' || max[0] > '9')
        return machine;
    most = strtoull(max, NULL, 10);
    used = strtoull(current, NULL, 10);
    cached = stat ? number_of(stat, "inactive_file ") + number_of(stat, "active_file ") : 0;
    used -= cached < used ? cached : used;
    most -= used < most ? used : most;
    return machine == 0 || most < machine ? most : machine;
}

/* A file of the kernel's: its size is not known before it is read. */
static char *text_of(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = fd >= 0 ? calloc(TEXT_BYTES + 1, 1) : NULL;
    size_t at = 0;
    ssize_t n;

    while (text && at < TEXT_BYTES && (n = read(fd, text + at, TEXT_BYTES - at)) > 0)
        at += (size_t)n;
    if (fd >= 0)
        close(fd);
    return text;
}

uint64_t memory_available(void)
{
    static const char *const path[] = { "/proc/meminfo", "/sys/fs/cgroup/memory.max",
                                        "/sys/fs/cgroup/memory.current",
                                        "/sys/fs/cgroup/memory.stat" };
    char *text[4];
    uint64_t bytes;

    for (int i = 0; i < 4; i++)
        text[i] = text_of(path[i]);
    bytes = memory_parse(text[0], text[1], text[2], text[3]);
    for (int i = 0; i < 4; i++)
        free(text[i]);
    return bytes;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1 << 30);
}

int memory_check(const struct memory_plan *p, int ranks, uint64_t available)
{
    uint64_t one = p->weights + p->states + p->scratch, all;

    if (available == 0)
        return 0;
    if (__builtin_mul_overflow(one, (uint64_t)ranks, &all) || all > available)
        return fail(-ENOMEM,
                    "memory: weights %.2f GiB, states %.2f, scratch %.2f, for %d ranks here; %.2f "
                    "GiB are available, %.2f are short",
                    gib(p->weights), gib(p->states), gib(p->scratch), ranks, gib(available),
                    gib(one) * ranks - gib(available));
    log_debug("memory: weights %.3f GiB, states %.3f, scratch %.3f, for %d ranks here, of %.2f "
              "available",
              gib(p->weights), gib(p->states), gib(p->scratch), ranks, gib(available));
    return 0;
}
