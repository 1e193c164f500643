/* The pool under ThreadSanitizer: plain writes before, in and after calls, with busy and sleeping
 * workers. A plain program, because the sanitizer and the test runner's processes do not go
 * together.
 */
#include "src/base/pool.h"

#include <stdio.h>

#include "src/base/clock.h"

#define TASKS 37

struct work {
    int in[TASKS], out[TASKS], scratch[4];
};

static void task_fn(void *arg, int task, int worker)
{
    struct work *w = arg;

    w->scratch[worker] = w->in[task];
    w->out[task] = w->scratch[worker] * 2;
}

int main(void)
{
    static struct work w;
    struct pool *p;
    int wrong = 0;

    for (int threads = 2; threads <= 4; threads++) {
        if (pool_open(threads, &p) < 0)
            return 1;
        for (int round = 0; round < 2000; round++) {
            int tasks = 2 + round % (TASKS - 1);

            for (int i = 0; i < tasks; i++)
                w.in[i] = round + i;
            pool_run(p, tasks, task_fn, &w);
            for (int i = 0; i < tasks; i++)
                wrong += w.out[i] != 2 * (round + i);
            if (round % 100 == 0)
                clock_sleep(200 * NS_PER_US);
        }
        pool_close(p);
    }
    printf("pool: %d wrong\n", wrong);
    return wrong != 0;
}
