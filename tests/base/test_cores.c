/* The order of processors, and threads that stay where they are told to. */
#include "src/base/cores.h"

#include <sched.h>
#include <string.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

static const struct {
    const char *name;
    struct core core[4];
    int n, order[4];
} cases[] = {
    { "alike: the first takes interrupts", { { 0 }, { 1 }, { 2 } }, 3, { 1, 2, 0 } },
    { "fast ones first",
      { { 0, 0, 1, 0 }, { 1, 0, 1, 0 }, { 2, 0, 2, 0 }, { 3, 0, 2, 0 } },
      4,
      { 2, 3, 1, 0 } },
    { "a core of one's own before a fast sibling",
      { { 0, 0, 2, 0 }, { 1, 1, 2, 0 }, { 2, 0, 1, 0 }, { 3, 1, 1, 0 } },
      4,
      { 0, 2, 1, 3 } },
    { "near ones among equals",
      { { 1, 0, 1, 0 }, { 2, 0, 1, 1 }, { 3, 0, 2, 0 } },
      3,
      { 3, 2, 1 } },
    { "number 0 before slower ones", { { 0, 0, 2, 0 }, { 1, 0, 1, 1 } }, 2, { 0, 1 } },
};

Test(cores, the_best_come_first)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct core c[4];

        memcpy(c, cases[i].core, sizeof(c));
        cores_sort(c, cases[i].n);
        for (int k = 0; k < cases[i].n; k++)
            cr_expect(eq(int, c[k].number, cases[i].order[k]), "%s: place %d", cases[i].name, k);
    }
}

static void *where(void *out)
{
    cr_assert(sched_getaffinity(0, sizeof(cpu_set_t), out) == 0);
    return NULL;
}

Test(cores, a_thread_stays_and_leaves_and_those_it_starts_do_not)
{
    cpu_set_t before, now, other;
    int list[CORES_MAX], n = cores_list("", list, CORES_MAX), none = CPU_SETSIZE + 5;
    pthread_t t;

    where(&before);
    cr_assert(eq(int, n, CPU_COUNT(&before)));
    for (int i = 0; i < n; i++)
        cr_expect(0 != CPU_ISSET(list[i], &before), "core %d is not ours", list[i]);
    cr_expect(cores_stay(&none, 1) < 0);
    for (int i = 0; i < 2; i++) { /* the second place does not become the one to go back to */
        cr_assert(eq(int, cores_stay(&list[i % n], 1), 0));
        where(&now);
        cr_expect(eq(int, CPU_COUNT(&now), 1));
        cr_expect(0 != CPU_ISSET(list[i % n], &now));
        cr_expect(eq(int, cores_count(), n));
        cr_expect(eq(int, cores_list("no such device", list, CORES_MAX), n));
    }
    cr_assert(eq(int, cores_thread(&t, where, &other), 0));
    pthread_join(t, NULL);
    cr_expect(0 != CPU_EQUAL(&other, &before));
    cores_leave();
    where(&now);
    cr_expect(0 != CPU_EQUAL(&now, &before));
}
