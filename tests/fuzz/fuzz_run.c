/* fuzz_run.c - runs a fuzz target without a fuzzer: made-up inputs in which small numbers are
 * common, since most of what is checked is a range. usage: fuzz_x [RUNS [SEED]]
 */
#include "src/base/rng.h"

#include <stdio.h>
#include <stdlib.h>

#define INPUT_MAX 3209

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    long runs = argc > 1 ? atol(argv[1]) : 100000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    static uint8_t input[INPUT_MAX];

    for (long i = 0; i < runs; i++) {
        struct philox first = philox4x32((uint32_t)i, 0, 0, 0, seed);
        size_t size = first.w[0] % 4 ? first.w[1] % 100 : first.w[1] % INPUT_MAX;

        for (size_t at = 0; at < size; at++) {
            struct philox b = philox4x32((uint32_t)i, 1, (uint32_t)at, 0, seed);

            input[at] = (uint8_t)(b.w[0] % 8 < 5 ? 0 : b.w[0] % 8 < 7 ? b.w[1] % 8 : b.w[1]);
        }
        LLVMFuzzerTestOneInput(input, size);
    }
    printf("%ld inputs from seed %llu\n", runs, (unsigned long long)seed);
    return 0;
}
