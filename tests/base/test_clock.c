#include "src/base/clock.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

Test(clock, never_goes_back)
{
    int64_t last = clock_ns();

    for (int i = 0; i < 100000; i++) {
        int64_t now = clock_ns();

        cr_assert(now >= last);
        last = now;
    }
}

Test(clock, sleeps_at_least_as_long_as_asked)
{
    int64_t start = clock_ns();

    clock_sleep(5 * NS_PER_MS);
    cr_expect(clock_ns() - start >= 5 * NS_PER_MS);
    start = clock_ns();
    clock_sleep(0);
    clock_sleep(-NS_PER_S);
    clock_sleep_until(start - NS_PER_S);
    clock_sleep_until(-1);
    cr_expect(clock_ns() - start < NS_PER_S);
}
