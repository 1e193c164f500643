/* costs - what windows and draft passes cost, kept in a file.
 *
 *   {"key": "...", "window_us": [C(1), C(2), ...], "draft_us": [D(1), ...]}
 *
 * The setting `costs` names such a file; `auto` keeps a measured one in the cache under a name made
 * of all settings that it depends on, which is also its key: version, weights, ranks and what joins
 * them, threads, backend and device (by name), what reads n-gram rows, slots, context, rows,
 * numerics, drafter.
 */
#ifndef TANDEM_RANK_COSTS_H
#define TANDEM_RANK_COSTS_H

#include "src/draft/depth.h"

struct rank;

/* costs_read - the table of a file; more than a table may be in it.
 * errors   of file_read; -EINVAL naming the file */
int costs_read(const char *path, struct cost_table *out);

/* costs_find - the table that an earlier start of the same ranks has kept; a file that is none is
 * as good as none, with a warning.
 * result   0, or 1: there is none */
int costs_find(const struct rank *k, struct cost_table *out);

/* costs_keep - for the next start; what goes wrong is only logged. */
void costs_keep(const struct rank *k, const struct cost_table *t);

#endif
