/* synth - random bytes of made-up weights, the same on host and device. */
#ifndef TANDEM_BASE_SYNTH_H
#define TANDEM_BASE_SYNTH_H

#include "src/base/rng.h"

#define SYNTH_BYTES 2 /* kind of synth_block */

/* synth_word - bytes 4 i .. 4 i + 3 of the tensor whose name has this hash. */
RNG_FN uint32_t synth_word(uint64_t hash, uint64_t i)
{
    return synth_block(hash, i / 4, SYNTH_BYTES).w[i % 4];
}

#endif
