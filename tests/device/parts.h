/* parts - the programs that are tests/device: one executable, so that one file is carried to a
 * device. Each returns an exit code, 77 where there is no device. */
#ifndef TANDEM_TESTS_DEVICE_PARTS_H
#define TANDEM_TESTS_DEVICE_PARTS_H

#include <stdbool.h>

/* pretend - devices that are opened from now on are said to be of an architecture that is not
 * served, or to have the shared memory of a GB10: 99 KiB a block, 100 a multiprocessor */
extern struct pretend {
    bool too_old, little_shared;
} pretend;

int ops_main(int argc, char **argv);
int queue_main(int argc, char **argv);
int exchange_main(int argc, char **argv);
int graph_main(int argc, char **argv);
int rounds_main(int argc, char **argv);
int laws_main(int argc, char **argv);
int bench_main(int argc, char **argv);
int products_main(int argc, char **argv);
int exchanges_main(int argc, char **argv);
int kernels_main(int argc, char **argv);

/* kernels_watch - count launches from now on */
void kernels_watch(void);

/* kernels_save - add the names of the kernels that were launched to a file; not 0 if it cannot */
int kernels_save(const char *path);

/* kernels_least - how often the kernel that was launched least often since the last call had been
 * launched before; INT_MAX if none was */
int kernels_least(void);

#endif
