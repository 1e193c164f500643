/* rounds_levers.c owns the settings that are off unless they are asked for: the replies are those
 * of rounds without. */
#include "tests/device/rounds.h"

static const char *const settings[] = { "early_ingest=on", "graph_pieces=3", "graph_pieces=8",
                                        "prefetch=64KiB" };

#define SETTINGS (sizeof(settings) / sizeof(settings[0]))

void rounds_two_ranks(void)
{
    struct run eager = { .draft = true, .together = 3 };

    CHECK(rounds_run(&eager,
                     SET("ranks=2", "device=0", "depth=4", "graphs=off", "partials=fp32")) == 0,
          "two ranks");
    for (size_t i = 0; i <= SETTINGS; i++) {
        const char *way = i < SETTINGS ? settings[i] : "graphs=on";
        struct run got = { .draft = true, .together = 3 };

        CHECK(rounds_run(&got, SET("ranks=2", "device=0", "depth=4", "partials=fp32", way)) == 0,
              "%s", way);
        rounds_same(&eager, &got, way);
        printf("two ranks on one device, "), rounds_print(way, &got);
    }
}

void rounds_levers(void)
{
    for (size_t i = 0; i < SETTINGS; i++) {
        struct run got = { .draft = true, .together = 3 };

        CHECK(rounds_run(&got, SET("depth=4", settings[i])) == 0, "%s", settings[i]);
        rounds_same(&rounds_serial, &got, settings[i]);
        rounds_print(settings[i], &got);
        CHECK(got.graphs.replayed > got.graphs.eager, "%s", settings[i]);
    }
}
