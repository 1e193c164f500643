#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "src/base/log.h"
#include "src/rank/memory_plan.h"

#define GIB ((uint64_t)1 << 30)
#define MEMINFO                                                                                    \
    "MemTotal:       16384000 kB\nMemFree:  100 kB\nMemAvailable:    8388608 kB\nX: 1 kB\n"

static const struct {
    const char *name, *meminfo, *max, *current, *stat;
    uint64_t available;
} texts[] = {
    { "a machine", MEMINFO, NULL, NULL, NULL, 8 * GIB },
    { "no limit", MEMINFO, "max\n", "123\n", "inactive_file 5\n", 8 * GIB },
    { "a limit that is near", MEMINFO, "4294967296\n", "1073741824\n", "anon 7\n", 3 * GIB },
    { "what is cached counts", MEMINFO, "4294967296\n", "3221225472\n",
      "anon 1\ninactive_file 1073741824\nactive_file 1073741824\n", 3 * GIB },
    { "more cached than used", MEMINFO, "4294967296\n", "1\n", "inactive_file 9\n", 4 * GIB },
    { "a limit that is far", MEMINFO, "1099511627776\n", "0\n", NULL, 8 * GIB },
    { "over the limit", MEMINFO, "1073741824\n", "2147483648\n", NULL, 0 },
    { "the limit alone", NULL, "4294967296\n", "0\n", NULL, 4 * GIB },
    { "nothing is known", NULL, NULL, NULL, NULL, 0 },
    { "no such line", "MemFree: 5 kB\n", NULL, NULL, NULL, 0 },
    { "a word inside a line", "Not MemAvailable: 5 kB\n", NULL, NULL, NULL, 0 },
};

Test(memory_plan, reads_what_the_kernel_says)
{
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        cr_expect(eq(ulong,
                     memory_parse(texts[i].meminfo, texts[i].max, texts[i].current, texts[i].stat),
                     texts[i].available),
                  "%s", texts[i].name);
    cr_expect(memory_available() > 0, "this machine");
}

static char last[512];

static void keep(void *arg, enum log_level level, const char *line)
{
    snprintf(last, sizeof(last), "%s", line);
}

Test(memory_plan, says_what_is_short)
{
    struct memory_plan p = { .weights = 3 * GIB, .states = GIB, .scratch = GIB / 2 };

    log_sink(keep, NULL);
    cr_expect(eq(int, memory_check(&p, 1, 5 * GIB), 0));
    cr_expect(eq(int, memory_check(&p, 1, 9 * GIB / 2), 0), "to the byte");
    cr_expect(eq(int, memory_check(&p, 1, 9 * GIB / 2 - 1), -ENOMEM));
    cr_expect(eq(int, memory_check(&p, 2, 8 * GIB), -ENOMEM));
    cr_expect(strstr(last, "weights 3.00 GiB, states 1.00, scratch 0.50, for 2 ranks here; 8.00 "
                           "GiB are available, 1.00 are short") != NULL,
              "%s", last);
    cr_expect(eq(int, memory_check(&p, 2, 0), 0), "what is not known is enough");
    p.weights = UINT64_MAX / 2;
    cr_expect(eq(int, memory_check(&p, 8, 5 * GIB), -ENOMEM));
    log_sink(NULL, NULL);
}
