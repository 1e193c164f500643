/* cpu - the fast host backend: ref's table with the products replaced.
 *
 * A set is one way to compute a strip (kernels/ref/product.h) with some instruction set; all of
 * them have the bits of ref_strip. The op takes the best set that this machine has. Only LAYOUT_CPU
 * is read fast; other layouts and plain weights go through ref_strip, whose loops over plain
 * weights are vector code already.
 */
#ifndef TANDEM_KERNELS_CPU_CPU_H
#define TANDEM_KERNELS_CPU_CPU_H

#include <stdbool.h>

#include "kernels/backend_table.h"
#include "kernels/ref/product.h"

struct cpu_set {
    const char *name;
    bool (*works)(void); /* this machine has the instructions */
    strip_fn *strip;
};

/* cpu_set_at - the sets that are built, slowest first; number 0 works everywhere. NULL behind the
 * last one. */
const struct cpu_set *cpu_set_at(int i);

/* cpu_best - the last one that works here. */
const struct cpu_set *cpu_best(void);

#endif
