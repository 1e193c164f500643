/* cores.c owns where the calling thread may run; what the processors are is cores_hwloc.c's. */
#include "src/base/cores.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

/* Where this thread was before it was told to stay somewhere. */
static _Thread_local cpu_set_t before;
static _Thread_local bool placed;

/* More processors than a set holds: none is known. */
static void where_before(cpu_set_t *out)
{
    if (placed)
        *out = before;
    else if (sched_getaffinity(0, sizeof(*out), out) != 0)
        CPU_ZERO(out);
}

int cores_count(void)
{
    cpu_set_t set;

    where_before(&set);
    return CPU_COUNT(&set);
}

static int allowed(struct core *out)
{
    cpu_set_t set;
    int n = 0;

    where_before(&set);
    for (int i = 0; i < CPU_SETSIZE && n < CORES_MAX; i++)
        if (CPU_ISSET(i, &set))
            out[n++] = (struct core){ .number = i };
    return n;
}

static int by_use(const void *a, const void *b)
{
    const struct core *x = a, *y = b;

    if (x->sibling != y->sibling)
        return x->sibling - y->sibling;
    if (x->speed != y->speed)
        return y->speed - x->speed;
    if (x->near != y->near)
        return y->near - x->near;
    if ((x->number == 0) != (y->number == 0))
        return x->number == 0 ? 1 : -1;
    return x->number - y->number;
}

void cores_sort(struct core *c, int n)
{
    qsort(c, (size_t)n, sizeof(*c), by_use);
}

int cores_list(const char *device, int *out, int max)
{
    struct core c[CORES_MAX];
    int n = allowed(c);

    cores_look(device, c, n);
    cores_sort(c, n);
    n = n < max ? n : max;
    for (int i = 0; i < n; i++)
        out[i] = c[i].number;
    return n;
}

int cores_stay(const int *core, int n)
{
    cpu_set_t set, now;

    where_before(&now);
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++)
        if (core[i] >= 0 && core[i] < CPU_SETSIZE)
            CPU_SET(core[i], &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
        return -errno;
    before = now;
    placed = true;
    return 0;
}

void cores_leave(void)
{
    if (placed)
        sched_setaffinity(0, sizeof(before), &before);
    placed = false;
}

int cores_thread(pthread_t *t, void *(*fn)(void *arg), void *arg)
{
    pthread_attr_t attr;
    int r = pthread_attr_init(&attr);

    if (r != 0)
        return r;
    if (placed)
        r = pthread_attr_setaffinity_np(&attr, sizeof(before), &before);
    if (r == 0)
        r = pthread_create(t, &attr, fn, arg);
    pthread_attr_destroy(&attr);
    return r;
}
