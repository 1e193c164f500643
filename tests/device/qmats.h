/* qmats - matrices of every stored type for cases of lab.h, as tests/kernels/qmat.h makes them. */
#ifndef TANDEM_TESTS_DEVICE_QMATS_H
#define TANDEM_TESTS_DEVICE_QMATS_H

#include "tests/device/lab.h"

enum { QMATS_EXL3 = 33 }; /* of 5 bits, MUL1 */

/* qmats_type - type number i in m's dtype and q, packed for devices; false if there is none. */
bool qmats_type(int i, struct mat *m);

const char *qmats_name(const struct mat *m);

/* qmats_fill - a blob for m's dtype, rows, cols and q, from malloc, and m placed in it. */
void *qmats_fill(struct lab *l, struct mat *m, size_t *bytes);

#endif
