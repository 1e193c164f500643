/* emulated_tests [-r ORDER] [-l 1] PART [argument]... - parts of the device tests on the kernels'
 * own sources, compiled for this machine's processor.
 *
 *   emulated_tests ops attend       one file's ops against the reference (tests/device/test_ops.c)
 *   emulated_tests ops -b 100000    of all ops the cases of up to 100,000 bytes; the suite has a
 *                                   bound for each file
 *   emulated_tests -r 1 queue -q    in another order: engine.h, `order`
 *   emulated_tests -l 1 ops dense   a device of much shared memory and clusters of 16; else it is
 *                                   of GB10's 99 KiB a block and 8
 *
 * From the root of the tree. The device has four multiprocessors and no wgmma; it is of no use to
 * ask it how long something takes. What it finds: wrong places and bytes, reads of what nobody
 * wrote, lanes, threads and blocks that do not meet, copies that nobody waited for, and what is
 * missing between threads where one of the orders shows it: a fiber runs until it waits, so a
 * missing barrier lets a reader come before its writer in 0 or in 1. What it does not show: the
 * order in which other processors see what one writes (fences and caches), the four-warp matrix
 * unit, whether registers spill, what a launch of too many blocks does; and a matrix product is
 * rounded once here, a matrix unit cuts bits off.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "src/transport/comm.h"
#include "tests/device/parts.h"
#include "tests/emulated/emulated.h"

static bool option(const char *name, const char *value)
{
    char *end = NULL;

    if (strcmp(name, "-l") == 0 && strcmp(value, "1") == 0) {
        emulated_limits = (struct emulated_limits){ 227 << 10, 228 << 10, 16 };
        return true;
    }
    if (strcmp(name, "-r") == 0)
        emulated_order = (unsigned)strtoul(value, &end, 10);
    return end && end != value && *end == 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } parts[] = { { "ops", ops_main },
                  { "queue", queue_main },
                  { "graph", graph_main },
                  { "laws", laws_main },
                  { "rounds", rounds_main } };

    backend_settle(true); /* ranks are threads */
    comm_settle();
    for (; argc > 2 && option(argv[1], argv[2]); argc -= 2, argv += 2)
        ;
    for (size_t i = 0; argc > 1 && i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(argv[1], parts[i].name) == 0)
            return parts[i].run(argc - 1, argv + 1);
    fprintf(stderr,
            "usage: emulated_tests [-r ORDER] [-l 1] PART [argument]..., PART is ops, queue, "
            "graph, laws or rounds\n");
    return 64;
}

/* Every kernel is one of many launches here. */
void kernels_watch(void)
{
}

int kernels_least(void)
{
    return 0;
}
