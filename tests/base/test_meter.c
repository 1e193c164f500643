/* Lines of progress, on a terminal and elsewhere. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/meter.h"

/* stderr is `to` from now on; what it was. */
static int lead_to(int to)
{
    int was = dup(STDERR_FILENO);

    fflush(stderr);
    cr_assert(was >= 0 && dup2(to, STDERR_FILENO) >= 0);
    return was;
}

static void lead_back(int was)
{
    fflush(stderr);
    dup2(was, STDERR_FILENO);
    close(was);
}

/* Three of four units, each after `ns`, and the end. */
static void work(enum meter_unit unit, int64_t ns, uint64_t n)
{
    struct meter p;

    meter_begin(&p, "work", unit, 4 * n);
    for (int i = 0; i < 3; i++) {
        p.start_ns -= ns;
        p.shown_ns -= p.shown_ns ? ns : 0;
        meter_add(&p, n);
    }
    cr_expect(eq(u64, p.done, 3 * n));
    meter_end(&p);
    meter_end(&p);
}

/* What a terminal gets of it. */
static void on_terminal(enum meter_unit unit, int64_t ns, uint64_t n, char *out, size_t cap)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY), slave, was;
    size_t end = 0;
    ssize_t got;

    cr_assert(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    cr_assert(slave >= 0);
    was = lead_to(slave);
    work(unit, ns, n);
    lead_back(was);
    close(slave);
    /* The kernel hands it over in parts, and an error behind the last one. */
    while ((got = read(master, out + end, cap - 1 - end)) > 0)
        end += (size_t)got;
    out[end] = 0;
    close(master);
}

Test(meter, a_terminal_has_one_line_that_changes_and_goes)
{
    char out[1024], *at = out;

    /* The clock goes on meanwhile, so what is left is that or a little more. */
    on_terminal(METER_BYTES, 1000 * NS_PER_S, 1 << 30, out, sizeof(out));
    for (int i = 1, left = 0, n = 0; i < 4; i++, at += n, n = 0) {
        char line[64];

        snprintf(line, sizeof(line), "\rwork: %d.00 of 4.00 GiB, 1 MB/s, %%d s left \033[K%%n", i);
        cr_assert(sscanf(at, line, &left, &n) == 1 && n > 0, "%d: %s", i, out);
        cr_expect(left >= (4 - i) * 1000 && left < (4 - i) * 1100, "%d: %s", i, out);
    }
    cr_expect(strcmp(at, "\r\033[K") == 0, "%s", out);

    on_terminal(METER_ITEMS, 1000 * NS_PER_S, 1, out, sizeof(out));
    cr_expect(strncmp(out, "\rwork: 1 of 4, 3", 16) == 0, "%s", out);
}

Test(meter, short_work_says_nothing)
{
    char out[1024];

    on_terminal(METER_ITEMS, -100 * NS_PER_S, 1, out, sizeof(out));
    cr_expect(strcmp(out, "") == 0, "%s", out);
}

Test(meter, what_is_no_terminal_gets_nothing)
{
    int ends[2], was;
    char c;

    cr_assert(pipe(ends) == 0);
    was = lead_to(ends[1]);
    work(METER_BYTES, NS_PER_S, 1 << 30);
    lead_back(was);
    close(ends[1]);
    cr_expect(eq(int, (int)read(ends[0], &c, 1), 0));
    close(ends[0]);
}
