/* Which processors a rank's threads get, and what `pin` may not say. */
#include "src/rank/placing.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "src/base/log.h"

static const int order[] = { 7, 6, 5, 4, 3, 2, 1, 0 };

static const struct {
    const char *name;
    int cores, workers;
    bool proxy;
    enum placing_result result;
    int round, at_proxy, n, worker; /* worker: the first one's */
} cases[] = {
    { "with a device", 8, 0, true, PLACING_DONE, 7, 6, 0, 0 },
    { "with workers", 8, 3, false, PLACING_DONE, 7, -1, 7, 6 },
    { "with both", 8, 3, true, PLACING_DONE, 7, 6, 6, 5 },
    { "nothing left for others", 8, 7, false, PLACING_FULL, -1, -1, 0, 0 },
    { "too many workers", 8, 8, false, PLACING_SHORT, -1, -1, 0, 0 },
    { "a proxy and one core", 1, 0, true, PLACING_SHORT, -1, -1, 0, 0 },
};

Test(placing, spinning_threads_have_processors_of_their_own)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct placing p;
        const char *name = cases[i].name;

        cr_expect(eq(int,
                     placing_share(order, cases[i].cores, cases[i].workers, cases[i].proxy, &p),
                     cases[i].result),
                  "%s", name);
        cr_expect(eq(int, p.round, cases[i].round), "%s", name);
        cr_expect(eq(int, p.proxy, cases[i].at_proxy), "%s", name);
        cr_expect(eq(int, p.workers, cases[i].n), "%s", name);
        for (int k = 0; k < p.workers; k++)
            cr_expect(p.worker[k] != p.round && p.worker[k] != p.proxy, "%s", name);
        cr_expect(cases[i].n == 0 || p.worker[0] == cases[i].worker, "%s", name);
    }
}

static char said[1024];

static void keep(void *arg, enum log_level level, const char *line)
{
    snprintf(said, sizeof(said), "%s", line);
}

Test(placing, pin_is_a_place_of_this_machine_or_refused_by_name)
{
    static const struct {
        const char *name, *set[4];
        int result, placed;
        const char *line;
    } pins[] = {
        { "off", { "ranks=2", "secret=x", "link=tcp", "pin=off" }, 0, 0, "" },
        { "one rank", { "ranks=1" }, 0, 0, "" },
        { "a core that is not there",
          { "pin=4095,0" },
          -EINVAL,
          0,
          "config: pin: this process may not use" },
        { "threads of one process", { "ranks=2", "pin=%a,%b" }, -EINVAL, 0, "config: pin: " },
        { "cores by name", { "ranks=2", "secret=x", "link=tcp", "pin=%a,%b" }, 0, 1, "" },
        { "more threads than cores",
          { "ranks=2", "secret=x", "link=tcp", "hosts=a,b" },
          0,
          0,
          "pin: " },
        { "two ranks of one machine", { "ranks=2", "secret=x", "link=tcp" }, 0, 0, "" },
    };
    int list[CORES_MAX], n = cores_list("", list, CORES_MAX);

    log_open(-1, LOG_WARN);
    log_sink(keep, NULL);
    for (size_t i = 0; i < sizeof(pins) / sizeof(pins[0]); i++) {
        struct placing p;
        struct config c;
        bool named = false;

        cr_assert(eq(int, config_init(&c), 0));
        for (int k = 0; k < 4 && pins[i].set[k]; k++) {
            char text[64];

            if (strstr(pins[i].set[k], "%a")) {
                snprintf(text, sizeof(text), "pin=%d,%d", list[0], list[n > 1]);
                named = true;
            } else {
                snprintf(text, sizeof(text), "%s", pins[i].set[k]);
            }
            cr_assert(eq(int, config_set(&c, text), 0));
        }
        said[0] = 0;
        if (!named || n > 1) { /* two cores cannot be named where there is one */
            cr_expect(eq(int, placing_of(&c, CORES_MAX, false, &p), pins[i].result), "%s: %s",
                      pins[i].name, said);
            cr_expect(pins[i].line[0] ? strstr(said, pins[i].line) != NULL : !said[0], "%s: %s",
                      pins[i].name, said);
            cr_expect(pins[i].result < 0 || p.round == (pins[i].placed ? list[0] : -1), "%s",
                      pins[i].name);
        }
        config_free(&c);
    }
    log_sink(NULL, NULL);
}

Test(placing, the_round_stays_on_its_core_and_workers_on_theirs)
{
    int list[CORES_MAX], n = cores_list("", list, CORES_MAX);
    struct placing p = { .round = list[0], .proxy = -1, .workers = 1, .worker = { list[n > 1] } };
    cpu_set_t set;

    placing_workers(&p);
    cr_assert(sched_getaffinity(0, sizeof(set), &set) == 0);
    cr_expect(1 == CPU_COUNT(&set) && CPU_ISSET(p.worker[0], &set));
    placing_round(&p);
    cr_assert(sched_getaffinity(0, sizeof(set), &set) == 0);
    cr_expect(1 == CPU_COUNT(&set) && CPU_ISSET(p.round, &set));
    placing_leave();
    cr_assert(sched_getaffinity(0, sizeof(set), &set) == 0);
    cr_expect(eq(int, CPU_COUNT(&set), n));
}
