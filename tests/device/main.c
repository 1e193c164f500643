/* device [-k FILE] PART [argument]...      runs a part of the device tests; see the part's file */
#include "kernels/backend.h"
#include "src/transport/comm.h"
#include "tests/device/parts.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } parts[] = {
        { "ops", ops_main },         { "queue", queue_main },       { "exchange", exchange_main },
        { "graph", graph_main },     { "laws", laws_main },         { "rounds", rounds_main },
        { "bench", bench_main },     { "products", products_main }, { "exchanges", exchanges_main },
        { "kernels", kernels_main },
    };
    const char *names = NULL;

    backend_settle(true); /* ranks are threads */
    comm_settle();
    if (argc > 2 && strcmp(argv[1], "-k") == 0) {
        names = argv[2];
        kernels_watch();
        argc -= 2;
        argv += 2;
    }
    for (size_t i = 0; argc > 1 && i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(argv[1], parts[i].name) == 0) {
            int r = parts[i].run(argc - 1, argv + 1);

            return names && kernels_save(names) != 0 ? 1 : r;
        }
    fprintf(stderr,
            "usage: device [-k FILE] PART [argument]..., PART is ops, queue, exchange, graph, "
            "laws, rounds, bench, products, exchanges or kernels\n");
    return 64;
}
