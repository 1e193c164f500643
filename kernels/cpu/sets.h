/* sets - what the set_*.c define and sets.c lists; and what all of them are made from. */
#ifndef TANDEM_KERNELS_CPU_SETS_H
#define TANDEM_KERNELS_CPU_SETS_H

#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/formats/exl3.h"
#include "kernels/ref/dot.h"
#include "kernels/ref/simd.h"

extern const struct cpu_set cpu_portable, cpu_avx2, cpu_avx512, cpu_avx512_vnni, cpu_neon;

#endif
