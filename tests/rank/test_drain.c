/* test_drain.c - signals: what they ask for and who is told. */
#include "src/rank/drain.h"

#include "src/base/clock.h"
#include "src/base/log.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_MS 20000

struct told {
    atomic_int times;
};

static atomic_int nothing_yet;

static void tell(void *arg)
{
    atomic_fetch_add(&((struct told *)arg)->times, 1);
}

static void look(void *arg, enum log_level level, const char *line)
{
    if (strstr(line, "no rounds yet"))
        atomic_fetch_add(&nothing_yet, 1);
}

static void until(atomic_int *n, int want)
{
    for (int ms = 0; atomic_load(n) < want && ms < PATIENCE_MS; ms++)
        clock_sleep(NS_PER_MS);
    cr_assert(eq(int, atomic_load(n), want));
}

Test(drain, every_rank_of_the_process_reports_when_asked)
{
    struct told a = { 0 }, b = { 0 };
    struct drain *d;

    log_sink(look, NULL);
    cr_assert(eq(int, drain_open(&d), 0));
    kill(getpid(), SIGUSR1);
    until(&nothing_yet, 1);

    drain_report(d, tell, &a);
    drain_report(d, tell, &b);
    kill(getpid(), SIGUSR1);
    until(&a.times, 1);
    until(&b.times, 1);

    drain_unreport(d, &a);
    kill(getpid(), SIGUSR1);
    until(&b.times, 2);
    cr_expect(eq(int, atomic_load(&a.times), 1), "it has left");

    drain_unreport(d, &b);
    kill(getpid(), SIGUSR1);
    until(&nothing_yet, 2);
    cr_expect(eq(int, atomic_load(&d->asked), 0), "a report is no request to leave");
}
