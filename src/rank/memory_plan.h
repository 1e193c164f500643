/* memory_plan - what a rank will hold, against what the machine has, before anything is taken.
 *
 * Weights are a mapped file and row tables are read row by row: what counts is what a window reads.
 */
#ifndef TANDEM_RANK_MEMORY_PLAN_H
#define TANDEM_RANK_MEMORY_PLAN_H

#include <stdint.h>

struct pack;

struct memory_plan {
    uint64_t weights, states, scratch; /* bytes of this rank; scratch is known last */
};

/* memory_weights - bytes of a pack that are resident: no row tables, one layout of a matrix. */
uint64_t memory_weights(const struct pack *p);

/* memory_available - bytes that this process could still use: of the machine, or of its cgroup if
 * that is less. What is in the page cache counts.   result   0: not known */
uint64_t memory_available(void);

/* memory_parse - memory_available from the texts of /proc/meminfo and of a cgroup's memory.max,
 * memory.current and memory.stat; NULL: there is no such file. */
uint64_t memory_parse(const char *meminfo, const char *max, const char *current, const char *stat);

/* memory_check - `ranks` ranks like this one against `available`; 0 is not known and is enough.
 * errors   -ENOMEM naming every number and what is short */
int memory_check(const struct memory_plan *p, int ranks, uint64_t available);

#endif
