/* roof_fit - figures of the kernels from what `tandem bench --window --kernels --json` measured of
 * a pack.
 *
 *   each op alone    us = step + row (rows - 1) + decoded weights / rate, by least squares over its
 *                    calls: a rate of products and one of experts, steps of each kind of op
 *   whole windows    what is left of the steps where launches overlap: one share of all steps, from
 *                    the window of one row, and one of all that a row adds, from the others, as is
 *                    how much faster experts are
 *   draft pass       what it takes beyond them
 */
#ifndef TANDEM_RANK_ROOF_FIT_H
#define TANDEM_RANK_ROOF_FIT_H

#include "src/rank/roofline.h"

/* roof_fit - *k, which has what is not fitted (instructions a weight, experts of a row again), from
 * the file; d is the device that was measured, with its windows (roof_read_measured).
 * errors   -EINVAL naming what the file lacks, those of json_read and roof_window */
int roof_fit(const char *path, const struct pack *p, const struct roof_device *d,
             struct roof_kernels *k);

#endif
