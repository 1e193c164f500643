/* clock - the one clock of a rank: monotonic nanoseconds.
 *
 * CLOCK_MONOTONIC never jumps when the wall clock is set, so every timeout, deadline and duration
 * is taken from here. The zero point is the machine's and means nothing on another machine.
 */
#ifndef TANDEM_BASE_CLOCK_H
#define TANDEM_BASE_CLOCK_H

#include <errno.h>
#include <stdint.h>
#include <time.h>

#define NS_PER_US INT64_C(1000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

/* clock_ns - nanoseconds since some fixed moment; never goes back. */
static inline int64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

/* clock_sleep_until - sleep until clock_ns() >= when_ns; signals do not cut it short. */
static inline void clock_sleep_until(int64_t when_ns)
{
    struct timespec t = { .tv_sec = when_ns / NS_PER_S, .tv_nsec = when_ns % NS_PER_S };

    if (when_ns <= 0)
        return;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

/* clock_sleep - sleep for ns; nothing happens if ns <= 0. */
static inline void clock_sleep(int64_t ns)
{
    if (ns > 0)
        clock_sleep_until(clock_ns() + ns);
}

#endif
