/* parts - the programs that are tests/device: one executable, so that one file is carried to a
 * device. Each returns an exit code, 77 where there is no device. */
#ifndef TANDEM_TESTS_DEVICE_PARTS_H
#define TANDEM_TESTS_DEVICE_PARTS_H

int ops_main(int argc, char **argv);
int queue_main(int argc, char **argv);
int exchange_main(int argc, char **argv);
int graph_main(int argc, char **argv);
int rounds_main(int argc, char **argv);
int laws_main(int argc, char **argv);
int bench_main(int argc, char **argv);
int products_main(int argc, char **argv);
int exchanges_main(int argc, char **argv);

#endif
