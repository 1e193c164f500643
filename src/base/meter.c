/* meter.c owns the line and how often it changes. */
#include "src/base/meter.h"

#include <stdio.h>
#include <unistd.h>

#include "src/base/clock.h"

#define SHOW_NS (NS_PER_S / 5)

void meter_begin(struct meter *p, const char *what, enum meter_unit unit, uint64_t total)
{
    *p = (struct meter){ .what = what,
                         .unit = unit,
                         .total = total,
                         .start_ns = clock_ns(),
                         .terminal = isatty(STDERR_FILENO) == 1 };
}

static void show(const struct meter *p, double seconds)
{
    double done = (double)p->done, total = (double)p->total, rate = done / seconds;
    double left = rate > 0 ? (total - done) / rate : 0;

    if (p->unit == METER_BYTES)
        fprintf(stderr, "\r%s: %.2f of %.2f GiB, %.0f MB/s, %.0f s left \033[K", p->what,
                done / (1 << 30), total / (1 << 30), rate / 1e6, left);
    else
        fprintf(stderr, "\r%s: %.0f of %.0f, %.0f s left \033[K", p->what, done, total, left);
}

void meter_add(struct meter *p, uint64_t n)
{
    int64_t now;

    p->done += n;
    if (!p->terminal)
        return;
    now = clock_ns();
    if (now - (p->shown_ns ? p->shown_ns : p->start_ns) < SHOW_NS)
        return;
    p->shown_ns = now;
    show(p, (double)(now - p->start_ns) / NS_PER_S);
}

void meter_end(struct meter *p)
{
    if (p->shown_ns)
        fprintf(stderr, "\r\033[K");
    p->shown_ns = 0;
}
