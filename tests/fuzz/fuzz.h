/* fuzz - what a fuzz target is: LLVMFuzzerTestOneInput as libFuzzer knows it, and seeds. */
#ifndef TANDEM_TESTS_FUZZ_FUZZ_H
#define TANDEM_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Inputs longer than this are cut. */
#define FUZZ_INPUT_MAX 65536

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* fuzz_seed - seed number i, from 0: an input that is right, or nearly; a target may have none.
 * result   its length, 0 behind the last one */
size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX]);

#endif
